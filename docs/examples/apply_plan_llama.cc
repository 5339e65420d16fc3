// SPDX-License-Identifier: Apache-2.0
// Applies an eviction plan of kvtool (kvtool.h2o-plan/1) in llama.cpp: after the token of an event
// is decoded, and before the next one, the positions that the event does not keep are removed.
//
//   apply_plan_llama MODEL.gguf TEXT.txt PROMPT_TOKENS PLAN.json
//
// Decodes the text's tokens, those after the prompt one by one, and prints how many cells are left
// and the mean nll of the tokens after the prompt. Plans must be the same for all layers and heads:
// llama.cpp removes a cell from all of them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace {

// The tokens after which positions are removed, and the positions that stay.
using Plan = std::map<llama_pos, std::vector<bool>>;

std::string ReadAll(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string(path) + ": cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

Plan ReadPlan(const char* path, llama_pos tokens) {
  const nlohmann::json document = nlohmann::json::parse(ReadAll(path));
  if (document.at("schema") != "kvtool.h2o-plan/1")
    throw std::runtime_error("not a plan of kvtool");
  std::map<std::pair<int, int>, Plan> parts;  // key: layer and head; -1: all heads
  for (const auto& event : document.at("events")) {
    const auto token = event.at("token").get<llama_pos>();
    if (token < 0 || token >= tokens) throw std::runtime_error("an event lies beyond the text");
    const int head = event.at("kv_head").is_null() ? -1 : event.at("kv_head").get<int>();
    std::vector<bool> kept(static_cast<size_t>(token) + 1);
    for (const auto& run : event.at("kept")) {
      for (int64_t i = 0; i < run.at(1).get<int64_t>(); ++i)
        kept.at(run.at(0).get<size_t>() + size_t(i)) = true;
    }
    parts[{event.at("layer").get<int>(), head}][token] = std::move(kept);
  }
  if (parts.empty()) return {};
  for (const auto& [place, plan] : parts) {
    if (plan != parts.begin()->second)
      throw std::runtime_error("the plan differs by layer or head");
  }
  return parts.begin()->second;
}

// Removes what an event does not keep, one run of positions after the other.
size_t Apply(llama_context* context, const std::vector<bool>& kept) {
  llama_memory_t memory = llama_get_memory(context);
  size_t left = 0;
  for (size_t at = 0; at < kept.size();) {
    size_t end = at;
    while (end < kept.size() && kept[end] == kept[at]) ++end;
    if (kept[at]) {
      left += end - at;
    } else if (!llama_memory_seq_rm(memory, 0, llama_pos(at), llama_pos(end))) {
      throw std::runtime_error("this model's memory cannot lose single tokens");
    }
    at = end;
  }
  return left;
}

double NllOf(const float* logits, int32_t words, llama_token next) {
  const float most = *std::max_element(logits, logits + words);
  double sum = 0;
  for (int32_t i = 0; i < words; ++i) sum += std::exp(double{logits[i]} - most);
  return most + std::log(sum) - logits[next];
}

void Run(const char* model_path, const char* text_path, llama_pos prompt, const char* plan_path) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  // Prebuilt libraries load their backends from a folder that they choose.
  if (const char* folder = std::getenv("GGML_BACKEND_DIR")) {
    ggml_backend_load_all_from_path(folder);
  } else {
    ggml_backend_load_all();
  }
  llama_model* model = llama_model_load_from_file(model_path, llama_model_default_params());
  if (model == nullptr) throw std::runtime_error(std::string(model_path) + ": no model");
  const llama_vocab* vocabulary = llama_model_get_vocab(model);
  const int32_t words = llama_vocab_n_tokens(vocabulary);

  const std::string text = ReadAll(text_path);
  std::vector<llama_token> tokens(text.size() + 8);
  tokens.resize(size_t(llama_tokenize(vocabulary, text.data(), int32_t(text.size()), tokens.data(),
                                      int32_t(tokens.size()), true, true)));
  const auto end = llama_pos(tokens.size());
  if (prompt < 1 || prompt >= end)
    throw std::runtime_error("the prompt is not shorter than the text");
  const Plan plan = ReadPlan(plan_path, end);

  llama_context_params settings = llama_context_default_params();
  settings.n_ctx = settings.n_batch = uint32_t(end);
  settings.n_threads = settings.n_threads_batch = 1;
  llama_context* context = llama_init_from_model(model, settings);
  if (context == nullptr) throw std::runtime_error("no context");

  size_t cells = 0;
  double nll = 0;
  for (llama_pos at = 0; at < end;) {
    // Decodes the prompt in one batch up to the first event, then token by token.
    const auto stop = plan.lower_bound(at);
    const llama_pos beyond =
        at < prompt ? std::min(prompt, stop == plan.end() ? prompt : stop->first + 1) : at + 1;
    if (llama_decode(context, llama_batch_get_one(&tokens[size_t(at)], beyond - at)) != 0) {
      throw std::runtime_error("the engine does not decode");
    }
    cells += size_t(beyond - at);
    at = beyond;
    if (at >= prompt && at < end)
      nll += NllOf(llama_get_logits_ith(context, -1), words, tokens[size_t(at)]);
    // Removes before the next token: the token just decoded still saw everything.
    if (const auto event = plan.find(at - 1); event != plan.end())
      cells = Apply(context, event->second);
  }
  std::printf("%d tokens, %zu cells left, nll %.6f\n", end, cells, nll / (end - prompt));
  llama_free(context);
  llama_model_free(model);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5)
    return std::fprintf(stderr, "usage: apply_plan_llama MODEL TEXT PROMPT_TOKENS PLAN\n"), 2;
  try {
    Run(arguments[1], arguments[2], std::atoi(arguments[3]), arguments[4]);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "error: %s\n", error.what()), 3;
  }
}
