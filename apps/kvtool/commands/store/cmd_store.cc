// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool store VERB`: the verbs, and what they share.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/store/store_commands.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "lib/core/base/hash.h"

namespace kv {
namespace {

constexpr Verb kStoreVerbs[] = {
    {"add", "Store states; what an earlier one holds already is not stored again", MakeStoreAdd},
    {"list", "Show the states of a store, and what each costs", MakeStoreList},
    {"get", "Give a state back, byte for byte", MakeStoreGet},
    {"verify", "Prove that every state can be restored; --repair makes a new index",
     MakeStoreVerify},
    {"stats", "Show what went in, what lies on the disk and what is shared", MakeStoreStats},
    {"prune", "Remove all but the newest states of each name", MakeStorePrune},
    {"gc", "Free what no state needs", MakeStoreGc},
    {"watch", "Add what an engine saves to its folder of slots, as it is saved", MakeStoreWatch},
};

// What a reader makes of a source, or nothing where its bytes are stored as they are.
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

std::unique_ptr<Command> MakeStore() { return std::make_unique<VerbCommand>(kStoreVerbs); }

void ReadsStore(const std::string& folder, CommandFiles& files) {
  std::error_code failed;
  if (std::filesystem::exists(folder, failed)) files.Reads(folder);
}

std::function<void()> Waiting(const std::string& folder, Context& context) {
  return [&context, folder] {
    context.console.Say(fmt::format("{}: waits for others that use the store", Printable(folder)),
                        1);
  };
}

std::string TimeText(int64_t microseconds) {
  constexpr int64_t kMicroseconds = 1000000;
  const auto seconds = static_cast<std::time_t>(microseconds / kMicroseconds);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[64];
  const size_t size = std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%SZ", &parts);
  return {text, size};
}

int64_t NowMicroseconds(const GlobalOptions& global) {
  if (global.deterministic) return 0;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

const Fields<store::StateRow>& StateFields() {
  using Row = store::StateRow;
  const auto cost = [](const Row& row) { return row.own_bytes + row.record_bytes; };
  static const Fields<Row> fields = {
      {"state", "Its number, which no other state ever has", &Row::id},
      {"name", "Its name", &Row::name},
      {"added", "When it was added, in UTC", [](const Row& row) { return TimeText(row.added_us); }},
      {"format", "Format of its source; opaque: bytes as they are", &Row::format},
      {"model", "Model that it names, or empty", &Row::model},
      {"geometry", "Layers, heads and type of K, or empty", &Row::geometry},
      {"level",
       "Level at which its new objects were coded",
       [](const Row& row) { return Name(row.level); },
       {.choices = LevelChoices()}},
      {"tokens", "Tokens of its longest layer", &Row::tokens},
      {"layers", "Layers with a cache", &Row::layers},
      {"source_bytes", "Bytes of what was added", &Row::source_bytes},
      {"cost_bytes", "Bytes that the store grew by with it, the index left out", cost},
      {"xxh3",
       kStateHashText,
       [](const Row& row) { return HashDigits(row.source_hash); },
       {.pattern = kHashPattern}}};
  return fields;
}

const Fields<store::StateRow>& StateNameFields() {
  static const Fields<store::StateRow> fields = {
      {"state", "Number of the state", &store::StateRow::id},
      {"name", "Its name", &store::StateRow::name}};
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

StoreAdded AddToStore(store::Store& store, const Source& source, const OpenOptions& options,
                      const store::AddOptions& add, ThreadPool& pool, Context& context) {
  const auto begin = std::chrono::steady_clock::now();
  const std::optional<Snapshot> snapshot = SnapshotFor(source, options, context.console);
  ProgressLine progress(context.console, context.global.progress_when(), source.path);
  store::AddOptions with = add;
  with.progress = &progress;
  store::AddReport report;
  try {
    report = store.Add(source, snapshot ? &*snapshot : nullptr, with, pool);
  } catch (const Error&) {
    source.RequireUnchanged();  // a change explains whatever else went wrong
    throw;
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  const store::StateRecord& state = report.state;
  const std::string what =
      fmt::format("{} -> {}, @{}", Printable(source.path), Printable(state.name), state.id);
  if (report.was_there) {
    context.console.Say(fmt::format("{}: there already, {}", what, HashText(state.source_hash)));
  } else {
    context.console.Say(fmt::format("{}: {} to {}, {}; {} were there, in {} of {} objects", what,
                                    HumanBytes(state.source_bytes), HumanBytes(state.own_bytes),
                                    HumanRate(state.source_bytes, elapsed.count()),
                                    HumanBytes(report.shared_raw_bytes), report.shared_objects,
                                    report.shared_objects + report.new_objects));
  }
  return {source.path,
          store.folder(),
          {Name(add.effort), add.check, snapshot ? snapshot->format : "opaque"},
          std::move(report),
          Elapsed::Of(elapsed.count(), context.global)};
}

}  // namespace kv
