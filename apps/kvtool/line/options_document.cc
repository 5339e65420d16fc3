// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/line/options_document.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace kv {
namespace {

nlohmann::ordered_json OptionJson(const OptionDescription& option) {
  return {{"names", option.names},
          {"aliases", option.aliases},
          {"value", option.value},
          {"words", option.words},
          {"closed", option.closed},
          {"text", option.text},
          {"group", option.group},
          {"default", option.standard},
          {"environment", option.environment},
          {"required", option.required},
          {"many", option.many}};
}

void AddLine(const std::string& name, const LineDescription& line, nlohmann::ordered_json& out) {
  nlohmann::ordered_json options = nlohmann::ordered_json::array();
  for (const OptionDescription& option : line.options) options.push_back(OptionJson(option));
  out.push_back({{"command", name}, {"options", std::move(options)}});
  for (const LineDescription& verb : line.verbs) {
    AddLine(fmt::format("{} {}", name, verb.name), verb, out);
  }
}

}  // namespace

nlohmann::ordered_json OptionsDocument(const std::vector<CommandDescription>& commands) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const CommandDescription& command : commands) {
    AddLine(std::string(command.entry->name), command.line, out);
  }
  return out;
}

}  // namespace kv
