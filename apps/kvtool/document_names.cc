// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/document_names.h"

#include <algorithm>

namespace kv {

namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::string WithUnderscores(std::string text) {
  std::replace(text.begin(), text.end(), ' ', '_');
  return text;
}

void RenameKey(Json& object, const std::function<std::string(const std::string&)>& renamed) {
  Json with = Json::object();
  for (auto& [key, value] : object.items()) with[renamed(key)] = std::move(value);
  object = std::move(with);
}

void RenameKey(Json& object, const std::string& was, std::string_view now) {
  RenameKey(object, [&](const std::string& key) { return key == was ? std::string(now) : key; });
}

}  // namespace kv
