// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/inputs/each_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <utility>

#include "apps/kvtool/console/console.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/exit_status.h"
#include "apps/kvtool/inputs/command_files.h"
#include "apps/kvtool/line/options.h"
#include "formats/run/run.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/parallel.h"
#include "version.h"

namespace kv {
namespace fs = std::filesystem;
namespace {

// Outcome of a run over many inputs.
class CorpusTotal {
 public:
  void Add(const std::string& path, int status, const CapturedRun& run);
  // Counts an input whose result existed already.
  void AddKnown() { ++known_; }
  size_t inputs() const { return done_ + negative_ + failed_ + known_; }
  uint64_t bytes() const { return bytes_; }
  // Prints one line, and the failures. With `more_than_names` it does so even for few inputs
  // without failures.
  void Tell(size_t all, bool more_than_names, Console& console) const;

 private:
  size_t done_ = 0, negative_ = 0, failed_ = 0, known_ = 0;
  uint64_t bytes_ = 0, archive_bytes_ = 0, restored_bytes_ = 0;
  uint64_t compressed_bytes_ = 0;  // within archive_bytes_
  std::vector<std::string> failures_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// A line on standard error with the progress of a run over many inputs; with --progress json a line
// of JSON each time.
class CorpusProgress {
 public:
  CorpusProgress(Console& console, When when, size_t all)
      : console_(console), all_(all), pace_(console, when) {}

  void Advance(const CorpusTotal& total) {
    if (console_.embedding() != nullptr) console_.embedding()->Progress(total.inputs(), all_);
    const std::optional<double> seconds = pace_.Due(total.inputs() == all_);
    if (!seconds) return;
    if (pace_.is_json()) {
      return PrintProgress({{}, total.inputs(), all_, total.bytes(), {}, *seconds});
    }
    const double fraction = static_cast<double>(total.inputs()) / static_cast<double>(all_);
    std::string line =
        fmt::format("{} of {} inputs ({:.0f}%)", total.inputs(), all_, 100 * fraction);
    if (fraction > 0) {
      line += fmt::format(", {} left", HumanTimeLeft(*seconds / fraction - *seconds));
    }
    if (total.bytes() > 0) line += ", " + HumanRate(total.bytes(), *seconds);
    pace_.Draw(line);
  }

 private:
  Console& console_;
  size_t all_;
  ProgressPace pace_;
};

constexpr size_t kMostFailuresShown = 20;

uint64_t NumberIn(const nlohmann::ordered_json& document, const char* key) {
  if (!document.is_object() || !document.contains(key)) return 0;
  return document[key].is_number_unsigned() ? document[key].get<uint64_t>() : 0;
}

uint64_t InputBytes(const nlohmann::ordered_json& document) {
  if (!document.is_object() || !document.contains("inputs")) return 0;
  uint64_t bytes = 0;
  for (const nlohmann::ordered_json& input : document["inputs"]) bytes += NumberIn(input, "bytes");
  return bytes;
}

void CorpusTotal::Add(const std::string& path, int status, const CapturedRun& run) {
  (status == kDone ? done_ : status == kVerdict ? negative_ : failed_) += 1;
  const uint64_t bytes = InputBytes(run.document);
  const uint64_t archived = NumberIn(run.document, "archive_bytes");
  bytes_ += bytes;
  archive_bytes_ += archived;
  if (archived > 0) compressed_bytes_ += bytes;
  restored_bytes_ += NumberIn(run.document, "restored_bytes");
  if (status < kInvalid || failures_.size() == kMostFailuresShown) return;
  failures_.push_back(run.failures.empty() ? Printable(path) : run.failures.front().what());
}

void CorpusTotal::Tell(size_t all, bool more_than_names, Console& console) const {
  if (!more_than_names && archive_bytes_ == 0 && restored_bytes_ == 0) return;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin_;
  std::string text = fmt::format("{} inputs: {} done", all, done_);
  const auto add = [&](size_t count, std::string_view what) {
    if (count > 0) text += fmt::format(", {} {}", count, what);
  };
  add(negative_, "with a negative verdict");
  add(failed_, "failed");
  add(known_, "there already");
  add(all - inputs(), "not run");
  if (archive_bytes_ > 0) {
    text += fmt::format("; {} to {}, {}, {}", HumanBytes(compressed_bytes_),
                        HumanBytes(archive_bytes_), HumanRatio(compressed_bytes_, archive_bytes_),
                        HumanRate(compressed_bytes_, took.count()));
  } else if (restored_bytes_ > 0) {
    text += fmt::format("; {}, {}", HumanBytes(restored_bytes_),
                        HumanRate(restored_bytes_, took.count()));
  }
  console.Say(text);
  // A failure that ended the run was reported just above.
  if (failed_ == 1 && inputs() < all) return;
  for (const std::string& failure : failures_) console.Say("  " + failure);
  if (failed_ > failures_.size()) {
    console.Say(fmt::format("  and {} more", failed_ - failures_.size()));
  }
}

// These options do not affect any result.
const std::set<std::string_view> kOfTheRunAlone = {
    "--recursive",  "--files-from",  "--null",        "--fetch-listed", "--corpus",
    "--corpus-dir", "--results",     "--shard",       "--balance",      "--jobs",
    "--threads",    "--progress",    "--no-progress", "--color",        "--no-color",
    "--verbose",    "--quiet",       "--json",        "--json-out",     "--force",
    "--config",     "--simd",        "--keep",        "--json-version", "--deterministic",
    "--output",     "--output-dir",  "--plan-out",    "--html-out",     "--svg-out",
    "--figure-out", "--annotations", "--csv"};

// Outcome of one input.
struct EachOutcome {
  CapturedRun captured;
  int status = kDone;
  bool is_known = false;       // its result existed before this run
  std::optional<Error> usage;  // set if the command line is wrong, not the input
};

const char* Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

// The scheduler's count is not used: for an array that is resubmitted in part it is the size of
// that part.
corpus::Shard ShardFromEnvironment() {
  const char* count = Variable("KVTOOL_SHARDS");
  if (count == nullptr) {
    throw Error(Finding::kUsage, "--shard auto: KVTOOL_SHARDS does not say how many there are");
  }
  const char* slurm = Variable("SLURM_ARRAY_TASK_ID");
  const char* kubernetes = Variable("JOB_COMPLETION_INDEX");
  if (slurm == nullptr && kubernetes == nullptr) {
    throw Error(Finding::kUsage,
                "--shard auto: neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set");
  }
  if (slurm != nullptr && kubernetes != nullptr &&
      std::string_view(slurm) != std::string_view(kubernetes)) {
    throw Error(Finding::kUsage,
                "--shard auto: SLURM_ARRAY_TASK_ID says {}, JOB_COMPLETION_INDEX {}", slurm,
                kubernetes);
  }
  return corpus::ParseShard(fmt::format("{}/{}", slurm != nullptr ? slurm : kubernetes, count),
                            "--shard auto");
}

// A command over several inputs, or over a corpus.
class EachRun {
 public:
  // With `tells` the total is always reported.
  EachRun(std::string_view name, EachCommand& command, std::vector<CorpusEntry> entries, bool tells,
          const std::vector<std::string>& parameters, Context& context)
      : name_(name),
        command_(command),
        inputs_(command.inputs()),
        entries_(std::move(entries)),
        tells_(tells || inputs_.keep_going),
        parameters_(parameters),
        context_(context) {}

  ExitStatus Run() {
    if (inputs_.is_corpus()) TakeCorpus();
    CheckFiles();
    if (!inputs_.results.empty()) {
      // Each command keeps -f in a variable of its own.
      const bool anew =
          std::find(parameters_.begin(), parameters_.end(), "--force") != parameters_.end();
      results_.emplace(inputs_.results, Head(), anew);
    }
    if (!entries_.empty()) RunAll();
    if (results_) results_->Finish();
    if (!documents_.empty())
      command_.report().Emit(context_.console, std::move(documents_), rules_);
    total_.Tell(entries_.size(), tells_, context_.console);
    if (ended_ && total_.inputs() < entries_.size()) context_.console.Say(kGoOnHint, -1);
    return static_cast<ExitStatus>(status_);
  }

 private:
  void RunAll() {
    const int threads = context_.global.thread_count();
    const int jobs = Jobs(threads);
    global_ = context_.global;
    global_.threads = std::max(1, threads / jobs);
    // Settings under which a result depends only on the input.
    if (results_) global_.deterministic = true;
    ThreadPool pool(jobs);
    CorpusProgress progress(context_.console, context_.global.progress_when(), entries_.size());
    size_t next = 0;
    // Number of inputs in flight: enough that a large one does not delay those after it.
    const auto window = static_cast<uint64_t>(jobs == 1 ? 1 : jobs * 64);
    pool.RunOrdered<size_t, EachOutcome>(
        window,
        [&]() -> std::optional<size_t> {
          if (stopped_ || next == entries_.size()) return std::nullopt;
          return next++;
        },
        [&](size_t& index) { return RunOne(index); },
        [&](EachOutcome& outcome) { Deliver(outcome, progress); });
  }

  int Jobs(int threads) const {
    const auto most = static_cast<int>(std::min<size_t>(entries_.size(), 1024));
    if (inputs_.jobs > 0) return std::min(inputs_.jobs, most);
    return inputs_.keep_going ? std::min(threads, most) : 1;
  }

  // Assigns inputs to the corpus and to this shard.
  void TakeCorpus() {
    std::set<std::string_view> names;
    for (const CorpusEntry& entry : entries_) {
      if (entry.path == "-") {
        throw Error(Finding::kUsage, "standard input has no name that a result could have");
      }
      if (!names.insert(entry.name).second) {
        throw Error(Finding::kUsage, "two inputs are called {}", Printable(entry.name))
            .Hint("'kvtool corpus make' names them by their folders");
      }
      members_.push_back(
          {entry.name, entry.bytes ? *entry.bytes : BytesOf(entry.path), entry.xxh3});
    }
    all_ = members_;
    if (inputs_.shard.empty()) return;
    shard_ = inputs_.shard == "auto" ? ShardFromEnvironment()
                                     : corpus::ParseShard(inputs_.shard, "--shard");
    std::vector<CorpusEntry> entries;
    std::vector<corpus::Member> members;
    for (const size_t i : corpus::ListMembers(shard_, inputs_.balance == "bytes", members_)) {
      entries.push_back(std::move(entries_[i]));
      members.push_back(std::move(members_[i]));
    }
    entries_ = std::move(entries);
    members_ = std::move(members);
    context_.console.Say(fmt::format("shard {} of {}: {} of {} inputs", shard_.index, shard_.count,
                                     entries_.size(), all_.size()));
  }

  corpus::ResultsHead Head() const {
    corpus::ResultsHead head;
    head.version = KVTOOL_VERSION;
    head.command = name_;
    std::string text;
    for (const std::string& word : command_.Words()) {
      head.parameters.push_back(word);
      text += word + "\n";
    }
    for (const std::string& parameter : parameters_) {
      if (kOfTheRunAlone.count(parameter.substr(0, parameter.find(' '))) != 0) continue;
      if (parameter == "--keep-going" && name_ != "decompress") continue;
      head.parameters.push_back(parameter);
      text += parameter + "\n";
    }
    // Files that parameters name count by their content.
    const std::unique_ptr<EachCommand> alone = command_.Copy();
    alone->Take({"", ""});
    CommandFiles files;
    alone->Files(files);
    for (const std::string& file : files.inputs()) text += ContentHash(file) + "\n";
    head.parameters_xxh3 = fmt::format("{:016x}", Hash64(AsBytes(text)));
    head.corpus_xxh3 = corpus::CorpusHash(all_);
    head.corpus_entries = all_.size();
    for (const corpus::Member& member : all_) head.corpus_bytes += member.bytes;
    head.shard = shard_;
    head.balance = inputs_.balance;
    head.entries = members_.size();
    return head;
  }

  // Checks all files that the inputs together read and write, before anything is written.
  void CheckFiles() const {
    CommandFiles all;
    inputs_.Files(all);
    for (const CorpusEntry& entry : entries_) {
      const std::unique_ptr<EachCommand> one = command_.Copy();
      one->Take(entry);
      one->report().collects = true;
      try {
        one->TakeRuns();
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kUsage) throw;
        continue;  // the run of this input reports the error
      }
      CommandFiles files;
      one->Files(files);
      all.Add(files, entries_.size(), command_.HasOutputDir());
    }
    all.Writes(inputs_.results, "--results");
    all.Check();
  }

  EachOutcome RunOne(size_t index) {
    EachOutcome outcome;
    if (stopped_) return outcome;
    const auto begin = std::chrono::steady_clock::now();
    const CorpusEntry& entry = entries_[index];
    Console console(context_.console, outcome.captured);
    std::string key;
    try {
      if (results_) {
        key = TakeContent(index);
        if (const std::optional<int> known = results_->FindStatus(key)) {
          outcome.status = *known;
          outcome.is_known = true;
        }
      }
      if (!outcome.is_known) outcome.status = RunAlone(entry, console, outcome.is_known);
      if (!outcome.is_known) RequireContent(entry, outcome.captured.document);
    } catch (const Error& error) {
      if (error.finding() == Finding::kCancelled) throw;
      if (error.code() == ErrorCode::kUsage && !command_.ContinuesAfterFailure()) {
        outcome.usage = error;
      } else {
        outcome.status = StatusOfFailure(console, entry.path);
      }
    } catch (...) {
      outcome.status = StatusOfFailure(console, entry.path);
    }
    if (outcome.usage || (outcome.status >= kInvalid && !command_.ContinuesAfterFailure()))
      stopped_ = true;
    if (results_ && !outcome.is_known && !outcome.usage) {
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      results_->Append(Line(index, key, outcome, took.count()));
    }
    return outcome;
  }

  ExitStatus RunAlone(const CorpusEntry& entry, Console& console, bool& is_done) const {
    Context context{console, global_};
    const std::unique_ptr<EachCommand> one = command_.Copy();
    one->Take(entry);
    one->report().collects = true;
    if (results_ && results_->continues()) one->Continue();
    one->TakeRuns();
    is_done = one->IsDone();
    return is_done ? kDone : one->Run(context);
  }

  // Returns the input's hash, and the key of its result. A manifest is trusted if the size is
  // right, because reading everything may take longer than the command.
  std::string TakeContent(size_t index) {
    corpus::Member& member = members_[index];
    const CorpusEntry& entry = entries_[index];
    if (entry.xxh3.empty()) {
      member.xxh3 = ContentHash(entry.path);
    } else if (fs::exists(entry.path)) {
      const uint64_t bytes = BytesOf(entry.path);
      if (bytes != member.bytes) {
        throw Error(Finding::kSizeMismatch, "has {} bytes, {} says {}", bytes, inputs_.corpus,
                    member.bytes);
      }
    }
    return corpus::ResultKey(results_->head(), member);
  }

  // Compares what the command itself has read with the manifest.
  void RequireContent(const CorpusEntry& entry, const nlohmann::ordered_json& document) const {
    if (entry.xxh3.empty() || !document.is_object() || !document.contains("inputs")) return;
    const nlohmann::ordered_json& read = document["inputs"];
    if (read.empty() || !read[0].contains("xxh3") || read[0]["file"] != entry.path) return;
    if (fs::is_directory(entry.path) || read[0]["xxh3"] == entry.xxh3) return;
    throw Error(Finding::kContentDiffers, "has changed since {} was made: its XXH3 is {}, not {}",
                inputs_.corpus, read[0]["xxh3"].get<std::string>(), entry.xxh3);
  }

  // Returns the group of the input: its model or format, from its manifest, its recorded run or its
  // result. Opens nothing.
  std::string NameKind(size_t index, const EachOutcome& outcome, const char* key) const {
    const CorpusEntry& entry = entries_[index];
    const bool is_model = std::string_view(key) == "model";
    const std::string& listed = is_model ? entry.model : entry.format;
    if (!listed.empty()) return listed;
    const nlohmann::ordered_json& made = outcome.captured.document;
    if (made.is_object() && made.contains(key) && made[key].is_string() && made[key] != "") {
      return made[key];
    }
    try {
      const std::optional<RecordedRun> run = is_model ? OpenRun(entry.path) : std::nullopt;
      return run ? run->model : std::string();
    } catch (const Error&) {
      return {};  // already reported as the input's fault
    }
  }

  nlohmann::ordered_json Line(size_t index, const std::string& key, const EachOutcome& outcome,
                              double seconds) const {
    const corpus::Member& member = members_[index];
    const auto or_null = [](const std::string& text) {
      return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
    };
    nlohmann::ordered_json line = {{"schema", "kvtool.result/1"},
                                   {"key", key},
                                   {"name", member.name},
                                   {"bytes", member.bytes},
                                   {"xxh3", or_null(member.xxh3)},
                                   {"model", or_null(NameKind(index, outcome, "model"))},
                                   {"format", or_null(NameKind(index, outcome, "format"))},
                                   {"corpus_xxh3", results_->head().corpus_xxh3},
                                   {"shard", {{"index", shard_.index}, {"count", shard_.count}}},
                                   {"exit_code", outcome.status},
                                   {"errors", nlohmann::ordered_json::array()},
                                   {"warnings", outcome.captured.warnings},
                                   {"elapsed_us", nullptr},
                                   {"result", nullptr}};
    for (const Error& error : outcome.captured.failures) line["errors"].push_back(ErrorJson(error));
    if (!context_.global.deterministic) line["elapsed_us"] = static_cast<uint64_t>(seconds * 1e6);
    if (!outcome.captured.document.is_null())
      line["result"] = TakeResult(outcome.captured.document);
    return line;
  }

  void Deliver(EachOutcome& outcome, CorpusProgress& progress) {
    // Inputs after a failure report nothing, however far they have come.
    if (ended_) return;
    context_.console.Replay(outcome.captured, !results_);
    if (outcome.usage) throw *outcome.usage;
    status_ = std::max(status_, outcome.status);
    const CorpusEntry& entry = entries_[delivered_++];
    if (outcome.is_known) {
      total_.AddKnown();
    } else {
      total_.Add(entry.path, outcome.status, outcome.captured);
    }
    progress.Advance(total_);
    if (command_.report().wanted() && !outcome.captured.document.is_null()) {
      documents_.push_back(std::move(outcome.captured.document));
      rules_ = outcome.captured.rules;
    }
    ended_ = outcome.status >= kInvalid && !command_.ContinuesAfterFailure();
  }

  const std::string name_;
  EachCommand& command_;
  const InputOptions& inputs_;
  std::vector<CorpusEntry> entries_;
  const bool tells_;
  std::vector<corpus::Member> members_, all_;  // members of this shard, and of the whole corpus
  const std::vector<std::string>& parameters_;
  Context& context_;
  corpus::Shard shard_;
  std::optional<ResultsFile> results_;
  GlobalOptions global_;
  std::atomic<bool> stopped_ = false;
  bool ended_ = false;
  size_t delivered_ = 0;
  int status_ = kDone;
  CorpusTotal total_;
  nlohmann::ordered_json documents_ = nlohmann::ordered_json::array();
  OutputRules rules_;
};

}  // namespace

void EachCommand::Take(const CorpusEntry& entry) {
  input_ = entry.path;
  name_ = entry.name.substr(leaves_parents_ ? entry.parent : 0);
  joined_ = {entry.path};
}

void EachCommand::TakeAll(const std::vector<CorpusEntry>& entries) {
  Take(entries.front());
  joined_.clear();
  for (const CorpusEntry& entry : entries) joined_.push_back(entry.path);
}

bool EachCommand::Takes(std::string_view format, bool is_run) const {
  return is_run || !format.empty();
}

void EachCommand::EnterFolder(const std::string& given, std::string& output, std::string& folder) {
  if (!NamesFolder(output)) return;
  if (given == "-") {
    throw Error(Finding::kUsage, "-o names a folder, in which standard input has no name")
        .Hint("give -o FOLDER/NAME");
  }
  folder = std::exchange(output, {});
  name_ = LastName(given);
}

void EachCommand::TakeOutputFolder(const CommandInputs& inputs, bool to_stdout, std::string& output,
                                   std::string& folder) {
  const bool is_searched = !inputs.searched.empty();
  if ((inputs.entries.size() == 1 && !is_searched) || !folder.empty() || to_stdout) return;
  std::error_code failed;
  const bool is_new_name =
      !output.empty() && !fs::path(output).has_extension() && !fs::exists(output, failed);
  if (NamesFolder(output) || (is_searched && is_new_name)) {
    folder = std::exchange(output, {});
    leaves_parents_ = true;
  }
  if (!is_searched || !folder.empty()) return;
  Error error(Finding::kUsage, "{}",
              output.empty() ? "no output is given for the results of the caches in this folder"
                             : "-o names one file, but each cache in this folder has a result");
  throw error.File(inputs.searched.front())
      .Hint(fmt::format("-o {}/ makes a file for each in a folder; {}",
                        output.empty() ? "FOLDER" : Printable(output),
                        output.empty() ? "-r puts each result beside its cache"
                                       : "--from opaque takes the folder as one"));
}

void EachCommand::DeclareInputs(CommandLine& line, const std::string& place,
                                const std::string& text, const std::string& keep_going_text) {
  place_ = place;
  inputs_.Declare(line, place, text, keep_going_text);
}

ExitStatus RunEach(std::string_view name, EachCommand& command,
                   const std::vector<std::string>& parameters, CommandFiles& files,
                   Context& context) {
  const FolderRules rules{
      command.Reading(),
      [&](std::string_view format, bool is_run) { return command.Takes(format, is_run); },
      [&](const Source& folder) { return command.TakesFolder(folder); }, command.TakesStores()};
  CommandInputs found = FindInputs(command.inputs(), rules, command.place(), context.console);
  std::vector<CorpusEntry>& entries = found.entries;
  command.PlaceResults(found);
  if (command.JoinsInputs() && command.inputs().is_corpus()) {
    throw Error(Finding::kUsage, "a corpus has no page or plan of all inputs")
        .Hint("'kvtool merge --html-out' makes the page of a corpus");
  }
  const bool is_one =
      (entries.size() == 1 && !command.inputs().is_corpus()) || command.JoinsInputs();
  if (!is_one) {
    const bool tells = command.inputs().searches() || !found.searched.empty();
    return EachRun(name, command, std::move(entries), tells, parameters, context).Run();
  }
  command.TakeAll(entries);
  command.TakeRuns();
  command.inputs().Files(files);
  command.Files(files);
  files.Check();
  if (command.IsDone()) {
    context.console.Say(Printable(entries.front().path) + ": its result exists and is newer");
    return kDone;
  }
  try {
    return command.Run(context);
  } catch (Error& error) {
    if (error.code() == ErrorCode::kUsage) throw;
    throw error.File(entries.front().path);
  }
}

}  // namespace kv
