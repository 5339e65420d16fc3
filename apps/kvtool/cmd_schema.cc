// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/schemas.h"

namespace kv {
namespace {

class Schema : public Command {
 public:
  void Declare(CommandLine& line) override {
    std::vector<std::string> names;
    for (const EmbeddedSchema& schema : EmbeddedSchemas()) names.emplace_back(schema.name);
    line.Add("NAME", name_, "Report, e.g. inspect; none lists all").Suggest(names);
  }

  void Files(CommandFiles&) const override {}

  ExitStatus Run(Context& context) override {
    for (const EmbeddedSchema& schema : EmbeddedSchemas()) {
      if (name_.empty()) context.console.Product(fmt::format("{}\n", schema.name));
      if (name_ != schema.name && name_ != fmt::format("kvtool.{}/1", schema.name)) continue;
      context.console.Product(schema.text);
      return kDone;
    }
    if (name_.empty()) return kDone;
    throw Error(Finding::kUsage, fmt::format("no schema '{}'", Escaped(name_)))
        .Hint("'kvtool schema' lists them");
  }

 private:
  std::string name_;
};

}  // namespace

std::unique_ptr<Command> MakeSchema() { return std::make_unique<Schema>(); }

}  // namespace kv
