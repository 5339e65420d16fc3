// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool verify`: proves that archives and frames are intact, and compares them with their sources
// on request.
#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/archive/archive_output.h"
#include "apps/kvtool/doctor/doctor.h"
#include "formats/kvf/kvf.h"
#include "formats/kvz/kvz.h"
#include "formats/registry.h"
#include "lib/core/archive/transformed_chunks.h"
#include "lib/core/base/arena.h"
#include "lib/core/base/hash.h"
#include "lib/core/frame/layout.h"

namespace kv {
namespace {

// A layer whose K or V differs from --against by more than a lossy archive states.
struct Beyond {
  uint32_t layer = 0;
  bool is_value = false;
  Loss measured, stated;
};

struct Findings {
  RestoreReport restored;
  std::vector<Beyond> beyond;
  std::vector<ChunkHead> missing;
  std::vector<SourceComparer::Difference> differences;

  bool good() const { return restored.intact() && differences.empty() && beyond.empty(); }
};

bool IsApproximated(const SourceComparer::Difference& difference) {
  return difference.chunk && difference.chunk->is_transformed();
}

// Measures each layer's approximated values against the original, as compress did.
std::vector<Beyond> MeasureLosses(const Archive& archive, const Source& original,
                                  ThreadPool& pool) {
  std::vector<LossSums> sums(archive.chunks().size());
  Reuse<CodecScratch> scratches;
  pool.ParallelFor(sums.size(), [&](uint64_t i) {
    const ArchivedChunk& chunk = archive.chunks()[i];
    const ChunkHead& head = chunk.head;
    if (!head.is_transformed()) return;
    const std::string& name = archive.files()[head.file].name;
    const SourceFile* file = archive.is_folder() ? original.Find(name) : &original.files.at(0);
    if (file == nullptr || file->data->size() != archive.files()[head.file].size) return;
    const Reuse<CodecScratch>::Lease scratch(scratches);
    Bytes raw, from(head.raw_bytes);
    archive.Decode(chunk, *scratch, raw);
    kvz::GatherChunk(head, file->data->bytes().subspan(head.source_offset, head.extent_bytes),
                     from);
    sums[i].Add(head.dtype, from, raw);
  });
  std::map<std::pair<uint32_t, bool>, LossSums> by_layer;
  for (size_t i = 0; i < sums.size(); ++i) {
    const ChunkHead& head = archive.chunks()[i].head;
    by_layer[{head.layer, head.kind == ChunkKind::kValue}].Add(sums[i]);
  }
  std::vector<Beyond> beyond;
  for (const Approximation::Layer& layer : archive.approximation()->layers) {
    for (const bool is_value : {false, true}) {
      const Loss measured = by_layer[{layer.number, is_value}].Finish();
      const Loss& stated = is_value ? layer.v : layer.k;
      if (measured.relative <= stated.relative && measured.largest <= stated.largest) continue;
      beyond.push_back({layer.number, is_value, measured, stated});
    }
  }
  return beyond;
}

Findings Look(const Archive& archive, const std::string& against, const SizeLimit& limit,
              ThreadPool& pool, Progress& progress) {
  Findings findings;
  RestoreOptions options;
  options.keep_going = true;
  options.progress = &progress;
  if (against.empty()) {
    NoTarget nowhere;
    findings.restored = Restore(archive, options, pool, nowhere);
  } else {
    const Source source = SizeLimit::WithHint([&] { return Source::Open(against, limit.most()); });
    SourceComparer comparer(archive, source);
    findings.restored = Restore(archive, options, pool, comparer);
    findings.differences = comparer.differences();
    if (archive.approximation() && findings.restored.intact()) {
      std::erase_if(findings.differences, IsApproximated);
      findings.beyond = MeasureLosses(archive, source, pool);
    }
  }
  findings.missing = archive.MissingTokens();
  return findings;
}

// The result of verifying an archive; its document has these fields.
struct Verified {
  struct Params {
    std::optional<std::string> against;
  };
  std::vector<SizedFile> inputs;
  Params params;
  std::string verdict;
  uint64_t chunks = 0;
  std::optional<Approximation> lossy;
  std::vector<Lost> lost;
  Findings found;
};

std::string DifferenceText(const SourceComparer::Difference& difference,
                           const std::string& against) {
  std::string text = Printable(against);
  if (!difference.file.empty()) text += "/" + Printable(difference.file);
  if (difference.chunk) text += ": " + Describe(*difference.chunk);
  return text + ": " + difference.text;
}

std::string BeyondText(const Beyond& beyond, const std::string& against) {
  return fmt::format(
      "{}: layer {} {}: off by {:.3g}% (largest error {:.4g}), stated: at most {:.3g}% ({:.4g})",
      Printable(against), beyond.layer, beyond.is_value ? 'V' : 'K', 100 * beyond.measured.relative,
      beyond.measured.largest, 100 * beyond.stated.relative, beyond.stated.largest);
}

void Print(const Findings& findings, const Archive& archive, const std::string& path,
           const std::string& against, Console& console) {
  const std::string input = Printable(path);
  for (const Damage& damage : findings.restored.damage) {
    console.Line(fmt::format("{}: {}: {} (offset {:#x}) [{}]", input, damage.Place(), damage.text,
                             damage.offset, FindingId(damage.finding)));
  }
  for (const LostRange& lost : findings.restored.lost) {
    console.Line(fmt::format("{}: {}", input, LostText(archive, lost)));
  }
  for (const ChunkHead& head : findings.missing) {
    console.Line(fmt::format("{}: lost: {}", input, Describe(head)));
  }
  for (const SourceComparer::Difference& difference : findings.differences) {
    console.Line(fmt::format("{}: {}", input, DifferenceText(difference, against)));
  }
  for (const Beyond& beyond : findings.beyond)
    console.Line(fmt::format("{}: {}", input, BeyondText(beyond, against)));
  const RestoreReport& restored = findings.restored;
  const bool is_lossy = archive.approximation().has_value();
  if (is_lossy) console.Line(fmt::format("{}: {}", input, DescribeLoss(*archive.approximation())));
  std::string verdict;
  if (findings.good()) {
    verdict = against.empty() ? console.Verdict(true, "intact")
              : is_lossy
                  ? console.Verdict(true, "within its stated errors") + " of " + Printable(against)
                  : console.Verdict(true, "identical") + " to " + Printable(against);
    verdict +=
        fmt::format(": {} bytes in {}, {}", restored.bytes,
                    Plural(archive.chunks().size(), "chunk"), HashText(*restored.source_hash));
  } else if (!restored.intact()) {
    verdict = fmt::format("{}: {} of {} bytes lost", console.Verdict(false, "damaged"),
                          restored.lost_bytes, restored.bytes);
  } else {
    verdict = fmt::format("{} from {}", console.Verdict(false, "different"), Printable(against));
  }
  console.Line(fmt::format("{}: {}", input, verdict));
}

Verified MakeResult(Findings findings, const Archive& archive, const std::string& input,
                    const std::string& against) {
  Verified result;
  result.inputs = {{input, archive.data().size()}};
  if (!against.empty()) result.params.against = against;
  const std::string_view equal = archive.approximation() ? "within" : "identical";
  result.lossy = archive.approximation();
  result.verdict = findings.good()               ? (against.empty() ? "intact" : equal)
                   : !findings.restored.intact() ? "damaged"
                                                 : "different";
  result.chunks = archive.chunks().size();
  result.lost = LostIn(archive, findings.restored);
  result.found = std::move(findings);
  return result;
}

const Fields<Verified::Params>& VerifyParamsFields() {
  static const Fields<Verified::Params> fields = {
      {"against", "File or folder that the archive had to restore to; null: none was given",
       &Verified::Params::against}};
  return fields;
}

const Fields<Verified>& VerifiedFields() {
  using Difference = SourceComparer::Difference;
  static const Fields<Difference> source_difference = {
      {"file", "File of the original; empty where there is only one", &Difference::file},
      {"offset", "Offset of the difference in the file, in bytes", &Difference::offset},
      {"text", "The difference in words", &Difference::text},
      {"chunk", "The chunk with the difference; absent if no chunk has it", &Difference::chunk,
       ChunkFields(), Absent()}};
  static const Fields<Beyond> beyond_fields = {
      {"layer", "Number of the layer", &Beyond::layer},
      {"side", "K or V", [](const Beyond& of) { return of.is_value ? "V" : "K"; }, OneOf("K", "V")},
      {"relative_error", "Relative error that was measured",
       [](const Beyond& of) { return of.measured.relative; }},
      {"largest_error", "Largest absolute error that was measured",
       [](const Beyond& of) { return of.measured.largest; }}};
  static const Fields<Verified> fields = {
      {"inputs", "The archive or frame", &Verified::inputs, SizedFileFields()},
      {"params", "Parameters of the run", &Verified::params, VerifyParamsFields()},
      {"verdict",
       "intact: every chunk decodes and the whole has its hash; identical: intact, and equal to "
       "--against; within: intact, lossy, and no further from --against than stated; damaged: "
       "something is lost; different: intact, but not equal, or further",
       &Verified::verdict, OneOf("intact", "identical", "within", "damaged", "different")},
      {"chunks", "Chunks of the archive, or segments of the frame", &Verified::chunks},
      {"source_bytes", "Bytes before compression",
       [](const Verified& of) { return of.found.restored.bytes; }},
      {"lost_bytes", "Bytes that cannot be restored",
       [](const Verified& of) { return of.found.restored.lost_bytes; }},
      {"xxh3", "XXH3-64 of the restored bytes, 16 hexadecimal digits; null where something is lost",
       [](const Verified& of) { return RestoredHash(of.found.restored); }, kHashText},
      {"damage", "What is damaged in the archive",
       [](const Verified& of) { return of.found.restored.damage; }, DamageFields()},
      {"lost", "Byte ranges of the original that cannot be restored", &Verified::lost,
       LostFields()},
      {"missing", "Chunks that the archive should have and lacks",
       [](const Verified& of) { return of.found.missing; }, ChunkFields()},
      {"differences", "Differences between the restored bytes and --against",
       [](const Verified& of) { return of.found.differences; }, source_difference},
      {"lossy", "How the values differ from the original ones; absent for exact archives",
       &Verified::lossy, ApproximationFields(), Absent()},
      {"beyond", "Layers that differ from --against by more than a lossy archive states",
       [](const Verified& of) { return of.found.beyond; }, beyond_fields}};
  return fields;
}

class Verify : public ForEachInput<Verify> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(line, "FILE",
                  "Archives, frames, '-' for stdin; or one trace, plan, store, or weights");
    line.Add("--against", against_,
             "File or folder that the archive must restore to; for several archives, the folder of "
             "their sources, by the archives' names without .kvz");
    limit_.Declare(line);
    report_.Declare(line);
  }

  bool Takes(std::string_view format, bool) const override {
    return HasTrait(format, kIsCompressed);
  }

  // Compares several archives with the files that decompress would write into a folder, with
  // --output-dir or with -o.
  void PlaceResults(const CommandInputs& inputs) override {
    const size_t several = inputs.searched.empty() ? inputs.entries.size() : SIZE_MAX;
    if (against_.empty() || several == 1) return;
    is_paired_ = std::filesystem::is_directory(against_);
    if (is_paired_) return;
    throw Error(Finding::kUsage, "--against names one file, but each archive restores to its own")
        .Hint("--against FOLDER compares FOLDER/NAME with what NAME.kvz restores to");
  }

  void TakeRuns() override {
    SnapshotOptions unused;
    if (!is_paired_) return void(TakeRun(against_, unused));
    std::filesystem::path pair = std::filesystem::path(against_) / name_;
    if (pair.extension() == ".kvz") pair.replace_extension();
    std::error_code failed;
    if (!std::filesystem::exists(pair, failed)) pair = against_ / pair.filename();
    against_ = pair.string();
  }

  void Files(CommandFiles& files) const override {
    Command::Files(files);
    files.Reads(against_);
    limit_.Files(files);
  }

  bool TakesStores() const override { return true; }

  ExitStatus Run(Context& context) override {
    try {
      if (IsFrame(input_)) return VerifyFrame(context);
      return VerifyArchive(input_, against_, limit_, report_, context);
    } catch (Error& error) {
      const bool is_other = error.finding() == Finding::kBadMagic || error.code() == ErrorCode::kIo;
      const OtherKind* other = is_other && context.run_as ? FindOtherKind(input_) : nullptr;
      if (other != nullptr && !other->verify.empty()) return context.run_as(other->verify, input_);
      if (error.finding() == Finding::kBadMagic) error.Hint("{}", ReaderInstead(input_));
      throw;
    }
  }

 private:
  // Streams are read as archives.
  static bool IsFrame(const std::string& path) {
    std::error_code failed;
    if (!std::filesystem::is_regular_file(path, failed)) return false;
    return kvf::Probe(Source::Open(path)) == Confidence::kCertain;
  }

  // Opening a frame decodes it and compares it with its hashes.
  ExitStatus VerifyFrame(Context& context) const {
    if (!against_.empty())
      throw Error(Finding::kUsage, "--against is for archives, and this is a frame").File(input_);
    OpenOptions options = limit_.Reading();
    options.is_shared = true;  // each --base may be the reference of only some archives
    const Snapshot page = OpenSnapshot(Source::Open(input_), options);
    Verified result;
    result.inputs = {{input_, page.source.total_bytes()}};
    result.verdict = "intact";
    const ByteSpan frame = page.source.files[0].data->bytes();
    result.chunks = ReadSegments(ReadFrameHeader(frame), frame).segments.size();
    result.found.restored.bytes = page.unpacked_bytes;
    result.found.restored.source_hash = Hash64(page.spools.front()->bytes());
    if (!report_.json && context.console.verbosity > -1) {
      context.console.Line(fmt::format("{}: {}: {} bytes in {}, {}", Printable(input_),
                                       context.console.Verdict(true, "intact"), page.unpacked_bytes,
                                       Plural(result.chunks, "segment"),
                                       HashText(*result.found.restored.source_hash)));
    }
    report_.Emit(context.console, "verify", VerifiedFields, result);
    return kDone;
  }

  std::string against_;
  bool is_paired_ = false;
  ArchiveLimit limit_;
};

}  // namespace

const FieldTable& VerifyFields() { return VerifiedFields(); }

ExitStatus VerifyArchive(const std::string& input, const std::string& against,
                         const ArchiveLimit& limit, const ReportOptions& report, Context& context) {
  ThreadPool pool(context.global.thread_count());
  const Archive archive = limit.Open(input);
  RequireReferences(archive);
  Findings findings;
  {
    ProgressLine progress(context.console, context.global.progress_when(), input);
    findings = Look(archive, against, limit.limit, pool, progress);
  }
  if (!report.json && context.console.verbosity > -1) {
    Print(findings, archive, input, against, context.console);
  }
  // A chunk of a newer codec may be intact; only this program cannot decode it.
  const bool unsupported = std::any_of(
      findings.restored.damage.begin(), findings.restored.damage.end(), [](const Damage& damage) {
        return FindInfo(damage.finding).code == ErrorCode::kUnsupported;
      });
  const ExitStatus status = unsupported ? kUnsupported : findings.good() ? kDone : kVerdict;
  const Verified result = MakeResult(std::move(findings), archive, input, against);
  report.Emit(context.console, "verify", VerifiedFields, result);
  return status;
}

std::unique_ptr<Command> MakeVerify() { return std::make_unique<Verify>(); }

}  // namespace kv
