// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/transform/learn_flags.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/documents/transform_report.h"
#include "formats/kvx/kvx.h"
#include "lib/core/archive/train.h"

namespace kv {
namespace {

// The result of a run; its document has these fields.
struct Trained {
  std::vector<HashedFile> inputs;
  std::string output;
  uint64_t values = 0, tokens = 0;
  std::shared_ptr<const Profile> profile;
  std::optional<Transform> transform = {};
};

const Fields<Trained>& TrainParamsFields() {
  static const Fields<Trained> fields = {
      {"name", "Name of the model that the profile or transform bears",
       [](const Trained& of) { return of.profile ? of.profile->name() : of.transform->model; }}};
  return fields;
}

const Fields<Trained>& TrainedFields() {
  const auto itself = [](const Trained& of) -> const Trained& { return of; };
  const auto profile = [](const Trained& of) { return of.profile.get(); };
  static const Fields<Trained> fields = {
      {"inputs", "What was read", &Trained::inputs, HashedFileFields()},
      {"params", "What was asked for", itself, TrainParamsFields()},
      {"output", "Profile or transform that was written", &Trained::output},
      {"values", "Values of K and V that it was learnt from", &Trained::values},
      {"tokens", "Tokens of all inputs together", &Trained::tokens},
      {"profile", "What the profile holds; without --transform", profile, ProfileFields(),
       Absent()},
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
    learn_.Declare(line);
    snapshot_.Declare(line);
    report_.Declare(line);
  }

  void TakeRuns() override {
    SnapshotOptions unused;
    for (std::string& input : inputs_) TakeRun(input, inputs_.size() == 1 ? snapshot_ : unused);
  }

  void Files(CommandFiles& files) const override {
    files.Reads(inputs_);
    files.Writes(output_.path, "-o");
    Command::Files(files);
  }

  ExitStatus Run(Context& context) override {
    if (output_.path.empty() || output_.path == "-" || output_.to_stdout)
      throw Error(Finding::kUsage, "a profile is written to a file").Hint("give -o model.kvp");
    if (name_.size() > kMostName) throw Error(Finding::kUsage, "--name has more than 255 bytes");
    if (learn_.wanted()) return LearnTransform(context);
    const OpenOptions options =
        snapshot_.Resolve(inputs_.size() > 1 ? FlagsFor::kSeveral : FlagsFor::kOne);
    ProfileBuilder builder;
    Trained result;
    result.output = output_.path;
    std::string name = name_;
    for (const std::string& input : inputs_) {
      try {
        const Snapshot snapshot = OpenSnapshot(snapshot_.Open(input), options);
        WarnAboutNotes(snapshot.notes, input, context.console);
        Learn(snapshot, input, builder, result, context.console);
        if (name.empty()) name = snapshot.model.substr(0, kMostName);
      } catch (Error& error) {
        throw error.File(input);
      }
    }
    if (result.tokens < kFewTokens) {
      context.console.Warn(
          "", fmt::format("{} are few to learn from: give caches of some thousand tokens",
                          Plural(result.tokens, "token")));
    }
    const std::shared_ptr<const Profile> profile = builder.Finish(name);
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
    }
    return kDone;
  }

 private:
  static constexpr size_t kMostName = 255;
  static constexpr uint64_t kFewTokens = 1000;

  static void Learn(const Snapshot& snapshot, const std::string& input, ProfileBuilder& builder,
                    Trained& result, Console& console) {
    snapshot.CheckContent();
    const uint64_t passed_over = builder.passed_over();
    builder.Add(snapshot);
    if (builder.passed_over() > passed_over) {
      console.Warn(input, fmt::format("{} of other types than f16 and bf16 were passed over",
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
  std::string name_;
  LearnFlags learn_;
};

}  // namespace

const FieldTable& TrainFields() { return TrainedFields(); }

std::unique_ptr<Command> MakeTrain() { return std::make_unique<Train>(); }

}  // namespace kv
