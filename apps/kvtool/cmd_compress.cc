// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>

#include "apps/kvtool/archive_output.h"
#include "apps/kvtool/commands.h"
#include "apps/kvtool/progress.h"
#include "formats/registry.h"
#include "lib/base/hash.h"

namespace kv {
namespace {

constexpr ChunkKind kKinds[] = {ChunkKind::kKey, ChunkKind::kValue, ChunkKind::kOpaque};
constexpr std::string_view kKindNames[] = {"other", "K", "V"};  // by ChunkKind
constexpr std::string_view kKindKeys[] = {"other", "k", "v"};

// What a reader makes of the source, or nothing where its bytes are archived as they are.
std::optional<Snapshot> Describe(const Source& source, const OpenOptions& options,
                                 Console& console) {
  if (options.from == "opaque") return std::nullopt;
  try {
    Snapshot snapshot = OpenSnapshot(source, options);
    for (const Note& note : snapshot.notes) {
      if (note.is_warning) console.Say(fmt::format("kvtool: {}: {}", source.path, note.text), 1);
    }
    return snapshot;
  } catch (Error& error) {
    if (error.finding() == Finding::kUnsupportedKind) {
      console.Warn(source.path, fmt::format("{}; archived as opaque bytes", error.message()));
      return std::nullopt;
    }
    if (error.code() == ErrorCode::kUnsupported && error.hint().empty()) {
      error.Hint("--from opaque archives the bytes as they are");
    }
    throw;
  }
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

class Compress : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_option("FILE", inputs_, "Snapshots: files, folders, '-' for stdin")->required();
    output_.Declare(app, "Archive to write (default: FILE.kvz; of '-': standard output)");
    app.add_option(
           "--level", level_,
           "Size against time: fast, default, high, max; compat: exactly the engine's choices")
        ->check(CLI::IsMember({"compat", "fast", "default", "high", "max"}))
        ->capture_default_str();
    app.add_flag("--no-check,!--check", no_check_, "Do not decode and compare what was written");
    app.add_flag("--keep-going", keep_going_, "Go on with the next input after an error");
    snapshot_.Declare(app);
    report_.Declare(app);
  }

  ExitStatus Run(Context& context) override {
    output_.Check(inputs_);
    OpenOptions options = snapshot_.Resolve();
    options.metadata_only = true;
    options.any_batch = options.may_guess_axes = true;
    ThreadPool pool(context.global.thread_count());
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    const ExitStatus status =
        ForEachInput(inputs_, keep_going_, context.console, [&](const std::string& input) {
          all.push_back(CompressOne(input, options, pool, context));
          return kDone;
        });
    if (!all.empty()) {
      report_.Emit(context.console, all.size() == 1 ? all[0] : all, output_.one.overwrite());
    }
    return status;
  }

 private:
  nlohmann::ordered_json CompressOne(const std::string& input, const OpenOptions& options,
                                     ThreadPool& pool, Context& context) const {
    const auto begin = std::chrono::steady_clock::now();
    const size_t first_warning = context.console.warning_texts().size();
    const std::string path =
        output_.PathFor(input, [](const std::string& name) { return name + ".kvz"; });
    if (path == "-") {
      output_.RefuseTerminal(context.console);
      if (report_.json) {
        throw Error(Finding::kUsage, "the archive and --json both go to standard output")
            .Hint("give --json-out FILE");
      }
    }
    const Source source = Source::Open(input);
    const std::optional<Snapshot> snapshot = Describe(source, options, context.console);

    ProgressLine progress(context.console, context.global.progress_when(), input);
    WriteOptions write;
    write.check = !no_check_;
    write.effort = *ParseEffort(level_);
    write.progress = &progress;
    WriteSummary summary;
    const Snapshot* described = snapshot ? &*snapshot : nullptr;
    if (path == "-") {
      DescriptorSink sink(STDOUT_FILENO, "stdout");
      summary = WriteArchive(source, described, write, pool, sink);
    } else {
      const std::filesystem::path parent = std::filesystem::path(path).parent_path();
      std::error_code ignored;
      if (!output_.folder.empty()) std::filesystem::create_directories(parent, ignored);
      AtomicFile file(path, output_.one.overwrite());
      summary = WriteArchive(source, described, write, pool, file);
      if (write.check) ReadBack(file, pool, path);
      file.Commit();
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    Tell(context, input, path, summary, elapsed.count());
    return Document(context, input, path, snapshot, summary, first_warning, elapsed.count());
  }

  std::string Proof(const std::string& path, const WriteSummary& summary) const {
    if (!summary.checked) return "not checked";
    return path == "-" ? "every chunk decoded and compared with the source"
                       : "every chunk decoded and compared with the source, archive read back";
  }

  void Tell(Context& context, const std::string& input, const std::string& path,
            const WriteSummary& summary, double seconds) const {
    std::string text =
        fmt::format("{} -> {}: {} to {}, {}, {}\n", input, path == "-" ? "stdout" : path,
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
    if (!parts.empty()) text += "\n";
    text += fmt::format("  {}: {}, {}", summary.checked ? "identical" : "written",
                        Proof(path, summary), HashText(summary.source_hash));
    context.console.Say(text);
  }

  nlohmann::ordered_json Document(Context& context, const std::string& input,
                                  const std::string& path, const std::optional<Snapshot>& snapshot,
                                  const WriteSummary& summary, size_t first_warning,
                                  double seconds) const {
    nlohmann::ordered_json document = ReportHeader("compress");
    document["inputs"] = {{{"file", input},
                           {"bytes", summary.source_bytes},
                           {"xxh3", fmt::format("{:016x}", summary.source_hash)}}};
    document["params"] = {
        {"level", level_}, {"check", !no_check_}, {"from", snapshot ? snapshot->format : "opaque"}};
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
    document["codecs"] = summary.codecs;
    document["planes"] = summary.choices;
    document["proof"] = {{"chunks_decoded_and_compared", summary.checked},
                         {"archive_read_back", summary.checked && path != "-"}};
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

  std::vector<std::string> inputs_;
  ArchiveOutput output_;
  std::string level_ = "default";
  bool no_check_ = false, keep_going_ = false;
  SnapshotOptions snapshot_;
  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeCompress() { return std::make_unique<Compress>(); }

}  // namespace kv
