// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/corpus/corpus.h"

namespace kv::corpus {

constexpr std::string_view kResultsSchema = "kvtool.results/1";

// The first line of a file of results (kvtool.results/1): what the following lines belong to.
struct ResultsHead {
  std::string version;  // of the tool
  std::string command;
  std::vector<std::string> parameters;  // as given
  std::string parameters_xxh3;          // also of the files that they name
  std::string corpus_xxh3;
  uint64_t corpus_entries = 0, corpus_bytes = 0;
  Shard shard;
  std::string balance = "hash";  // or "bytes"
  uint64_t entries = 0;          // of this shard

  nlohmann::ordered_json ToJson(const nlohmann::ordered_json& tool) const;
  // Throws kInvalidData errors.
  static ResultsHead Read(const nlohmann::ordered_json& line);
  // Returns the differences in words; empty if both belong to the same run, apart from the shard.
  std::string DifferenceTo(const ResultsHead& other) const;
};

// Returns the key of a result: two results with equal input name and content, command, parameters
// and version are interchangeable.
std::string ResultKey(const ResultsHead& head, const Member& member);

// Calls `call` with each whole line after the first, and its number. Anything after the last
// newline was cut off by a kill and is ignored. Returns nullopt if even the first line is
// incomplete. `passed` is called with the number of bytes processed.
std::optional<ResultsHead> ReadResults(
    std::string_view text,
    const std::function<void(const nlohmann::ordered_json& line, size_t number)>& call,
    const std::function<void(size_t)>& passed = {});

}  // namespace kv::corpus
