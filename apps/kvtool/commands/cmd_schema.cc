// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <filesystem>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/documents/document_schema.h"

namespace kv {
namespace {

class Schema : public Command {
 public:
  void Declare(CommandLine& line) override {
    std::vector<std::string> names;
    for (const KnownSchema& schema : KnownSchemas()) names.emplace_back(schema.name);
    line.Add("NAME", name_, "Document, e.g. inspect or inspect/2; none lists all").Suggest(names);
    line.Add("--output-dir", folder_, "Write every schema to a folder, as NAME.schema.json");
    line.AddFlag("-f,--force", force_, "Overwrite schemas");
    report_.DeclareVersion(line);
  }

  void Files(CommandFiles&) const override {}

  ExitStatus Run(Context& context) override {
    if (!folder_.empty()) return WriteAll();
    for (const KnownSchema& schema : KnownSchemas()) {
      if (name_.empty()) context.console.Product(fmt::format("{}\n", schema.name));
      if (!IsAsked(schema)) continue;
      context.console.Product(TextOf(schema));
      return kDone;
    }
    if (name_.empty()) return kDone;
    throw Error(Finding::kUsage, fmt::format("no schema '{}'", Escaped(name_)))
        .Hint("'kvtool schema' lists them");
  }

 private:
  std::string TextOf(const KnownSchema& schema) const {
    if (schema.document == nullptr) return std::string(schema.text);
    const bool is_file = !name_.empty() && Asked() == kSummary;
    return (is_file ? SummarySchema(schema) : EnvelopeSchema(schema)).dump(2) + "\n";
  }

  ExitStatus WriteAll() const {
    if (!name_.empty()) {
      throw Error(Finding::kUsage, "--output-dir writes the schemas of all documents");
    }
    std::error_code ignored;  // a folder that is missing is said when the first schema is written
    std::filesystem::create_directories(folder_, ignored);
    for (const KnownSchema& schema : KnownSchemas()) {
      WriteText(fmt::format("{}/{}.schema.json", folder_, schema.name), TextOf(schema),
                RulesFor(force_));
    }
    return kDone;
  }

  std::string_view Asked() const {
    std::string_view asked = name_;
    if (asked.starts_with("kvtool.")) asked.remove_prefix(7);
    return asked;
  }

  // By its name, with its version or without. Files have version 1.
  bool IsAsked(const KnownSchema& schema) const {
    const std::string_view name = schema.name;
    const std::string_view asked = Asked();
    if (!asked.starts_with(name)) return false;
    const std::string_view version = asked.substr(name.size());
    if (version.empty() || asked == kSummary) return true;
    if (schema.document == nullptr) return version == "/1";
    if (version == "/1") {
      throw Error(Finding::kUsage, fmt::format("'{}': {}", Escaped(name_), WrongJsonVersion("1")))
          .Hint(fmt::format("'kvtool schema {}'", name));
    }
    return version == fmt::format("/{}", kJsonVersion);
  }

  static constexpr std::string_view kSummary = "gate/1";  // a file as well as a document

  std::string name_, folder_;
  bool force_ = false;
  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeSchema() { return std::make_unique<Schema>(); }

}  // namespace kv
