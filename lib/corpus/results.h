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

// The first line of a file of results (kvtool.results/1): what the lines below it are of.
struct ResultsHead {
  std::string version;  // of the tool
  std::string command;
  std::vector<std::string> parameters;  // as they were given
  std::string parameters_xxh3;          // and of the files that they name
  std::string corpus_xxh3;
  uint64_t corpus_entries = 0, corpus_bytes = 0;
  Shard shard;
  std::string balance = "hash";  // or "bytes"
  uint64_t entries = 0;          // of this shard

  nlohmann::ordered_json ToJson(const nlohmann::ordered_json& tool) const;
  // Throws kInvalidData errors.
  static ResultsHead Read(const nlohmann::ordered_json& line);
  // What differs, in words; empty if both are of the same run but for the shard.
  std::string DifferenceTo(const ResultsHead& other) const;
};

// What makes a result the same: the input's name and content, the command and its parameters, and
// the version of the tool.
std::string ResultKey(const ResultsHead& head, const Member& member);

// Calls with each whole line behind the first and its number. What follows the last newline was
// torn by a kill and is left out. Nothing if not even the first line is whole. `passed` is called
// with the number of bytes that are done.
std::optional<ResultsHead> ReadResults(
    std::string_view text,
    const std::function<void(const nlohmann::ordered_json& line, size_t number)>& call,
    const std::function<void(size_t)>& passed = {});

}  // namespace kv::corpus
