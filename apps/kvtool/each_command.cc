// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/each_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>

#include "apps/kvtool/corpus_entries.h"
#include "apps/kvtool/corpus_total.h"
#include "lib/core/base/parallel.h"

namespace kv {

void InputOptions::Declare(CommandLine& line, const std::string& place, const std::string& text,
                           const std::string& keep_going_text) {
  line.Add(place, given, text).RequiredAlone();
  const char* group = "Many inputs";
  line.AddFlag("-r,--recursive", recursive,
               "Search folders: each snapshot, recorded run and dump below them is one input")
      .Group(group);
  line.Add("--files-from", files_from, "Also the inputs that a file ('-': stdin) lists, one a line")
      .ValueName("FILE")
      .Group(group);
  line.AddFlag("-0,--null", null, "In that list NULs stand between names, as of 'find -print0'")
      .Group(group);
  line.Add("--jobs", jobs,
           "Inputs at once, which share the threads; 0: one after another, or with --keep-going "
           "as many as there are threads")
      .Between(0, 1024)
      .Group(group);
  line.AddFlag(
          "--keep-going", keep_going,
          keep_going_text.empty() ? "Go on with the next input after an error" : keep_going_text)
      .Group(group);
}

void EachCommand::Take(const CorpusEntry& entry) {
  input_ = entry.path;
  name_ = entry.name;
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

void EachCommand::DeclareInputs(CommandLine& line, const std::string& place,
                                const std::string& text, const std::string& keep_going_text) {
  place_ = place;
  inputs_.Declare(line, place, text, keep_going_text);
}

namespace {

// How one input went.
struct EachOutcome {
  CapturedRun captured;
  int status = kDone;
  std::optional<Error> usage;  // the command line is wrong, not the input
};

// A command over more inputs than one.
class EachRun {
 public:
  EachRun(EachCommand& command, std::vector<CorpusEntry> entries, Context& context)
      : command_(command), entries_(std::move(entries)), context_(context) {}

  ExitStatus Run() {
    CheckFiles();
    const int threads = context_.global.thread_count();
    const int jobs = Jobs(threads);
    global_ = context_.global;
    global_.threads = std::max(1, threads / jobs);
    ThreadPool pool(jobs);
    CorpusProgress progress(context_.console, context_.global, entries_.size());
    size_t next = 0;
    // Enough that a large input does not hold up those behind it.
    const auto window = static_cast<uint64_t>(jobs == 1 ? 1 : jobs * 64);
    pool.RunOrdered<size_t, EachOutcome>(
        window,
        [&]() -> std::optional<size_t> {
          if (stopped_ || next == entries_.size()) return std::nullopt;
          return next++;
        },
        [&](size_t& index) { return RunOne(entries_[index]); },
        [&](EachOutcome& outcome) { Deliver(outcome, progress); });
    Finish();
    return static_cast<ExitStatus>(status_);
  }

 private:
  int Jobs(int threads) const {
    const auto most = static_cast<int>(std::min<size_t>(entries_.size(), 1024));
    const InputOptions& inputs = command_.inputs();
    if (inputs.jobs > 0) return std::min(inputs.jobs, most);
    return inputs.keep_going ? std::min(threads, most) : 1;
  }

  // All that the inputs together read and write, before anything is written.
  void CheckFiles() const {
    CommandFiles all;
    for (const CorpusEntry& entry : entries_) {
      const std::unique_ptr<EachCommand> one = command_.Copy();
      one->Take(entry);
      try {
        one->TakeRuns();
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kUsage) throw;
        continue;  // said when its turn comes
      }
      CommandFiles files;
      one->Files(files);
      all.Add(files, entries_.size(), command_.HasOutputDir());
    }
    all.Check();
  }

  EachOutcome RunOne(const CorpusEntry& entry) const {
    EachOutcome outcome;
    if (stopped_) return outcome;
    Console console(context_.console, outcome.captured);
    Context context{console, global_};
    const std::unique_ptr<EachCommand> one = command_.Copy();
    one->Take(entry);
    one->report().collects = true;
    try {
      one->TakeRuns();
      outcome.status = one->Run(context);
    } catch (const Error& error) {
      if (error.finding() == Finding::kCancelled) throw;
      if (error.code() == ErrorCode::kUsage && !command_.GoesOn()) {
        outcome.usage = error;
      } else {
        outcome.status = StatusOfFailure(console, entry.path);
      }
    } catch (...) {
      outcome.status = StatusOfFailure(console, entry.path);
    }
    if (outcome.usage || (outcome.status >= kInvalid && !command_.GoesOn())) stopped_ = true;
    return outcome;
  }

  void Deliver(EachOutcome& outcome, CorpusProgress& progress) {
    // Of inputs behind a failure nothing is said, however far they have come.
    if (ended_) return;
    context_.console.Replay(outcome.captured);
    if (outcome.usage) throw *outcome.usage;
    status_ = std::max(status_, outcome.status);
    const CorpusEntry& entry = entries_[delivered_++];
    total_.Add(entry.path, outcome.status, outcome.captured);
    progress.Advance(total_);
    if (command_.report().json || !command_.report().json_out.empty()) {
      if (!outcome.captured.document.is_null()) {
        documents_.push_back(std::move(outcome.captured.document));
        rules_ = outcome.captured.rules;
      }
    }
    ended_ = outcome.status >= kInvalid && !command_.GoesOn();
  }

  void Finish() {
    if (!documents_.empty()) command_.report().Emit(context_.console, documents_, rules_);
    const InputOptions& inputs = command_.inputs();
    total_.Tell(entries_.size(), inputs.searches() || inputs.keep_going, context_.console);
  }

  EachCommand& command_;
  const std::vector<CorpusEntry> entries_;
  Context& context_;
  GlobalOptions global_;
  mutable std::atomic<bool> stopped_ = false;
  bool ended_ = false;
  size_t delivered_ = 0;
  int status_ = kDone;
  CorpusTotal total_;
  nlohmann::ordered_json documents_ = nlohmann::ordered_json::array();
  OutputRules rules_;
};

}  // namespace

ExitStatus RunEach(EachCommand& command, CommandFiles& files, Context& context) {
  std::vector<CorpusEntry> entries = CorpusEntries(command, context.console);
  const bool joins = command.JoinsInputs();
  if (entries.size() > 1 && !joins) return EachRun(command, std::move(entries), context).Run();
  command.TakeAll(entries);
  command.TakeRuns();
  command.Files(files);
  files.Check();
  try {
    return command.Run(context);
  } catch (Error& error) {
    if (error.code() == ErrorCode::kUsage) throw;
    throw error.File(entries.front().path);
  }
}

}  // namespace kv
