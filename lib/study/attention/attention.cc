// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Compares full and changed attention tile by tile: P, o and the errors of kept subsets or of
// changed caches, with figures that are exact where nothing is lost.
#include "lib/study/attention/attention.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>

#include "lib/core/base/error.h"

namespace kv {
namespace {

// Number of query rows compared at once.
constexpr uint64_t kAttentionTileRows = 64;
constexpr double kUndecided = std::numeric_limits<double>::quiet_NaN();

// Lists the kTopK.back() keys of largest probability, largest first; among equal ones the lower
// index comes first. Keys of probability 0 are not listed.
void LargestKeys(std::span<const double> p, std::vector<uint32_t>& order) {
  order.clear();
  for (uint32_t j = 0; j < p.size(); ++j) {
    if (p[j] > 0) order.push_back(j);
  }
  const size_t most = std::min<size_t>(kTopK.back(), order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(most), order.end(),
                    [&](uint32_t a, uint32_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; });
  order.resize(most);
}

bool HasNan(std::span<const double> row) {
  return std::any_of(row.begin(), row.end(), [](double p) { return std::isnan(p); });
}

// Makes the output figures of a row NaN.
void StoreUndefinedOutput(uint64_t row, AttentionRows& out) {
  for (auto* values : {&out.error2, &out.norm2, &out.changed_norm2, &out.dot}) {
    if (!values->empty()) (*values)[row] = kUndecided;
  }
  for (std::vector<double>& values : out.log_p_change) values[row] = kUndecided;
}

// Makes every figure of a row NaN, because its probabilities do not exist. It must not look like a
// row that lost nothing.
void StoreUndefined(uint64_t row, AttentionRows& out) {
  for (auto* values : {&out.mass, &out.changed_mass, &out.kl, &out.js}) (*values)[row] = kUndecided;
  for (auto& values : out.top_k) values[row] = kUndecided;
  StoreUndefinedOutput(row, out);
}

// Returns rows of zeros to fill in: with output figures if V is there, with changes of log p for
// `samples` gradients.
AttentionRows MakeRows(uint64_t rows, bool with_output, uint64_t samples) {
  AttentionRows out;
  for (auto* values : {&out.mass, &out.changed_mass, &out.kl, &out.js}) values->resize(rows);
  for (auto& values : out.top_k) values.resize(rows);
  out.evicting.resize(rows);
  if (with_output) {
    for (auto* values : {&out.error2, &out.norm2, &out.changed_norm2, &out.dot}) {
      values->resize(rows);
    }
    out.log_p_change.assign(samples, std::vector<double>(rows));
  }
  return out;
}

// Stores the output figures of row `row` from o and e = o - o', `columns` floats each.
void StoreOutput(const float* o, const float* e, uint64_t columns, OutputGradients gradients,
                 uint64_t row, AttentionRows& out) {
  double error2 = 0, norm2 = 0, changed2 = 0, dot = 0;
  for (uint64_t d = 0; d < columns; ++d) {
    const double full = o[d], lost = e[d], changed = full - lost;
    error2 += lost * lost;
    norm2 += full * full;
    changed2 += changed * changed;
    dot += full * changed;
  }
  out.error2[row] = error2;
  out.norm2[row] = norm2;
  out.changed_norm2[row] = changed2;
  out.dot[row] = dot;
  for (size_t sample = 0; sample < out.log_p_change.size(); ++sample) {
    const float* g = gradients[sample].row(row);
    double change = 0;
    for (uint64_t d = 0; d < columns; ++d) {
      change -= static_cast<double>(g[d]) * static_cast<double>(e[d]);
    }
    out.log_p_change[sample][row] = std::isfinite(change) ? change : kUndecided;
  }
}

// Stores, for each k of kTopK, the share of the k largest probabilities that is kept.
template <typename IsKept>
void TopKKept(std::span<const uint32_t> largest, const IsKept& is_kept, uint64_t row,
              AttentionRows& out) {
  for (size_t i = 0; i < kTopK.size(); ++i) {
    const size_t k = std::min<size_t>(kTopK[i], largest.size());
    size_t hits = 0;
    for (size_t j = 0; j < k; ++j) hits += is_kept(largest[j]);
    out.top_k[i][row] = k == 0 ? 1.0 : static_cast<double>(hits) / static_cast<double>(k);
  }
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Stores KL, JS and masses between P and P' in row `row`, from the groups of keys that make up P'.
void GroupRow(std::span<const double> p, std::span<const double> changed,
              std::span<const TokenRange> sources, std::span<const uint8_t> kept,
              std::span<const uint64_t> dropped, uint64_t row, std::vector<uint32_t>& largest,
              AttentionRows& out) {
  LargestKeys(p, largest);
  TopKKept(
      largest, [&](uint32_t key) { return kept[key] != 0; }, row, out);
  double mass = 0, changed_mass = 0, lost = 0, kl = 0, js = 0;
  for (uint64_t t : dropped) lost += p[t];
  for (size_t j = 0; j < sources.size(); ++j) {
    double group = 0;
    for (uint64_t t = sources[j].begin; t < sources[j].end; ++t) group += p[t];
    if (sources[j].end - sources[j].begin == 1) {
      mass += group;
      changed_mass += changed[j];
    }
    const double middle = 0.5 * (group + changed[j]);
    if (changed[j] > 0) {
      kl += group > 0 ? changed[j] * std::log(changed[j] / group) : kInfinity;
      js += 0.5 * changed[j] * std::log(changed[j] / middle);
    }
    if (group > 0) js += 0.5 * group * std::log(group / middle);
  }
  out.mass[row] = mass;
  out.changed_mass[row] = changed_mass;
  out.kl[row] = std::max(kl, 0.0);
  out.js[row] = std::max(js + 0.5 * lost * std::log(2.0), 0.0);
  bool evicting = false;
  for (size_t t = 0; t < p.size(); ++t) evicting |= p[t] > 0 && kept[t] == 0;
  out.evicting[row] = evicting;
  // If every key is kept, the sums above are 1 up to rounding, and exactly 1 is stored.
  if (!evicting) out.mass[row] = out.changed_mass[row] = 1;
}

// Rows of doubles, filled a tile at a time.
using FillTile = std::function<void(uint64_t begin, uint64_t count, std::span<double> out)>;

// Returns the Jensen-Shannon divergence between P and its subset of mass `mass`, renormalised.
double ComputeSubsetJs(double mass) {
  if (mass <= 0) return std::log(2.0);
  if (mass >= 1) return 0;
  return 0.5 * ((1 - mass) * std::log(2.0) + mass * std::log(2 * mass / (1 + mass)) +
                std::log(2 / (1 + mass)));
}

// Number of rows whose masses are summed side by side: each is a chain of additions in the order of
// the keys, and one alone would wait for every addition.
constexpr uint64_t kChains = 4;

// The share of a row's probability that a subset keeps.
struct KeptMass {
  double mass = 0;
  bool evicting = false;  // true if the row loses a key with some probability
};

// Sums up to kChains rows of `p`, `keys` apart, each over the keys kept beyond its position.
void SumKept(const double* p, KeptBefore kept_before, std::span<const int64_t> positions,
             std::array<KeptMass, kChains>& out) {
  std::array<const double*, kChains> row{};
  std::array<int64_t, kChains> position{};
  std::array<double, kChains> mass{};
  std::array<bool, kChains> evicting{};
  for (size_t r = 0; r < kChains; ++r) {
    const size_t from = std::min(r, positions.size() - 1);  // unused chains repeat the last row
    row[r] = p + from * kept_before.size();
    position[r] = positions[from];
  }
  for (size_t j = 0; j < kept_before.size(); ++j) {
    for (size_t r = 0; r < kChains; ++r) {
      const bool kept = int64_t{kept_before[j]} > position[r];
      const double x = row[r][j];
      // Adds x or 0 without a branch, which random subsets would mispredict.
      mass[r] += std::bit_cast<double>(std::bit_cast<uint64_t>(x) & (uint64_t{0} - kept));
      evicting[r] |= !kept & (x > 0);
    }
  }
  for (size_t r = 0; r < kChains; ++r) out[r] = {mass[r], evicting[r]};
}

// Stores the metrics of a kept subset in row `row`, and P - P' in `difference`. Returns false if
// nothing is lost: `difference` is 0 then.
bool KeptRow(std::span<const double> p, KeptBefore kept_before, int64_t position,
             const KeptMass& kept, uint64_t row, AttentionRows& out, float* difference) {
  out.changed_mass[row] = 1;
  out.evicting[row] = kept.evicting;
  if (!kept.evicting) {
    out.mass[row] = 1;
    out.kl[row] = out.js[row] = 0;
    std::fill_n(difference, p.size(), 0.0f);
    return false;
  }
  const double mass = kept.mass;
  out.mass[row] = mass;
  out.kl[row] = -std::log(mass);
  out.js[row] = ComputeSubsetJs(mass);
  const std::array<double, 2> factor{1, mass > 0 ? 1 - 1 / mass : 1};
  for (size_t j = 0; j < p.size(); ++j) {
    difference[j] = static_cast<float>(p[j] * factor[int64_t{kept_before[j]} > position]);
  }
  return true;
}

// Compares several kept sets with the same rows.
class KeptComparison {
 public:
  KeptComparison(uint64_t rows, uint64_t keys, const FloatMatrix& v,
                 std::span<const KeptBefore> sets, OutputGradients gradients,
                 AttentionFigures figures)
      : rows_(rows),
        keys_(keys),
        v_(v),
        sets_(sets),
        gradients_(gradients),
        figures_(figures),
        largest_(kAttentionTileRows),
        states_(kAttentionTileRows) {
    KV_ASSERT(v.empty() || v.rows == keys);
    SetAsideBadValues();
    for (const KeptBefore& set : sets) {
      KV_ASSERT(set.size() == keys);
      out_.push_back(MakeRows(rows, !v.empty(), gradients.size()));
    }
  }

  std::vector<AttentionRows> Run(const FillTile& fill, std::span<const int64_t> positions) {
    for (uint64_t begin = 0; begin < rows_; begin += kAttentionTileRows) {
      const uint64_t count = std::min(kAttentionTileRows, rows_ - begin);
      p_.resize(count * keys_);
      fill(begin, count, p_);
      Narrow(p_, narrow_);
      if (!v_.empty()) Outputs(narrow_, count, v_, o_);
      for (uint64_t i = 0; i < count; ++i) {
        if (figures_ == AttentionFigures::kAll) LargestKeys(Row(i), largest_[i]);
        states_[i] = ReadState(Row(i));
      }
      for (size_t set = 0; set < sets_.size(); ++set) RunSet(set, begin, count, positions);
    }
    return std::move(out_);
  }

 private:
  enum class State : uint8_t { kMeasured, kNoOutput, kUndefined };

  std::span<const double> Row(uint64_t i) const { return {&p_[i * keys_], keys_}; }

  // Rows of V with NaN or Inf are replaced by 0 and handled apart: in a product 0 * NaN is NaN,
  // which would spoil all rows instead of those that see them.
  void SetAsideBadValues() {
    for (uint64_t j = 0; j < v_.rows; ++j) {
      const float* row = v_.row(j);
      if (!std::all_of(row, row + v_.columns, [](float x) { return std::isfinite(x); })) {
        bad_values_.push_back(j);
      }
    }
    if (bad_values_.empty()) return;
    for (uint64_t j = 0; j < v_.rows; ++j) {
      good_values_.insert(good_values_.end(), v_.row(j), v_.row(j) + v_.columns);
    }
    for (const uint64_t j : bad_values_) {
      std::fill_n(&good_values_[j * v_.columns], v_.columns, 0.0f);
    }
    v_ = MakeMatrix(good_values_, v_.rows, v_.columns);
  }

  State ReadState(std::span<const double> row) const {
    if (HasNan(row)) return State::kUndefined;
    const bool sees_bad =
        std::any_of(bad_values_.begin(), bad_values_.end(), [&](uint64_t j) { return row[j] > 0; });
    return sees_bad ? State::kNoOutput : State::kMeasured;
  }

  void RunSet(size_t set, uint64_t begin, uint64_t count, std::span<const int64_t> positions) {
    AttentionRows& out = out_[set];
    const std::vector<int64_t> everywhere(positions.empty() ? count : 0, UINT32_MAX - 1);
    const auto here = positions.empty() ? std::span(everywhere) : positions.subspan(begin, count);
    bool any_lost = false;
    std::array<KeptMass, kChains> kept;
    for (uint64_t i = 0; i < count; ++i) {
      if (i % kChains == 0) {
        SumKept(&p_[i * keys_], sets_[set], here.subspan(i, std::min(kChains, count - i)), kept);
      }
      StoreTopK(sets_[set], here[i], i, begin + i, out);
      any_lost |= KeptRow(Row(i), sets_[set], here[i], kept[i % kChains], begin + i, out,
                          &narrow_[i * keys_]);
    }
    // The difference itself goes through the GEMM: its rounding is then relative to the error, and
    // keys that change nothing contribute exactly nothing.
    if (any_lost && !v_.empty()) Outputs(narrow_, count, v_, e_);
    if (!any_lost) e_.assign(o_.size(), 0.0f);
    for (uint64_t i = 0; i < count; ++i) {
      if (!v_.empty()) {
        StoreOutput(&o_[i * v_.columns], &e_[i * v_.columns], v_.columns, gradients_, begin + i,
                    out);
      }
      if (states_[i] == State::kUndefined) StoreUndefined(begin + i, out);
      if (states_[i] == State::kNoOutput) StoreUndefinedOutput(begin + i, out);
    }
  }

  void StoreTopK(KeptBefore set, int64_t position, uint64_t i, uint64_t row,
                 AttentionRows& out) const {
    if (figures_ == AttentionFigures::kNoTopK) {
      for (auto& values : out.top_k) values[row] = kUndecided;
      return;
    }
    TopKKept(
        largest_[i], [&](uint32_t key) { return int64_t{set[key]} > position; }, row, out);
  }

  uint64_t rows_, keys_;
  FloatMatrix v_;
  std::vector<uint64_t> bad_values_;
  std::vector<float> good_values_;
  std::span<const KeptBefore> sets_;
  OutputGradients gradients_;
  AttentionFigures figures_;
  std::vector<AttentionRows> out_;
  std::vector<double> p_;
  std::vector<float> narrow_, o_, e_;
  std::vector<std::vector<uint32_t>> largest_;
  std::vector<State> states_;
};

}  // namespace

AttentionRows CompareCaches(const HeadQueries& queries, const HeadCache& full,
                            const HeadQueries& changed_queries, const HeadCache& changed,
                            std::span<const TokenRange> sources, const AttentionRule& rule,
                            OutputGradients gradients) {
  const uint64_t rows = queries.q.rows, keys = full.k.rows, changed_keys = changed.k.rows;
  KV_ASSERT(changed_queries.q.rows == rows && sources.size() == changed_keys);
  const bool with_output = !full.v.empty() && !changed.v.empty();
  KV_ASSERT(!with_output || full.v.columns == changed.v.columns);
  std::vector<uint8_t> kept(keys, 0), covered(keys, 0);
  for (const TokenRange& range : sources) {
    KV_ASSERT(range.begin < range.end && range.end <= keys);
    if (range.end - range.begin == 1) kept[range.begin] = 1;
    for (uint64_t t = range.begin; t < range.end; ++t) covered[t] = 1;
  }
  std::vector<uint64_t> dropped;
  for (uint64_t t = 0; t < keys; ++t) {
    if (!covered[t]) dropped.push_back(t);
  }
  AttentionRows out = MakeRows(rows, with_output, gradients.size());
  std::vector<double> p, changed_p;
  std::vector<float> narrow, o, e;
  std::vector<uint32_t> order;
  for (uint64_t begin = 0; begin < rows; begin += kAttentionTileRows) {
    const uint64_t count = std::min(kAttentionTileRows, rows - begin);
    p.resize(count * keys);
    changed_p.resize(count * changed_keys);
    AttentionProbabilities(queries, full, rule, begin, count, p);
    AttentionProbabilities(changed_queries, changed, rule, begin, count, changed_p);
    for (uint64_t i = 0; i < count; ++i) {
      GroupRow(std::span(p).subspan(i * keys, keys),
               std::span(changed_p).subspan(i * changed_keys, changed_keys), sources, kept, dropped,
               begin + i, order, out);
    }
    if (with_output) {
      Narrow(p, narrow);
      Outputs(narrow, count, full.v, o);
      Narrow(changed_p, narrow);
      Outputs(narrow, count, changed.v, e);
      std::transform(o.begin(), o.end(), e.begin(), e.begin(), std::minus<>());
      for (uint64_t i = 0; i < count; ++i) {
        StoreOutput(&o[i * full.v.columns], &e[i * full.v.columns], full.v.columns, gradients,
                    begin + i, out);
      }
    }
    for (uint64_t i = 0; i < count; ++i) {
      const bool is_defined = !HasNan(std::span(p).subspan(i * keys, keys)) &&
                              !HasNan(std::span(changed_p).subspan(i * changed_keys, changed_keys));
      if (!is_defined) StoreUndefined(begin + i, out);
    }
  }
  return out;
}

std::vector<AttentionRows> CompareKeptSets(const HeadQueries& queries, const HeadCache& full,
                                           std::span<const KeptBefore> sets,
                                           const AttentionRule& rule, OutputGradients gradients,
                                           AttentionFigures figures) {
  const auto fill = [&](uint64_t begin, uint64_t count, std::span<double> out) {
    AttentionProbabilities(queries, full, rule, begin, count, out);
  };
  return KeptComparison(queries.q.rows, full.k.rows, full.v, sets, gradients, figures)
      .Run(fill, queries.positions);
}

std::vector<AttentionRows> CompareKeptSetsProbabilities(
    const FloatMatrix& probabilities, std::span<const int64_t> positions, const FloatMatrix& v,
    std::span<const KeptBefore> sets, OutputGradients gradients, AttentionFigures figures) {
  const uint64_t keys = probabilities.columns;
  const auto fill = [&](uint64_t begin, uint64_t count, std::span<double> out) {
    for (uint64_t i = 0; i < count; ++i) {
      std::copy_n(probabilities.row(begin + i), keys, &out[i * keys]);
    }
  };
  return KeptComparison(probabilities.rows, keys, v, sets, gradients, figures).Run(fill, positions);
}

void AppendRows(const AttentionRows& from, AttentionRows& to) {
  const auto append = [](const auto& more, auto& all) {
    all.insert(all.end(), more.begin(), more.end());
  };
  using Rows = AttentionRows;
  for (const auto values : {&Rows::mass, &Rows::changed_mass, &Rows::kl, &Rows::js, &Rows::error2,
                            &Rows::norm2, &Rows::changed_norm2, &Rows::dot}) {
    append(from.*values, to.*values);
  }
  append(from.evicting, to.evicting);
  for (size_t i = 0; i < kTopK.size(); ++i) append(from.top_k[i], to.top_k[i]);
  to.log_p_change.resize(std::max(to.log_p_change.size(), from.log_p_change.size()));
  for (size_t i = 0; i < from.log_p_change.size(); ++i) {
    append(from.log_p_change[i], to.log_p_change[i]);
  }
}

// Collects figures of rows over heads and layers, and summarises them with standard errors.

namespace {

constexpr double kOutputEps = 1e-12;

bool Evicts(std::span<const AttentionRows> heads, uint64_t row) {
  return std::any_of(heads.begin(), heads.end(),
                     [&](const AttentionRows& head) { return head.evicting[row] != 0; });
}

}  // namespace

double OutputCosine(double error2, double norm2, double changed2, double dot) {
  if (error2 == 0) return 1;
  const double norms = std::sqrt(norm2) * std::sqrt(changed2);
  return norms > 0 || std::isnan(norms) ? dot / norms : 0;
}

void ClusterError::Add(uint64_t cluster, double value, double weight) {
  if (std::isnan(value)) return;
  if (sums_.size() <= cluster) sums_.resize(cluster + 1);
  sums_[cluster].value += value;
  sums_[cluster].weight += weight;
}

double ClusterError::Get(uint64_t clusters, uint64_t population) const {
  if (clusters >= population) return 0;
  if (clusters < 2) return std::numeric_limits<double>::quiet_NaN();
  double value = 0, weight = 0;
  for (const Sum& sum : sums_) {
    value += sum.value;
    weight += sum.weight;
  }
  const double mean = value / weight;  // a ratio of two sums, because clusters differ in size
  double squares = 0;
  for (const Sum& sum : sums_) {
    const double off = sum.value - mean * sum.weight;
    squares += off * off;
  }
  const auto n = static_cast<double>(clusters);
  const double variance = squares / (n - 1) * (1 - n / static_cast<double>(population)) / n;
  return std::sqrt(variance) / (weight / n);
}

RowOutput::RowOutput(std::span<const AttentionRows> heads, uint64_t row) {
  for (const AttentionRows& head : heads) {
    if (!head.has_output()) continue;
    error2 += head.error2[row];
    norm2 += head.norm2[row];
    changed2 += head.changed_norm2[row];
    dot += head.dot[row];
  }
}

double RowOutput::error() const {
  return std::sqrt(error2) / std::max(std::sqrt(norm2), kOutputEps);
}

void AttentionSamples::Pool::AddHead(const AttentionRows& head, std::span<const uint64_t> of) {
  for (const uint64_t row : of) {
    mass.Add(row, head.mass[row]);
    changed_mass.Add(row, head.changed_mass[row]);
    kl.Add(row, head.kl[row]);
    js.Add(row, head.js[row]);
    for (size_t i = 0; i < kTopK.size(); ++i) top_k[i].Add(row, head.top_k[i][row]);
  }
}

void AttentionSamples::Pool::AddRow(std::span<const AttentionRows> heads, uint64_t row) {
  ++rows;
  evicting_rows += Evicts(heads, row);
  bool undefined = std::any_of(heads.begin(), heads.end(), [&](const AttentionRows& head) {
    return std::isnan(head.mass[row]);
  });
  has_output = heads.front().has_output();
  if (has_output) {
    const RowOutput output(heads, row);
    output_error.Add(row, output.error());
    output_cosine.Add(row, output.cosine());
    const bool is_measured = std::isfinite(output.error2) && std::isfinite(output.norm2);
    undefined |= !is_measured;
    if (is_measured) {
      ++finite_outputs;
      error2 += output.error2;
      norm2 += output.norm2;
      squared_error.Add(row, output.error2, output.norm2);
    }
  }
  undefined_rows += undefined;
}

AttentionSummary AttentionSamples::Of(const Pool& pool) const {
  AttentionSummary out;
  out.rows = pool.rows;
  out.evicting_rows = pool.evicting_rows;
  out.undefined_rows = pool.undefined_rows;
  out.has_output = pool.has_output;
  const auto describe = [&](const Pooled& of, Distribution& figure, double& error) {
    figure = Describe(of.values);
    error = of.error.Get(clusters_, population_);
  };
  AttentionSummary::StandardErrors& errors = out.standard_error;
  describe(pool.mass, out.mass, errors.mass);
  out.changed_mass = Describe(pool.changed_mass.values);
  describe(pool.kl, out.kl, errors.kl);
  describe(pool.js, out.js, errors.js);
  for (size_t i = 0; i < kTopK.size(); ++i) {
    describe(pool.top_k[i], out.top_k[i], errors.top_k[i]);
  }
  describe(pool.output_error, out.output_error, errors.output_error);
  describe(pool.output_cosine, out.output_cosine, errors.output_cosine);
  if (pool.finite_outputs > 0) {
    out.output_error_frobenius =
        std::sqrt(pool.error2) / std::max(std::sqrt(pool.norm2), kOutputEps);
  }
  // Error of a root: d sqrt(x) = dx / (2 sqrt(x)).
  errors.output_error_frobenius =
      pool.error2 == 0
          ? 0
          : pool.squared_error.Get(clusters_, population_) / (2 * out.output_error_frobenius);
  return out;
}

void AttentionSamples::Add(std::span<const AttentionRows> heads) {
  if (!heads.empty()) Add(heads, 0, heads.front().rows());
}

void AttentionSamples::Add(std::span<const AttentionRows> heads, uint64_t begin, uint64_t end) {
  if (heads.empty()) return;
  clusters_ = std::max(clusters_, end);
  std::vector<uint64_t> rows(end - begin), evicting;
  std::iota(rows.begin(), rows.end(), begin);
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(evicting),
               [&](uint64_t row) { return Evicts(heads, row); });
  for (const AttentionRows& head : heads) {
    KV_ASSERT(begin <= end && end <= head.rows() &&
              head.has_output() == heads.front().has_output());
    all_.AddHead(head, rows);
    evicting_.AddHead(head, evicting);
  }
  for (const uint64_t row : rows) all_.AddRow(heads, row);
  for (const uint64_t row : evicting) evicting_.AddRow(heads, row);
}

}  // namespace kv
