// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

// Calls that differ among releases of llama.cpp, b4753 (February 2025) to v0.5.0. Each function has
// several templates; if a release lacks a call, substitution fails and the next template is used.
extern "C" {
// Weak, so that an address is null in a library that lacks the function: llama_version exists since
// 2026, the other two since autumn 2025.
const char* llama_version(void) __attribute__((weak));
const char* ggml_version(void) __attribute__((weak));
const char* ggml_commit(void) __attribute__((weak));
}

namespace kv::capture::versions {

struct Older {};
struct Old : Older {};
struct Newer : Old {};

// Switches flash attention: b6361 replaced the switch by a choice of three.
template <class Params>
auto SetFlash(Params& params, bool on, Newer) -> decltype((void)params.flash_attn_type) {
  params.flash_attn_type = static_cast<decltype(params.flash_attn_type)>(on ? 1 : 0);
}
template <class Params>
auto SetFlash(Params& params, bool on, Older) -> decltype((void)params.flash_attn) {
  params.flash_attn = on;
}

// Removes positions [begin, end) of sequence 0; an end of -1 means the last. Returns false if that
// is impossible.
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

// Returns the sliding window of a model whose cache has two parts; 0 for any other.
template <class Model>
auto SlidingWindow(const Model* model, Newer) -> decltype(llama_model_n_swa(model)) {
  return llama_model_n_swa(model);
}
template <class Model>
int32_t SlidingWindow(const Model*, Older) {
  return 0;  // one cache serves all layers, which differ in their masks
}

template <class Model>
auto IsHybrid(const Model* model, Newer) -> decltype(llama_model_is_hybrid(model)) {
  return llama_model_is_hybrid(model);
}
template <class Model>
bool IsHybrid(const Model*, Older) {
  return false;
}

// Returns the library's build; older libraries do not know it.
inline std::string Build() {
  if (llama_version != nullptr) return llama_version();
  if (ggml_version == nullptr) return "";
  const std::string commit = ggml_commit != nullptr ? std::string(" (") + ggml_commit() + ")" : "";
  return std::string("ggml ") + ggml_version() + commit;
}

}  // namespace kv::capture::versions
