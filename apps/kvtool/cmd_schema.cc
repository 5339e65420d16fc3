// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/document_schema.h"
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
    line.Add("--output-dir", folder_, "Write every schema to a folder, as NAME.schema.json");
    line.AddFlag("-f,--force", force_, "Overwrite schemas");
    report_.DeclareVersion(line);
  }

  void Files(CommandFiles&) const override {}

  ExitStatus Run(Context& context) override {
    if (!folder_.empty()) return WriteAll();
    for (const EmbeddedSchema& schema : EmbeddedSchemas()) {
      if (name_.empty()) context.console.Product(fmt::format("{}\n", schema.name));
      const std::optional<int> version = VersionAsked(schema.name);
      if (!version) continue;
      context.console.Product(TextOf(schema, *version));
      return kDone;
    }
    if (name_.empty()) return kDone;
    throw Error(Finding::kUsage, fmt::format("no schema '{}'", Escaped(name_)))
        .Hint("'kvtool schema' lists them");
  }

 private:
  static std::string TextOf(const EmbeddedSchema& schema, int version) {
    if (version == 1) return std::string(schema.text);
    return EnvelopeSchema(schema.name, schema.text).dump(2) + "\n";
  }

  // Files have one version.
  static int NewestOf(std::string_view name) { return HasEnvelope(name) ? kJsonVersion : 1; }

  ExitStatus WriteAll() const {
    if (!name_.empty()) {
      throw Error(Finding::kUsage, "--output-dir writes the schemas of all documents");
    }
    std::error_code ignored;  // a folder that is missing is said when the first schema is written
    std::filesystem::create_directories(folder_, ignored);
    for (const EmbeddedSchema& schema : EmbeddedSchemas()) {
      const int version = std::min(NewestOf(schema.name), report_.json_version);
      WriteText(fmt::format("{}/{}.schema.json", folder_, schema.name), TextOf(schema, version),
                RulesFor(force_));
    }
    return kDone;
  }

  std::optional<int> VersionAsked(std::string_view name) const {
    std::string_view asked = name_;
    if (asked.starts_with("kvtool.")) asked.remove_prefix(7);
    const int newest = NewestOf(name);
    if (asked == name) return std::min(newest, report_.json_version);
    for (int version = 1; version <= newest; ++version) {
      if (asked == fmt::format("{}/{}", name, version)) return version;
    }
    return std::nullopt;
  }

  std::string name_, folder_;
  bool force_ = false;
  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeSchema() { return std::make_unique<Schema>(); }

}  // namespace kv
