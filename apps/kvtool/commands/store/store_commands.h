// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/result_fields.h"
#include "lib/store/store.h"

namespace kv {

// How long a command took, of documents that say no more of how fast it was.
struct Elapsed {
  uint64_t microseconds = 0;

  // Deterministic runs say nothing.
  static std::optional<Elapsed> Of(double seconds, const GlobalOptions& global);
};
const Fields<Elapsed>& ElapsedFields();

// A state that was added, or that the store had before.
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
  // No output may replace what is in the store.
  void Files(CommandFiles& files) const override;

 protected:
  using Use = store::Store::Use;

  void DeclareStore(CommandLine& line, const std::string& text = "Folder of the store");
  // Says if somebody else has to finish first.
  store::Store Open(Use use, Context& context) const;
  // Adds a source under a name, and says what came of it. The store is opened for each, so that
  // nobody who has to be alone waits for all of them, and only once the source has been read: a
  // wrong file makes no store.
  StoreAdded AddToStore(const Source& source, const OpenOptions& options,
                        const store::AddOptions& add, ThreadPool& pool, Context& context) const;

  std::string folder_;
};

// Counts what came of many sources.
struct AddTotals {
  size_t added = 0, there = 0, left_out = 0;
  std::vector<std::string> failed;

  void Count(const StoreAdded& of) { ++(of.report.was_there ? there : added); }
  void Tell(Console& console) const;
};

std::unique_ptr<Command> MakeStoreVerify();
std::unique_ptr<Command> MakeStoreStats();
std::unique_ptr<Command> MakeStoreWatch();

// "2026-11-22 20:14:05Z".
std::string TimeText(int64_t microseconds);
int64_t NowMicroseconds(const GlobalOptions& global);
const Fields<store::StateRow>& StateFields();
// Which state is meant, without what it is.
const Fields<store::StateRow>& StateNameFields();
// The folder of the store, as most of its documents begin.
inline constexpr std::string_view kStoreText = "Folder of the store as it was given";
inline constexpr std::string_view kStateHashText =
    "XXH3-64 of the state's bytes, 16 hexadecimal digits";
inline constexpr std::string_view kUnlistedText =
    "States that the index does not name and whose records are whole; a repair lists them again";
// Names states that the index lacks though their records are whole, and says what lists them again.
void WarnUnlisted(const std::vector<store::StateRow>& rows, const std::string& folder,
                  Console& console);

}  // namespace kv
