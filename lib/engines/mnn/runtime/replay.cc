// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Replays decoding token by token: runtime, eviction and attention in the order of the engine's
// layer calls, and the figures that result.
#include "lib/engines/mnn/runtime/replay.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/error.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/cast.h"
#include "lib/engines/mnn/h2o/mnn_replay.h"
#include "lib/study/attention/layer_attention.h"

namespace kv::mnn::runtime {
namespace {

// A trigger length that no cache reaches, so that H2O never triggers.
constexpr int64_t kNever = int64_t{1} << 40;
constexpr int64_t kMostThreads = 256;
constexpr uint64_t kCacheShare = 16;  // by default decoded ranges get 1/16 of the cache's size

bool AllStorable(const Snapshot& snapshot) {
  const auto is_storable = [](DType dtype) {
    return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32;
  };
  return std::all_of(snapshot.layers.begin(), snapshot.layers.end(), [&](const LayerKv& layer) {
    return is_storable(layer.k.dtype) && (!layer.v || is_storable(layer.v->dtype));
  });
}

constexpr uint64_t kTileTokens = 64;  // tokens whose values are widened at once
// Multiplications of one call from which threads pay.
constexpr uint64_t kWorthThreads = uint64_t{1} << 20;

// Computes the attention of one decode step over a layer's cache as the runtime holds it, so that
// everything the runtime lost is missing here too. Recorded queries attend to the cache itself;
// recorded probabilities and block scores are used unchanged; without any of these, all keys weigh
// the same.
class AttentionStep {
 public:
  // `trace` may be null. The snapshot is the one that the runtime reads.
  AttentionStep(const Snapshot& snapshot, const AttentionTrace* trace, WeightRule weights,
                const eviction::BlockConfig& h2o, uint64_t prompt, ThreadPool& pool)
      : weights_(weights), block_tokens_(static_cast<uint64_t>(h2o.block_tokens)), pool_(pool) {
    layers_.resize(snapshot.layers.size());
    if (trace == nullptr) return;
    if (trace->block_scores) {
      recorded_ = mnn::h2o::StreamBlockSums(trace->block_scores->open(),
                                            trace->block_scores->layers, prompt);
      return;
    }
    std::vector<uint32_t> places;
    for (size_t i = 0; i < snapshot.layers.size(); ++i) {
      const LayerKv& layer = snapshot.layers[i];
      const TraceLayer* rows = trace->Find(layer.index);
      if (rows == nullptr) continue;
      if (rows->queries) {
        layers_[i] = std::make_unique<LayerAttention>(*trace, *rows, layer);
        has_queries_ = true;
      } else {
        traced_.emplace_back(*trace, *rows, layer);
        places.push_back(static_cast<uint32_t>(i));
      }
    }
    if (!traced_.empty()) {
      recorded_ = mnn::h2o::TraceBlockSums(traced_, places, block_tokens_, weights, pool);
    }
  }

  // Attends and returns the block sums that H2O needs of a layer in its range. Returns nothing once
  // a recorded stream has ended.
  std::optional<std::vector<float>> Score(const mnn::h2o::CallStart& start, uint64_t position,
                                          uint64_t blocks, Runtime& runtime) {
    std::vector<float> sums(start.in_range ? blocks : 0);
    if (layers_[start.layer] != nullptr) {
      Attend(start.layer, position, runtime, start.in_range ? &sums : nullptr);
      return sums;
    }
    if (recorded_ != nullptr) return recorded_->Sums(start, blocks, position);
    return sums;
  }

  // Attends, and sums the weights per block if `sums` is not null.
  void Attend(uint32_t layer, uint64_t position, Runtime& runtime, std::vector<float>* sums) {
    if (layers_[layer] == nullptr) return;
    const Stopwatch watch;
    const LayerAttention& attention = *layers_[layer];
    const std::span<const uint32_t> positions = runtime.positions(layer);
    const uint32_t heads = attention.query_heads();
    const uint64_t dim = attention.head_dim();
    length_ = positions.size();
    queries_.resize(heads * dim);
    logits_.resize(heads * length_);
    for (uint32_t head = 0; head < heads; ++head) {
      ReadQueries(attention.rows(), head, position - attention.first_row(), 1,
                  &queries_[head * dim]);
    }
    runtime.Visit(layer, false, [&](const CachePiece& piece) { Logits(attention, piece); });
    for (uint32_t head = 0; head < heads; ++head) {
      float* row = &logits_[head * length_];
      attention.Mask(position, positions, row);
      if (sums != nullptr) {
        weights_row_.assign(row, row + length_);
        WeighRow(weights_row_.data(), length_, weights_);
        AddInOrder(weights_row_.data(), length_, block_tokens_, sums->data());
      }
      WeighRow(row, length_, WeightRule::kSoftmax);
    }
    if (attention.kv().v) {
      outputs_.assign(heads * uint64_t{attention.kv().v->head_dim}, 0.0f);
      value_tiles_.resize(attention.kv_heads());
      runtime.Visit(layer, true, [&](const CachePiece& piece) { AddValues(attention, piece); });
    }
    seconds_ += watch.seconds();
  }

  bool has_queries() const { return has_queries_; }
  // Returns the time spent computing, including the runtime's reads.
  double seconds() const { return seconds_; }

 private:
  // Runs the body for each kv head, on all threads if the work is large enough.
  void ForHeads(const LayerAttention& attention, uint64_t tokens,
                const std::function<void(uint64_t)>& body) {
    if (tokens * attention.query_heads() * attention.head_dim() >= kWorthThreads) {
      pool_.ParallelFor(attention.kv_heads(), body);
    } else {
      for (uint64_t head = 0; head < attention.kv_heads(); ++head) body(head);
    }
  }

  void Logits(const LayerAttention& attention, const CachePiece& piece) {
    const uint64_t dim = attention.head_dim(), group = attention.group();
    ForHeads(attention, piece.tokens, [&](uint64_t kv_head) {
      const KeyRows rows{piece.data + kv_head * piece.head_step, attention.key_type(),
                         piece.token_step, piece.tokens, dim};
      for (uint64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        QueryLogits(&queries_[head * dim], rows, attention.scale(),
                    &logits_[head * length_ + piece.begin]);
      }
    });
  }

  void AddValues(const LayerAttention& attention, const CachePiece& piece) {
    const KvTensor& v = *attention.kv().v;
    const uint64_t dim = v.head_dim, group = attention.group();
    ForHeads(attention, piece.tokens, [&](uint64_t kv_head) {
      std::vector<float>& tile = value_tiles_[kv_head];
      tile.resize(kTileTokens * dim);
      for (uint64_t begin = 0; begin < piece.tokens; begin += kTileTokens) {
        const uint64_t tokens = std::min(kTileTokens, piece.tokens - begin);
        for (uint64_t t = 0; t < tokens; ++t) {
          const std::byte* row =
              piece.data + kv_head * piece.head_step + (begin + t) * piece.token_step;
          ToFloats(v.dtype, {row, dim * v.unit_bytes()}, {&tile[t * dim], dim});
        }
        for (uint64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
          const float* weights = &logits_[head * length_ + piece.begin + begin];
          for (uint64_t t = 0; t < tokens; ++t) {
            AddScaled(&tile[t * dim], dim, weights[t], &outputs_[head * dim]);
          }
        }
      }
    });
  }

  WeightRule weights_;
  uint64_t block_tokens_;
  ThreadPool& pool_;
  bool has_queries_ = false;
  std::vector<std::unique_ptr<LayerAttention>> layers_;  // by layer; null if it has no queries
  std::vector<LayerAttention> traced_;                   // for a trace of probabilities
  std::unique_ptr<mnn::h2o::BlockSumSource> recorded_;
  double seconds_ = 0;
  // Buffers of the current call.
  uint64_t length_ = 0;
  std::vector<float> queries_, logits_, weights_row_, outputs_;
  std::vector<std::vector<float>> value_tiles_;  // per kv head
};

class Replayer {
 public:
  Replayer(const Snapshot& snapshot, const AttentionTrace* trace, const ReplayRequest& request,
           ThreadPool& pool, Progress* progress)
      : snapshot_(snapshot), trace_(trace), request_(request), pool_(pool), progress_(progress) {}

  ReplayResult Run() {
    result_.engine = request_.engine;
    result_.lossless = Sanitised(request_.lossless);
    result_.h2o = eviction::Sanitised(request_.h2o);
    result_.h2o_enabled = request_.h2o_enable;
    if (result_.lossless.async_threads > kMostThreads) {
      throw Error(Finding::kUsage, "h2o_lossless_async_threads {}: at most {}",
                  result_.lossless.async_threads, kMostThreads);
    }
    Prepare();
    FindSteps();
    if (request_.engine == Engine::kDesign) {
      result_.cache_bytes = request_.cache_bytes.value_or(snapshot_.kv_bytes() / kCacheShare);
    }
    const GearRangeCodec gear(result_.lossless);
    const RuntimeSetup setup = SetupFor(request_.codec != nullptr ? *request_.codec : gear);
    runtime_ =
        request_.engine == Engine::kDesign ? MakeDesignRuntime(setup) : MakeMnnRuntime(setup);
    Decode();
    if (request_.damage && !runtime_->Damage()) {
      throw Error(Finding::kUsage, "a fault was to be injected, but layer 0 holds no raw row");
    }
    runtime_->Settle();
    Collect();
    return std::move(result_);
  }

 private:
  uint32_t layer_count() const { return static_cast<uint32_t>(snapshot_.layers.size()); }
  eviction::LayerRange h2o_range() const {
    return eviction::EvictedLayers(result_.h2o, layer_count());
  }

  // Prepares K and V in element types that the codec knows.
  void Prepare() {
    if (snapshot_.layers.empty()) {
      throw Error(Finding::kUnsupportedKind, "the snapshot has no attention layers");
    }
    RequireHeads(snapshot_, "a replay");
    if (trace_ != nullptr) {
      RequireMatch(*trace_, snapshot_);
      AddWindowWarning();
      AddTraceWarnings();
    } else if (request_.h2o_enable) {
      Warn(
          "no trace: H2O's lengths are exact, but which tokens it keeps is unknown; the lowest "
          "blocks are kept instead");
    }
    for (const CellGroup& group : snapshot_.cell_groups) {
      for (size_t i = 0; trace_ == nullptr && i < group.cells.size(); ++i) {
        if (group.cells[i].position == static_cast<int64_t>(i)) continue;
        Warn("rows are not the positions of one sequence: they are replayed as they are stored");
        break;
      }
    }
    if (AllStorable(snapshot_)) return;
    Warn("the cache is quantised: it is replayed as f16, which an engine would have held");
    snapshot_ = CastSnapshot(std::move(snapshot_), DType::kF16, pool_);
  }

  // Warns that MNN has no sliding windows: its buffers hold, and its ratios count, tokens that no
  // query sees any more.
  void AddWindowWarning() {
    std::vector<uint32_t> windowed;
    for (const LayerKv& layer : snapshot_.layers) {
      const uint64_t tokens = layer.k.tokens();
      if (tokens > 0 && TokensSeen(*trace_, layer.index, tokens - 1) < tokens) {
        windowed.push_back(layer.index);
      }
    }
    if (windowed.empty()) return;
    Warn(fmt::format(
        "sliding windows in layers {}: this runtime also holds tokens outside the windows, "
        "and its ratios count dropping them as a saving; replay-h2o leaves them out",
        fmt::join(windowed, ", ")));
  }

  void AddTraceWarnings() {
    if (trace_->block_scores) return;
    std::vector<uint32_t> missing;
    for (const LayerKv& layer : snapshot_.layers) {
      if (trace_->Find(layer.index) == nullptr) missing.push_back(layer.index);
    }
    if (missing.empty()) return;
    if (request_.engine == Engine::kMnnR6 && request_.h2o_enable) {
      throw Error(Finding::kTraceMismatch,
                  "the trace has no rows of layers {}: mnn-r6 folds all layers into one score "
                  "vector and needs every one",
                  fmt::join(missing, ", "))
          .File(trace_->path);
    }
    Warn(
        fmt::format("the trace has no rows of layers {}: their attention is not computed, and H2O "
                    "is assumed to keep their lowest blocks",
                    fmt::join(missing, ", ")));
  }

  void Warn(std::string text) {
    if (std::find(result_.warnings.begin(), result_.warnings.end(), text) ==
        result_.warnings.end()) {
      result_.warnings.push_back(std::move(text));
    }
  }

  // Finds the decode positions: from the end of the prompt to the end of the shortest layer or
  // trace.
  void FindSteps() {
    uint64_t shortest = UINT32_MAX, longest = 0;
    for (const LayerKv& layer : snapshot_.layers) {
      shortest = std::min(shortest, layer.k.tokens());
      longest = std::max(longest, layer.k.tokens());
    }
    result_.end = shortest;
    if (shortest != longest) {
      Warn(fmt::format("layers hold {} to {} tokens: the replay ends with the shortest", shortest,
                       longest));
    }
    if (trace_ != nullptr) {
      eviction::ReplayRequest request;
      request.prompt_tokens = request_.prompt_tokens;
      result_.prompt = eviction::PromptTokens(*trace_, request);
      if (!trace_->block_scores) result_.end = std::min(shortest, trace_->end_position());
    } else if (request_.prompt_tokens) {
      result_.prompt = *request_.prompt_tokens;
    } else {
      throw std::move(
          Error(Finding::kUsage, "a snapshot does not say where its prompt ends")
              .Hint("give --prompt-tokens N: tokens from position N on are decode steps"));
    }
    if (result_.prompt == 0 || result_.prompt >= result_.end) {
      throw Error(Finding::kUsage,
                  "--prompt-tokens {}: the cache holds {} tokens, and at least one must be decoded",
                  result_.prompt, result_.end);
    }
    if (request_.decode_tokens) {
      result_.end = std::min(result_.end, result_.prompt + *request_.decode_tokens);
    }
  }

  RuntimeSetup SetupFor(const RangeCodec& codec) {
    return {.snapshot = snapshot_,
            .config = result_.lossless,
            .h2o_range = h2o_range(),
            .trigger_min = static_cast<uint64_t>(result_.h2o.trigger_min_tokens),
            .update_interval = static_cast<uint64_t>(result_.h2o.update_interval),
            .prompt = result_.prompt,
            .cache_bytes = result_.cache_bytes,
            .codec = codec,
            .events = request_.keep_events ? &result_.events : nullptr};
  }

  mnn::h2o::MnnEngine MakeH2o() const {
    const KvTensor& k = snapshot_.layers.front().k;
    const uint32_t query_heads = trace_ != nullptr ? trace_->query_heads : k.heads;
    eviction::BlockConfig config = result_.h2o;
    if (!request_.h2o_enable) config.trigger_min_tokens = kNever;
    return {config,
            {layer_count(), query_heads, k.heads, k.head_dim, k.unit_bytes()},
            request_.engine == Engine::kMnnR6 ? mnn::h2o::MnnRevision::kR6
                                              : mnn::h2o::MnnRevision::kFinal,
            result_.prompt};
  }

  void Decode() {
    mnn::h2o::MnnEngine engine = MakeH2o();
    AttentionStep attention(
        snapshot_,
        request_.h2o_enable || trace_ == nullptr || !trace_->block_scores ? trace_ : nullptr,
        request_.weights, engine.config(), result_.prompt, pool_);
    for (const LayerKv& layer : snapshot_.layers) {
      result_.plans.emplace_back().layer = layer.index;
    }
    if (progress_ != nullptr) progress_->Begin(snapshot_.kv_bytes());
    NoteBytes(result_.prompt - 1);
    double seconds = 0;
    uint64_t steps = 0;
    for (uint64_t token = result_.prompt; token < result_.end && !result_.stopped; ++token) {
      const Stopwatch watch;
      const double replay_only = runtime_->audit_seconds() + counting_seconds_;
      if (!DecodeToken(token, engine, attention)) break;
      seconds += watch.seconds() - (runtime_->audit_seconds() + counting_seconds_ - replay_only);
      ++steps;
      NoteBytes(token);
      if (progress_ != nullptr) {
        progress_->Advance(snapshot_.kv_bytes() / (result_.end - result_.prompt));
      }
    }
    result_.end = result_.prompt + steps;
    result_.h2o_metrics = engine.metrics();
    if (attention.has_queries()) {
      result_.speed = Speed{steps, seconds, attention.seconds()};
    } else {
      result_.no_speed_reason = trace_ == nullptr ? "no trace" : "the trace has no queries";
    }
  }

  // Decodes a token. Returns false if the replay ends before it.
  bool DecodeToken(uint64_t token, mnn::h2o::MnnEngine& engine, AttentionStep& attention) {
    for (uint32_t layer = 0; layer < layer_count(); ++layer) {
      if (request_.stop.stop_requested()) {
        result_.stopped = true;
        return false;
      }
      runtime_->Start(layer, token);
      const mnn::h2o::CallStart start = engine.Begin();
      if (start.plan_applied) {
        runtime_->Compact(layer, start.applied);
        Log(EventKind::kCompact, token, layer, start.length_before, start.length_compacted);
        NotePlan(token, layer, start);
      }
      runtime_->Append(layer, token);
      const uint64_t blocks = engine.blocks(start.length);
      std::optional<std::vector<float>> sums;
      if (request_.h2o_enable) {
        sums = attention.Score(start, token, blocks, *runtime_);
      } else {
        attention.Attend(layer, token, *runtime_, nullptr);
        sums.emplace(start.in_range ? blocks : 0);
      }
      if (!sums) return false;  // the recorded stream ended, so this step did not take place
      const Stopwatch watch;
      const mnn::h2o::CallEnd end = engine.Finish(*sums);
      if (end.triggered) {
        result_.h2o_evict_us = watch.seconds() * 1e6;
        if (end.decision.evicted > 0) {
          Log(EventKind::kEvict, token, layer, start.length, end.decision.kept);
        }
      }
      const LayerCall call{layer, h2o_range(), token - result_.prompt + 1, start.length,
                           end.final_keep_tokens};
      if (runtime_->Step(call)) result_.h2o_plans_cleared += engine.DropPlan(layer);
      const Stopwatch counting;
      result_.peak_bytes = std::max(result_.peak_bytes, runtime_->TotalBytes().total());
      counting_seconds_ += counting.seconds();
    }
    return true;
  }

  // Records the plan, which was decided at the end of the token before.
  void NotePlan(uint64_t token, uint32_t layer, const mnn::h2o::CallStart& start) {
    KeepPlan kept;
    for (const uint32_t position : runtime_->positions(layer)) Append(kept, {position, 1});
    result_.plans[layer].Keep({token - 1, start.length_before, start.length_compacted}, {&kept, 1});
  }

  void Log(EventKind kind, uint64_t token, uint32_t layer, uint64_t length, uint64_t tokens) {
    if (!request_.keep_events) return;
    result_.events.push_back(
        {kind, token, snapshot_.layers[layer].index, length, 0, tokens, 0, 0, 0, {}});
  }

  void NoteBytes(uint64_t token) {
    Resident bytes = runtime_->TotalBytes();
    bytes.token = token;
    for (const LayerKv& layer : snapshot_.layers) bytes.full += (token + 1) * layer.row_bytes();
    result_.peak_bytes = std::max(result_.peak_bytes, bytes.total());
    result_.steps.push_back(bytes);
  }

  void Collect() {
    result_.metrics = runtime_->Metrics();
    const Resident last = result_.steps.back();
    result_.steps.back() = runtime_->TotalBytes();
    result_.steps.back().token = last.token;
    result_.steps.back().full = last.full;
    for (uint32_t i = 0; i < layer_count(); ++i) {
      const uint64_t length = runtime_->positions(i).size();
      result_.layers.push_back(
          {runtime_->Record(i), snapshot_.layers[i].index, h2o_range().Contains(i), length,
           FindColdRange(result_.lossless, length).size(), runtime_->LayerBytes(i)});
      result_.layers.back().end.full = result_.end * snapshot_.layers[i].row_bytes();
      result_.measured.Add(result_.layers.back().measured);
    }
    result_.measured.wait_us = runtime_->wait_us();
    // The counts above do not include what the last comparison restores.
    runtime_->Finish();
    for (uint32_t i = 0; i < layer_count(); ++i) {
      result_.layers[i].content = runtime_->Record(i).content;
      result_.content.Add(result_.layers[i].content);
    }
  }

  Snapshot snapshot_;
  const AttentionTrace* trace_;
  const ReplayRequest& request_;
  ThreadPool& pool_;
  Progress* progress_;
  std::unique_ptr<Runtime> runtime_;
  double counting_seconds_ = 0;
  ReplayResult result_;
};

}  // namespace

std::string_view Name(Engine engine) {
  return engine == Engine::kMnn ? "mnn" : engine == Engine::kMnnR6 ? "mnn-r6" : "design";
}

std::optional<Engine> ParseEngine(std::string_view name) {
  for (const Engine engine : {Engine::kMnn, Engine::kMnnR6, Engine::kDesign}) {
    if (name == Name(engine)) return engine;
  }
  return std::nullopt;
}

double ReplayResult::whole_model_ratio() const {
  if (steps.empty() || steps.back().total() == 0) return 1;
  return static_cast<double>(steps.back().full) / static_cast<double>(steps.back().total());
}

ReplayResult Replay(const Snapshot& snapshot, const AttentionTrace* trace,
                    const ReplayRequest& request, ThreadPool& pool, Progress* progress) {
  return Replayer(snapshot, trace, request, pool, progress).Run();
}

}  // namespace kv::mnn::runtime
