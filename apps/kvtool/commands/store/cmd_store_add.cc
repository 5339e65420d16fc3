// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>

#include "apps/kvtool/commands/store/store_commands.h"

namespace kv {
namespace {

constexpr uint32_t kMostBlockTokens = 1 << 20;

// The source of a state that was added.
HashedFile SourceOf(const StoreAdded& of) {
  const store::StateRecord& state = of.report.state;
  return {of.file, state.source_bytes, HashDigits(state.source_hash)};
}

const Fields<StoreAdded::Params>& StoreAddParamsFields() {
  using Params = StoreAdded::Params;
  static const Fields<Params> fields = {
      {"level", "Level of new objects", &Params::level, {.choices = LevelChoices()}},
      {"check", "Whether each new object was decoded and compared", &Params::check},
      {"from", "Format that the source was read as; opaque: its bytes as they are", &Params::from}};
  return fields;
}

const Fields<store::AddReport>& StoreAddReportFields() {
  using Report = store::AddReport;
  static const Fields<Report> fields = {
      {"state", "Number of the state", [](const Report& of) { return of.state.id; }},
      {"name", "Name of the state", [](const Report& of) { return of.state.name; }},
      {"was_there", "Whether the newest state of this name is the same; then nothing was added",
       &Report::was_there},
      {"parent", "State with the longest beginning in common; null: none", &Report::parent},
      {"prefix_tokens", "Tokens of that beginning", &Report::prefix_tokens},
      {"tokens", "Tokens of the longest layer", [](const Report& of) { return of.state.tokens; }},
      {"new_bytes", "Bytes of the pack that came into the store",
       [](const Report& of) { return of.state.own_bytes; }},
      {"new_objects", "Objects in it", &Report::new_objects},
      {"new_raw_bytes", "Bytes of these objects before they were coded", &Report::new_raw_bytes},
      {"shared_objects", "Objects that were there", &Report::shared_objects},
      {"shared_raw_bytes", "Bytes of these before they were coded", &Report::shared_raw_bytes}};
  return fields;
}

const Fields<StoreAdded>& StoreAddedFields() {
  static const Fields<StoreAdded> fields = {
      {"inputs", "What was added", [](const StoreAdded& of) { return std::vector{SourceOf(of)}; },
       HashedFileFields()},
      {"params", "What was asked for", &StoreAdded::params, StoreAddParamsFields()},
      {"store", kStoreText, &StoreAdded::store},
      Fields<StoreAdded>::Inline(&StoreAdded::report, StoreAddReportFields()),
      {"timing",
       "How long it took; left out with --deterministic",
       &StoreAdded::elapsed,
       ElapsedFields(),
       {.absent = true}}};
  return fields;
}

// The states of a store; the document lists them.
struct StoreListing {
  std::string store;
  std::vector<store::StateRow> states;
};

const Fields<StoreListing>& StoreListingFields() {
  static const Fields<StoreListing> fields = {
      NoInputs<StoreListing>(),
      {"store", kStoreText, &StoreListing::store},
      {"states", "States, the oldest first", &StoreListing::states, StateFields(), {.rows = true}}};
  return fields;
}

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
    Value::List all;
    ExitStatus status = kDone;
    for (const std::string& input : inputs_) {
      try {
        add.name = name_.empty() ? NameOf(input) : name_;
        add.added_us = NowMicroseconds(context.global);
        const Source source = snapshot_.Open(input);
        // Opened for each, so that nobody who has to be alone waits for all of them.
        store::Store store(folder_, store::Store::Use::kAdd, Waiting(folder_, context));
        const StoreAdded added = AddToStore(store, source, options, add, pool, context);
        all.push_back(StoreAddedFields().Object(added));
      } catch (Error& error) {
        if (error.code() == ErrorCode::kUsage) throw;
        context.console.Report(error.File(input));
        status = Worse(status, StatusOf(error.code()));
        if (!keep_going_) break;
      }
    }
    if (!all.empty()) report_.Emit(context.console, "store-add", all, RulesFor(report_.force));
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
    const StoreListing result = {folder_, std::move(states)};
    report_.Emit(context.console, "store-list", StoreListingFields().Object(result),
                 RulesFor(report_.force));
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

const FieldTable& StoreAddFields() { return StoreAddedFields(); }
const FieldTable& StoreListFields() { return StoreListingFields(); }

std::unique_ptr<Command> MakeStoreAdd() { return std::make_unique<StoreAdd>(); }
std::unique_ptr<Command> MakeStoreList() { return std::make_unique<StoreList>(); }

}  // namespace kv
