// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
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
const nlohmann::ordered_json& ObjectIn(const nlohmann::ordered_json& object, const char* key,
                                       size_t number);

// One input of a corpus, with the same name on every machine.
struct Member {
  std::string name;
  uint64_t bytes = 0;
  std::string xxh3;  // of its content; empty if it has not been read
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
std::vector<size_t> MembersOf(const Shard& shard, bool by_bytes, std::span<const Member> members);

// A file of JSON lines (kvtool.corpus/1): the members of a corpus and where they are.
struct Manifest {
  std::string folder;  // to which names are relative; itself relative to the manifest
  std::vector<Member> members;
  std::vector<nlohmann::ordered_json> lines;  // one per member
};
std::string ManifestText(const Manifest& manifest);
// Throws kInvalidData errors that name the line.
Manifest ReadManifest(std::string_view text);

}  // namespace kv::corpus
