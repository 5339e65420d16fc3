// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/kvtool/command.h"

namespace kv {

struct Verb {
  std::string_view name, summary;
  std::unique_ptr<Command> (*make)();
};

// A command of which each verb is a command of its own: `kvtool store add`. Where no verb is given
// the parser says so, unless there is a text that says it better.
class VerbCommand : public Command {
 public:
  explicit VerbCommand(std::span<const Verb> verbs, std::string_view missing = "")
      : verbs_(verbs), missing_(missing) {}

  void Declare(CommandLine& line) override;
  void Files(CommandFiles& files) const override;
  ExitStatus Run(Context& context) override;

 private:
  std::span<const Verb> verbs_;
  std::string_view missing_;
  std::vector<std::pair<CommandLine*, std::unique_ptr<Command>>> commands_;
};

}  // namespace kv
