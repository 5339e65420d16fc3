// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/trace/trace_metadata.h"

#include <fmt/format.h>

#include "formats/trace/trace.h"
#include "lib/core/base/error.h"
#include "lib/core/base/number.h"

namespace kv {
namespace {

Error BadValue(const std::string& key, const std::string& text, std::string_view expected) {
  return Error(Finding::kBadField, fmt::format("metadata '{}' is '{}', expected {}",
                                               Escaped(key, 40), Escaped(text, 40), expected));
}

// Values by name; an empty one counts as none.
class Values {
 public:
  explicit Values(const std::map<std::string, std::string>& values) : values_(values) {}

  const std::string* Find(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }
  std::string Text(const std::string& key) const {
    const std::string* text = Find(key);
    return text == nullptr ? std::string() : Escaped(*text);
  }
  std::optional<uint64_t> Count(const std::string& key) const {
    const std::string* text = Find(key);
    if (text == nullptr || text->empty()) return std::nullopt;
    const auto value = ParseNumber<uint64_t>(*text);
    if (!value || *value > kMostTracePositions) throw BadValue(key, *text, "a count up to 2^31");
    return value;
  }
  std::optional<double> Real(const std::string& key) const {
    const std::string* text = Find(key);
    if (text == nullptr || text->empty()) return std::nullopt;
    const auto value = ParseNumber<double>(*text);
    if (!value || !(*value >= 0) || *value > 1e30) throw BadValue(key, *text, "a number >= 0");
    return value;
  }

 private:
  const std::map<std::string, std::string>& values_;
};

// "scale.12", "softcap.12", "window.12"
std::map<uint32_t, LayerRule> ReadRules(const std::map<std::string, std::string>& metadata) {
  const Values values(metadata);
  std::map<uint32_t, LayerRule> rules;
  for (const auto& [key, text] : metadata) {
    const size_t dot = key.find('.');
    const std::string_view what = std::string_view(key).substr(0, dot);
    const bool is_rule = what == "scale" || what == "softcap" || what == "window";
    if (dot == std::string::npos || !is_rule) continue;
    const auto layer = TraceLayerNumber(std::string_view(key).substr(dot + 1));
    if (!layer) throw BadValue(key, text, fmt::format("the name {}.LAYER", what));
    LayerRule& rule = rules[*layer];
    if (what == "scale") rule.scale = values.Real(key);
    if (what == "softcap") rule.softcap = values.Real(key);
    if (what == "window") rule.window = values.Count(key);
  }
  return rules;
}

}  // namespace

std::optional<uint32_t> TraceLayerNumber(std::string_view text) {
  const auto layer = ParseNumber<uint32_t>(text);
  return layer && *layer < kMostTraceLayers ? layer : std::nullopt;
}

TraceMetadata ReadTraceMetadata(const TensorFile& file, AttentionTrace& trace) {
  const Values values(file.metadata);
  TraceMetadata metadata;
  const std::string* version = values.Find("kvtool.trace");
  if (version == nullptr && file.format == "safetensors") {
    throw Error(Finding::kMissingRecord, "metadata 'kvtool.trace' is missing: not a trace");
  }
  if (version != nullptr && *version != "1") {
    throw Error(Finding::kUnsupportedVersion,
                fmt::format("trace version '{}', this program reads 1", Escaped(*version, 40)));
  }
  trace.engine = values.Text("engine");
  trace.model = values.Text("model");
  trace.rope = values.Text("rope");
  trace.scale = values.Real("scale").value_or(0);
  trace.softcap = values.Real("softcap").value_or(0);
  trace.window = values.Count("window").value_or(0);
  trace.q_start = values.Count("q_start").value_or(0);
  trace.prompt_tokens = values.Count("prompt_tokens");
  trace.kv_heads = static_cast<uint32_t>(values.Count("kv_heads").value_or(0));
  metadata.is_marked = version != nullptr;
  metadata.g_start = values.Count("g_start");
  metadata.rules = ReadRules(file.metadata);
  return metadata;
}

}  // namespace kv
