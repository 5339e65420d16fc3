// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// A greedy path from the whole cache to the smallest one, by loss per byte saved.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "lib/study/quantisation/replay.h"

namespace kv::quantisation {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Computes the loss of a choice, and of the choice with one layer changed.
class LossOfChoice {
 public:
  virtual ~LossOfChoice() = default;
  virtual double With(size_t layer, size_t from, size_t to) const = 0;
  virtual void Move(size_t layer, size_t from, size_t to) = 0;
};

// Loss that is a sum over layers.
class AddedLoss : public LossOfChoice {
 public:
  explicit AddedLoss(const ReplayResult& result) {
    const bool weighs = result.kl_method == eviction::KlMethod::kSensitivity;
    for (const LayerFigures& layer : result.layers) {
      const auto weight = result.weights.find(layer.layer);
      const double factor = !weighs ? 1 / static_cast<double>(result.layers.size())
                            : weight == result.weights.end() ? 0
                                                             : 2 * weight->second;
      std::vector<double>& losses = loss_.emplace_back();
      for (const PairFigures& figures : layer.all) {
        const double loss = factor * figures.one_minus_cosine;
        losses.push_back(std::isfinite(loss) ? loss : kNever);
      }
      total_ += losses.front();
    }
  }
  double With(size_t layer, size_t from, size_t to) const override {
    return total_ - loss_[layer][from] + loss_[layer][to];
  }
  void Move(size_t layer, size_t from, size_t to) override { total_ = With(layer, from, to); }

 private:
  std::vector<std::vector<double>> loss_;  // [layer][pair]
  double total_ = 0;
};

// Half of the mean of squared changes of log probabilities, to which all layers contribute
// together.
class FisherLoss : public LossOfChoice {
 public:
  explicit FisherLoss(const ReplayResult& result) {
    const size_t count = result.layers.front().changes.front().values.size();
    // 1 for rows that have a gradient.
    std::vector<uint8_t> is_there(count, 1);
    for (const LayerFigures& layer : result.layers) {
      for (size_t i = 0; i < count; ++i)
        is_there[i] = is_there[i] && std::isfinite(layer.changes.front().values[i]);
    }
    for (size_t i = 0; i < count; ++i) {
      if (is_there[i]) there_.push_back(i);
    }
    sum_.assign(there_.size(), 0.0);
    for (const LayerFigures& layer : result.layers) {
      std::vector<std::vector<double>>& of_layer = change_.emplace_back();
      for (const eviction::LogPChange& change : layer.changes) {
        std::vector<double>& values = of_layer.emplace_back();
        for (const size_t i : there_) values.push_back(change.values[i]);
      }
      for (size_t i = 0; i < sum_.size(); ++i) sum_[i] += of_layer.front()[i];
    }
  }
  double With(size_t layer, size_t from, size_t to) const override {
    if (sum_.empty()) return kNever;  // without gradients, the loss of a type is unknown
    const std::vector<double>&old = change_[layer][from], &other = change_[layer][to];
    double squares = 0;
    for (size_t i = 0; i < sum_.size(); ++i) {
      const double change = sum_[i] - old[i] + other[i];
      squares += change * change;
    }
    const double loss = squares / (2 * static_cast<double>(sum_.size()));
    return std::isfinite(loss) ? loss : kNever;
  }
  void Move(size_t layer, size_t from, size_t to) override {
    for (size_t i = 0; i < sum_.size(); ++i)
      sum_[i] += change_[layer][to][i] - change_[layer][from][i];
  }

 private:
  std::vector<size_t> there_;
  std::vector<std::vector<std::vector<double>>> change_;  // [layer][pair]
  std::vector<double> sum_;
};

std::unique_ptr<LossOfChoice> MakeLoss(const ReplayResult& result) {
  if (result.kl_method == eviction::KlMethod::kGradients)
    return std::make_unique<FisherLoss>(result);
  return std::make_unique<AddedLoss>(result);
}

double BytesOf(const ReplayResult& result, const std::vector<size_t>& choice) {
  double bytes = result.missing_bytes;
  for (size_t l = 0; l < choice.size(); ++l)
    bytes += result.layers[l].BytesOf(result.pairs[choice[l]]);
  return bytes;
}

std::vector<SearchPoint> Path(const ReplayResult& result) {
  const std::unique_ptr<LossOfChoice> losses = MakeLoss(result);
  SearchPoint at{std::vector<size_t>(result.layers.size(), 0), 0, 0};
  at.bytes = BytesOf(result, at.choice);
  at.loss = losses->With(0, 0, 0);
  std::vector<SearchPoint> path = {at};
  for (;;) {
    double best_price = kNever, best_loss = 0, best_bytes = 0;
    size_t best_layer = 0, best_pair = 0;
    for (size_t l = 0; l < result.layers.size(); ++l) {
      const double now = result.layers[l].BytesOf(result.pairs[at.choice[l]]);
      for (size_t pair = 0; pair < result.pairs.size(); ++pair) {
        const double saved = now - result.layers[l].BytesOf(result.pairs[pair]);
        if (saved <= 0) continue;
        const double loss = losses->With(l, at.choice[l], pair);
        const double price = (loss - at.loss) / saved;
        if (!(price < best_price)) continue;  // NaN: one of the two losses is unknown
        best_price = price;
        best_loss = loss;
        best_bytes = saved;
        best_layer = l;
        best_pair = pair;
      }
    }
    if (best_bytes == 0) return path;
    losses->Move(best_layer, at.choice[best_layer], best_pair);
    at.choice[best_layer] = best_pair;
    at.bytes -= best_bytes;
    at.loss = best_loss;
    path.push_back(at);
  }
}

// Returns the point at which all layers have the same pair.
SearchPoint EvaluateUniform(const ReplayResult& result, size_t pair) {
  const std::vector<size_t> choice(result.layers.size(), pair);
  const Outcome outcome = Evaluate(result, choice);
  const double loss = outcome.kl ? outcome.kl->nats : outcome.mean.one_minus_cosine;
  return {choice, outcome.bytes, std::isfinite(loss) ? loss : kNever};
}

}  // namespace

SearchResult Search(const ReplayResult& result, const SearchLimits& limits,
                    const std::vector<bool>& has_flags) {
  SearchResult found;
  found.is_nats = result.kl_method.has_value();
  found.path = Path(result);
  const double tokens = static_cast<double>(result.tokens);
  const auto is_within = [&](const SearchPoint& point) {
    return (!limits.loss || point.loss <= *limits.loss) &&
           (!limits.bytes_per_token || point.bytes / tokens <= *limits.bytes_per_token);
  };
  // Within a limit on the loss fewer bytes are better, within a limit on bytes alone less loss.
  const auto is_better = [&](const SearchPoint& a, const SearchPoint& b) {
    if (limits.loss) return a.bytes != b.bytes ? a.bytes < b.bytes : a.loss < b.loss;
    return a.loss != b.loss ? a.loss < b.loss : a.bytes < b.bytes;
  };
  for (const SearchPoint& point : found.path) {
    if (is_within(point) && (!found.best || is_better(point, *found.best))) found.best = point;
  }
  for (size_t pair = 0; pair < result.pairs.size(); ++pair) {
    const SearchPoint& point = found.uniform.emplace_back(EvaluateUniform(result, pair));
    if (!is_within(point)) continue;
    const auto take = [&](std::optional<size_t>& best) {
      if (!best || is_better(point, found.uniform[*best])) best = pair;
    };
    take(found.best_uniform);
    if (has_flags[pair]) take(found.best_with_flags);
  }
  // The best uniform choice is a candidate, too, because it may not lie on the path.
  if (found.best_uniform &&
      (!found.best || is_better(found.uniform[*found.best_uniform], *found.best)))
    found.best = found.uniform[*found.best_uniform];
  return found;
}

}  // namespace kv::quantisation
