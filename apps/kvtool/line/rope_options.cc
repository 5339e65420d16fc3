// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/line/rope_options.h"

#include <fmt/format.h>

#include "formats/key_pairs.h"
#include "formats/model_config/model_config.h"
#include "lib/core/base/error.h"

namespace kv {

void RopeOptions::Declare(CommandLine& line, const char* group) {
  DeclareUnpaired(line, group);
  const CommandLine::Heading heading(line, group);
  line.Add("--rope-style", style,
           "neox (halves) or gptj (pairs) (default: as the file has them, or neox)")
      .OneOf({"neox", "gptj"});
}

void RopeOptions::DeclareUnpaired(CommandLine& line, const char* group) {
  const CommandLine::Heading heading(line, group);
  line.Add("--rope-base|--rope-theta", base, "RoPE base theta (default: from --model)").Positive();
  line.Add("--rope-dims|--rope-dim", dims, "Rotated dims of a head (default: --model, or all)");
  line.Add("--rope-scaling", scaling,
           "none, linear:FACTOR, llama3[:FACTOR,LOW,HIGH,ORIGINAL], "
           "yarn:FACTOR,ORIGINAL[,FAST,SLOW[,ATTENTION]] or dynamic:FACTOR,ORIGINAL "
           "(default: --model, or none)");
  line.Add("--rope-freqs", freqs,
           "File with the frequency of each pair (inv_freq): .npy, or numbers as text");
}

std::optional<ModelRope> RopeOptions::Resolve(const OpenOptions& options,
                                              const Snapshot* keys) const {
  ModelRope model;
  bool known = FromModel(options, model);
  if (base != 0 || !scaling.empty() || !freqs.empty()) model.layers.clear();
  if (base != 0) model.rope.theta = base;
  if (!scaling.empty()) model.rope.scaling = ParseScaling(scaling);
  if (!freqs.empty()) {
    model.rope.scaling = {};
    model.rope.scaling.kind = RopeScaling::Kind::kGiven;
    model.rope.scaling.frequencies = ReadFrequencies(freqs);
    model.rope.rotary_dim = static_cast<uint32_t>(2 * model.rope.scaling.frequencies.size());
  }
  known = known || base != 0 || !freqs.empty();
  if (!known) return std::nullopt;
  const std::optional<RopePairs> pairs = PairsFor(options, keys);
  const auto finish = [&](Rope& rope) {
    if (dims != 0) rope.rotary_dim = dims;
    if (pairs) rope.pairs = *pairs;
  };
  finish(model.rope);
  for (Rope& rope : model.layers) finish(rope);
  return model;
}

std::optional<RopePairs> RopeOptions::PairsFor(const OpenOptions& options,
                                               const Snapshot* keys) const {
  if (!style.empty()) return ParsePairs(style);
  if (keys == nullptr) return std::nullopt;
  switch (KeyPairsOf(*keys, options.geometry)) {
    case KeyPairs::kHalves:
      return RopePairs::kHalves;
    case KeyPairs::kNeighbours:
      return RopePairs::kNeighbours;
    case KeyPairs::kNone:
      return std::nullopt;
    case KeyPairs::kUnknown:
      break;
  }
  // A GGUF has the order of llama.cpp's caches, a config.json that of transformers.
  const bool is_told = options.geometry && options.geometry->file != nullptr;
  const bool has_owner = FindPairsOwner(*keys) != PairsOwner::kUnknown;
  if (!is_told ||
      (has_owner && (!options.geometry->rope_style.empty() || keys->engine != kPairsOfLlama)))
    return std::nullopt;
  throw Error(Finding::kUsage,
              fmt::format("which values of a head RoPE turns together in {}'s caches of this model "
                          "is not known",
                          keys->engine))
      .File(keys->source.path)
      .Hint(has_owner ? "give the GGUF as --model, or --rope-style"
                      : "give --rope-style: neox (halves) or gptj (neighbours)");
}

std::optional<ModelRope> RopeOptions::ResolveOrWarn(const OpenOptions& options,
                                                    const Snapshot* keys,
                                                    std::string_view consequence,
                                                    Console& console) const {
  try {
    return Resolve(options, keys);
  } catch (const Error& error) {
    const bool by_flags = base != 0 || !scaling.empty() || !freqs.empty();
    if (by_flags || error.code() == ErrorCode::kUsage) throw;
    console.Warn(error.file(), fmt::format("{}: {}{}{}", error.message(), consequence,
                                           error.hint().empty() ? "" : "; ", error.hint()));
    return std::nullopt;
  }
}

bool RopeOptions::FromModel(const OpenOptions& options, ModelRope& model) const {
  if (!options.geometry || options.geometry->file == nullptr) return false;
  try {
    const auto told = ReadModelRope(*options.geometry->file);
    if (told) model = *told;
    return told.has_value();
  } catch (const Error&) {
    // What the flags say in its place needs no file.
    if (base != 0 || !freqs.empty()) return false;
    throw;
  }
}

}  // namespace kv
