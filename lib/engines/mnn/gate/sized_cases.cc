// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/gate/sized_cases.h"

#include <algorithm>
#include <bit>

#include "lib/engines/mnn/gate/engine.h"

namespace kv::mnn {
namespace {

using gate::CaseSpec;

uint64_t PowerOfTwo(uint64_t about, uint64_t least, uint64_t most) {
  return std::clamp(std::bit_floor(about), least, most);
}

CaseSpec NewCase(const char* name, const gate::DataSize& size) {
  CaseSpec spec = gate::NewCase(Engine());
  spec.name = name;
  spec.mode = "store";
  spec.runtime = "design";
  spec.prompt_tokens = {size.prompt_tokens};
  return spec;
}

double Number(uint64_t value) { return static_cast<double>(value); }

// Ranges of an eighth of the cache, in every layer, as soon as they leave the last eighth.
CaseSpec StoredCase(const gate::DataSize& size) {
  CaseSpec spec = NewCase("stored", size);
  const uint64_t range = PowerOfTwo(size.tokens / 8, 4, 128);
  spec.params = {{"h2o_enable", 0.0},
                 {"h2o_trigger_min_tokens", Number(std::min<uint64_t>(size.prompt_tokens, 32))},
                 {"h2o_lossless_front_n", Number(size.layers)},
                 {"h2o_lossless_store_disable_front", 0.0},
                 {"h2o_lossless_block_tokens", Number(range)},
                 {"h2o_lossless_store_bootstrap_tokens", Number(range)},
                 {"h2o_lossless_store_grouped_step_tokens", Number(range)},
                 {"h2o_lossless_hot_sink_tokens", 4.0},
                 {"h2o_lossless_hot_recent_tokens", Number(range)}};
  return spec;
}

// Half of the cache goes, from the end of the prompt on; an eighth is kept for being recent.
CaseSpec EvictedCase(const gate::DataSize& size) {
  CaseSpec spec = NewCase("evicted", size);
  const uint64_t block = PowerOfTwo(size.tokens / 16, 1, 32);
  const uint64_t decoded = size.tokens - size.prompt_tokens;
  spec.params = {
      {"h2o_lossless_enable", 0.0},
      {"h2o_layer_start", 0.0},
      {"h2o_target_lossy_ratio", 2.0},
      {"h2o_block_tokens", Number(block)},
      {"h2o_sink_tokens", Number(block)},
      {"h2o_recent_tokens", Number(block * std::max<uint64_t>(1, size.tokens / 8 / block))},
      {"h2o_trigger_min_tokens", Number(std::min(size.prompt_tokens, size.tokens / 2))},
      {"h2o_update_interval", Number(PowerOfTwo(decoded / 8, 1, 16))}};
  return spec;
}

}  // namespace

std::vector<gate::SizedCase> SizedCases(const gate::DataSize& size) {
  std::vector<gate::SizedCase> cases = {{StoredCase(size),
                                         "Does the cache compress as it did, and does every byte "
                                         "come back? Nothing is evicted here."}};
  if (size.has_attention) {
    cases.push_back({EvictedCase(size),
                     "What does it cost attention if half of the cache is evicted? Nothing is "
                     "compressed here."});
  }
  return cases;
}

}  // namespace kv::mnn
