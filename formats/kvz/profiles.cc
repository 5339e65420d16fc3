// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// How the profile of an archive is found.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "formats/kvz/kvz.h"
#include "lib/core/archive/archive.h"

namespace kv {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kProfileSuffix = ".kvp";
// Profiles beside an archive that are looked at for their hash.
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

// Regular files in the archive's folder: the one of the profile's name, then all that end in .kvp.
std::vector<fs::path> Beside(const ProfileName& name, const std::string& archive) {
  std::vector<fs::path> paths;
  fs::path folder = fs::path(archive).parent_path();
  if (folder.empty()) folder = ".";
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), end; at != end && paths.size() < kMostBeside;
       at.increment(ignored)) {
    if (ignored) break;
    const std::string file = at->path().filename().string();
    if (file != name.file && !file.ends_with(kProfileSuffix)) continue;
    if (at->is_regular_file(ignored)) paths.push_back(at->path());
  }
  std::ranges::sort(paths, {}, [&](const fs::path& path) {
    return std::pair(path.filename().string() != name.file, path.string());
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

void FindProfile(Archive& archive, const std::string& path, const OpenOptions& options) {
  if (archive.profiled_chunks() == 0) return;
  if (!archive.profile_name()) {
    return archive.MissProfile(Error(Finding::kProfileMissing,
                                     "chunks need a profile, and the archive does not say which"));
  }
  const ProfileName& name = *archive.profile_name();
  std::string others;  // that were given, and are not it
  if (options.profile != nullptr) {
    if (options.profile->hash() == name.hash) return archive.UseProfile(options.profile);
    others =
        fmt::format("; the one that was given is {}", ProfileHashText(options.profile->hash()));
  }
  for (const std::string& given : options.profiles) {
    const std::shared_ptr<const Profile> profile = OpenProfile(given);
    if (profile->hash() == name.hash) return archive.UseProfile(profile);
    others += fmt::format("; '{}' is {}", Printable(given), ProfileHashText(profile->hash()));
  }
  if (path != "-" && !options.in_memory) {
    for (const fs::path& beside : Beside(name, path)) {
      try {
        const std::shared_ptr<const FileSource> file = FileSource::Open(beside);
        if (EndsIn(*file, name.hash)) return archive.UseProfile(Profile::Read(file->bytes()));
      } catch (const Error&) {
        continue;  // what merely lies there is no reason to fail
      }
    }
  }
  Error why(Finding::kProfileMissing,
            fmt::format("the archive needs {}, which is not beside it{}", Wanted(name), others));
  why.Hint("--profile FILE names it; one that is trained anew is another profile");
  archive.MissProfile(std::move(why));
}

}  // namespace kv
