// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/tensors/name_patterns.h"

#include <algorithm>

namespace kv {
namespace {

using Part = NameMatch::Part;

constexpr size_t kLongestName = 1000;
constexpr size_t kMostLayerDigits = 6;
constexpr size_t kMostShapes = 4096;  // kept; names of more kinds are matched one by one

constexpr NamePattern kPatterns[] = {
    {"{x}_cache.{i}", "transformers DynamicCache with key_cache and value_cache (4.4x)"},
    {"layers.{i}.{x}", "transformers DynamicCache with layers (4.57)"},
    {"layer.{i}.{x}", "scripts"},
    {"layer_{i}_{x}", "scripts"},
    {"layer_{i}.{x}", "scripts"},
    {"layer{i}.{x}", "scripts"},
    {"layer{i}_{x}", "scripts"},
    {"{x}_{i}", "kvtool, scripts"},
    {"{x}.{i}", "scripts"},
    {"{x}{i}", "scripts"},
    {"past_key_values.{i}.{x}", "ONNX inputs, scripts"},
    {"past_key_values.{i}.{01}", "a legacy cache in a dict"},
    {"present.{i}.{x}", "ONNX outputs"},
    {"model.layers.{i}.self_attn.{x}", "scripts"},
    {"{i}.{01}", "transformers legacy cache, CacheBlend's old_kvs: pairs (K, V)"},
    {"*-l{i}-{x}", "numpy sets of traces"},
    {"{x}", "one layer, or all in one array with --layout"},
    {"{x}_cache", "one layer, or all in one array with --layout"},
    {"{x}_cache_{i}", "transformers StaticCache buffers"},
    {"{i}.{x}", "a list of dicts"},
    {"model.layers.{i}.*.kv_cache", "vLLM example and shared-storage connectors, a prompt's folder",
     Joined::kByShape, "vLLM"},
    {"kv_cache", "vLLM example and shared-storage connectors, one layer", Joined::kByShape, "vLLM"},
    {"kvcache", "LMCache GDS backend", Joined::kByNumber, "LMCache"},
    {"kv_chunk", "LMCache 2024 local disk", Joined::kByNumber, "LMCache"},
};

char Folded(char c) {
  if (c == '/') return '.';
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool Take(std::string_view& text, std::string_view word) {
  if (text.size() < word.size() ||
      !std::equal(word.begin(), word.end(), text.begin(),
                  [](char a, char b) { return Folded(a) == Folded(b); })) {
    return false;
  }
  text.remove_prefix(word.size());
  return true;
}

bool TakeNumber(std::string_view& text, uint32_t& number) {
  size_t digits = 0;
  number = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') {
    if (digits == kMostLayerDigits) return false;
    number = number * 10 + static_cast<uint32_t>(text[digits++] - '0');
  }
  text.remove_prefix(digits);
  return digits != 0;
}

bool Matches(std::string_view pattern, std::string_view name, NameMatch& match);

bool MatchesWord(std::string_view pattern, std::string_view name, NameMatch& match,
                 std::initializer_list<std::string_view> words, Part part) {
  for (const std::string_view word : words) {
    std::string_view rest = name;
    NameMatch attempt = match;
    attempt.part = part;
    if (!Take(rest, word) || !Matches(pattern, rest, attempt)) continue;
    match = attempt;
    return true;
  }
  return false;
}

// Takes what stands before the next placeholder. Every pattern sees every name of a file, and most
// differ here.
bool TakeLiteral(std::string_view& pattern, std::string_view& name) {
  size_t literal = 0;
  while (literal < pattern.size() && pattern[literal] != '{' && pattern[literal] != '*') ++literal;
  if (!Take(name, pattern.substr(0, literal))) return false;
  pattern.remove_prefix(literal);
  return true;
}

// The depth of the recursion is the number of placeholders in the pattern.
bool Matches(std::string_view pattern, std::string_view name, NameMatch& match) {
  while (TakeLiteral(pattern, name) && !pattern.empty()) {
    if (Take(pattern, "{i}")) {
      if (!TakeNumber(name, match.layer)) return false;
    } else if (Take(pattern, "{x}")) {
      return MatchesWord(pattern, name, match, {"keys", "key", "k"}, Part::kKey) ||
             MatchesWord(pattern, name, match, {"values", "value", "v"}, Part::kValue);
    } else if (Take(pattern, "{01}")) {
      return MatchesWord(pattern, name, match, {"0"}, Part::kKey) ||
             MatchesWord(pattern, name, match, {"1"}, Part::kValue);
    } else if (pattern.front() == '*') {
      pattern.remove_prefix(1);
      const bool literal = !pattern.empty() && pattern.front() != '{';
      for (size_t skip = 0; skip <= name.size(); ++skip) {
        if (literal && (skip == name.size() || Folded(name[skip]) != Folded(pattern.front())))
          continue;
        NameMatch attempt = match;
        if (!Matches(pattern, name.substr(skip), attempt)) continue;
        match = attempt;
        return true;
      }
      return false;
    } else if (!Take(name, pattern.substr(0, 1))) {  // a brace that begins no placeholder
      return false;
    } else {
      pattern.remove_prefix(1);
    }
  }
  return pattern.empty() && name.empty();
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The name with each number replaced by its kind: the patterns take any of up to six digits for a
// layer, tell 0 and 1 for K and V, and have no digits of their own. No other digit stands in a
// shape.
void ShapeOf(std::string_view name, std::string& shape) {
  shape.clear();
  for (size_t i = 0; i < name.size();) {
    if (!IsDigit(name[i])) {
      shape += Folded(name[i++]);
      continue;
    }
    const size_t begin = i;
    while (i < name.size() && IsDigit(name[i])) ++i;
    const bool is_bit = i - begin == 1 && name[begin] <= '1';
    shape += is_bit ? name[begin] : i - begin <= kMostLayerDigits ? '2' : '7';
  }
}

// Most patterns differ from most names in the first letter.
bool MayBegin(std::string_view pattern, std::string_view name) {
  if (pattern.empty() || pattern.front() == '*') return true;
  if (name.empty()) return false;
  const char first = Folded(name.front());
  if (pattern.starts_with("{x}")) return first == 'k' || first == 'v';
  if (pattern.starts_with("{i}") || pattern.starts_with("{01}"))
    return first >= '0' && first <= '9';
  return pattern.front() == '{' || Folded(pattern.front()) == first;
}

}  // namespace

std::span<const NamePattern> NamePatterns() { return kPatterns; }

std::optional<NameMatch> MatchName(std::string_view pattern, std::string_view name) {
  if (name.size() > kLongestName) return std::nullopt;
  if (!MayBegin(pattern, name)) return std::nullopt;
  NameMatch match;
  if (!Matches(pattern, name, match)) return std::nullopt;
  return match;
}

std::string_view NameFit::PrefixOf(std::string_view name) const {
  size_t cut = name.size();
  for (size_t i = 0; i < parts_below; ++i) cut = name.find_last_of("./", cut - 1);
  return parts_below == 0 ? std::string_view() : name.substr(0, cut);
}

NameFit FitOf(std::string_view name) {
  static_assert(std::size(kPatterns) <= 32);
  constexpr size_t kMostParts = 5;
  NameFit fit;
  for (size_t i = 0; i < std::size(kPatterns); ++i)
    fit.patterns |= uint32_t{MatchName(kPatterns[i].text, name).has_value()} << i;
  size_t cut = name.size();
  for (uint32_t parts = 1; parts <= kMostParts && cut != 0; ++parts) {
    cut = name.find_last_of("./", cut - 1);
    if (cut == name.npos) break;
    for (const NamePattern& pattern : kPatterns) {
      const bool of_layers = pattern.text.find("{i}") != pattern.text.npos;
      if (of_layers && pattern.text.find('*') == pattern.text.npos &&
          MatchName(pattern.text, name.substr(cut + 1))) {
        fit.parts_below = parts;
      }
    }
  }
  return fit;
}

NameFit PatternMemo::Of(std::string_view name) {
  ++matched_;
  if (name.size() > kLongestName) return FitOf(name);
  ShapeOf(name, shape_);
  const auto known = fits_.find(shape_);
  if (known != fits_.end()) {
    --matched_;
    return known->second;
  }
  const NameFit fit = FitOf(name);
  if (fits_.size() < kMostShapes) fits_.emplace(shape_, fit);
  return fit;
}

}  // namespace kv
