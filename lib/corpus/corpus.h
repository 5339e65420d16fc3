// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kv::corpus {

// Lines of JSON from possibly foreign sources.

// Parses a line that must be a JSON object. Throws kBadField if it is not, and kLimit if it nests
// so deep that copying it would overflow the stack, or if an object has so many keys that finding
// them would take quadratic time.
nlohmann::ordered_json ParseLine(std::string_view line, size_t number);

// Return the value of a key. Throw kBadField.
std::string TextIn(const nlohmann::ordered_json& object, const char* key, size_t number);
uint64_t NumberIn(const nlohmann::ordered_json& object, const char* key, size_t number,
                  uint64_t most = UINT64_MAX);

// One input of a corpus, with the same name on every machine.
struct Member {
  std::string name;
  uint64_t bytes = 0;
  std::string xxh3;  // hash of its content; empty if it has not been read
};

// Identifies a corpus, whatever the order of its members.
std::string CorpusHash(std::span<const Member> members);

// Part `index` of `count`.
struct Shard {
  uint32_t index = 0, count = 1;
  bool operator==(const Shard&) const = default;
};

// Parses "2/16", counted from 0. Throws kUsage, naming the origin `from` of the text.
Shard ParseShard(std::string_view text, std::string_view from);

// Returns the members of a shard, in their order. They are assigned by a hash of their names, so
// that a new member moves no other, or, `by_bytes`, so that all shards have about as much to read.
// Every member is in exactly one shard, whatever the order.
std::vector<size_t> ListMembers(const Shard& shard, bool by_bytes, std::span<const Member> members);

// A file of JSON lines (kvtool.corpus/1): the members of a corpus and where they are.
struct Manifest {
  std::string folder;  // folder of the names, relative to the manifest
  std::vector<Member> members;
  std::vector<nlohmann::ordered_json> lines;  // one per member
};
std::string ManifestText(const Manifest& manifest);
// Throws kInvalidData errors that name the line.
Manifest ReadManifest(std::string_view text);

constexpr std::string_view kResultsSchema = "kvtool.results/1";

// First line of a file of results (kvtool.results/1): the run and the shard of the other lines.
struct ResultsHead {
  std::string version;  // version of the tool
  std::string command;
  std::vector<std::string> parameters;  // parameters as given
  std::string parameters_xxh3;          // hashes also the contents of files that parameters name
  std::string corpus_xxh3;
  uint64_t corpus_entries = 0, corpus_bytes = 0;
  Shard shard;
  std::string balance = "hash";  // or "bytes"
  uint64_t entries = 0;          // entries of this shard

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
