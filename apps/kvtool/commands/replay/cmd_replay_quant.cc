// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool replay quant`: smaller cache types on a cache and its trace, plans and advice for types,
// states in these types, and the origin of quantised caches.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include "apps/kvtool/command.h"
#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/replay/quant_plan.h"
#include "apps/kvtool/commands/replay/trace_replay.h"
#include "apps/kvtool/commands/transform/transform_types.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/line/numbers.h"
#include "formats/key_pairs.h"
#include "formats/registry.h"
#include "lib/core/base/error.h"
#include "lib/core/base/output.h"
#include "lib/core/base/parallel.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/fields/fields.h"
#include "lib/study/quantisation/origin.h"
#include "lib/study/quantisation/replay.h"
#include "lib/study/quantisation/report.h"
#include "lib/study/quantisation/types/cache_type.h"

namespace kv {
namespace {

using quantisation::Agreement;
using quantisation::Hypothesis;
using quantisation::Origin;
using quantisation::ReplayRequest;
using quantisation::ReplayResult;
using quantisation::SideOrigin;

// The types of K and V of a layer.
struct LayerTypes {
  const quant::CacheType* k = nullptr;
  const quant::CacheType* v = nullptr;
};

// Returns rows of a tensor as the engine stores them.
std::vector<std::byte> Packed(const KvTensor& tensor, const LayerKv& layer, uint32_t layers,
                              const quant::CacheType& type, bool is_key,
                              const quant::StoreOptions& options) {
  const uint64_t tokens = tensor.tokens();
  const std::vector<float> values = GatherFloats(tensor, 0, tokens, Order::kTokenHeadDim);
  const quant::Side side{values, tokens,      tensor.heads, tensor.head_dim,
                         is_key, layer.index, layers,       DType::kF16};
  if (side.row() % Info(*type.dtype).block_elements != 0) {
    throw Error(Finding::kUnsupportedKind, "{}: rows of {} values are not whole blocks", type.name,
                side.row());
  }
  return quant::PackedRows(type, side, options);
}

// Returns rows as one head if heads are not whole blocks; a state does not record the heads.
KvTensor AsRows(const std::vector<std::byte>& packed, const quant::CacheType& type,
                const KvTensor& like) {
  const auto row = static_cast<uint32_t>(like.channels());
  return ContiguousTensor(packed.data(), *type.dtype, like.tokens(), 1, row, Order::kTokenHeadDim);
}

void RequireEngineType(const quant::CacheType& type) {
  if (type.dtype && type.name == Name(*type.dtype)) return;
  throw Error(Finding::kUsage, "--output: llama.cpp has no cache of {}", type.name)
      .Hint("f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl are its types");
}

// Writes a cache in types of llama.cpp as a state of one sequence, reads it again and compares the
// result byte for byte. Returns the number of rows compared. `version` is the layout's (empty: the
// newest). Throws kUsage for types of which llama.cpp has no cache, and what the writer throws.
uint64_t WriteQuantState(const Snapshot& snapshot,
                         const std::function<LayerTypes(uint32_t layer)>& types_of,
                         const quant::StoreOptions& options,
                         const std::optional<ModelGeometry>& geometry, const std::string& version,
                         const std::string& path, const OutputRules& rules, ThreadPool& pool) {
  for (const LayerKv& layer : snapshot.layers) {
    RequireEngineType(*types_of(layer.index).k);
    if (layer.v) RequireEngineType(*types_of(layer.index).v);
  }
  Snapshot changed = snapshot;
  const auto layers = static_cast<uint32_t>(snapshot.layers.size());
  std::vector<std::vector<std::byte>> k_rows(layers), v_rows(layers);
  pool.ParallelFor(uint64_t{2} * layers, [&](uint64_t i) {
    const LayerKv& layer = snapshot.layers[i / 2];
    const LayerTypes types = types_of(layer.index);
    if (i % 2 == 0) {
      k_rows[i / 2] = Packed(layer.k, layer, layers, *types.k, true, options);
    } else if (layer.v) {
      v_rows[i / 2] = Packed(*layer.v, layer, layers, *types.v, false, options);
    }
  });
  for (uint32_t l = 0; l < layers; ++l) {
    LayerKv& layer = changed.layers[l];
    const LayerTypes types = types_of(layer.index);
    layer.k = AsRows(k_rows[l], *types.k, snapshot.layers[l].k);
    if (layer.v) layer.v = AsRows(v_rows[l], *types.v, *snapshot.layers[l].v);
    // Blocks cannot be transposed: such caches come from runs with flash attention.
    if (layer.v && IsBlockQuantised(layer.v->dtype)) changed.storage.erase("v_order");
  }
  changed.storage.erase("version");
  if (!version.empty()) changed.storage["version"] = version;
  const FormatEntry& format = WritableFormat("llama-state");
  RequireKeyPairs(format.pairs, geometry, snapshot);
  format.write(changed, path, rules);

  const Snapshot written = OpenSnapshot(Source::Open(path), {});
  KV_ASSERT(written.layers.size() == layers);
  uint64_t rows = 0;
  for (uint32_t l = 0; l < layers; ++l) {
    const auto check = [&](const KvTensor& tensor, const std::vector<std::byte>& packed) {
      if (Gather(tensor, 0, tensor.tokens(), Order::kTokenHeadDim) != packed) {
        throw Error(Finding::kWriteFailed,
                    "layer {}: the rows that were read back differ from those that were written", l)
            .File(path);
      }
      rows += tensor.tokens();
    };
    check(written.layers[l].k, k_rows[l]);
    if (written.layers[l].v) check(*written.layers[l].v, v_rows[l]);
  }
  return rows;
}

const Fields<Agreement>& AgreementFields() {
  static const Fields<Agreement> fields = {
      {"codes", "Number of quantised codes that were compared", &Agreement::codes},
      {"equal_codes", "Codes that are equal in both", &Agreement::equal_codes},
      {"equal_codes_fraction", "equal_codes / codes", &Agreement::share},
      {"equal_blocks_fraction", "Share of the blocks in which all codes are equal",
       &Agreement::block_share},
      {"furthest", "The largest difference between two codes", &Agreement::furthest}};
  return fields;
}

// A tried way to store K or V.
struct TriedOrigin {
  DType dtype;
  const Hypothesis& hypothesis;
};

const Fields<TriedOrigin>& TriedOriginFields() {
  static const Fields<TriedOrigin> fields = {
      {"hadamard", "Whether values are rotated by a Hadamard transform before they are quantised",
       [](const TriedOrigin& of) { return of.hypothesis.origin.rotated; }},
      {"rounding", "How q8_0 rounds: avx (x86), ref (plain C) or arm; null for other types",
       [](const TriedOrigin& of) {
         return of.dtype == DType::kQ8_0
                    ? std::optional(quantisation::RoundingName(of.hypothesis.origin.rounding))
                    : std::nullopt;
       },
       OneOf("avx", "ref", "arm")},
      {"searched", "Whether the quantiser searches for the best scale, which only iq4_nl may do",
       [](const TriedOrigin& of) { return of.hypothesis.origin.searched; }},
      Fields<TriedOrigin>::Inline(
          [](const TriedOrigin& of) -> const Agreement& { return of.hypothesis.first_layer; },
          AgreementFields())};
  return fields;
}

std::vector<TriedOrigin> TriedIn(const SideOrigin& side) {
  std::vector<TriedOrigin> tried;
  for (const Hypothesis& hypothesis : side.tried) tried.push_back({side.dtype, hypothesis});
  return tried;
}

const Fields<SideOrigin>& SideOriginFields() {
  static const Fields<SideOrigin> fields = {
      {"type", "The cache type, such as q8_0",
       [](const SideOrigin& side) { return Name(side.dtype); }},
      {"named", "Whether at least 98% of the first layer's codes agree with the best candidate",
       &SideOrigin::is_named},
      {"equally_good", "Number of candidates that agree as well as the best one",
       &SideOrigin::equally_good, AtLeast(1)},
      {"tried", "Candidates by falling agreement in the first layer", TriedIn, TriedOriginFields()},
      {"layers", "Agreement with the best candidate", &SideOrigin::layers, AgreementFields()}};
  return fields;
}

// Returns the roundings that fit equally well; two runs distinguish them only if a value lies
// midway.
std::string OriginText(const SideOrigin& side) {
  const Origin& best = side.tried.front().origin;
  std::string text =
      fmt::format("{}, {}", Name(side.dtype), best.rotated ? "rotated" : "not rotated");
  if (best.searched) text += ", with a search over scales";
  if (side.dtype != DType::kQ8_0) return text;
  text += ", rounded as";
  for (size_t i = 0; i < side.equally_good(); ++i) {
    text += i == 0 ? " " : " or ";
    text += quantisation::RoundingName(side.tried[i].origin.rounding);
  }
  if (side.equally_good() > 1) text += " (which fit equally well)";
  return text;
}

void PrintSide(Console& console, char name, const std::optional<SideOrigin>& side) {
  if (!side) {
    console.Line(fmt::format("{}: not quantised", name));
    return;
  }
  const Hypothesis& best = side->tried.front();
  const double others = side->tried.size() > side->equally_good()
                            ? side->tried[side->equally_good()].first_layer.share()
                            : 0;
  console.Line(
      fmt::format("{}: {}{}: {:.2f}% of the first layer's codes agree, {:.2f}% with the next best",
                  name, side->is_named() ? "" : "not identified, nearest to ", OriginText(*side),
                  100 * best.first_layer.share(), 100 * others));
}

// Returns true if the type of each quantised side, K or V, was identified.
bool IsNamed(const quantisation::CacheOrigin& origin) {
  return (!origin.k || origin.k->is_named()) && (!origin.v || origin.v->is_named());
}

// Returns the fields of kvtool.quant-origin, except its inputs.
const Fields<quantisation::CacheOrigin>& CacheOriginFields() {
  using Origins = quantisation::CacheOrigin;
  static const Fields<Origins> fields = {
      {"k", "How K was quantised; null: K is not quantised", &Origins::k, SideOriginFields()},
      {"v", "How V was quantised; null: V is not quantised", &Origins::v, SideOriginFields()},
      {"named", "Whether the type was identified for each of K and V that is quantised", IsNamed}};
  return fields;
}

void PrintOrigin(Console& console, const quantisation::CacheOrigin& origin) {
  PrintSide(console, 'K', origin.k);
  PrintSide(console, 'V', origin.v);
  if (!origin.k && !origin.v) return;
  Table table({"layer", "K codes", "K blocks", "K furthest", "V codes", "V blocks", "V furthest"});
  const size_t layers = origin.k ? origin.k->layers.size() : origin.v->layers.size();
  for (size_t l = 0; l < layers; ++l) {
    std::vector<std::string> row = {std::to_string(l)};
    for (const auto* side : {&origin.k, &origin.v}) {
      if (!*side) {
        row.insert(row.end(), 3, "-");
        continue;
      }
      const Agreement& agreement = (*side)->layers[l];
      row.push_back(fmt::format("{:.2f}%", 100 * agreement.share()));
      row.push_back(fmt::format("{:.2f}%", 100 * agreement.block_share()));
      row.push_back(std::to_string(agreement.furthest));
    }
    table.Row(row);
  }
  console.Line("deeper layers drift apart with the hidden states of the two runs:");
  console.Data(table.Text());
}

// The result of a run; its document has these fields.
struct QuantReplayed {
  struct Written {
    std::string file;
    bool hadamard = false;
    uint64_t rows_checked = 0;
  };
  std::vector<HashedFile> inputs;
  quantisation::Report report;
  std::optional<quantisation::OutcomeOf> plan;
  std::optional<QuantAdvice> advice;
  std::vector<std::string> warnings;
  std::optional<Written> out;
  std::optional<TransformUse> transform = {};
};

const Fields<QuantReplayed::Written>& QuantWrittenFields() {
  using Written = QuantReplayed::Written;
  static const Fields<Written> fields = {
      {"file", "Name of the file", &Written::file},
      {"hadamard", "Whether quantised values are rotated", &Written::hadamard},
      {"rows_checked", "Rows that were read again and compared with what was to be written",
       &Written::rows_checked}};
  return fields;
}

const Fields<QuantReplayed>& QuantReplayedFields() {
  static const Fields<QuantReplayed> fields = {
      {"inputs", "What was read", &QuantReplayed::inputs, HashedFileFields()},
      Fields<QuantReplayed>::Inline(&QuantReplayed::report, quantisation::ReportFields()),
      {"plan", "Results of the types of --plan; null without that flag", &QuantReplayed::plan,
       quantisation::OutcomeFields()},
      {"advice", "Types that --advise chose; null without that flag", &QuantReplayed::advice,
       QuantAdviceFields()},
      {"warnings", "Warnings of the run", &QuantReplayed::warnings},
      {"out", "The state that was written; with --output", &QuantReplayed::out,
       QuantWrittenFields(), Absent()},
      {"transform", "The transform, and the types that code all layers by it; with --transform",
       &QuantReplayed::transform, TransformUseFields(), Absent()}};
  return fields;
}

// The result of --against.
struct QuantTraced {
  std::vector<HashedFile> inputs;
  quantisation::CacheOrigin origin;
};

const Fields<QuantTraced>& QuantTracedFields() {
  static const Fields<QuantTraced> fields = {
      {"inputs", "What was read", &QuantTraced::inputs, HashedFileFields()},
      Fields<QuantTraced>::Inline(&QuantTraced::origin, CacheOriginFields())};
  return fields;
}

class ReplayQuant : public ForEachInput<ReplayQuant, TraceReplay> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(line, "SNAPSHOT", "Snapshots, or recorded runs: files, folders, '-' for stdin");
    line.Add("--trace", trace_,
             "Trace with queries: file, folder, or DIR/STEM (default: that of the run)")
        .Once();
    const Option k = line.Add("--k", k_, "Types of K, a comma list (default: q8_0,q5_1,q4_0)")
                         .Suggest(TypeWords())
                         .Separator(',');
    const Option v = line.Add("--v", v_, "Types of V, a comma list (default: q8_0,q5_1,q4_0)")
                         .Suggest(TypeWords())
                         .Separator(',');
    transforms_.Declare(line);
    Option plan =
        line.Add("--plan", plan_, "Types of each layer from a file (kvtool.quant-plan/1)");
    Option against = line.Add(
        "--against", against_,
        "Full cache of the same text, to find out how the snapshot was quantised; needs no trace");
    DeclareMeasurement(line);
    const Option advise =
        line.AddFlag("--advise", advise_,
                     "Choose types for each layer; needs --max-kl, --bytes-per-token or both")
            .Essential();
    line.Add("--max-kl", max_kl_,
             "With --advise: limit on the loss, in calibrated nats per next token")
        .NonNegative()
        .Essential()
        .Needs(advise);
    line.Add("--bytes-per-token", bytes_,
             "With --advise: limit on the bytes per token, over all layers")
        .Positive()
        .Needs(advise);
    line.Add("--plan-out", plan_out_, "With --advise: write the types of each layer").Needs(advise);
    const Option output = line.Add(
        "-o,--output|--out", out_,
        "Write the quantised cache as a llama.cpp state (one type of K and of V, or a plan)");
    line.Add("--target-version", version_,
             "Build or layout that --output is for (default: the newest)")
        .Needs(output);
    for (const Option& other : {k, v, advise}) plan.Excludes(other);
    for (const Option& other : {k, v, plan, advise, output}) against.Excludes(other);
    line.AddFlag("--detail", detail_, "Add the figures of every head to the JSON document");
    page_.Declare(line);
    line.AddFlag("-f,--force", force_, "Overwrite outputs");
    DeclareRest(line, "RoPE of the model, for types that quantise keys before it",
                SnapshotOptions::TransformFlag::kOfCommand);
  }

  void Files(CommandFiles& files) const override {
    TraceReplay::Files(files);
    files.Reads({against_, plan_, transforms_.file()});
    files.Writes({{plan_out_, "--plan-out"}, {out_, "-o"}});
  }

  ExitStatus Run(Context& context) override {
    CheckUsage();
    if (!against_.empty()) return RunAgainst(context);
    const auto [options, trace, snapshot] = Open(context.console);
    const std::optional<ModelRope> rope = rope_.Resolve(options, &snapshot);
    TransformTypes transforms = transforms_;
    const ModelRope* const known_rope = rope ? &*rope : nullptr;
    transforms.Open(snapshot, known_rope);
    ReplayRequest request = RequestFor(snapshot, trace, transforms);
    request.store.rope = known_rope;
    std::optional<QuantPlan> plan;
    if (!plan_.empty()) plan = TakePlan(plan_, snapshot, request);
    ThreadPool pool(context.global.thread_count());
    ReplayResult result;
    {
      ProgressLine progress(context.console, context.global.progress_when(), "replay");
      result = quantisation::Replay(snapshot, trace, request, pool, &progress);
    }
    const QuantLimits limits{max_kl_, bytes_};
    std::optional<quantisation::SearchResult> found;
    if (advise_) found = SearchTypes(limits, request, result);
    std::vector<std::string> warnings = QuantWarnings(snapshot, request, result);
    std::ranges::move(transforms.Warnings(), std::back_inserter(warnings));
    for (const std::string& warning : warnings) context.console.Warn(input_, warning);
    const std::vector<std::string> notes = quantisation::WriteNotes(result);
    const quantisation::Report report{snapshot, trace, request, result, detail_, ModelName(trace)};
    QuantReplayed replayed{{HashedFile::Of(snapshot.source)}, report, {}, {}, warnings, {}};
    replayed.transform = transforms.Use();
    if (plan) replayed.plan = {Evaluate(result, FindChoice(*plan, request, result)), result.tokens};
    if (found) replayed.advice.emplace(QuantAdvice{limits, request, result, *found});
    if (found && found->best && !plan_out_.empty())
      WritePlan(snapshot, MakeQuantPlan(request, result, found->best->choice));
    if (!out_.empty()) replayed.out = WriteState(context, snapshot, options, request, plan, pool);
    if (page_.wanted()) {
      std::vector<std::string> remarks = notes;
      remarks.insert(remarks.end(), warnings.begin(), warnings.end());
      page_.Write(ReportPage(report, remarks), *this, context.console, RulesFor(force_));
    }
    report_.Emit(context.console, "quant", QuantReplayedFields, replayed, RulesFor(force_));
    if (!report_.json) {
      PrintHead(context.console, result);
      context.console.Data(Table(quantisation::PairTable(report)).Text());
      for (const std::string& note : notes) context.console.Line("note: " + note);
      if (const std::string text = transforms.Text(); !text.empty()) context.console.Data(text);
      if (plan) PrintOutcome(context.console, "plan", replayed.plan->outcome, result);
      if (found) PrintAdvice(context.console, request, result, *found);
    }
    return found && !found->best ? kVerdict : kDone;
  }

 private:
  void DeclareMeasurement(CommandLine& line) {
    line.Add("--rounding", rounding_,
             "How q8_0 rounds: avx (x86), ref (plain C, tools), arm (default: avx)")
        .OneOf({"avx", "ref", "arm"});
    line.Add(
            "--hadamard", hadamard_,
            "Whether llama.cpp rotates what it quantises: yes (since 2026-04) or no (default: yes)")
        .OneOf({"yes", "no"});
    line.Add("--engine-q", engine_q_,
             "How queries meet quantised keys: cpu (rounded, as llama.cpp's CPU code) or exact "
             "(default: cpu)")
        .OneOf({"cpu", "exact"});
    line.Add("--keep-first", keep_first_, "First tokens that stay unquantised (default: 0)");
    line.Add("--keep-last", keep_last_,
             "Last tokens that each query sees unquantised (default: 0)");
    line.Add("--prompt-tokens", prompt_,
             "Measure the rows from here on (default: the prompt's end, if the trace states it)")
        .Between(int64_t{0}, int64_t{UINT32_MAX})
        .Essential();
    line.Add("--sample-rows|--rows", rows_,
             "Query rows of a layer to measure, drawn by --seed; 0: all (default: 512)");
    line.Add("--seed", seed_, "Seed of the sampled rows (default: 0)");
    line.Add("--sensitivity", sensitivity_,
             "Predict nats by these layer weights (kvtool.sensitivity/1), not by gradients");
  }

  ExitStatus RunAgainst(Context& context) const {
    OpenOptions options = snapshot_.Resolve(FlagsFor::kSeveral);
    const Snapshot quantised = OpenSnapshot(snapshot_.Open(input_), options);
    const Snapshot full = OpenSnapshot(snapshot_.Open(against_), options);
    WarnAboutNotes(quantised.notes, input_, context.console);
    WarnAboutNotes(full.notes, against_, context.console);
    if (quantised.layers.empty() || full.layers.empty()) {
      throw Error(Finding::kUnsupportedKind, "the snapshot has no attention layers").File(input_);
    }
    RequireHeads(full, "the search for the rotation");
    ThreadPool pool(context.global.thread_count());
    QuantTraced traced{{}, quantisation::FindOrigin(quantised, full, pool)};
    const quantisation::CacheOrigin& origin = traced.origin;
    if (!origin.k && !origin.v) {
      throw Error(Finding::kUnsupportedKind, "nothing is quantised in blocks of llama.cpp")
          .File(input_);
    }
    traced.inputs = {HashedFile::Of(quantised.source), HashedFile::Of(full.source)};
    report_.Emit(context.console, "quant-origin", QuantTracedFields, traced, RulesFor(force_));
    if (!report_.json) PrintOrigin(context.console, origin);
    return IsNamed(origin) ? kDone : kVerdict;
  }

  // Checks what the declarations of the options do not.
  void CheckUsage() const {
    if (!against_.empty() && page_.wanted())
      throw Error(Finding::kUsage, "--against: writes no page and no pictures; leave them out");
    if (advise_ && !transforms_.file().empty()) {
      throw Error(Finding::kUsage,
                  "--advise: chooses types by layer, but a transform codes all layers together");
    }
    if (advise_ && !max_kl_ && bytes_ == 0) {
      throw Error(Finding::kUsage, "--advise: needs --max-kl, --bytes-per-token or both");
    }
    if (!out_.empty() && plan_.empty() && (k_.size() != 1 || v_.size() != 1 || advise_))
      throw Error(Finding::kUsage, "--output: choose one --k and one --v, or a --plan");
    if (!out_.empty() && keep_first_ + keep_last_ > 0) {
      throw Error(Finding::kUsage,
                  "--keep-first, --keep-last: a state has one type for all tokens of a layer");
    }
  }

  void WritePlan(const Snapshot& snapshot, const QuantPlan& chosen) const {
    nlohmann::ordered_json written = ReportHeader("quant-plan");
    written["source"] = InputRecord(snapshot.source);
    written.update(ToJson(QuantPlanFields().Object(chosen)));
    WriteText(plan_out_, JsonText(written) + "\n", RulesFor(force_));
  }

  QuantReplayed::Written WriteState(Context& context, const Snapshot& snapshot,
                                    const OpenOptions& options, const ReplayRequest& request,
                                    const std::optional<QuantPlan>& plan, ThreadPool& pool) const {
    const quantisation::StoreRequest& store = request.store;
    const auto types_of = [&](uint32_t layer) {
      LayerTypes types{store.k_types.back(), store.v_types.back()};
      if (!plan) return types;
      types = {store.k_types.front(), store.v_types.front()};
      for (const QuantPlan::Layer& of_plan : plan->layers) {
        if (of_plan.layer == layer)
          types = {quant::FindCacheType(of_plan.k), quant::FindCacheType(of_plan.v)};
      }
      return types;
    };
    const quant::StoreOptions how{store.rounding, store.rotate, nullptr};
    const uint64_t rows = WriteQuantState(snapshot, types_of, how, options.geometry, version_, out_,
                                          RulesFor(force_, input_, snapshot.source), pool);
    context.console.Say(fmt::format(
        "{}: {} rows read back as written; quantised values are {} for builds {} 2026-04 (the file "
        "does not record this)",
        Printable(out_), rows, store.rotate ? "rotated where heads allow it," : "not rotated,",
        store.rotate ? "from" : "before"));
    return {out_, store.rotate, rows};
  }

  // Returns the types named on the command line, each once.
  std::vector<const quant::CacheType*> TypesFor(const std::vector<std::string>& names, bool is_key,
                                                uint64_t prompt, TransformTypes& transforms) const {
    std::vector<const quant::CacheType*> types;
    for (const std::string& name : names) {
      const quant::CacheType* type = transforms.Make(name, is_key, prompt, keep_first_, keep_last_);
      const auto listed =
          type != nullptr ? std::vector{type} : ParseTypes({name}, is_key ? "--k" : "--v");
      if (std::find(types.begin(), types.end(), listed.front()) == types.end())
        types.push_back(listed.front());
    }
    return types;
  }

  ReplayRequest RequestFor(const Snapshot& snapshot, const AttentionTrace& trace,
                           TransformTypes& transforms) const {
    ReplayRequest request;
    quantisation::StoreRequest& store = request.store;
    const std::vector<std::string> usual = {"q8_0", "q5_1", "q4_0"};
    const bool neither = k_.empty() && v_.empty() && plan_.empty();
    const std::vector<std::string>& k = neither ? usual : k_;
    const std::vector<std::string>& v = neither ? usual : v_;
    // The first type is the unchanged cache, with which the others are compared, so it must lose
    // nothing.
    const bool is_bf16 = snapshot.layers.front().k.dtype == DType::kBF16;
    std::vector<std::string> names = {is_bf16 ? "bf16" : "f16"};
    names.insert(names.end(), k.begin(), k.end());
    request.prompt_tokens = CountPromptTokens(trace);
    store.k_types = TypesFor(names, true, request.prompt_tokens, transforms);
    names.resize(1);
    names.insert(names.end(), v.begin(), v.end());
    store.v_types = TypesFor(names, false, request.prompt_tokens, transforms);
    const auto keys = static_cast<uint32_t>(store.k_types.size());
    const auto values = static_cast<uint32_t>(store.v_types.size());
    for (uint32_t i = 0; i < keys; ++i) request.pairs.push_back({i, 0});
    for (uint32_t j = 1; j < values; ++j) request.pairs.push_back({0, j});
    for (uint32_t i = 1; i < keys; ++i) {
      for (uint32_t j = 1; j < values; ++j) request.pairs.push_back({i, j});
    }
    store.engine_q =
        engine_q_ == "exact" ? quantisation::EngineQ::kExact : quantisation::EngineQ::kCpu;
    store.rounding = rounding_ == "ref"   ? Q8Rounding::kReference
                     : rounding_ == "arm" ? Q8Rounding::kArm
                                          : Q8Rounding::kAvx;
    store.rotate = hadamard_ == "yes";
    store.keep_first = keep_first_;
    store.keep_last = keep_last_;
    request.head_dim = snapshot.layers.front().k.head_dim;
    request.rows = rows_;
    request.seed = seed_;
    const auto weights = WeightsFor(trace);
    if (weights) request.weights = *weights;
    if (max_kl_ && !weights && !trace.gradients) {
      throw Error(Finding::kUsage,
                  "--max-kl: the trace has no gradients, so no loss in nats is known")
          .File(trace_)
          .Hint(
              "capture them (python -m kvtool.capture MODEL --fisher 4 ...), or give "
              "--sensitivity FILE or --bytes-per-token");
    }
    return request;
  }

  uint64_t CountPromptTokens(const AttentionTrace& trace) const {
    uint64_t prompt = prompt_ >= 0          ? static_cast<uint64_t>(prompt_)
                      : trace.prompt_tokens ? *trace.prompt_tokens
                      : run_                ? run_->prompt_tokens
                                            : trace.q_start;
    prompt = std::max(prompt, trace.q_start);
    if (prompt >= trace.end_position()) {
      throw Error(Finding::kUsage, "--prompt-tokens {}: the trace ends at position {}", prompt,
                  trace.end_position() - 1)
          .Hint("--prompt-tokens 0 measures all rows");
    }
    return prompt;
  }

  void PrintHead(Console& console, const ReplayResult& result) const {
    console.Line(fmt::format(
        "{}: {} layers, {} tokens, {} of {} query rows a layer; --rounding {}, --hadamard {}, "
        "--engine-q {}{}",
        Printable(trace_), result.layers.size(), result.tokens, result.measured.positions.size(),
        result.measured.population, rounding_, hadamard_, engine_q_,
        keep_first_ + keep_last_ == 0
            ? std::string()
            : fmt::format("; first {} and last {} tokens in full (no engine has such a flag)",
                          keep_first_, keep_last_)));
  }

  std::string against_, out_, version_, plan_, plan_out_;
  std::vector<std::string> k_, v_;
  std::string rounding_ = "avx", hadamard_ = "yes", engine_q_ = "cpu";
  uint64_t keep_first_ = 0, keep_last_ = 0, bytes_ = 0;
  std::optional<double> max_kl_;
  bool advise_ = false;
  TransformTypes transforms_;  // as given on the command line; each input opens a copy
};

}  // namespace

const FieldTable& ReplayQuantFields() { return QuantReplayedFields(); }
const FieldTable& ReplayQuantOriginFields() { return QuantTracedFields(); }

std::unique_ptr<Command> MakeReplayQuant() { return std::make_unique<ReplayQuant>(); }

}  // namespace kv
