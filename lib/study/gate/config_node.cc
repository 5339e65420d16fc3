// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/config_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/core/base/json.h"
#include "lib/core/base/utf8.h"

namespace kv::gate {

using Json = nlohmann::ordered_json;

std::string Suggest(std::string_view word, const std::vector<std::string>& known) {
  const std::string nearest = Nearest(word, known);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

void ConfigNode::RequireKeys(const std::vector<std::string>& known) const {
  if (!json.is_object()) {
    throw Wrong(fmt::format("expected an object, found {}", json.type_name()));
  }
  for (const auto& item : json.items()) {
    if (std::find(known.begin(), known.end(), item.key()) != known.end()) continue;
    throw Wrong(fmt::format("unknown key '{}'{}", Escaped(item.key()), Suggest(item.key(), known)));
  }
}

std::string ConfigNode::Text() const {
  if (!json.is_string()) {
    throw Wrong(fmt::format("expected a string, found {}", json.type_name()));
  }
  return json.get<std::string>();
}

std::string ConfigNode::OneOf(const std::vector<std::string>& words) const {
  const std::string word = Text();
  if (std::find(words.begin(), words.end(), word) == words.end()) {
    throw Wrong(fmt::format("'{}' is none of {}{}", Escaped(word), fmt::join(words, ", "),
                            Suggest(word, words)));
  }
  return word;
}

double ConfigNode::Number() const {
  if (!json.is_number()) {
    throw Wrong(fmt::format("expected a number, found {}", json.type_name()));
  }
  const auto value = json.get<double>();
  if (!std::isfinite(value)) throw Wrong("expected a finite number");
  return value;
}

uint64_t ConfigNode::Whole(double least, double most) const {
  const double value = Number();
  if (!(value >= least && value <= most) || value != std::floor(value)) {
    throw Wrong(fmt::format("expected a whole number from {:.0f} to {:.0f}, found {}", least, most,
                            ShowJson(json)));
  }
  return static_cast<uint64_t>(value);
}

bool ConfigNode::Flag() const {
  if (!json.is_boolean()) {
    throw Wrong(fmt::format("expected true or false, found {}", json.type_name()));
  }
  return json.get<bool>();
}

void ConfigNode::ForEach(const std::function<void(const ConfigNode&)>& visit) const {
  if (!json.is_array()) {
    throw Wrong(fmt::format("expected an array, found {}", json.type_name()));
  }
  for (size_t i = 0; i < json.size(); ++i) visit(At(i));
}

Error ConfigNode::Wrong(const std::string& message) const {
  return Error(Finding::kConfig, path.empty() ? message : path + ": " + message);
}

ConfigNode ConfigNode::At(const std::string& key) const {
  return {json.at(key), path.empty() ? key : path + "." + key};
}

ConfigNode ConfigNode::At(size_t i) const { return {json.at(i), fmt::format("{}[{}]", path, i)}; }

Json ParseConfigText(std::string_view text) {
  constexpr size_t kMostKeys = 256;  // the largest object has fewer than 100
  // nlohmann keeps the last of equal keys; a threshold given twice is a mistake.
  constexpr JsonLimits kLimits{.keys = kMostKeys, .comments = true, .unique_keys = true};
  JsonMistake mistake;
  Json json;
  try {
    json = ReadOrderedJson(text, kLimits, &mistake);
  } catch (const Error& error) {
    throw Error(Finding::kConfig, error.message());
  }
  if (!json.is_discarded()) return json;
  if (mistake.kind == JsonMistake::Kind::kTwice) {
    throw Error(Finding::kConfig, fmt::format("key '{}' is given twice", Escaped(mistake.text)));
  }
  const std::string what = mistake.text.substr(mistake.text.find("] ") + 2);
  if (mistake.kind == JsonMistake::Kind::kRange) {
    throw Error(Finding::kConfig, fmt::format("not valid JSON: {}", what));
  }
  const size_t at = std::min<size_t>(mistake.at, text.size());
  const auto line = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n') + 1;
  throw Error(Finding::kConfig, fmt::format("line {}: not valid JSON: {}", line, what)).At(at);
}

}  // namespace kv::gate
