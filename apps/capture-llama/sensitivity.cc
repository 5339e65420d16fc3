// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/capture-llama/commands.h"
#include "apps/capture-llama/json.h"
#include "apps/capture-llama/logits.h"
#include "apps/capture-llama/perturbations.h"

namespace kv::capture {

void Distributions::Add(std::span<const float> logits) {
  values_.insert(values_.end(), logits.begin(), logits.end());
  ToLogProbabilities(std::span(values_).last(logits.size()));
}

std::span<const float> Distributions::Row(int32_t position) const {
  return std::span(values_).subspan(static_cast<size_t>(position - first_) * words_, words_);
}

std::string SensitivityJson(const Model& model, Context& context,
                            std::span<const llama_token> tokens, int32_t prompt_tokens,
                            int32_t layers, double noise) {
  const std::span<const llama_token> decoded = tokens.subspan(static_cast<size_t>(prompt_tokens));
  // The same batches with and without noise: no rounding between them.
  const auto decode = [&](Observer* observer, const Context::Row& row) {
    context.Forget(prompt_tokens, -1);
    context.Observe(observer);
    context.Decode(decoded, prompt_tokens, prompt_tokens, row);
    context.Observe(nullptr);
  };
  Distributions full(prompt_tokens, model.words());
  decode(nullptr, [&](int32_t, std::span<float> logits) { full.Add(logits); });
  std::string list;
  for (int32_t layer = 0; layer < layers; ++layer) {
    Noise observer(layer, prompt_tokens, noise);
    Comparison comparison;
    decode(&observer, [&](int32_t position, std::span<float> logits) {
      ToLogProbabilities(logits);
      comparison.Add(full.Row(position), logits, -1);
    });
    JsonObject one;
    one.Add("layer", int64_t{layer}).Add("kl", comparison.kl());
    list += (list.empty() ? "" : ", ") + one.Line();
  }
  JsonObject json;
  json.Add("schema", "kvtool.sensitivity/1").Add("model", model.name()).Add("noise", noise);
  return json.Raw("layers", "[" + list + "]").Document();
}

}  // namespace kv::capture
