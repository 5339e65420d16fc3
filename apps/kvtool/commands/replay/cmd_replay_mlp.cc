// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool replay mlp`: InfiniLM's compression step on a cache, its outcome in csrc and its cost in
// attention.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/replay/mlp_report.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/inputs/run_input.h"
#include "apps/kvtool/line/options.h"
#include "formats/key_pairs.h"
#include "formats/trace/trace.h"
#include "formats/weights_file.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/core/snapshot/cast.h"
#include "lib/engines/infinilm/compressor.h"
#include "lib/engines/infinilm/quality.h"

namespace kv {
namespace {

RecordedQueries ListQueries(const AttentionTrace& trace) {
  if (trace.level != TraceLevel::kQueries) {
    throw Error(Finding::kTraceMismatch, "holds {}, but only queries can measure a changed cache",
                Name(trace.level))
        .File(trace.path);
  }
  RecordedQueries queries;
  queries.query_heads = trace.query_heads;
  queries.positions.resize(trace.rows);
  std::iota(queries.positions.begin(), queries.positions.end(),
            static_cast<int64_t>(trace.q_start));
  queries.rule_of = [&trace](uint32_t index) { return MakeRule(trace, *trace.Find(index)); };
  queries.read = [&trace](uint32_t index, uint32_t head, std::vector<float>& out) {
    const TraceLayer* layer = trace.Find(index);
    if (layer == nullptr || !layer->queries) return false;
    out.resize(trace.rows * trace.head_dim);
    ReadQueries(*layer, head, 0, trace.rows, out.data());
    return true;
  };
  return queries;
}

class ReplayMlp : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("SNAPSHOT", input_, "Cache, or a recorded run: file, folder or '-'").Required();
    line.Add("--weights", weights_path_, "Compressor weights: .bin, .pth, .safetensors").Required();
    line.Add("--image-tokens|--image-len", settings_.image_len,
             "Tokens of the image prefix (default: 0)");
    line.Add("--compression-factor|--factor", settings_.factor,
             "Tokens per group; 0, 1: as the weights say");
    line.Add("--min-groups|--min-seq-len", settings_.min_seq_len,
             "Least number of groups (not tokens) of a segment that is compressed; 0: as the "
             "weights say");
    line.Add("--first-tokens|--seq-len", settings_.seq_len,
             "Compress the first N tokens only, drop the rest");
    line.Add("--dtype", dtype_, "Convert the cache first: f32, f16, bf16");
    line.Add("--weights-cast", cast_,
             "Rounding of weights to the type of the cache: nearest, or truncate as csrc does")
        .OneOf({"nearest", "truncate"});
    line.Add("--prefix-order", prefix_order_,
             "Order in which a .bin was exported, where it is not the default");
    line.Add("--compat", compat_,
             "csrc: where InfiniLM's csrc would silently do nothing, warn and do nothing")
        .OneOf({"csrc"});
    line.AddFlag("--dry-run", dry_run_, "Print the plan, compute nothing");
    line.Add("-o,--output", output_, "Write the compressed cache");
    line.Add("--to", to_, "Format of the compressed cache (see kvtool formats)")
        .Suggest(WritableFormats());
    line.AddFlag("-f,--force", force_, "Overwrite the output");
    DeclareQuality(line);
    snapshot_.Declare(line);
    report_.Declare(line);
  }

  void TakeRuns() override {
    const std::optional<RecordedRun> run = TakeRun(input_, snapshot_);
    TakeTrace(run, trace_path_);
    TakeRope(run, snapshot_, rope_);
  }

  void Files(CommandFiles& files) const override {
    files.Reads({input_, weights_path_, trace_path_, rope_.freqs});
    snapshot_.Files(files);
    files.Writes(output_, "-o");
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    const FormatEntry* format = OutputFormat();
    ThreadPool pool(context.global.thread_count());
    const OpenOptions options = snapshot_.Resolve();
    AttentionTrace trace;  // must live as long as the queries read from it
    if (!trace_path_.empty()) trace = OpenTrace(trace_path_, options);
    Snapshot cache = OpenSnapshot(snapshot_.Open(input_), options, FindGeometry(trace));
    QualityOptions quality = ResolveQuality(options, cache, context.console);
    if (!trace_path_.empty()) {
      RequireMatch(trace, cache);
      const std::string undefined = Remark(CheckTraceRows(trace, pool));
      if (!undefined.empty()) context.console.Warn(trace_path_, undefined);
      quality.queries = ListQueries(trace);
    }
    if (!dtype_.empty()) cache = CastSnapshot(std::move(cache), ParseCacheDType(), pool);
    RequireImageWithin(cache);
    const CompressorWeights weights = ReadWeights();
    WarnAbout(context.console, cache, weights);

    MlpResult result;
    result.params = Params(weights);
    result.csrc = AskCsrc(cache, weights);
    result.plan = Plan(context.console, cache, weights, result.csrc);
    result.inputs = {HashedFile::Of(cache.source), HashedFile::Of(weights.source)};
    Print(context.console, PlanText(result.plan));
    if (result.csrc) Print(context.console, fmt::format("csrc {}\n", CsrcText(*result.csrc)));
    if (!dry_run_) Apply(context, cache, weights, quality, format, options.geometry, pool, result);
    result.warnings = context.console.warning_texts();
    report_.Emit(context.console, "replay-mlp", MlpResultFields, result, RulesFor(force_));
    return kDone;
  }

 private:
  void DeclareQuality(CommandLine& line) {
    const char* group = "Cost in attention";
    line.AddFlag("--no-quality", no_quality_, "Do not measure attention").Group(group);
    line.Add("--trace", trace_path_, "Measure attention with the queries of this trace")
        .Group(group);
    line.Add("--queries", key_queries_,
             "Without a trace: use the keys of the last N tokens as queries (default: 64)")
        .Between(1u, 1u << 20)
        .Group(group);
    line.Add("--positions", positions_,
             "Position of the next token: new-len (as InfiniLM does) or original")
        .OneOf({"new-len", "original"})
        .Group(group);
    rope_.Declare(line, "RoPE of the model, to move queries");
  }

  void Print(Console& console, std::string_view text) const {
    if (!report_.json) console.Data(text);
  }

  const FormatEntry* OutputFormat() const {
    if (output_.empty() != to_.empty()) throw Error(Finding::kUsage, "-o and --to go together");
    if (output_.empty()) return nullptr;
    if (dry_run_) throw Error(Finding::kUsage, "--dry-run writes nothing: leave out -o");
    const FormatEntry* format = FindFormat(to_);
    if (format == nullptr || (format->write == nullptr && format->write_step == nullptr)) {
      throw Error(Finding::kUsage, "--to '{}' cannot be written", to_)
          .Hint("'kvtool formats' lists them");
    }
    return format;
  }

  DType ParseCacheDType() const {
    const std::optional<DType> dtype = ParseDType(dtype_);
    if (!dtype) throw Error(Finding::kUsage, "--dtype '{}' is not an element type", dtype_);
    return *dtype;
  }

  CompressorWeights ReadWeights() const {
    WeightsOpenOptions options;
    options.reading = compat_.empty() ? KvcmReading::kStrict : KvcmReading::kCompat;
    options.max_bytes = snapshot_.WithLimit().max_bytes;
    CompressorWeights weights = OpenWeights(snapshot_.Open(weights_path_), options).weights;
    if (prefix_order_.empty()) return weights;
    if (!weights.names_assumed) {
      throw Error(Finding::kUsage, "--prefix-order: these weights name their prefixes")
          .File(weights_path_);
    }
    const std::vector<std::string> prefixes = ParsePrefixOrder(prefix_order_);
    if (prefixes.size() * kSlotsPerMlp != weights.header.blocks_per_layer) {
      throw Error(Finding::kUsage, "--prefix-order names {} MLPs, layers have {} blocks of three",
                  prefixes.size(), weights.header.blocks_per_layer)
          .File(weights_path_);
    }
    weights.prefixes = prefixes;
    weights.names_assumed = false;
    return weights;
  }

  void RequireImageWithin(const Snapshot& cache) const {
    uint64_t tokens = settings_.seq_len.value_or(UINT64_MAX);
    for (const LayerKv& layer : cache.layers) tokens = std::min(tokens, layer.k.tokens());
    if (settings_.image_len <= tokens) return;
    throw Error(Finding::kUsage, "--image-tokens {}: there are {} tokens to compress",
                settings_.image_len, tokens)
        .File(input_);
  }

  void WarnAbout(Console& console, const Snapshot& cache, const CompressorWeights& weights) const {
    WarnAboutNotes(cache.notes, input_, console);
    WarnAboutNotes(weights.notes, weights_path_, console);
    if (cache.key_rotation == KeyRotation::kUnrotated) {
      console.Warn(input_, "K is stored before RoPE, compressors are trained on rotated K");
    }
    if (settings_.image_len > 0 && weights.is_text_only()) {
      console.Warn(weights_path_, "there are no image MLPs: the image prefix stays as it is");
    }
  }

  // Returns csrc's outcome, unless the snapshot is a part of a cache: csrc always has all layers.
  std::optional<CsrcOutcome> AskCsrc(const Snapshot& cache,
                                     const CompressorWeights& weights) const {
    for (size_t i = 0; i < cache.layers.size(); ++i) {
      if (cache.layers[i].index != i) return std::nullopt;
    }
    if (!cache.heads_known()) return std::nullopt;
    return SimulateCsrc(weights, cache, settings_);
  }

  StepPlan Plan(Console& console, const Snapshot& cache, const CompressorWeights& weights,
                const std::optional<CsrcOutcome>& csrc) const {
    if (!compat_.empty() && csrc) {
      if (csrc->effect == CsrcEffect::kNothing) {
        console.Warn(weights_path_, "csrc " + CsrcText(*csrc));
        return PlanNothing(cache, settings_);
      }
      if (csrc->effect == CsrcEffect::kWrongMlp) {
        console.Warn(weights_path_, "csrc " + CsrcText(*csrc) + "; here each is applied by name");
      } else if (csrc->corrupts()) {
        throw Error(Finding::kInconsistent, "csrc " + CsrcText(*csrc))
            .File(weights_path_)
            .Hint("kvtool does not imitate that, because the cache would be lost");
      }
    }
    try {
      return PlanStep(cache, weights, settings_);
    } catch (Error& error) {
      if (csrc && error.hint().empty()) error.Hint("csrc " + CsrcText(*csrc));
      throw error.File(weights_path_);
    }
  }

  MlpParams Params(const CompressorWeights& weights) const {
    return {settings_,
            IfAny(dtype_),
            IfAny(trace_path_),
            std::string(Name(weights.dtype)),
            cast_,
            compat_.empty() ? "none" : compat_,
            positions_.empty() ? "new-len" : positions_,
            dry_run_};
  }

  void Apply(Context& context, const Snapshot& cache, const CompressorWeights& weights,
             const QualityOptions& asked, const FormatEntry* format,
             const std::optional<ModelGeometry>& geometry, ThreadPool& pool, MlpResult& replayed) {
    const StepPlan& plan = replayed.plan;
    const auto begin = std::chrono::steady_clock::now();
    Snapshot result;
    {
      ProgressLine progress(context.console, context.global.progress_when(), "compressing");
      result = CompressCache(cache, weights, plan,
                             cast_ == "nearest" ? WeightsCast::kNearest : WeightsCast::kTruncate,
                             pool, &progress);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (!context.global.deterministic) {
      replayed.timing = {static_cast<uint64_t>(took.count() * 1e6),
                         static_cast<double>(plan.flop) * 1e-9 / took.count(), pool.threads()};
    }
    if (!no_quality_) {
      if (asked.positions == PositionRule::kNewLength && !asked.rope) {
        context.console.Say(
            "RoPE is unknown, so queries keep their rotation: figures are for original positions "
            "(--model, or --rope-base and --rope-style, for new-len)");
      }
      replayed.quality = MeasureStep(cache, result, plan, asked, pool);
      WarnAboutNorms(context.console, *replayed.quality);
      Print(context.console, "\n" + QualityText(*replayed.quality));
    }
    if (format == nullptr) return;
    if (format->write_step != nullptr) {
      format->write_step(cache, result, plan, output_, RulesFor(force_, input_, cache.source));
    } else {
      FitKeyPairs(format->pairs, "", geometry, result);
      format->write(result, output_, RulesFor(force_, input_, cache.source));
    }
    replayed.output = {output_, to_};
    context.console.Say(fmt::format("{}: {} tokens, {}", Printable(output_), plan.new_length,
                                    HumanBytes(plan.bytes_after)));
  }

  QualityOptions ResolveQuality(const OpenOptions& options, const Snapshot& cache,
                                Console& console) const {
    QualityOptions quality;
    quality.key_queries = key_queries_;
    if (no_quality_ || dry_run_) return quality;
    quality.rope = rope_.ResolveOrWarn(options, &cache, "queries keep their rotation", console);
    quality.positions =
        positions_ == "original" ? PositionRule::kOriginal : PositionRule::kNewLength;
    if (quality.positions == PositionRule::kOriginal || quality.rope) return quality;
    if (!positions_.empty()) {
      throw Error(Finding::kGeometryMissing, "--positions new-len moves queries, which needs RoPE")
          .Hint("give --model MODEL or --rope-base and --rope-style");
    }
    return quality;
  }

  // Warns about unusual norms: a trained MLP makes tokens with about the norms of those that they
  // replace.
  void WarnAboutNorms(Console& console, const StepQuality& quality) const {
    constexpr double kFar = 3;
    const auto is_far = [](const std::optional<double>& ratio) {
      return ratio && !(*ratio<kFar&& * ratio> 1 / kFar);
    };
    const auto count =
        std::count_if(quality.norm_ratios.begin(), quality.norm_ratios.end(),
                      [&](const NormRatio& ratio) { return is_far(ratio.k) || is_far(ratio.v); });
    if (count == 0) return;
    console.Warn(
        weights_path_,
        fmt::format(
            "in {} of {} layers the norms of compressed tokens differ by more than {}x from those "
            "of their sources: the weights are untrained, or made for another cache",
            count, quality.norm_ratios.size(), kFar));
  }

  std::string weights_path_, trace_path_, dtype_, compat_, output_, to_, positions_;
  std::string cast_ = "nearest";
  std::string prefix_order_;
  StepSettings settings_;
  RopeOptions rope_;
  uint32_t key_queries_ = 64;
  bool dry_run_ = false, force_ = false, no_quality_ = false;
};

}  // namespace

const FieldTable& ReplayMlpFields() { return MlpResultFields(); }

std::unique_ptr<Command> MakeReplayMlp() { return std::make_unique<ReplayMlp>(); }

}  // namespace kv
