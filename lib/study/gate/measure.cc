// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/measure.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lib/core/base/arena.h"
#include "lib/core/base/error.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/diff.h"
#include "lib/core/snapshot/layout.h"
#include "lib/report/diff_report.h"
#include "lib/study/quantisation/replay.h"

namespace kv::gate {
namespace {

constexpr uint64_t kScanBytes = 1 << 20;
constexpr char kNotFinite[] = "content.not_finite";
constexpr std::string_view kFigures[] = {"reference.structure",    "reference.mismatches",
                                         "reference.k_mismatches", "reference.v_mismatches",
                                         "reference.different",    "reference.max_abs",
                                         "reference.k_max_abs",    "reference.v_max_abs",
                                         "reference.mean_abs",     "reference.max_rel"};

Where FindPlace(uint32_t layer, bool is_value, uint64_t token, uint32_t head, uint32_t dim,
                bool heads_known) {
  Where where;
  where.layer = layer;
  where.kind = is_value ? "V" : "K";
  if (heads_known) where.head = head;
  where.token_begin = token;
  where.token_end = token + 1;
  where.dim = dim;
  return where;
}

// Values that are not finite, and the first of them by layer, K before V, token, head and dim.
struct NotFinite {
  uint64_t nans = 0, infinities = 0;
  std::optional<Where> first = {};
  double value = 0;  // the first one

  void Add(const NotFinite& later) {
    nans += later.nans;
    infinities += later.infinities;
    if (first) return;
    first = later.first;
    value = later.value;
  }
};

struct Task {
  const LayerKv* layer = nullptr;
  bool is_value = false;
  uint64_t begin = 0, count = 0;
  NotFinite found = {};

  const KvTensor& tensor() const { return is_value ? *layer->v : layer->k; }
};

// Reads these rows as [token][channel]; block types are decoded.
void ReadRows(const KvTensor& tensor, uint64_t begin, uint64_t count, std::vector<double>& out) {
  static Reuse<Bytes> scratch;
  const Reuse<Bytes>::Lease lease(scratch);
  Bytes& rows = *lease;
  rows.resize(count * tensor.row_bytes());
  Gather(tensor, begin, count, 0, tensor.heads, Order::kTokenHeadDim, rows);
  if (!IsBlockQuantised(tensor.dtype)) return ToDoubles(tensor.dtype, rows, out);
  std::vector<float> values(count * tensor.channels());
  ToFloats(tensor.dtype, rows, values);
  out.assign(values.begin(), values.end());
}

// Returns the same tensor of the reference, if its rows have the same width.
const KvTensor* Counterpart(const Snapshot* reference, const Task& task) {
  const LayerKv* layer = reference == nullptr ? nullptr : reference->Find(task.layer->index);
  if (layer == nullptr || (task.is_value ? !layer->v : !layer->has_k())) return nullptr;
  const KvTensor& tensor = task.is_value ? *layer->v : layer->k;
  return tensor.channels() == task.tensor().channels() ? &tensor : nullptr;
}

bool IsSame(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b; }

void Search(const Snapshot& snapshot, const Snapshot* reference, Task& task) {
  const KvTensor& tensor = task.tensor();
  static Reuse<std::array<std::vector<double>, 2>> scratch;
  const Reuse<std::array<std::vector<double>, 2>>::Lease lease(scratch);
  auto& [values, theirs] = *lease;
  ReadRows(tensor, task.begin, task.count, values);
  theirs.clear();
  const auto is_bad = [](double value) { return !std::isfinite(value); };
  auto at = std::find_if(values.begin(), values.end(), is_bad);
  if (const KvTensor* other = Counterpart(reference, task);
      other != nullptr && at != values.end()) {
    const uint64_t end = std::min(other->tokens(), task.begin + task.count);
    if (end > task.begin) ReadRows(*other, task.begin, end - task.begin, theirs);
  }
  for (; at != values.end(); at = std::find_if(at + 1, values.end(), is_bad)) {
    const auto i = static_cast<uint64_t>(at - values.begin());
    if (i < theirs.size() && IsSame(*at, theirs[i])) continue;
    ++(std::isnan(*at) ? task.found.nans : task.found.infinities);
    if (task.found.first) continue;
    const uint64_t channel = i % tensor.channels();
    task.found.value = *at;
    task.found.first =
        FindPlace(task.layer->index, task.is_value, task.begin + i / tensor.channels(),
                  static_cast<uint32_t>(channel / tensor.head_dim),
                  static_cast<uint32_t>(channel % tensor.head_dim), tensor.heads_known);
  }
  DropTokens(snapshot, tensor, task.begin, task.count);
  if (task.begin + task.count == tensor.tokens()) DropTensor(snapshot, tensor);
}

// Finds NaN and infinite values of K and V; values that `reference`, if given, also has in the same
// place do not count. Reads everything, in chunks of bounded size.
NotFinite FindNotFinite(const Snapshot& snapshot, const Snapshot* reference, ThreadPool& pool) {
  snapshot.CheckContent();
  if (reference != nullptr) reference->CheckContent();
  std::vector<Task> tasks;
  for (const LayerKv& layer : snapshot.layers) {
    for (const bool is_value : {false, true}) {
      if (is_value ? !layer.v : !layer.has_k()) continue;
      const KvTensor& tensor = is_value ? *layer.v : layer.k;
      const uint64_t step =
          std::max<uint64_t>(1, kScanBytes / std::max<uint64_t>(1, tensor.row_bytes()));
      for (uint64_t begin = 0; begin < tensor.tokens(); begin += step) {
        tasks.push_back({&layer, is_value, begin, std::min(step, tensor.tokens() - begin)});
      }
    }
  }
  pool.ParallelFor(tasks.size(), [&](uint64_t i) { Search(snapshot, reference, tasks[i]); });
  NotFinite all;
  for (const Task& task : tasks) all.Add(task.found);
  return all;
}

void MeasureNotFinite(const Subject& subject, Measurements& out) {
  const NotFinite found = FindNotFinite(subject.snapshot, subject.reference, subject.pool);
  if (!found.first) return out.Set(kNotFinite, 0);
  std::string note = fmt::format("{} NaN, {} infinite; the first one is {}", found.nans,
                                 found.infinities, found.value);
  if (subject.reference != nullptr) note += ", which the reference does not have";
  out.Set(kNotFinite, static_cast<double>(found.nans + found.infinities), *found.first,
          std::move(note));
}

// If every bit must be equal, so must the types.
void RequireTypes(const Tolerance& tolerance, SnapshotDiff& diff) {
  std::string first;
  uint64_t count = 0;
  for (const LayerDiff& layer : diff.layers) {
    for (const bool is_value : {false, true}) {
      const auto& part = is_value ? layer.v : layer.k;
      if (!part || part->same_dtype() || tolerance.Of(layer.layer, is_value)) continue;
      if (count++ > 0) continue;
      first = fmt::format("{} and {} of layer {} {}", Name(part->a_dtype), Name(part->b_dtype),
                          layer.layer, is_value ? "V" : "K");
    }
  }
  if (count == 0) return;
  diff.structure.push_back(
      fmt::format("element types: {}{}; without a tolerance bits are compared", first,
                  count > 1 ? fmt::format(", and of {} more", count - 1) : std::string()));
}

std::string DescribeDifference(const TensorDiff& diff) {
  const DifferingValue& at = *diff.first;
  const auto text = [](DType dtype, double value, uint64_t bits) {
    return IsBlockQuantised(dtype) ? fmt::format("{:.9g}", value)
                                   : fmt::format("{:.9g} ({})", value, BitsText(dtype, bits));
  };
  return fmt::format("the first value that differs is {}, the reference has {}",
                     text(diff.a_dtype, at.a, at.a_bits), text(diff.b_dtype, at.b, at.b_bits));
}

// Sums the differences of K or V over all layers.
TensorDiff SumDiffs(const SnapshotDiff& diff, bool is_value) {
  TensorDiff total;
  for (const LayerDiff& layer : diff.layers) {
    const auto& part = is_value ? layer.v : layer.k;
    if (part) total.Add(*part);
  }
  return total;
}

void SetDistances(const SnapshotDiff& diff, const Where& where, Measurements& out) {
  const TensorDiff total = diff.Total(), k = SumDiffs(diff, false), v = SumDiffs(diff, true);
  const auto set = [&](std::string_view name, double value, const TensorDiff& of) {
    if (of.not_finite == 0) return out.Set(name, value, where);
    out.Missing(name, fmt::format("{} values are NaN or infinite on one side: they have no "
                                  "distance",
                                  of.not_finite));
  };
  set("reference.max_abs", total.max_abs, total);
  set("reference.k_max_abs", k.max_abs, k);
  set("reference.v_max_abs", v.max_abs, v);
  set("reference.mean_abs", total.mean_abs(), total);
  set("reference.max_rel", total.max_rel, total);
  out.Set("reference.k_mismatches", static_cast<double>(k.beyond), where);
  out.Set("reference.v_mismatches", static_cast<double>(v.beyond), where);
}

void CompareWithReference(const Subject& subject, CaseResult& result) {
  const Tolerance& tolerance = result.spec.tolerance;
  DiffOptions options;
  const bool any = tolerance.all[0] || tolerance.all[1] || !tolerance.layers.empty();
  if (any) {
    options.atol_of = [&](uint32_t layer, bool is_value) { return tolerance.Of(layer, is_value); };
  }
  SnapshotDiff diff = DiffSnapshots(subject.snapshot, *subject.reference, options, subject.pool);
  RequireTypes(tolerance, diff);
  const FirstDifference first = FindFirst(diff);
  Where where;
  std::string note;
  if (first.diff != nullptr) {
    const DifferingValue& at = *first.diff->first;
    where = FindPlace(first.layer, first.part == 'V', at.token, at.head, at.dim,
                      first.diff->heads_known);
    note = DescribeDifference(*first.diff);
  }
  Measurements& out = result.measured;
  const TensorDiff total = diff.Total();
  out.Set("reference.structure", static_cast<double>(diff.structure.size()), {},
          diff.structure.empty() ? "" : fmt::format("{}", fmt::join(diff.structure, "; ")));
  out.Set("reference.mismatches", static_cast<double>(total.beyond), where, note);
  out.Set("reference.different", static_cast<double>(total.different), where, note);
  SetDistances(diff, where, out);
  result.reference = std::move(diff);
}

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
    out.Missing("quant.predicted_kl", replayed.lacks_recorded_state
                                          ? "all gradients of the trace are of evicted states"
                                          : "the trace has no gradients");
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

void MeasureCache(const Subject& subject, CaseResult& result) {
  if (subject.reference == nullptr && subject.of_snapshot != nullptr) {
    if (subject.of_snapshot->Find(kNotFinite) == nullptr) {
      MeasureNotFinite(subject, *subject.of_snapshot);
    }
    result.measured.Copy(kNotFinite, *subject.of_snapshot);
  } else {
    MeasureNotFinite(subject, result.measured);
  }
  if (subject.reference != nullptr) return CompareWithReference(subject, result);
  for (const std::string_view name : kFigures) {
    result.measured.Missing(name, "no reference cache: give 'reference'");
  }
}

CaseResult CompareCase(const CaseSpec& spec, const Subject& subject) {
  KV_ASSERT(!OnlyCompares(spec) || subject.reference != nullptr);
  CaseResult result;
  result.spec = spec;
  result.origin = OnlyCompares(spec) ? Origin::kCompare : Origin::kReplay;
  MeasureCache(subject, result);
  return result;
}

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
    missing(error.what());  // the engine refuses tensors of this shape
  }
}

}  // namespace kv::gate
