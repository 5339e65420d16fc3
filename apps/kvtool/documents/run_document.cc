// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/documents/run_document.h"

#include <fmt/format.h>

#include <utility>

#include "apps/kvtool/console/console.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/documents/result_fields.h"
#include "apps/kvtool/line/options.h"
#include "lib/core/base/bytes.h"

namespace kv {
namespace {

std::string NameOf(const nlohmann::ordered_json& made) {
  const std::string schema = made["schema"];
  return schema.substr(schema.find('.') + 1, schema.find('/') - schema.find('.') - 1);
}

// "layer 3 K" of "FILE: layer 3 K: MESSAGE (offset 0x10) [KV1001]".
std::string ContextOf(const Error& error) {
  std::string_view line = error.what();
  if (!error.file().empty() && line.starts_with(Printable(error.file()) + ": ")) {
    line.remove_prefix(Printable(error.file()).size() + 2);
  }
  const size_t at = line.find(Printable(error.message()));
  return at == line.npos || at < 2 ? std::string() : std::string(line.substr(0, at - 2));
}

}  // namespace

const Fields<Error>& ErrorFields() {
  static const Fields<Error> fields = {
      {"finding",
       "Its number; 'kvtool explain KV1001' documents it",
       [](const Error& error) { return FindingId(error.finding()); },
       {.pattern = kFindingPattern}},
      {"exit_code", "The exit status that this failure alone would give",
       [](const Error& error) { return static_cast<int>(StatusOf(error.code())); }},
      {"file", "The file in which it is", [](const Error& error) { return IfAny(error.file()); }},
      {"context", "The part of the file, as \"layer 3 K\"",
       [](const Error& error) { return IfAny(ContextOf(error)); }},
      {"message", "What is wrong", &Error::message},
      {"offset", "Where in the file, in bytes from its beginning", &Error::offset},
      {"hint", "What to do about it", [](const Error& error) { return IfAny(error.hint()); }},
      {"text", "The whole line as standard error has it, without the program's name",
       [](const Error& error) { return std::string_view(error.what()); }}};
  return fields;
}

nlohmann::ordered_json ErrorJson(const Error& error) { return ToJson(ErrorFields().Object(error)); }

const FieldTable& FailureFields() {
  struct Nothing {};
  static const Fields<Nothing> fields = {NoInputs<Nothing>()};
  return fields;
}

std::string WrongJsonVersion(std::string_view version) {
  if (version == std::to_string(kJsonVersion)) return {};
  const std::string which = version == "1" ? "version 1 of JSON documents ended after kvtool 0.2.0"
                                           : fmt::format("'{}'", Escaped(version));
  return fmt::format("{}; version {} is the only one, and the option can be left out", which,
                     kJsonVersion);
}

nlohmann::ordered_json ResultOf(nlohmann::ordered_json made) {
  nlohmann::ordered_json result = {{"inputs", nlohmann::ordered_json::array()}};
  for (auto& [key, value] : made.items()) {
    if (key != "schema" && key != "tool") result[key] = std::move(value);
  }
  return result;
}

void RunDocument::Guess(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") return;
    if (word == "--json") print_ = true;
  }
}

void RunDocument::Name(const DocumentKind* kind) {
  if (kind != nullptr) name_ = kind->name;
}

void RunDocument::Take(const CommandLine& line) { print_ = line.Given("--json"); }

void RunDocument::Drop() { print_ = false; }

void RunDocument::Hold(nlohmann::ordered_json made, bool print, const std::string& path,
                       const std::string& csv, const OutputRules& rules) {
  if (!made.is_array()) made = nlohmann::ordered_json::array({std::move(made)});
  for (nlohmann::ordered_json& one : made) {
    name_ = NameOf(one);
    results_.push_back(ResultOf(std::move(one)));
  }
  print_ = print;
  path_ = path;
  csv_ = csv;
  rules_ = rules;
}

nlohmann::ordered_json RunDocument::Envelope(ExitStatus status, const Console& console,
                                             nlohmann::ordered_json results) const {
  nlohmann::ordered_json document = ReportHeader(name_);
  document["schema"] = fmt::format("kvtool.{}/{}", name_, kJsonVersion);
  document["exit_code"] = static_cast<int>(status);
  document["errors"] = nlohmann::ordered_json::array();
  for (const Error& error : failures_) document["errors"].push_back(ErrorJson(error));
  document["warnings"] = console.warning_texts();
  document["results"] = std::move(results);
  return document;
}

void RunDocument::Write(ExitStatus status, Console& console) {
  if (!path_.empty()) {
    WriteText(path_, JsonText(Envelope(status, console, results_)) + "\n", rules_);
  }
  if (csv_.empty()) return;
  WriteText(csv_, Csv(RowTable(DocumentNamed(name_)->fields(), FromJson(results_))), rules_);
}

void RunDocument::Print(ExitStatus status, Console& console) {
  if (print_)
    console.Json(
        Envelope(status, console, std::exchange(results_, nlohmann::ordered_json::array())));
}

}  // namespace kv
