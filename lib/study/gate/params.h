// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kv::gate {

// A parameter of the engine under the name of its meta field, as a config gives it. Numbers are the
// engine's to clamp; words are checked here, because the engine takes a typo for its default.
using ParamValue = std::variant<double, std::string>;
using Params = std::vector<std::pair<std::string, ParamValue>>;

struct ParamInfo {
  std::string_view name;   // "h2o_target_lossy_ratio"
  std::string_view words;  // of one that takes words: "probe|full|store"; "*": any list of words
};
std::span<const ParamInfo> KnownParams();
const ParamInfo* FindParam(std::string_view name);

// Later values replace earlier ones; the order of first mention stays.
void Assign(std::string_view name, ParamValue value, Params& params);
void Merge(const Params& over, Params& params);
const ParamValue* Find(const Params& params, std::string_view name);
// Whether a switch is on; switches that nobody set are on, as in the gate's scripts.
bool IsOn(const Params& params, std::string_view name);
double NumberOr(const Params& params, std::string_view name, double fallback);

}  // namespace kv::gate
