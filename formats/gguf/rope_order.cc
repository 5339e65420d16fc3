// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/gguf/rope_order.h"

#include <algorithm>

#include "formats/words.h"

namespace kv {
namespace {

// transformers turns halves; the converter permutes the weights of Q and K so that llama.cpp can
// turn neighbours.
constexpr std::string_view kPermuted[] = {
    "llama",      "deci",    "baichuan", "xverse",   "internlm2",     "minicpm",
    "olmo",       "arctic",  "deepseek", "granite",  "granitemoe",    "chameleon",
    "bailingmoe", "smollm3", "arcee",    "mistral3", "granitehybrid", "llada"};
// Both turn neighbours.
constexpr std::string_view kNeighbours[] = {"llama4", "command-r", "cohere2",     "chatglm",
                                            "glm4",   "ernie4_5",  "ernie4_5-moe"};
// llama.cpp turns neighbours, and what transformers caches is of another kind (latent attention) or
// has not been looked at.
constexpr std::string_view kNeighboursOnlyHere[] = {"deepseek2", "plm", "starcoder"};
// Both turn halves, M-RoPE included.
constexpr std::string_view kHalves[] = {
    "falcon",      "falcon-h1",  "grok",    "dbrx",         "stablelm", "bitnet",       "qwen",
    "qwen2",       "qwen2moe",   "qwen2vl", "qwen3",        "qwen3moe", "qwen3vl",      "qwen3next",
    "olmo2",       "olmoe",      "phi2",    "phi3",         "phimoe",   "plamo2",       "gemma",
    "gemma2",      "gemma3",     "gemma3n", "starcoder2",   "openelm",  "gptneox",      "codeshell",
    "orion",       "nemotron",   "exaone",  "exaone4",      "minicpm3", "bailingmoe2",  "dots1",
    "hunyuan-moe", "gpt-oss",    "lfm2",    "smallthinker", "glm4moe",  "seed_oss",     "apertus",
    "qwen3vlmoe",  "minimax-m2", "gemma4",  "plamo",        "afmoe",    "hunyuan-dense"};
// Neither turns anything.
constexpr std::string_view kWithout[] = {"gpt2", "gptj", "mpt", "refact", "bloom", "jais", "t5"};

}  // namespace

std::optional<RopeOrder> RopeOrderOf(std::string_view architecture) {
  using enum KeyPairs;
  if (Contains(kPermuted, architecture)) return RopeOrder{kNeighbours, kHalves};
  if (Contains(kv::kNeighbours, architecture)) return RopeOrder{kNeighbours, kNeighbours};
  if (Contains(kNeighboursOnlyHere, architecture)) return RopeOrder{kNeighbours, kUnknown};
  if (Contains(kv::kHalves, architecture)) return RopeOrder{kHalves, kHalves};
  if (Contains(kWithout, architecture)) return RopeOrder{kNone, kNone};
  return std::nullopt;
}

}  // namespace kv
