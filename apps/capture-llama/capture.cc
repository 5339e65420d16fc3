// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "apps/capture-llama/commands.h"
#include "apps/capture-llama/describe.h"
#include "apps/capture-llama/failure.h"
#include "apps/capture-llama/logits.h"
#include "apps/capture-llama/recorder.h"
#include "apps/capture-llama/run_folder.h"
#include "apps/capture-llama/versions.h"

namespace kv::capture {
namespace {

constexpr uint64_t kMostText = uint64_t{1} << 30;

// The tokens of a run, and how far they are given.
struct Script {
  std::vector<llama_token> tokens;  // of the prompt, and those that follow it if they are given
  int32_t prompt = 0, total = 0;
  bool given = false;
};

Script ScriptOf(const Options& options, const Model& model) {
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
    std::fprintf(stderr, "warning: the model was trained for %d tokens, and this run has %d\n",
                 context, script.total);
  }
  return script;
}

// What is kept of the distributions: a few rows of numbers, whatever the vocabulary.
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
  double mean_nll() const {  // of all rows but the last, which nothing follows
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
        context_(model, SettingsOf(options, script_)),
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
      const std::string json = SensitivityJson(model_, context_, script_.tokens, script_.prompt,
                                               recorder_.geometry().layers, options_.noise);
      OutputFile file(folder_.At("sensitivity.json"));
      file.WriteAt(0, std::as_bytes(std::span(json.data(), json.size())));
      file.Close();
    }
    const std::string json = RunJson(model_, recorder_, facts);
    folder_.Commit(json);
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
  static ContextOptions SettingsOf(const Options& options, const Script& script) {
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

  // Keeps the likeliest of a row's next tokens, and goes on with the first of them where nothing is
  // given.
  void Keep(int32_t position, std::span<float> logits) {
    ToLogProbabilities(logits);
    const std::vector<int32_t> ids = Largest(logits, top_);
    if (!script_.given && position + 1 < script_.total) {
      // Probabilities have a place for every token of the run, so it must have them all.
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
  Run run(options, model, ScriptOf(options, model));
  run.Record();
  run.Finish();
}

}  // namespace kv::capture
