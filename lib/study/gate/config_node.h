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

// One object or value of a config and the words that lead to it: "cases[2].rules[0]". What is not
// of the kind that is asked for throws kConfig with them.
struct ConfigNode {
  const nlohmann::ordered_json& json;
  std::string path;

  Error Wrong(const std::string& message) const;
  ConfigNode At(const std::string& key) const;
  ConfigNode At(size_t i) const;
  bool Has(const std::string& key) const { return json.contains(key); }

  void RequireKeys(const std::vector<std::string>& known) const;
  std::string Word() const;
  std::string OneOf(const std::vector<std::string>& words) const;
  double Number() const;
  uint64_t Whole(double least, double most) const;
  bool Flag() const;
  void ForEach(const std::function<void(const ConfigNode&)>& visit) const;
};

// "; did you mean 'x'?", or nothing.
std::string Suggest(std::string_view word, const std::vector<std::string>& known);

// JSON with // comments; a key given twice is a mistake. Throws kConfig with line and offset.
nlohmann::ordered_json ParseConfigText(std::string_view text);

}  // namespace kv::gate
