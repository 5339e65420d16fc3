// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/corpus/results.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/hash.h"

namespace kv::corpus {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

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
    throw Error(Finding::kBadMagic, "line 1: is no {}", kResultsSchema);
  }
  ResultsHead head;
  const Json& corpus = ObjectIn(line, "corpus", 1);
  const Json& shard = ObjectIn(line, "shard", 1);
  head.version = TextIn(ObjectIn(line, "tool", 1), "version", 1);
  head.command = TextIn(line, "command", 1);
  if (!line.contains("parameters") || !line["parameters"].is_array()) {
    throw Error(Finding::kBadField, "line 1: 'parameters' is no list");
  }
  for (const Json& parameter : line["parameters"]) {
    if (!parameter.is_string()) throw Error(Finding::kBadField, "line 1: a parameter is no text");
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
