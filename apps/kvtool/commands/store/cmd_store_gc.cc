// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands/store/store_commands.h"
#include "apps/kvtool/documents/snapshot_report.h"

namespace kv {
namespace {

// The states that were removed and the bytes that were freed.
struct Pruned {
  struct Params {
    uint64_t keep_last = 0;
    std::vector<std::string> names;
  };
  std::string store;
  Params params;
  std::vector<store::StateRow> removed;
  store::CollectReport freed;
};

const Fields<store::CollectReport>& CollectFields() {
  using Report = store::CollectReport;
  static const Fields<Report> fields = {
      {"before_bytes", "Bytes of the store on the disk before", &Report::before_bytes},
      {"after_bytes", "Bytes of the store on the disk after", &Report::after_bytes},
      {"removed_objects", "Objects that no state needed", &Report::removed_objects},
      {"removed_packs", "Packs in which nothing was needed", &Report::removed_packs},
      {"rewritten_packs", "Packs of which the needed part was copied", &Report::rewritten_packs},
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

const Fields<Pruned::Params>& PruneParamsFields() {
  using Params = Pruned::Params;
  static const Fields<Params> fields = {
      {"keep_last", "States of each name to keep", &Params::keep_last},
      {"names", "Only these names; empty: all", &Params::names}};
  return fields;
}

const Fields<Pruned>& PrunedFields() {
  static const Fields<Pruned> fields = {
      NoInputs<Pruned>(),
      {"store", kStoreText, &Pruned::store},
      {"params", "What was asked for", &Pruned::params, PruneParamsFields()},
      {"removed", "States that were removed", &Pruned::removed, StateNameFields()},
      Fields<Pruned>::Inline(&Pruned::freed, CollectFields())};
  return fields;
}

// Collects, and says what that freed.
store::CollectReport Collect(store::Store& store, Console& console) {
  store::CollectReport report = store.Collect();
  console.Say(fmt::format(
      "{}: {} to {}; {} objects and {} packs removed, {} packs written anew, {} files left by "
      "killed runs",
      Printable(store.folder()), HumanBytes(report.before_bytes), HumanBytes(report.after_bytes),
      report.removed_objects, report.removed_packs, report.rewritten_packs, report.leftover_files));
  WarnUnlisted(report.unlisted, store.folder(), console);
  return report;
}

class StoreGc : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("DIR", folder_, "Folder of the store").Required();
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    ReadsStore(folder_, files);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    store::Store store(folder_, store::Store::Use::kAlone, Waiting(folder_, context));
    const Pruned result = {folder_, {}, {}, Collect(store, context.console)};
    report_.Emit(context.console, "store-gc", CollectedFields().Object(result),
                 RulesFor(report_.force));
    return kDone;
  }

 private:
  std::string folder_;
  ReportOptions report_;
};

class StorePrune : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("DIR", folder_, "Folder of the store").Required();
    line.Add("NAME", names_, "Only the states of these names");
    line.Add("--keep-last", keep_last_, "How many of each name to keep, the newest").Required();
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    ReadsStore(folder_, files);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    store::Store store(folder_, store::Store::Use::kAlone, Waiting(folder_, context));
    Pruned result = {folder_, {keep_last_, names_}, {}, {}};
    result.removed = store.Prune(keep_last_, {names_.begin(), names_.end()});
    for (const store::StateRow& row : result.removed) {
      context.console.Say(fmt::format("removed {}, @{}, {}", Printable(row.name), row.id,
                                      HumanBytes(row.source_bytes)));
    }
    result.freed = Collect(store, context.console);
    report_.Emit(context.console, "store-prune", PrunedFields().Object(result),
                 RulesFor(report_.force));
    return kDone;
  }

 private:
  std::string folder_;
  std::vector<std::string> names_;
  uint64_t keep_last_ = 0;
  ReportOptions report_;
};

}  // namespace

const FieldTable& StoreGcFields() { return CollectedFields(); }
const FieldTable& StorePruneFields() { return PrunedFields(); }

std::unique_ptr<Command> MakeStoreGc() { return std::make_unique<StoreGc>(); }
std::unique_ptr<Command> MakeStorePrune() { return std::make_unique<StorePrune>(); }

}  // namespace kv
