// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/command.h"

namespace kv {

void Command::Files(CommandFiles& files) const {
  files.Reads(input_);
  snapshot_.Files(files);
  page_.Files(files);
  report_.Files(files);
}

void VerbCommand::Declare(CommandLine& line) {
  if (missing_.empty()) line.RequireVerb();
  for (const Verb& verb : verbs_) {
    CommandLine& own = line.AddVerb(verb.name, verb.summary);
    commands_.emplace_back(&own, verb.make());
    commands_.back().second->Declare(own);
  }
}

void VerbCommand::Files(CommandFiles& files) const {
  for (const auto& [line, command] : commands_) {
    if (line->parsed()) command->Files(files);
  }
}

ExitStatus VerbCommand::Run(Context& context) {
  for (const auto& [line, command] : commands_) {
    if (line->parsed()) return command->Run(context);
  }
  throw Error(Finding::kUsage, std::string(missing_));
}

}  // namespace kv
