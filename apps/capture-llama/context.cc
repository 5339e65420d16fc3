// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "apps/capture-llama/engine.h"
#include "apps/capture-llama/failure.h"
#include "apps/capture-llama/versions.h"

namespace kv::capture {
namespace {

volatile std::sig_atomic_t interrupted = 0;

// Types that llama.cpp's own programs offer for a cache.
ggml_type TypeNamed(const std::string& name) {
  for (const ggml_type type :
       {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0,
        GGML_TYPE_Q4_1, GGML_TYPE_IQ4_NL, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1}) {
    if (name == ggml_type_name(type)) return type;
  }
  throw Failure(
      kUsage,
      "'" + name +
          "' is not a type of a cache; f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1 are");
}

}  // namespace

bool Interrupted() { return interrupted != 0; }

void CatchInterrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // a second one ends the program at once
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

Context::Context(const Model& model, const ContextOptions& options)
    : model_(model), ubatch_(options.ubatch) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(options.tokens);
  params.n_batch = params.n_ubatch = static_cast<uint32_t>(options.ubatch);
  params.n_seq_max = 1;
  if (options.threads > 0) params.n_threads = params.n_threads_batch = options.threads;
  if (options.flash) versions::SetFlash(params, *options.flash, versions::Newer());
  if (!options.type_k.empty()) params.type_k = TypeNamed(options.type_k);
  if (!options.type_v.empty()) params.type_v = TypeNamed(options.type_v);
  params.cb_eval = OnNode;
  params.cb_eval_user_data = this;
  params.abort_callback = [](void*) { return Interrupted(); };
  context_.reset(llama_init_from_model(model.get(), params));
  if (!context_) throw Failure(kUnsupported, "the engine makes no context of these settings");
}

bool Context::OnNode(ggml_tensor* node, bool ask, void* self) {
  Context& context = *static_cast<Context*>(self);
  // No exception may cross the engine's frames.
  try {
    if (context.observer_ == nullptr || context.thrown_) return !ask;
    if (ask) return context.observer_->Wants(node);
    context.observer_->Computed(node);
  } catch (...) {
    context.thrown_ = std::current_exception();
    return false;
  }
  return true;
}

void Context::Decode(std::span<const llama_token> tokens, int32_t begin, int32_t wanted,
                     const Row& row) {
  while (!tokens.empty()) {
    const size_t count = std::min(tokens.size(), static_cast<size_t>(ubatch_));
    DecodeBatch(tokens.first(count), begin, wanted, row);
    tokens = tokens.subspan(count);
    begin += static_cast<int32_t>(count);
  }
}

void Context::DecodeBatch(std::span<const llama_token> tokens, int32_t begin, int32_t wanted,
                          const Row& row) {
  const auto count = static_cast<int32_t>(tokens.size());
  if (Interrupted()) throw Failure(kInterrupted, "interrupted");
  if (observer_ != nullptr) observer_->Begin(begin, count);
  const auto free_batch = [](llama_batch* batch) { llama_batch_free(*batch); };
  llama_batch batch = llama_batch_init(count, 0, 1);
  const std::unique_ptr<llama_batch, decltype(free_batch)> owner(&batch, free_batch);
  batch.n_tokens = count;
  for (int32_t i = 0; i < count; ++i) {
    batch.token[i] = tokens[static_cast<size_t>(i)];
    batch.pos[i] = begin + i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = begin + i >= wanted;
  }
  const int32_t status = llama_decode(context_.get(), batch);
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  if (Interrupted()) throw Failure(kInterrupted, "interrupted");
  if (status != 0) {
    throw Failure(kInvalid, "the engine fails to decode at position " + std::to_string(begin) +
                                " (status " + std::to_string(status) + ")");
  }
  llama_synchronize(context_.get());
  if (observer_ != nullptr) observer_->End();
  for (int32_t i = std::max(wanted - begin, 0); i < count; ++i) {
    float* const logits = llama_get_logits_ith(context_.get(), i);
    if (logits == nullptr) throw Failure(kInvalid, "the engine gives no logits");
    row(begin + i, {logits, static_cast<size_t>(model_.words())});
  }
}

void Context::Forget(int32_t begin, int32_t end) {
  if (!versions::Forget(context_.get(), begin, end, versions::Newer())) {
    throw Failure(kUnsupported, "the engine does not remove positions " + std::to_string(begin) +
                                    " to " + std::to_string(end) + " from this model's memory");
  }
}

void Context::SaveState(const std::string& path, std::span<const llama_token> tokens) {
  errno = 0;
  if (llama_state_seq_save_file(context_.get(), path.c_str(), 0, tokens.data(), tokens.size()) ==
      0) {
    throw Failure(kIo, path + ": the engine does not write the state" +
                           (errno != 0 ? std::string(": ") + std::strerror(errno) : ""));
  }
}

std::vector<uint8_t> Context::State() {
  std::vector<uint8_t> state(llama_state_seq_get_size(context_.get(), 0));
  state.resize(llama_state_seq_get_data(context_.get(), state.data(), state.size(), 0));
  if (state.empty()) throw Failure(kUnsupported, "the engine does not give the sequence's state");
  return state;
}

void Context::Restore(const std::vector<uint8_t>& state) {
  Forget(0, -1);
  if (llama_state_seq_set_data(context_.get(), state.data(), state.size(), 0) == 0) {
    throw Failure(kUnsupported, "the engine does not take back its own state");
  }
}

}  // namespace kv::capture
