// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/inputs/corpus_entries.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <glob.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/exit_status.h"
#include "apps/kvtool/line/options.h"
#include "formats/registry.h"
#include "formats/run/run.h"
#include "lib/core/base/error.h"
#include "lib/core/base/file.h"
#include "lib/core/base/output.h"
#include "lib/core/snapshot/layout.h"
#include "lib/remote/url.h"

namespace kv {
namespace fs = std::filesystem;
namespace {

std::vector<std::string> ListedPaths(const InputOptions& inputs) {
  const auto file = FileSource::Open(inputs.files_from, kMostOfList);
  const std::string_view text = AsText(file->bytes());
  const char separator = inputs.null ? '\0' : '\n';
  if (!inputs.null && text.find('\0') != text.npos) {
    throw Error(Finding::kUsage, "--files-from: holds NULs")
        .File(inputs.files_from)
        .Hint("-0 is for lists that 'find -print0' makes");
  }
  std::vector<std::string> paths;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    ++number;
    const size_t end = std::min(text.find(separator, begin), text.size());
    std::string path(text.substr(begin, end - begin));
    if (remote::IsUrl(path)) {
      if (!inputs.fetch_listed) {
        throw Error(Finding::kUsage, "--files-from: entry {} is a URL", number)
            .File(inputs.files_from)
            .Hint("--fetch-listed fetches the URLs of a list");
      }
      path = remote::NameOfUrl(path);
    }
    if (!path.empty()) paths.push_back(std::move(path));
    begin = end + 1;
  }
  return paths;
}

void AddManifest(const InputOptions& inputs, std::vector<CorpusEntry>& entries) {
  const OpenedManifest opened = OpenManifest(inputs.corpus, inputs.corpus_dir);
  const corpus::Manifest& manifest = opened.manifest;
  const auto text = [](const nlohmann::ordered_json& line, const char* key) {
    const auto found = line.find(key);
    return found != line.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  for (size_t i = 0; i < manifest.members.size(); ++i) {
    const corpus::Member& member = manifest.members[i];
    entries.push_back({(fs::path(opened.folder) / member.name).lexically_normal().string(),
                       member.name, 0, member.bytes, member.xxh3, text(manifest.lines[i], "model"),
                       text(manifest.lines[i], "format")});
  }
}

// Collects the inputs of one command line, and reports the skipped ones.
class InputFinder {
 public:
  InputFinder(const InputOptions& inputs, const FolderRules& rules, Console& console)
      : inputs_(inputs), rules_(rules), console_(console) {}

  CommandInputs Find() {
    for (const std::string& given : inputs_.given) {
      for (const std::string& path : MatchingPaths(given)) AddGiven(path);
    }
    if (!inputs_.files_from.empty()) {
      for (const std::string& path : ListedPaths(inputs_)) Add(path);
    }
    if (!inputs_.corpus.empty()) AddManifest(inputs_, result_.entries);
    if (left_out_ > 0) {
      console_.Say(fmt::format("{} left out, which this command cannot use; -v names {}",
                               Plural(left_out_, "file"), left_out_ == 1 ? "it" : "them"));
    }
    return std::move(result_);
  }

 private:
  void Add(const std::string& path) {
    std::error_code failed;
    if (!inputs_.recursive || !fs::is_directory(path, failed)) {
      const std::string name = path == "-" ? path : CorpusName(path);
      result_.entries.push_back({path, name, ParentLength(name)});
      return;
    }
    const std::string name = FolderName(path);
    FolderSearch search = SearchFolder(rules_, path, name);
    left_out_ += search.left_out.size();
    Take(search, ParentLength(name));
  }

  void AddGiven(const std::string& path) {
    std::error_code failed;
    if (inputs_.recursive || !fs::is_directory(path, failed)) return Add(path);
    // Names are relative to a folder that is the only input, as in its manifest.
    const bool is_alone =
        inputs_.given.size() == 1 && inputs_.files_from.empty() && inputs_.corpus.empty();
    const std::string name = is_alone ? "" : FolderName(path);
    GivenFolder given = SearchGivenFolder(rules_, path, name);
    const size_t found = given.found.entries.size();
    if (given.is_one) return Add(path);
    console_.Say(fmt::format("{}: {}{}", Printable(path), Plural(found, "input"),
                             LeftOutText(given.found.left_out)));
    result_.searched.push_back(path);
    Take(given.found, ParentLength(name));
  }

  static size_t ParentLength(const std::string& name) { return name.rfind('/') + 1; }

  static std::string FolderName(const std::string& path) {
    const std::string name = CorpusName(path);
    return name == "." || name == ".." ? std::string() : name;
  }

  static std::string LeftOutText(const std::vector<std::string>& files) {
    constexpr size_t kMostShown = 3;
    if (files.empty()) return {};
    std::string text;
    for (size_t i = 0; i < std::min(files.size(), kMostShown); ++i) {
      text += (i == 0 ? "" : ", ") + Printable(fs::path(files[i]).filename().string());
    }
    const size_t more = files.size() - std::min(files.size(), kMostShown);
    if (more > 0) text += fmt::format(" and {} more (-v names all)", more);
    return fmt::format("; left out, because this command cannot use it: {}", text);
  }

  void Take(FolderSearch& search, size_t parent) {
    for (CorpusEntry& entry : search.entries) entry.parent = parent;
    for (const std::string& file : search.left_out) {
      console_.Say(fmt::format("kvtool: {}: left out: this command cannot use it", Printable(file)),
                   1);
    }
    std::move(search.entries.begin(), search.entries.end(), std::back_inserter(result_.entries));
  }

  const InputOptions& inputs_;
  const FolderRules& rules_;
  Console& console_;
  CommandInputs result_;
  size_t left_out_ = 0;  // files that -r left out
};

std::string FolderOfManifest(const std::string& path, const std::string& said) {
  const fs::path folder = fs::path(said).lexically_normal();
  if (folder.is_absolute() || (!folder.empty() && *folder.begin() == "..")) {
    throw Error(Finding::kUnsafeName, "folder '{}' is outside the manifest's own", Printable(said))
        .Hint("if the manifest is right, --corpus-dir FOLDER says where its inputs are");
  }
  const fs::path beside = path == "-" ? fs::path() : fs::path(path).parent_path();
  return (beside / folder).lexically_normal().string();
}

// Returns true if a text without a newline can be a torn first line. It must contain the schema:
// shorter beginnings, such as "{", occur in other files, too.
bool IsTornHead(std::string_view text) {
  const std::string head = JsonText({{"schema", corpus::kResultsSchema}}, -1);
  return text.starts_with(std::string_view(head).substr(0, head.size() - 1));  // without }
}

// Returns true if no other run holds the file. A killed run holds it until its last thread has
// ended, which may be after the next run starts. Some file systems of clusters have no locks; there
// only the scheduler keeps runs apart.
bool TakesLock(int descriptor) {
  constexpr int kTries = 40;
  for (int i = 0; i < kTries; ++i) {
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

Error WriteFailure() {
  return {Finding::kWriteFailed, fmt::format("cannot write: {}", std::strerror(errno))};
}

}  // namespace

std::string ContentHash(const std::string& path) {
  const Source source = Source::Open(path);
  return HashDigits(HashContent(source, source.is_folder));
}

void InputOptions::Declare(CommandLine& line, const std::string& place, const std::string& text,
                           const std::string& keep_going_text) {
  line.Add(place, given, text).RequiredAlone();
  DeclareRest(line, keep_going_text);
}

void InputOptions::DeclareRest(CommandLine& line, const std::string& keep_going_text) {
  const CommandLine::Heading heading(line, kManyInputs);
  line.AddFlag("-r,--recursive", recursive,
               "Search folders: each snapshot, recorded run and dump below them is one input");
  line.Add("--files-from", files_from,
           "Also the inputs that a file ('-': stdin) lists, one per line")
      .ValueName("FILE");
  line.AddFlag("-0,--null", null,
               "Names in that list are separated by NULs, as 'find -print0' writes them");
  line.AddFlag("--fetch-listed", fetch_listed, "Fetch URLs that the list names, too");
  line.Add("--corpus", corpus, "Also the inputs of a manifest, which 'kvtool corpus make' wrote")
      .ValueName("FILE");
  line.Add("--corpus-dir", corpus_dir,
           "Folder of that corpus (default: the one in the manifest, relative to it)")
      .ValueName("FOLDER");
  line.Add("--results", results,
           "Append a JSON line for each input to a file; inputs with a line in it are skipped; -f "
           "starts again")
      .ValueName("FILE");
  line.Add("--shard", shard,
           "Run over part INDEX/COUNT of the inputs, from 0/COUNT on; auto: INDEX from "
           "SLURM_ARRAY_TASK_ID or JOB_COMPLETION_INDEX, COUNT from KVTOOL_SHARDS");
  line.Add("--balance", balance,
           "Balance shards by number of inputs (hash: a new input moves no other) or by bytes "
           "(default: hash)")
      .OneOf({"hash", "bytes"});
  line.Add("--jobs", jobs,
           "Inputs processed at a time, which share the threads; 0: one, or with --keep-going as "
           "many as there are threads")
      .Between(0, 1024);
  Option option = line.AddFlag(
      "--keep-going", keep_going,
      keep_going_text.empty() ? "Go on with the next input after an error" : keep_going_text);
  if (!keep_going_text.empty()) option.Essential();
}

void InputOptions::Files(CommandFiles& files) const {
  if (!files_from.empty()) files.Reads(files_from);
  if (!corpus.empty()) files.Reads(corpus);
}

std::vector<std::string> MatchingPaths(const std::string& given) {
  std::error_code failed;
  if (fs::exists(given, failed) || given.find_first_of("*?[") == given.npos) return {given};
  glob_t found = {};
  std::vector<std::string> paths;
  if (::glob(given.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  std::sort(paths.begin(), paths.end());
  if (paths.empty()) paths.push_back(given);
  return paths;
}

OpenedManifest OpenManifest(const std::string& path, const std::string& given) {
  const auto file = FileSource::Open(path, kMostOfList);
  try {
    OpenedManifest opened = {corpus::ReadManifest(AsText(file->bytes())), file->size(), given};
    if (given.empty()) opened.folder = FolderOfManifest(path, opened.manifest.folder);
    return opened;
  } catch (Error& error) {
    throw error.File(path);
  }
}

std::string CorpusName(const std::string& path) {
  if (remote::IsUrl(path)) return path;
  const fs::path plain = fs::path(path).lexically_normal();
  const bool stays = plain.is_relative() && !plain.empty() && *plain.begin() != "..";
  std::string name = (stays ? plain : plain.filename()).generic_string();
  if (!stays && name.empty()) name = plain.parent_path().filename().generic_string();
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  return name;
}

CommandInputs FindInputs(const InputOptions& inputs, const FolderRules& rules,
                         const std::string& place, Console& console) {
  CommandInputs result = InputFinder(inputs, rules, console).Find();
  if (!result.entries.empty()) return result;
  for (const std::string* given : {&inputs.files_from, &inputs.corpus}) {
    if (!given->empty()) throw Error(Finding::kUsage, "there are no inputs").File(*given);
  }
  if (!inputs.given.empty()) {
    throw Error(Finding::kUsage, "there are no inputs").File(inputs.given.front());
  }
  throw Error(Finding::kUsage, "{} is required", place);
}

ResultsFile::ResultsFile(const std::string& path, const corpus::ResultsHead& head, bool anew)
    : path_(path), head_(head) {
  descriptor_.Reset(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (descriptor_.get() < 0) {
    throw Error(Finding::kOpenFailed, "cannot open: {}", std::strerror(errno)).File(path);
  }
  try {
    struct stat status;
    if (::fstat(descriptor_.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
      throw Error(Finding::kUsage,
                  "--results: is not a regular file, so results cannot be appended");
    }
    if (!TakesLock(descriptor_.get())) throw Error(Finding::kExists, "another run writes to it");
    if (anew && ::ftruncate(descriptor_.get(), 0) != 0) {
      throw WriteFailure();
    }
    Load();
  } catch (Error& error) {
    throw error.File(path);
  }
}

void ResultsFile::Load() {
  std::optional<corpus::ResultsHead> there;
  size_t whole = 0;
  if (::lseek(descriptor_.get(), 0, SEEK_END) > 0) {
    const auto file = FileSource::FromDescriptor(::dup(descriptor_.get()), path_);
    const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()), file->size());
    whole = text.rfind('\n') + 1;  // npos + 1 is 0
    there = corpus::ReadResults(text, [&](const nlohmann::ordered_json& line, size_t number) {
      known_[corpus::TextIn(line, "key", number)] =
          static_cast<int>(corpus::NumberIn(line, "exit_code", number, UINT8_MAX));
    });
    if (!there && !IsTornHead(text)) {
      throw Error(Finding::kUsage, "--results: holds something other than results")
          .Hint("choose another name, or start again with -f");
    }
  }
  if (there) {
    std::string difference = there->DifferenceTo(head_);
    if (difference.empty() && there->shard.index != head_.shard.index) {
      difference = fmt::format("of shard {} rather than {}", there->shard.index, head_.shard.index);
    }
    if (!difference.empty()) {
      throw Error(Finding::kUsage, "--results: has results {}", difference)
          .Hint("choose another name, or start again with -f");
    }
  }
  if (::ftruncate(descriptor_.get(), static_cast<off_t>(there ? whole : 0)) != 0) {
    throw WriteFailure();
  }
  continues_ = there.has_value();
  if (!there) Append(head_.ToJson(ReportHeader("results")["tool"]));
}

std::optional<int> ResultsFile::FindStatus(const std::string& key) const {
  const auto found = known_.find(key);
  if (found == known_.end()) return std::nullopt;
  // The causes of I/O failures and bugs may have been repaired since, so these inputs run again.
  if (found->second == kIoError || found->second == kBug) return std::nullopt;
  return found->second;
}

void ResultsFile::Append(const nlohmann::ordered_json& line) {
  const std::string text = JsonText(line, -1) + "\n";
  const std::lock_guard lock(mutex_);
  if (is_torn_) return;  // the process that left the last line incomplete has reported it
  if (WriteAll(descriptor_.get(), AsBytes(text))) return;
  is_torn_ = true;
  throw WriteFailure().File(path_);
}

void ResultsFile::Finish() {
  output::SyncName(path_);
  if (::fsync(descriptor_.get()) == 0) return;
  throw WriteFailure().File(path_);
}

}  // namespace kv
