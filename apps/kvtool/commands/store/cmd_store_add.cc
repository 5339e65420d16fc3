// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>

#include "apps/kvtool/commands/store/store_commands.h"

namespace kv {
namespace {

constexpr uint32_t kMostBlockTokens = 1 << 20;

class StoreAdd : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("DIR", folder_, "Folder of the store; made where there is none").Required();
    line.Add("FILE", inputs_,
             "Snapshots: files or folders. A .kvz is kept as its bytes and shares nothing")
        .Required();
    line.Add("--name", name_, "Name of the state (default: that of the file)");
    line.Add("--level", level_, "Trades time for size: fast, default, high, max")
        .OneOf({"compat", "fast", "default", "high", "max"})
        .ShowDefault();
    line.Add("--block-tokens", block_tokens_,
             "Most tokens of an object (default: 256, from level high on 1024); what two states "
             "have "
             "in common is found in multiples of it")
        .Between(1u, kMostBlockTokens);
    line.AddFlag("--no-check", no_check_,
                 "Do not decode what is stored and compare it with the source");
    line.AddFlag("--keep-going", keep_going_, "Go on with the next input after an error");
    snapshot_.Declare(line);
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    files.Reads(inputs_);
    ReadsStore(folder_, files);
    snapshot_.Files(files);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    if (!name_.empty() && inputs_.size() > 1)
      throw Error(Finding::kUsage, "--name names one state, but there are several inputs");
    OpenOptions options =
        snapshot_.Resolve(inputs_.size() > 1 ? FlagsFor::kSeveral : FlagsFor::kOne);
    options.metadata_only = true;
    options.any_batch = options.may_guess_axes = true;
    store::AddOptions add;
    add.effort = *ParseEffort(level_);
    add.block_tokens = block_tokens_;
    add.check = !no_check_;
    ThreadPool pool(context.global.thread_count());
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    ExitStatus status = kDone;
    for (const std::string& input : inputs_) {
      try {
        add.name = name_.empty() ? NameOf(input) : name_;
        add.added_us = NowMicroseconds(context.global);
        const Source source = snapshot_.Open(input);
        // Opened for each, so that nobody who has to be alone waits for all of them.
        store::Store store(folder_, store::Store::Use::kAdd, Waiting(folder_, context));
        all.push_back(AddToStore(store, source, options, add, pool, context));
      } catch (Error& error) {
        if (error.code() == ErrorCode::kUsage) throw;
        context.console.Report(error.File(input));
        status = Worse(status, StatusOf(error.code()));
        if (!keep_going_) break;
      }
    }
    if (!all.empty()) report_.Emit(context.console, all, RulesFor(report_.force));
    return status;
  }

 private:
  static std::string NameOf(const std::string& input) {
    if (input == "-")
      throw Error(Finding::kUsage, "standard input has no name").Hint("give --name NAME");
    std::filesystem::path path = std::filesystem::path(input).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    return path.filename().string();
  }

  std::string folder_, name_, level_ = "default";
  std::vector<std::string> inputs_;
  uint32_t block_tokens_ = 0;
  bool no_check_ = false, keep_going_ = false;
  SnapshotOptions snapshot_;
  ReportOptions report_;
};

class StoreList : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("DIR", folder_, "Folder of the store").Required();
    line.Add("NAME", names_, "Only the states of these names");
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    ReadsStore(folder_, files);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    store::Store store(folder_, store::Store::Use::kRead, Waiting(folder_, context));
    std::vector<store::StateRow> states = store.States();
    for (const std::string& name : names_) store.Find(name);  // throws where there is none
    std::erase_if(states, [&](const store::StateRow& row) {
      return !names_.empty() && std::find(names_.begin(), names_.end(), row.name) == names_.end();
    });
    if (!report_.json) Print(states, context.console);
    nlohmann::ordered_json document = ReportHeader("store-list");
    document["store"] = folder_;
    document["states"] = nlohmann::ordered_json::array();
    for (const store::StateRow& row : states) document["states"].push_back(StateJson(row));
    report_.Emit(context.console, document, RulesFor(report_.force));
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

  std::string folder_;
  std::vector<std::string> names_;
  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeStoreAdd() { return std::make_unique<StoreAdd>(); }
std::unique_ptr<Command> MakeStoreList() { return std::make_unique<StoreList>(); }

}  // namespace kv
