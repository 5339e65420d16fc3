// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands/store/store_commands.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/line/numbers.h"

namespace kv {
namespace {

nlohmann::ordered_json ProblemsJson(const store::CheckReport& report) {
  nlohmann::ordered_json problems = nlohmann::ordered_json::array();
  for (const store::Problem& problem : report.problems) {
    problems.push_back(
        {{"file", problem.where}, {"finding", FindingId(problem.finding)}, {"text", problem.text}});
  }
  return problems;
}

class StoreVerify : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("DIR", folder_, "Folder of the store").Required();
    line.AddFlag("--repair", repair_,
                 "Make a new index of what packs and records hold; waits until nobody else uses "
                 "the store");
    limit_.Declare(line, "Limit on what all objects decode to (default: none)");
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    ReadsStore(folder_, files);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    const uint64_t most = limit_.most().value_or(store::kNoLimit);
    const auto use = repair_ ? store::Store::Use::kMend : store::Store::Use::kRead;
    store::Store store(folder_, use, Waiting(folder_, context));
    ThreadPool pool(context.global.thread_count());
    ProgressLine progress(context.console, context.global.progress_when(), folder_);
    const store::CheckReport report =
        repair_ ? store.Mend(pool, most) : store.Check(pool, &progress, most);
    const bool is_whole = report.problems.empty() && report.damaged.empty();
    for (const store::Problem& problem : report.problems) {
      context.console.Report(Error(problem.finding, problem.text).File(problem.where));
    }
    WarnUnlisted(report.unlisted, folder_, context.console);
    if (!report_.json) Print(report, is_whole, context.console);
    nlohmann::ordered_json document = ReportHeader("store-verify");
    document["store"] = folder_;
    document["params"] = {{"repair", repair_}};
    document["verdict"] = is_whole ? "whole" : "damaged";
    document["states"] = report.states;
    document["objects"] = report.objects;
    document["raw_bytes"] = report.raw_bytes;
    document["stored_bytes"] = report.stored_bytes;
    document["leftover_files"] = report.leftover_files;
    document["leftover_bytes"] = report.leftover_bytes;
    document["problems"] = ProblemsJson(report);
    document["damaged"] = StateNamesJson(report.damaged);
    document["unlisted"] = StateNamesJson(report.unlisted);
    document["relisted"] = StateNamesJson(report.relisted);
    report_.Emit(context.console, document, RulesFor(report_.force));
    return is_whole ? kDone : kInvalid;
  }

 private:
  void Print(const store::CheckReport& report, bool is_whole, Console& console) const {
    for (const store::StateRow& row : report.damaged) {
      console.Line(fmt::format("  damaged: @{} {}", row.id, Printable(row.name)));
    }
    for (const store::StateRow& row : report.relisted) {
      console.Line(
          fmt::format("  listed again: @{} {}, which the index before did not name: its adding or "
                      "its removal was cut short",
                      row.id, Printable(row.name)));
    }
    if (report.leftover_files > 0) {
      console.Line(
          fmt::format("  {} of files that no state needs, {}: 'kvtool store gc' removes "
                      "them",
                      report.leftover_files, HumanBytes(report.leftover_bytes)));
    }
    console.Line(fmt::format("{}: {}: {} states, {} objects, {} in {}{}", Printable(folder_),
                             console.Verdict(is_whole, is_whole ? "whole" : "damaged"),
                             report.states, report.objects, HumanBytes(report.raw_bytes),
                             HumanBytes(report.stored_bytes), repair_ ? ", new index" : ""));
  }

  std::string folder_;
  bool repair_ = false;
  SizeLimit limit_;
  ReportOptions report_;
};

class StoreShowStats : public Command {
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
    store::Store store(folder_, store::Store::Use::kRead, Waiting(folder_, context));
    const store::StoreStats stats = store.Stats();
    if (!report_.json) Print(stats, context.console);
    nlohmann::ordered_json document = ReportHeader("store-stats");
    document["store"] = folder_;
    document["states"] = stats.states;
    document["names"] = stats.names;
    document["source_bytes"] = stats.source_bytes;
    document["disk_bytes"] = stats.disk_bytes();
    document["pack_bytes"] = stats.pack_bytes;
    document["record_bytes"] = stats.record_bytes;
    document["index_bytes"] = stats.index_bytes;
    document["unused_bytes"] = Unused(stats);
    PutRatio(document, stats.source_bytes, stats.disk_bytes());
    document["packs"] = stats.packs;
    document["objects"] = stats.objects;
    document["live_raw_bytes"] = stats.live_raw_bytes;
    document["live_stored_bytes"] = stats.live_stored_bytes;
    document["shared_raw_bytes"] = stats.shared_raw_bytes;
    document["saved_raw_bytes"] = stats.referenced_raw_bytes - stats.live_raw_bytes;
    document["levels"] = nlohmann::ordered_json::array();
    for (const store::LevelRow& level : stats.levels) {
      nlohmann::ordered_json entry = {{"level", Name(level.level)},
                                      {"objects", level.objects},
                                      {"raw_bytes", level.raw_bytes},
                                      {"stored_bytes", level.stored_bytes}};
      PutRatio(entry, level.raw_bytes, level.stored_bytes);
      document["levels"].push_back(std::move(entry));
    }
    report_.Emit(context.console, document, RulesFor(report_.force));
    return kDone;
  }

 private:
  static uint64_t Unused(const store::StoreStats& stats) {
    return stats.pack_bytes - std::min(stats.pack_bytes, stats.live_stored_bytes);
  }

  void Print(const store::StoreStats& stats, Console& console) const {
    console.Line(fmt::format("{}: {} states, {} names: {} on {} of disk, {}", Printable(folder_),
                             stats.states, stats.names, HumanBytes(stats.source_bytes),
                             HumanBytes(stats.disk_bytes()),
                             HumanRatio(stats.source_bytes, stats.disk_bytes())));
    console.Line(fmt::format("  packs {} in {} files, records {}, index {}; not needed {}",
                             HumanBytes(stats.pack_bytes), stats.packs,
                             HumanBytes(stats.record_bytes), HumanBytes(stats.index_bytes),
                             HumanBytes(Unused(stats))));
    console.Line(fmt::format("  objects {}: {} of content, {} of it shared, which saves {}",
                             stats.objects, HumanBytes(stats.live_raw_bytes),
                             HumanBytes(stats.shared_raw_bytes),
                             HumanBytes(stats.referenced_raw_bytes - stats.live_raw_bytes)));
    for (const store::LevelRow& level : stats.levels) {
      console.Line(fmt::format("  level {}: {} to {}, {}", Name(level.level),
                               HumanBytes(level.raw_bytes), HumanBytes(level.stored_bytes),
                               HumanRatio(level.raw_bytes, level.stored_bytes)));
    }
  }

  std::string folder_;
  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeStoreVerify() { return std::make_unique<StoreVerify>(); }
std::unique_ptr<Command> MakeStoreStats() { return std::make_unique<StoreShowStats>(); }

}  // namespace kv
