// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool schema`: JSON Schemas of all documents, generated from their fields or embedded.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/line/help.h"
#include "lib/fields/fields.h"

namespace kv {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDialect = "https://json-schema.org/draft/2020-12/schema";

Json Text(std::string_view description) {
  return {{"description", description}, {"type", "string"}};
}
Json ErrorSchema() {
  Json schema = ToJson(ErrorFields().Schema());
  schema["additionalProperties"] = false;
  return schema;
}

std::string Id(std::string_view name, int version) {
  return fmt::format("kvtool.{}/{}", name, version);
}

Json SchemaSchema(std::string_view name, int version) {
  return {{"description", "Name and version of this schema"}, {"const", Id(name, version)}};
}

Json ToolSchema() {
  return {{"description", "Program that made the document"},
          {"type", "object"},
          {"required", {"name", "version", "git"}},
          {"additionalProperties", false},
          {"properties",
           {{"name", {{"description", "The program"}, {"const", "kvtool"}}},
            {"version", Text("Version of the program")},
            {"git", Text("Commit that the program was built from")}}}};
}

Json EnvelopeProperties(std::string_view name) {
  return {{"schema", SchemaSchema(name, kJsonVersion)},
          {"tool", ToolSchema()},
          {"exit_code",
           {{"description",
             "The exit status of the run: 0 done, 1 a negative verdict, 2 wrong usage, 3 invalid "
             "input, 4 I/O, 5 recognised but unsupported, 70 a bug"},
            {"enum", {0, 1, 2, 3, 4, 5, 70}}}},
          {"errors",
           {{"description", "What failed; empty after a run without failures"},
            {"type", "array"},
            {"items", ErrorSchema()}}},
          {"warnings",
           {{"description", "Warnings of the run"},
            {"type", "array"},
            {"items", {{"type", "string"}}}}},
          {"results",
           {{"description",
             "One for each input, or one for all where the command compares or joins them; failed "
             "inputs have none"},
            {"type", "array"},
            {"items", {{"$ref", "#/$defs/result"}}}}}};
}

// Returns the schema of a document: the envelope of a run, and an element of its "results".
Json EnvelopeSchema(const KnownSchema& schema) {
  const std::string_view name = schema.document->name;
  Json properties = EnvelopeProperties(name);
  Json required = Json::array();
  for (const auto& [key, value] : properties.items()) required.push_back(key);
  return {{"$schema", kDialect},
          {"$id", Id(name, kJsonVersion)},
          {"title", schema.document->title},
          {"type", "object"},
          {"required", std::move(required)},
          {"additionalProperties", false},
          {"properties", std::move(properties)},
          {"$defs", {{"result", ToJson(schema.document->fields().Schema())}}}};
}

// Returns the schema of a file that is made of fields.
Json FileSchema(const DocumentKind& file) {
  Json schema = {{"$schema", kDialect}, {"$id", Id(file.name, 1)}, {"title", file.title}};
  schema.update(ToJson(file.fields().Schema()));
  return schema;
}

// Returns the schema of the gate's summary.json, kvtool.gate/1: a result of its document as a file.
Json SummarySchema(const KnownSchema& schema) {
  const Json result = ToJson(schema.document->fields().Schema());
  Json required = {"schema", "tool"};
  Json properties = {{"schema", SchemaSchema("gate", 1)}, {"tool", ToolSchema()}};
  for (const Json& name : result["required"]) required.push_back(name);
  properties.update(result["properties"]);
  return {{"$schema", kDialect},
          {"$id", Id("gate", 1)},
          {"title", "kvtool gate: summary.json"},
          {"type", "object"},
          {"required", std::move(required)},
          {"properties", std::move(properties)}};
}

class Schema : public Command {
 public:
  void Declare(CommandLine& line) override {
    std::vector<std::string> names;
    for (const KnownSchema& schema : KnownSchemas()) names.emplace_back(schema.name);
    line.Add("NAME", words_, "Document, e.g. inspect or inspect/2, or command; none lists all")
        .Suggest(names);
    line.Add("--output-dir", folder_, "Write every schema to a folder, as NAME.schema.json");
    line.AddFlag("-f,--force", force_, "Overwrite schemas");
    report_.DeclareVersion(line);
  }

  ExitStatus Run(Context& context) override {
    name_ = fmt::format("{}", fmt::join(words_, " "));
    if (!folder_.empty()) return WriteAll();
    for (const KnownSchema& schema : KnownSchemas()) {
      if (name_.empty()) context.console.Product(fmt::format("{}\n", schema.name));
      if (!IsAsked(schema)) continue;
      context.console.Product(Print(schema));
      return kDone;
    }
    if (name_.empty()) return kDone;
    if (const std::string document = FindDocumentName(name_); !document.empty()) {
      words_ = {document};
      return Run(context);
    }
    throw Error(Finding::kUsage, "no schema '{}'", Escaped(name_))
        .Hint("'kvtool schema' lists them");
  }

 private:
  // Returns the document of a command: "h2o" for "replay evict", "replay-evict" or "evict".
  static std::string FindDocumentName(const std::string& command) {
    for (const CommandEntry& entry : Commands()) {
      std::string words(entry.shown());
      const bool is_verb = !entry.words.empty() && SecondWord(entry) == command;
      if (command != words && !is_verb && command != WithDashes(std::move(words))) continue;
      const DocumentKind* kind = FindDocument(entry.name);
      return kind == nullptr ? "" : std::string(kind->name);
    }
    const DocumentKind* kind = FindDocument(command);  // "trace inspect"
    return kind == nullptr ? "" : std::string(kind->name);
  }
  static std::string WithDashes(std::string words) {
    std::ranges::replace(words, ' ', '-');
    return words;
  }

  std::string Print(const KnownSchema& schema) const {
    if (schema.file != nullptr) return FileSchema(*schema.file).dump(2) + "\n";
    if (schema.document == nullptr) return std::string(schema.text);
    const bool is_file = !name_.empty() && Asked() == kSummary;
    return (is_file ? SummarySchema(schema) : EnvelopeSchema(schema)).dump(2) + "\n";
  }

  ExitStatus WriteAll() const {
    if (!name_.empty()) {
      throw Error(Finding::kUsage, "--output-dir writes the schemas of all documents");
    }
    std::error_code ignored;  // a missing folder is reported when the first schema is written
    std::filesystem::create_directories(folder_, ignored);
    for (const KnownSchema& schema : KnownSchemas()) {
      WriteText(fmt::format("{}/{}.schema.json", folder_, schema.name), Print(schema),
                RulesFor(force_));
    }
    return kDone;
  }

  std::string_view Asked() const {
    std::string_view asked = name_;
    if (asked.starts_with("kvtool.")) asked.remove_prefix(7);
    return asked;
  }

  // Returns true if the schema was asked for by its name, with or without its version. Files have
  // version 1.
  bool IsAsked(const KnownSchema& schema) const {
    const std::string_view name = schema.name;
    const std::string_view asked = Asked();
    if (!asked.starts_with(name)) return false;
    const std::string_view version = asked.substr(name.size());
    if (version.empty() || asked == kSummary) return true;
    if (schema.document == nullptr) return version == "/1";
    if (version == "/1") {
      throw Error(Finding::kUsage, "'{}': {}", Escaped(name_), WrongJsonVersion("1"))
          .Hint("'kvtool schema {}'", name);
    }
    return version == fmt::format("/{}", kJsonVersion);
  }

  static constexpr std::string_view kSummary = "gate/1";  // a file, while "gate" is the document

  std::vector<std::string> words_;
  std::string name_, folder_;
  bool force_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeSchema() { return std::make_unique<Schema>(); }

}  // namespace kv
