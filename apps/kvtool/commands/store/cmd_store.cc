// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool store VERB`: the common part of the verbs, and those that add, list, restore and remove
// states.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/archive/archive_output.h"
#include "apps/kvtool/commands/store/store_commands.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "lib/core/base/hash.h"

namespace kv {
namespace {

std::string Mended(uint64_t objects) {
  return objects == 0 ? "" : fmt::format("; {} replaced", Plural(objects, "damaged object"));
}

// Returns the snapshot of a source, or nothing if its bytes are stored as they are.
std::optional<Snapshot> SnapshotFor(const Source& source, const OpenOptions& options,
                                    Console& console) {
  try {
    std::string why;
    std::optional<Snapshot> snapshot = OpenToKeep(source, options, why);
    if (!why.empty()) console.Warn(source.path, fmt::format("{}; stored as opaque bytes", why));
    return snapshot;
  } catch (Error& error) {
    if (error.hint().empty()) error.Hint("--from opaque stores the bytes as they are");
    throw;
  }
}

}  // namespace

void StoreCommand::DeclareStore(CommandLine& line, const std::string& text) {
  line.Add("DIR", folder_, text).Required();
}

void StoreCommand::Files(CommandFiles& files) const {
  std::error_code failed;
  if (std::filesystem::exists(folder_, failed)) files.Reads(folder_);
  Command::Files(files);
}

store::Store StoreCommand::Open(Use use, Context& context) const {
  return store::Store(folder_, use, [&context, this] {
    context.console.Say(fmt::format("{}: waiting for other users of the store", Printable(folder_)),
                        1);
  });
}

std::string TimeText(int64_t microseconds) { return format::Time(microseconds / 1000000); }

int64_t NowMicroseconds(const GlobalOptions& global) {
  if (global.deterministic) return 0;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

const Fields<store::StateRow>& StateFields() {
  using Row = store::StateRow;
  const auto cost = [](const Row& row) { return row.own_bytes + row.record_bytes; };
  static const Fields<Row> fields = {
      {"state", "Number of the state; numbers are never used again", &Row::id},
      {"name", "Name of the state", &Row::name},
      {"added", "Time when the state was added, in UTC",
       [](const Row& row) { return TimeText(row.added_us); }},
      {"format", "Format of the source; opaque: bytes as they are", &Row::format},
      {"model", "Model that the state names, or empty", &Row::model},
      {"geometry", "Layers, heads and type of K, or empty", &Row::geometry},
      {"level",
       "Level at which the state's new objects were coded",
       [](const Row& row) { return Name(row.level); },
       {.choices = LevelChoices()}},
      {"tokens", "Tokens of the longest layer", &Row::tokens},
      {"layers", "Layers with a cache", &Row::layers},
      {"source_bytes", "Bytes of the state as it was added", &Row::source_bytes},
      {"cost_bytes", "Bytes that the state added to the store, without the index", cost},
      {"xxh3", kStateHashText, [](const Row& row) { return HashDigits(row.source_hash); },
       kHashText}};
  return fields;
}

const Fields<store::StateRow>& StateNameFields() {
  static const Fields<store::StateRow> fields = {
      {"state", "Number of the state", &store::StateRow::id},
      {"name", "Name of the state", &store::StateRow::name}};
  return fields;
}

std::optional<Elapsed> Elapsed::Of(double seconds, const GlobalOptions& global) {
  if (global.deterministic) return std::nullopt;
  return Elapsed{static_cast<uint64_t>(seconds * 1e6)};
}

const Fields<Elapsed>& ElapsedFields() {
  static const Fields<Elapsed> fields = {
      {"elapsed_us", "Microseconds of wall time", &Elapsed::microseconds}};
  return fields;
}

void WarnUnlisted(const std::vector<store::StateRow>& rows, const std::string& folder,
                  Console& console) {
  if (rows.empty()) return;
  constexpr size_t kMostNamed = 8;
  std::string names;
  for (size_t i = 0; i < std::min(rows.size(), kMostNamed); ++i)
    names += fmt::format("{}@{} {}", i == 0 ? "" : ", ", rows[i].id, Printable(rows[i].name));
  if (rows.size() > kMostNamed) names += fmt::format(" and {} more", rows.size() - kMostNamed);
  console.Warn(folder, fmt::format("not in the index though the record is whole: {}; 'kvtool store "
                                   "verify --repair' lists it again",
                                   names));
}

void AddTotals::Tell(Console& console) const {
  constexpr size_t kMostNamed = 20;
  std::string text =
      fmt::format("{}: {} added, {} there already",
                  Plural(added + there + left_out + failed.size(), "input"), added, there);
  if (left_out > 0) text += fmt::format(", {} left out", left_out);
  if (!failed.empty()) text += fmt::format(", {} failed: ", failed.size());
  const size_t named = std::min(failed.size(), kMostNamed);
  for (size_t i = 0; i < named; ++i) text += (i == 0 ? "" : ", ") + Printable(failed[i]);
  if (named < failed.size()) text += fmt::format(" and {} more", failed.size() - named);
  console.Say(text);
}

StoreAdded StoreCommand::AddToStore(const Source& source, const OpenOptions& options,
                                    const store::AddOptions& add, ThreadPool& pool,
                                    Context& context) const {
  const std::optional<Snapshot> snapshot = SnapshotFor(source, options, context.console);
  store::Store store = Open(Use::kAdd, context);
  const auto begin = std::chrono::steady_clock::now();
  ProgressLine progress(context.console, context.global.progress_when(), source.path);
  store::AddOptions with = add;
  with.progress = &progress;
  store::AddReport report;
  try {
    report = store.Add(source, snapshot ? &*snapshot : nullptr, with, pool);
  } catch (const Error&) {
    source.RequireUnchanged();  // a change of the source explains every other error
    throw;
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  const store::StateRecord& state = report.state;
  const std::string what =
      fmt::format("{} -> {}, @{}", Printable(source.path), Printable(state.name), state.id);
  if (report.was_there) {
    context.console.Say(fmt::format("{}: there already, {}", what, HashText(state.source_hash)));
  } else {
    context.console.Say(fmt::format(
        "{}: {} to {}, {}; {} were already stored, in {} of {}{}", what,
        HumanBytes(state.source_bytes), HumanBytes(state.own_bytes + report.record_bytes),
        HumanRate(state.source_bytes, elapsed.count()), HumanBytes(report.shared_raw_bytes),
        report.shared_objects, Plural(report.shared_objects + report.new_objects, "object"),
        Mended(report.mended_objects)));
  }
  return {source.path,
          store.folder(),
          {Name(add.effort), add.check, snapshot ? snapshot->format : "opaque"},
          std::move(report),
          Elapsed::Of(elapsed.count(), context.global)};
}

namespace {

constexpr uint32_t kMostBlockTokens = 1 << 20;

// Returns the source of a state that was added.
HashedFile DescribeSource(const StoreAdded& of) {
  const store::StateRecord& state = of.report.state;
  return {of.file, state.source_bytes, HashDigits(state.source_hash)};
}

const Fields<store::AddReport>& StoreAddReportFields() {
  using Report = store::AddReport;
  static const Fields<Report> fields = {
      {"state", "Number of the state", [](const Report& of) { return of.state.id; }},
      {"name", "Name of the state", [](const Report& of) { return of.state.name; }},
      {"was_there",
       "Whether the newest state of this name has the same content; then nothing was added",
       &Report::was_there},
      {"parent", "State with the longest common prefix; null: none", &Report::parent},
      {"prefix_tokens", "Tokens of the common prefix", &Report::prefix_tokens},
      {"tokens", "Tokens of the longest layer", [](const Report& of) { return of.state.tokens; }},
      {"new_bytes", "Bytes of the pack that was added to the store",
       [](const Report& of) { return of.state.own_bytes; }},
      {"record_bytes", "Bytes of the state's record", &Report::record_bytes},
      {"new_objects", "Objects in the pack", &Report::new_objects},
      {"mended_objects",
       "Objects in the pack that replace damaged ones; each repairs every state that uses it",
       &Report::mended_objects},
      {"new_raw_bytes", "Bytes of the pack's objects before coding", &Report::new_raw_bytes},
      {"shared_objects", "Objects that were already in the store", &Report::shared_objects},
      {"shared_raw_bytes", "Bytes of the objects already in the store, before they were coded",
       &Report::shared_raw_bytes}};
  return fields;
}

const Fields<StoreAdded>& StoreAddedFields() {
  using Params = StoreAdded::Params;
  static const Fields<Params> store_add_params = {
      {"level", "Level of new objects", &Params::level, {.choices = LevelChoices()}},
      {"check", "Whether each new object was decoded and compared", &Params::check},
      {"from", "Format that the source was read as; opaque: its bytes as they are", &Params::from}};
  static const Fields<StoreAdded> fields = {
      {"inputs", "What was added",
       [](const StoreAdded& of) { return std::vector{DescribeSource(of)}; }, HashedFileFields()},
      {"params", "Parameters of the run", &StoreAdded::params, store_add_params},
      {"store", kStoreText, &StoreAdded::store},
      Fields<StoreAdded>::Inline(&StoreAdded::report, StoreAddReportFields()),
      {"timing", "How long it took; left out with --deterministic", &StoreAdded::elapsed,
       ElapsedFields(), Absent()}};
  return fields;
}

// The states of a store, which the document lists.
struct StoreListing {
  std::string store;
  std::vector<store::StateRow> states;
};

const Fields<StoreListing>& StoreListingFields() {
  static const Fields<StoreListing> fields = {
      NoInputs<StoreListing>(),
      {"store", kStoreText, &StoreListing::store},
      {"states", "States, the oldest first", &StoreListing::states, StateFields(), CsvRows()}};
  return fields;
}

class StoreAdd : public StoreCommand {
 public:
  void Declare(CommandLine& line) override {
    DeclareStore(line, "Folder of the store; created if it does not exist");
    line.Add("FILE", inputs_,
             "Snapshots: files, folders, or folders of several snapshots, each of which becomes a "
             "state. A .kvz is stored byte for byte and shares nothing")
        .Required();
    line.Add("--name", name_, "Name of the state (default: that of the file)");
    line.Add("--level", level_, "Trades time for size: fast, default, high, max")
        .OneOf({"compat", "fast", "default", "high", "max"})
        .ShowDefault();
    line.Add("--block-tokens", block_tokens_,
             "Tokens of an object (default: 256; 1024 at levels high and max); states share "
             "prefixes in multiples of this")
        .Between(1u, kMostBlockTokens);
    line.AddFlag("--no-check", no_check_,
                 "Skip the check that decodes the stored state and compares it with the source");
    line.AddFlag("--keep-going", keep_going_, "Go on with the next input after an error");
    snapshot_.Declare(line);
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    files.Reads(inputs_);
    StoreCommand::Files(files);
  }

  ExitStatus Run(Context& context) override {
    const std::vector<std::string> paths = FindStates(context.console);
    if (!name_.empty() && paths.size() > 1)
      throw Error(Finding::kUsage, "--name names one state, but there are several inputs");
    OpenOptions options = snapshot_.Resolve(paths.size() > 1 ? FlagsFor::kSeveral : FlagsFor::kOne);
    options.metadata_only = true;
    options.any_batch = options.may_guess_axes = true;
    store::AddOptions add;
    add.effort = *ParseEffort(level_);
    add.block_tokens = block_tokens_;
    add.check = !no_check_;
    ThreadPool pool(context.global.thread_count());
    Value::List all;
    AddTotals totals;
    ExitStatus status = kDone;
    for (const std::string& input : paths) {
      try {
        add.name = name_.empty() ? NameState(input) : name_;
        add.added_us = NowMicroseconds(context.global);
        const StoreAdded added = AddToStore(snapshot_.Open(input), options, add, pool, context);
        totals.Count(added);
        if (!added.report.was_there) add.after = added.report.state.id;
        all.push_back(StoreAddedFields().Object(added));
      } catch (Error& error) {
        if (error.code() == ErrorCode::kUsage) throw;
        context.console.Report(error.File(input));
        status = Worse(status, ExitStatusFor(error.code()));
        totals.failed.push_back(input);
        if (keep_going_) continue;
        if (&input != &paths.back()) context.console.Say(kGoOnHint, -1);
        break;
      }
    }
    if (paths.size() > 1) totals.Tell(context.console);
    if (!all.empty()) report_.Emit(context.console, "store-add", all);
    return status;
  }

 private:
  static std::string NameState(const std::string& input) {
    if (input == "-")
      throw Error(Finding::kUsage, "standard input has no name").Hint("give --name NAME");
    return LastName(input);
  }

  // Returns the states in a folder that is no state itself; they must not become versions of one
  // state.
  std::vector<std::string> FindStates(Console& console) const {
    const FolderRules rules{snapshot_.WithLimit(),
                            [](std::string_view format, bool) { return !format.empty(); }};
    std::vector<std::string> paths;
    for (const std::string& given : inputs_) {
      InputOptions one;
      one.given = {given};
      const CommandInputs found = FindInputs(one, rules, "FILE", console);
      std::set<std::string> names;
      for (const CorpusEntry& entry : found.entries) {
        paths.push_back(entry.path);
        if (found.searched.empty() || names.insert(NameState(entry.path)).second) continue;
        throw Error(Finding::kUsage, "two states in it are called {}",
                    Printable(NameState(entry.path)))
            .File(given)
            .Hint("add such states one by one, with --name NAME");
      }
    }
    return paths;
  }

  std::string name_, level_ = "default";
  std::vector<std::string> inputs_;
  uint32_t block_tokens_ = 0;
  bool no_check_ = false, keep_going_ = false;
};

class StoreList : public StoreCommand {
 public:
  void Declare(CommandLine& line) override {
    DeclareStore(line);
    line.Add("NAME", names_, "Only states with one of these names");
    report_.Declare(line);
  }

  ExitStatus Run(Context& context) override {
    store::Store store = Open(Use::kRead, context);
    std::vector<store::StateRow> states = store.States();
    for (const std::string& name : names_) store.Find(name);  // throws if a state is not there
    std::erase_if(states, [&](const store::StateRow& row) {
      return !names_.empty() && std::find(names_.begin(), names_.end(), row.name) == names_.end();
    });
    if (!report_.json) Print(states, context.console);
    const StoreListing result = {folder_, std::move(states)};
    report_.Emit(context.console, "store-list", StoreListingFields, result);
    return kDone;
  }

 private:
  static void Print(const std::vector<store::StateRow>& states, Console& console) {
    if (states.empty()) return console.Line("no states");
    Table table({"state", "name", "tokens", "size", "cost", "level", "added", "geometry", "model"});
    for (const store::StateRow& row : states) {
      table.Row({fmt::format("@{}", row.id), Printable(row.name), std::to_string(row.tokens),
                 HumanBytes(row.source_bytes), HumanBytes(row.own_bytes + row.record_bytes),
                 std::string(Name(row.level)), TimeText(row.added_us), Printable(row.geometry),
                 Printable(row.model.empty() ? row.format : row.model)});
    }
    console.Data(table.Text());
  }

  std::vector<std::string> names_;
};

// The states that were removed and the bytes that were freed.
struct Pruned {
  struct Params {
    uint64_t keep_last = 0;
    std::vector<std::string> names;
    bool dry_run = false;
  };
  std::string store;
  Params params;
  std::vector<store::StateRow> removed;
  store::CollectReport freed;
};

const Fields<store::CollectReport>& CollectFields() {
  using Report = store::CollectReport;
  static const Fields<Report> fields = {
      {"before_bytes", "Bytes of the store on the disk before the command", &Report::before_bytes},
      {"after_bytes", "Bytes of the store on the disk after the command", &Report::after_bytes},
      {"removed_objects", "Objects that no state needed", &Report::removed_objects},
      {"removed_packs", "Packs in which nothing was needed", &Report::removed_packs},
      {"rewritten_packs", "Packs of which the needed part was copied", &Report::rewritten_packs},
      {"skipped_packs", "Packs that should be rewritten, but the disk has no room for the copy",
       &Report::skipped_packs},
      {"leftover_files", "Files of killed runs that were removed", &Report::leftover_files},
      {"unlisted", kUnlistedText, &Report::unlisted, StateNameFields()}};
  return fields;
}

const Fields<Pruned>& CollectedFields() {
  static const Fields<Pruned> fields = {NoInputs<Pruned>(),
                                        {"store", kStoreText, &Pruned::store},
                                        Fields<Pruned>::Inline(&Pruned::freed, CollectFields())};
  return fields;
}

Fields<Pruned> RemovalFields(const Fields<Pruned::Params>& params) {
  return {NoInputs<Pruned>(),
          {"store", kStoreText, &Pruned::store},
          {"params", "Parameters of the run", &Pruned::params, params},
          {"removed", "States that were removed, or would be", &Pruned::removed, StateNameFields()},
          Fields<Pruned>::Inline(&Pruned::freed, CollectFields())};
}

constexpr std::string_view kDryRunText = "Whether nothing was removed";

const Fields<Pruned>& PrunedFields() {
  using Params = Pruned::Params;
  static const Fields<Params> prune_params = {
      {"keep_last", "States of each name to keep", &Params::keep_last},
      {"names", "Only these names; empty: all", &Params::names},
      {"dry_run", kDryRunText, &Params::dry_run}};
  static const Fields<Pruned> fields = RemovalFields(prune_params);
  return fields;
}

const Fields<Pruned>& RemovedFields() {
  using Params = Pruned::Params;
  static const Fields<Params> remove_params = {
      {"states", "States to remove, as given", &Params::names},
      {"dry_run", kDryRunText, &Params::dry_run}};
  static const Fields<Pruned> fields = RemovalFields(remove_params);
  return fields;
}

// Collects garbage, and reports what that freed.
store::CollectReport Collect(store::Store& store, Console& console) {
  store::CollectReport report = store.Collect();
  console.Say(fmt::format(
      "{}: {} to {}; {} objects and {} packs removed, {} packs rewritten, {} files left by killed "
      "runs",
      Printable(store.folder()), HumanBytes(report.before_bytes), HumanBytes(report.after_bytes),
      report.removed_objects, report.removed_packs, report.rewritten_packs, report.leftover_files));
  if (report.skipped_packs > 0) {
    console.Warn(store.folder(), fmt::format("no room to rewrite {}: run 'kvtool store gc' again",
                                             Plural(report.skipped_packs, "pack")));
  }
  WarnUnlisted(report.unlisted, store.folder(), console);
  return report;
}

class StoreGc : public StoreCommand {
 public:
  void Declare(CommandLine& line) override {
    DeclareStore(line);
    report_.Declare(line);
  }

  ExitStatus Run(Context& context) override {
    store::Store store = Open(Use::kAlone, context);
    const Pruned result = {folder_, {}, {}, Collect(store, context.console)};
    report_.Emit(context.console, "store-gc", CollectedFields, result);
    return kDone;
  }
};

// A verb that removes states, lists them, and frees the bytes that only they needed.
class StoreRemoval : public StoreCommand {
 protected:
  void DeclareDryRun(CommandLine& line) {
    line.AddFlag("--dry-run", params_.dry_run, "Say what would be removed, and remove nothing");
  }

  Pruned Remove(store::Store& store, std::vector<store::StateRow> states, Console& console) const {
    if (!params_.dry_run) store.Remove(states);
    for (const store::StateRow& row : states) {
      console.Say(fmt::format("{} {}, @{}, {}", params_.dry_run ? "would remove" : "removed",
                              Printable(row.name), row.id, HumanBytes(row.source_bytes)));
    }
    if (params_.dry_run && states.empty()) console.Say("nothing would be removed");
    Pruned result = {folder_, params_, std::move(states), {}};
    if (!params_.dry_run) result.freed = Collect(store, console);
    return result;
  }

  Use use() const { return params_.dry_run ? Use::kRead : Use::kAlone; }

  Pruned::Params params_;
};

class StorePrune : public StoreRemoval {
 public:
  void Declare(CommandLine& line) override {
    DeclareStore(line);
    line.Add("NAME", params_.names, "Only states with one of these names");
    line.Add("--keep-last", params_.keep_last, "Number of newest states to keep for each name")
        .Required();
    DeclareDryRun(line);
    line.AddFlag("-f,--force", report_.force,
                 "Overwrite outputs; with --keep-last 0 and no NAME, remove every state");
    report_.Declare(line);
  }

  ExitStatus Run(Context& context) override {
    const std::vector<std::string>& names = params_.names;
    if (params_.keep_last == 0 && names.empty() && !report_.force && !params_.dry_run) {
      throw Error(Finding::kUsage, "--keep-last 0 would remove every state of the store")
          .Hint("give a NAME, or -f to remove every state; --dry-run lists what would be removed");
    }
    store::Store store = Open(use(), context);
    const Pruned result = Remove(
        store, store.Older(params_.keep_last, {names.begin(), names.end()}), context.console);
    report_.Emit(context.console, "store-prune", PrunedFields, result);
    return kDone;
  }
};

class StoreRemove : public StoreRemoval {
 public:
  void Declare(CommandLine& line) override {
    DeclareStore(line);
    line.Add("STATE", params_.names,
             "NAME: all states of that name; NAME@2: the second of that name; @7: the state with "
             "that number")
        .Required();
    DeclareDryRun(line);
    report_.Declare(line);
  }

  ExitStatus Run(Context& context) override {
    store::Store store = Open(use(), context);
    std::map<uint64_t, store::StateRow> chosen;
    for (const std::string& what : params_.names) {
      const store::StateRow found = store.Find(what);
      for (const store::StateRow& row : store.States()) {
        if (row.id == found.id || (found.name == what && row.name == what)) chosen[row.id] = row;
      }
    }
    std::vector<store::StateRow> states;
    for (auto& [id, row] : chosen) states.push_back(std::move(row));
    const Pruned result = Remove(store, std::move(states), context.console);
    report_.Emit(context.console, "store-remove", RemovedFields, result);
    return kDone;
  }
};

// Limits of restoring: a record may refer to one object any number of times, so that a forged store
// of a few kilobytes would fill memory and disk. Sound states are at most some 20 times larger than
// their stored form, except for runs of zeros.
constexpr uint64_t kAlwaysGiven = uint64_t{256} << 20, kMostTimesStored = 100;

// The result of a run; its document has these fields.
struct StoreGiven {
  std::string store;
  store::StateRow state;
  std::string output;
  bool identical = true;  // if false, the command fails
  std::optional<Elapsed> elapsed;
};

const Fields<StoreGiven>& StoreGivenFields() {
  static const Fields<StoreGiven> fields = {
      NoInputs<StoreGiven>(),
      {"store", kStoreText, &StoreGiven::store},
      {"state", "The state that was restored", &StoreGiven::state, StateFields()},
      {"output", "File or folder that was written", &StoreGiven::output},
      {"identical",
       "Whether every object and the whole state match the stored hashes; otherwise the command "
       "fails",
       &StoreGiven::identical},
      {"timing", "How long it took; left out with --deterministic", &StoreGiven::elapsed,
       ElapsedFields(), Absent()}};
  return fields;
}

class StoreGet : public StoreCommand {
 public:
  void Declare(CommandLine& line) override {
    DeclareStore(line);
    line.Add("STATE", state_,
             "NAME: the newest state of that name; NAME@2: the second of that name; @7: the state "
             "with that number")
        .Required();
    output_.Declare(line, "File or folder to write (default: the name of the state)");
    limit_.Declare(line,
                   "Limit on the size of the state (default: 256MiB, or 100 times the bytes of "
                   "packs and records, if that is more)");
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    files.Writes(output_.to_stdout ? "-" : output_.path, output_.to_stdout ? "-c" : "-o");
    StoreCommand::Files(files);
  }

  ExitStatus Run(Context& context) override {
    const auto begin = std::chrono::steady_clock::now();
    store::Store store = Open(Use::kRead, context);
    const store::StateRow row = store.Find(state_);
    const store::StateRecord record = store.Load(row);
    RequireWithinLimit(store, record.source_bytes);
    const std::string path = PathFor(record, context.console);
    CheckPath(path);
    ProgressLine progress(context.console, context.global.progress_when(), row.name);
    ThreadPool pool(context.global.thread_count());
    OutputRules rules = RulesFor(output_.force);
    // The output gets the store's permissions: a user who may not read the store or its packs may
    // not read what is restored from it.
    rules.like = store.permissions();
    const std::unique_ptr<OutputTarget> target = MakeOutputTarget(
        RestoredFolder::Of(record.is_folder, record.files, record.empty_folders), path, rules);
    store.Restore(record, *target, pool, &progress);
    target->Commit();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    context.console.Say(fmt::format(
        "{}, @{} -> {}: {}, {}\n  identical: every object and the whole state as added, {}",
        Printable(row.name), row.id, path == "-" ? "stdout" : Printable(path),
        HumanBytes(row.source_bytes), HumanRate(row.source_bytes, elapsed.count()),
        HashText(row.source_hash)));
    const StoreGiven result = {folder_, row, path, true,
                               Elapsed::Of(elapsed.count(), context.global)};
    report_.Emit(context.console, "store-get", StoreGivenFields, result, RulesFor(output_.force));
    return kDone;
  }

 private:
  void RequireWithinLimit(const store::Store& store, uint64_t bytes) const {
    limit_.Require(bytes, folder_);
    if (limit_.most() || bytes <= kAlwaysGiven) return;
    const uint64_t stored = store.CountBytes();
    if (bytes / kMostTimesStored < stored) return;
    throw Error(Finding::kLimit,
                "the state has {} bytes, more than {} times what the store holds, {}", bytes,
                kMostTimesStored, stored)
        .File(folder_)
        .Hint("--max-bytes {} allows it", bytes);
  }

  std::string PathFor(const store::StateRecord& record, const Console& console) const {
    const bool is_stream = output_.to_stdout || DescriptorNamed(output_.path) == STDOUT_FILENO;
    if (!is_stream) return output_.path.empty() ? record.name : output_.path;
    if (record.is_folder) {
      throw Error(Finding::kUsage,
                  "the state is a folder, which cannot be written to standard output")
          .Hint("give -o FOLDER");
    }
    output_.RequireStdout(console, report_.json, "the state");
    return "-";
  }

  // The name of a state, which is the default name of the output, is known only now.
  void CheckPath(const std::string& path) const {
    if (path == output_.path || path == "-") return;
    CommandFiles files;
    Files(files);
    files.Writes(path, "the state");
    files.Check();
  }

  std::string state_;
  OutputOptions output_;
  SizeLimit limit_;
};

constexpr Verb kStoreVerbs[] = {
    {"add", "Store states; rows that an earlier state holds are not stored again",
     MakeVerb<StoreAdd>},
    {"list", "Show the states of a store, and the bytes of each", MakeVerb<StoreList>},
    {"get", "Restore a state, byte for byte", MakeVerb<StoreGet>},
    {"verify", "Prove that every state can be restored; --repair makes a new index",
     MakeStoreVerify},
    {"stats", "Show the bytes that were added, taken on the disk and shared", MakeStoreStats},
    {"remove", "Remove states, and free the objects that only they need", MakeVerb<StoreRemove>},
    {"prune", "Remove all but the newest states of each name", MakeVerb<StorePrune>},
    {"gc", "Free the objects that no state needs", MakeVerb<StoreGc>},
    {"watch", "Watch an engine's folder of slots, and add each state when it is saved",
     MakeStoreWatch},
};

}  // namespace

const FieldTable& StoreAddFields() { return StoreAddedFields(); }
const FieldTable& StoreListFields() { return StoreListingFields(); }
const FieldTable& StoreGcFields() { return CollectedFields(); }
const FieldTable& StorePruneFields() { return PrunedFields(); }
const FieldTable& StoreRemoveFields() { return RemovedFields(); }
const FieldTable& StoreGetFields() { return StoreGivenFields(); }

std::unique_ptr<Command> MakeStore() { return std::make_unique<VerbCommand>(kStoreVerbs); }

}  // namespace kv
