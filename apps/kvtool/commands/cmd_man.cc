// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <filesystem>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/line/manual.h"

namespace kv {
namespace {

class Man : public Command {
 public:
  void Declare(CommandLine& line) override {
    std::vector<std::string> names;
    for (const CommandEntry& entry : Commands()) names.emplace_back(entry.name);
    line.Add("COMMAND", command_, "Command whose page is printed (default: kvtool's own)")
        .Suggest(names);
    line.Add("--output-dir", folder_, "Write every page to a folder, as NAME.1");
    line.AddFlag("-f,--force", force_, "Overwrite pages");
  }

  void Files(CommandFiles&) const override {}

  ExitStatus Run(Context& context) override {
    if (!command_.empty() && FindCommand(command_) == nullptr) throw UnknownCommand(command_);
    const std::vector<ManualPage> pages = ManualPages(DescribeCommands());
    if (!folder_.empty()) {
      if (!command_.empty())
        throw Error(Finding::kUsage, "--output-dir writes the pages of all commands");
      std::error_code ignored;  // a folder that is missing is said when the first page is written
      std::filesystem::create_directories(folder_, ignored);
      for (const ManualPage& page : pages) {
        WriteText(fmt::format("{}/{}", folder_, page.file), page.text, RulesFor(force_));
      }
      return kDone;
    }
    const std::string file =
        command_.empty() ? "kvtool.1" : fmt::format("kvtool-{}.1", FindCommand(command_)->name);
    for (const ManualPage& page : pages) {
      if (page.file == file) context.console.Product(page.text);
    }
    return kDone;
  }

 private:
  std::string command_, folder_;
  bool force_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeMan() { return std::make_unique<Man>(); }

}  // namespace kv
