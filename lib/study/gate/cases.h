// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/study/gate/params.h"
#include "lib/study/gate/rules.h"

namespace kv::gate {

struct Engine;
// The program's table of engines. The first one shapes summaries and cases that name none.
using Engines = std::span<const Engine* const>;

// How to read a snapshot. Each member means what the flag of the same name means.
struct Reading {
  std::string from, gguf;
  uint32_t kv_heads = 0, head_dim = 0;
};

// How far values may lie from the reference's. Without a tolerance every stored bit must be equal.
struct Tolerance {
  using OfBoth = std::array<std::optional<double>, 2>;  // K, V
  OfBoth all = {};
  std::vector<std::pair<uint32_t, OfBoth>> layers = {};  // these layers differ from `all`

  std::optional<double> Of(uint32_t layer, bool is_value) const;
};

// Types in which the cache would be kept: names of lib/study/quantisation/types.
struct QuantTypes {
  std::string k, v;
};

// What happens if a case is not decided.
enum class OnNotRun { kFail, kWarn };

// One case of the gate, ready to run.
struct CaseSpec {
  std::string name;
  const Engine* engine = nullptr;  // the engine whose case this is, or whose report shows it
  std::string suite;               // one of the engine's suites
  std::string mode;                // one of the engine's modes, kCompare or kQuant
  bool only_engine = false;        // the engine must run it: no replay stands in for that
  std::string snapshot, trace;
  Reading reading;
  std::string reference;  // a cache that this one must equal; may be empty
  std::string reference_from;
  Tolerance tolerance;
  std::optional<QuantTypes> quant;        // figures quant.* are measured
  std::string runtime;                    // one of the engine's; empty: its first
  std::vector<uint64_t> prompt_tokens;    // one row each; if empty, the trace says
  std::optional<uint64_t> decode_tokens;  // of each row; nothing: to the end of the cache
  uint64_t repeat = 5;  // equal baselines that are run to find the noise of speeds
  Params params;        // over those that the engine's mode sets
  std::vector<Rule> rules;
  bool own_rules = false;  // given by the config, not by the engine
  OnNotRun on_not_run = OnNotRun::kFail;
};

// The mode of a case that is compared with its reference and not replayed.
inline constexpr std::string_view kCompare = "compare";
// The mode of a case whose cache is stored in other types, and neither compared nor replayed.
inline constexpr std::string_view kQuant = "quant";
inline bool OnlyCompares(const CaseSpec& spec) { return spec.mode == kCompare; }

// Requires that decoded bytes equal their source, unless a rule of the case already speaks of that
// or the case compresses nothing.
void RequireContent(CaseSpec& spec);
// Adds the rules that a case with a reference has: the same layers, and no value beyond the
// tolerance unless its own rules limit the distance in other figures. Any figure that a rule on the
// reference names becomes required.
void RequireReference(CaseSpec& spec);

}  // namespace kv::gate
