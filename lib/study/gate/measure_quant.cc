// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/measure_quant.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/study/gate/compare_case.h"
#include "lib/study/quantisation/replay.h"

namespace kv::gate {
namespace {

constexpr std::string_view kQuantFigures[] = {"quant.ratio",
                                              "quant.output_error",
                                              "quant.output_error.worst",
                                              "quant.one_minus_cosine",
                                              "quant.attention_kl",
                                              "quant.mass_moved",
                                              "quant.predicted_kl"};

uint64_t FirstQuantRow(const CaseSpec& spec, const AttentionTrace& trace) {
  const uint64_t prompt =
      !spec.prompt_tokens.empty() ? spec.prompt_tokens.front() : trace.prompt_tokens.value_or(0);
  const uint64_t last = trace.end_position() - 1;
  return std::clamp(prompt, trace.q_start, last);
}

void SetQuant(const quantisation::ReplayResult& replayed, const std::string& note,
              Measurements& out) {
  const quantisation::Outcome outcome = quantisation::EvaluatePair(replayed, 1);
  Where worst;
  double most = -1;
  for (const quantisation::LayerFigures& layer : replayed.layers) {
    if (!(layer.all[1].output_error > most)) continue;
    most = layer.all[1].output_error;
    worst.layer = layer.layer;
  }
  out.Set("quant.ratio", outcome.ratio(), {}, note);
  out.Set("quant.output_error", outcome.mean.output_error, worst, note);
  out.Set("quant.output_error.worst", outcome.worst_output_error, worst, note);
  out.Set("quant.one_minus_cosine", outcome.mean.one_minus_cosine, worst, note);
  out.Set("quant.attention_kl", outcome.mean.attention_kl, worst, note);
  out.Set("quant.mass_moved", outcome.mean.mass_moved, worst, note);
  if (outcome.kl) {
    out.Set("quant.predicted_kl", outcome.kl->nats, {}, note);
  } else if (replayed.kl_method) {
    out.Undefined("quant.predicted_kl", "a layer has no figures: NaN or infinite values");
  } else {
    out.Missing("quant.predicted_kl", "the trace has no gradients");
  }
  if (outcome.mean.undefined_rows > 0) {
    const std::string why =
        fmt::format("{} of {} rows of queries have no figures: NaN or infinite values",
                    outcome.mean.undefined_rows, outcome.mean.rows);
    for (const std::string_view name : kQuantFigures) {
      const std::optional<double> least = name == "quant.ratio" ? std::nullopt : out.Value(name);
      if (least) out.SetRange(name, {*least, HUGE_VAL, why});
    }
  }
}

}  // namespace

void MeasureQuant(const Subject& subject, CaseResult& result) {
  const auto missing = [&](const std::string& why) {
    for (const std::string_view name : kQuantFigures) result.measured.Missing(name, why);
  };
  if (subject.trace == nullptr) return missing("no attention trace: give 'trace'");
  if (subject.trace->level != TraceLevel::kQueries) return missing("the trace has no queries");
  const QuantTypes& types = *result.spec.quant;
  const bool is_bf16 = subject.snapshot.layers.front().k.dtype == DType::kBF16;
  const quant::CacheType& full = quant::ParseCacheType(is_bf16 ? "bf16" : "f16", "quant");
  quantisation::ReplayRequest request;
  request.store.k_types = {&full, &quant::ParseCacheType(types.k, "quant.k")};
  request.store.v_types = {&full, &quant::ParseCacheType(types.v, "quant.v")};
  request.pairs = {{0, 0}, {1, 1}};
  request.prompt_tokens = FirstQuantRow(result.spec, *subject.trace);
  try {
    const auto replayed =
        quantisation::Replay(subject.snapshot, *subject.trace, request, subject.pool, nullptr);
    if (quantisation::IsUnchanged(request, replayed, request.pairs[1])) {
      const std::string k = WhyUnchanged(request, replayed, 1, true);
      const std::string v = WhyUnchanged(request, replayed, 1, false);
      return missing(k.empty() || v.empty() ? k + v : k + "; " + v);
    }
    SetQuant(replayed, fmt::format("K {}, V {}", types.k, types.v), result.measured);
  } catch (const Error& error) {
    if (error.finding() != Finding::kUnsupportedKind && error.finding() != Finding::kUsage) throw;
    missing(error.what());  // shapes that the engine refuses
  }
}

CaseResult QuantCase(const CaseSpec& spec, const Subject& subject) {
  CaseResult result;
  result.spec = spec;
  result.origin = Origin::kReplay;
  MeasureCache(subject, result);
  return result;
}

}  // namespace kv::gate
