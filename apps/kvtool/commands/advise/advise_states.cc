// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>

#include "apps/kvtool/commands/advise/advise_report.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/doctor/doctor.h"
#include "apps/kvtool/inputs/run_input.h"
#include "lib/core/base/system.h"
#include "lib/core/base/utf8.h"

namespace kv {
namespace fs = std::filesystem;
namespace {

using advise::LeftOut;
using advise::SavedState;
using advise::StatesAdvice;

constexpr size_t kMostStates = 10000;
constexpr int kMostDepth = 16;
constexpr const char *kNoCache = "no cache", *kEmpty = "empty",
                     *kBesideSource = "the archive of a file beside it";
constexpr size_t kSampledGeometries = 4;
constexpr int64_t kSecondsOfDay = 24 * 60 * 60;

// Returns true if a file alone is a cache, wherever it is.
bool IsStateFile(const fs::path& path) {
  try {
    return (DetectFormat(Source::Open(path), {}).traits & (kStandsAlone | kIsArchive)) != 0;
  } catch (const Error&) {
    return false;
  }
}

// Asking a reader about a folder opens all files in it, so a few files are asked first.
bool IsOneDump(const std::string& folder) {
  constexpr size_t kAsked = 3;
  size_t asked = 0;
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    std::error_code unknown;
    if (fs::symlink_status(entry->path(), unknown).type() != fs::file_type::regular) continue;
    if (IsStateFile(entry->path())) return false;
    if (++asked == kAsked) break;
  }
  return HoldsOnlyADump(folder);
}

// A file or folder that may be a state, with the times it had before it was opened.
struct Place {
  std::string path, name;
  uint64_t bytes = 0;
  int64_t written_s = 0, read_s = 0;
  bool is_folder = false;
  uint64_t tokens = 0;  // once it is described
};

// Returns the times at which a file was last written and read, in seconds.
std::pair<int64_t, int64_t> Times(const struct stat& file) {
  return {sys::ModifiedAt(file).tv_sec, sys::AccessedAt(file).tv_sec};
}

// Returns when the files of a dump were last written and read. The folder's own times are newer,
// because listing a folder reads it; they count only if it has no files. Dumps have at most one
// level of folders.
std::pair<int64_t, int64_t> NewestTimes(const std::string& folder, const struct stat& own) {
  constexpr int kDeepest = 2;
  std::optional<std::pair<int64_t, int64_t>> newest;
  std::error_code failed;
  for (fs::recursive_directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (entry.depth() == kDeepest) entry.disable_recursion_pending();
    struct stat file;
    if (::lstat(entry->path().c_str(), &file) != 0 || !S_ISREG(file.st_mode)) continue;
    const std::pair<int64_t, int64_t> times = Times(file);
    if (!newest) newest = times;
    newest = {std::max(newest->first, times.first), std::max(newest->second, times.second)};
  }
  return newest.value_or(Times(own));
}

// Finds the states below the inputs, in bounded depth and number. It opens only regular files,
// because opening a pipe blocks, and a link may lead anywhere.
class StateWalk {
 public:
  explicit StateWalk(StatesAdvice& advice) : advice_(advice) {}

  void Take(const std::string& input) {
    struct stat status;
    if (::stat(input.c_str(), &status) != 0) {
      throw Error(Finding::kOpenFailed, "cannot open: {}", std::strerror(errno)).File(input);
    }
    Look(input, input, status, 0);
  }
  std::vector<Place> Places() { return std::move(places_); }
  uint64_t beyond() const { return beyond_; }

 private:
  void LeaveOut(const std::string& name, std::string why) {
    advice_.left_out.push_back({name, std::move(why)});
  }

  void Look(const std::string& path, const std::string& name, const struct stat& status,
            int depth) {
    if (S_ISLNK(status.st_mode)) return LeaveOut(name, "a link");
    if (S_ISDIR(status.st_mode)) return LookInto(path, name, status, depth);
    if (!S_ISREG(status.st_mode)) return LeaveOut(name, "not a regular file");
    if (IsOfTrace(path)) return LeaveOut(name, "of a trace");
    const auto [seen, is_new] = seen_.emplace(std::pair(status.st_dev, status.st_ino), name);
    if (!is_new) return LeaveOut(name, "the same file as " + Printable(seen->second, true));
    const auto [written_s, read_s] = Times(status);
    Add({path, name, static_cast<uint64_t>(status.st_size), written_s, read_s, false});
  }

  void LookInto(const std::string& path, const std::string& name, const struct stat& status,
                int depth) {
    std::error_code failed;
    if (fs::exists(fs::path(path) / "run.json", failed)) return LeaveOut(name, "a recorded run");
    if (IsStoreFolder(path)) return LeaveOut(name, "a store: 'kvtool store stats'");
    const auto [written_s, read_s] = NewestTimes(path, status);  // before its files are opened
    if (IsOneDump(path)) return Add({path, name, BytesOf(path), written_s, read_s, true});
    if (depth == kMostDepth) return LeaveOut(name, "too many folders deep");
    std::vector<std::string> children;
    for (fs::directory_iterator entry(path, failed), end; !failed && entry != end;
         entry.increment(failed)) {
      children.push_back(entry->path().filename().string());
    }
    if (failed) return LeaveOut(name, failed.message());
    std::sort(children.begin(), children.end());
    for (const std::string& child : children) {
      if (child.starts_with('.')) continue;
      const std::string below = (fs::path(path) / child).string();
      struct stat own;
      if (::lstat(below.c_str(), &own) != 0) continue;  // removed already
      Look(below, depth == 0 ? child : name + "/" + child, own, depth + 1);
    }
  }

  void Add(Place place) {
    if (places_.size() == kMostStates) {
      ++beyond_;
      return;
    }
    places_.push_back(std::move(place));
  }

  StatesAdvice& advice_;
  std::vector<Place> places_;
  std::map<std::pair<dev_t, ino_t>, std::string> seen_;  // hard links are one file
  uint64_t beyond_ = 0;
};

std::optional<Snapshot> OpenState(const std::string& path, const OpenOptions& reading,
                                  bool& is_archive) {
  Source source = Source::Open(path);
  is_archive = reading.from.empty() && reading.raw.empty() &&
               (DetectFormat(source, reading).traits & kIsArchive) != 0;
  if (is_archive) return std::nullopt;
  return OpenSnapshot(std::move(source), reading);
}

// Describes the state at a path, or returns why there is none.
struct Described {
  std::optional<SavedState> state;
  std::string why;
};

Described Describe(const Place& place, const OpenOptions& reading, uint64_t most_compared) {
  try {
    bool is_archive = false;
    const std::optional<Snapshot> snapshot = OpenState(place.path, reading, is_archive);
    SavedState state;
    if (snapshot) {
      if (snapshot->layers.empty()) return {std::nullopt, "holds no K and V"};
      state = advise::DescribeState(*snapshot, most_compared);
    }
    state.is_archive = is_archive;
    state.name = place.name;
    state.bytes = place.bytes;
    state.written_s = place.written_s;
    state.read_s = place.read_s;
    return {std::move(state), {}};
  } catch (const Error& error) {
    return {std::nullopt, error.finding() != Finding::kUnknownFormat ? error.message()
                          : place.bytes == 0                         ? kEmpty
                                                                     : kNoCache};
  }
}

// Compares files of equal size byte by byte, and others by all K, V and token ids.
bool Holds(const Place& whole, const Place& part, const OpenOptions& reading) {
  try {
    const auto open = [&](const Place& place) {
      return OpenSnapshot(Source::Open(place.path), reading);
    };
    if (whole.tokens != part.tokens || whole.bytes != part.bytes || whole.is_folder ||
        part.is_folder) {
      return advise::HoldsRows(open(whole), open(part));
    }
    const auto a = FileSource::Open(whole.path), b = FileSource::Open(part.path);
    return AsText(a->bytes()) == AsText(b->bytes());
  } catch (const Error&) {
    return false;  // one of them was removed or changed
  }
}

// Samples the largest state of each of the largest geometries, in the order of their bytes.
std::vector<advise::GeometrySample> TakeSamples(const std::map<std::string, const Place*>& places,
                                                const OpenOptions& reading,
                                                const StatesAdvice& advice) {
  std::map<std::string, std::pair<uint64_t, const SavedState*>> geometries;
  for (const SavedState& state : advice.states) {  // by size, so the first is the largest
    if (state.tokens == 0) continue;
    auto& [bytes, largest] = geometries[state.geometry];
    bytes += state.bytes;
    if (largest == nullptr) largest = &state;
  }
  std::vector<std::pair<uint64_t, const SavedState*>> by_bytes;
  for (const auto& [geometry, of] : geometries) by_bytes.push_back(of);
  std::stable_sort(by_bytes.begin(), by_bytes.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  by_bytes.resize(std::min(by_bytes.size(), kSampledGeometries));
  std::vector<advise::GeometrySample> samples;
  for (const auto& [bytes, state] : by_bytes) {
    try {
      samples.push_back(
          {state->geometry,
           advise::SampleState(OpenSnapshot(Source::Open(places.at(state->name)->path), reading))});
    } catch (const Error&) {
      continue;  // removed or changed: the others suffice as a sample
    }
  }
  return samples;
}

// Returns why there is nothing to advise on.
[[noreturn]] void RefuseAll(const std::string& input, const StatesAdvice& advice,
                            ThreadPool& pool) {
  std::error_code failed;
  if (fs::is_regular_file(input, failed)) {
    throw Error(Finding::kUnknownFormat, "{}", Diagnose(input, std::nullopt, pool).what)
        .File(input)
        .Hint("'kvtool doctor {}' says more", ShellWord(input));
  }
  if (IsStoreFolder(input)) {
    throw Error(Finding::kUnknownFormat, "it is a store, not a folder of states")
        .File(input)
        .Hint("'kvtool store stats {}' says what its states share", ShellWord(input));
  }
  throw Error(Finding::kUnknownFormat, "holds no cache that can be read{}",
              advice.left_out.size() == 1 ? ": " + advice.left_out.front().why : std::string())
      .File(input)
      .Hint("'kvtool doctor FILE' says why; give recorded runs one by one");
}

// Makes the shell words that name the states as inputs of a command.
class CommandWords {
 public:
  CommandWords(const StatesRequest& request, const StatesAdvice& advice,
               const std::vector<Place>& places)
      : request_(request), advice_(advice), places_(places) {}

  // Returns "" if no single command keeps the states apart.
  std::string Store() const {
    if (NeedsNames()) return {};
    const std::string head = "kvtool store add ";
    const std::string store = ShellWord(Beside(".store"));
    if (!IsFolder() || places_.size() <= kMostListed) return head + store + " " + Listed();
    const bool is_flat = std::none_of(places_.begin(), places_.end(), [](const Place& place) {
      return place.name.find('/') != place.name.npos;
    });
    if (HasFolders()) return {};  // a folder's individual files are not states
    if (is_flat && advice_.left_out.empty()) return head + store + " " + Folder() + "/*";
    return fmt::format("find {} -type f{} -exec {}{} {{}} +", Folder(), Excluded(), head, store);
  }
  std::string VerifyStore() const { return "kvtool store verify " + ShellWord(Beside(".store")); }

  std::string Compress() const {
    if (!IsFolder()) return "kvtool compress " + Listed();
    return fmt::format("kvtool compress -r {} --output-dir {}", Folder(),
                       ShellWord(Beside(".kvz")));
  }
  // Returns "" for many states, because others may have been added to their folder by then.
  std::string Delete() const {
    if (places_.size() > kMostListed) return {};
    return (HasFolders() ? "rm -r " : "rm ") + Listed();
  }
  // Returns the free bytes on the states' disk, where archives and a folder's store are written.
  std::optional<uint64_t> FreeBytes() const {
    std::error_code failed;
    const fs::path whole = fs::canonical(request_.inputs.front(), failed);
    const fs::path target = failed ? fs::path(".") : whole.parent_path();
    const fs::space_info space = fs::space(target, failed);
    return failed ? std::nullopt : std::optional<uint64_t>(space.available);
  }
  std::string VerifyArchives() const {
    return "kvtool verify " + (IsFolder() ? ShellWord(Beside(".kvz")) : Listed(".kvz"));
  }

 private:
  static constexpr size_t kMostListed = 8;

  bool IsFolder() const {
    std::error_code failed;
    return request_.inputs.size() == 1 && fs::is_directory(request_.inputs.front(), failed);
  }
  bool HasFolders() const {
    return std::any_of(places_.begin(), places_.end(),
                       [](const Place& place) { return place.is_folder; });
  }
  // A store names a state after its file: states with one name would be versions of one state, and
  // names may have no line breaks.
  bool NeedsNames() const {
    std::set<std::string> names;
    return std::any_of(places_.begin(), places_.end(), [&](const Place& place) {
      const std::string name = fs::path(place.path).filename().string();
      return Printable(name) != name || !names.insert(name).second;
    });
  }
  // Returns arguments of find that exclude the skipped files and hidden files.
  std::string Excluded() const {
    std::string tests = " ! -name '.*'";
    for (const LeftOut& out : advice_.left_out) {
      const std::string path = EscapedForFind((fs::path(Plain()) / out.name).string());
      std::error_code failed;
      const bool is_folder = fs::is_directory(fs::path(Plain()) / out.name, failed);
      tests += " ! -path " + ShellWord(is_folder ? path + "/*" : path);
    }
    return tests;
  }
  static std::string EscapedForFind(const std::string& path) {
    std::string escaped;
    for (const char c : path) {
      if (std::string_view("*?[\\").find(c) != std::string_view::npos) escaped += '\\';
      escaped += c;
    }
    return escaped;
  }
  std::string Plain() const {
    std::string folder = request_.inputs.front();
    while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
    return folder;
  }
  std::string Folder() const { return ShellWord(Plain()); }
  std::string Listed(std::string_view end = {}) const {
    std::string words;
    for (const Place& place : places_)
      words += (words.empty() ? "" : " ") + ShellWord(place.path + std::string(end));
    return words;
  }
  // Returns an unused name beside the folder, so that the states' own folder is unchanged.
  std::string Beside(std::string_view end) const {
    if (!IsFolder()) return "states" + std::string(end);
    const fs::path folder = Plain();
    if (folder.filename() != "." && folder.filename() != "..")
      return folder.string() + std::string(end);
    std::error_code failed;
    const fs::path whole = fs::canonical(folder, failed);
    return (folder / ".." / whole.filename()).lexically_normal().string() + std::string(end);
  }

  const StatesRequest& request_;
  const StatesAdvice& advice_;
  const std::vector<Place>& places_;
};

// Leaves out the archives that `kvtool compress` put beside states: a store would hold both.
void LeaveCopiesOut(const std::vector<Place>& places, std::vector<Described>& described) {
  constexpr std::string_view kArchive = ".kvz";
  std::set<std::string> paths;
  for (const Place& place : places) paths.insert(place.path);
  for (size_t i = 0; i < places.size(); ++i) {
    const std::string& path = places[i].path;
    if (!described[i].state || !described[i].state->is_archive || !path.ends_with(kArchive))
      continue;
    if (paths.contains(path.substr(0, path.size() - kArchive.size())))
      described[i] = {std::nullopt, kBesideSource};
  }
}

void MarkIdle(StatesAdvice& advice) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t now_s = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  const bool reads = advice.access_times != "noatime";
  for (SavedState& state : advice.states) {
    if (!reads) state.read_s.reset();
    const int64_t last = std::max(*state.written_s, state.read_s.value_or(*state.written_s));
    const int64_t since_s = std::max<int64_t>(now_s - last, 0);  // a time may be in the future
    state.idle = static_cast<uint64_t>(since_s / kSecondsOfDay) >= advice.idle_days;
  }
}

// Moves the states that were read to the advice and returns their places; names the others there.
std::vector<Place> KeepStates(std::vector<Place> places, std::vector<Described>& described,
                              StatesAdvice& advice) {
  std::vector<Place> kept;
  for (size_t i = 0; i < places.size(); ++i) {
    if (!described[i].state) {
      // Lists states that cannot be read before files that are not states.
      const bool is_damaged = described[i].why != kNoCache && described[i].why != kEmpty &&
                              described[i].why != kBesideSource;
      advice.left_out.insert(is_damaged ? advice.left_out.begin() : advice.left_out.end(),
                             {places[i].name, described[i].why});
      continue;
    }
    kept.push_back(std::move(places[i]));
    kept.back().tokens = described[i].state->tokens;
    advice.states.push_back(std::move(*described[i].state));
  }
  // A store keeps the end of a state that another one continues, if the longer one is added later:
  // 300 and 512 tokens of a chat take 9 % less in this order, with 100 before them 21 %.
  std::ranges::stable_sort(kept, {}, &Place::tokens);
  return kept;
}

void AddCommands(const CommandWords& words, StatesAdvice& advice) {
  if (advice.kind == StatesAdvice::Kind::kStore) {
    advice.command = words.Store();
    if (!advice.command.empty()) advice.verify_command = words.VerifyStore();
  } else if (advice.kind == StatesAdvice::Kind::kCompress) {
    advice.command = words.Compress();
    advice.verify_command = words.VerifyArchives();
  }
  if (!advice.command.empty()) advice.delete_command = words.Delete();
  if (advice.knows_time) advice.free_bytes = words.FreeBytes();
}

}  // namespace

bool AreStates(const std::vector<std::string>& inputs) {
  if (inputs.size() > 1) return true;
  struct stat status;
  return ::stat(inputs.front().c_str(), &status) == 0 &&
         (S_ISDIR(status.st_mode) || S_ISREG(status.st_mode)) &&
         TraceBeside(inputs.front()).empty();
}

StatesAdvice AdviseStates(const StatesRequest& request, Context& context) {
  StatesAdvice advice;
  advice.idle_days = request.idle_days;
  advice.access_times = sys::AccessTimes(request.inputs.front().c_str());
  advice.knows_time = !context.global.deterministic;
  StateWalk walk(advice);
  for (const std::string& input : request.inputs) walk.Take(input);
  std::vector<Place> places = walk.Places();
  OpenOptions reading = request.reading;
  reading.any_batch = reading.may_guess_axes = reading.is_shared = true;
  reading.max_bytes = std::min(reading.max_bytes, kMostUnpacked);
  ProgressLine progress(context.console, context.global.progress_when(), "states", true);
  uint64_t all = 0;
  for (const Place& place : places) all += place.bytes;
  progress.Begin(all);
  const uint64_t most_compared = advise::MostComparedTokens(places.size());
  std::vector<Described> described(places.size());
  ThreadPool pool(context.global.thread_count());
  pool.ParallelFor(places.size(), [&](uint64_t i) {
    described[i] = Describe(places[i], reading, most_compared);
    progress.Advance(places[i].bytes);
  });
  LeaveCopiesOut(places, described);
  const std::vector<Place> kept = KeepStates(std::move(places), described, advice);
  if (advice.states.empty()) RefuseAll(request.inputs.front(), advice, pool);
  if (walk.beyond() > 0) {
    context.console.Warn("", fmt::format("only the first {} files were looked at, {} more were not",
                                         kMostStates, walk.beyond()));
  }
  const auto is_long = [&](const SavedState& of) { return of.tokens > most_compared; };
  if (std::any_of(advice.states.begin(), advice.states.end(), is_long)) {
    context.console.Warn(
        "", fmt::format("only the first {} tokens of each state were compared", most_compared));
  }
  std::map<std::string, const Place*> by_name;
  for (const Place& place : kept) by_name.emplace(place.name, &place);
  advise::CompareStates(advice.states, [&](const SavedState& whole, const SavedState& part) {
    return Holds(*by_name.at(whole.name), *by_name.at(part.name), reading);
  });
  std::stable_sort(advice.states.begin(), advice.states.end(),
                   [](const SavedState& a, const SavedState& b) { return a.bytes > b.bytes; });
  if (advice.knows_time) {
    MarkIdle(advice);
  } else {
    for (SavedState& state : advice.states) state.written_s = state.read_s = std::nullopt;
  }
  advise::MeasureLevels(TakeSamples(by_name, reading, advice), advice.knows_time, &progress,
                        advice);
  advise::Decide(advice);
  AddCommands(CommandWords(request, advice, kept), advice);
  if (advice.kind != StatesAdvice::Kind::kKeep && advice.free_bytes < advice.result_bytes &&
      advice.free_bytes) {
    context.console.Warn("", "too little disk space for the result beside the originals");
  }
  return advice;
}

void PrintStates(Console& console, const StatesAdvice& advice) {
  constexpr size_t kMostShown = 5;  // for a screen of 24 lines
  constexpr size_t kMostLeftOut = 6;
  const advise::StatesText text = advise::DescribeStates(
      advice, kMostShown, console.verbosity > 0 ? advice.left_out.size() : kMostLeftOut);
  console.Line(text.head);
  console.Data(Table(text.states).Text());
  for (const std::string& fact : text.facts) console.Line(fact);
  if (!advice.levels.empty()) {
    console.Line(text.sample);
    console.Data(Table(text.levels).Text());
  }
  console.Line(text.answer);
  // Commands are not wrapped, so that they can be pasted.
  if (console.verbosity < 0) return;
  for (const std::string& command : text.commands) console.Product("  " + command + "\n");
}

}  // namespace kv
