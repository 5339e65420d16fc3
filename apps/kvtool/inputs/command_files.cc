// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/inputs/command_files.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "formats/registry.h"
#include "lib/core/base/error.h"

namespace kv {
namespace fs = std::filesystem;
namespace {

struct File {
  dev_t device;
  ino_t inode;
  auto operator<=>(const File&) const = default;
};

std::optional<struct stat> ReadStatus(const fs::path& path) {
  struct stat status;
  if (const std::optional<int> descriptor = DescriptorNamed(path)) {
    if (::fstat(*descriptor, &status) == 0) return status;
  } else if (::stat(path.c_str(), &status) == 0) {
    return status;
  }
  return std::nullopt;
}

std::optional<File> FileAt(const fs::path& path) {
  const auto status = ReadStatus(path);
  if (!status) return std::nullopt;
  return File{status->st_dev, status->st_ino};
}

fs::path WithoutSlash(const fs::path& path) {
  return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

// Identifies an output: an existing file, a name in an existing folder, or a name.
struct FilePlace {
  std::optional<File> file;
  std::string name;
  auto operator<=>(const FilePlace&) const = default;
};

FilePlace FindPlace(const fs::path& path) {
  if (const auto descriptor = DescriptorNamed(path)) {
    const auto status = ReadStatus(path);
    if (!status || !S_ISREG(status->st_mode))
      return {{}, fmt::format("descriptor {}", *descriptor)};
  }
  if (const auto file = FileAt(path)) return {file, ""};
  const fs::path plain = WithoutSlash(path);
  const fs::path parent = plain.has_parent_path() ? plain.parent_path() : fs::path(".");
  if (const auto folder = FileAt(parent)) return {folder, plain.filename().string()};
  std::error_code ignored;
  return {{}, fs::weakly_canonical(plain, ignored).string()};
}

// Returns the folders that contain `path`, the nearest first.
std::vector<File> FoldersAbove(const fs::path& path) {
  std::vector<File> folders;
  std::error_code failed;
  fs::path above = fs::canonical(path, failed);
  while (!failed && above.has_relative_path()) {
    above = above.parent_path();
    if (const auto folder = FileAt(above)) folders.push_back(*folder);
  }
  return folders;
}

bool HoldsFile(const fs::path& folder, const File& file) {
  std::error_code failed;
  for (fs::recursive_directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (FileAt(entry->path()) == file) return true;
  }
  return false;
}

// Returns the size of a file, or of all files in a folder.
std::optional<uint64_t> ReadSize(const fs::path& path) {
  const auto status = ReadStatus(path);
  if (!status) return std::nullopt;
  if (S_ISREG(status->st_mode)) return static_cast<uint64_t>(status->st_size);
  if (!S_ISDIR(status->st_mode)) return std::nullopt;
  return BytesOf(path.string());
}

// The places of the inputs, indexed, so that a look-up takes no longer if there are many.
class InputPlaces {
 public:
  explicit InputPlaces(const std::vector<std::string>& inputs) : inputs_(inputs) {
    for (const std::string& input : inputs) {
      const auto status = ReadStatus(input);
      if (!status) continue;
      const File file{status->st_dev, status->st_ino};
      (S_ISDIR(status->st_mode) ? folders_ : files_).emplace(file, &input);
    }
  }

  // Returns the input that would be lost if the output `path` were replaced; null if there is none.
  const std::string* LostTo(const std::string& path, const struct stat& status) const {
    const File file{status.st_dev, status.st_ino};
    for (const auto* same : {&files_, &folders_}) {
      if (const auto found = same->find(file); found != same->end()) return found->second;
    }
    if (S_ISDIR(status.st_mode)) {
      FindFoldersAbove();
      if (const auto found = above_.find(file); found != above_.end()) return found->second;
    }
    if (folders_.empty()) return nullptr;
    if (!DescriptorNamed(path)) {
      for (const File& above : FoldersAbove(path)) {
        if (const auto found = folders_.find(above); found != folders_.end()) return found->second;
      }
      if (status.st_nlink < 2 || S_ISDIR(status.st_mode)) return nullptr;
    }
    for (const auto& [folder, input] : folders_) {
      if (HoldsFile(*input, file)) return input;
    }
    return nullptr;
  }

 private:
  void FindFoldersAbove() const {
    if (!above_.empty()) return;
    for (const std::string& input : inputs_) {
      for (const File& above : FoldersAbove(input)) above_.emplace(above, &input);
    }
  }

  const std::vector<std::string>& inputs_;
  std::map<File, const std::string*> files_, folders_;
  mutable std::map<File, const std::string*> above_;  // the folders that contain inputs
};

void CheckAgainstInputs(const CommandFiles::Output& output, const InputPlaces& inputs) {
  const auto status = ReadStatus(output.path);
  if (!status) return;
  if (S_ISBLK(status->st_mode)) {
    throw Error(Finding::kUsage, "{}: is a block device, which kvtool does not replace",
                output.flag)
        .File(output.path);
  }
  const bool is_folder = S_ISDIR(status->st_mode);
  if (!is_folder && !S_ISREG(status->st_mode)) return;  // written through: nothing is lost
  const std::string* lost = inputs.LostTo(output.path, *status);
  if (lost == nullptr) return;
  throw Error(Finding::kUsage, "{} would be written over an input, {}", output.flag,
              Printable(*lost))
      .File(output.path);
}

// Appends the files whose paths begin with one of `stems`, each once. A folder is listed only once,
// however many stems are in it: a list may name thousands of missing files.
void AppendFilesOfStems(const std::vector<std::string>& stems, std::vector<std::string>& files) {
  std::map<fs::path, std::set<std::string>> by_folder;
  for (const std::string& path : stems) {
    const fs::path stem(path);
    by_folder[stem.has_parent_path() ? stem.parent_path() : fs::path(".")].insert(
        stem.filename().string());
  }
  for (const auto& [folder, names] : by_folder) {
    std::set<std::string> listed;
    std::error_code failed;
    for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end;
         entry.increment(failed)) {
      listed.insert(entry->path().filename().string());
    }
    // Last stem that was listed. Stems that extend it are skipped: "a" also lists files of "ab".
    const std::string* covering = nullptr;
    for (const std::string& name : names) {
      if (covering != nullptr && name.starts_with(*covering)) continue;
      covering = &name;
      for (auto at = listed.lower_bound(name); at != listed.end() && at->starts_with(name); ++at)
        files.push_back((folder / *at).string());
    }
  }
}

}  // namespace

void CommandFiles::Reads(const std::string& path) {
  if (path == "-") ++streams_;
  if (path.empty() || path == "-") return;
  std::error_code failed;
  if (fs::exists(path, failed)) {
    inputs_.push_back(path);
    return;
  }
  if (fs::path(path).has_filename()) stems_.push_back(path);
}

void CommandFiles::Reads(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) Reads(path);
}

std::vector<std::string> CommandFiles::inputs() const {
  std::vector<std::string> all = inputs_;
  AppendFilesOfStems(stems_, all);
  // A file may be given under several paths, as by an option and by a config.
  std::set<fs::path> known;
  std::erase_if(all, [&](const std::string& path) {
    std::error_code failed;
    const fs::path place = fs::canonical(path, failed);
    return !known.insert(failed ? fs::path(path) : place).second;
  });
  return all;
}

void CommandFiles::Writes(const std::string& path, std::string_view flag) {
  if (!path.empty()) outputs_.push_back({path, std::string(flag)});
}

void CommandFiles::Add(const CommandFiles& one, size_t inputs, bool has_output_dir) {
  inputs_.insert(inputs_.end(), one.inputs_.begin(), one.inputs_.end());
  stems_.insert(stems_.end(), one.stems_.begin(), one.stems_.end());
  streams_ = std::max(streams_, one.streams_);
  for (const Output& output : one.outputs_) {
    if (output.flag.starts_with('-')) {
      // A flag names the same file in every run.
      const bool is_known = !flagged_.emplace(output.flag, output.path).second;
      if (is_known && output.HoldsAllInputs()) continue;
      if (is_known) {
        const bool is_result = has_output_dir && (output.flag == "-o" || output.flag == "-c");
        throw Error(Finding::kUsage, "{} takes one input, {} were given{}", output.flag, inputs,
                    is_result ? "; -o FOLDER/ takes many" : "");
      }
    }
    outputs_.push_back(output);
  }
}

void CommandFiles::Check() const {
  if (streams_ > 1) {
    throw Error(Finding::kUsage, "{} inputs are standard input, which can be read once", streams_);
  }
  const std::vector<std::string> all = inputs();
  const InputPlaces places(all);
  for (const Output& output : outputs_) CheckAgainstInputs(output, places);
  CheckAgainstOutputs();
}

std::vector<std::string> CommandFiles::Sizes() const {
  std::vector<std::string> lines;
  const auto add = [&](std::string_view verb, const std::string& path) {
    const auto size = ReadSize(path);
    if (size) lines.push_back(fmt::format("{} {}: {} bytes", verb, Printable(path), *size));
  };
  for (const std::string& input : inputs()) add("read", input);
  for (const Output& output : outputs_) add("wrote", output.path);
  return lines;
}

void CommandFiles::CheckAgainstOutputs() const {
  std::map<FilePlace, const Output*> taken;
  for (const Output& output : outputs_) {
    const auto status = DescriptorNamed(output.path) ? std::nullopt : ReadStatus(output.path);
    if (status && S_ISCHR(status->st_mode)) continue;  // /dev/null accepts everything
    const auto [before, added] = taken.emplace(FindPlace(output.path), &output);
    if (added) continue;
    Error error(Finding::kUsage, "{} and {} are the same file", before->second->flag, output.flag);
    if (before->second->flag != output.flag && output.flag.starts_with("the result of"))
      error.Hint("--output-dir FOLDER keeps the folders of relative names apart");
    throw error.File(output.path);
  }
}

uint64_t BytesOf(const std::string& path) {
  std::error_code failed;
  if (fs::is_regular_file(path, failed)) return fs::file_size(path, failed);
  uint64_t bytes = 0;
  for (fs::recursive_directory_iterator entry(path, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) bytes += entry->file_size(ignored);
  }
  return bytes;
}

bool NamesFolder(const std::string& output) {
  std::error_code failed;
  return output.ends_with('/') || fs::is_directory(output, failed);
}

std::string LastName(const std::string& path) {
  const fs::path whole = fs::path(path).lexically_normal();
  const std::string name = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  return name == "." || name == ".." ? fs::canonical(path).filename().string() : name;
}

OutputRules RulesFor(bool force) {
  OutputRules rules(force ? Overwrite::kAllow : Overwrite::kRefuse);
  rules.is_dump = HoldsOnlyADump;
  return rules;
}

OutputRules RulesLike(bool force, const std::string& source) {
  OutputRules rules = RulesFor(force);
  if (source != "-") rules.like = Permissions::Of(source);
  return rules;
}

OutputRules RulesFor(bool force, const std::string& source) {
  return RulesFor(force, std::vector<std::string>{source});
}

OutputRules RulesFor(bool force, const std::vector<std::string>& sources) {
  OutputRules rules = RulesFor(force);
  for (const std::string& source : sources) {
    if (source == "-") continue;
    std::optional<Permissions> of = Permissions::Of(source);
    if (!of) continue;
    of = of->ForOtherContents();
    if (!rules.like) rules.like = of;
    if (of->owner != rules.like->owner || of->group != rules.like->group)
      *of = {of->mode & 0600, ::geteuid(), ::getegid()};
    of->mode &= rules.like->mode;
    rules.like = of;
  }
  return rules;
}

OutputRules RulesFor(bool force, const std::string& path, const Source& source) {
  OutputRules rules = RulesFor(force, path);
  rules.before_commit = [&source] { source.RequireUnchanged(); };
  return rules;
}

}  // namespace kv
