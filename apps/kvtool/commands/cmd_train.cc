// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool train`: learns a profile, or with --transform a transform, from the rows of all inputs.
#include <fmt/format.h>

#include <cmath>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/documents/transform_report.h"
#include "apps/kvtool/inputs/run_input.h"
#include "apps/kvtool/line/numbers.h"
#include "apps/kvtool/line/options.h"
#include "formats/kvx/kvx.h"
#include "formats/registry.h"
#include "formats/trace/trace.h"
#include "lib/core/archive/regression_trainer.h"
#include "lib/core/archive/train.h"
#include "lib/core/base/number.h"
#include "lib/engines/sglang/ascend.h"
#include "lib/study/transform/learn.h"
#include "lib/study/transform/weights.h"

namespace kv {
namespace {

// The options of `train --transform`, and the learning itself.
struct LearnFlags {
  std::string kind, ratios = "4,8,16", basis = "f32", grouping = "all";
  uint64_t rank = 0;
  uint32_t sinks = 4, window = 128;
  double hold = 0.2;
  std::vector<std::string> weights_from;
  RopeOptions rope;

  void Declare(CommandLine& line);
  bool wanted() const { return !kind.empty(); }
  // Learns from all inputs except the last ones (the share of --hold), which judge the result.
  Transform Learn(const std::vector<std::string>& inputs, const SnapshotOptions& snapshots,
                  const std::string& name, Context& context) const;
};

constexpr uint64_t kRowsOfFeature = 5;  // with fewer rows, the basis fits only its own rows

// The rows of K and V to learn from, and those for testing.
struct Lesson {
  transform::CacheRows learn, held_out;
};

void AppendRows(const transform::CacheRows& from, transform::CacheRows& to) {
  to.features = from.features;
  to.tokens += from.tokens;
  to.values.insert(to.values.end(), from.values.begin(), from.values.end());
}

// Names a cache among those that the transform is learnt from. Takes layers, heads and RoPE of the
// first one, which all others must have.
void TakeCache(const Snapshot& snapshot, const std::optional<ModelRope>& known_rope,
               Transform& transform) {
  transform::RequireRows(snapshot);
  const LayerKv& first = snapshot.layers.front();
  const auto layers = static_cast<uint32_t>(snapshot.layers.size());
  const bool rotates = snapshot.key_rotation != KeyRotation::kUnrotated;
  const std::string rope =
      rotates && known_rope ? RopeText(*known_rope, layers, first.k.head_dim) : "";
  TransformSide k{first.k.heads, first.k.head_dim, {}, {}, {}, {}};
  TransformSide v{first.v->heads, first.v->head_dim, {}, {}, {}, {}};
  const bool fits =
      transform.layers == 0 ||
      (transform.layers == layers && transform.k.heads == k.heads && transform.k.dim == k.dim &&
       transform.v.heads == v.heads && transform.v.dim == v.dim && transform.rope == rope);
  if (!fits) {
    throw Error(Finding::kInconsistent, "layers, heads or RoPE differ from earlier inputs");
  }
  transform.layers = layers;
  transform.rope = rope;
  transform.k = std::move(k);
  transform.v = std::move(v);
  for (const uint64_t hash : transform::Fingerprints(snapshot))
    transform.fingerprints.push_back(hash);
  transform.sources.push_back(HashedFile::Of(snapshot.source).xxh3);
}

class Lessons {
 public:
  Lessons(const LearnFlags& flags, size_t inputs)
      : flags_(flags),
        held_inputs_(static_cast<size_t>(std::ceil(flags.hold * static_cast<double>(inputs)))),
        inputs_(inputs) {}

  void Add(const Snapshot& snapshot, const std::optional<ModelRope>& rope) {
    const uint64_t tokens = snapshot.layers.front().k.tokens();
    const TokenRange middle = transform::MiddleRange(tokens, flags_.sinks, flags_.window);
    for (Lesson* lesson : {&k_, &v_}) {
      transform::CacheRows rows =
          transform::CollectRows(snapshot, lesson == &k_, rope ? &*rope : nullptr, middle);
      transform::DropNotFinite(rows);
      Take(rows, *lesson);
    }
    ++taken_;
  }

  const Lesson& k() const { return k_; }
  const Lesson& v() const { return v_; }

 private:
  // Holds out whole inputs, or the last rows of a single one.
  void Take(const transform::CacheRows& rows, Lesson& lesson) const {
    if (inputs_ > 1) {
      AppendRows(rows, taken_ + held_inputs_ >= inputs_ ? lesson.held_out : lesson.learn);
      return;
    }
    const auto kept = static_cast<uint64_t>((1 - flags_.hold) * static_cast<double>(rows.tokens));
    const auto cut = rows.values.begin() + static_cast<std::ptrdiff_t>(kept * rows.features);
    AppendRows({{rows.values.begin(), cut}, kept, rows.features}, lesson.learn);
    AppendRows({{cut, rows.values.end()}, rows.tokens - kept, rows.features}, lesson.held_out);
  }

  const LearnFlags& flags_;
  size_t held_inputs_, inputs_, taken_ = 0;
  Lesson k_, v_;
};

// Adds a recorded run to the weights; the transform then counts as learnt from it.
void AddRun(std::string path, SnapshotOptions snapshots, const LearnFlags& flags,
            Transform& transform, transform::LossWeights& weights, ThreadPool& pool) {
  RopeOptions rope_options = flags.rope;
  const std::optional<RecordedRun> run = TakeRun(path, snapshots);
  if (!run) {
    snapshots.Open(path);  // reports a file that is missing
    throw Error(Finding::kUsage, "--weights-from: not a recorded run")
        .Hint("python -m kvtool.capture MODEL --fisher 8 ... -o RUN records one");
  }
  std::string trace_path;
  TakeTrace(run, trace_path);
  TakeRope(run, snapshots, rope_options);
  RequireTrace(trace_path, path);
  const OpenOptions options = snapshots.Resolve(FlagsFor::kSeveral);
  const AttentionTrace trace = OpenTrace(trace_path, options);
  const Snapshot snapshot = OpenSnapshot(snapshots.Open(path), options, FindGeometry(trace));
  RequireMatch(trace, snapshot);
  const std::optional<ModelRope> rope = rope_options.Resolve(options, &snapshot);
  TakeCache(snapshot, rope, transform);
  weights.Add(snapshot, trace, rope ? &*rope : nullptr, flags.sinks, flags.window, pool);
}

// Warns if there is little to learn from; throws kUsage if there is nothing.
void RequireEnough(const Lesson& k, const LearnFlags& flags, const std::vector<std::string>& inputs,
                   Console& console) {
  if (inputs.size() == 1) {
    console.Warn(inputs.front(),
                 "only one cache was given: its last rows judge what was learnt from its other "
                 "rows, but all are of one text");
  }
  const transform::CacheRows& rows = k.learn;
  if (rows.tokens < kRowsOfFeature * rows.features) {
    console.Warn(inputs.front(),
                 fmt::format("{} rows of {} features: with fewer than {} rows a feature the basis "
                             "overfits the rows that it is learnt from",
                             rows.tokens, rows.features, kRowsOfFeature));
  }
  if (k.held_out.tokens != 0 && rows.tokens != 0) return;
  throw Error(Finding::kUsage, "--keep-first {}, --keep-last {}: they leave no token to learn from",
              flags.sinks, flags.window);
}

uint32_t LayersOfGroup(const std::string& grouping, uint32_t layers) {
  if (grouping == "all") return layers;
  if (grouping == "layer") return 1;
  const auto number = ParseNumber<uint32_t>(grouping);
  if (number && *number > 0) return *number;
  throw Error(Finding::kUsage, "--grouping {}: expected all, layer or a number of layers",
              grouping);
}

void LearnFlags::Declare(CommandLine& line) {
  const CommandLine::Heading heading(line, "Transforms");
  line.Add("--transform", kind, "Learn a transform of K and V of this kind, not a profile: kvtc")
      .OneOf({"kvtc"});
  line.Add("--ratio", ratios, "Ratios that the transform can be used at (default: 4,8,16)")
      .Check(CheckedBy([](const std::string& text) { ParseRatios(text, "--ratio"); }));
  line.Add("--rank", rank,
           "Components of a basis, a multiple of 16 (default: chosen on half of the rows)");
  line.Add("--grouping", grouping,
           "Layers that share a basis: all, layer or a number (default: all)")
      .Check(CheckedBy([](const std::string& text) { LayersOfGroup(text, 1); }));
  line.Add("--basis", basis, "How the basis is stored: f32 or bf16 (default: f32)")
      .OneOf({"f32", "bf16"});
  line.Add("--keep-first", sinks, "First tokens of each cache that stay in full (default: 4)");
  line.Add("--keep-last", window, "Last tokens of each cache that stay in full (default: 128)");
  line.OnText(
      "--hold", [this](const std::string& text) { hold = ParseShare(text, "--hold", 0.01, 0.9); },
      "Share of the inputs held out to judge what was learnt from the others (default: 0.2)");
  line.Add("--weights-from", weights_from,
           "Recorded runs with gradients: weigh each feature by its share in the loss (repeatable)")
      .KeepAll();
  rope.Declare(line, "How K is rotated, for --transform");
}

Transform LearnFlags::Learn(const std::vector<std::string>& inputs,
                            const SnapshotOptions& snapshots, const std::string& name,
                            Context& context) const {
  Transform transform;
  transform.model = name;
  transform.sinks = sinks;
  transform.window = window;
  transform.is_bfloat = basis == "bf16";
  const OpenOptions options =
      snapshots.Resolve(inputs.size() > 1 ? FlagsFor::kSeveral : FlagsFor::kOne);
  Lessons lessons(*this, inputs.size());
  for (const std::string& input : inputs) {
    try {
      const Snapshot snapshot = OpenSnapshot(snapshots.Open(input), options);
      WarnAboutNotes(snapshot.notes, input, context.console);
      snapshot.CheckContent();
      const std::optional<ModelRope> known_rope = rope.Resolve(options, &snapshot);
      TakeCache(snapshot, known_rope, transform);
      lessons.Add(snapshot, known_rope);
      if (transform.model.empty()) transform.model = snapshot.model.substr(0, 255);
    } catch (Error& error) {
      throw error.File(input);
    }
  }
  RequireEnough(lessons.k(), *this, inputs, context.console);
  transform.rows = lessons.k().learn.tokens;
  transform::LearnOptions how{rank,
                              LayersOfGroup(grouping, transform.layers),
                              transform.is_bfloat,
                              ParseRatios(ratios, "--ratio"),
                              {&transform::kKvtcForm, &sglang::kAscendForm},
                              {}};
  ThreadPool pool(context.global.thread_count());
  transform::LossWeights weights;
  for (const std::string& path : weights_from) {
    try {
      AddRun(path, snapshots, *this, transform, weights, pool);
    } catch (Error& error) {
      throw error.File(path);
    }
  }
  for (TransformSide* side : {&transform.k, &transform.v}) {
    const Lesson& lesson = side == &transform.k ? lessons.k() : lessons.v();
    if (!weights_from.empty()) how.weights = weights.Get(side == &transform.k);
    *side = transform::LearnSide(lesson.learn, lesson.held_out, transform.layers, side->heads,
                                 side->dim, how, pool);
  }
  return transform;
}

// The result of a run; its document has these fields.
struct Trained {
  std::vector<HashedFile> inputs;
  std::string output;
  uint64_t values = 0, tokens = 0;
  std::shared_ptr<const Profile> profile;
  std::optional<LearntRegressions> across_layers = {};
  std::optional<Transform> transform = {};
};

const Fields<Trained>& TrainParamsFields() {
  static const Fields<Trained> fields = {
      {"name", "Name of the model in the profile or transform",
       [](const Trained& of) { return of.profile ? of.profile->name() : of.transform->model; }}};
  return fields;
}

const Fields<LearntRegressions>& AcrossLayersFields() {
  static const Fields<LearntRegressions> fields = {
      {"rows", "Tokens that the regressions were learnt from", &LearntRegressions::rows},
      {"held_out", "Tokens of the inputs that were held out to measure the gain",
       &LearntRegressions::held_out},
      {"layers_back", "Number of layers before a layer that predict it",
       &LearntRegressions::layers_back},
      {"bits_per_weight", "Bits of the profile for each weight",
       &LearntRegressions::bits_per_weight, AtLeast(0)},
      {"k_saved",
       "Bits per value of K that the regressions save on the tokens held out; null without such "
       "tokens",
       &LearntRegressions::k_saved},
      {"v_saved",
       "Bits per value of V that the regressions save on the tokens held out; null without such "
       "tokens",
       &LearntRegressions::v_saved}};
  return fields;
}

const Fields<Trained>& TrainedFields() {
  const auto itself = [](const Trained& of) -> const Trained& { return of; };
  const auto profile = [](const Trained& of) { return of.profile.get(); };
  static const Fields<Trained> fields = {
      {"inputs", "What was read", &Trained::inputs, HashedFileFields()},
      {"params", "Parameters of the run", itself, TrainParamsFields()},
      {"output", "Profile or transform that was written", &Trained::output},
      {"values", "Values of K and V that were learnt from", &Trained::values},
      {"tokens", "Tokens of all inputs together", &Trained::tokens},
      {"profile", "What the profile holds; without --transform", profile, ProfileFields(),
       Absent()},
      {"across_layers", "Regressions that predict layers from each other; with --across-layers",
       &Trained::across_layers, AcrossLayersFields(), Absent()},
      {"transform", "What the transform holds; with --transform", &Trained::transform,
       TransformFields(), Absent()}};
  return fields;
}

class Train : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("FILE", inputs_, "Snapshots of one model: files, folders").Required();
    output_.Declare(line, "Profile or transform to write, e.g. model.kvp or model.kvx");
    line.Add("--name", name_, "Name of the model (default: as the snapshots say)");
    line.Add("--across-layers", across_layers_,
             "Also learn to predict each layer from those before it, for level max, in at most "
             "this size, e.g. 5MiB");
    learn_.Declare(line);
    snapshot_.Declare(line, SnapshotOptions::TransformFlag::kOfCommand);
    report_.Declare(line);
  }

  void TakeRuns() override {
    SnapshotOptions unused;
    for (std::string& input : inputs_) TakeRun(input, inputs_.size() == 1 ? snapshot_ : unused);
  }

  void Files(CommandFiles& files) const override {
    files.Reads(inputs_);
    files.Reads(learn_.weights_from);
    files.Writes(output_.path, "-o");
    Command::Files(files);
  }

  ExitStatus Run(Context& context) override {
    if (output_.path.empty() || output_.path == "-" || output_.to_stdout)
      throw Error(Finding::kUsage, "a profile is written to a file").Hint("give -o model.kvp");
    if (name_.size() > kMostName) throw Error(Finding::kUsage, "--name has more than 255 bytes");
    if (learn_.wanted()) {
      if (!across_layers_.empty())
        throw Error(Finding::kUsage,
                    "--across-layers makes a profile, --transform a transform: give one of them");
      return LearnTransform(context);
    }
    const uint64_t most_bytes =
        across_layers_.empty() ? 0 : ParseSize(across_layers_, "--across-layers");
    if (!across_layers_.empty() && most_bytes == 0)
      throw Error(Finding::kUsage, "--across-layers {}: expected a size above 0", across_layers_);
    const OpenOptions options =
        snapshot_.Resolve(inputs_.size() > 1 ? FlagsFor::kSeveral : FlagsFor::kOne);
    ProfileBuilder builder;
    Trained result;
    result.output = output_.path;
    std::string name = name_;
    std::vector<Snapshot> kept;
    for (const std::string& input : inputs_) {
      try {
        Snapshot snapshot = OpenSnapshot(snapshot_.Open(input), options);
        WarnAboutNotes(snapshot.notes, input, context.console);
        Learn(snapshot, input, builder, result, context.console);
        if (name.empty()) name = snapshot.model.substr(0, kMostName);
        if (most_bytes > 0) kept.push_back(std::move(snapshot));
      } catch (Error& error) {
        throw error.File(input);
      }
    }
    if (result.tokens < kFewTokens) {
      context.console.Warn(
          "", fmt::format("{} are too few to learn from well: give caches of some thousand tokens",
                          Plural(result.tokens, "token")));
    }
    if (most_bytes > 0) result.across_layers = LearnAcrossLayers(kept, most_bytes, context);
    const std::shared_ptr<const Profile> profile = builder.Finish(
        name, result.across_layers ? result.across_layers->regressions : Regressions());
    AtomicFile file(output_.path, RulesFor(output_.force, inputs_));
    file.Write(profile->file());
    file.Commit();

    result.values = builder.values();
    result.profile = profile;
    report_.Emit(context.console, "train", TrainedFields, result, RulesFor(output_.force));
    if (!report_.json) {
      context.console.Say(
          fmt::format("{}: {}, learnt from {} values of {} in {}: {}", Printable(output_.path),
                      ProfileSummary(*profile), builder.values(), Plural(result.tokens, "token"),
                      Plural(inputs_.size(), "file"), ProfileHashText(profile->hash())));
      if (result.across_layers) context.console.Say(DescribeAcrossLayers(*result.across_layers));
    }
    return kDone;
  }

 private:
  static constexpr size_t kMostName = 255;
  static constexpr uint64_t kFewTokens = 1000;

  // Fewer tokens than this for each tap give weights that fit only these tokens.
  static constexpr uint64_t kFewTokensPerTap = 4;

  static LearntRegressions LearnAcrossLayers(std::span<const Snapshot> snapshots,
                                             uint64_t most_bytes, Context& context) {
    ThreadPool pool(context.global.thread_count());
    LearntRegressions learnt = LearnRegressions(snapshots, most_bytes, pool);
    uint64_t taps = 0;
    for (const Regression& one : learnt.regressions.list) taps = std::max(taps, one.taps());
    if (learnt.rows < kFewTokensPerTap * taps) {
      context.console.Warn(
          "", fmt::format("{} are too few to learn {} weights for each value: other texts may gain "
                          "nothing; give caches of at least {} tokens",
                          Plural(learnt.rows, "token"), taps, kFewTokensPerTap * taps));
    }
    return learnt;
  }

  static std::string DescribeAcrossLayers(const LearntRegressions& learnt) {
    std::string text =
        fmt::format("  across layers: {} on up to {} before, {:.2f} bits for each weight",
                    Plural(learnt.regressions.list.size(), "regression"),
                    Plural(learnt.layers_back, "layer"), learnt.bits_per_weight);
    if (learnt.held_out > 0) {
      text += fmt::format("; they save {:.2f} bits per value of K, {:.2f} of V on {} held out",
                          learnt.k_saved.value_or(0), learnt.v_saved.value_or(0),
                          Plural(learnt.held_out, "token"));
    }
    return text;
  }

  static void Learn(const Snapshot& snapshot, const std::string& input, ProfileBuilder& builder,
                    Trained& result, Console& console) {
    snapshot.CheckContent();
    const uint64_t passed_over = builder.passed_over();
    builder.Add(snapshot);
    if (builder.passed_over() > passed_over) {
      console.Warn(input, fmt::format("{} of types other than f16 and bf16 were skipped",
                                      HumanBytes(builder.passed_over() - passed_over)));
    }
    const HashedFile file = HashedFile::Of(snapshot.source);
    for (const HashedFile& earlier : result.inputs) {
      if (earlier.xxh3 != file.xxh3) continue;
      console.Warn(input, fmt::format("has the same content as {}: nothing new is learnt from it",
                                      Printable(earlier.file)));
      break;
    }
    result.inputs.push_back(file);
    uint64_t tokens = 0;
    for (const LayerKv& layer : snapshot.layers)
      tokens = std::max(tokens, layer.has_k() ? layer.k.tokens() : layer.v->tokens());
    result.tokens += tokens;
  }

  ExitStatus LearnTransform(Context& context) {
    const Transform transform = learn_.Learn(inputs_, snapshot_, name_, context);
    AtomicFile file(output_.path, RulesFor(output_.force, inputs_));
    file.Write(WriteTransform(transform));
    file.Commit();
    Trained result;
    result.output = output_.path;
    result.transform = transform;
    result.tokens = transform.rows;
    for (const std::string& input : inputs_)
      result.inputs.push_back(HashedFile::Of(snapshot_.Open(input)));
    result.values = transform.rows * (transform.k.features() + transform.v.features());
    report_.Emit(context.console, "train", TrainedFields, result, RulesFor(output_.force));
    if (!report_.json) {
      context.console.Say(
          fmt::format("{}: {}", Printable(output_.path), TransformSummary(transform)));
    }
    return kDone;
  }

  std::vector<std::string> inputs_;
  OutputOptions output_;
  std::string name_, across_layers_;
  LearnFlags learn_;
};

}  // namespace

const FieldTable& TrainFields() { return TrainedFields(); }

std::unique_ptr<Command> MakeTrain() { return std::make_unique<Train>(); }

}  // namespace kv
