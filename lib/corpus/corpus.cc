// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/corpus/corpus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/file.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/json.h"
#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"

namespace kv::corpus {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::string_view kManifestSchema = "kvtool.corpus/1";

Error InLine(size_t number, const std::string& what) {
  return Error(Finding::kBadField, "line {}: {}", number, what);
}

Member MemberIn(const Json& line, size_t number) {
  Member member{TextIn(line, "name", number), NumberIn(line, "bytes", number),
                TextIn(line, "xxh3", number)};
  if (!IsSafeRelativePath(member.name)) {
    throw InLine(number, fmt::format("'{}' points outside the folder", Escaped(member.name, 80)));
  }
  return member;
}

const Json& ObjectIn(const Json& object, const char* key, size_t number) {
  if (!object.contains(key) || !object[key].is_object()) {
    throw InLine(number, fmt::format("'{}' is not an object", key));
  }
  return object[key];
}

}  // namespace

Json ParseLine(std::string_view line, size_t number) {
  Json json;
  try {
    json = ReadOrderedJson(line, {.bytes = UINT64_MAX});
  } catch (Error& error) {
    throw error.In(fmt::format("line {}", number));
  }
  if (!json.is_object()) throw InLine(number, "is not a JSON object");
  return json;
}

std::string TextIn(const Json& object, const char* key, size_t number) {
  if (!object.contains(key) || !object[key].is_string()) {
    throw InLine(number, fmt::format("'{}' is not a string", key));
  }
  return object[key];
}

uint64_t NumberIn(const Json& object, const char* key, size_t number, uint64_t most) {
  if (!object.contains(key) || !object[key].is_number_unsigned() ||
      object[key].get<uint64_t>() > most) {
    throw InLine(number, fmt::format("'{}' is not a whole number", key));
  }
  return object[key];
}

std::string CorpusHash(std::span<const Member> members) {
  std::vector<const Member*> sorted;
  for (const Member& member : members) sorted.push_back(&member);
  std::sort(sorted.begin(), sorted.end(),
            [](const Member* a, const Member* b) { return a->name < b->name; });
  StreamingHash hash;
  for (const Member* member : sorted) {
    // NUL separates the fields, because no name contains it.
    const std::string text =
        fmt::format("{}{}{}{}{}\n", member->name, '\0', member->bytes, '\0', member->xxh3);
    hash.Update(AsBytes(text));
  }
  return fmt::format("{:016x}", hash.Digest());
}

Shard ParseShard(std::string_view text, std::string_view from) {
  Shard shard;
  const size_t slash = text.find('/');
  const auto parse = [](std::string_view digits, uint32_t& value) {
    const auto number = ParseNumber<uint32_t>(digits);
    value = number.value_or(0);
    return number.has_value();
  };
  if (slash == text.npos || !parse(text.substr(0, slash), shard.index) ||
      !parse(text.substr(slash + 1), shard.count) || shard.count == 0) {
    throw Error(Finding::kUsage, "{} '{}': expected INDEX/COUNT, such as 0/16", from, text);
  }
  if (shard.index >= shard.count) {
    throw Error(Finding::kUsage, "{}: there is no shard {} of {}; they count from 0", from,
                shard.index, shard.count);
  }
  return shard;
}

std::vector<size_t> ListMembers(const Shard& shard, bool by_bytes,
                                std::span<const Member> members) {
  std::vector<size_t> chosen;
  if (!by_bytes) {
    for (size_t i = 0; i < members.size(); ++i) {
      if (Hash64(AsBytes(members[i].name)) % shard.count == shard.index) chosen.push_back(i);
    }
    return chosen;
  }
  // Assigns the largest members first, each to the shard with the least bytes.
  std::vector<size_t> order(members.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (members[a].bytes != members[b].bytes) return members[a].bytes > members[b].bytes;
    return members[a].name < members[b].name;
  });
  std::set<std::pair<uint64_t, uint32_t>> loads;
  for (uint32_t i = 0; i < shard.count; ++i) loads.emplace(0, i);
  for (const size_t member : order) {
    auto [load, index] = *loads.begin();
    loads.erase(loads.begin());
    // An empty file takes time, too.
    loads.emplace(load + members[member].bytes + 1, index);
    if (index == shard.index) chosen.push_back(member);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

std::string ManifestText(const Manifest& manifest) {
  uint64_t bytes = 0;
  for (const Member& member : manifest.members) bytes += member.bytes;
  const Json head = {{"schema", kManifestSchema},
                     {"folder", manifest.folder},
                     {"entries", manifest.members.size()},
                     {"bytes", bytes},
                     {"xxh3", CorpusHash(manifest.members)}};
  std::string text = head.dump() + "\n";
  for (const Json& line : manifest.lines) text += line.dump() + "\n";
  return EscapeControls(std::move(text));
}

Manifest ReadManifest(std::string_view text) {
  Manifest manifest;
  std::set<std::string> names;
  Json head;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    Json line = ParseLine(text.substr(begin, end - begin), number + 1);
    begin = end + 1;
    if (number == 0) {
      if (!line.contains("schema") || line["schema"] != kManifestSchema) {
        throw InLine(1, fmt::format("is not {}", kManifestSchema));
      }
      head = std::move(line);
      continue;
    }
    manifest.members.push_back(MemberIn(line, number + 1));
    manifest.lines.push_back(std::move(line));
    if (!names.insert(manifest.members.back().name).second) {
      throw Error(Finding::kDuplicateName, "line {}: '{}' is listed twice", number + 1,
                  Escaped(manifest.members.back().name, 80));
    }
  }
  if (number == 0) throw Error(Finding::kTruncated, "is empty");
  manifest.folder = TextIn(head, "folder", 1);
  const uint64_t entries = NumberIn(head, "entries", 1);
  if (entries != manifest.members.size()) {
    throw Error(Finding::kTruncated, "the first line says {} entries, but {} follow", entries,
                manifest.members.size());
  }
  if (TextIn(head, "xxh3", 1) != CorpusHash(manifest.members)) {
    throw Error(Finding::kChecksum, "the entries do not match the hash in the first line");
  }
  return manifest;
}

nlohmann::ordered_json ResultsHead::ToJson(const nlohmann::ordered_json& tool) const {
  return {{"schema", kResultsSchema},
          {"tool", tool},
          {"command", command},
          {"parameters", parameters},
          {"parameters_xxh3", parameters_xxh3},
          {"corpus", {{"xxh3", corpus_xxh3}, {"entries", corpus_entries}, {"bytes", corpus_bytes}}},
          {"shard", {{"index", shard.index}, {"count", shard.count}, {"balance", balance}}},
          {"entries", entries}};
}

ResultsHead ResultsHead::Read(const nlohmann::ordered_json& line) {
  if (!line.is_object() || !line.contains("schema") || line["schema"] != kResultsSchema) {
    throw Error(Finding::kBadMagic, "line 1: is not {}", kResultsSchema);
  }
  ResultsHead head;
  const Json& corpus = ObjectIn(line, "corpus", 1);
  const Json& shard = ObjectIn(line, "shard", 1);
  head.version = TextIn(ObjectIn(line, "tool", 1), "version", 1);
  head.command = TextIn(line, "command", 1);
  if (!line.contains("parameters") || !line["parameters"].is_array()) {
    throw Error(Finding::kBadField, "line 1: 'parameters' is not a list");
  }
  for (const Json& parameter : line["parameters"]) {
    if (!parameter.is_string())
      throw Error(Finding::kBadField, "line 1: a parameter is not a string");
    head.parameters.push_back(parameter);
  }
  head.parameters_xxh3 = TextIn(line, "parameters_xxh3", 1);
  head.corpus_xxh3 = TextIn(corpus, "xxh3", 1);
  head.corpus_entries = NumberIn(corpus, "entries", 1);
  head.corpus_bytes = NumberIn(corpus, "bytes", 1);
  head.shard.index = static_cast<uint32_t>(NumberIn(shard, "index", 1, UINT32_MAX));
  head.shard.count = static_cast<uint32_t>(NumberIn(shard, "count", 1, UINT32_MAX));
  if (head.shard.index >= head.shard.count) {
    throw Error(Finding::kBadField, "line 1: there is no shard {} of {}", head.shard.index,
                head.shard.count);
  }
  head.balance = TextIn(shard, "balance", 1);
  head.entries = NumberIn(line, "entries", 1);
  return head;
}

std::string ResultsHead::DifferenceTo(const ResultsHead& other) const {
  if (command != other.command) {
    return fmt::format("of {} rather than {}", command, other.command);
  }
  if (parameters_xxh3 != other.parameters_xxh3) {
    return fmt::format("with other parameters: '{}' rather than '{}'", fmt::join(parameters, " "),
                       fmt::join(other.parameters, " "));
  }
  if (version != other.version) {
    return fmt::format("by version {} rather than {}", version, other.version);
  }
  if (corpus_xxh3 != other.corpus_xxh3) {
    return fmt::format("of corpus {} with {} entries rather than {} with {}", corpus_xxh3,
                       corpus_entries, other.corpus_xxh3, other.corpus_entries);
  }
  if (shard.count != other.shard.count || balance != other.balance) {
    return fmt::format("of {} shards by {} rather than {} by {}", shard.count, balance,
                       other.shard.count, other.balance);
  }
  return {};
}

std::string ResultKey(const ResultsHead& head, const Member& member) {
  const std::string text =
      fmt::format("{1}{0}{2}{0}{3}{0}{4}{0}{5}", '\0', member.name, member.xxh3, head.command,
                  head.parameters_xxh3, head.version);
  return fmt::format("{:016x}", Hash64(AsBytes(text)));
}

std::optional<ResultsHead> ReadResults(
    std::string_view text,
    const std::function<void(const nlohmann::ordered_json& line, size_t number)>& call,
    const std::function<void(size_t)>& passed) {
  std::optional<ResultsHead> head;
  size_t number = 0;
  for (size_t begin = 0;;) {
    const size_t end = text.find('\n', begin);
    if (end == text.npos) return head;
    const Json line = ParseLine(text.substr(begin, end - begin), ++number);
    begin = end + 1;
    if (number == 1) {
      head = ResultsHead::Read(line);
    } else {
      call(line, number);
    }
    if (passed) passed(begin);
  }
}

}  // namespace kv::corpus
