// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/params.h"

#include <algorithm>

namespace kv::gate {
const ParamInfo* FindParam(std::span<const ParamInfo> known, std::string_view name) {
  const auto found = std::find_if(known.begin(), known.end(), [&](const ParamInfo& info) {
    return info.name == name || (!info.word.empty() && info.word == name);
  });
  return found == known.end() ? nullptr : &*found;
}

void Assign(std::string_view name, ParamValue value, Params& params) {
  const auto found =
      std::find_if(params.begin(), params.end(), [&](const auto& p) { return p.first == name; });
  if (found != params.end()) {
    found->second = std::move(value);
  } else {
    params.emplace_back(std::string(name), std::move(value));
  }
}

void Merge(const Params& over, Params& params) {
  for (const auto& [name, value] : over) Assign(name, value, params);
}

const ParamValue* Find(const Params& params, std::string_view name) {
  const auto found =
      std::find_if(params.begin(), params.end(), [&](const auto& p) { return p.first == name; });
  return found == params.end() ? nullptr : &found->second;
}

bool IsOn(const Params& params, std::string_view name) { return NumberOr(params, name, 1) != 0; }

double NumberOr(const Params& params, std::string_view name, double fallback) {
  const ParamValue* value = Find(params, name);
  const double* number = value == nullptr ? nullptr : std::get_if<double>(value);
  return number == nullptr ? fallback : *number;
}

}  // namespace kv::gate
