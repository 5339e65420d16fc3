// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/lmcache/key_name.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/words.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/number.h"

namespace kv::lmcache {
namespace {

using std::string_view;

bool IsHash(string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  });
}

void Replace(std::string& text, string_view from, string_view to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// Files write "/" as "-SEP-", raw blocks as "%2F".
std::string ModelOf(string_view word) {
  std::string model(word);
  Replace(model, "-SEP-", "/");
  Replace(model, "%2F", "/");
  return Escaped(model, 120);
}

// Four bytes: ranks of all machines and this one's, then the same within a machine.
std::string RankText(uint32_t rank) {
  std::string text = fmt::format("{} of {}", rank >> 16 & 0xFF, rank >> 24);
  const uint32_t local = rank & 0xFF, locals = rank >> 8 & 0xFF;
  return locals == 0 ? text : text + fmt::format(", on its machine {} of {}", local, locals);
}

std::optional<KeyName> ParseMultiprocess(const std::vector<string_view>& words) {
  if ((words.size() != 4 && words.size() != 5) || !words[1].starts_with("0x") ||
      words[1].size() != 10 || !IsHash(words[3])) {
    return std::nullopt;
  }
  const auto rank = ParseNumber<uint32_t>(words[1].substr(2), 16);
  const auto group = ParseNumber<uint32_t>(words[2], 16);
  if (!rank || !group) return std::nullopt;
  KeyName name;
  name.model = ModelOf(words[0]);
  name.hash = words[3];
  name.multiprocess = true;
  name.facts.emplace_back("rank", RankText(*rank));
  name.facts.emplace_back("object group", std::to_string(*group));
  if (words.size() == 5) name.facts.emplace_back("salt", Escaped(words[4], 120));
  return name;
}

}  // namespace

std::optional<KeyName> ParseKeyName(string_view key) {
  const std::vector<string_view> words = Split(key, '@');
  if (auto name = ParseMultiprocess(words)) return name;
  if (words.size() < 5 || !IsHash(words[3])) return std::nullopt;
  const auto world = ParseNumber<uint32_t>(words[1]), worker = ParseNumber<uint32_t>(words[2]);
  if (!world || !worker) return std::nullopt;
  KeyName name;
  name.model = ModelOf(words[0]);
  name.hash = words[3];
  name.dtype = ParseDType(words[4]);
  if (*world > 1) name.facts.emplace_back("rank", fmt::format("{} of {}", *worker, *world));
  for (size_t i = 5; i < words.size(); ++i) {
    const auto layer = i == 5 ? ParseNumber<uint32_t>(words[i]) : std::nullopt;
    if (layer && *layer <= UINT16_MAX) {
      name.layer = layer;
    } else {
      name.facts.emplace_back("tag", Escaped(words[i], 120));
    }
  }
  return name;
}

std::optional<KeyName> ParseKeyOfFile(string_view file) {
  file = LastPart(file);
  return ParseKeyName(file.substr(0, file.rfind('.')));
}

}  // namespace kv::lmcache
