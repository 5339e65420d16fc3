// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/archive/archive_output.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/inputs/each_command.h"
#include "apps/kvtool/inputs/run_input.h"
#include "formats/kvz/kvz.h"
#include "formats/registry.h"
#include "lib/core/archive/records.h"
#include "lib/core/base/hash.h"

namespace kv {
namespace {

constexpr ChunkKind kKinds[] = {ChunkKind::kKey, ChunkKind::kValue, ChunkKind::kOpaque};
constexpr std::string_view kKindNames[] = {"other", "K", "V"};  // by ChunkKind
constexpr std::string_view kKindKeys[] = {"other", "k", "v"};

// What a reader makes of the source, or nothing where its bytes are archived as they are.
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

bool IsArchive(const Source& source) {
  return source.files.size() == 1 && kvz::HasMagic(source.files[0].data->bytes());
}

// Reads the finished file back: what lies on the disk is what was compared with the source.
void ReadBack(const AtomicFile& file, ThreadPool& pool, const std::string& path) {
  const int descriptor = ::dup(file.descriptor());
  if (descriptor < 0) throw Error(Finding::kReadFailed, "cannot read back").File(path);
  const Archive archive = Archive::Open(FileSource::FromDescriptor(descriptor, path));
  std::vector<Damage> damage = archive.damage();
  for (Damage& one : archive.CheckStored(pool)) damage.push_back(std::move(one));
  if (damage.empty()) return;
  throw damage[0].AsError().In("reading back what was written").File(path);
}

std::string Counts(const std::map<std::string, uint64_t>& counts) {
  std::string text;
  for (const auto& [name, count] : counts) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, count);
  }
  return text;
}

std::string ArchiveName(const std::string& input) { return input + ".kvz"; }

class Compress : public EachOf<Compress> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(line, "FILE", "Snapshots: files, folders, '-' for stdin");
    output_.Declare(line, "Archive to write (default: FILE.kvz; for '-': standard output)");
    line.Add("--level", level_,
             "Trades time for size: fast, default, high, max; compat: exactly MNN's choices")
        .OneOf({"compat", "fast", "default", "high", "max"})
        .ShowDefault();
    line.Add("--joined-layers", joined_layers_,
             "At level max, code up to so many layers in a row by those before them: to read one "
             "takes those before it too (1: each on its own)")
        .Between(uint32_t{1}, kMostJoinedLayers)
        .ShowDefault();
    line.AddFlag("--no-check|!--check", no_check_,
                 "Do not decode the archive and compare it with the source");
    line.AddFlag(
        "--no-solid", no_solid_,
        "Code each small file of a folder apart: it takes more, and damage costs fewer files");
    snapshot_.Declare(line);
    report_.Declare(line);
  }

  // What is an archive already gains nothing.
  bool Takes(std::string_view format, bool is_run) const override {
    return is_run || (!format.empty() && !HasTrait(format, kIsArchive));
  }
  bool HasOutputDir() const override { return true; }
  void Continue() override { output_.one.force = true; }
  OpenOptions Reading() const override { return snapshot_.WithLimit(); }

  void TakeRuns() override {
    const std::string given = input_;
    TakeRun(input_, snapshot_);
    if (input_ == given) return;
    name_ = (std::filesystem::path(name_) / std::filesystem::path(input_).filename()).string();
  }

  void Files(CommandFiles& files) const override {
    files.Reads(input_);
    snapshot_.Files(files);
    output_.Files(input_, name_, ArchiveName, files);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    OpenOptions options = snapshot_.Resolve(flags_for());
    options.metadata_only = true;
    options.any_batch = options.may_guess_axes = true;
    References references;
    for (const std::string& base : options.bases) {
      references.push_back(OpenReference(base, options));
      try {
        RequireShortChain(*references.back());
      } catch (Error& error) {
        throw error.File(base);
      }
    }
    if (options.profiles.size() > 1)
      throw Error(Finding::kUsage, "an archive is coded with one profile: give one --profile");
    if (!options.profiles.empty()) {
      if (*ParseEffort(level_) < Effort::kDefault)
        throw Error(Finding::kUsage, "--profile serves the levels default, high and max");
      options.profile = OpenProfile(options.profiles[0]);
    }
    ThreadPool pool(context.global.thread_count());
    report_.Emit(context.console, CompressOne(input_, options, references, pool, context),
                 RulesFor(output_.one.force));
    return kDone;
  }

 private:
  nlohmann::ordered_json CompressOne(const std::string& input, const OpenOptions& options,
                                     const References& references, ThreadPool& pool,
                                     Context& context) const {
    const auto begin = std::chrono::steady_clock::now();
    const size_t first_warning = context.console.warning_texts().size();
    const std::string path = output_.PathFor(input, name_, ArchiveName);
    if (path == "-") {
      output_.RefuseTerminal(context.console);
      if (report_.json) {
        throw Error(Finding::kUsage, "the archive and --json both go to standard output")
            .Hint("give --json-out FILE");
      }
    }
    const Source source = snapshot_.Open(input);
    const std::optional<Snapshot> snapshot = Describe(source, options, context.console);
    if (!HasTrait(options.from, kIsOpaque) && IsArchive(source)) {
      context.console.Warn(
          input,
          fmt::format("is an archive already: compressed again it gains nothing; 'kvtool "
                      "decompress {} -c | kvtool compress - -o FILE' makes one of another level",
                      input));
    }

    ProgressLine progress(context.console, context.global.progress_when(), input);
    WriteOptions write;
    write.check = !no_check_;
    write.solid = !no_solid_;
    write.references = references;
    write.profile = options.profile;
    if (write.profile != nullptr) write.profile_file = ProfileFile(options.profiles[0]);
    write.effort = *ParseEffort(level_);
    write.joined_layers = joined_layers_;
    write.progress = &progress;
    WriteSummary summary;
    const Snapshot* described = snapshot ? &*snapshot : nullptr;
    output_.MakeFolder(path);
    OutputRules rules = RulesFor(output_.one.force);
    if (input != "-") rules.like = Permissions::Of(input);
    AtomicFile file(path, rules);
    try {
      summary = WriteArchive(source, described, write, pool, file);
    } catch (const Error&) {
      source.RequireUnchanged();  // a change explains whatever else went wrong
      throw;
    }
    const bool read_back = write.check && !file.is_stream();
    if (read_back) ReadBack(file, pool, path);
    source.RequireUnchanged();
    file.Commit();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    Tell(context, input, path, summary, read_back, elapsed.count());
    nlohmann::ordered_json document =
        Document(context, input, path, snapshot, summary, !references.empty(), read_back,
                 first_warning, elapsed.count());
    if (options.profile != nullptr)
      document["profile"] = ProfileIn(*options.profile, options.profiles[0], summary);
    return document;
  }

  // The name by which readers look for it beside the archive.
  static std::string ProfileFile(const std::string& path) {
    const std::string name = std::filesystem::path(path).filename().string();
    return IsSafeRelativePath(name) ? name : std::string();
  }

  static nlohmann::ordered_json ProfileIn(const Profile& profile, const std::string& path,
                                          const WriteSummary& summary) {
    const auto coded = summary.codecs.find(std::string(Name(CodecId::kProfiled)));
    return {{"file", ProfileFile(path)},
            {"name", profile.name()},
            {"hash", ProfileHashText(profile.hash())},
            {"chunks", coded == summary.codecs.end() ? 0 : coded->second}};
  }

  static nlohmann::ordered_json BasesIn(const WriteSummary& summary) {
    nlohmann::ordered_json bases = nlohmann::ordered_json::array();
    for (const WriteSummary::Reference& base : summary.references) {
      bases.push_back({{"file", base.name.file},
                       {"format", base.name.format},
                       {"bytes", base.name.source_bytes},
                       {"xxh3", fmt::format("{:016x}", base.name.source_hash)},
                       {"chain", base.name.chain},
                       {"chunks", base.chunks},
                       {"rows", base.rows},
                       {"equal_rows", base.equal_rows}});
    }
    return bases;
  }

  static std::string Proof(const WriteSummary& summary, bool read_back) {
    if (!summary.checked) return "not checked";
    return read_back ? "every chunk decoded and compared with the source, archive read back"
                     : "every chunk decoded and compared with the source";
  }

  void Tell(Context& context, const std::string& input, const std::string& path,
            const WriteSummary& summary, bool read_back, double seconds) const {
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
      text += fmt::format("; {} files together in {} group{}", summary.grouped_files,
                          summary.groups, summary.groups == 1 ? "" : "s");
    }
    if (summary.ordered_chunks > 0) {
      text += fmt::format("; rows of {} chunk{} by sequence and position", summary.ordered_chunks,
                          summary.ordered_chunks == 1 ? "" : "s");
    }
    if (!parts.empty()) text += "\n";
    text += fmt::format("  {}: {}, {}", summary.checked ? "identical" : "written",
                        Proof(summary, read_back), HashText(summary.source_hash));
    context.console.Say(text);
  }

  nlohmann::ordered_json Document(Context& context, const std::string& input,
                                  const std::string& path, const std::optional<Snapshot>& snapshot,
                                  const WriteSummary& summary, bool with_bases, bool read_back,
                                  size_t first_warning, double seconds) const {
    nlohmann::ordered_json document = ReportHeader("compress");
    document["inputs"] = {{{"file", input},
                           {"bytes", summary.source_bytes},
                           {"xxh3", fmt::format("{:016x}", summary.source_hash)}}};
    document["params"] = {{"level", level_},
                          {"joined_layers", joined_layers_},
                          {"check", !no_check_},
                          {"from", snapshot ? snapshot->format : "opaque"}};
    document["output"] = path;
    document["archive_bytes"] = summary.archive_bytes;
    PutRatio(document, summary.source_bytes, summary.archive_bytes);
    for (const ChunkKind kind : kKinds) {
      const WriteSummary::Part& part = summary.parts[static_cast<size_t>(kind)];
      nlohmann::ordered_json entry = {{"chunks", part.chunks},
                                      {"raw_bytes", part.raw_bytes},
                                      {"stored_bytes", part.stored_bytes}};
      PutRatio(entry, part.raw_bytes, part.stored_bytes);
      document[kKindKeys[static_cast<size_t>(kind)]] = std::move(entry);
    }
    document["solid"] = {{"files", summary.grouped_files}, {"groups", summary.groups}};
    document["ordered_chunks"] = summary.ordered_chunks;
    document["codecs"] = summary.codecs;
    document["planes"] = summary.choices;
    if (with_bases) document["bases"] = BasesIn(summary);
    document["proof"] = {{"chunks_decoded_and_compared", summary.checked},
                         {"archive_read_back", read_back}};
    const std::vector<std::string>& warnings = context.console.warning_texts();
    document["warnings"] = std::vector<std::string>(
        warnings.begin() + static_cast<std::ptrdiff_t>(first_warning), warnings.end());
    if (!context.global.deterministic) {
      document["environment"] = {{"threads", context.global.thread_count()}};
      document["timing"] = {
          {"elapsed_us", static_cast<uint64_t>(seconds * 1e6)},
          {"mb_per_s", static_cast<double>(summary.source_bytes) / 1e6 / std::max(seconds, 1e-9)}};
    }
    return document;
  }

  ArchiveOutput output_;
  std::string level_ = "default";
  uint32_t joined_layers_ = kJoinedLayers;
  bool no_check_ = false, no_solid_ = false;
  SnapshotOptions snapshot_;
};

}  // namespace

std::unique_ptr<Command> MakeCompress() { return std::make_unique<Compress>(); }

}  // namespace kv
