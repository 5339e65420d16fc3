// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool replay blend`: CacheBlend's selection on two caches of a prompt, its curve, and its
// gates.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/console/console.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/inputs/run_input.h"
#include "apps/kvtool/line/options.h"
#include "formats/key_pairs.h"
#include "formats/npy/npy.h"
#include "formats/trace/trace.h"
#include "lib/core/base/file.h"
#include "lib/core/snapshot/cast.h"
#include "lib/engines/cacheblend/replay.h"
#include "lib/engines/cacheblend/report.h"

namespace kv {
namespace {

using blend::CurveLayer;
using blend::Result;
using format::Percent;

std::string Optional(const std::optional<double>& value, const char* format = "{:.3f}") {
  return value ? fmt::format(fmt::runtime(format), *value) : std::string(1, '-');
}

std::string LayerTable(const Result& result) {
  Table table({"layer", "V p50", "V p90", "V p99", "V max", "K p50", "K max", "overlap", "jaccard",
               "spearman", "V left"});
  const std::vector<CurveLayer>& blended = result.main().layers;
  for (size_t i = 0; i < result.layers.size(); ++i) {
    const blend::LayerDeviation& layer = result.layers[i];
    const auto& overlap = result.ranks[i].with_check;
    std::string left = "exact";
    for (const CurveLayer& of_curve : blended) {
      if (of_curve.layer == layer.layer) left = Percent(of_curve.selected.v);
    }
    table.Row({std::to_string(layer.layer) + (i == result.check_place ? "*" : ""),
               fmt::format("{:.3f}", layer.v.rel_p50), fmt::format("{:.3f}", layer.v.rel_p90),
               fmt::format("{:.3f}", layer.v.rel_p99), fmt::format("{:.3f}", layer.v.rel_max),
               fmt::format("{:.3f}", layer.k.rel_p50), fmt::format("{:.3f}", layer.k.rel_max),
               Optional(overlap ? std::optional(overlap->share) : std::nullopt),
               Optional(overlap ? std::optional(overlap->jaccard) : std::nullopt),
               Optional(result.ranks[i].spearman_prev), left});
  }
  return table.Text();
}

// Returns a sparkline of the deviation along the prompt.
std::string DeviationLine(const Result& result, bool utf8) {
  const std::vector<double>& tokens = result.layers[result.check_place].v.tokens;
  const size_t columns = std::min<size_t>(72, tokens.size());
  std::vector<double> heights(columns);
  for (size_t t = 0; t < tokens.size(); ++t) {
    double& height = heights[t * columns / tokens.size()];
    if (std::isfinite(tokens[t])) height = std::max(height, std::sqrt(tokens[t]));
  }
  const double most = *std::max_element(heights.begin(), heights.end());
  if (most == 0) return {};
  for (double& height : heights) height /= most;
  return Sparkline(heights, utf8);
}

std::string Summary(const std::string& path, const blend::CachePair& caches, const Result& result) {
  const blend::KvRows::Layer& layer = caches.layers().front();
  return fmt::format("{}: {} tokens, {} layers, {} kv heads x {}, {}; {}, keys {}; suffix {}",
                     Printable(path), result.tokens, caches.layers().size(), layer.heads,
                     layer.k_dim, Name(caches.dtype()), Plural(caches.old().chunks.size(), "chunk"),
                     Name(caches.old().state), result.request.suffix);
}

std::string Choice(const Result& result) {
  const blend::Selection& selection = result.selection;
  std::string text =
      fmt::format("{} at layer {}, ratio {}: {} tokens chosen, {} recomputed ({} of the prefill)",
                  VariantName(result.request), result.request.check_layer, result.request.ratio,
                  selection.topk, selection.indices.size(), Percent(result.main().compute_share));
  if (selection.margin) {
    text += selection.ties > 0 ? fmt::format("; {} tokens tie at the cut", selection.ties)
                               : fmt::format("; margin {:.3g}", *selection.margin);
  }
  for (const blend::Filtered& later : result.filtered) {
    text += fmt::format("\nlayer {}, ratio {}: {} of these stay", later.filter.layer,
                        later.filter.ratio, later.topk);
  }
  if (!result.filtered.empty()) {
    text += fmt::format("; this filter leaves {} of the error of V and {} of K, for {} of prefill",
                        Percent(result.filtered_left.v), Percent(result.filtered_left.k),
                        Percent(result.filtered_compute_share));
  }
  return text;
}

void PrintBlend(Console& console, const std::string& path, const blend::CachePair& caches,
                const Result& result, const blend::ReportExtras& extras) {
  console.Line(Summary(path, caches, result));
  console.Line(Choice(result));
  const std::string deviation = DeviationLine(result, console.utf8());
  if (!deviation.empty()) console.Line("V deviation along the prompt: " + deviation);
  console.Line("Recomputed rows come from the full run, so the remaining error is a lower bound.");
  console.Line("");
  console.Data(Table(blend::CurveTable(result)).Text());
  console.Line("");
  console.Data(LayerTable(result));
  console.Line("");
  console.Data(Table(blend::ChunkTable(caches, result)).Text());
  if (!result.leaks.empty()) {
    const blend::LayerLeak& first = result.leaks.front();
    console.Line(
        fmt::format("\nmask: bottom-right shows {:.1f} keys of the future to a recomputed query; "
                    "in layer {} they take {} of the attention and move the output by {}",
                    result.extra_keys_mean, first.layer, Percent(first.error.leaked_mass_mean),
                    Percent(first.error.leak_out_rel_l2)));
  }
  if (extras.controller) {
    console.Line(fmt::format(
        "controller: loading a layer takes {}, its prefill {}: recompute {} (loading hides {})",
        HumanSeconds(extras.controller->load_seconds_per_layer),
        HumanSeconds(extras.controller->prefill_seconds_per_layer),
        Percent(extras.controller->ratio), Percent(extras.controller->ratio_hide)));
  }
  for (const blend::Fault& fault : result.faults) {
    console.Line(fmt::format("the original: {}", fault.text));
  }
  for (const blend::GateResult& gate : extras.gates) {
    console.Line(fmt::format(
        "{} {} = {} {} {}", console.Verdict(gate.pass, gate.pass ? "PASS" : "FAIL"),
        gate.gate.Name(), gate.value ? fmt::format("{:.6g}", *gate.value) : "not measured",
        gate.gate.at_most ? "<=" : ">=", gate.gate.limit));
  }
}

void WriteIndices(const std::vector<uint64_t>& indices, Sink& sink) {
  sink.Write(MakeNpyHeader(DType::kI64, {indices.size()}));
  Bytes bytes(8 * indices.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    StoreLE(&bytes[8 * i], static_cast<int64_t>(indices[i]));
  }
  sink.Write(bytes);
}

constexpr double kCurve[] = {0, 0.05, 0.10, 0.15, 0.16, 0.20, 0.30, 0.50, 0.75, 1};

// Flags for the rotation of keys and their positions.
struct RopeFlags {
  std::string old_state = "auto", full_state = "auto", bos = "none";
  RopeOptions model;

  void Declare(CommandLine& line) {
    const char* group = "Positions of keys (RoPE)";
    line.Add("--chunks-rope|--old-rope", old_state,
             "Keys of chunks are unrotated, local (at positions of their chunk), global (of the "
             "prompt) or at:P0,P1,... (first kept token of each chunk)")
        .Group(group);
    line.Add("--full-rope", full_state, "Full keys are rotated or unrotated (default: auto)")
        .Group(group);
    line.Add("--bos", bos,
             "BOS tokens of later chunks: none, drop (remove them) or dropped (removed already)")
        .OneOf({"none", "drop", "dropped"})
        .Group(group);
    model.Declare(line, group);
  }
};

// The result of a run; its document has these fields.
struct Blended {
  struct Input {
    std::string role, file;
    std::optional<HashedFile> content;  // empty for a set of npy files
    std::string format;
  };
  std::vector<Input> inputs;
  blend::Report report;
  std::vector<std::string> warnings;
};

const Fields<Blended::Input>& BlendInputFields() {
  using Input = Blended::Input;
  static const Fields<Input> fields = {
      {"role", "Role of the input: the full run, an old cache of a chunk, or queries", &Input::role,
       OneOf("full", "old", "q")},
      {"file", "Name of the input as it was given", &Input::file},
      {"bytes", "Size of the input in bytes, all its files together",
       [](const Input& of) { return of.content ? std::optional(of.content->bytes) : std::nullopt; },
       Absent()},
      {"xxh3",
       "XXH3 hash (64 bits, 16 hex digits) of the input's bytes",
       [](const Input& of) { return of.content ? std::optional(of.content->xxh3) : std::nullopt; },
       {.absent = true, .pattern = kHashPattern}},
      {"format", "Format that the input was read as", &Input::format}};
  return fields;
}

const Fields<Blended>& BlendedFields() {
  static const Fields<Blended> fields = {
      {"inputs",
       "What was read: the full run, the chunks' caches, and queries where they were given",
       &Blended::inputs, BlendInputFields(), Items(2)},
      Fields<Blended>::Inline(&Blended::report, blend::ReportFields()),
      {"warnings", "Warnings on the figures", &Blended::warnings}};
  return fields;
}

class ReplayBlend : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("--full", full_, "Cache of the whole prompt, from an ordinary prefill").Required();
    line.Add("--chunks", chunks_, "Caches of the chunks, in the order of the prompt");
    line.Add("--chunks-joined|--old", old_,
             "Instead of --chunks: one cache with all chunks joined (old_kvs)");
    line.Add("--chunk-tokens|--chunk-lens", lengths_,
             "Tokens of each chunk of --chunks-joined: 33,512,512,17")
        .Separator(',');
    line.Add("--suffix-tokens|--suffix-len", suffix_,
             "Last tokens, always recomputed (default: the last chunk)");
    line.Add("--trace", trace_,
             "Queries of the full run, to measure what blending costs in attention");
    line.Add("--engine", engine_,
             "Selection rule: that of cacheblend (V, suffix always recomputed) or lmcache (K)")
        .OneOf({"cacheblend", "lmcache"});
    line.Add("--score", score_,
             "Tensor whose deviation selects: v, k or k+v (default: the engine's)")
        .OneOf({"v", "k", "k+v"});
    line.Add("--recompute-share|--recomp-ratios,--ratio", shares_,
             "Share of tokens to recompute, one for each check layer: 0.18,0.15 (default: 0.16)");
    line.Add("--curve-shares|--ratios", ratios_,
             "Shares of the curve: 0.1,0.15,0.2 or 0.05-0.5+0.05");
    line.Add(
            "--check-layer|--check-layers", check_layers_,
            "Layer at which tokens are chosen; later ones filter what was chosen: 1,8 (default: 1)")
        .Separator(',');
    line.Add("--mask", mask_, "Mask of recomputed queries: exact, or bottom-right as in engines")
        .OneOf({"exact", "bottom-right"});
    line.Add("--emulate-dtype", emulate_, "Round scores as a model that computes in f16 or bf16")
        .OneOf({"f16", "bf16"});
    line.Add("--seed", seed_, "Seed of the random baseline (default: 0)");
    line.Add("--prefill-ms", prefill_ms_,
             "Measured prefill of this prompt, to find the ratio that loading hides")
        .Positive();
    line.Add("--load-gbps", load_gbps_,
             "Speed of the store in GB/s (decimal gigabytes), with --prefill-ms")
        .Positive();
    line.Add("--fail-unless|--gate", gates_,
             "Fail (exit 1) unless this holds, e.g. dev_v_remaining_frac@0.16.mean<=0.2");
    line.Add("--chunks-layout|--old-layout", old_layout_,
             "Axes of the arrays of chunks, if they differ from --layout");
    line.AddFlag("--detail", detail_, "Add the deviation of every token to the JSON document");
    line.Add("--indices-out", indices_out_, "Write the chosen tokens to an .npy file of i64");
    line.Add("--blended-out", blended_out_, "Write the blended cache, keys at prompt positions");
    line.Add("--to", to_, "Format of --blended-out (default: safetensors)")
        .Suggest(WritableFormats());
    page_.Declare(line);
    line.AddFlag("-f,--force", force_, "Overwrite outputs");
    rope_.Declare(line);
    snapshot_.Declare(line);
    report_.Declare(line);
  }

  void TakeRuns() override {
    const std::optional<RecordedRun> run = TakeRun(full_, snapshot_);
    TakeTrace(run, trace_);
    TakeRope(run, snapshot_, rope_.model);
    TakeRun(old_, snapshot_);
    for (std::string& chunk : chunks_) TakeRun(chunk, snapshot_);
  }

  void Files(CommandFiles& files) const override {
    files.Reads({full_, old_, trace_, rope_.model.freqs});
    files.Reads(chunks_);
    snapshot_.Files(files);
    files.Writes(indices_out_, "--indices-out");
    files.Writes(blended_out_, "--blended-out");
    page_.Files(files);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    const blend::Request request = ParseRequest();
    if (!blended_out_.empty()) WritableFormat(to_);
    const OpenOptions options = snapshot_.Resolve(FlagsFor::kSeveral);
    OpenOptions old_options = options;
    if (!old_layout_.empty()) old_options.layout = old_layout_;
    AttentionTrace trace;
    if (!trace_.empty()) trace = OpenTrace(trace_, options);
    const std::vector<std::string> old_paths = OldPaths();
    const auto full = Open(context, full_, options, FindGeometry(trace));
    std::vector<std::shared_ptr<const Snapshot>> old;
    for (const std::string& path : old_paths) {
      old.push_back(Open(context, path, old_options, FindHeads(*full)));
    }
    if (!trace_.empty()) {
      RequireMatch(trace, *full);
      for (const Note& note : trace.notes) context.console.Warn(trace_, note.text);
    }
    const blend::CachePair caches = Pair(full, old, options);
    ThreadPool pool(context.global.thread_count());
    blend::Result result;
    {
      ProgressLine progress(context.console, context.global.progress_when(), "replay");
      blend::Request whole = request;
      whole.suffix = CountSuffixTokens(caches);
      result = blend::Replay(caches, trace_.empty() ? nullptr : &trace, whole, pool, &progress);
    }
    for (const std::string& warning : result.warnings) context.console.Warn(full_, warning);
    if (!blended_out_.empty()) {
      Snapshot blended = blend::BlendedCache(caches, result, pool);
      const FormatEntry& format = WritableFormat(to_);
      FitKeyPairs(format.pairs, "", options.geometry, blended);
      std::vector<std::string> everything = OldPaths();
      everything.push_back(full_);
      format.write(blended, blended_out_, RulesFor(force_, everything));
      context.console.Say(fmt::format("{}: {} of K and V", Printable(blended_out_),
                                      HumanBytes(blended.kv_bytes())));
    }
    return Report(context, caches, result, trace, full, old);
  }

 private:
  std::vector<std::string> OldPaths() const {
    if (chunks_.empty() == old_.empty()) {
      throw Error(Finding::kUsage,
                  "give --chunks FILE... or --chunks-joined FILE, the caches to blend");
    }
    if (!lengths_.empty() && old_.empty()) {
      throw Error(
          Finding::kUsage,
          "--chunk-tokens is for --chunks-joined; files of --chunks have their own lengths");
    }
    return old_.empty() ? chunks_ : std::vector<std::string>{old_};
  }

  std::shared_ptr<const Snapshot> Open(Context& context, const std::string& path,
                                       const OpenOptions& options,
                                       const std::optional<ModelGeometry>& else_by) const {
    auto snapshot =
        std::make_shared<Snapshot>(OpenSnapshot(snapshot_.Open(path), options, else_by));
    RequireHeads(*snapshot, "a replay");
    RequireHadamardKnown(*snapshot);
    snapshot->CheckContent();
    WarnAboutNotes(snapshot->notes, path, context.console);
    return snapshot;
  }

  // Returns the heads of the full run, which chunks share.
  static std::optional<ModelGeometry> FindHeads(const Snapshot& full) {
    if (full.layers.empty()) return std::nullopt;
    ModelGeometry geometry;
    geometry.source = full.source.path;
    geometry.uniform.kv_heads = full.layers.front().k.heads;
    return geometry;
  }

  blend::CachePair Pair(const std::shared_ptr<const Snapshot>& full,
                        const std::vector<std::shared_ptr<const Snapshot>>& old,
                        const OpenOptions& options) const {
    const blend::KeyStateFlag state = blend::ParseKeyState(rope_.old_state, "--chunks-rope");
    const blend::BosRule bos = blend::ParseBosRule(rope_.bos);
    blend::OldCache joined = old_.empty() ? blend::JoinChunks(old, bos, state)
                                          : blend::SplitOld(old.front(), lengths_, bos, state);
    blend::FullCache whole =
        blend::WholePrompt(full, blend::ParseKeyState(rope_.full_state, "--full-rope"));
    blend::RequireSamePrompt(whole, joined, suffix_);
    return {std::move(whole), std::move(joined), rope_.model.Resolve(options, full.get())};
  }

  uint64_t CountSuffixTokens(const blend::CachePair& caches) const {
    if (suffix_) return *suffix_;
    if (caches.old().chunks.size() > 1) return caches.old().chunks.back().tokens;
    throw Error(Finding::kUsage,
                "--suffix-tokens: give the number of tokens of the question, which ends the prompt")
        .Hint("with several chunks the last one is the question");
  }

  blend::Request ParseRequest() {
    blend::Request request;
    request.engine = engine_ == "lmcache" ? blend::Engine::kLmCache : blend::Engine::kCacheBlend;
    const std::string score = !score_.empty() ? score_ : engine_ == "lmcache" ? "k" : "v";
    request.score = score == "k+v" ? blend::ScoreRule::kKAndV
                    : score == "k" ? blend::ScoreRule::kK
                                   : blend::ScoreRule::kV;
    const std::vector<double> shares = ParseRatios(shares_, "--recompute-share");
    if (shares.size() != check_layers_.size()) {
      throw Error(
          Finding::kUsage,
          "--check-layer has {} layers, --recompute-share {} shares: give one share for each layer",
          check_layers_.size(), shares.size());
    }
    for (const uint64_t layer : check_layers_) {
      if (layer > UINT32_MAX)
        throw Error(Finding::kUsage, "--check-layer {}: above the number of layers of any model",
                    layer);
    }
    request.check_layer = static_cast<uint32_t>(check_layers_.front());
    request.ratio = shares.front();
    for (size_t i = 1; i < shares.size(); ++i)
      request.filters.push_back({static_cast<uint32_t>(check_layers_[i]), shares[i]});
    request.mask = mask_ == "exact" ? blend::Mask::kExact : blend::Mask::kBottomRight;
    request.seed = seed_;
    if (!emulate_.empty()) {
      if (request.score != blend::ScoreRule::kV) {
        throw Error(Finding::kUsage, "--emulate-dtype: CacheBlend's code rounds scores of V only");
      }
      request.emulate = emulate_ == "f16" ? DType::kF16 : DType::kBF16;
    }
    request.ratios.assign(std::begin(kCurve), std::end(kCurve));
    if (!ratios_.empty()) request.ratios = ParseRatios(ratios_, "--curve-shares");
    request.ratios.push_back(request.ratio);
    for (const std::string& text : gates_) {
      parsed_gates_.push_back(blend::ParseGate(text));
      request.ratios.push_back(parsed_gates_.back().ratio);
    }
    for (const double ratio : request.ratios) blend::TopCount(0, ratio);
    std::sort(request.ratios.begin(), request.ratios.end());
    request.ratios.erase(std::unique(request.ratios.begin(), request.ratios.end()),
                         request.ratios.end());
    if ((prefill_ms_ > 0) != (load_gbps_ > 0)) {
      throw Error(Finding::kUsage, "--prefill-ms and --load-gbps belong together");
    }
    return request;
  }

  // Parses a list as every command does, or the older FIRST:LAST[:STEP], with a default step of
  // 0.05.
  static std::vector<double> ParseRatios(const std::string& text, std::string_view flag) {
    std::string sweep = text;
    if (const size_t colon = text.find(':'); colon != text.npos) {
      sweep[colon] = '-';
      const size_t second = sweep.find(':');
      if (second == sweep.npos) {
        sweep += "+0.05";
      } else {
        sweep[second] = '+';
      }
    }
    std::vector<double> ratios;
    try {
      ratios = ParseSweep(sweep, flag);
    } catch (const Error&) {
      throw Error(
          Finding::kUsage,
          "{} '{}': expected shares such as 0.1,0.15,0.2 or ascending ranges such as 0.05-0.5+0.05",
          flag, Escaped(text, 60));
    }
    // 0.05 + 2 * 0.05 is 0.15000000000000002, so ratios are rounded to what a user would write.
    for (double& ratio : ratios) ratio = std::round(ratio * 1e9) / 1e9;
    return ratios;
  }

  ExitStatus Report(Context& context, const blend::CachePair& caches, const blend::Result& result,
                    const AttentionTrace& trace, const std::shared_ptr<const Snapshot>& full,
                    const std::vector<std::shared_ptr<const Snapshot>>& old) {
    blend::ReportExtras extras;
    extras.trace = trace_.empty() ? nullptr : &trace;
    extras.detail = detail_;
    extras.indices_file = indices_out_;
    if (prefill_ms_ > 0) {
      extras.controller = blend::PlanRatio(caches, prefill_ms_ / 1e3, load_gbps_ * 1e9);
    }
    for (const blend::Gate& gate : parsed_gates_) extras.gates.push_back(Judge(gate, result));
    if (!indices_out_.empty()) {
      AtomicFile file(indices_out_, RulesFor(force_));
      WriteIndices(result.selection.indices, file);
      file.Commit();
    }
    if (report_.wanted() || page_.wanted()) {
      if (page_.wanted()) {
        page_.Write(blend::ReportPage(caches, result, extras), *this, context.console,
                    RulesFor(force_));
      }
      const Blended blended{
          Inputs(*full, trace, old), {caches, result, extras}, context.console.warning_texts()};
      report_.Emit(context.console, "blend", BlendedFields, blended, RulesFor(force_));
    }
    if (!report_.json) PrintBlend(context.console, full_, caches, result, extras);
    return extras.pass() ? kDone : kVerdict;
  }

  std::vector<Blended::Input> Inputs(
      const Snapshot& full, const AttentionTrace& trace,
      const std::vector<std::shared_ptr<const Snapshot>>& old) const {
    std::vector<Blended::Input> inputs;
    const auto add = [&](std::string_view role, const Source& source, std::string_view format) {
      HashedFile content = HashedFile::Of(source);
      inputs.push_back({std::string(role), source.path, std::move(content), std::string(format)});
    };
    add("full", full.source, full.format);
    for (const auto& chunk : old) add("old", chunk->source, chunk->format);
    if (!trace_.empty()) {
      // A set of npy files has a stem but no file of that name.
      std::error_code ignored;
      if (std::filesystem::exists(trace_, ignored)) {
        add("q", Source::Open(trace_), trace.format);
      } else {
        inputs.push_back({"q", trace_, std::nullopt, trace.format});
      }
    }
    return inputs;
  }

  std::string full_, old_, trace_, engine_ = "cacheblend", score_, ratios_, mask_ = "exact";
  std::string emulate_, old_layout_, indices_out_, blended_out_, to_ = "safetensors";
  std::vector<std::string> chunks_, gates_;
  std::vector<blend::Gate> parsed_gates_;
  std::vector<uint64_t> lengths_;
  std::optional<uint64_t> suffix_;
  std::string shares_ = "0.16";
  std::vector<uint64_t> check_layers_ = {1};
  double prefill_ms_ = 0, load_gbps_ = 0;
  uint64_t seed_ = 0;
  bool detail_ = false, force_ = false;
  RopeFlags rope_;
};

}  // namespace

const FieldTable& ReplayBlendFields() { return BlendedFields(); }

std::unique_ptr<Command> MakeReplayBlend() { return std::make_unique<ReplayBlend>(); }

}  // namespace kv
