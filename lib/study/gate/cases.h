// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/study/gate/params.h"
#include "lib/study/gate/rules.h"

namespace kv::gate {

enum class Suite { kRuntime, kLlmDemo };
std::string_view Name(Suite suite);

// How to read a snapshot; each is the flag of the same name.
struct Reading {
  std::string from, gguf;
  uint32_t kv_heads = 0, head_dim = 0;
};

// How far values may lie from the reference's. Nothing: every stored bit must be the same.
struct Tolerance {
  using OfBoth = std::array<std::optional<double>, 2>;  // K, V
  OfBoth all = {};
  std::vector<std::pair<uint32_t, OfBoth>> layers = {};  // over `all`

  std::optional<double> Of(uint32_t layer, bool is_value) const;
};

// What becomes of a case that was not decided.
enum class OnNotRun { kFail, kWarn };

// One case of the gate, ready to run.
struct CaseSpec {
  std::string name;
  Suite suite = Suite::kRuntime;
  std::string mode;  // "probe", "full", "store"; "compare": nothing is replayed
  std::string snapshot, trace;
  Reading reading;
  std::string reference;  // a cache that this one must equal; empty: none
  std::string reference_from;
  Tolerance tolerance;
  std::string engine = "mnn";           // or "design"
  std::vector<uint64_t> prompt_tokens;  // one row each; empty: the trace says
  uint64_t repeat = 5;                  // equal baselines, for the noise of speeds
  // Beyond what the gate's scripts set for the mode.
  Params params;
  std::vector<Rule> rules;
  bool own_rules = false;  // given, not the suite's
  OnNotRun on_not_run = OnNotRun::kFail;
};

// The engine's own run of prompts: nothing that a replay could stand in for.
inline bool NeedsEngine(const CaseSpec& spec) { return spec.suite == Suite::kLlmDemo; }

// Compared with its reference and not replayed.
inline bool OnlyCompares(const CaseSpec& spec) { return spec.mode == "compare"; }

// "runtime_baseline" ... "llm_demo_store", in the suite's order.
const std::vector<std::string>& SuiteCaseNames();
// A case of the suite with its mode, params and thresholds; nothing for other names.
std::optional<CaseSpec> FindSuiteCase(std::string_view name);
// The thresholds of the suite's runtime case of this mode.
std::vector<Rule> SuiteRules(std::string_view mode);

// What no threshold can turn off: decoded bytes are the bytes. Appended to rules that do not speak
// of it, where the case compresses at all.
void RequireContent(CaseSpec& spec);
// A case with a reference asks for it: the same layers and no value beyond the tolerance, unless
// its rules say in other figures how far it may be. What a rule on the reference asks for must be
// known.
void RequireReference(CaseSpec& spec);

}  // namespace kv::gate
