// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/api/context.h"

#include <unistd.h>

using kv::Finding;
using kv::api::Caught;
using kv::api::ExitStatusFor;
using kv::api::Require;

struct kvt_pool::Started {
  explicit Started(int threads) : pool(threads) {}
  const pid_t process = getpid();
  kv::ThreadPool pool;
};

kvt_pool::~kvt_pool() {
  Started* started = started_.load();
  // Threads of another process (before fork) cannot be joined here: their object is leaked.
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
  return started->pool;  // another thread created the pool first
}

kv::ThreadPool* kvtool_private_pool(kvt_pool* pool) { return &pool->Get(); }

kvt_status kvt_pool_create(uint32_t threads, kvt_pool** out) {
  return Caught(nullptr, [&] {
    constexpr uint32_t kMostThreads = 4096;
    Require(out != nullptr && threads <= kMostThreads, "threads");
    *out = new kvt_pool(threads);
  });
}

void kvt_pool_free(kvt_pool* pool) { delete pool; }

// Returns the parameters to use. Throws kBadArgument for invalid ones.
static kvt_params ChooseParams(const kvt_params* params) {
  kvt_params chosen = {sizeof chosen, 0, 0, nullptr};
  if (params != nullptr) chosen = kv::api::Whole(params, "params->struct_size");
  if (chosen.level == 0) chosen.level = KVT_DEFAULT;
  Require(chosen.level <= KVT_MAX, "level");
  static_assert(static_cast<int>(kv::Effort::kFast) == KVT_FAST &&
                static_cast<int>(kv::Effort::kMax) == KVT_MAX);
  return chosen;
}

kvt_status kvt_ctx_create(const kvt_params* params, kvt_ctx** out) {
  return Caught(nullptr, [&] {
    Require(out != nullptr, "out");
    const kvt_params chosen = ChooseParams(params);
    *out = new kvt_ctx(static_cast<kv::Effort>(chosen.level), chosen.max_raw_bytes, chosen.pool);
  });
}

void kvt_ctx_free(kvt_ctx* ctx) { delete ctx; }

uint64_t kvt_ctx_bytes(const kvt_params* params) {
  uint64_t bytes = 0;
  const kvt_status status = Caught(nullptr, [&] {
    const kvt_params chosen = ChooseParams(params);
    const uint64_t raw = chosen.max_raw_bytes;
    if (raw == 0) return;
    const auto threads =
        static_cast<uint64_t>(chosen.pool == nullptr      ? 1
                              : chosen.pool->threads == 0 ? kv::UsableCpus()
                                                          : static_cast<int>(chosen.pool->threads));
    const auto level = static_cast<kv::Effort>(chosen.level);
    // A context needs one coder for single calls; a batch needs one more per thread, with a buffer
    // in which the pieces of its item are gathered.
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

int kvt_ctx_cancel(kvt_ctx* ctx) { return ctx != nullptr && ctx->state.Cancel() ? 1 : 0; }

kvt_status kvt_ctx_stats(const kvt_ctx* ctx, kvt_stats* out) {
  return Caught(nullptr, [&] {
    Require(ctx != nullptr, "ctx");
    kv::api::RequireSize(out, "out->struct_size");
    kvt_stats stats = {};
    stats.raw_bytes = ctx->sums.raw_bytes;
    stats.stored_bytes = ctx->sums.stored_bytes;
    stats.encode_ns = ctx->sums.encode_ns;
    stats.decode_ns = ctx->sums.decode_ns;
    stats.frames = ctx->sums.frames;
    stats.stored_raw = ctx->sums.stored_raw;
    stats.decoded = ctx->sums.decoded;
    stats.refused = ctx->sums.refused;
    kv::api::Fill(out, stats);
  });
}

kvt_status kvt_ctx_error(const kvt_ctx* ctx, kvt_error* out) {
  return Caught(nullptr, [&] {
    Require(ctx != nullptr, "ctx");
    kv::api::RequireSize(out, "out->struct_size");
    kvt_error error = {};
    error.status = ctx->last_error.status;
    error.offset = ctx->last_error.offset;
    error.message = ctx->last_error.message;
    error.hint = ctx->last_error.hint;
    kv::api::Fill(out, error);
  });
}
