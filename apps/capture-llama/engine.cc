// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The parts of llama.cpp's API that the program uses: models, contexts, batches, and observers of
// the graph.
#include "apps/capture-llama/engine.h"

#include <dlfcn.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "apps/capture-llama/failure.h"
#include "apps/capture-llama/versions.h"

namespace kv::capture {
namespace fs = std::filesystem;
namespace {

// Prints the engine's errors, which it reports only to its log.
void OnLog(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fprintf(stderr, "llama.cpp: %s", text);
}

// Loads backends. Builds that choose a CPU at run time have them as libraries in the same folder.
void LoadBackends(const std::string& folder) {
  if (!folder.empty()) {
    ggml_backend_load_all_from_path(folder.c_str());
  } else {
    ggml_backend_load_all();
  }
  Dl_info place;
  const auto* symbol = reinterpret_cast<const void*>(&ggml_backend_load_all_from_path);
  if (ggml_backend_dev_count() == 0 && dladdr(symbol, &place) != 0) {
    ggml_backend_load_all_from_path(fs::path(place.dli_fname).parent_path().c_str());
  }
  if (ggml_backend_dev_count() == 0) {
    throw Failure(
        kIo,
        "the engine finds no backend; give the folder that holds libggml-cpu*.so with --backends");
  }
}

}  // namespace

Model::Model(const std::string& path, const std::string& backends)
    : model_(nullptr, llama_model_free) {
  llama_log_set(OnLog, nullptr);
  std::error_code failed;
  if (!fs::is_regular_file(path, failed)) throw Failure(kIo, path + ": no such model file");
  LoadBackends(backends);
  llama_backend_init();
  model_.reset(llama_model_load_from_file(path.c_str(), llama_model_default_params()));
  if (!model_) throw Failure(kInvalid, path + ": the engine cannot load this model");
  RefuseOtherMemories();
}

std::string Model::Value(const std::string& key) const {
  std::string text(256, '\0');
  const int32_t size = llama_model_meta_val_str(get(), key.c_str(), text.data(), text.size());
  if (size < 0) return "";
  if (static_cast<size_t>(size) >= text.size()) {  // the text was cut off
    text.resize(static_cast<size_t>(size) + 1);
    llama_model_meta_val_str(get(), key.c_str(), text.data(), text.size());
  }
  text.resize(static_cast<size_t>(size));
  return text;
}

std::string Model::name() const {
  const std::string own = Value("general.name");
  if (!own.empty()) return own;
  char text[256];
  llama_model_desc(get(), text, sizeof text);
  return text;
}

void Model::RefuseOtherMemories() const {
  const std::string kind = architecture();
  const auto refuse = [&](const std::string& what) {
    throw Failure(kUnsupported, "models of the architecture " + kind + " " + what);
  };
  if (llama_model_is_recurrent(get())) refuse("keep a recurrent state, which is no KV cache");
  bool hybrid = versions::IsHybrid(get(), versions::Newer());
  for (const char* key : {".ssm.conv_kernel", ".wkv.head_size", ".shortconv.l_cache"}) {
    hybrid |= !Value(kind + key).empty();
  }
  if (hybrid) refuse("keep a recurrent state beside the KV cache");
  if (!Value(kind + ".attention.kv_lora_rank").empty()) {
    refuse("keep latent vectors in place of keys and values (MLA)");
  }
  if (llama_model_has_encoder(get())) refuse("have an encoder");
  const int32_t window = versions::SlidingWindow(get(), versions::Newer());
  if (window > 0) {
    refuse("keep layers with a sliding window (" + std::to_string(window) +
           " tokens) in a cache of their own, whose state lacks what has left the window; "
           "python -m kvtool.capture records them");
  }
}

std::vector<llama_token> Model::Tokenize(const std::string& text) const {
  std::vector<llama_token> tokens(text.size() + 8);
  int32_t count = -1;
  try {
    count = llama_tokenize(vocabulary(), text.data(), static_cast<int32_t>(text.size()),
                           tokens.data(), static_cast<int32_t>(tokens.size()), true, true);
  } catch (const std::exception&) {  // the vocabulary has no tokens for some bytes
  }
  if (count < 0) throw Failure(kInvalid, "the model's vocabulary cannot express this text");
  tokens.resize(static_cast<size_t>(count));
  return tokens;
}

namespace {

volatile std::sig_atomic_t interrupted = 0;

// Returns the type of this name, if llama.cpp's own programs offer it for a cache.
ggml_type TypeNamed(const std::string& name) {
  for (const ggml_type type :
       {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0,
        GGML_TYPE_Q4_1, GGML_TYPE_IQ4_NL, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1}) {
    if (name == ggml_type_name(type)) return type;
  }
  throw Failure(kUsage, "'" + name +
                            "' is not a cache type; the types are f32, f16, bf16, q8_0, q4_0, "
                            "q4_1, iq4_nl, q5_0, q5_1");
}

}  // namespace

bool Interrupted() { return interrupted != 0; }

void CatchInterrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // a second signal ends the program at once
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
  if (!context_)
    throw Failure(kUnsupported, "the engine cannot create a context with these settings");
}

bool Context::OnNode(ggml_tensor* node, bool ask, void* self) {
  Context& context = *static_cast<Context*>(self);
  // No exception may pass through the engine's frames.
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
    if (logits == nullptr) throw Failure(kInvalid, "the engine returns no logits");
    row(begin + i, {logits, static_cast<size_t>(model_.words())});
  }
}

void Context::Forget(int32_t begin, int32_t end) {
  if (!versions::Forget(context_.get(), begin, end, versions::Newer())) {
    throw Failure(kUnsupported, "the engine cannot remove positions " + std::to_string(begin) +
                                    " to " + std::to_string(end) + " from this model's memory");
  }
}

void Context::SaveState(const std::string& path, std::span<const llama_token> tokens) {
  errno = 0;
  if (llama_state_seq_save_file(context_.get(), path.c_str(), 0, tokens.data(), tokens.size()) ==
      0) {
    throw Failure(kIo, path + ": the engine cannot write the state" +
                           (errno != 0 ? std::string(": ") + std::strerror(errno) : ""));
  }
}

std::vector<uint8_t> Context::State() {
  std::vector<uint8_t> state(llama_state_seq_get_size(context_.get(), 0));
  state.resize(llama_state_seq_get_data(context_.get(), state.data(), state.size(), 0));
  if (state.empty()) throw Failure(kUnsupported, "the engine cannot return the sequence's state");
  return state;
}

void Context::Restore(const std::vector<uint8_t>& state) {
  Forget(0, -1);
  if (llama_state_seq_set_data(context_.get(), state.data(), state.size(), 0) == 0) {
    throw Failure(kUnsupported, "the engine does not accept its own state");
  }
}

}  // namespace kv::capture
