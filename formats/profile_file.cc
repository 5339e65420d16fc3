// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/profile_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

namespace kv {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kProfileSuffix = ".kvp";
// Profiles in one folder that are looked at for their hash.
constexpr size_t kMostBeside = 1024;

// A profile ends in its hash, so that only the one that is wanted is read.
bool EndsIn(const FileSource& file, const Hash128Bytes& hash) {
  return file.size() >= hash.size() && file.size() <= kMostProfileBytes &&
         std::memcmp(file.bytes().data() + file.size() - hash.size(), hash.data(), hash.size()) ==
             0;
}

std::string Wanted(const ProfileName& name) {
  std::string text = "the profile";
  if (!name.model.empty()) text += " of " + Printable(name.model);
  text += " (";
  if (!name.file.empty()) text += fmt::format("'{}', ", Printable(name.file));
  return text + ProfileHashText(name.hash) + ")";
}

// Regular files beside `path`: the one of the profile's name, then all that end in .kvp.
std::vector<fs::path> Beside(const ProfileName& name, const std::string& path) {
  std::vector<fs::path> paths;
  fs::path folder = fs::path(path).parent_path();
  if (folder.empty()) folder = ".";
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), end; at != end && paths.size() < kMostBeside;
       at.increment(ignored)) {
    if (ignored) break;
    const std::string file = at->path().filename().string();
    if (file != name.file && !file.ends_with(kProfileSuffix)) continue;
    if (at->is_regular_file(ignored)) paths.push_back(at->path());
  }
  std::ranges::sort(paths, {}, [&](const fs::path& beside) {
    return std::pair(beside.filename().string() != name.file, beside.string());
  });
  return paths;
}

}  // namespace

std::shared_ptr<const Profile> OpenProfile(const std::string& path) {
  try {
    return Profile::Read(FileSource::Open(path, kMostProfileBytes)->bytes());
  } catch (Error& error) {
    throw error.File(path);
  }
}

std::shared_ptr<const Profile> FindProfile(const ProfileName& name, std::string_view what,
                                           const std::string& path, const OpenOptions& options) {
  std::string others;  // that were given, and are not it
  for (const GivenProfile& given : options.profiles) {
    if (given.profile->hash() == name.hash) return given.profile;
    const std::string is =
        given.file.empty() ? "the one that was given" : fmt::format("'{}'", Printable(given.file));
    others += fmt::format("; {} is {}", is, ProfileHashText(given.profile->hash()));
  }
  const bool has_folder = path != "-" && !options.in_memory;
  for (const fs::path& beside : has_folder ? Beside(name, path) : std::vector<fs::path>()) {
    try {
      const std::shared_ptr<const FileSource> file = FileSource::Open(beside);
      if (EndsIn(*file, name.hash)) return Profile::Read(file->bytes());
    } catch (const Error&) {
      continue;  // what merely lies there is no reason to fail
    }
  }
  Error why(Finding::kProfileMissing, "the {} needs {}{}{}", what, Wanted(name),
            options.in_memory ? "" : ", which is not beside it", others);
  throw why.Hint(options.in_memory
                     ? "open the profile of that hash and give it to the context: "
                       "kvt_profile_open, kvt_ctx_use_profile"
                     : "--profile FILE names it; one that is trained anew is another profile");
}

}  // namespace kv
