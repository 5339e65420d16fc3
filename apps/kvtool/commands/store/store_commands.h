// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "lib/store/store.h"

namespace kv {

// The verbs of `kvtool store`, each a command of its own.
std::unique_ptr<Command> MakeStoreAdd();
std::unique_ptr<Command> MakeStoreList();
std::unique_ptr<Command> MakeStoreGet();
std::unique_ptr<Command> MakeStoreVerify();
std::unique_ptr<Command> MakeStoreStats();
std::unique_ptr<Command> MakeStoreGc();
std::unique_ptr<Command> MakeStorePrune();
std::unique_ptr<Command> MakeStoreWatch();

// No output may replace what is in the store.
void ReadsStore(const std::string& folder, CommandFiles& files);
// Says that somebody else has to finish first.
std::function<void()> Waiting(const std::string& folder, Context& context);
// Adds a source under a name, and says what came of it.
nlohmann::ordered_json AddToStore(store::Store& store, const Source& source,
                                  const OpenOptions& options, const store::AddOptions& add,
                                  ThreadPool& pool, Context& context);
// "2026-11-22 20:14:05Z".
std::string TimeText(int64_t microseconds);
int64_t NowMicroseconds(const GlobalOptions& global);
nlohmann::ordered_json StateJson(const store::StateRow& row);
// {"state", "name"} of each: which states are meant, without what they are.
nlohmann::ordered_json StateNamesJson(const std::vector<store::StateRow>& rows);
// Names states that the index lacks though their records are whole, and says what lists them again.
void WarnUnlisted(const std::vector<store::StateRow>& rows, const std::string& folder,
                  Console& console);

}  // namespace kv
