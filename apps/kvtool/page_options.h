// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "lib/study/report/html.h"

namespace kv {

// --html-out, --svg-out: a report as a page, and its pictures as files.
struct PageOptions {
  std::string html, svg;

  void Declare(CommandLine& line);
  void Files(CommandFiles& files) const;
  bool wanted() const { return !html.empty() || !svg.empty(); }
  void Write(const report::Page& page, const Command& command, Console& console,
             const OutputRules& rules) const;
  // The pictures alone.
  void WritePictures(const report::Page& page, const Command& command, Console& console,
                     const OutputRules& rules) const;

 private:
  // Where each picture goes. Throws kUsage if a name is that of another output or of an input.
  std::vector<std::string> CheckedPlaces(const report::Page& page, const Command& command) const;
};

}  // namespace kv
