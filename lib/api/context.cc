// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/api/context.h"

#include <unistd.h>


using kv::Finding;
using kv::api::Caught;
using kv::api::Require;
using kv::api::StatusOf;

struct kvt_pool::Started {
  explicit Started(int threads) : pool(threads) {}
  const pid_t process = getpid();
  kv::ThreadPool pool;
};

kvt_pool::~kvt_pool() {
  Started* started = started_.load();
  // Another process's threads cannot be joined here: their object is left alone.
  if (started != nullptr && started->process == getpid()) delete started;
}

kv::ThreadPool& kvt_pool::Get() {
  Started* started = started_.load(std::memory_order_acquire);
  if (started != nullptr && started->process == getpid()) return started->pool;
  auto fresh =
      std::make_unique<Started>(threads == 0 ? kv::UsableCpus() : static_cast<int>(threads));
  if (started_.compare_exchange_strong(started, fresh.get(), std::memory_order_acq_rel)) {
    return fresh.release()->pool;
  }
  return started->pool;  // another thread of this process was first
}

kvt_status kvt_pool_create(uint32_t threads, kvt_pool** out) {
  return Caught(nullptr, [&] {
    constexpr uint32_t kMostThreads = 4096;
    Require(out != nullptr && threads <= kMostThreads, "threads");
    *out = new kvt_pool(threads);
  });
}

void kvt_pool_free(kvt_pool* pool) { delete pool; }

// Those that are used; throws for those that are refused.
static kvt_params Chosen(const kvt_params* params) {
  kvt_params chosen = {sizeof chosen, 0, 0, nullptr};
  Require(params == nullptr || params->struct_size == sizeof chosen, "params->struct_size");
  if (params != nullptr) chosen = *params;
  if (chosen.level == 0) chosen.level = KVT_DEFAULT;
  Require(chosen.level <= KVT_MAX, "level");
  static_assert(static_cast<int>(kv::Effort::kFast) == KVT_FAST &&
                static_cast<int>(kv::Effort::kMax) == KVT_MAX);
  return chosen;
}

kvt_status kvt_ctx_create(const kvt_params* params, kvt_ctx** out) {
  return Caught(nullptr, [&] {
    Require(out != nullptr, "out");
    const kvt_params chosen = Chosen(params);
    *out = new kvt_ctx(static_cast<kv::Effort>(chosen.level), chosen.max_raw_bytes, chosen.pool);
  });
}

void kvt_ctx_free(kvt_ctx* ctx) { delete ctx; }

uint64_t kvt_ctx_bytes(const kvt_params* params) {
  uint64_t bytes = 0;
  const kvt_status status = Caught(nullptr, [&] {
    const kvt_params chosen = Chosen(params);
    const uint64_t raw = chosen.max_raw_bytes;
    if (raw == 0) return;
    const auto threads =
        static_cast<uint64_t>(chosen.pool == nullptr      ? 1
                              : chosen.pool->threads == 0 ? kv::UsableCpus()
                                                          : static_cast<int>(chosen.pool->threads));
    const auto level = static_cast<kv::Effort>(chosen.level);
    // One coder for single calls; for batches a coder for each thread, and what its item is
    // gathered in.
    const uint64_t single = kv::FrameCoderBytes(level, raw, threads);
    const uint64_t one = threads == 1 ? 0 : kv::FrameCoderBytes(level, raw, 1);
    uint64_t of_item, batch, sum;
    if (__builtin_add_overflow(one, raw, &of_item) ||
        __builtin_mul_overflow(of_item, threads, &batch) ||
        __builtin_add_overflow(single, batch, &sum) ||
        __builtin_add_overflow(sum, sizeof(kvt_ctx), &sum)) {
      return;
    }
    bytes = sum;
  });
  return status == 0 ? bytes : 0;
}

void kvt_ctx_cancel(kvt_ctx* ctx) {
  if (ctx != nullptr) ctx->state.Cancel();
}

void kvt_ctx_stats(const kvt_ctx* ctx, kvt_stats* out) {
  if (ctx == nullptr || out == nullptr || out->struct_size != sizeof *out) return;
  out->raw_bytes = ctx->sums.raw_bytes;
  out->stored_bytes = ctx->sums.stored_bytes;
  out->encode_ns = ctx->sums.encode_ns;
  out->decode_ns = ctx->sums.decode_ns;
  out->frames = ctx->sums.frames;
  out->stored_raw = ctx->sums.stored_raw;
  out->decoded = ctx->sums.decoded;
  out->refused = ctx->sums.refused;
}

void kvt_ctx_error(const kvt_ctx* ctx, kvt_error* out) {
  if (ctx == nullptr || out == nullptr || out->struct_size != sizeof *out) return;
  out->status = ctx->last_error.status;
  out->offset = ctx->last_error.offset;
  out->message = ctx->last_error.message;
  out->hint = ctx->last_error.hint;
}
