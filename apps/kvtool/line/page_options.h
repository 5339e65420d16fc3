// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <vector>

#include "apps/kvtool/console/console.h"
#include "apps/kvtool/inputs/command_files.h"
#include "apps/kvtool/line/command_line.h"
#include "lib/report/html.h"

namespace kv {

// --html-out, --svg-out: a report as a page, and its pictures as files.
struct PageOptions {
  std::string html, svg;

  // `of` ends the sentence about the page, such as " of the statistics".
  void Declare(CommandLine& line, const std::string& of = "");
  void Files(CommandFiles& files) const;
  bool wanted() const { return !html.empty() || !svg.empty(); }
  void Write(const report::Page& page, const FileUser& command, Console& console,
             const OutputRules& rules) const;
  // The pictures alone.
  void WritePictures(const report::Page& page, const FileUser& command, Console& console,
                     const OutputRules& rules) const;

 private:
  // Where each picture goes. Throws kUsage if a name is that of another output or of an input.
  std::vector<std::string> CheckedPlaces(const report::Page& page, const FileUser& command) const;
};

// How every page ends: the program, its command line, and the content of what it read.
report::Origin OriginOf(const FileUser& command, const Console& console);

}  // namespace kv
