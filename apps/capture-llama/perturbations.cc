// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/capture-llama/perturbations.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "apps/capture-llama/attention_nodes.h"
#include "apps/capture-llama/failure.h"
#include "apps/capture-llama/json.h"
#include "apps/capture-llama/logits.h"
#include "ggml-backend.h"

namespace kv::capture {

void Evictor::Begin(int32_t begin, int32_t count) {
  Observer::Begin(begin, count);
  checked_mask_ = nullptr;
}

bool Evictor::Wants(ggml_tensor* node) {
  int32_t layer;
  if (const std::optional<SoftmaxNode> softmax = FindSoftmax(node)) {
    if (softmax->flash) throw Failure(kUnsupported, "flash attention has no scores to hide");
    // Checks that cells are in the order of positions, so that columns are positions.
    if (softmax->mask != checked_mask_) MeasureWindow(softmax->mask, begin_, count_);
    checked_mask_ = softmax->mask;
  }
  return FindScores(node).has_value() || IsCappedScores(node, &layer);
}

void Evictor::Computed(ggml_tensor* node) {
  int32_t layer = 0;
  // A softcap would make -inf finite again, so its result is overwritten as well.
  if (!IsCappedScores(node, &layer)) layer = FindScores(node)->layer;
  const auto heads = static_cast<int32_t>(node->ne[2]);
  if (node->type != GGML_TYPE_F32 || heads % plan_.kv_heads() != 0 ||
      node->ne[0] < begin_ + count_) {
    throw Failure(kUnsupported, "the scores do not match the run's heads and tokens");
  }
  hidden_.resize(static_cast<size_t>(begin_ + count_), -std::numeric_limits<float>::infinity());
  const int32_t group = heads / plan_.kv_heads();
  for (int32_t head = 0; head < heads; ++head) {
    const std::span<const int32_t> last_rows = plan_.LastRows(layer, head / group);
    for (int32_t i = 0; i < count_; ++i) {
      for (const auto& [begin, end] : GoneAt(last_rows, begin_ + i)) {
        const size_t offset = static_cast<size_t>(head) * node->nb[2] +
                              static_cast<size_t>(i) * node->nb[1] + size_t(begin) * sizeof(float);
        ggml_backend_tensor_set(node, hidden_.data(), offset, size_t(end - begin) * sizeof(float));
      }
    }
  }
}

bool Noise::Wants(ggml_tensor* node) {
  const std::optional<OutputNode> output = FindOutput(node);
  return output && output->layer == layer_ && begin_ + count_ > first_;
}

void Noise::Computed(ggml_tensor* node) {
  const bool flash = FindOutput(node)->flash;
  const auto dim = static_cast<size_t>(node->ne[0]);
  const auto heads = static_cast<size_t>(node->ne[flash ? 1 : 2]);
  const size_t head_bytes = node->nb[flash ? 1 : 2], row_bytes = node->nb[flash ? 2 : 1];
  std::vector<float> row(heads * dim);
  for (int32_t i = std::max(first_ - begin_, 0); i < count_; ++i) {
    const size_t at = static_cast<size_t>(i) * row_bytes;
    for (size_t head = 0; head < heads; ++head) {
      ggml_backend_tensor_get(node, &row[head * dim], at + head * head_bytes, dim * sizeof(float));
    }
    Move(row);
    for (size_t head = 0; head < heads; ++head) {
      ggml_backend_tensor_set(node, &row[head * dim], at + head * head_bytes, dim * sizeof(float));
    }
  }
}

void Noise::Move(std::vector<float>& row) {
  std::vector<double> direction(row.size());
  double length = 0, own = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    direction[i] = normal_(random_);
    length += direction[i] * direction[i];
    own += double{row[i]} * double{row[i]};
  }
  const double factor = size_ * std::sqrt(own / length);
  for (size_t i = 0; i < row.size(); ++i) row[i] += static_cast<float>(factor * direction[i]);
}

std::string SensitivityJson(const Model& model, Context& context,
                            std::span<const llama_token> tokens, int32_t prompt_tokens,
                            int32_t layers, double noise) {
  const std::span<const llama_token> decoded = tokens.subspan(static_cast<size_t>(prompt_tokens));
  // Decodes the same batches with and without noise, so that both round alike.
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
