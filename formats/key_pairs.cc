// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The order of RoPE pairs in K: what files record, what each architecture has in llama.cpp and in
// transformers, and reordering between them.
#include "formats/key_pairs.h"

#include <fmt/format.h>

#include "formats/format.h"
#include "lib/core/base/bytes.h"

namespace kv {

namespace {

bool IsLlama(const Snapshot& snapshot) { return snapshot.engine == kPairsOfLlama; }

// Returns the order that the snapshot records, if it does.
std::optional<KeyPairs> RecordedPairs(const Snapshot& snapshot) {
  const auto at = snapshot.storage.find(kRopePairs);
  return at == snapshot.storage.end() ? std::nullopt : ParseRopePairs(at->second);
}

// Returns the current order of the pairs: as recorded, otherwise the order of the owning engine for
// the model; kUnknown if neither is known.
KeyPairs PairsNow(const Snapshot& snapshot, const std::optional<RopeOrder>& order) {
  if (const auto recorded = RecordedPairs(snapshot)) return *recorded;
  if (!order) return KeyPairs::kUnknown;
  switch (FindPairsOwner(snapshot)) {
    case PairsOwner::kLlama:
      return order->llama;
    case PairsOwner::kTransformers:
      return order->transformers;
    case PairsOwner::kUnknown:
      break;
  }
  // MNN's models are exported from transformers, but older versions of kvtool wrote MNN dumps from
  // llama.cpp states without recording the order. It is known only if both engines have the same
  // order.
  const bool is_same = order->llama == order->transformers;
  return is_same && FindTraits(snapshot.engine).runs_exports ? order->llama : KeyPairs::kUnknown;
}

struct PairsChange {
  KeyPairs from = KeyPairs::kUnknown, to = KeyPairs::kUnknown;
};

Error BadFlag(const std::string& flag) {
  return Error(
      Finding::kUsage,
      "--rope-pairs '{}': expected neighbours (2i, 2i+1), halves (i, i+dim/2), FROM:TO or keep",
      Escaped(flag, 40));
}

PairsChange ByFlag(const std::string& flag, KeyPairs now, const Snapshot& snapshot) {
  const size_t colon = flag.find(':');
  const auto parse = [&](std::string_view word) {
    const auto pairs = ParseRopePairs(word);
    if (!pairs) throw BadFlag(flag);
    return *pairs;
  };
  if (colon != flag.npos)
    return {parse(std::string_view(flag).substr(0, colon)),
            parse(std::string_view(flag).substr(colon + 1))};
  const KeyPairs to = parse(flag);
  if (now == KeyPairs::kUnknown && FindPairsOwner(snapshot) == PairsOwner::kTransformers)
    now = KeyPairs::kHalves;
  if (now == KeyPairs::kUnknown) {
    throw Error(Finding::kGeometryMissing,
                "--rope-pairs {}: the present order of the keys' pairs is unknown", flag)
        .Hint("give {}both orders: --rope-pairs neighbours:{}",
              FindPairsOwner(snapshot) == PairsOwner::kLlama ? "--model MODEL, or " : "", Name(to));
  }
  return {now, to};
}

Error Unknown(const std::string& architecture) {
  Error error(
      Finding::kGeometryMissing,
      architecture.empty()
          ? std::string(
                "the model's architecture decides which pairs of K RoPE rotates, and it is unknown")
          : fmt::format(
                "it is unknown which pairs of K RoPE rotates in models of architecture '{}'",
                Escaped(architecture, 60)));
  error.Hint(
      "give --model MODEL, or --rope-pairs neighbours (llama, mistral ... in llama.cpp), halves "
      "(transformers; qwen, gemma, phi ... everywhere) or keep");
  return error;
}

// Returns the error for dumps of engines whose order does not follow from the architecture.
Error Unrecorded(const Snapshot& snapshot) {
  Error error(Finding::kGeometryMissing,
              "no record says which pairs of K RoPE rotates in this cache of {}", snapshot.engine);
  error.Hint(
      "give both orders, kvtool convert --rope-pairs FROM:TO, as halves (i, i+dim/2; transformers) "
      "or neighbours (2i, 2i+1; llama, mistral ... in llama.cpp); 'keep' does not change K");
  return error;
}

// Chooses the order that the reader of the cache expects; nothing if the keys have it anyway.
std::optional<PairsChange> ByReader(PairsWanted wanted, KeyPairs now,
                                    const std::optional<RopeOrder>& order,
                                    const std::string& architecture, const Snapshot& snapshot) {
  const bool is_recorded = RecordedPairs(snapshot).has_value();
  const PairsOwner owner = FindPairsOwner(snapshot);
  const bool is_of_model = wanted == PairsWanted::kOfModel;
  const PairsOwner at_home = is_of_model ? PairsOwner::kLlama : PairsOwner::kTransformers;
  if (wanted == PairsWanted::kAsSource || (!is_recorded && owner == at_home)) return std::nullopt;
  if (now == KeyPairs::kUnknown && !is_recorded && owner == PairsOwner::kUnknown)
    throw Unrecorded(snapshot);
  const KeyPairs to = !order        ? KeyPairs::kUnknown
                      : is_of_model ? order->llama
                                    : order->transformers;
  if (now == KeyPairs::kUnknown || to == KeyPairs::kUnknown) throw Unknown(architecture);
  return PairsChange{now, to};
}

}  // namespace

std::string FitKeyPairs(PairsWanted wanted, const std::string& flag,
                        const std::optional<ModelGeometry>& geometry, Snapshot& snapshot) {
  if (flag == "keep" || flag == "none" || flag == "as-is") return {};
  if (flag.empty() && snapshot.key_rotation == KeyRotation::kUnrotated)
    return {};  // nothing was reordered
  std::string architecture = geometry ? geometry->architecture : "";
  if (architecture.empty() && IsLlama(snapshot)) architecture = snapshot.model;
  const std::optional<RopeOrder> order = FindRopeOrder(architecture);
  const KeyPairs now = PairsNow(snapshot, order);
  const std::optional<PairsChange> change =
      flag.empty() ? ByReader(wanted, now, order, architecture, snapshot)
                   : ByFlag(flag, now, snapshot);
  if (!change) return {};
  if (flag.find(':') != flag.npos) snapshot.storage[kRopePairs] = Name(change->to);
  if (change->from == change->to) return {};
  if (geometry && geometry->rope_dims != 0 && !snapshot.layers.empty() &&
      geometry->rope_dims != snapshot.layers.front().k.head_dim) {
    throw Error(
        Finding::kUnsupportedLayout,
        "RoPE rotates {} of {} values of a head; reordering parts of heads is not supported",
        geometry->rope_dims, snapshot.layers.front().k.head_dim)
        .Hint("--rope-pairs keep does not change the keys");
  }
  ReorderKeys(change->from, change->to, snapshot);
  snapshot.storage[kRopePairs] = Name(change->to);
  return fmt::format(
      "RoPE pairs of K were reordered from {} to {}{}", Name(change->from), Name(change->to),
      flag.empty() ? fmt::format(", as the format has them for {} models", architecture) : "");
}

KeyPairs FindKeyPairs(const Snapshot& snapshot, const std::optional<ModelGeometry>& geometry) {
  std::optional<RopeOrder> order;
  if (IsLlama(snapshot)) order = FindRopeOrder(snapshot.model);
  if (!order && geometry) order = FindRopeOrder(geometry->architecture);
  return PairsNow(snapshot, order);
}

void RequireKeyPairs(PairsWanted wanted, const std::optional<ModelGeometry>& geometry,
                     const Snapshot& snapshot) {
  Snapshot fitted = snapshot;
  try {
    if (FitKeyPairs(wanted, "", geometry, fitted).empty()) return;
  } catch (Error& error) {
    throw error.Hint("kvtool convert --to safetensors --rope-pairs FROM:TO records the order");
  }
  throw Error(Finding::kUnsupportedLayout,
              "readers of this format expect another order of K's RoPE pairs")
      .Hint("write safetensors, and convert that");
}

namespace {

// transformers rotates halves; the converter permutes the weights of Q and K so that llama.cpp can
// rotate neighbours.
constexpr std::string_view kPermuted[] = {
    "llama",      "deci",    "baichuan", "xverse",   "internlm2",     "minicpm",
    "olmo",       "arctic",  "deepseek", "granite",  "granitemoe",    "chameleon",
    "bailingmoe", "smollm3", "arcee",    "mistral3", "granitehybrid", "llada"};
// llama.cpp and transformers both rotate neighbours.
constexpr std::string_view kNeighbours[] = {"llama4", "command-r", "cohere2",     "chatglm",
                                            "glm4",   "ernie4_5",  "ernie4_5-moe"};
// llama.cpp rotates neighbours; the caches of transformers hold something else (latent attention)
// or are untested.
constexpr std::string_view kNeighboursOnlyHere[] = {"deepseek2", "plm", "starcoder"};
// llama.cpp and transformers both rotate halves, including M-RoPE.
constexpr std::string_view kHalves[] = {
    "falcon",      "falcon-h1",  "grok",    "dbrx",         "stablelm", "bitnet",       "qwen",
    "qwen2",       "qwen2moe",   "qwen2vl", "qwen3",        "qwen3moe", "qwen3vl",      "qwen3next",
    "olmo2",       "olmoe",      "phi2",    "phi3",         "phimoe",   "plamo2",       "gemma",
    "gemma2",      "gemma3",     "gemma3n", "starcoder2",   "openelm",  "gptneox",      "codeshell",
    "orion",       "nemotron",   "exaone",  "exaone4",      "minicpm3", "bailingmoe2",  "dots1",
    "hunyuan-moe", "gpt-oss",    "lfm2",    "smallthinker", "glm4moe",  "seed_oss",     "apertus",
    "qwen3vlmoe",  "minimax-m2", "gemma4",  "plamo",        "afmoe",    "hunyuan-dense"};
// Neither llama.cpp nor transformers rotates anything.
constexpr std::string_view kWithout[] = {"gpt2", "gptj", "mpt", "refact", "bloom", "jais", "t5"};

}  // namespace

std::optional<RopeOrder> FindRopeOrder(std::string_view architecture) {
  using enum KeyPairs;
  if (Contains(kPermuted, architecture)) return RopeOrder{kNeighbours, kHalves};
  if (Contains(kv::kNeighbours, architecture)) return RopeOrder{kNeighbours, kNeighbours};
  if (Contains(kNeighboursOnlyHere, architecture)) return RopeOrder{kNeighbours, kUnknown};
  if (Contains(kv::kHalves, architecture)) return RopeOrder{kHalves, kHalves};
  if (Contains(kWithout, architecture)) return RopeOrder{kNone, kNone};
  return std::nullopt;
}

}  // namespace kv
