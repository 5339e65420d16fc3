// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/archive_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "lib/base/hash.h"

namespace kv {
namespace fs = std::filesystem;
namespace {

std::string WithoutTrailingSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

class FileTarget : public OutputTarget {
 public:
  FileTarget(const std::string& path, Overwrite overwrite) : file_(path, overwrite) {}
  Sink& Begin(size_t) override { return file_; }
  void End(size_t) override {}
  void Commit() override { file_.Commit(); }

 private:
  AtomicFile file_;
};

class StdoutTarget : public OutputTarget {
 public:
  Sink& Begin(size_t) override { return sink_; }
  void End(size_t) override {}
  void Commit() override {}

 private:
  DescriptorSink sink_{STDOUT_FILENO, "stdout"};
};

// The folder is built under a temporary name, so its files need no names of their own before.
class FolderTarget : public OutputTarget {
 public:
  FolderTarget(const Archive& archive, const std::string& path, Overwrite overwrite)
      : archive_(archive), path_(path), folder_(path, overwrite) {}
  ~FolderTarget() override { Close(); }

  Sink& Begin(size_t file) override {
    const fs::path name = folder_.working_path() / archive_.files()[file].name;
    std::error_code failed;
    fs::create_directories(name.parent_path(), failed);
    if (!failed) {
      descriptor_ =
          ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    }
    if (descriptor_ < 0) {
      const std::string reason = failed ? failed.message() : std::strerror(errno);
      throw Error(Finding::kWriteFailed,
                  fmt::format("cannot create {}: {}", archive_.files()[file].name, reason))
          .File(path_);
    }
    sink_.emplace(descriptor_, name.string());
    return *sink_;
  }
  void End(size_t) override { Close(); }

  void Commit() override {
    const int folder = ::open(folder_.working_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool synced = folder >= 0 && ::syncfs(folder) == 0;
    if (folder >= 0) ::close(folder);
    if (!synced) {
      throw Error(Finding::kWriteFailed, fmt::format("cannot write: {}", std::strerror(errno)))
          .File(path_);
    }
    folder_.Commit();
  }

 private:
  void Close() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }

  const Archive& archive_;
  std::string path_;
  AtomicFolder folder_;
  int descriptor_ = -1;
  std::optional<DescriptorSink> sink_;
};

}  // namespace

void ArchiveOutput::Declare(CLI::App& app, const std::string& what) {
  one.Declare(app, what);
  app.add_option("--output-dir", folder,
                 "Folder for the results of many inputs; folders in relative names are kept");
  app.add_flag_callback(
      "-k,--keep", [] {}, "Inputs are always kept; accepted for muscle memory");
}

void ArchiveOutput::Check(const std::vector<std::string>& inputs) const {
  const bool named = !one.path.empty();
  if ((named ? 1 : 0) + (one.to_stdout ? 1 : 0) + (folder.empty() ? 0 : 1) > 1) {
    throw Error(Finding::kUsage, "give one of -o, -c and --output-dir");
  }
  if (inputs.size() > 1 && (named || one.to_stdout)) {
    throw Error(Finding::kUsage, fmt::format("{} takes one input, {} were given; --output-dir "
                                             "takes many",
                                             named ? "-o" : "-c", inputs.size()));
  }
  std::set<std::string> seen;
  for (const std::string& input : inputs) {
    const std::string path = PathFor(input, [](const std::string& name) { return name; });
    if (!seen.insert(path).second) {
      throw Error(Finding::kUsage, fmt::format("two inputs would be written to {}", path));
    }
  }
}

std::string ArchiveOutput::PathFor(
    const std::string& input, const std::function<std::string(const std::string&)>& rename) const {
  if (one.to_stdout) return "-";
  if (!one.path.empty()) return one.path;
  if (input == "-") return "-";
  const std::string name = rename(WithoutTrailingSlash(input));
  if (folder.empty()) return name;
  const fs::path path = fs::path(name).lexically_normal();
  const bool stays = path.is_relative() && *path.begin() != "..";
  return (fs::path(folder) / (stays ? path : path.filename())).string();
}

void ArchiveOutput::RefuseTerminal(const Console& console) const {
  if (one.force || !console.stdout_is_terminal()) return;
  throw Error(Finding::kUsage, "binary data is not written to a terminal")
      .Hint("redirect the output, give -o FILE, or insist with -f");
}

ExitStatus ForEachInput(const std::vector<std::string>& inputs, bool keep_going, Console& console,
                        const std::function<ExitStatus(const std::string&)>& body) {
  ExitStatus status = kDone;
  for (const std::string& input : inputs) {
    ExitStatus one;
    try {
      one = body(input);
    } catch (Error& error) {
      if (error.code() == ErrorCode::kUsage) throw;
      console.Report(error.File(input));
      one = StatusOf(error.code());
    }
    status = Worse(status, one);
    if (one >= kInvalid && !keep_going) break;
  }
  return status;
}

std::unique_ptr<OutputTarget> MakeOutputTarget(const Archive& archive, const std::string& path,
                                               Overwrite overwrite) {
  if (path == "-") {
    if (archive.is_folder()) {
      throw Error(Finding::kUsage, "the archive holds a folder, which standard output cannot take")
          .Hint("give -o FOLDER");
    }
    return std::make_unique<StdoutTarget>();
  }
  if (archive.is_folder()) return std::make_unique<FolderTarget>(archive, path, overwrite);
  return std::make_unique<FileTarget>(path, overwrite);
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
  if (!name.empty()) text += " of " + name;
  return text + (lost.chunk ? ": " + Describe(*lost.chunk) : "");
}

}  // namespace kv
