// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Outputs of compress and decompress: names, folders and streams, and what verify and decompress
// --test report.
#include "apps/kvtool/commands/archive/archive_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "formats/kvz/kvz.h"
#include "formats/registry.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/output.h"

namespace kv {
namespace fs = std::filesystem;
namespace {

std::string WithoutTrailingSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

class FileTarget : public OutputTarget {
 public:
  FileTarget(const std::string& path, const OutputRules& rules) : file_(path, rules) {}
  Sink& Begin(size_t) override { return file_; }
  void End(size_t) override {}
  bool is_stream() const override { return file_.is_stream(); }
  void Commit() override { file_.Commit(); }

 private:
  AtomicFile file_;
};

class FolderTarget : public OutputTarget {
 public:
  FolderTarget(RestoredFolder outline, const std::string& path, const OutputRules& rules)
      : outline_(std::move(outline)), folder_(path, rules) {}

  Sink& Begin(size_t file) override {
    file_ = folder_.Create(outline_.files[file].name, outline_.files[file].executable);
    return *file_;
  }
  void End(size_t) override { std::exchange(file_, nullptr)->Close(); }

  void Commit() override {
    for (const std::string& name : outline_.empty_folders) folder_.MakeFolder(name);
    folder_.Commit();
  }

 private:
  const RestoredFolder outline_;
  AtomicFolder folder_;
  std::unique_ptr<FolderFile> file_;
};

}  // namespace

void ArchiveOutput::Declare(CommandLine& line, const std::string& what) {
  one.Declare(line, what);
  line.Add("--output-dir", folder,
           "Folder for the results of many inputs; relative names keep their folders");
  // The flag is accepted because scripts written for gzip or zstd pass it.
  line.OnFlag(
          "-k,--keep", [] {}, "Has no effect, because inputs are always kept")
      .Hide();
}

void ArchiveOutput::Files(const std::string& input, const std::string& name, const Rename& rename,
                          CommandFiles& files) const {
  if ((one.path.empty() ? 0 : 1) + (one.to_stdout ? 1 : 0) + (folder.empty() ? 0 : 1) > 1)
    throw Error(Finding::kUsage, "give one of -o, -c and --output-dir");
  files.Writes(PathFor(input, name, rename),
               !one.path.empty() ? "-o"
               : one.to_stdout   ? "-c"
                                 : fmt::format("the result of {}", Printable(input)));
}

std::string ArchiveOutput::PathFor(const std::string& input, const std::string& name,
                                   const Rename& rename) const {
  if (one.to_stdout || DescriptorNamed(one.path) == STDOUT_FILENO) return "-";
  if (!one.path.empty()) return one.path;
  if (input == "-") return "-";
  if (folder.empty()) return rename(WithoutTrailingSlash(input));
  return (fs::path(folder) / rename(name)).string();
}

void ArchiveOutput::MakeFolder(const std::string& path) const {
  if (folder.empty()) return;
  std::error_code ignored;  // a missing folder is reported when the result is created
  output::MakeFolders(fs::path(path).parent_path(), ignored);
}

void ArchiveLimit::Declare(CommandLine& line) {
  line.Add("--base", bases,
           "Cache that an archive refers to, if it is not in its folder: a snapshot or an archive "
           "of one (repeatable)")
      .KeepAll();
  line.Add("--profile", profiles,
           "Profile (.kvp) that the input was coded with, if it is not in its folder (repeatable)")
      .KeepAll();
  line.Add("--transform", transforms,
           "Transform (.kvx) that a lossy archive was made with, if it is not in its folder "
           "(repeatable)")
      .KeepAll();
  limit.Declare(line,
                "Limit on the size of the source (default: none), and on zeros written to a stream "
                "for lost bytes, data inflated from a referenced cache, and archives read from a "
                "stream (default: 64GiB)");
}

void RequireNoFolder(const std::string& path) {
  std::error_code failed;
  if (path == "-" || !fs::is_directory(path, failed)) return;
  throw Error(Finding::kOpenFailed, "is a folder without any archive")
      .File(path)
      .Hint("'kvtool doctor' says what is in it; 'kvtool compress' makes archives of caches");
}

OpenOptions ArchiveLimit::Reading() const {
  OpenOptions options;
  options.open = OpenSnapshot;
  RequireThere(bases);
  RequireThere(transforms);
  options.bases = bases;
  options.transforms = transforms;
  for (const std::string& path : profiles) options.profiles.push_back({path, OpenProfile(path)});
  options.max_bytes = limit.most().value_or(options.max_bytes);
  return options;
}

Archive ArchiveLimit::Open(const std::string& path) const {
  RequireNoFolder(path);
  const OpenOptions options = Reading();
  Archive archive = Archive::Open(SizeLimit::WithHint(
      [&] { return FileSource::Open(path, limit.most(), FetchMode::kAsNeeded); }));
  limit.Require(archive.source_bytes(), path);
  FindReferences(archive, path, options);
  return archive;
}

void ArchiveLimit::RequireWritable(const Archive& archive) const {
  uint64_t held = 0;
  for (const ArchivedChunk& chunk : archive.chunks()) {
    held += chunk.head.raw_bytes + chunk.head.lead.size();
  }
  const uint64_t lost = archive.source_bytes() - std::min(held, archive.source_bytes());
  const uint64_t most = limit.most().value_or(kMostOfPipe);
  if (lost <= most) return;
  throw Error(Finding::kLimit, "{} bytes are lost; a stream gets zeros for at most {}", lost, most)
      .Hint("-o FILE has holes in their place, which take no space");
}

std::unique_ptr<OutputTarget> MakeOutputTarget(std::optional<RestoredFolder> folder,
                                               const std::string& path, const OutputRules& rules) {
  if (!folder) return std::make_unique<FileTarget>(path, rules);
  if (DescriptorNamed(path)) {
    throw Error(Finding::kUsage,
                "the archive holds a folder, which cannot be written to standard output")
        .Hint("give -o FOLDER");
  }
  return std::make_unique<FolderTarget>(*std::move(folder), path, rules);
}

const Fields<Approximation>& ApproximationFields() {
  using Layer = Approximation::Layer;
  static const Fields<Loss> loss_fields = {
      {"relative_error", "Root of the sum of squared errors over that of squared values",
       &Loss::relative},
      {"largest_error", "Largest absolute error of a value", &Loss::largest}};
  static const Fields<Layer> layer_fields = {
      {"layer", "Number of the layer", &Layer::number},
      {"k", "Errors of the layer's approximated keys", &Layer::k, loss_fields},
      {"v", "Errors of the layer's approximated values", &Layer::v, loss_fields}};
  static const Fields<Approximation> fields = {
      {"file", "Name of the transform, without folders", &Approximation::file},
      {"model", "Name of the transform's model", &Approximation::model},
      {"hash", "Hash of the transform (XXH3, 32 hex digits), by which it is found",
       [](const Approximation& of) { return ProfileHashText(of.hash); }, kProfileHashText},
      {"ratio", "Ratio asked for: 16-bit values to coefficients", &Approximation::ratio},
      {"first_exact", "First tokens, which are exact", &Approximation::sinks},
      {"last_exact", "Last tokens, which are exact", &Approximation::window},
      {"original_xxh3", "XXH3 hash (64 bits, 16 hex digits) of the original source",
       [](const Approximation& of) { return HashDigits(of.source_hash); }, kHashText},
      {"k", "Largest errors of any layer's keys",
       [](const Approximation& of) { return of.WorstLoss(false); }, loss_fields},
      {"v", "Largest errors of any layer's values",
       [](const Approximation& of) { return of.WorstLoss(true); }, loss_fields},
      {"expected_kl",
       "Expected KL divergence of a next token in nats, by the transform's weights; absent without",
       &Approximation::expected_kl, Absent()},
      {"layers", "Errors of each layer", &Approximation::layers, layer_fields}};
  return fields;
}

void RequireSound(const Archive& archive, ThreadPool& pool) {
  std::vector<Damage> damage = archive.damage();
  for (Damage& one : archive.CheckStored(pool)) damage.push_back(std::move(one));
  if (!damage.empty()) throw damage[0].AsError();
}

namespace {

// Returns a part of K or V; nothing for bytes of a file that belong to neither.
template <typename Number>
auto OfCache(Number number) {
  return [number](const ChunkHead& head) -> std::optional<uint64_t> {
    if (head.kind == ChunkKind::kOpaque) return std::nullopt;
    return std::invoke(number, head);
  };
}

std::optional<std::string_view> KeyOrValue(const ChunkHead& head) {
  if (head.kind == ChunkKind::kOpaque) return std::nullopt;
  return head.kind == ChunkKind::kKey ? "k" : "v";
}

}  // namespace

const Fields<ChunkHead>& ChunkFields() {
  static const Fields<ChunkHead> fields = {
      {"kv", "K or V; null: bytes of the file that are neither", KeyOrValue, OneOf("k", "v")},
      {"layer", "Number of the layer", OfCache(&ChunkHead::layer), Absent()},
      {"token_begin", "First token", OfCache(&ChunkHead::token_begin), Absent()},
      {"token_end", "One past the last token",
       OfCache([](const ChunkHead& head) { return head.token_begin + head.tokens; }), Absent()},
      {"head_begin", "First head", OfCache(&ChunkHead::head_begin), Absent()},
      {"heads", "Number of heads", OfCache(&ChunkHead::heads), Absent()}};
  return fields;
}

const Fields<Damage>& DamageFields() {
  static const Fields<Damage> fields = {
      {"part", "The part of the archive", &Damage::part},
      {"finding", "Number of the finding; 'kvtool explain KV1001' documents KV1001",
       [](const Damage& damage) { return FindingId(damage.finding); }, kFindingNumber},
      {"text", "What is wrong with the part", &Damage::text},
      {"archive_offset", "Offset in the archive, in bytes", &Damage::offset},
      {"chunk", "The damaged chunk; absent for other damage", &Damage::chunk, ChunkFields(),
       Absent()}};
  return fields;
}

const Fields<Lost>& LostFields() {
  static const Fields<Lost> fields = {
      {"file", "File of the original; empty where there is only one", &Lost::file},
      {"offset", "Offset of the first run in the file, in bytes",
       [](const Lost& lost) { return lost.range.offset; }},
      {"run_bytes", "Bytes of a run", [](const Lost& lost) { return lost.range.run_bytes; }},
      {"runs", "Number of runs", [](const Lost& lost) { return lost.range.runs; }},
      {"run_step_bytes", "Bytes from the beginning of one run to that of the next",
       [](const Lost& lost) { return lost.range.run_step; }},
      {"chunk", "The chunk that held them; absent if no chunk did",
       [](const Lost& lost) { return lost.range.chunk; }, ChunkFields(), Absent()}};
  return fields;
}

std::optional<std::string> RestoredHash(const RestoreReport& report) {
  if (!report.source_hash) return std::nullopt;
  return HashDigits(*report.source_hash);
}

std::vector<Lost> LostIn(const Archive& archive, const RestoreReport& report) {
  std::vector<Lost> all;
  for (const LostRange& range : report.lost) {
    all.push_back({archive.files()[range.file].name, range});
  }
  return all;
}

std::string LostText(const Archive& archive, const LostRange& lost) {
  const std::string& name = archive.files()[lost.file].name;
  std::string text = fmt::format("lost: bytes {}..{}", lost.offset, lost.end());
  if (lost.runs > 1) {
    text += fmt::format(" (of these, {} runs of {}, one every {})", lost.runs, lost.run_bytes,
                        lost.run_step);
  }
  if (!name.empty()) text += " of " + Printable(name);
  return text + (lost.chunk ? ": " + Describe(*lost.chunk) : "");
}

}  // namespace kv
