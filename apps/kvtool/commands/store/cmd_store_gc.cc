// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands/store/store_commands.h"
#include "apps/kvtool/documents/snapshot_report.h"

namespace kv {
namespace {

// Collects, and says what that freed.
void CollectInto(store::Store& store, nlohmann::ordered_json& document, Console& console) {
  const store::CollectReport report = store.Collect();
  console.Say(fmt::format(
      "{}: {} to {}; {} objects and {} packs removed, {} packs written anew, {} files left by "
      "killed runs",
      Printable(store.folder()), HumanBytes(report.before_bytes), HumanBytes(report.after_bytes),
      report.removed_objects, report.removed_packs, report.rewritten_packs, report.leftover_files));
  WarnUnlisted(report.unlisted, store.folder(), console);
  document["before_bytes"] = report.before_bytes;
  document["after_bytes"] = report.after_bytes;
  document["removed_objects"] = report.removed_objects;
  document["removed_packs"] = report.removed_packs;
  document["rewritten_packs"] = report.rewritten_packs;
  document["leftover_files"] = report.leftover_files;
  document["unlisted"] = StateNamesJson(report.unlisted);
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
    nlohmann::ordered_json document = ReportHeader("store-gc");
    document["store"] = folder_;
    CollectInto(store, document, context.console);
    report_.Emit(context.console, document, RulesFor(report_.force));
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
    const std::vector<store::StateRow> removed =
        store.Prune(keep_last_, {names_.begin(), names_.end()});
    nlohmann::ordered_json document = ReportHeader("store-prune");
    document["store"] = folder_;
    document["params"] = {{"keep_last", keep_last_}, {"names", names_}};
    document["removed"] = StateNamesJson(removed);
    for (const store::StateRow& row : removed) {
      context.console.Say(fmt::format("removed {}, @{}, {}", Printable(row.name), row.id,
                                      HumanBytes(row.source_bytes)));
    }
    CollectInto(store, document, context.console);
    report_.Emit(context.console, document, RulesFor(report_.force));
    return kDone;
  }

 private:
  std::string folder_;
  std::vector<std::string> names_;
  uint64_t keep_last_ = 0;
  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeStoreGc() { return std::make_unique<StoreGc>(); }
std::unique_ptr<Command> MakeStorePrune() { return std::make_unique<StorePrune>(); }

}  // namespace kv
