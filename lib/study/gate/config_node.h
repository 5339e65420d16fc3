// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/error.h"

namespace kv::gate {

// One value of a config, with its path, such as "cases[2].rules[0]". Each accessor throws kConfig
// with the path if the value is not of the kind that is asked for.
struct ConfigNode {
  const nlohmann::ordered_json& json;
  std::string path;

  Error Wrong(const std::string& message) const;
  ConfigNode At(const std::string& key) const;
  ConfigNode At(size_t i) const;
  bool Has(const std::string& key) const { return json.contains(key); }

  void RequireKeys(const std::vector<std::string>& known) const;
  std::string Text() const;
  std::string OneOf(const std::vector<std::string>& words) const;
  double Number() const;
  uint64_t Whole(double least, double most) const;
  bool Flag() const;
  void ForEach(const std::function<void(const ConfigNode&)>& visit) const;
};

// Returns "; did you mean 'x'?" with the nearest known word, or nothing if none is near.
std::string Suggest(std::string_view word, const std::vector<std::string>& known);

// Parses JSON with // comments, in which no key may be given twice. Throws kConfig with line and
// offset.
nlohmann::ordered_json ParseConfigText(std::string_view text);

}  // namespace kv::gate
