// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/rope_options.h"

#include "formats/model_config/model_config.h"
#include "lib/core/base/error.h"

namespace kv {

void RopeOptions::Declare(CommandLine& line, const char* group) {
  line.Add("--rope-base", base, "RoPE base theta (default: from --gguf)").Positive().Group(group);
  line.Add("--rope-style", style, "neox (halves) or gptj (pairs) (default: --gguf, or neox)")
      .OneOf({"neox", "gptj"})
      .Group(group);
  line.Add("--rope-dims", dims, "Rotated dims of a head (default: --gguf, or all)").Group(group);
  line.Add("--rope-scaling", scaling,
           "none, linear:FACTOR, llama3[:FACTOR,LOW,HIGH,ORIGINAL], "
           "yarn:FACTOR,ORIGINAL[,FAST,SLOW[,ATTENTION]] or dynamic:FACTOR,ORIGINAL "
           "(default: --gguf, or none)")
      .Group(group);
  line.Add("--rope-freqs", freqs,
           "File with the frequency of each pair (inv_freq): .npy, or numbers as text")
      .Group(group);
}

std::optional<blend::ModelRope> RopeOptions::Resolve(const OpenOptions& options) const {
  blend::ModelRope model;
  bool known = FromModel(options, model);
  if (base != 0 || !scaling.empty() || !freqs.empty()) model.layers.clear();
  if (base != 0) model.rope.theta = base;
  if (!scaling.empty()) model.rope.scaling = blend::ParseScaling(scaling);
  if (!freqs.empty()) {
    model.rope.scaling = {};
    model.rope.scaling.kind = blend::RopeScaling::Kind::kGiven;
    model.rope.scaling.frequencies = ReadFrequencies(freqs);
    model.rope.rotary_dim = static_cast<uint32_t>(2 * model.rope.scaling.frequencies.size());
  }
  known = known || base != 0 || !freqs.empty();
  if (!known) return std::nullopt;
  const auto finish = [&](blend::Rope& rope) {
    if (dims != 0) rope.rotary_dim = dims;
    if (!style.empty()) rope.pairs = blend::ParsePairs(style);
  };
  finish(model.rope);
  for (blend::Rope& rope : model.layers) finish(rope);
  return model;
}

bool RopeOptions::FromModel(const OpenOptions& options, blend::ModelRope& model) const {
  if (!options.geometry || options.geometry->source.starts_with("--")) return false;
  try {
    const auto told = ReadModelRope(options.geometry->source);
    if (told) model = *told;
    return told.has_value();
  } catch (const Error&) {
    // What the flags say in its place needs no file.
    if (base != 0 || !freqs.empty()) return false;
    throw;
  }
}

}  // namespace kv
