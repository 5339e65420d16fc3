// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/archive_output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "formats/kvz/kvz.h"
#include "formats/registry.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/output_system.h"

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
  FolderTarget(const Archive& archive, const std::string& path, const OutputRules& rules)
      : archive_(archive), folder_(path, rules) {}

  Sink& Begin(size_t file) override {
    const ArchivedFile& archived = archive_.files()[file];
    file_ = folder_.Create(archived.name, archived.executable);
    return *file_;
  }
  void End(size_t) override { std::exchange(file_, nullptr)->Close(); }

  void Commit() override {
    for (const std::string& name : archive_.empty_folders()) folder_.MakeFolder(name);
    folder_.Commit();
  }

 private:
  const Archive& archive_;
  AtomicFolder folder_;
  std::unique_ptr<FolderFile> file_;
};

}  // namespace

void ArchiveOutput::Declare(CommandLine& line, const std::string& what) {
  one.Declare(line, what);
  line.Add("--output-dir", folder,
           "Folder for the results of many inputs; relative names keep their folders");
  line.OnFlag(
      "-k,--keep", [] {}, "Has no effect, because inputs are always kept; accepted out of habit");
}

void ArchiveOutput::Check() const {
  const bool named = !one.path.empty();
  if ((named ? 1 : 0) + (one.to_stdout ? 1 : 0) + (folder.empty() ? 0 : 1) > 1) {
    throw Error(Finding::kUsage, "give one of -o, -c and --output-dir");
  }
}

void ArchiveOutput::Files(const std::string& input, const std::string& name, const Rename& rename,
                          CommandFiles& files) const {
  Check();
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
  std::error_code ignored;  // what is missing then is said where the result is created
  output::MakeFolders(fs::path(path).parent_path(), ignored);
}

void ArchiveOutput::RefuseTerminal(const Console& console) const {
  if (one.force || !console.stdout_is_terminal()) return;
  throw Error(Finding::kUsage, "binary data is not written to a terminal")
      .Hint("redirect the output, give -o FILE, or insist with -f");
}

void ArchiveLimit::Declare(CommandLine& line) {
  line.Add("--base", bases,
           "Cache that an archive refers to, if it is not in its folder: a snapshot or an archive "
           "of one (repeatable)")
      .KeepAll();
  line.Add("--profile", profiles,
           "Profile (.kvp) that an archive was coded with, if it is not in its folder (repeatable)")
      .KeepAll();
  limit.Declare(line,
                "Limit on the size of the source (default: none), on the zeros that a stream gets "
                "for lost bytes, on what is inflated of a cache that the archive refers to, and on "
                "archives from a stream (default: 64GiB)");
}

Archive ArchiveLimit::Open(const std::string& path) const {
  OpenOptions options;
  options.open = OpenSnapshot;
  options.bases = bases;
  options.profiles = profiles;
  options.max_bytes = limit.most().value_or(options.max_bytes);
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
  throw Error(Finding::kLimit,
              fmt::format("{} bytes are lost; a stream gets zeros for at most {}", lost, most))
      .Hint("-o FILE has holes in their place, which take no space");
}

std::unique_ptr<OutputTarget> MakeOutputTarget(const Archive& archive, const std::string& path,
                                               const OutputRules& rules) {
  if (!archive.is_folder()) return std::make_unique<FileTarget>(path, rules);
  if (DescriptorNamed(path)) {
    throw Error(Finding::kUsage, "the archive holds a folder, which standard output cannot take")
        .Hint("give -o FOLDER");
  }
  return std::make_unique<FolderTarget>(archive, path, rules);
}

std::string Place(const Damage& damage) {
  return damage.chunk ? Describe(*damage.chunk) : damage.part;
}

nlohmann::ordered_json ChunkJson(const ChunkHead& head) {
  if (head.kind == ChunkKind::kOpaque) return {{"kv", nullptr}};
  return {{"kv", head.kind == ChunkKind::kKey ? "k" : "v"},
          {"layer", head.layer},
          {"token_begin", head.token_begin},
          {"token_end", head.token_begin + head.tokens},
          {"head_begin", head.head_begin},
          {"heads", head.heads}};
}

nlohmann::ordered_json HashJson(const RestoreReport& report) {
  if (!report.source_hash) return nullptr;
  return fmt::format("{:016x}", *report.source_hash);
}

nlohmann::ordered_json DamageJson(const Damage& damage) {
  nlohmann::ordered_json json = {{"part", damage.part},
                                 {"finding", FindingId(damage.finding)},
                                 {"text", damage.text},
                                 {"archive_offset", damage.offset}};
  if (damage.chunk) json["chunk"] = ChunkJson(*damage.chunk);
  return json;
}

nlohmann::ordered_json LostJson(const Archive& archive, const LostRange& lost) {
  nlohmann::ordered_json json = {{"file", archive.files()[lost.file].name},
                                 {"offset", lost.offset},
                                 {"run_bytes", lost.run_bytes},
                                 {"runs", lost.runs},
                                 {"run_step_bytes", lost.run_step}};
  if (lost.chunk) json["chunk"] = ChunkJson(*lost.chunk);
  return json;
}

std::string LostText(const Archive& archive, const LostRange& lost) {
  const std::string& name = archive.files()[lost.file].name;
  std::string text = fmt::format("lost: bytes {}..{}", lost.offset, lost.end());
  if (lost.runs > 1) {
    text += fmt::format(" (in them {} runs of {}, one every {})", lost.runs, lost.run_bytes,
                        lost.run_step);
  }
  if (!name.empty()) text += " of " + Printable(name);
  return text + (lost.chunk ? ": " + Describe(*lost.chunk) : "");
}

}  // namespace kv
