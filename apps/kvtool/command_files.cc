// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/command_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

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

std::optional<struct stat> StatusOf(const fs::path& path) {
  struct stat status;
  if (const std::optional<int> descriptor = DescriptorNamed(path)) {
    if (::fstat(*descriptor, &status) == 0) return status;
  } else if (::stat(path.c_str(), &status) == 0) {
    return status;
  }
  return std::nullopt;
}

std::optional<File> FileAt(const fs::path& path) {
  const auto status = StatusOf(path);
  if (!status) return std::nullopt;
  return File{status->st_dev, status->st_ino};
}

fs::path WithoutSlash(const fs::path& path) {
  return path.has_filename() || !path.has_parent_path() ? path : path.parent_path();
}

// Where an output goes: a file that is there, a name in a folder that is there, or a name.
struct FilePlace {
  std::optional<File> file;
  std::string name;
  auto operator<=>(const FilePlace&) const = default;
};

FilePlace PlaceOf(const fs::path& path) {
  if (const auto descriptor = DescriptorNamed(path)) {
    const auto status = StatusOf(path);
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

// Whether one of the folders above `path` is `folder`.
bool IsBelow(const fs::path& path, const File& folder) {
  std::error_code failed;
  fs::path above = fs::canonical(path, failed);
  while (!failed && above.has_relative_path()) {
    above = above.parent_path();
    if (FileAt(above) == folder) return true;
  }
  return false;
}

bool HoldsFile(const fs::path& folder, const File& file) {
  std::error_code failed;
  for (fs::recursive_directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (FileAt(entry->path()) == file) return true;
  }
  return false;
}

// Of a file, or of all files in a folder.
std::optional<uint64_t> SizeOf(const fs::path& path) {
  const auto status = StatusOf(path);
  if (!status) return std::nullopt;
  if (S_ISREG(status->st_mode)) return static_cast<uint64_t>(status->st_size);
  if (!S_ISDIR(status->st_mode)) return std::nullopt;
  uint64_t size = 0;
  std::error_code failed;
  for (fs::recursive_directory_iterator entry(path, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) size += entry->file_size(ignored);
  }
  return size;
}

}  // namespace

void CommandFiles::Reads(const std::string& path) {
  if (path.empty() || path == "-") return;
  std::error_code failed;
  if (fs::exists(path, failed)) {
    inputs_.push_back(path);
    return;
  }
  const fs::path stem(path);
  if (!stem.has_filename()) return;
  const fs::path folder = stem.has_parent_path() ? stem.parent_path() : fs::path(".");
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (entry->path().filename().string().starts_with(stem.filename().string())) {
      inputs_.push_back(entry->path().string());
    }
  }
}

void CommandFiles::Reads(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) Reads(path);
}

void CommandFiles::Writes(const std::string& path, std::string_view flag) {
  if (!path.empty()) outputs_.push_back({path, std::string(flag)});
}

void CommandFiles::Check() const {
  for (const Output& output : outputs_) CheckAgainstInputs(output);
  CheckAgainstOutputs();
}

std::vector<std::string> CommandFiles::Sizes() const {
  std::vector<std::string> lines;
  const auto add = [&](std::string_view verb, const std::string& path) {
    const auto size = SizeOf(path);
    if (size) lines.push_back(fmt::format("{} {}: {} bytes", verb, Printable(path), *size));
  };
  for (const std::string& input : inputs_) add("read", input);
  for (const Output& output : outputs_) add("wrote", output.path);
  return lines;
}

void CommandFiles::CheckAgainstInputs(const Output& output) const {
  const auto status = StatusOf(output.path);
  if (!status) return;
  if (S_ISBLK(status->st_mode)) {
    throw Error(Finding::kUsage,
                fmt::format("{}: is a block device, which no output replaces", output.flag))
        .File(output.path);
  }
  const bool is_folder = S_ISDIR(status->st_mode);
  if (!is_folder && !S_ISREG(status->st_mode)) return;  // written through: nothing is lost
  const File file{status->st_dev, status->st_ino};
  for (const std::string& input : inputs_) {
    const auto of_input = StatusOf(input);
    if (!of_input) continue;
    const File there{of_input->st_dev, of_input->st_ino};
    bool loses = there == file || (is_folder && IsBelow(input, file));
    if (S_ISDIR(of_input->st_mode) && !loses) {
      loses = DescriptorNamed(output.path)
                  ? HoldsFile(input, file)
                  : IsBelow(output.path, there) || (status->st_nlink > 1 && HoldsFile(input, file));
    }
    if (!loses) continue;
    throw Error(Finding::kUsage,
                fmt::format("{} would be written over an input, {}", output.flag, Printable(input)))
        .File(output.path);
  }
}

void CommandFiles::CheckAgainstOutputs() const {
  std::map<FilePlace, const Output*> taken;
  for (const Output& output : outputs_) {
    const auto status = DescriptorNamed(output.path) ? std::nullopt : StatusOf(output.path);
    if (status && S_ISCHR(status->st_mode)) continue;  // /dev/null takes everything
    const auto [before, added] = taken.emplace(PlaceOf(output.path), &output);
    if (added) continue;
    throw Error(Finding::kUsage,
                fmt::format("{} and {} are the same file", before->second->flag, output.flag))
        .File(output.path);
  }
}

OutputRules RulesFor(bool force) {
  OutputRules rules(force ? Overwrite::kAllow : Overwrite::kRefuse);
  rules.is_dump = HoldsOnlyADump;
  return rules;
}

OutputRules RulesFor(bool force, const std::string& source) {
  OutputRules rules = RulesFor(force);
  if (source != "-") rules.like = Permissions::Of(source);
  if (rules.like) rules.like = rules.like->ForOtherContents();
  return rules;
}

}  // namespace kv
