// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <filesystem>
#include <set>

#include "apps/kvtool/doctor/doctor.h"
#include "apps/kvtool/inputs/corpus_entries.h"
#include "apps/kvtool/inputs/run_input.h"
#include "formats/registry.h"
#include "formats/run/run.h"
#include "lib/core/base/error.h"
#include "lib/core/base/file.h"
#include "lib/core/snapshot/layout.h"

namespace kv {
namespace fs = std::filesystem;
namespace {

bool IsFolder(const fs::path& path) {
  std::error_code failed;
  return fs::is_directory(path, failed);
}

// A reader's guess about one file or folder, from its first bytes.
struct FirstLook {
  std::string format;
  bool is_snapshot = false;             // true: a snapshot, or one if it were complete
  std::optional<Finding> refused = {};  // why the entry cannot be opened
  bool opens() const { return is_snapshot && !refused; }
};

// A file that unpacks to more than the search may unpack counts as a snapshot.
FirstLook LookAt(const std::string& path, const OpenOptions& reading) {
  FirstLook look;
  Source source;
  try {
    source = Source::Open(path);
    look.format = DetectFormat(source, reading).id;
  } catch (const Error& error) {
    look.refused = error.finding();
    return look;
  }
  look.is_snapshot = true;
  const uint64_t most = std::min(reading.max_bytes, kMostUnpacked);
  try {
    OpenOptions options = reading;
    options.metadata_only = options.any_batch = options.is_shared = true;
    options.max_bytes = most;
    OpenSnapshot(source, options);
  } catch (const Error& error) {
    // The file is damaged, or has other contents in the same container: a trace, weights, a model.
    Diagnosis other;
    other.max_bytes = most;
    look.refused = error.finding();
    look.is_snapshot = error.finding() == Finding::kUnsupportedKind
                           ? HasTrait(look.format, kHoldsStates)
                           : !DiagnoseOther(source, other);
  }
  return look;
}

class Searcher {
 public:
  // Without `asked` the search was not requested: it follows no link, and ends at kMostSearched
  // files.
  Searcher(const FolderRules& rules, bool asked, FolderSearch& search)
      : rules_(rules),
        asked_(asked),
        takes_archives_(rules.takes("kvz", false)),
        takes_archives_alone_(takes_archives_ && !rules.takes("npy", false)),
        reading_(rules.reading),
        search_(search) {}

  void Search(const fs::path& folder, const std::string& name) {
    if (IsStoreFolder(folder)) return search_.left_out.push_back(folder.string());
    const std::optional<std::vector<fs::path>> children = ListChildren(folder);
    // An unreadable input fails on its own.
    if (!children) return Add(folder, name, true, {"", false, Finding::kOpenFailed});
    if (!TakesWhole(folder, *children, name)) SearchBelow(*children, name);
  }

  void SearchBelow(const std::vector<fs::path>& children, const std::string& name) {
    for (const fs::path& child : children) {
      const std::string file = child.filename().string();
      const std::string called = name.empty() ? file : name + "/" + file;
      std::error_code failed;
      const bool is_link = fs::is_symlink(child, failed);
      if (IsFolder(child) && !(is_link && !asked_)) {
        // A link to a folder may lead back to the search's starting point.
        if (!is_link) Search(child, called);
      } else if (!(is_link && !asked_) && (fs::is_regular_file(child, failed) ||
                                           (IsNamedArchive(child) && !fs::exists(child, failed)))) {
        AddFile(child, called);
      } else if (!asked_) {
        search_.left_out.push_back(child.string());
      }
    }
  }

  // A recorded run and a dump are one input, and their files are not searched.
  bool TakesWhole(const fs::path& folder, const std::vector<fs::path>& children,
                  const std::string& name) {
    std::error_code failed;
    if (fs::exists(folder / "run.json", failed)) {
      if (takes_archives_alone_) return false;  // the folder may contain archives
      Add(folder, name, rules_.takes("", true), {"", true});
      return true;
    }
    if (takes_archives_alone_ || !MayBeDump(folder, children)) return false;
    try {
      const Source source = Source::Open(folder);
      const FormatEntry& format = DetectFormat(source, reading_);
      if (!IsOneDump(folder, source, format)) return false;
      const std::string id(format.id);
      Add(folder, name, rules_.takes(id, false), {id, true});
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  // Returns true if a folder that reads as `whole` is that one input. It is not if it holds caches
  // of another format, or several caches of one format that look like one. Archives beside a cache
  // do not matter.
  bool IsOne(const FirstLook& whole) const {
    // A flag or a choice is missing; the error names it.
    if (whole.refused == Finding::kUsage || whole.refused == Finding::kAmbiguousFormat) return true;
    if (whole.opens() && looks_.size() == 1) return true;
    const bool several = whole.refused == Finding::kDuplicateName;
    return std::none_of(looks_.begin(), looks_.end(), [&](const FirstLook& look) {
      if (!look.opens() || (whole.opens() && HasTrait(look.format, kIsArchive))) return false;
      return several || look.format != whole.format;
    });
  }

  // Returns true if all are pages, which may be of one cache: their format takes --order then.
  bool HoldsPages() const {
    return std::all_of(looks_.begin(), looks_.end(), [](const FirstLook& look) {
      const FormatEntry* format = FindFormat(look.format);
      return format != nullptr && format->needs.find("--order") != format->needs.npos;
    });
  }

  // Returns true if the folder has no other meaning than the caches in it, so that it need not be
  // opened.
  bool HoldsCachesAlone() const {
    const bool several = looks_.size() > 1;
    return several && std::all_of(looks_.begin(), looks_.end(), [](const FirstLook& look) {
             return look.opens() && HasTrait(look.format, kStandsAlone);
           });
  }

  // Returns true if a folder stands for the archives in it, because none is itself an archive.
  bool takes_archives_alone() const { return takes_archives_alone_; }

  // Lists visible entries, sorted; nothing if the folder cannot be read.
  std::optional<std::vector<fs::path>> ListChildren(const fs::path& folder) {
    std::vector<fs::path> children;
    std::error_code failed;
    for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end;
         entry.increment(failed)) {
      if (!entry->path().filename().string().starts_with('.')) children.push_back(entry->path());
      if (++listed_ <= kMostSearched || asked_) continue;
      throw Error(Finding::kLimit, "holds more than {} files", kMostSearched)
          .File(folder.string())
          .Hint("-r searches a folder of any size");
    }
    if (failed) return std::nullopt;
    std::sort(children.begin(), children.end());
    return children;
  }

 private:
  static constexpr size_t kMostSearched = 100'000;

  // Returns true for files that are inputs by name alone: a damaged or inaccessible archive must
  // fail rather than be skipped.
  bool IsNamedArchive(const fs::path& path) const {
    return takes_archives_ && path.extension() == ".kvz";
  }

  // Opening a folder opens everything below it. Avoids that if a file in it is a cache by itself,
  // or is the only file, which is then the input.
  bool MayBeDump(const fs::path& folder, const std::vector<fs::path>& children) const {
    constexpr size_t kLookedAt = 3, kMostFiles = 4096;
    size_t files = 0;
    bool has_folders = false, has_layers = false;
    for (const fs::path& child : children) {
      if (IsFolder(child)) {
        has_folders = true;
        has_layers |= child.filename().string().starts_with("layer");
      } else if (++files <= kLookedAt && IsWholeAlone(child)) {
        return false;
      }
    }
    if (!has_layers && !has_folders && files < 2) return false;
    return IsShallow(folder, has_layers ? SIZE_MAX : kMostFiles);
  }

  bool IsWholeAlone(const fs::path& file) const {
    std::error_code failed;
    if (!asked_ && fs::is_symlink(file, failed)) return false;
    if (!fs::is_regular_file(file, failed)) return false;  // opening a pipe would block
    try {
      return (DetectFormat(Source::Open(file), {}).traits & kStandsAlone) != 0;
    } catch (const Error&) {
      return false;
    }
  }

  // Returns true if at most `most` files are below a folder, none deeper than those of a dump. So
  // each file is opened for only a few of the folders above it, however deep it is.
  static bool IsShallow(const fs::path& folder, size_t most) {
    constexpr int kDeepest = 3;
    size_t files = 0;
    std::error_code failed;
    for (fs::recursive_directory_iterator entry(folder, failed), end; !failed && entry != end;
         entry.increment(failed)) {
      if (++files > most || entry.depth() > kDeepest) return false;
    }
    return !failed;
  }

  // Returns true if a folder as a whole is one snapshot, and no other file in it is a cache itself.
  bool IsOneDump(const fs::path& folder, const Source& source, const FormatEntry& format) const {
    std::set<std::string> used, places;
    try {
      OpenOptions options = reading_;
      options.metadata_only = options.any_batch = options.is_shared = true;
      const Snapshot snapshot = OpenSnapshot(source, options);
      for (const Region& region : FindRegions(snapshot)) {
        const std::string& file = snapshot.source.files[region.file].name;
        used.insert(file);
        places.insert(file.substr(0, file.find('/')));
      }
    } catch (const Error& error) {
      // A damaged dump counts as one, too.
      if (format.read_dumps == nullptr || error.finding() == Finding::kAmbiguousFormat) {
        return false;
      }
    }
    // A single file, or a single folder one level down, is then the input.
    if (places.size() == 1) return false;
    OpenOptions alone;
    alone.max_bytes = reading_.max_bytes;
    return std::none_of(source.files.begin(), source.files.end(), [&](const SourceFile& file) {
      return used.count(file.name) == 0 && LookAt((folder / file.name).string(), alone).is_snapshot;
    });
  }

  void AddFile(const fs::path& path, const std::string& name) {
    const bool is_told = !reading_.from.empty() || !reading_.raw.empty();
    if (is_told || (takes_archives_alone_ && IsNamedArchive(path)))
      return Add(path, name, true, {});
    const FirstLook look = IsOfTrace(path) ? FirstLook() : LookAt(path.string(), reading_);
    const bool counts = look.is_snapshot || takes_archives_alone_;
    const std::string format = counts ? look.format : IsNamedArchive(path) ? "kvz" : "";
    // An input that cannot be opened may be anything; the command reports why.
    std::error_code failed;
    const bool is_shut = look.format.empty() && look.refused &&
                         FindInfo(*look.refused).code == ErrorCode::kIo && fs::exists(path, failed);
    Add(path, name, is_shut || rules_.takes(format, false), look);
  }

  void Add(const fs::path& path, const std::string& name, bool takes, FirstLook look) {
    if (takes) {
      search_.entries.push_back({path.string(), name});
      looks_.push_back(std::move(look));
    } else {
      search_.left_out.push_back(path.string());
    }
  }

  const FolderRules& rules_;
  const bool asked_, takes_archives_, takes_archives_alone_;
  const OpenOptions& reading_;
  FolderSearch& search_;
  std::vector<FirstLook> looks_;  // one for each entry of the folder
  size_t listed_ = 0;
};

}  // namespace

FolderSearch SearchFolder(const FolderRules& rules, const std::string& folder,
                          const std::string& name) {
  FolderSearch search;
  Searcher(rules, true, search).Search(folder, name);
  return search;
}

GivenFolder SearchGivenFolder(const FolderRules& rules, const std::string& folder,
                              const std::string& name) {
  GivenFolder given;
  const OpenOptions& reading = rules.reading;
  // Options for reading the folder make it one input.
  if (!reading.from.empty() || !reading.raw.empty() || !reading.order.empty()) return given;
  if (rules.takes_folder) {
    try {
      if (rules.takes_folder(Source::Open(folder))) return given;
    } catch (const Error&) {
    }
  }
  if (IsStoreFolder(folder)) {
    if (rules.takes_stores) return given;
    throw Error(Finding::kUnknownFormat, "is a store of states, not a cache")
        .File(folder)
        .Hint("'kvtool store list FOLDER' shows them, 'kvtool store get' gives one back");
  }
  Searcher searcher(rules, false, given.found);
  const std::optional<std::vector<fs::path>> children = searcher.ListChildren(folder);
  if (!children) return given;
  if (searcher.TakesWhole(folder, *children, name)) {
    if (given.found.entries.empty()) given.found = {};
    return given;
  }
  try {
    OpenRun(folder);
  } catch (const Error&) {
    return given;  // an unfinished recording: the command refuses it
  }
  searcher.SearchBelow(*children, name);
  given.is_one = given.found.entries.empty() || searcher.HoldsPages();
  if (given.is_one || searcher.takes_archives_alone() || searcher.HoldsCachesAlone()) return given;
  const FirstLook whole = LookAt(folder, reading);
  given.is_one = !whole.format.empty() && rules.takes(whole.format, false) && searcher.IsOne(whole);
  return given;
}

}  // namespace kv
