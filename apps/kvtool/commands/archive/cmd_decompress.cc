// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool decompress`: restores sources, or writes their tensors in another format.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/archive/archive_output.h"
#include "apps/kvtool/doctor/doctor.h"
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
  throw Error(Finding::kUsage, "'{}' does not end in {}: give -o", name, kSuffix);
}

// Returns true if an archive restores to a folder. A stream counts as one that does not, because it
// can be read only once.
bool MayHoldFolder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code failed;
  if (path == "-" || (fs::exists(path, failed) && !fs::is_regular_file(path, failed))) return true;
  try {
    return Archive::Open(FileSource::Open(path)).is_folder();
  } catch (const Error&) {
    return true;  // unknown, so no name is guessed; the run reports what is wrong
  }
}

// The result: a restored source, or the tensors that --to wrote.
struct Decompressed {
  struct Params {
    bool keep_going = false;
    std::optional<std::string> to;
  };
  struct Source {
    RestoreReport report;
    std::vector<Lost> lost;
    bool identical = false;
  };
  struct Tensors {
    uint64_t layers = 0, kv_bytes = 0;
  };
  std::vector<SizedFile> inputs;
  Params params;
  std::string output;
  std::optional<Source> restored;
  std::optional<Tensors> written;
  RunCost cost;
};

const Fields<Decompressed::Source>& RestoredSourceFields() {
  using Source = Decompressed::Source;
  static const Fields<Source> fields = {
      {"restored_bytes", "Size in bytes of the restored source, including zeros for lost bytes",
       [](const Source& source) { return source.report.bytes; }},
      {"lost_bytes", "Bytes of the source that could not be restored",
       [](const Source& source) { return source.report.lost_bytes; }},
      {"xxh3",
       "XXH3 hash (64 bits, 16 hex digits) of what was restored; null: so much is lost that it was "
       "not computed",
       [](const Source& source) { return RestoredHash(source.report); }, kHashText},
      {"identical", "True if nothing is lost and the source's hash matches", &Source::identical},
      {"damage", "What is damaged in the archive",
       [](const Source& source) { return source.report.damage; }, DamageFields()},
      {"lost", "Ranges of the source that could not be restored", &Source::lost, LostFields()}};
  return fields;
}

const Fields<Decompressed::Tensors>& WrittenTensorsFields() {
  using Tensors = Decompressed::Tensors;
  static const Fields<Tensors> fields = {
      {"layers", "With --to: number of layers that were written", &Tensors::layers},
      {"kv_bytes", "With --to: bytes of K and V that were written", &Tensors::kv_bytes}};
  return fields;
}

const Fields<Decompressed>& DecompressedFields() {
  using Params = Decompressed::Params;
  static const Fields<Params> decompress_params = {
      {"keep_going", "Whether damaged parts become zeros instead of ending the run",
       &Params::keep_going},
      {"to",
       "Name of the format that the tensors were written in; null: the source itself was restored",
       &Params::to}};
  static const Fields<Decompressed> fields = {
      {"inputs", "The archive that was read", &Decompressed::inputs, SizedFileFields()},
      {"params", "Parameters of the run", &Decompressed::params, decompress_params},
      {"output", "File or folder that was written; -: standard output", &Decompressed::output},
      Fields<Decompressed>::Inline(&Decompressed::restored, RestoredSourceFields()),
      Fields<Decompressed>::Inline(&Decompressed::written, WrittenTensorsFields()),
      Fields<Decompressed>::Inline(&Decompressed::cost, RunCostFields())};
  return fields;
}

class Decompress : public ForEachInput<Decompress> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(line, "FILE", "Archives, '-' for stdin",
                  "Restore what can be restored, write zeros for the rest and report it; go on "
                  "with the next input after an error");
    output_.Declare(line, "File or folder to write (default: FILE without .kvz)");
    line.AddFlag("-t,--test", test_, "Only check the archive, as 'kvtool verify' does");
    line.Add("--to", to_, "Write tensors in this format instead of the source (see kvtool formats)")
        .Suggest(WritableFormats());
    limit_.Declare(line);
    selection_.Declare(line);
    line.Add("--model|--gguf,--model-config", snapshot_.gguf,
             "Model file that gives the heads, for --to");
    line.Add("--kv-heads", snapshot_.kv_heads, "KV heads per layer, for --to")
        .Between(1u, 1u << 20);
    line.Add("--rope-pairs", rope_pairs_,
             "Order of K's RoPE pairs in what --to writes: neighbours (2i, 2i+1), halves (i, "
             "i+dim/2), FROM:TO, keep (default: as readers of the format expect it)");
    line.Add("--head-dim", snapshot_.head_dim, "Head size, for --to").Between(1u, 1u << 20);
    line.Add("--layout", snapshot_.open.layout,
             "Chooses a layout if several fit the archived source, for --to");
    line.Add("--batch", snapshot_.open.batch, "Row of a batch, for --to");
    report_.Declare(line);
  }

  bool Takes(std::string_view format, bool) const override { return HasTrait(format, kIsArchive); }

  bool HasOutputDir() const override { return true; }
  void Continue() override { output_.one.force = true; }
  void PlaceResults(const CommandInputs& inputs) override {
    if (!test_) TakeOutputFolder(inputs, output_.one.to_stdout, output_.one.path, output_.folder);
  }
  void TakeRuns() override {
    RequireNoFolder(input_);
    if (test_ || !NamesFolder(output_.one.path)) return;
    const bool is_folder = to_.empty() ? MayHoldFolder(input_) : HasTrait(to_, kWritesFolder);
    if (!is_folder) EnterFolder(input_, output_.one.path, output_.folder);
  }

  void Files(CommandFiles& files) const override {
    files.Reads(input_);
    snapshot_.Files(files);
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
          .Hint("only tensors can be written in part, for example with --to npz");
    }
    ThreadPool pool(context.global.thread_count());
    try {
      return to_.empty() ? RestoreOne(input_, pool, context)
                         : ExtractOne(input_, selection, pool, context);
    } catch (Error& error) {
      if (error.finding() == Finding::kBadMagic) error.Hint("{}", ReaderInstead(input_));
      throw;
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  static double SecondsSince(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  std::string NameFor(const std::string& archive) const {
    if (!archive.ends_with(kSuffix)) {
      // The file needs another command rather than another name.
      const std::string instead = ReaderInstead(input_);
      if (!instead.empty())
        throw Error(Finding::kUsage, "'{}' is not an archive", input_).Hint("{}", instead);
    }
    return RestoredName(archive) + (to_.empty() ? "" : "." + to_);
  }
  std::string PathFor(const std::string& input) const {
    return output_.PathFor(input, name_, [this](const std::string& name) { return NameFor(name); });
  }

  ExitStatus RestoreOne(const std::string& input, ThreadPool& pool, Context& context) const {
    const auto begin = Clock::now();
    const std::string path = PathFor(input);
    const Archive archive = limit_.Open(input);
    if (path == "-") output_.one.RequireStdout(context.console, report_.json, "the source");
    if (!inputs_.keep_going) RequireReferences(archive);
    output_.MakeFolder(path);
    ProgressLine progress(context.console, context.global.progress_when(), input);
    RestoreOptions options;
    options.keep_going = inputs_.keep_going;
    options.progress = &progress;
    const std::unique_ptr<OutputTarget> target = MakeOutputTarget(
        RestoredFolder::Of(archive.is_folder(), archive.files(), archive.empty_folders()), path,
        RulesLike(output_.one.force, input));
    if (target->is_stream()) {
      // Bytes written to a pipe cannot be taken back, so the archive is checked first.
      if (!inputs_.keep_going) RequireSound(archive, pool);
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
    Decompressed result = MakeResult(context, input, path, archive, report.bytes, seconds);
    result.restored = {report, LostIn(archive, report),
                       report.lost_bytes == 0 && archive.source_hash() == report.source_hash};
    Emit(result, context);
    return report.intact() ? kDone : kInvalid;
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
    if (archive.approximation()) text += "\n  " + DescribeLoss(*archive.approximation());
    context.console.Say(text);
  }

  Decompressed MakeResult(const Context& context, const std::string& input, const std::string& path,
                          const Archive& archive, uint64_t bytes, double seconds) const {
    Decompressed result;
    result.inputs = {{input, archive.data().size()}};
    result.params.keep_going = inputs_.keep_going;
    if (!to_.empty()) result.params.to = to_;
    result.output = path;
    result.cost =
        RunCost::Of(context.global.deterministic, context.global.thread_count(), bytes, seconds);
    return result;
  }

  void Emit(const Decompressed& result, Context& context) const {
    report_.Emit(context.console, "decompress", DecompressedFields, result,
                 RulesFor(output_.one.force));
  }

  ExitStatus ExtractOne(const std::string& input, const Selection& selection, ThreadPool& pool,
                        Context& context) const {
    const auto begin = Clock::now();
    const FormatEntry& format = WritableFormat(to_);
    const std::string path = PathFor(input);
    if (path == "-") throw Error(Finding::kUsage, "--to writes a file or folder: give -o");
    const Archive archive = limit_.Open(input);
    RequireReferences(archive);
    output_.MakeFolder(path);
    for (const Damage& damage : archive.damage()) {
      context.console.Warn(input, fmt::format("{}: {}", damage.Place(), damage.text));
    }
    ProgressLine progress(context.console, context.global.progress_when(), input);
    OpenOptions options = snapshot_.Resolve(flags_for());
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
    context.console.Say(fmt::format("{} -> {}: {}, {} of K and V, {}", Printable(input),
                                    Printable(path), Plural(snapshot.layers.size(), "layer"),
                                    HumanBytes(bytes), HumanRate(bytes, seconds)));
    Decompressed result = MakeResult(context, input, path, archive, bytes, seconds);
    result.written = {snapshot.layers.size(), bytes};
    Emit(result, context);
    return kDone;
  }

  ArchiveOutput output_;
  bool test_ = false;
  std::string to_, rope_pairs_;
  ArchiveLimit limit_;
  SelectionOptions selection_;
};

}  // namespace

const FieldTable& DecompressFields() { return DecompressedFields(); }

std::unique_ptr<Command> MakeDecompress() { return std::make_unique<Decompress>(); }

}  // namespace kv
