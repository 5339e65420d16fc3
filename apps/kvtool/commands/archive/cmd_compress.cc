// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool compress`: describes the source, writes the archive, and compares it with the source
// before it replaces anything.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/archive/archive_output.h"
#include "apps/kvtool/commands/archive/lossy_flags.h"
#include "formats/kvz/kvz.h"
#include "formats/registry.h"
#include "lib/core/archive/records.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/number.h"

namespace kv {
namespace {

constexpr ChunkKind kKinds[] = {ChunkKind::kKey, ChunkKind::kValue, ChunkKind::kOpaque};
constexpr std::string_view kKindNames[] = {"other", "K", "V"};  // by ChunkKind

// Returns the snapshot of the source, or nothing if its bytes are archived as they are.
std::optional<Snapshot> Describe(const Source& source, const OpenOptions& options,
                                 Console& console) {
  try {
    std::string why;
    std::optional<Snapshot> snapshot = OpenToKeep(source, options, why);
    if (!why.empty()) console.Warn(source.path, fmt::format("{}; archived as opaque bytes", why));
    if (!snapshot) return snapshot;
    for (const Note& note : snapshot->notes) {
      if (note.is_warning)
        console.Say(fmt::format("kvtool: {}: {}", Printable(source.path), Printable(note.text)), 1);
    }
    return snapshot;
  } catch (Error& error) {
    if (error.code() == ErrorCode::kUnsupported && error.hint().empty()) {
      error.Hint("--from opaque archives the bytes as they are");
    }
    throw;
  }
}

void WarnIfCompressed(const Source& source, const std::optional<Snapshot>& snapshot,
                      Console& console) {
  std::string what;
  if (source.files.size() == 1 && kvz::HasMagic(source.files[0].data->bytes())) {
    what = fmt::format(
        "an archive already: compressing it again gains nothing; 'kvtool decompress {} -c | kvtool "
        "compress - -o FILE' makes one of another level",
        source.path);
  } else if (snapshot && HasTrait(snapshot->format, kIsCompressed)) {
    what = "compressed already: an archive of it gains nothing";
  }
  if (!what.empty()) console.Warn(source.path, "is " + what);
}

// Reads the finished file back, so that the bytes on the disk are those that were compared with the
// source.
void ReadBack(const AtomicFile& file, ThreadPool& pool, const std::string& path) {
  const int descriptor = ::dup(file.descriptor());
  if (descriptor < 0) throw Error(Finding::kReadFailed, "cannot read back").File(path);
  const Archive archive = Archive::Open(FileSource::FromDescriptor(descriptor, path));
  try {
    RequireSound(archive, pool);
  } catch (Error& error) {
    throw error.In("reading back what was written").File(path);
  }
}

std::string Counts(const std::map<std::string, uint64_t>& counts) {
  std::string text;
  for (const auto& [name, count] : counts) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, count);
  }
  return text;
}

std::string ArchiveName(const std::string& input) { return input + ".kvz"; }
std::string LossyName(const std::string& input) { return input + ".lossy.kvz"; }

// The result of a run; its document has these fields.
struct Compressed {
  struct Params {
    std::string level;
    uint32_t joined_layers = 1;
    bool check = true;
    std::string from;
  };
  struct UsedProfile {
    std::string file, name, hash;
    uint64_t chunks = 0;
    std::optional<uint64_t> embedded_bytes;
  };
  std::vector<HashedFile> inputs;
  Params params;
  std::string output;
  WriteSummary made;
  bool has_bases = false, read_back = false;
  std::vector<std::string> warnings;
  std::optional<UsedProfile> profile;
  std::optional<Approximation> lossy;
  RunCost cost;
};

const Fields<Compressed::Params>& CompressParamsFields() {
  using Params = Compressed::Params;
  static const Fields<Params> fields = {
      {"level", "Level of compression", &Params::level, {.choices = LevelChoices()}},
      {"joined_layers",
       "Largest number of layers that level max predicts from one another; 1: none",
       &Params::joined_layers,
       {.least = 1, .most = kMostJoinedLayers}},
      {"check", "Whether the archive was to be decoded and compared with the source",
       &Params::check},
      {"from",
       "Name of the format the input was read as; opaque: its bytes were archived as they are",
       &Params::from}};
  return fields;
}

const Fields<WriteSummary::Part>& CodedPartFields() {
  using Part = WriteSummary::Part;
  static const Fields<Part> fields = {
      {"chunks", "Number of chunks", &Part::chunks},
      {"raw_bytes", "Bytes of the chunks before coding", &Part::raw_bytes},
      {"stored_bytes", "Bytes of the chunks in the archive", &Part::stored_bytes},
      Fields<Part>::Inline(
          [](const Part& part) {
            return Saving{part.raw_bytes, part.stored_bytes};
          },
          SavingFields())};
  return fields;
}

const Fields<WriteSummary::Reference>& UsedReferenceFields() {
  using Reference = WriteSummary::Reference;
  static const Fields<Reference> fields = {
      {"file", "Name of the cache, without folders",
       [](const Reference& base) { return base.name.file; }},
      {"format", "Format that the cache was read as",
       [](const Reference& base) { return base.name.format; }},
      {"bytes", "Size of the cache in bytes; for an archive, the size of its source",
       [](const Reference& base) { return base.name.source_bytes; }},
      {"xxh3", "XXH3 hash (64 bits, 16 hex digits) of the cache, for an archive of its source",
       [](const Reference& base) { return HashDigits(base.name.source_hash); }, kHashText},
      {"chain", "Length of the reference chain, the cache included; 1: no other cache is needed",
       [](const Reference& base) { return base.name.chain; }, AtLeast(1)},
      {"chunks", "Number of chunks of the archive that need the cache", &Reference::chunks},
      {"rows", "Needed rows of the cache; a row is one token of one layer's K or V",
       &Reference::rows},
      {"equal_rows", "Number of the needed rows that the archived cache has byte for byte",
       &Reference::equal_rows}};
  return fields;
}

const Fields<Compressed>& CompressProofFields() {
  static const Fields<Compressed> fields = {
      {"chunks_decoded_and_compared",
       "Whether every chunk was decoded and compared with the source",
       [](const Compressed& of) { return of.made.checked; }},
      {"archive_read_back",
       "Whether the finished file was read back from the disk and its checksums compared",
       &Compressed::read_back}};
  return fields;
}

const Fields<Compressed::UsedProfile>& UsedProfileFields() {
  using Profile = Compressed::UsedProfile;
  static const Fields<Profile> fields = {
      {"file", "Name of the profile's file, without folders", &Profile::file},
      {"name", "Name of the profile's model", &Profile::name},
      {"hash", "Hash of the profile (XXH3, 32 hex digits), by which it is found", &Profile::hash,
       kProfileHashText},
      {"chunks", "Number of chunks coded with the profile, which only this profile decodes",
       &Profile::chunks},
      {"embedded_bytes", "Size of the profile if the archive holds it; absent otherwise",
       &Profile::embedded_bytes, Absent()}};
  return fields;
}

template <ChunkKind kind>
const WriteSummary::Part& FindPart(const Compressed& of) {
  return of.made.parts[static_cast<size_t>(kind)];
}

const Fields<Compressed>& CompressedFields() {
  static const Fields<WriteSummary> solid_fields = {
      {"files", "Number of files that are in a group", &WriteSummary::grouped_files},
      {"groups", "Number of groups", &WriteSummary::groups}};
  static const Fields<Compressed> fields = {
      {"inputs", "What was read", &Compressed::inputs, HashedFileFields()},
      {"params", "Parameters of the run", &Compressed::params, CompressParamsFields()},
      {"output", "File that was written; -: standard output", &Compressed::output},
      {"archive_bytes", "Size of the archive in bytes",
       [](const Compressed& of) { return of.made.archive_bytes; }},
      Fields<Compressed>::Inline(
          [](const Compressed& of) {
            return Saving{of.made.source_bytes, of.made.archive_bytes};
          },
          SavingFields()),
      {"k", "Chunks of K", FindPart<ChunkKind::kKey>, CodedPartFields()},
      {"v", "Chunks of V", FindPart<ChunkKind::kValue>, CodedPartFields()},
      {"other", "Chunks of bytes beside K and V", FindPart<ChunkKind::kOpaque>, CodedPartFields()},
      {"solid", "Files that are coded together, so that chunks span them", &Compressed::made,
       solid_fields},
      {"ordered_chunks",
       "Number of chunks whose rows are coded by sequence and position, since the cache holds them "
       "in another order",
       [](const Compressed& of) { return of.made.ordered_chunks; }},
      {"codecs", "Number of chunks that each codec coded, by its name",
       [](const Compressed& of) { return of.made.codecs; }},
      {"planes",
       "Number of byte planes that each predictor and backend coded, by both names with + between "
       "them",
       [](const Compressed& of) { return of.made.choices; }},
      {"bases",
       "The caches of --base that the archive refers to, in the order of its list; absent without "
       "--base",
       [](const Compressed& of) {
         return of.has_bases ? std::optional(of.made.references) : std::nullopt;
       },
       UsedReferenceFields(), Absent()},
      {"proof", "How it was checked that the archive restores the source",
       [](const Compressed& of) -> const Compressed& { return of; }, CompressProofFields()},
      {"warnings", "Warnings of the run on this input", &Compressed::warnings},
      Fields<Compressed>::Inline(&Compressed::cost, RunCostFields()),
      {"profile", "The profile given with --profile, which the archive names; absent without",
       &Compressed::profile, UsedProfileFields(), Absent()},
      {"lossy", "How the archive's values differ from the source's; absent without --transform",
       &Compressed::lossy, ApproximationFields(), Absent()}};
  return fields;
}

// Explains that a level of zstd and gzip, given as `word`, is not one of kvtool.
void RefuseZstdLevel(int level, const std::string& word) {
  const std::string_view meant = level <= 2    ? "fast"
                                 : level <= 9  ? "default"
                                 : level <= 18 ? "high"
                                               : "max";
  throw Error(Finding::kUsage, "{}: levels have names; '--level {}' corresponds to zstd's -{}",
              word, meant, level)
      .Hint("-1 and -2 are --level fast, -3 to -9 default, -10 to -18 high, -19 and more max");
}

// Without this, "-19" would be read as the name of a file.
void RefuseZstdOption(const std::string& word) {
  std::error_code ignored;
  const auto level = ParseNumber<int>(word);
  if (level && *level < 0 && !std::filesystem::exists(word, ignored))
    RefuseZstdLevel(-*level, word);
}

// Returns when a file, or the newest file below a folder, was written; nothing if it is missing.
std::optional<std::filesystem::file_time_type> LastWrite(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code failed;
  fs::file_time_type newest = fs::last_write_time(path, failed);
  if (failed) return std::nullopt;
  for (fs::recursive_directory_iterator entry(path, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    std::error_code gone;
    newest = std::max(newest, entry->last_write_time(gone));
  }
  return newest;
}

class Compress : public ForEachInput<Compress> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(line, "FILE", "Snapshots: files, folders, '-' for stdin");
    output_.Declare(line, "Archive to write (default: FILE.kvz; for '-': standard output)");
    line.Add("--level", level_,
             "Trades time for size: fast, default, high, max; compat: exactly MNN's choices")
        .Check(CheckedBy([](const std::string& text) {
          if (const auto level = ParseNumber<int>(text); level && *level > 0)
            RefuseZstdLevel(*level, "--level " + text);
        }))
        .OneOf({"compat", "fast", "default", "high", "max"})
        .ShowDefault();
    line.Add("--joined-layers", joined_layers_,
             "At level max, predict layers from earlier ones in groups of up to this many; reading "
             "one then needs the earlier ones (1: each on its own)")
        .Between(uint32_t{1}, kMostJoinedLayers)
        .ShowDefault();
    line.AddFlag("--no-check|!--check", no_check_,
                 "Do not decode the archive and compare it with the source");
    line.AddFlag(
        "--no-solid", no_solid_,
        "Code each small file of a folder separately: larger, but damage affects fewer files");
    line.AddFlag("--update", update_,
                 "Skip inputs whose archive is newer than they are, and replace older archives: "
                 "for folders that grow");
    line.AddFlag("--embed-profile", embed_profile_,
                 "Put the profile (--profile) into the archive, which then needs no other file");
    snapshot_.Declare(line, SnapshotOptions::TransformFlag::kOfCommand);
    lossy_.Declare(line);
    report_.Declare(line);
  }

  EachCommand* AsEach() override {
    for (const std::string& word : inputs_.given) RefuseZstdOption(word);
    if (update_ && inputs_.is_corpus())
      throw Error(Finding::kUsage, "--update: leave it out; --results skips finished inputs");
    return this;
  }

  // Compressing an archive again gains nothing.
  bool Takes(std::string_view format, bool is_run) const override {
    return is_run || (!format.empty() && !HasTrait(format, kIsArchive));
  }
  bool HasOutputDir() const override { return true; }
  void Continue() override { output_.one.force = true; }
  // Compares as 'cp --update' does, except that equal times prove nothing, because writes may
  // follow each other quickly.
  bool IsDone() const override {
    std::error_code failed;
    if (!update_ || input_ == "-") return false;
    const std::string path = output_.PathFor(input_, name_, Naming());
    if (!std::filesystem::is_regular_file(path, failed)) return false;
    const auto made = LastWrite(path);
    const auto written = LastWrite(input_);
    return made && written && *written < *made;
  }
  // Without -f nothing but an archive is replaced.
  bool MayReplace(const std::string& path) const {
    std::error_code failed;
    if (output_.one.force || !update_) return output_.one.force;
    return std::filesystem::is_regular_file(path, failed) &&
           kvz::HasMagic(FileSource::Open(path)->bytes());
  }
  OpenOptions Reading() const override { return snapshot_.WithLimit(); }

  void PlaceResults(const CommandInputs& inputs) override {
    TakeOutputFolder(inputs, output_.one.to_stdout, output_.one.path, output_.folder);
  }

  void TakeRuns() override {
    const std::string given = input_;
    TakeRun(input_, snapshot_);
    if (input_ != given)
      name_ = (std::filesystem::path(name_) / std::filesystem::path(input_).filename()).string();
    EnterFolder(given, output_.one.path, output_.folder);
  }

  void Files(CommandFiles& files) const override {
    output_.Files(input_, name_, Naming(), files);
    lossy_.Files(files);
    Command::Files(files);
  }

  ExitStatus Run(Context& context) override {
    OpenOptions options = snapshot_.Resolve(flags_for());
    options.metadata_only = true;
    options.any_batch = options.may_guess_axes = options.files_for_others = true;
    const Effort level = *ParseEffort(level_);
    lossy_.Check(level, options);
    References references;
    for (const std::string& base : options.bases) {
      references.push_back(OpenReference(base, options));
      try {
        RequireShortChain(*references.back());
      } catch (Error& error) {
        throw error.File(base);
      }
    }
    const GivenProfile* profile = ProfileToCodeWith(options, {&level, 1});
    if (embed_profile_ && profile == nullptr)
      throw Error(Finding::kUsage, "--embed-profile needs --profile");
    ThreadPool pool(context.global.thread_count());
    const Compressed result = CompressOne(input_, options, references, profile, pool, context);
    report_.Emit(context.console, "compress", CompressedFields, result,
                 RulesFor(output_.one.force));
    return kDone;
  }

 private:
  Compressed CompressOne(const std::string& input, const OpenOptions& options,
                         const References& references, const GivenProfile* profile,
                         ThreadPool& pool, Context& context) const {
    const auto begin = std::chrono::steady_clock::now();
    const size_t first_warning = context.console.warning_texts().size();
    const std::string path = output_.PathFor(input, name_, Naming());
    if (path == "-") output_.one.RequireStdout(context.console, report_.json, "the archive");
    const Source source = snapshot_.Open(input);
    std::optional<Snapshot> snapshot = Describe(source, options, context.console);
    if (!HasTrait(options.from, kIsOpaque)) WarnIfCompressed(source, snapshot, context.console);

    ProgressLine progress(context.console, context.global.progress_when(), input);
    WriteOptions write = MakeOptions(references, profile);
    write.progress = &progress;
    WriteSummary summary;
    const Snapshot* described = snapshot ? &*snapshot : nullptr;
    const Source* archived = &source;
    std::optional<LossyFlags::Result> lossy;
    if (lossy_.is_wanted()) {
      lossy = Approximate(source, snapshot, options, pool, context.console);
      archived = &lossy->source;
      described = &lossy->snapshot;
      write.transformed = lossy->chunks;
    }
    output_.MakeFolder(path);
    AtomicFile file(path, RulesLike(MayReplace(path), input));
    try {
      summary = WriteArchive(*archived, described, write, pool, file);
    } catch (const Error&) {
      source.RequireUnchanged();  // a change of the source explains every other error
      throw;
    }
    const bool read_back = write.check && !file.is_stream();
    if (read_back) ReadBack(file, pool, path);
    source.RequireUnchanged();
    file.Commit();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    Compressed result;
    if (lossy) result.lossy = lossy->chunks->transform->approximation();
    Tell(context, input, path, summary, result.lossy, read_back, elapsed.count());
    const uint64_t hash = result.lossy ? result.lossy->source_hash : summary.source_hash;
    result.inputs = {{input, summary.source_bytes, HashDigits(hash)}};
    result.params = {level_, joined_layers_, !no_check_, snapshot ? snapshot->format : "opaque"};
    result.output = path;
    result.has_bases = !references.empty();
    result.read_back = read_back;
    const std::vector<std::string>& warnings = context.console.warning_texts();
    result.warnings.assign(warnings.begin() + static_cast<std::ptrdiff_t>(first_warning),
                           warnings.end());
    if (profile != nullptr) result.profile = ProfileIn(*profile, summary);
    result.cost = RunCost::Of(context.global.deterministic, context.global.thread_count(),
                              summary.source_bytes, elapsed.count());
    result.made = std::move(summary);
    return result;
  }

  WriteOptions MakeOptions(const References& references, const GivenProfile* profile) const {
    WriteOptions write;
    write.check = !no_check_;
    write.solid = !no_solid_ && !lossy_.is_wanted();
    write.references = references;
    if (profile != nullptr) {
      write.profile = profile->profile;
      write.profile_file = ProfileFile(profile->file);
      write.embeds_profile = embed_profile_;
    }
    write.effort = *ParseEffort(level_);
    write.joined_layers = lossy_.is_wanted() ? 1 : joined_layers_;
    return write;
  }

  ArchiveOutput::Rename Naming() const { return lossy_.is_wanted() ? LossyName : ArchiveName; }

  LossyFlags::Result Approximate(const Source& source, std::optional<Snapshot>& snapshot,
                                 OpenOptions options, ThreadPool& pool, Console& console) const {
    if (!snapshot) {
      throw Error(Finding::kUnsupportedKind, "--transform approximates caches; this is not a cache")
          .File(source.path);
    }
    source.NeedAll();
    const LossyFlags::Given given = lossy_.Read();
    if (!snapshot->heads_known() && !options.geometry) {
      options = LossyFlags::WithHeads(given, options);
      snapshot = OpenSnapshot(source, options);
    }
    LossyFlags::Result lossy = lossy_.Approximate(given, source, *snapshot, options, pool);
    for (const std::string& warning : lossy.warnings) console.Warn(source.path, warning);
    return lossy;
  }

  // Returns the name under which readers search the profile beside the archive.
  static std::string ProfileFile(const std::string& path) {
    const std::string name = std::filesystem::path(path).filename().string();
    return IsSafeRelativePath(name) ? name : std::string();
  }

  Compressed::UsedProfile ProfileIn(const GivenProfile& given, const WriteSummary& summary) const {
    uint64_t coded = 0;
    for (const CodecRow& codec : Codecs()) {
      const auto at = summary.codecs.find(std::string(codec.name));
      if (codec.needs.profile && at != summary.codecs.end()) coded += at->second;
    }
    return {ProfileFile(given.file), given.profile->name(), ProfileHashText(given.profile->hash()),
            coded, embed_profile_ ? std::optional(given.profile->file().size()) : std::nullopt};
  }

  static std::string Proof(const WriteSummary& summary, std::string_view with, bool read_back) {
    if (!summary.checked) return "not checked";
    return fmt::format("every chunk decoded and compared with the {}{}", with,
                       read_back ? ", archive read back" : "");
  }

  void Tell(Context& context, const std::string& input, const std::string& path,
            const WriteSummary& summary, const std::optional<Approximation>& lossy, bool read_back,
            double seconds) const {
    std::string text = fmt::format(
        "{} -> {}: {} to {}, {}, {}\n", Printable(input), path == "-" ? "stdout" : Printable(path),
        HumanBytes(summary.source_bytes), HumanBytes(summary.archive_bytes),
        HumanRatio(summary.source_bytes, summary.archive_bytes),
        HumanRate(summary.source_bytes, seconds));
    std::string parts;
    for (const ChunkKind kind : kKinds) {
      const WriteSummary::Part& part = summary.parts[static_cast<size_t>(kind)];
      if (part.chunks == 0) continue;
      parts += fmt::format(
          "{}{} {:.3f}x", parts.empty() ? "  " : ", ", kKindNames[static_cast<size_t>(kind)],
          static_cast<double>(part.raw_bytes) / static_cast<double>(part.stored_bytes));
    }
    if (!parts.empty()) text += parts + "; chunks " + Counts(summary.codecs);
    if (!summary.choices.empty()) text += "; planes " + Counts(summary.choices);
    if (summary.groups > 0) {
      text += fmt::format("; {} files together in {}", summary.grouped_files,
                          Plural(summary.groups, "group"));
    }
    if (summary.ordered_chunks > 0) {
      text += fmt::format("; rows of {} by sequence and position",
                          Plural(summary.ordered_chunks, "chunk"));
    }
    if (!parts.empty()) text += "\n";
    if (lossy) text += fmt::format("  {}\n", DescribeLoss(*lossy));
    text += fmt::format("  {}: {}, {}",
                        !summary.checked ? "written"
                        : lossy          ? "restores the approximation"
                                         : "identical",
                        Proof(summary, lossy ? "approximation" : "source", read_back),
                        HashText(summary.source_hash));
    context.console.Say(text);
  }

  ArchiveOutput output_;
  LossyFlags lossy_;
  std::string level_ = "default";
  uint32_t joined_layers_ = kJoinedLayers;
  bool no_check_ = false, no_solid_ = false, update_ = false, embed_profile_ = false;
};

}  // namespace

const FieldTable& CompressFields() { return CompressedFields(); }

std::unique_ptr<Command> MakeCompress() { return std::make_unique<Compress>(); }

}  // namespace kv
