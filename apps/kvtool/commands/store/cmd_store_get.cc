// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "apps/kvtool/commands/store/store_commands.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "lib/core/base/hash.h"

namespace kv {
namespace {

class OneFile : public RestoreTarget {
 public:
  OneFile(const std::string& path, const OutputRules& rules) : file_(path, rules) {}
  Sink& Begin(size_t) override { return file_; }
  void End(size_t) override {}
  void Commit() { file_.Commit(); }

 private:
  AtomicFile file_;
};

class WholeFolder : public RestoreTarget {
 public:
  WholeFolder(const store::StateRecord& record, const std::string& path, const OutputRules& rules)
      : record_(record), folder_(path, rules) {}

  Sink& Begin(size_t file) override {
    file_ = folder_.Create(record_.files[file].name, record_.files[file].executable);
    return *file_;
  }
  void End(size_t) override { std::exchange(file_, nullptr)->Close(); }
  void Commit() {
    for (const std::string& name : record_.empty_folders) folder_.MakeFolder(name);
    folder_.Commit();
  }

 private:
  const store::StateRecord& record_;
  AtomicFolder folder_;
  std::unique_ptr<FolderFile> file_;
};

// A record may name one object as often as it likes, so that a forged store of some kilobytes would
// fill memory and disk. Sound states take at most some 20 times what they are stored in, but for
// runs of zeros.
constexpr uint64_t kAlwaysGiven = uint64_t{256} << 20, kMostTimesStored = 100;

// The result of a run; its document has these fields.
struct StoreGiven {
  std::string store;
  store::StateRow state;
  std::string output;
  bool identical = true;  // it is an error where it is not
  std::optional<Elapsed> elapsed;
};

const Fields<StoreGiven>& StoreGivenFields() {
  static const Fields<StoreGiven> fields = {
      NoInputs<StoreGiven>(),
      {"store", kStoreText, &StoreGiven::store},
      {"state", "The state that was given back", &StoreGiven::state, StateFields()},
      {"output", "File or folder that was written", &StoreGiven::output},
      {"identical",
       "Whether every object and the whole have the hashes that were stored; a state that has not "
       "is an error",
       &StoreGiven::identical},
      {"timing",
       "How long it took; left out with --deterministic",
       &StoreGiven::elapsed,
       ElapsedFields(),
       {.absent = true}}};
  return fields;
}

class StoreGet : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("DIR", folder_, "Folder of the store").Required();
    line.Add("STATE", state_,
             "Name of a state, which means its newest; NAME@2, the second of that name; @7, the "
             "state with that number")
        .Required();
    output_.Declare(line, "File or folder to write (default: the name of the state)");
    limit_.Declare(line,
                   "Limit on the size of the state (default: 256MiB, or 100 times what packs and "
                   "records take, if that is more)");
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    ReadsStore(folder_, files);
    files.Writes(output_.path, "-o");
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    const auto begin = std::chrono::steady_clock::now();
    store::Store store(folder_, store::Store::Use::kRead, Waiting(folder_, context));
    const store::StateRow row = store.Find(state_);
    const store::StateRecord record = store.Load(row);
    RequireWithinLimit(store, record.source_bytes);
    const std::string path = PathFor(record, context.console);
    CheckPath(path);
    ProgressLine progress(context.console, context.global.progress_when(), row.name);
    ThreadPool pool(context.global.thread_count());
    OutputRules rules = RulesFor(output_.force);
    // Who may not look into the store, or into its packs, may not read what comes out of it.
    rules.like = store.permissions();
    if (record.is_folder) {
      WholeFolder target(record, path, rules);
      store.Restore(record, target, pool, &progress);
      target.Commit();
    } else {
      OneFile target(path, rules);
      store.Restore(record, target, pool, &progress);
      target.Commit();
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    context.console.Say(fmt::format(
        "{}, @{} -> {}: {}, {}\n  identical: every object and the whole state as added, {}",
        Printable(row.name), row.id, path == "-" ? "stdout" : Printable(path),
        HumanBytes(row.source_bytes), HumanRate(row.source_bytes, elapsed.count()),
        HashText(row.source_hash)));
    const StoreGiven result = {folder_, row, path, true,
                               Elapsed::Of(elapsed.count(), context.global)};
    report_.Emit(context.console, "store-get", StoreGivenFields().Object(result),
                 RulesFor(output_.force));
    return kDone;
  }

 private:
  void RequireWithinLimit(const store::Store& store, uint64_t bytes) const {
    limit_.Require(bytes, folder_);
    if (limit_.most() || bytes <= kAlwaysGiven) return;
    const uint64_t stored = store.CountBytes();
    if (bytes / kMostTimesStored < stored) return;
    throw Error(Finding::kLimit,
                fmt::format("the state has {} bytes, more than {} times what the store holds, {}",
                            bytes, kMostTimesStored, stored))
        .File(folder_)
        .Hint(fmt::format("--max-bytes {} allows it", bytes));
  }

  std::string PathFor(const store::StateRecord& record, const Console& console) const {
    const bool is_stream = output_.to_stdout || DescriptorNamed(output_.path) == STDOUT_FILENO;
    if (!is_stream) return output_.path.empty() ? record.name : output_.path;
    if (record.is_folder) {
      throw Error(Finding::kUsage, "the state is a folder, which standard output cannot take")
          .Hint("give -o FOLDER");
    }
    if (report_.json) {
      throw Error(Finding::kUsage, "the state and --json both go to standard output")
          .Hint("give --json-out FILE");
    }
    if (!output_.force && console.stdout_is_terminal()) {
      throw Error(Finding::kUsage, "binary data is not written to a terminal")
          .Hint("redirect the output, give -o FILE, or insist with -f");
    }
    return "-";
  }

  // The name of a state, which is what the output is called without -o, is known only now.
  void CheckPath(const std::string& path) const {
    if (path == output_.path || path == "-") return;
    CommandFiles files;
    Files(files);
    files.Writes(path, "the state");
    files.Check();
  }

  std::string folder_, state_;
  OutputOptions output_;
  SizeLimit limit_;
  ReportOptions report_;
};

}  // namespace

const FieldTable& StoreGetFields() { return StoreGivenFields(); }

std::unique_ptr<Command> MakeStoreGet() { return std::make_unique<StoreGet>(); }

}  // namespace kv
