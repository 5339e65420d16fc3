// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Records a run: decodes the prompt and what follows, keeps queries, logits and the state, and
// describes the run in run.json.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "apps/capture-llama/failure.h"
#include "apps/capture-llama/json.h"
#include "apps/capture-llama/logits.h"
#include "apps/capture-llama/options.h"
#include "apps/capture-llama/perturbations.h"
#include "apps/capture-llama/recorder.h"
#include "apps/capture-llama/run_folder.h"
#include "apps/capture-llama/tensor_file.h"
#include "apps/capture-llama/versions.h"

// xxHash is used as a header, so there is no library to link; without the header there is no hash.
#if __has_include(<xxhash.h>)
#define XXH_INLINE_ALL
#include <xxhash.h>
#define KVTOOL_HAS_XXHASH 1
#endif

namespace kv::capture {
namespace {

// Facts by which a run describes itself in run.json and in the trace.
struct RunFacts {
  std::string model_file, build;
  bool hash = true;
  int32_t tokens = 0, prompt_tokens = 0;
  double nll = 0;  // NaN if no token was decoded
  bool has_logits = false, has_sensitivity = false;
};

// Returns the XXH3 of a file, 64 bits, in hexadecimal; "" if the program was built without xxHash.
#ifdef KVTOOL_HAS_XXHASH
std::string HashFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Failure(kIo, path + ": " + std::strerror(errno));
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  std::vector<char> buffer(size_t{1} << 20);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) ||
         file.gcount() > 0) {
    XXH3_64bits_update(&state, buffer.data(), static_cast<size_t>(file.gcount()));
  }
  if (file.bad()) throw Failure(kIo, path + ": cannot be read");
  constexpr char kDigits[] = "0123456789abcdef";
  const uint64_t hash = XXH3_64bits_digest(&state);
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[hash >> shift & 15];
  return text;
}
#else
std::string HashFile(const std::string&) { return ""; }
#endif

// Bits of a rotary node's mode.
constexpr int32_t kHalves = 2, kSections = 8;

const char* RotaryStyle(const RotaryNode& node) {
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
  json.Add("style", RotaryStyle(node))
      .Add("base", double{node.base})
      .Add("dims", int64_t{node.dims});
  const bool plain = node.frequency_scale == 1 && node.extrapolation == 0 && node.attention == 1 &&
                     rule.rotary_factors.empty();
  return plain ? json.Raw("scaling", "null") : json.Add("scaling", scaling);
}

std::string RotaryText(const LayerRule& rule) {
  if (!rule.rotary) return "none";
  const RotaryNode& node = *rule.rotary;
  std::string text = std::string(RotaryStyle(node)) + ", base " + Shortest(double{node.base}) +
                     ", " + std::to_string(node.dims) + " dims";
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

// Returns the rule of the first layer, which applies to all layers that do not differ.
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

std::string RunJson(const Model& model, const Recorder& recorder, const RunFacts& facts) {
  const Geometry sizes = recorder.geometry();
  const std::string hash = facts.hash ? HashFile(facts.model_file) : "";
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
    // Layers with and without a window are listed one by one.
    if (rule.window != 0) out.emplace_back("window" + suffix, std::to_string(rule.window));
  }
  return out;
}

constexpr uint64_t kMostText = uint64_t{1} << 30;

// The tokens of a run, and how many of them are given.
struct Script {
  std::vector<llama_token> tokens;  // tokens of the prompt, and those after it if they are given
  int32_t prompt = 0, total = 0;
  bool given = false;
};

Script ReadScript(const Options& options, const Model& model) {
  Script script;
  script.tokens = model.Tokenize(ReadFile(options.text_file, kMostText));
  const auto length = static_cast<int32_t>(script.tokens.size());
  if (length == 0) throw Failure(kInvalid, options.text_file + ": holds no tokens");
  script.given = options.prompt_tokens > 0;
  script.prompt = script.given ? options.prompt_tokens : length;
  if (script.prompt > length || (script.given && options.decoded > length - script.prompt)) {
    throw Failure(kInvalid, options.text_file + ": has only " + std::to_string(length) + " tokens");
  }
  const int32_t rest = script.given ? length - script.prompt : 256;
  const int32_t decoded = options.decoded >= 0 ? options.decoded : rest;
  if (decoded > std::numeric_limits<int32_t>::max() / 2 - script.prompt) {
    throw Failure(kUsage, "-n: too many tokens");
  }
  script.total = script.prompt + decoded;
  if (script.given) script.tokens.resize(static_cast<size_t>(script.total));
  const int32_t context = llama_model_n_ctx_train(model.get());
  if (script.total > context) {
    std::fprintf(stderr, "warning: the model's training context is %d tokens; this run has %d\n",
                 context, script.total);
  }
  return script;
}

// The part of the distributions that is kept: a few numbers per row, whatever the vocabulary.
struct LogitRows {
  std::vector<int32_t> positions, top_ids;
  std::vector<float> top_logprobs, nll;

  void Write(const std::string& path, size_t k) const {
    const auto bytes = [](const auto& list) { return std::as_bytes(std::span(list)); };
    const uint64_t rows = positions.size();
    WriteTensors(path,
                 {{"positions", "I32", {rows}, bytes(positions)},
                  {"top_ids", "I32", {rows, k}, bytes(top_ids)},
                  {"top_logprobs", "F32", {rows, k}, bytes(top_logprobs)},
                  {"nll", "F32", {rows}, bytes(nll)}},
                 {});
  }
  double mean_nll() const {  // mean over all rows but the last, which no token follows
    double sum = 0;
    for (size_t i = 0; i + 1 < nll.size(); ++i) sum += double{nll[i]};
    return sum / double(nll.size() - 1);
  }
};

class Run {
 public:
  Run(const Options& options, const Model& model, Script script)
      : options_(options),
        model_(model),
        script_(std::move(script)),
        top_(static_cast<size_t>(std::min(options.top, model.words()))),
        context_(model, ChooseContext(options, script_)),
        folder_(options.output, options.force),
        recorder_(folder_, {options.half, options.probabilities, script_.total}) {}

  void Record() {
    context_.Observe(&recorder_);
    const std::span<const llama_token> prompt(script_.tokens.data(), size_t(script_.prompt));
    for (int32_t at = 0; at < script_.prompt; at += options_.ubatch) {
      Progress(at);
      const auto count = static_cast<size_t>(std::min(options_.ubatch, script_.prompt - at));
      Decode(prompt.subspan(static_cast<size_t>(at), count), at);
    }
    context_.SaveState(folder_.At("prefill.bin"), prompt);
    for (int32_t at = script_.prompt; at < script_.total && !ended_; ++at) {
      Progress(at);
      Decode({&script_.tokens[static_cast<size_t>(at)], 1}, at);
    }
    Progress(tokens());
    context_.Observe(nullptr);
    if (!rows_.nll.empty()) rows_.nll.back() = std::numeric_limits<float>::quiet_NaN();
    context_.SaveState(folder_.At("snapshot.bin"), script_.tokens);
    recorder_.Complete();
  }

  void Finish() {
    RunFacts facts{options_.model, BuildName(),
                   options_.hash,  tokens(),
                   script_.prompt, rows_.mean_nll(),
                   true,           options_.noise > 0 && tokens() > script_.prompt};
    const uint64_t count = script_.tokens.size();
    WriteTensors(folder_.At("trace/trace.safetensors"),
                 {{"tokens", "I32", {count}, std::as_bytes(std::span(script_.tokens))}},
                 TraceMetadata(model_, recorder_, facts));
    rows_.Write(folder_.At("logits.safetensors"), top_);
    if (facts.has_sensitivity) {
      WriteFile(folder_.At("sensitivity.json"),
                SensitivityJson(model_, context_, script_.tokens, script_.prompt,
                                recorder_.geometry().layers, options_.noise));
    }
    folder_.Commit(RunJson(model_, recorder_, facts));
    const Geometry sizes = recorder_.geometry();
    std::printf(
        "%s: %d tokens of %s, %d of them the prompt; %d layers, %d query heads, %d kv heads of "
        "%d; flash attention %s; ",
        options_.output.c_str(), tokens(), model_.name().c_str(), script_.prompt, sizes.layers,
        sizes.query_heads, sizes.kv_heads, sizes.head_dim, recorder_.flash() ? "on" : "off");
    if (tokens() > script_.prompt) std::printf("nll %.4f; ", facts.nll);
    std::printf("llama.cpp %s\n", facts.build.c_str());
  }

 private:
  static ContextOptions ChooseContext(const Options& options, const Script& script) {
    if (options.context != 0 && options.context < script.total) {
      throw Failure(kUsage, "-c " + std::to_string(options.context) + ": the run has " +
                                std::to_string(script.total) + " tokens");
    }
    ContextOptions settings;
    settings.tokens = std::max(options.context, script.total);
    settings.ubatch = options.ubatch;
    settings.threads = options.threads;
    settings.flash = options.probabilities ? std::optional(false) : options.flash;
    return settings;
  }

  int32_t tokens() const { return ended_ ? ended_at_ : script_.total; }

  std::string BuildName() const {
    if (!options_.build.empty()) return options_.build;
    const std::string own = versions::Build();
    return own.empty() ? "unknown" : own;
  }

  void Decode(std::span<const llama_token> tokens, int32_t begin) {
    context_.Decode(tokens, begin, script_.prompt - 1,
                    [this](int32_t position, std::span<float> logits) { Keep(position, logits); });
  }

  // Keeps the likeliest next tokens of a row, and continues with the first of them if none is
  // given.
  void Keep(int32_t position, std::span<float> logits) {
    ToLogProbabilities(logits);
    const std::vector<int32_t> ids = Largest(logits, top_);
    if (!script_.given && position + 1 < script_.total) {
      // The arrays of probabilities have a place for every token of the run, so the run must not
      // end early.
      const bool may_end = !options_.ignore_end && !options_.probabilities;
      if (may_end && llama_vocab_is_eog(model_.vocabulary(), ids[0])) {
        ended_ = true;
        ended_at_ = position + 1;
      } else {
        script_.tokens.push_back(ids[0]);
      }
    }
    const auto next = static_cast<size_t>(position) + 1;
    rows_.positions.push_back(position);
    rows_.nll.push_back(next < script_.tokens.size() ? -logits[size_t(script_.tokens[next])] : 0);
    for (const int32_t id : ids) {
      rows_.top_ids.push_back(id);
      rows_.top_logprobs.push_back(logits[static_cast<size_t>(id)]);
    }
  }

  void Progress(int32_t at) const {
    static const bool shown = isatty(STDERR_FILENO) != 0;
    if (shown)
      std::fprintf(stderr, "\r%d of %d tokens%s", at, script_.total, at == tokens() ? "\n" : "");
  }

  const Options& options_;
  const Model& model_;
  Script script_;
  size_t top_;
  bool ended_ = false;
  int32_t ended_at_ = 0;
  LogitRows rows_;
  Context context_;
  RunFolder folder_;
  Recorder recorder_;
};

}  // namespace

void Capture(const Options& options) {
  RunFolder::RequireFree(options.output, options.force);
  const Model model(options.model, options.backends);
  Run run(options, model, ReadScript(options, model));
  run.Record();
  run.Finish();
}

}  // namespace kv::capture
