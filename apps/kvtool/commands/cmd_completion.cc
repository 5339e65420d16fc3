// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands.h"
#include "apps/kvtool/line/completion.h"

namespace kv {
namespace {

class Completion : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("SHELL", shell_, "bash, zsh or fish").OneOf({"bash", "zsh", "fish"}).Required();
  }

  void Files(CommandFiles&) const override {}

  ExitStatus Run(Context& context) override {
    const std::vector<CommandDescription> commands = DescribeCommands();
    context.console.Product(shell_ == "bash"  ? BashCompletion(commands)
                            : shell_ == "zsh" ? ZshCompletion(commands)
                                              : FishCompletion(commands));
    return kDone;
  }

 private:
  std::string shell_;
};

}  // namespace

std::unique_ptr<Command> MakeCompletion() { return std::make_unique<Completion>(); }

}  // namespace kv
