// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/documents/run_document.h"

#include <fmt/format.h>

#include <utility>

#include "apps/kvtool/console/console.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/line/options.h"
#include "lib/core/base/bytes.h"

namespace kv {
namespace {

std::string NameOf(const nlohmann::ordered_json& made) {
  const std::string schema = made["schema"];
  return schema.substr(schema.find('.') + 1, schema.find('/') - schema.find('.') - 1);
}

nlohmann::ordered_json OrNull(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
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

nlohmann::ordered_json ErrorJson(const Error& error) {
  nlohmann::ordered_json json = {{"finding", FindingId(error.finding())},
                                 {"exit_code", StatusOf(error.code())},
                                 {"file", OrNull(error.file())},
                                 {"context", OrNull(ContextOf(error))},
                                 {"message", error.message()},
                                 {"offset", nullptr},
                                 {"hint", OrNull(error.hint())},
                                 {"text", error.what()}};
  if (error.offset()) json["offset"] = *error.offset();
  return json;
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
                       const OutputRules& rules) {
  if (!made.is_array()) made = nlohmann::ordered_json::array({std::move(made)});
  for (nlohmann::ordered_json& one : made) {
    name_ = NameOf(one);
    results_.push_back(ResultOf(std::move(one)));
  }
  print_ = print;
  path_ = path;
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
  if (path_.empty()) return;
  WriteText(path_, JsonText(Envelope(status, console, results_)) + "\n", rules_);
}

void RunDocument::Print(ExitStatus status, Console& console) {
  if (print_)
    console.Json(
        Envelope(status, console, std::exchange(results_, nlohmann::ordered_json::array())));
}

}  // namespace kv
