// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool store verify` and `stats`: whether a store is intact, and where its bytes are.
#include <fmt/format.h>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/store/store_commands.h"
#include "apps/kvtool/documents/snapshot_report.h"

namespace kv {
namespace {

// Returns the folder of a store, quoted for a shell and never mistaken for a flag.
std::string FolderWord(const std::string& store) {
  return ShellQuoted(store.starts_with('-') ? "./" + store : store);
}

// The result of checking a store; its document has these fields.
struct StoreChecked {
  std::string store;
  bool repair = false;
  store::CheckReport report;

  bool is_whole() const { return report.problems.empty() && report.damaged.empty(); }
  std::string_view verdict() const { return is_whole() ? "whole" : "damaged"; }
};

const Fields<store::CheckReport>& StoreCheckFields() {
  using Report = store::CheckReport;
  static const Fields<store::Problem> store_problem = {
      {"file", "File of the store", &store::Problem::where},
      {"finding", "Number of the finding, which kvtool explain describes",
       [](const store::Problem& problem) { return FindingId(problem.finding); }, kFindingNumber},
      {"text", "Error in the file", &store::Problem::text}};
  static const Fields<Report> fields = {
      {"states", "States that were checked", &Report::states},
      {"objects", "Objects that were decoded and compared with their names", &Report::objects},
      {"raw_bytes", "Bytes of the undamaged objects, decoded", &Report::raw_bytes},
      {"stored_bytes", "Bytes of the stored objects", &Report::stored_bytes},
      {"leftover_files",
       "Files that the index does not name: left by killed runs, or being written by a running "
       "command",
       &Report::leftover_files},
      {"leftover_bytes", "Bytes of the leftover files", &Report::leftover_bytes},
      {"problems", "Faults of the store", &Report::problems, store_problem},
      {"damaged", "States that cannot be restored", &Report::damaged, StateNameFields()},
      {"unlisted", kUnlistedText, &Report::unlisted, StateNameFields()},
      {"relisted",
       "States missing from the old index, which a repair lists again; adding or removing them was "
       "interrupted",
       &Report::relisted, StateNameFields()}};
  return fields;
}

const Fields<StoreChecked>& StoreCheckedFields() {
  static const Fields<StoreChecked> store_check_params = {
      {"repair", "Whether a new index was written", &StoreChecked::repair}};
  static const Fields<StoreChecked> fields = {
      NoInputs<StoreChecked>(),
      {"store", kStoreText, &StoreChecked::store},
      {"params", "Parameters of the run",
       [](const StoreChecked& of) -> const StoreChecked& { return of; }, store_check_params},
      {"verdict", "whole: every state can be restored and nothing is wrong", &StoreChecked::verdict,
       OneOf("whole", "damaged")},
      Fields<StoreChecked>::Inline(&StoreChecked::report, StoreCheckFields())};
  return fields;
}

// The contents of a store in numbers; its document has these fields.
struct StoreCounted {
  std::string store;
  store::StoreStats stats;

  uint64_t unused() const {
    return stats.pack_bytes - std::min(stats.pack_bytes, stats.live_stored_bytes);
  }
  uint64_t saved() const { return stats.referenced_raw_bytes - stats.live_raw_bytes; }

  // Advice that frees bytes without losing a state. Older versions are kept, however large:
  // different states may share a name, like files with one name in several folders.
  struct Advice {
    std::string_view kind;
    uint64_t freed_bytes = 0;
    std::string command;
  };
  Advice Recommend() const {
    if (unused() > stats.pack_bytes / 4 && unused() > stats.disk_bytes() / 30)
      return {"gc", unused(), "kvtool store gc " + FolderWord(store)};
    return {"keep", 0, {}};
  }
};

const Fields<StoreCounted::Advice>& StoreAdviceFields() {
  using Advice = StoreCounted::Advice;
  static const Fields<Advice> fields = {
      {"kind",
       "gc: packs hold much that no state needs; keep: they do not; prune: older versions only",
       &Advice::kind, OneOf("gc", "prune", "keep")},
      {"freed_bytes", "Bytes on the disk that the action frees", &Advice::freed_bytes},
      {"command", "Command for the action; null: nothing to do", IfAny(&Advice::command)}};
  return fields;
}

std::string AsName(const Value& value) { return Printable(format::Plain(value)); }

const Fields<store::StateUse>& StateUseFields() {
  using Use = store::StateUse;
  static const Fields<Use> fields = {
      {"state", "Number of the state", [](const Use& of) { return of.row.id; }, Heading("state")},
      {"name", "Name of the state", [](const Use& of) { return of.row.name; },
       Heading("name", AsName)},
      {"source_bytes", "Bytes of the state as it was added",
       [](const Use& of) { return of.row.source_bytes; }, Heading("size", format::AsBytes)},
      {"shared_bytes", "Decoded bytes that other states need, too", &Use::shared_bytes,
       Heading("shared", format::AsBytes)},
      {"own_stored_bytes", "Bytes on disk that only this state needs, with its record",
       &Use::own_stored_bytes, Heading("only its own", format::AsBytes)},
      {"added", "Time when the state was added, in UTC; a store does not record reads",
       [](const Use& of) { return TimeText(of.row.added_us); }, Heading("added")},
      {"newest", "Whether the state is the newest of its name", &Use::is_newest}};
  return fields;
}

template <typename Member>
auto OfStats(Member member) {
  return [member](const StoreCounted& of) { return std::invoke(member, of.stats); };
}

const Fields<StoreCounted>& StoreCountedFields() {
  using Stats = store::StoreStats;
  using Row = store::LevelRow;
  static const Fields<Row> store_level = {
      {"level",
       "Level of compression",
       [](const Row& row) { return Name(row.level); },
       {.choices = LevelChoices()}},
      {"objects", "Number of objects", &Row::objects},
      {"raw_bytes", "Decoded bytes of the objects", &Row::raw_bytes},
      {"stored_bytes", "Stored bytes of the objects", &Row::stored_bytes},
      Fields<Row>::Inline(
          [](const Row& row) {
            return Saving{row.raw_bytes, row.stored_bytes};
          },
          SavingFields())};
  static const Fields<StoreCounted> fields = {
      NoInputs<StoreCounted>(),
      {"store", kStoreText, &StoreCounted::store},
      {"states", "Number of states", OfStats(&Stats::states)},
      {"names", "Number of different names of states", OfStats(&Stats::names)},
      {"source_bytes", "Bytes of all that was added and is still listed",
       OfStats(&Stats::source_bytes)},
      {"disk_bytes", "Bytes of packs, records and index on the disk", OfStats(&Stats::disk_bytes)},
      {"pack_bytes", "Bytes of packs, which hold objects", OfStats(&Stats::pack_bytes)},
      {"record_bytes", "Bytes of records, one for each state", OfStats(&Stats::record_bytes)},
      {"index_bytes", "Bytes of the index", OfStats(&Stats::index_bytes)},
      {"unused_bytes", "Bytes in packs that no state needs, including pack headers",
       &StoreCounted::unused},
      Fields<StoreCounted>::Inline(
          [](const StoreCounted& of) {
            return Saving{of.stats.source_bytes, of.stats.disk_bytes()};
          },
          SavingFields()),
      {"packs", "Number of packs", OfStats(&Stats::packs)},
      {"objects", "Number of objects", OfStats(&Stats::objects)},
      {"live_raw_bytes", "Decoded bytes of the objects that states need, each counted once",
       OfStats(&Stats::live_raw_bytes)},
      {"live_stored_bytes", "Stored bytes of the objects that states need, each counted once",
       OfStats(&Stats::live_stored_bytes)},
      {"shared_raw_bytes", "Part of live_raw_bytes that is needed more than once",
       OfStats(&Stats::shared_raw_bytes)},
      {"saved_raw_bytes", "Bytes that sharing saved before any coding", &StoreCounted::saved},
      {"levels", "Objects by the level at which they were coded", OfStats(&Stats::levels),
       store_level},
      {"uses", "Bytes that each state shares and needs alone", OfStats(&Stats::uses),
       StateUseFields(), CsvRows()},
      {"older_states", "States that are not the newest of their name",
       OfStats(&Stats::older_states)},
      {"older_bytes", "Bytes on the disk that only older states of their names need",
       OfStats(&Stats::older_bytes)},
      {"recommendation", "Recommended action to reduce the size", &StoreCounted::Recommend,
       StoreAdviceFields()}};
  return fields;
}

class StoreVerify : public StoreCommand {
 public:
  void Declare(CommandLine& line) override {
    DeclareStore(line);
    line.AddFlag(
        "--repair", repair_,
        "Make a new index from packs and records; waits until no other process uses the store");
    limit_.Declare(line, "Limit on the decoded bytes of all objects (default: none)");
    report_.Declare(line);
  }

  ExitStatus Run(Context& context) override {
    const uint64_t most = limit_.most().value_or(store::kNoLimit);
    const auto use = repair_ ? Use::kMend : Use::kRead;
    store::Store store = Open(use, context);
    ThreadPool pool(context.global.thread_count());
    ProgressLine progress(context.console, context.global.progress_when(), folder_);
    const StoreChecked result = {
        folder_, repair_, repair_ ? store.Mend(pool, most) : store.Check(pool, &progress, most)};
    const store::CheckReport& report = result.report;
    for (const store::Problem& problem : report.problems) {
      context.console.Report(Error(problem.finding, problem.text).File(problem.where));
    }
    WarnUnlisted(report.unlisted, folder_, context.console);
    if (!report_.json) Print(result, context.console);
    report_.Emit(context.console, "store-verify", StoreCheckedFields, result);
    return result.is_whole() ? kDone : kVerdict;
  }

 private:
  static void Print(const StoreChecked& result, Console& console) {
    const store::CheckReport& report = result.report;
    for (const store::StateRow& row : report.damaged) {
      console.Line(fmt::format("  damaged: @{} {}", row.id, Printable(row.name)));
    }
    if (!report.damaged.empty()) {
      console.Line(
          fmt::format("  a damaged state is repaired by adding its source again: kvtool store "
                      "add {} FILE --name NAME",
                      FolderWord(result.store)));
    }
    for (const store::StateRow& row : report.relisted) {
      console.Line(
          fmt::format("  listed again: @{} {}, which the old index did not name: adding or "
                      "removing it was interrupted",
                      row.id, Printable(row.name)));
    }
    if (report.leftover_files > 0) {
      console.Line(
          fmt::format("  {} of files that no state needs, {}: 'kvtool store gc' removes them",
                      report.leftover_files, HumanBytes(report.leftover_bytes)));
    }
    console.Line(fmt::format("{}: {}: {}, {}, {} in {}{}", Printable(result.store),
                             console.Verdict(result.is_whole(), result.verdict()),
                             Plural(report.states, "state"), Plural(report.objects, "object"),
                             HumanBytes(report.raw_bytes), HumanBytes(report.stored_bytes),
                             result.repair ? ", new index" : ""));
  }

  bool repair_ = false;
  SizeLimit limit_;
};

class StoreShowStats : public StoreCommand {
 public:
  void Declare(CommandLine& line) override {
    DeclareStore(line);
    report_.Declare(line);
  }

  ExitStatus Run(Context& context) override {
    store::Store store = Open(Use::kRead, context);
    const StoreCounted result = {folder_, store.Stats()};
    if (!report_.json) Print(result, context.console);
    report_.Emit(context.console, "store-stats", StoreCountedFields, result);
    return kDone;
  }

 private:
  static void Print(const StoreCounted& result, Console& console) {
    const store::StoreStats& stats = result.stats;
    console.Line(fmt::format("{}: {}, {}: {} on {} of disk, {}", Printable(result.store),
                             Plural(stats.states, "state"), Plural(stats.names, "name"),
                             HumanBytes(stats.source_bytes), HumanBytes(stats.disk_bytes()),
                             HumanRatio(stats.source_bytes, stats.disk_bytes())));
    console.Line(fmt::format("  packs {} in {}, records {}, index {}; not needed {}",
                             HumanBytes(stats.pack_bytes), Plural(stats.packs, "file"),
                             HumanBytes(stats.record_bytes), HumanBytes(stats.index_bytes),
                             HumanBytes(result.unused())));
    console.Line(fmt::format("  objects {}: {} of content, {} of it shared, which saves {}",
                             stats.objects, HumanBytes(stats.live_raw_bytes),
                             HumanBytes(stats.shared_raw_bytes), HumanBytes(result.saved())));
    for (const store::LevelRow& level : stats.levels) {
      console.Line(fmt::format("  level {}: {} to {}, {}", Name(level.level),
                               HumanBytes(level.raw_bytes), HumanBytes(level.stored_bytes),
                               HumanRatio(level.raw_bytes, level.stored_bytes)));
    }
    PrintUses(stats, console);
    const StoreCounted::Advice advice = result.Recommend();
    if (advice.command.empty())
      return console.Line("keep it as it is: collecting would free little");
    console.Line(fmt::format("collecting what no state needs frees about {}:",
                             HumanBytes(advice.freed_bytes)));
    console.Line("  " + advice.command);
  }

  // Prints the states with the most bytes of their own, few enough for a screen.
  static void PrintUses(const store::StoreStats& stats, Console& console) {
    constexpr size_t kMostShown = 8;
    std::vector<store::StateUse> uses = stats.uses;
    std::stable_sort(uses.begin(), uses.end(), [](const auto& a, const auto& b) {
      return a.own_stored_bytes > b.own_stored_bytes;
    });
    const size_t shown = std::min(uses.size(), kMostShown);
    if (shown == 0) return;
    console.Data(Table(MakeTextTable(StateUseFields(), std::span(uses).first(shown))).Text());
    if (shown < uses.size())
      console.Line(fmt::format("and {} more, which --json and --csv list", uses.size() - shown));
  }
};

}  // namespace

const FieldTable& StoreVerifyFields() { return StoreCheckedFields(); }
const FieldTable& StoreStatsFields() { return StoreCountedFields(); }

std::unique_ptr<Command> MakeStoreVerify() { return std::make_unique<StoreVerify>(); }
std::unique_ptr<Command> MakeStoreStats() { return std::make_unique<StoreShowStats>(); }

}  // namespace kv
