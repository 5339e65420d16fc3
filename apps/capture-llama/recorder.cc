// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Copies queries and probabilities out of the engine's graph, batch by batch, and collects each
// layer's attention rule.
#include "apps/capture-llama/recorder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "apps/capture-llama/failure.h"
#include "ggml-backend.h"

namespace kv::capture {
namespace {

std::string InLayer(int32_t layer) { return "layer " + std::to_string(layer) + ": "; }

// Copies queries [dim][rows][heads], whatever their strides, to [rows][heads][dim].
void InRowOrder(const ggml_tensor* tensor, const std::vector<uint8_t>& raw,
                std::vector<float>& out) {
  const auto extent = [&](int i) { return static_cast<size_t>(tensor->ne[i]); };
  out.resize(extent(0) * extent(1) * extent(2));
  float* next = out.data();
  for (size_t row = 0; row < extent(1); ++row) {
    for (size_t head = 0; head < extent(2); ++head) {
      const uint8_t* const run = raw.data() + row * tensor->nb[1] + head * tensor->nb[2];
      std::memcpy(next, run, extent(0) * sizeof(float));
      next += extent(0);
    }
  }
}

}  // namespace

void Recorder::Begin(int32_t begin, int32_t count) {
  Observer::Begin(begin, count);
  checked_mask_ = nullptr;
}

bool Recorder::Wants(ggml_tensor* node) {
  const std::optional<SoftmaxNode> softmax = FindSoftmax(node);
  // A separate softmax reads its operands from inputs, which exist before it is computed.
  if (softmax && !softmax->flash) {
    SeeRule(*softmax);
    return options_.probabilities;
  }
  return FindScores(node).has_value();
}

void Recorder::Computed(ggml_tensor* node) {
  const std::optional<SoftmaxNode> softmax = FindSoftmax(node);
  if (softmax && softmax->flash) SeeRule(*softmax);
  if (softmax && !softmax->flash) return WriteProbabilities(node, softmax->layer);
  AppendQueries(*FindScores(node));
}

void Recorder::SeeRule(const SoftmaxNode& softmax) {
  if (softmax.biased) {
    throw Failure(kUnsupported,
                  InLayer(softmax.layer) +
                      "scores have a bias (ALiBi or a table), which a trace cannot express");
  }
  if (softmax.has_sinks) {
    throw Failure(kUnsupported, InLayer(softmax.layer) +
                                    "the softmax has learned sinks, which a trace cannot express");
  }
  if (softmax.mask != checked_mask_) {
    checked_window_ = MeasureWindow(softmax.mask, begin_, count_);
    checked_mask_ = softmax.mask;
  }
  LayerRule& rule = rules_[softmax.layer];
  rule.scale = softmax.scale;
  rule.softcap = softmax.softcap;
  if (checked_window_ != 0) rule.window = checked_window_;
  flash_ = softmax.flash;
}

void Recorder::AppendQueries(const ScoreNode& scores) {
  const ggml_tensor& queries = *scores.queries;
  if (scores.streams != 1 || queries.ne[3] != 1) {
    throw Failure(kUnsupported, "attention runs over several sequences");
  }
  if (queries.type != GGML_TYPE_F32 || queries.nb[0] != sizeof(float)) {
    throw Failure(kUnsupported,
                  InLayer(scores.layer) + "queries are of type " + ggml_type_name(queries.type));
  }
  const Geometry geometry{0, static_cast<int32_t>(queries.ne[2]),
                          static_cast<int32_t>(scores.kv_heads),
                          static_cast<int32_t>(queries.ne[0])};
  if (geometry_.head_dim == 0) geometry_ = geometry;
  if (geometry.query_heads != geometry_.query_heads || geometry.kv_heads != geometry_.kv_heads ||
      geometry.head_dim != geometry_.head_dim) {
    throw Failure(kUnsupported, InLayer(scores.layer) + "differs in heads from earlier layers");
  }
  LayerRule& rule = rules_[scores.layer];
  if (!rule.rotary) rule.rotary = FindRotary(&queries);
  if (rule.rotary && rule.rotary->factors != nullptr && rule.rotary_factors.empty()) {
    rule.rotary_factors.resize(static_cast<size_t>(ggml_nelements(rule.rotary->factors)));
    ggml_backend_tensor_get(rule.rotary->factors, rule.rotary_factors.data(), 0,
                            rule.rotary_factors.size() * sizeof(float));
  }
  raw_.resize(ggml_nbytes(&queries));
  ggml_backend_tensor_get(&queries, raw_.data(), 0, raw_.size());
  InRowOrder(&queries, raw_, values_);
  const std::string name = "q." + std::to_string(scores.layer);
  const auto [file, is_new] = queries_.try_emplace(
      scores.layer, folder_.At("trace/" + name + ".safetensors"), name, type_name(),
      options_.half ? 2 : 4,
      std::vector<uint64_t>{uint64_t(geometry.query_heads), uint64_t(geometry.head_dim)});
  file->second.Append(Stored(values_, scores.layer));
}

void Recorder::WriteProbabilities(const ggml_tensor* node, int32_t layer) {
  const auto tokens = static_cast<uint64_t>(options_.tokens), width = uint64_t(node->ne[0]);
  const auto heads = static_cast<uint64_t>(node->ne[2]);
  const size_t value_bytes = options_.half ? 2 : 4;
  const std::string name = "a." + std::to_string(layer);
  const auto [file, is_new] =
      probabilities_.try_emplace(layer, folder_.At("trace/" + name + ".safetensors"), name,
                                 type_name(), value_bytes, std::vector{heads, tokens, tokens});
  for (uint64_t head = 0; head < heads; ++head) {
    for (int32_t i = 0; i < count_; ++i) {
      const auto row = static_cast<uint64_t>(begin_ + i);
      values_.resize(static_cast<size_t>(std::min(row + 1, width)));
      const size_t offset = head * node->nb[2] + static_cast<size_t>(i) * node->nb[1];
      ggml_backend_tensor_get(node, values_.data(), offset, values_.size() * sizeof(float));
      file->second.WriteAt((head * tokens + row) * tokens * value_bytes, Stored(values_, layer));
    }
  }
}

std::span<const std::byte> Recorder::Stored(std::span<const float> values, int32_t layer) {
  if (!options_.half) return std::as_bytes(values);
  halves_.resize(values.size());
  static_assert(sizeof(ggml_fp16_t) == 2);
  ggml_fp32_to_fp16_row(values.data(), reinterpret_cast<ggml_fp16_t*>(halves_.data()),
                        static_cast<int64_t>(values.size()));
  const auto overflows = [](uint16_t half) { return (half & 0x7FFF) == 0x7C00; };
  if (std::any_of(halves_.begin(), halves_.end(), overflows)) {
    throw Failure(kUnsupported,
                  InLayer(layer) + "a query is beyond the range of f16; use --type f32");
  }
  return std::as_bytes(std::span(halves_));
}

void Recorder::End() {
  geometry_.layers = static_cast<int32_t>(queries_.size());
  const auto expected = static_cast<uint64_t>(begin_ + count_);
  for (const auto& [layer, file] : queries_) {
    if (file.rows() != expected) {
      throw Failure(kUnsupported, InLayer(layer) + "the engine computed " +
                                      std::to_string(file.rows()) + " queries for " +
                                      std::to_string(expected) + " tokens");
    }
  }
  if (queries_.empty() || queries_.rbegin()->first + 1 != geometry_.layers) {
    throw Failure(kUnsupported,
                  "the engine's graph has no attention over a KV cache in every layer");
  }
}

void Recorder::Complete() {
  for (auto& [layer, file] : queries_) file.Complete();
  for (auto& [layer, file] : probabilities_) file.Complete();
}

}  // namespace kv::capture
