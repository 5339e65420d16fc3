// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Replays CacheBlend's and LMCache's selection of tokens and blend, and measures what is left of
// the deviation for a curve of ratios.
#include "lib/engines/cacheblend/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/layout.h"

namespace kv::blend {
namespace {

// Sums the deviation of tokens that are not recomputed, in index order, so that equal inputs give
// equal bits.
double Left(const std::vector<double>& deviation, const std::vector<uint8_t>& recomputed) {
  double sum = 0;
  for (size_t t = 0; t < deviation.size(); ++t) {
    if (recomputed[t] == 0) sum += deviation[t];
  }
  return sum;
}

double Share(double part, double whole) { return part == 0 ? 0 : part / whole; }

// Returns the shares of a layer's deviation that lie in tokens which are not recomputed (one byte
// each).
Remaining ComputeRemaining(const LayerDeviation& layer, const std::vector<uint8_t>& recomputed) {
  return {Share(Left(layer.v.tokens, recomputed), layer.v.sum),
          Share(Left(layer.k.tokens, recomputed), layer.k.sum)};
}

// Averages over layers; attention figures are averaged over the layers that have them.
CurveLayer ComputeMean(const std::vector<CurveLayer>& layers) {
  CurveLayer mean;
  uint64_t with_attention = 0;
  AttentionError attention{0, 0, 0};
  for (const CurveLayer& layer : layers) {
    mean.v_sum += layer.v_sum;
    mean.k_sum += layer.k_sum;
    for (Remaining CurveLayer::*part : {&CurveLayer::selected, &CurveLayer::oracle,
                                        &CurveLayer::random, &CurveLayer::first_of_chunk}) {
      (mean.*part).v += (layer.*part).v;
      (mean.*part).k += (layer.*part).k;
    }
    if (!layer.attention) continue;
    ++with_attention;
    attention.dev_l2 += layer.attention->dev_l2;
    attention.out_rel_l2 += layer.attention->out_rel_l2;
    attention.out_cos_mean += layer.attention->out_cos_mean;
  }
  if (layers.empty()) return mean;
  const auto count = static_cast<double>(layers.size());
  mean.v_sum /= count;
  mean.k_sum /= count;
  for (Remaining CurveLayer::*part : {&CurveLayer::selected, &CurveLayer::oracle,
                                      &CurveLayer::random, &CurveLayer::first_of_chunk}) {
    (mean.*part).v /= count;
    (mean.*part).k /= count;
  }
  if (with_attention == 0) return mean;
  const auto rows = static_cast<double>(with_attention);
  mean.attention = AttentionError{attention.dev_l2 / rows, attention.out_rel_l2 / rows,
                                  attention.out_cos_mean / rows};
  return mean;
}

// Measures, for every requested ratio, how much of each blended layer's deviation is left, without
// attention figures. `rankings` has one entry per layer. `first_blended` is the index of the first
// layer that blending changes.
std::vector<CurvePoint> MeasureCurve(const std::vector<LayerDeviation>& layers,
                                     const std::vector<Ranking>& rankings,
                                     const std::vector<Chunk>& chunks, const Request& request,
                                     size_t check_place, size_t first_blended, uint64_t tokens,
                                     ThreadPool& pool) {
  const Ranking& check = rankings[check_place];
  const uint64_t scored = check.scores().size();
  const std::vector<uint32_t> random = RandomOrder(scored, request.seed);
  const std::vector<uint32_t> first = MakeFirstOfChunkOrder(chunks, scored);
  std::vector<CurvePoint> curve;
  for (const double ratio : request.ratios) {
    CurvePoint point;
    point.ratio = ratio;
    const uint64_t k = TopCount(scored, ratio);
    // LMCache's blender leaves tokens after the scored ones to the engine.
    point.selection = check.Select(k, request.engine == Engine::kLmCache ? scored : tokens);
    const auto blended = static_cast<double>(layers.size() - 1 - check_place);
    const double rows = static_cast<double>(k + tokens - scored) / static_cast<double>(tokens);
    point.compute_share = (static_cast<double>(check_place + 1) + blended * rows) /
                          static_cast<double>(layers.size());
    const std::vector<uint8_t> selected = Recomputed(check.order(), k, scored, tokens);
    const std::vector<uint8_t> at_random = Recomputed(random, k, scored, tokens);
    const std::vector<uint8_t> at_starts = Recomputed(first, k, scored, tokens);
    point.layers.resize(layers.size() - first_blended);
    pool.ParallelFor(point.layers.size(), [&](uint64_t i) {
      const LayerDeviation& layer = layers[first_blended + i];
      CurveLayer& out = point.layers[i];
      out.layer = layer.layer;
      out.v_sum = Left(layer.v.tokens, selected);
      out.k_sum = Left(layer.k.tokens, selected);
      out.selected = {Share(out.v_sum, layer.v.sum), Share(out.k_sum, layer.k.sum)};
      out.oracle = ComputeRemaining(
          layer, Recomputed(rankings[first_blended + i].order(), k, scored, tokens));
      out.random = ComputeRemaining(layer, at_random);
      out.first_of_chunk = ComputeRemaining(layer, at_starts);
    });
    point.mean = ComputeMean(point.layers);
    curve.push_back(std::move(point));
  }
  return curve;
}

class Replayer {
 public:
  Replayer(const CachePair& caches, const AttentionTrace* trace, const Request& request,
           ThreadPool& pool, Progress* progress)
      : caches_(caches), trace_(trace), pool_(pool), progress_(progress) {
    result_.request = request;
    result_.tokens = caches.tokens();
    result_.covered = caches.covered();
  }

  Result Run() {
    FindCheckLayer();
    scored_ = is_lmcache() ? result_.covered : result_.tokens - request().suffix;
    result_.layers = MeasureDeviations(caches_, pool_, progress_);
    RankLayers();
    Select();
    first_blended_ = result_.check_place + (is_lmcache() ? 0 : 1);
    result_.curve = MeasureCurve(result_.layers, rankings_, caches_.old().chunks, request(),
                                 result_.check_place, first_blended_, result_.tokens, pool_);
    CheckEnds();
    if (!request().filters.empty()) FilterOn();
    if (trace_ != nullptr) AddAttention();
    AddFaults();
    for (std::string& text : DiagnoseFirstLayer(caches_, result_.layers.front())) {
      result_.warnings.push_back(std::move(text));
    }
    return std::move(result_);
  }

 private:
  const Request& request() const { return result_.request; }
  bool is_lmcache() const { return request().engine == Engine::kLmCache; }
  // Returns the number of keys that partial queries are aligned to.
  uint64_t keys() const { return is_lmcache() ? result_.covered : result_.tokens; }

  void FindCheckLayer() {
    RequireSuffix(result_.tokens, request().suffix);
    const auto place = caches_.Place(request().check_layer);
    if (!place) {
      throw Error(Finding::kUsage, "--check-layer {}: the snapshot has layers {} to {}",
                  request().check_layer, caches_.layers().front().index,
                  caches_.layers().back().index);
    }
    result_.check_place = *place;
    if (*place + 1 == caches_.layers().size() && !is_lmcache()) {
      throw Error(Finding::kUsage, "--check-layer {}: no layer comes after it, nothing is blended",
                  request().check_layer);
    }
    if (request().check_layer == 0) {
      result_.warnings.push_back(
          "check layer 0: V of layer 0 depends on the token alone, so nothing deviates there and "
          "the choice is arbitrary");
    }
  }

  std::vector<double> ListDeviations(const LayerDeviation& layer) const {
    std::vector<double> sums(layer.v.tokens.begin(),
                             layer.v.tokens.begin() + static_cast<std::ptrdiff_t>(scored_));
    for (size_t t = 0; t < sums.size(); ++t) {
      if (request().score == ScoreRule::kK) sums[t] = layer.k.tokens[t];
      if (request().score == ScoreRule::kKAndV) sums[t] += layer.k.tokens[t];
    }
    return sums;
  }

  // Returns true if the layer deviates by no more than the rounding of its storage.
  bool IsRounding(const LayerDeviation& layer) const {
    const double most = caches_.dtype() == DType::kBF16 ? 8e-3 : 1e-3;
    const bool v = layer.v.relative() <= most, k = layer.k.relative() <= most;
    return request().score == ScoreRule::kV ? v : request().score == ScoreRule::kK ? k : v && k;
  }

  void RankLayers() {
    rankings_.reserve(result_.layers.size());
    std::vector<std::optional<Ranking>> made(result_.layers.size());
    pool_.ParallelFor(result_.layers.size(), [&](uint64_t i) {
      const std::vector<double> deviation = ListDeviations(result_.layers[i]);
      std::vector<float> scores(deviation.size());
      for (size_t t = 0; t < scores.size(); ++t) scores[t] = static_cast<float>(deviation[t]);
      made[i].emplace(std::move(scores));
    });
    for (std::optional<Ranking>& ranking : made) rankings_.push_back(std::move(*ranking));
    if (request().emulate) {
      rankings_[result_.check_place] =
          Ranking(ScoresInDtype(caches_, result_.check_place, scored_, *request().emulate, pool_));
    }
    const uint64_t k = TopCount(scored_, request().ratio);
    const Ranking& check = rankings_[result_.check_place];
    result_.ranks.resize(result_.layers.size());
    pool_.ParallelFor(result_.layers.size(), [&](uint64_t i) {
      if (IsRounding(result_.layers[i])) return;
      result_.ranks[i].with_check = MeasureOverlap(rankings_[i].order(), check.order(), k);
      if (i == 0 || IsRounding(result_.layers[i - 1])) return;
      result_.ranks[i].spearman_prev =
          Spearman(ListDeviations(result_.layers[i - 1]), ListDeviations(result_.layers[i]));
    });
  }

  void Select() {
    const Ranking& check = rankings_[result_.check_place];
    const uint64_t k = TopCount(scored_, request().ratio);
    result_.selection = check.Select(k, is_lmcache() ? scored_ : result_.tokens);
    result_.nonfinite = check.nonfinite();
    if (request().check_layer != 0 && IsRounding(result_.layers[result_.check_place])) {
      result_.warnings.push_back(
          fmt::format("layer {} deviates by rounding only: there is nothing to blend, and the "
                      "choice is arbitrary",
                      request().check_layer));
    }
    if (result_.nonfinite > 0) {
      result_.warnings.push_back(
          fmt::format("{} of {} scores are not finite; they rank first, NaN before infinity, as "
                      "torch ranks them",
                      result_.nonfinite, scored_));
    }
    result_.chunk_selected.resize(caches_.old().chunks.size());
    for (uint64_t i = 0; i < k; ++i) ++result_.chunk_selected[ChunkIndex(check.order()[i])];
  }

  void FilterOn() {
    const auto check = rankings_[result_.check_place].order();
    std::vector<uint32_t> kept(check.begin(),
                               check.begin() + static_cast<std::ptrdiff_t>(result_.selection.topk));
    size_t before = result_.check_place;
    double ratio = request().ratio;
    for (const Filter& filter : request().filters) {
      const auto place = caches_.Place(filter.layer);
      if (!place || *place <= before || *place + 1 == result_.layers.size()) {
        throw Error(Finding::kUsage,
                    "--check-layer {}: later check layers must be above layer {} and leave a layer "
                    "after them",
                    filter.layer, result_.layers[before].layer);
      }
      if (filter.ratio > ratio) {
        throw Error(Finding::kUsage,
                    "--recompute-share {} at layer {}: a later check layer keeps no more than the "
                    "one before, {}",
                    filter.ratio, filter.layer, ratio);
      }
      const auto order = rankings_[*place].order();
      std::vector<uint8_t> is_kept(scored_);
      for (const uint32_t token : kept) is_kept[token] = 1;
      kept.clear();
      const uint64_t topk = TopCount(scored_, filter.ratio);
      for (size_t i = 0; i < order.size() && kept.size() < topk; ++i) {
        if (is_kept[order[i]] != 0) kept.push_back(order[i]);
      }
      std::vector<uint64_t> indices(kept.begin(), kept.end());
      std::sort(indices.begin(), indices.end());
      const uint64_t last = is_lmcache() ? scored_ : result_.tokens;
      for (uint64_t t = scored_; t < last; ++t) indices.push_back(t);
      result_.filtered.push_back({filter, *place, kept.size(), std::move(indices)});
      before = *place;
      ratio = filter.ratio;
    }
    MeasureFiltered();
  }

  void MeasureFiltered() {
    const auto layers = static_cast<double>(result_.layers.size());
    double rows = static_cast<double>(result_.check_place + 1);
    for (size_t i = first_blended_; i < result_.layers.size(); ++i) {
      std::vector<uint8_t> recomputed(result_.tokens);
      for (const uint64_t t : result_.IndicesAt(i)) recomputed[t] = 1;
      const auto uncovered = recomputed.begin() + static_cast<std::ptrdiff_t>(scored_);
      std::fill(uncovered, recomputed.end(), 1);
      const Remaining left = ComputeRemaining(result_.layers[i], recomputed);
      const auto blended = static_cast<double>(result_.layers.size() - first_blended_);
      result_.filtered_left.v += left.v / blended;
      result_.filtered_left.k += left.k / blended;
      if (i > result_.check_place) {
        rows += static_cast<double>(std::count(recomputed.begin(), recomputed.end(), 1)) /
                static_cast<double>(result_.tokens);
      }
    }
    result_.filtered_compute_share = rows / layers;
    result_.faults.push_back({"later_check_layers",
                              "check_layers: at a second check layer CacheBlend's code compares "
                              "different numbers of rows and stops, and LMCache reads only the "
                              "first entry of each list; here later layers filter, as in the paper",
                              std::nullopt});
    if (trace_ != nullptr) {
      result_.warnings.push_back("attention figures are those of the first check layer's choice");
    }
  }

  size_t ChunkIndex(uint64_t token) const {
    const std::vector<Chunk>& chunks = caches_.old().chunks;
    const auto after = std::upper_bound(chunks.begin(), chunks.end(), token,
                                        [](uint64_t t, const Chunk& c) { return t < c.start; });
    return static_cast<size_t>(after - chunks.begin()) - 1;
  }

  // Checks that ratio 1 leaves no deviation.
  void CheckEnds() const {
    for (const CurvePoint& point : result_.curve) {
      if (point.ratio == 1) KV_ASSERT(point.mean.v_sum == 0 && point.mean.k_sum == 0);
    }
  }

  void AddAttention() {
    if (trace_->level != TraceLevel::kQueries) {
      result_.warnings.push_back(
          fmt::format("{}: attention over blended keys needs queries, the trace has {}",
                      trace_->path, Name(trace_->level)));
      return;
    }
    const uint64_t first = result_.tokens - request().suffix;
    const auto has = [&](uint64_t t) { return QueryRows{trace_, nullptr}.Has(t); };
    const bool suffix = request().suffix > 0 && has(first) && has(result_.tokens - 1);
    if (!suffix) {
      result_.warnings.push_back(
          request().suffix == 0
              ? std::string("no suffix: there are no query rows whose attention could be measured")
              : fmt::format("{}: rows {} to {} do not hold the suffix, positions {} to {}",
                            trace_->path, trace_->q_start, trace_->end_position() - 1, first,
                            result_.tokens - 1));
    }
    const std::vector<uint64_t>& imp = result_.selection.indices;
    const bool leak = std::all_of(imp.begin(), imp.end(), has) && !imp.empty();
    std::vector<std::vector<uint8_t>> recomputed;
    for (const CurvePoint& point : result_.curve) {
      recomputed.push_back(Recomputed(rankings_[result_.check_place].order(), point.selection.topk,
                                      scored_, result_.tokens));
    }
    for (size_t i = first_blended_; i < result_.layers.size(); ++i) {
      const TraceLayer* rows = trace_->Find(result_.layers[i].layer);
      if (rows != nullptr && rows->queries) {
        const QueryRows queries{trace_, rows};
        if (suffix) AddSuffixAttention(queries, i, first, recomputed);
        if (leak) {
          result_.leaks.push_back(
              {result_.layers[i].layer,
               MeasureLeak(caches_, queries, i, imp, keys(), request().mask, pool_)});
        }
      }
      caches_.Drop(i);
    }
    for (CurvePoint& point : result_.curve) point.mean = ComputeMean(point.layers);
  }

  void AddSuffixAttention(const QueryRows& queries, size_t layer, uint64_t first,
                          const std::vector<std::vector<uint8_t>>& recomputed) {
    const std::vector<AttentionError> errors =
        MeasureAttention(caches_, queries, layer, first, recomputed, pool_);
    for (size_t p = 0; p < errors.size(); ++p) {
      result_.curve[p].layers[layer - first_blended_].attention = errors[p];
    }
    result_.has_attention = true;
  }

  void AddFaults() {
    const std::vector<uint64_t>& imp = result_.selection.indices;
    const std::vector<uint64_t> extra = ExtraKeys(imp, keys());
    double sum = 0;
    for (const uint64_t keys : extra) sum += static_cast<double>(keys);
    if (!extra.empty()) result_.extra_keys_mean = sum / static_cast<double>(extra.size());
    if (!is_lmcache()) AddSuffixFaults();
    if (sum > 0) {
      result_.faults.push_back(
          {"future_keys",
           fmt::format("the mask is aligned to the bottom right: {} of {} recomputed queries see "
                       "keys of their future, {:.1f} on average",
                       std::count_if(extra.begin(), extra.end(), [](uint64_t e) { return e > 0; }),
                       extra.size(), result_.extra_keys_mean),
           result_.extra_keys_mean});
    }
    if (caches_.old().state == KeyState::kUnrotated && !is_lmcache()) {
      const size_t place = std::min(result_.check_place + 1, result_.layers.size() - 1);
      const double error = DoubleRotationError(caches_, place, pool_);
      result_.faults.push_back(
          {"double_rotation",
           fmt::format("keys are rotated in place: a second run on the same object would rotate "
                       "them twice, a relative error of {:.3g} in K of layer {}",
                       error, result_.layers[place].layer),
           error});
    }
    if (is_lmcache()) AddBufferFault();
  }

  void AddSuffixFaults() {
    if (request().suffix == 0) {
      result_.faults.push_back({"suffix_len_zero",
                                "suffix_len 0: CacheBlend's code slices [:-0], has nothing to "
                                "score and stops; here every token is scored and none is forced",
                                std::nullopt});
      return;
    }
    // Three of the four example scripts measure the length of a list with one element, so their
    // suffix is 1.
    if (request().suffix == 1 || result_.covered < result_.tokens || request().emulate) return;
    const LayerDeviation& check = result_.layers[result_.check_place];
    std::vector<float> scores;
    for (uint64_t t = 0; t + 1 < result_.tokens; ++t) {
      scores.push_back(static_cast<float>(
          check.v.tokens[t] + (request().score == ScoreRule::kKAndV ? check.k.tokens[t] : 0)));
    }
    const Ranking ranking(std::move(scores));
    const uint64_t k = TopCount(result_.tokens - 1, request().ratio);
    uint64_t in_suffix = 0;
    for (uint64_t i = 0; i < k; ++i) in_suffix += ranking.order()[i] >= scored_;
    if (k == 0) return;
    const double share = static_cast<double>(in_suffix) / static_cast<double>(k);
    result_.faults.push_back(
        {"suffix_len_one",
         fmt::format("three of CacheBlend's four scripts always recompute only the last token, not "
                     "the last {}: then {} of the {} chosen tokens are from the question, and {} "
                     "of the question's tokens keep their old values",
                     request().suffix, in_suffix, k, request().suffix - 1 - in_suffix),
         share});
  }

  // Notes a fault of LMCache: it computes the layers before the check layer and does not store
  // them.
  void AddBufferFault() {
    for (size_t i = 0; i < result_.check_place; ++i) {
      if (IsRounding(result_.layers[i])) continue;
      result_.faults.push_back({"old_layers_kept",
                                fmt::format("layer {} comes before the check layer: it is computed "
                                            "anew but its old K and V stay in the buffer",
                                            result_.layers[i].layer),
                                result_.layers[i].v.relative()});
    }
  }

  const CachePair& caches_;
  const AttentionTrace* trace_;
  ThreadPool& pool_;
  Progress* progress_;
  Result result_;
  uint64_t scored_ = 0;
  size_t first_blended_ = 0;
  std::vector<Ranking> rankings_;
};

}  // namespace

std::vector<uint32_t> RandomOrder(uint64_t scored, uint64_t seed) {
  std::vector<uint32_t> order(scored);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed);
  // std::shuffle is not used, because its choices differ between standard libraries.
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

std::vector<uint32_t> MakeFirstOfChunkOrder(const std::vector<Chunk>& chunks, uint64_t scored) {
  std::vector<uint32_t> order;
  for (uint64_t i = 0; order.size() < scored; ++i) {
    const size_t before = order.size();
    for (const Chunk& chunk : chunks) {
      const uint64_t t = chunk.start + i;
      if (i < chunk.tokens && t < scored) order.push_back(static_cast<uint32_t>(t));
    }
    if (order.size() == before) break;
  }
  return order;
}

std::vector<uint8_t> Recomputed(std::span<const uint32_t> order, uint64_t k, uint64_t scored,
                                uint64_t tokens) {
  std::vector<uint8_t> recomputed(tokens);
  for (uint64_t i = 0; i < std::min<uint64_t>(k, order.size()); ++i) recomputed[order[i]] = 1;
  std::fill(recomputed.begin() + static_cast<std::ptrdiff_t>(scored), recomputed.end(), 1);
  return recomputed;
}

std::string_view Name(Engine engine) {
  return engine == Engine::kCacheBlend ? "cacheblend" : "lmcache";
}

std::string_view VariantName(const Request& request) {
  if (request.score == ScoreRule::kKAndV) return "k+v";
  if (request.engine == Engine::kLmCache)
    return request.score == ScoreRule::kK ? "lmcache-k" : "lmcache-v";
  return request.score == ScoreRule::kV ? "cacheblend-v" : "cacheblend-k";
}

std::string_view Name(Mask mask) { return mask == Mask::kExact ? "exact" : "bottom-right"; }

const std::vector<uint64_t>& Result::IndicesAt(size_t place) const {
  const std::vector<uint64_t>* indices = &selection.indices;
  for (const Filtered& later : filtered) {
    if (later.place < place) indices = &later.indices;
  }
  return *indices;
}

const CurvePoint& Result::main() const {
  for (const CurvePoint& point : curve) {
    if (point.ratio == request.ratio) return point;
  }
  AssertionFailed("the ratio is on the curve", __FILE__, __LINE__);
}

Result Replay(const CachePair& caches, const AttentionTrace* trace, const Request& request,
              ThreadPool& pool, Progress* progress) {
  return Replayer(caches, trace, request, pool, progress).Run();
}

namespace {

constexpr uint64_t kBlockTokens = 256;  // rows read at once

bool IsPlainFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// Returns all rows of one tensor, [token][head][dim]: rows of the full run where `recomputed` is 1,
// the chunks' rows elsewhere.
Bytes BlendRows(const CachePair& caches, size_t layer, bool is_value, DType dtype,
                const std::vector<uint8_t>& recomputed) {
  const uint64_t channels = caches.layers()[layer].channels(is_value), tokens = caches.tokens();
  const uint64_t width = Info(dtype).block_bytes;
  Bytes rows(CheckedProduct({tokens, channels, width}, "blended rows"));
  std::vector<float> full(kBlockTokens * channels), old(kBlockTokens * channels);
  for (uint64_t begin = 0; begin < tokens; begin += kBlockTokens) {
    const uint64_t count = std::min(kBlockTokens, tokens - begin);
    caches.ReadFull(layer, is_value, begin, count, full.data());
    caches.ReadOld(layer, is_value, begin, count, old.data());
    for (uint64_t t = 0; t < count; ++t) {
      if (recomputed[begin + t] == 0) continue;
      std::copy_n(&full[t * channels], channels, &old[t * channels]);
    }
    FromFloats(dtype, std::span(old).first(count * channels), &rows[begin * channels * width]);
  }
  return rows;
}

// Returns which tokens are exact in a layer: in CacheBlend all of them up to the check layer; in
// LMCache none before it, because its buffer keeps the old rows there.
std::vector<uint8_t> RecomputedIn(const CachePair& caches, const Result& result, size_t layer) {
  std::vector<uint8_t> recomputed(caches.tokens());
  const auto covered = recomputed.begin() + static_cast<std::ptrdiff_t>(caches.covered());
  std::fill(covered, recomputed.end(), 1);  // tokens that no chunk covers are recomputed
  const bool is_lmcache = result.request.engine == Engine::kLmCache;
  if (!is_lmcache && layer <= result.check_place) {
    std::fill(recomputed.begin(), recomputed.end(), 1);
  } else if (layer >= result.check_place) {
    for (const uint64_t t : result.IndicesAt(layer)) recomputed[t] = 1;
  }
  return recomputed;
}

}  // namespace

Snapshot BlendedCache(const CachePair& caches, const Result& result, ThreadPool& pool) {
  Snapshot blended = *caches.full().rows.parts().front().snapshot;
  blended.stored.clear();
  blended.checks.clear();
  blended.notes.clear();
  blended.key_rotation = KeyRotation::kRotated;
  blended.k_hadamard = blended.v_hadamard = HadamardState::kNo;
  const size_t first = blended.spools.size(), layers = blended.layers.size();
  blended.spools.resize(first + 2 * layers);
  pool.ParallelFor(2 * layers, [&](uint64_t i) {
    const size_t layer = i / 2;
    const bool is_value = i % 2 != 0;
    LayerKv& kv = blended.layers[layer];
    KvTensor& tensor = is_value ? *kv.v : kv.k;
    const DType dtype = IsPlainFloat(tensor.dtype) ? tensor.dtype : DType::kF32;
    auto& spool = blended.spools[first + i];
    spool = FileSource::FromBytes(
        BlendRows(caches, layer, is_value, dtype, RecomputedIn(caches, result, layer)),
        "blended rows");
    tensor = ContiguousTensor(spool->bytes().data(), dtype, caches.tokens(), tensor.heads,
                              tensor.head_dim, Order::kTokenHeadDim);
  });
  return blended;
}

}  // namespace kv::blend
