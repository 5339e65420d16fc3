// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/document_version.h"
#include "apps/kvtool/schemas.h"

namespace kv {
namespace {

class Schema : public Command {
 public:
  void Declare(CommandLine& line) override {
    std::vector<std::string> names;
    for (const EmbeddedSchema& schema : EmbeddedSchemas()) names.emplace_back(schema.name);
    line.Add("NAME", name_, "Document, e.g. inspect or inspect/1; none lists all").Suggest(names);
    report_.DeclareVersion(line);
  }

  void Files(CommandFiles&) const override {}

  ExitStatus Run(Context& context) override {
    for (const EmbeddedSchema& schema : EmbeddedSchemas()) {
      if (name_.empty()) context.console.Product(fmt::format("{}\n", schema.name));
      const std::optional<int> version = VersionAsked(schema.name);
      if (!version) continue;
      context.console.Product(*version == 1
                                  ? std::string(schema.text)
                                  : EnvelopeSchema(schema.name, schema.text).dump(2) + "\n");
      return kDone;
    }
    if (name_.empty()) return kDone;
    throw Error(Finding::kUsage, fmt::format("no schema '{}'", Escaped(name_)))
        .Hint("'kvtool schema' lists them");
  }

 private:
  // Files have one version.
  std::optional<int> VersionAsked(std::string_view name) const {
    std::string_view asked = name_;
    if (asked.starts_with("kvtool.")) asked.remove_prefix(7);
    const int newest = HasEnvelope(name) ? kJsonVersion : 1;
    if (asked == name) return std::min(newest, report_.json_version);
    for (int version = 1; version <= newest; ++version) {
      if (asked == fmt::format("{}/{}", name, version)) return version;
    }
    return std::nullopt;
  }

  std::string name_;
  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeSchema() { return std::make_unique<Schema>(); }

}  // namespace kv
