// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <chrono>

#include "apps/kvtool/archive_output.h"
#include "apps/kvtool/commands.h"
#include "apps/kvtool/each_command.h"
#include "apps/kvtool/progress.h"
#include "apps/kvtool/verify.h"
#include "formats/key_pairs.h"
#include "formats/kvz/kvz.h"
#include "formats/registry.h"
#include "lib/core/base/hash.h"
#include "lib/core/snapshot/select.h"

namespace kv {
namespace {

constexpr std::string_view kSuffix = ".kvz";

std::string RestoredName(const std::string& name) {
  if (name.size() > kSuffix.size() && name.ends_with(kSuffix)) {
    return name.substr(0, name.size() - kSuffix.size());
  }
  throw Error(Finding::kUsage, fmt::format("'{}' does not end in {}: give -o", name, kSuffix));
}

class Decompress : public EachOf<Decompress> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(
        line, "FILE", "Archives, '-' for stdin",
        "Restore what can be restored, write zeros for the rest and report it; go on with "
        "the next input after an error");
    output_.Declare(line, "File or folder to write (default: FILE without .kvz)");
    line.AddFlag("-t,--test", test_, "Write nothing, as 'kvtool verify' does");
    line.Add("--to", to_, "Write tensors in this format instead of the source (see kvtool formats)")
        .Suggest(WritableFormats());
    limit_.Declare(line);
    selection_.Declare(line);
    line.Add("--model|--gguf,--model-config", geometry_.gguf,
             "Model file that tells the heads, for --to");
    line.Add("--kv-heads", geometry_.kv_heads, "KV heads per layer, for --to")
        .Between(1u, 1u << 20);
    line.Add(
        "--rope-pairs", rope_pairs_,
        "Order of K's RoPE pairs in what --to writes: neighbours (2i, 2i+1), halves (i, i+dim/2), "
        "FROM:TO, keep (default: as readers of the format expect it)");
    line.Add("--head-dim", geometry_.head_dim, "Head size, for --to").Between(1u, 1u << 20);
    line.Add("--layout", geometry_.open.layout,
             "Chooses a layout if several fit the archived source, for --to");
    line.Add("--batch", geometry_.open.batch, "Row of a batch, for --to");
    report_.Declare(line);
  }

  bool Takes(std::string_view format, bool) const override { return HasTrait(format, kIsArchive); }

  bool HasOutputDir() const override { return true; }
  void Continue() override { output_.one.force = true; }

  void Files(CommandFiles& files) const override {
    files.Reads(input_);
    geometry_.Files(files);
    limit_.Files(files);
    if (!test_)
      output_.Files(
          input_, name_, [this](const std::string& name) { return NameFor(name); }, files);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    if (test_) return VerifyArchive(input_, "", limit_, report_, context);
    const Selection selection = selection_.Resolve();
    if (to_.empty() && !selection.is_all()) {
      throw Error(Finding::kUsage, "--layers, --tokens and --kv need --to FORMAT")
          .Hint("a part of a source is not a source; --to npz, for example, writes tensors");
    }
    ThreadPool pool(context.global.thread_count());
    return to_.empty() ? RestoreOne(input_, pool, context)
                       : ExtractOne(input_, selection, pool, context);
  }

 private:
  using Clock = std::chrono::steady_clock;

  static double SecondsSince(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  std::string NameFor(const std::string& archive) const {
    return RestoredName(archive) + (to_.empty() ? "" : "." + to_);
  }
  std::string PathFor(const std::string& input) const {
    return output_.PathFor(input, name_, [this](const std::string& name) { return NameFor(name); });
  }
  OutputRules RulesLike(const std::string& input) const {
    OutputRules rules = RulesFor(output_.one.force);
    if (input != "-") rules.like = Permissions::Of(input);
    return rules;
  }

  ExitStatus RestoreOne(const std::string& input, ThreadPool& pool, Context& context) const {
    const auto begin = Clock::now();
    const std::string path = PathFor(input);
    const Archive archive = limit_.Open(input);
    if (path == "-") {
      output_.RefuseTerminal(context.console);
      if (report_.json) {
        throw Error(Finding::kUsage, "the source and --json both go to standard output")
            .Hint("give --json-out FILE");
      }
    }
    if (!inputs_.keep_going) RequireReferences(archive);
    output_.MakeFolder(path);
    ProgressLine progress(context.console, context.global.progress_when(), input);
    RestoreOptions options;
    options.keep_going = inputs_.keep_going;
    options.progress = &progress;
    const std::unique_ptr<OutputTarget> target = MakeOutputTarget(archive, path, RulesLike(input));
    if (target->is_stream()) {
      // What has gone down a pipe cannot be taken back: look before the first byte.
      if (!inputs_.keep_going) RefuseDamaged(archive, pool);
      limit_.RequireWritable(archive);
    }
    const RestoreReport report = Restore(archive, options, pool, *target);
    target->Commit();

    const double seconds = SecondsSince(begin);
    for (const Damage& damage : report.damage) context.console.Report(damage.AsError().File(input));
    for (const LostRange& lost : report.lost) {
      context.console.Say(fmt::format("kvtool: {}: {}", Printable(input), LostText(archive, lost)),
                          -1);
    }
    for (const ChunkHead& head : archive.MissingTokens()) {
      context.console.Say(fmt::format("kvtool: {}: lost: {}", Printable(input), kv::Describe(head)),
                          -1);
    }
    Tell(context, input, path, archive, report, seconds);
    report_.Emit(context.console, Document(context, input, path, archive, report, seconds),
                 RulesFor(output_.one.force));
    return report.intact() ? kDone : kInvalid;
  }

  static void RefuseDamaged(const Archive& archive, ThreadPool& pool) {
    std::vector<Damage> damage = archive.damage();
    for (Damage& one : archive.CheckStored(pool)) damage.push_back(std::move(one));
    if (!damage.empty()) throw damage[0].AsError();
  }

  void Tell(Context& context, const std::string& input, const std::string& path,
            const Archive& archive, const RestoreReport& report, double seconds) const {
    const std::string to = path == "-" ? "stdout" : Printable(path);
    std::string text = fmt::format("{} -> {}: {}, {}", Printable(input), to,
                                   HumanBytes(report.bytes), HumanRate(report.bytes, seconds));
    if (report.lost_bytes > 0) {
      text += fmt::format("\n  damaged: {} of {} bytes lost, zeros in their place",
                          report.lost_bytes, report.bytes);
    } else if (!report.intact()) {
      text += "\n  damaged, but nothing is lost";
    }
    if (report.lost_bytes == 0) {
      text += fmt::format(
          "\n  {}: every chunk{} as archived, {}", archive.source_hash() ? "identical" : "restored",
          archive.source_hash() ? " and the whole source" : "", HashText(*report.source_hash));
    }
    context.console.Say(text);
  }

  nlohmann::ordered_json Document(Context& context, const std::string& input,
                                  const std::string& path, const Archive& archive,
                                  const RestoreReport& report, double seconds) const {
    nlohmann::ordered_json document = ReportHeader("decompress");
    document["inputs"] = {{{"file", input}, {"bytes", archive.data().size()}}};
    document["params"] = {{"keep_going", inputs_.keep_going}, {"to", nullptr}};
    document["output"] = path;
    document["restored_bytes"] = report.bytes;
    document["lost_bytes"] = report.lost_bytes;
    document["xxh3"] = HashJson(report);
    document["identical"] = report.lost_bytes == 0 && archive.source_hash() == report.source_hash;
    document["damage"] = nlohmann::ordered_json::array();
    for (const Damage& damage : report.damage) document["damage"].push_back(DamageJson(damage));
    document["lost"] = nlohmann::ordered_json::array();
    for (const LostRange& lost : report.lost) document["lost"].push_back(LostJson(archive, lost));
    AddTiming(context, report.bytes, seconds, document);
    return document;
  }

  static void AddTiming(Context& context, uint64_t bytes, double seconds,
                        nlohmann::ordered_json& document) {
    if (context.global.deterministic) return;
    document["environment"] = {{"threads", context.global.thread_count()}};
    document["timing"] = {{"elapsed_us", static_cast<uint64_t>(seconds * 1e6)},
                          {"mb_per_s", static_cast<double>(bytes) / 1e6 / std::max(seconds, 1e-9)}};
  }

  ExitStatus ExtractOne(const std::string& input, const Selection& selection, ThreadPool& pool,
                        Context& context) const {
    const auto begin = Clock::now();
    const FormatEntry& format = WritableFormat(to_);
    const std::string path = PathFor(input);
    if (path == "-") throw Error(Finding::kUsage, "--to writes a file or folder: give -o");
    output_.MakeFolder(path);
    const Archive archive = limit_.Open(input);
    RequireReferences(archive);
    for (const Damage& damage : archive.damage()) {
      context.console.Warn(input, fmt::format("{}: {}", Place(damage), damage.text));
    }
    ProgressLine progress(context.console, context.global.progress_when(), input);
    OpenOptions options = geometry_.Resolve(flags_for());
    options.max_bytes = limit_.limit.most().value_or(options.max_bytes);
    Snapshot snapshot = LoadSnapshot(archive, selection, options, pool, &progress);
    snapshot.source.path = input;
    if (options.geometry) ApplyGeometry(*options.geometry, snapshot);
    snapshot = Select(std::move(snapshot), selection);
    const std::string pairs = FitKeyPairs(format.pairs, rope_pairs_, options.geometry, snapshot);
    if (!pairs.empty()) context.console.Say(fmt::format("{}: {}", Printable(path), pairs));
    format.write(snapshot, path, RulesFor(output_.one.force, input));
    for (const std::string& what :
         format.not_kept == nullptr ? std::vector<std::string>() : format.not_kept(snapshot)) {
      context.console.Say(fmt::format("{}: not kept: {}", Printable(path), what));
    }

    const double seconds = SecondsSince(begin);
    const uint64_t bytes = snapshot.kv_bytes();
    context.console.Say(fmt::format("{} -> {}: {} layer{}, {} of K and V, {}", Printable(input),
                                    Printable(path), snapshot.layers.size(),
                                    snapshot.layers.size() == 1 ? "" : "s", HumanBytes(bytes),
                                    HumanRate(bytes, seconds)));
    nlohmann::ordered_json document = ReportHeader("decompress");
    document["inputs"] = {{{"file", input}, {"bytes", archive.data().size()}}};
    document["params"] = {{"keep_going", inputs_.keep_going}, {"to", to_}};
    document["output"] = path;
    document["layers"] = snapshot.layers.size();
    document["kv_bytes"] = bytes;
    AddTiming(context, bytes, seconds, document);
    report_.Emit(context.console, document, RulesFor(output_.one.force));
    return kDone;
  }

  ArchiveOutput output_;
  bool test_ = false;
  std::string to_, rope_pairs_;
  ArchiveLimit limit_;
  SelectionOptions selection_;
  SnapshotOptions geometry_;
};

}  // namespace

std::unique_ptr<Command> MakeDecompress() { return std::make_unique<Decompress>(); }

}  // namespace kv
