// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kv::gate {

// A parameter of an engine under the engine's name for it, as a config gives it. The engine clamps
// numbers; words are checked here, because an engine may take a typo for its default.
using ParamValue = std::variant<double, std::string>;
using Params = std::vector<std::pair<std::string, ParamValue>>;

struct ParamInfo {
  std::string_view name;
  std::string_view words = {};  // the words that it takes, between bars; "*": any list of words
  std::optional<uint64_t> most = {};  // a whole number that must not be larger
  std::string_view word = {};         // what a config may call it that knows no engine's words
};
// By the engine's name or the other.
const ParamInfo* FindParam(std::span<const ParamInfo> known, std::string_view name);

// Sets a parameter. A new value replaces the old one in its place.
void Assign(std::string_view name, ParamValue value, Params& params);
void Merge(const Params& over, Params& params);
const ParamValue* Find(const Params& params, std::string_view name);
// Whether a switch is on. A switch that nobody set is on.
bool IsOn(const Params& params, std::string_view name);
double NumberOr(const Params& params, std::string_view name, double fallback);

}  // namespace kv::gate
