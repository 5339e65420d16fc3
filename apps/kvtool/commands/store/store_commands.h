// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The common part of the verbs of `kvtool store`.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/document_names.h"
#include "lib/store/store.h"

namespace kv {

// Duration of a command, for documents without other speeds.
struct Elapsed {
  uint64_t microseconds = 0;

  // Returns nothing in deterministic runs.
  static std::optional<Elapsed> Of(double seconds, const GlobalOptions& global);
};
const Fields<Elapsed>& ElapsedFields();

// A state that was added, or that the store already had.
struct StoreAdded {
  struct Params {
    std::string_view level;
    bool check = true;
    std::string from;
  };
  std::string file, store;
  Params params;
  store::AddReport report;
  std::optional<Elapsed> elapsed;
};

// A verb of `kvtool store`.
class StoreCommand : public Command {
 public:
  // Adds the store to the files of the command, so that no output replaces anything in it.
  void Files(CommandFiles& files) const override;

 protected:
  using Use = store::Store::Use;

  void DeclareStore(CommandLine& line, const std::string& text = "Folder of the store");
  // Opens the store, and reports if it has to wait for another process.
  store::Store Open(Use use, Context& context) const;
  // Adds a source under a name, and reports the result. The store is opened for each source, so
  // that a process which needs it alone does not wait for all of them, and only once the source has
  // been read, so that a wrong file creates no store.
  StoreAdded AddToStore(const Source& source, const OpenOptions& options,
                        const store::AddOptions& add, ThreadPool& pool, Context& context) const;

  std::string folder_;
};

// Counts the results of many sources.
struct AddTotals {
  size_t added = 0, there = 0, left_out = 0;
  std::vector<std::string> failed;

  void Count(const StoreAdded& of) { ++(of.report.was_there ? there : added); }
  void Tell(Console& console) const;
};

std::unique_ptr<Command> MakeStoreVerify();
std::unique_ptr<Command> MakeStoreStats();
std::unique_ptr<Command> MakeStoreWatch();

// Returns "2026-11-22 20:14:05Z".
std::string TimeText(int64_t microseconds);
int64_t NowMicroseconds(const GlobalOptions& global);
const Fields<store::StateRow>& StateFields();
// Returns the fields that identify a state, without those that describe it.
const Fields<store::StateRow>& StateNameFields();
// Text of the field for the store's folder, which most documents have.
inline constexpr std::string_view kStoreText = "Folder of the store as it was given";
inline constexpr std::string_view kStateHashText =
    "XXH3-64 of the state's bytes, 16 hexadecimal digits";
inline constexpr std::string_view kUnlistedText =
    "States that the index does not name and whose records are whole; a repair lists them again";
// Warns of states that the index lacks though their records are intact, and names the command that
// lists them again.
void WarnUnlisted(const std::vector<store::StateRow>& rows, const std::string& folder,
                  Console& console);

}  // namespace kv
