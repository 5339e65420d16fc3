// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

// The search for a plan, apart from caches and traces: what each option does to each part of the
// model is measured once, and any mixture of options is then a matter of adding vectors.
namespace kv::advise {

// What a loss is computed from, best first.
enum class LossKind {
  kFisher,       // nats, from gradients: 1/2 mean of (sum over units of g.do)^2
  kSensitivity,  // nats, from weights: sum over layers of weight * 2 * (1 - mean cosine)
  kOutput,       // relative error of the attention outputs, Frobenius over rows and layers
};
std::string_view Name(LossKind kind);

// What an option does to a unit, in one run. Effects of the units of a group add up row by row.
// Layout [channel][row]:
//   kFisher       one channel per sampled token: g.do
//   kSensitivity  o.o' - o.o, then o'.o' - o.o
//   kOutput       |o - o'|^2
using Effect = std::vector<float>;

// An option: a part of the model keeps what one candidate keeps there.
struct Option {
  uint32_t candidate = 0;
  // [run]: bytes of K and V held, as shares of those of the whole model: at the end, and over all
  // decode steps together.
  std::vector<double> kept, held;
  std::vector<Effect> effect;  // [run]; empty: none, as of an option that keeps everything
  // Of kFisher: [run][row] |o' - o|^2, by which the noise of few sampled tokens is smoothed.
  std::vector<std::vector<float>> error2;
  uint32_t drops_first = 0;  // runs in which the first token goes
};

// A part of the model that chooses on its own: a layer, or one of its kv heads.
struct Unit {
  uint32_t layer = 0, kv_head = 0;
  uint32_t group = 0;
  std::vector<Option> options;  // the first keeps everything
};

// What all options share in one run: one prompt, or some rows of it.
struct RunRows {
  uint64_t rows = 0, channels = 1;
  uint64_t population = 0;                // rows that these are a sample of
  double fixed_kept = 0, fixed_held = 0;  // shares of layers that cannot be chosen for
  std::vector<std::vector<float>> norm2;  // [group][row]: o.o; empty for kFisher
  double norm2_sum = 0;                   // of all of these
  std::vector<double> weight;             // [group]: for kSensitivity
};

// Everything that was measured. The search depends on nothing else.
struct Measured {
  LossKind kind = LossKind::kOutput;
  uint32_t groups = 1;
  std::vector<RunRows> runs;
  std::vector<Unit> units;
  // Of kFisher, while plans are searched for: the share of the loss in which the effects of units
  // count as independent, each as its squared error times a weight that the unit has over all its
  // options. Among many options and units a search finds some that do little, or cancel each other,
  // in the rows and tokens that were drawn alone.
  double independent = 0;
};

// Sums up norm2 in index order.
double SumOfNorm2(const RunRows& run);
// Returns what was measured in some of the runs.
Measured OfRuns(const Measured& measured, const std::vector<size_t>& runs);
// Leaves only these rows of a run, ascending, as if no others had been measured.
void KeepRows(const std::vector<uint64_t>& some, size_t run, Measured& measured);
// Returns the same with each run cut at its middle row into two.
Measured InHalves(const Measured& measured);

}  // namespace kv::advise
