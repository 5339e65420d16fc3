// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/capture-llama/describe.h"

#include <algorithm>
#include <filesystem>

#include "apps/capture-llama/options.h"

namespace kv::capture {
namespace {

// Bits of a node's mode.
constexpr int32_t kHalves = 2, kSections = 8;

const char* StyleOf(const RotaryNode& node) {
  if ((node.mode & kSections) != 0) return "sections";
  return (node.mode & kHalves) != 0 ? "half" : "neighbour";
}

JsonObject RotaryJson(const LayerRule& rule) {
  const RotaryNode& node = *rule.rotary;
  JsonObject scaling, json;
  scaling.Add("frequency_scale", double{node.frequency_scale});
  scaling.Add("extrapolation", double{node.extrapolation});
  scaling.Add("attention", double{node.attention});
  scaling.Add("beta_fast", double{node.beta_fast}).Add("beta_slow", double{node.beta_slow});
  scaling.Add("original_context", int64_t{node.original_context});
  if (!rule.rotary_factors.empty()) {
    std::string list;
    for (const float factor : rule.rotary_factors) {
      list += (list.empty() ? "" : ", ") + Shortest(double{factor});
    }
    scaling.Raw("factors", "[" + list + "]");
  }
  json.Add("style", StyleOf(node)).Add("base", double{node.base}).Add("dims", int64_t{node.dims});
  const bool plain = node.frequency_scale == 1 && node.extrapolation == 0 && node.attention == 1 &&
                     rule.rotary_factors.empty();
  return plain ? json.Raw("scaling", "null") : json.Add("scaling", scaling);
}

std::string RotaryText(const LayerRule& rule) {
  if (!rule.rotary) return "none";
  const RotaryNode& node = *rule.rotary;
  std::string text = std::string(StyleOf(node)) + ", base " + Shortest(double{node.base}) + ", " +
                     std::to_string(node.dims) + " dims";
  if (node.frequency_scale != 1) text += ", scaled by " + Shortest(double{node.frequency_scale});
  if (!rule.rotary_factors.empty()) text += ", with a factor for each frequency";
  return text;
}

void AddIf(JsonObject& json, const char* key, double value) {
  if (value != 0) {
    json.Add(key, value);
  } else {
    json.Raw(key, "null");
  }
}

// The value of the first layer, which all others have that do not differ.
const LayerRule& CommonRule(const Recorder& recorder) { return recorder.rules().begin()->second; }

JsonObject AttentionJson(const Recorder& recorder) {
  const LayerRule& common = CommonRule(recorder);
  JsonObject json;
  json.Add("scale", common.scale);
  AddIf(json, "softcap", common.softcap);
  int64_t window = 0;
  for (const auto& [layer, rule] : recorder.rules()) window = std::max(window, rule.window);
  AddIf(json, "window", static_cast<double>(window));
  return json.Add("flash", recorder.flash());
}

}  // namespace

std::string RunJson(const Model& model, const Recorder& recorder, const RunFacts& facts) {
  const Geometry sizes = recorder.geometry();
  const std::string hash = facts.hash ? HashOf(facts.model_file) : "";
  JsonObject tool, engine, of_model, geometry, files, run;
  tool.Add("name", "kvtool-capture-llama").Add("version", kVersion);
  engine.Add("name", "llama.cpp").Add("build", facts.build);
  of_model.Add("name", model.name())
      .Add("file", std::filesystem::absolute(facts.model_file).string());
  of_model.Add("bytes", static_cast<int64_t>(std::filesystem::file_size(facts.model_file)));
  of_model.Raw("xxh3", hash.empty() ? "null" : Quoted(hash))
      .Add("architecture", model.architecture());
  of_model.Add("context_length", int64_t{llama_model_n_ctx_train(model.get())});
  geometry.Add("layers", int64_t{sizes.layers}).Add("query_heads", int64_t{sizes.query_heads});
  geometry.Add("kv_heads", int64_t{sizes.kv_heads}).Add("head_dim", int64_t{sizes.head_dim});
  files.Add("snapshot", "snapshot.bin").Add("prefill", "prefill.bin").Add("trace", "trace");
  files.Raw("logits", facts.has_logits ? "\"logits.safetensors\"" : "null");
  files.Raw("sensitivity", facts.has_sensitivity ? "\"sensitivity.json\"" : "null");
  run.Add("schema", "kvtool.run/1").Add("tool", tool).Add("engine", engine).Add("model", of_model);
  run.Add("tokens", int64_t{facts.tokens}).Add("prompt_tokens", int64_t{facts.prompt_tokens});
  run.Add("geometry", geometry);
  const LayerRule& common = CommonRule(recorder);
  run.Raw("rope", common.rotary ? RotaryJson(common).Line() : "null");
  run.Add("attention", AttentionJson(recorder)).Add("nll", facts.nll).Add("files", files);
  return run.Document();
}

Metadata TraceMetadata(const Model& model, const Recorder& recorder, const RunFacts& facts) {
  const LayerRule& common = CommonRule(recorder);
  Metadata out = {{"kvtool.trace", "1"},
                  {"engine", "llama.cpp " + facts.build},
                  {"model", model.name()},
                  {"rope", RotaryText(common)},
                  {"prompt_tokens", std::to_string(facts.prompt_tokens)},
                  {"q_start", "0"},
                  {"kv_heads", std::to_string(recorder.geometry().kv_heads)},
                  {"scale", Shortest(common.scale)}};
  if (common.softcap != 0) out.emplace_back("softcap", Shortest(common.softcap));
  for (const auto& [layer, rule] : recorder.rules()) {
    const std::string suffix = "." + std::to_string(layer);
    if (rule.scale != common.scale) out.emplace_back("scale" + suffix, Shortest(rule.scale));
    if (rule.softcap != common.softcap)
      out.emplace_back("softcap" + suffix, Shortest(rule.softcap));
    // Layers with and without a window are told apart one by one.
    if (rule.window != 0) out.emplace_back("window" + suffix, std::to_string(rule.window));
  }
  return out;
}

}  // namespace kv::capture
