// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

// What differs among releases of llama.cpp, b4753 (February 2025) to v0.5.0. A call that a release
// lacks drops out when its template is tried, and the next one is taken.
extern "C" {
// In libraries since 2026 and since autumn 2025; a null address in older ones.
const char* llama_version(void) __attribute__((weak));
const char* ggml_version(void) __attribute__((weak));
const char* ggml_commit(void) __attribute__((weak));
}

namespace kv::capture::versions {

struct Older {};
struct Old : Older {};
struct Newer : Old {};

// b6361 turned the switch into a choice of three.
template <class Params>
auto SetFlash(Params& params, bool on, Newer) -> decltype((void)params.flash_attn_type) {
  params.flash_attn_type = static_cast<decltype(params.flash_attn_type)>(on ? 1 : 0);
}
template <class Params>
auto SetFlash(Params& params, bool on, Older) -> decltype((void)params.flash_attn) {
  params.flash_attn = on;
}

// Forgets positions [begin, end) of sequence 0; an end of -1 is the last. False if it cannot.
template <class Context>
auto Forget(Context* context, llama_pos begin, llama_pos end, Newer)
    -> decltype(llama_memory_seq_rm(llama_get_memory(context), 0, begin, end)) {
  return llama_memory_seq_rm(llama_get_memory(context), 0, begin, end);
}
template <class Context>
auto Forget(Context* context, llama_pos begin, llama_pos end, Old)
    -> decltype(llama_kv_self_seq_rm(context, 0, begin, end)) {
  return llama_kv_self_seq_rm(context, 0, begin, end);
}
template <class Context>
auto Forget(Context* context, llama_pos begin, llama_pos end, Older)
    -> decltype(llama_kv_cache_seq_rm(context, 0, begin, end)) {
  return llama_kv_cache_seq_rm(context, 0, begin, end);
}

// The sliding window of a model whose cache is in two parts; 0 for any other.
template <class Model>
auto SlidingWindow(const Model* model, Newer) -> decltype(llama_model_n_swa(model)) {
  return llama_model_n_swa(model);
}
template <class Model>
int32_t SlidingWindow(const Model*, Older) {
  return 0;  // one cache for all layers, each of which has a mask of its own
}

template <class Model>
auto IsHybrid(const Model* model, Newer) -> decltype(llama_model_is_hybrid(model)) {
  return llama_model_is_hybrid(model);
}
template <class Model>
bool IsHybrid(const Model*, Older) {
  return false;
}

// What the library says of itself: older ones say nothing.
inline std::string Build() {
  if (llama_version != nullptr) return llama_version();
  if (ggml_version == nullptr) return "";
  const std::string commit = ggml_commit != nullptr ? std::string(" (") + ggml_commit() + ")" : "";
  return std::string("ggml ") + ggml_version() + commit;
}

}  // namespace kv::capture::versions
