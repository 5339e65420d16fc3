// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The cost of a plan in attention and, predicted, in nats per next token.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/study/attention/attention.h"
#include "lib/study/attention/layer_attention.h"
#include "lib/study/eviction/budget.h"

namespace kv::eviction {

// The decode rows that are measured: all of them, or a random sample.
struct MeasuredRows {
  uint64_t first = 0, population = 0;  // positions [first, first + population)
  std::vector<uint64_t> positions;     // ascending

  bool is_sample() const { return positions.size() < population; }
};
// Chooses up to `most` (0: no limit) positions of [prompt, end); every set of positions is equally
// likely. The same seed chooses the same rows on every machine.
MeasuredRows ChooseRows(uint64_t prompt, uint64_t end, uint64_t most, uint64_t seed);

// The change of the log probabilities of sampled next tokens by a plan, to first order: g . (o' -
// o) of the trace's gradients g. Changes of heads and layers add up.
struct LogPChange {
  uint64_t samples = 0, rows = 0;
  std::vector<double> values = {};  // [sample][measured row]; NaN if undefined or without gradient
  uint64_t evicted = 0;             // number of samples, the last ones, taken at evicted states

  double at(uint64_t sample, uint64_t row) const { return values[sample * rows + row]; }
  // Adds a change of the same shape; an empty object takes the shape of the other.
  void Add(const LogPChange& other);
};

// The loss of a plan in one layer, over the measured rows.
struct LayerQuality {
  uint32_t layer = 0;
  AttentionSummary summary;             // all heads pooled, their outputs concatenated
  AttentionSummary evicting;            // the same for the rows that evict
  std::vector<AttentionSummary> heads;  // per query head
  std::vector<AttentionSummary> evicting_heads;
  std::vector<double> step_mass;          // per measured row, mean over heads
  std::vector<double> step_output_error;  // per measured row; empty without V
  std::vector<double> step_output_cosine;
  // per kv head, its query heads summed; empty unless requested
  std::vector<LogPChange> log_p_changes;
};

// Compares every plan with the full cache, row by row: [plan][query head]. The softmax over the
// full cache is computed once per head and shared. All plans must be of the same layer.
// `with_changes` adds log_p_change, which needs V and gradients of this layer in the trace.
std::vector<std::vector<AttentionRows>> MeasureHeads(
    const LayerAttention& attention, std::span<const LayerPlan* const> plans,
    const MeasuredRows& rows, ThreadPool& pool, bool with_changes = false,
    AttentionFigures figures = AttentionFigures::kAll);
// Returns true if MeasureHeads and MeasureLayer can compute changes of log p.
bool HasChanges(const LayerAttention& attention);

// Summarises what MeasureHeads returns, in the order of the plans. Adds the samples of each row to
// `pooled`, one per plan, from which the caller makes figures of the whole model. `with_changes`
// fills log_p_changes.
std::vector<LayerQuality> MeasureLayer(const LayerAttention& attention,
                                       std::span<const LayerPlan* const> plans,
                                       const MeasuredRows& rows, std::span<AttentionSamples> pooled,
                                       ThreadPool& pool, bool with_changes = false);

// StreamingLLM counts positions within the cache: the distance of a kept key from the query is the
// number of kept keys between them. In effect it rotates the key by the number of evicted tokens
// after it. Returns what the rows of one head at `positions` lose by a plan with `rotated_by`,
// compared with the full cache as it was. `k` and `v` are all keys and values of the head as
// floats, [token][dim]; `v` is empty without values. `gradients` have a row per position.
AttentionRows CompareReRotated(const LayerAttention& attention, const LayerPlan& plan,
                               uint32_t head, std::span<const uint64_t> positions,
                               std::span<const float> k, std::span<const float> v,
                               OutputGradients gradients = {});

// The rest predicts what an eviction, or storing a cache in smaller types, costs the model in nats:
// KL(full || changed) of the next token, mean of the decode rows.

// Predicted over real KL in a study that applied plans in the model itself: quantiles over its
// runs.
struct Calibration {
  double p10, median, p90;
  std::string_view models = "SmolLM2-135M";  // models of the study
};

// The states that the gradients of a prediction were taken at. At the recorded state, heads that
// are certain of a token are saturated, and no gradient sees what evicting it does; at evicted
// states gradients do. The mean of both is within a factor of 2 more often than each
// (docs/closed-loop.md).
enum class Basis { kRecorded, kEvicted, kBoth };
std::string_view Name(Basis basis);
// Returns the best basis for losses by eviction that a trace with such samples has.
Basis FindBasis(const GradientRows& rows);

// Samples of one kind of state, and their share in a prediction. Shares add up to 1.
struct SampleGroup {
  uint64_t begin = 0, end = 0;
  double share = 1;

  double size() const { return static_cast<double>(end - begin); }
};
// Returns the samples of a trace that a prediction on this basis takes.
std::vector<SampleGroup> GroupSamples(const GradientRows& rows, Basis basis);

// The cause of a change of outputs. Errors of stored values have any direction, those of lost
// tokens do not.
enum class Cause { kEviction, kQuantisation };

enum class KlMethod {
  kGradients,    // Fisher information: 1/2 (sum over layers of g . (o' - o))^2
  kSensitivity,  // sum over layers of weight x 2 (1 - cos(o, o'))
};
std::string_view Name(KlMethod method);

// Returns the calibration of this method in the study of this cause. Types are predicted from the
// recorded state alone.
const Calibration& FindCalibration(KlMethod method, Cause cause, Basis basis = Basis::kRecorded);

// Number of rows that a prediction names.
inline constexpr size_t kTopRows = 4;

struct PredictedKl {
  KlMethod method = KlMethod::kGradients;
  double nats = 0;  // as the method computes it, without calibration
  // Standard error of `nats` from the rows and tokens drawn; 0: all were measured, NaN: unknown. It
  // does not cover the formula, the layer weights or the calibration.
  double standard_error = 0;
  uint64_t rows = 0;        // number of measured rows
  uint64_t population = 0;  // number of rows that they were drawn from
  uint64_t samples = 0;     // next tokens that were drawn for each row; 0 without gradients
  Cause cause = Cause::kEviction;
  Basis basis = Basis::kRecorded;  // with gradients
  // Positions of the rows that lose most, the largest loss first, and their share of `nats`; NaN if
  // nothing is lost.
  std::vector<uint64_t> top_rows = {};
  double top_share = 0;

  const Calibration& calibration() const { return FindCalibration(method, cause, basis); }
  // Returns the real KL that runs of the study had at such a prediction: their median, and the
  // range of the middle four fifths.
  double expected() const { return nats / calibration().median; }
  double low() const { return nats / calibration().p90; }
  double high() const { return nats / calibration().p10; }
};

// Returns the model that predictions are calibrated on and the range of the real KL around the
// expected one, for notes and captions.
std::string CalibrationText(const Calibration& calibration);
// Explains an expected KL: "in nats per next token, mean of the decode rows, ...".
std::string ExpectedKlText(const PredictedKl& kl);
// A larger expected KL is likely too low unless its gradients are of evicted states, because at the
// recorded state the formulas are the first term of the loss only.
inline constexpr double kMostTrustedKl = 0.2;
// Returns a remark if the largest expected KL is beyond kMostTrustedKl; otherwise "".
std::string RemarkOnLargeKl(double largest, Basis basis = Basis::kRecorded);
// Returns which rows lose most, for a loss that a few of many rows carry; otherwise "".
std::string RemarkOnTopRows(const PredictedKl& kl);
// A note for types of a trace whose gradients are all of evicted states.
inline constexpr std::string_view kNoRecordedState =
    "no loss in nats: all gradients of the trace are of evicted states, which say nothing about "
    "types (python -m kvtool.capture MODEL --fisher 4 ... adds those of the recorded state)";
// A note for results without a loss in nats.
inline constexpr std::string_view kNoNats =
    "no loss in nats: the trace has no gradients (python -m kvtool.capture MODEL --fisher 4 ... "
    "records them), and no layer weights are given (--sensitivity FILE)";

// Predicts from the sum of the changes that all layers make together; a mixture of plans has the
// sum of its parts. Rows that are NaN for some sample are left out. `population` is the number of
// rows that `change` was drawn from, `positions` has their positions, or counts them if it is
// empty. Returns nothing if no row is left.
std::optional<PredictedKl> PredictKl(const LogPChange& change, uint64_t population,
                                     std::span<const uint64_t> positions = {});

// KL that one layer's output error causes, per relative squared error of its output.
using LayerWeights = std::map<uint32_t, double>;
// Predicts from the cosines of the measured layers; a layer without a weight must not lose
// anything. Rows that are undefined in some layer are left out. Returns nothing if no row is left
// or outputs were not measured.
std::optional<PredictedKl> PredictKl(std::span<const LayerQuality> layers,
                                     const LayerWeights& weights, uint64_t population,
                                     std::span<const uint64_t> positions = {});

}  // namespace kv::eviction
