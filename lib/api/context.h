// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by context.cc, inside.cc

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "lib/api/kvtool.h"
#include "lib/api/structs.h"
#include "lib/core/archive/archive.h"
#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/frame/frame.h"

// The objects behind kvtool.h, and the only place where exceptions become statuses. libkvtool_study
// uses them, too: it has the same version, which the versioned name of kvtool_private_pool
// enforces.

// Threads are started at the first job, and again in a child after fork, where the parent's threads
// do not exist.
struct kvt_pool {
  explicit kvt_pool(uint32_t threads_) : threads(threads_) {}
  ~kvt_pool();
  kv::ThreadPool& Get();

  const uint32_t threads;

 private:
  struct Started;
  std::atomic<Started*> started_{nullptr};
};

// Returns the pool's threads, which only libkvtool starts and ends.
extern "C" KVT_API kv::ThreadPool* kvtool_private_pool(kvt_pool* pool);

struct kvt_profile {
  std::shared_ptr<const kv::Profile> profile;
};

// A reference is immutable, so that any number of contexts may use it at once.
struct kvt_reference {
  std::shared_ptr<const kv::Reference> reference;
};

struct kvt_ctx {
  kvt_ctx(kv::Effort level_, uint64_t max_raw_bytes_, kvt_pool* pool_)
      : level(level_), max_raw_bytes(max_raw_bytes_), pool(pool_), coder(level_) {
    coder.UseState(&state);
  }

  const kv::Effort level;
  const uint64_t max_raw_bytes;
  kvt_pool* const pool;

  kv::CallState state;
  std::shared_ptr<const kv::Profile> profile;
  uint32_t joined_layers = kv::kJoinedLayers;
  kv::FrameCoder coder;  // for calls on one object
  struct BatchRange {
    uintptr_t begin, end;
    size_t item;
    bool is_written;
  };
  // Memory of one thread, kept from batch to batch.
  struct BatchWorker {
    std::unique_ptr<kv::FrameCoder> coder;
    kv::Bytes raw;  // gathered pieces
    std::vector<BatchRange> ranges;
  };
  kv::Reuse<BatchWorker> batch_workers;

  struct LastError {
    kvt_status status = 0;
    uint64_t offset = UINT64_MAX;
    char message[512] = {};
    char hint[256] = {};
  } last_error;
  struct Sums {
    std::atomic<uint64_t> raw_bytes{0}, stored_bytes{0}, encode_ns{0}, decode_ns{0}, frames{0},
        stored_raw{0}, decoded{0}, refused{0};
  } sums;
};

namespace kv::api {

constexpr kvt_status ExitStatusFor(Finding finding) { return -static_cast<kvt_status>(finding); }

// Thrown if a callback failed: its status is returned unchanged.
struct CallbackFailure {
  kvt_status status;
};

// Thrown if an item of a batch failed: carries the first item's finding.
struct BatchFailure {
  kvt_ctx::LastError first;
};

inline void Copy(std::string_view text, char* to, size_t room) noexcept {
  const size_t size = text.size() < room - 1 ? text.size() : room - 1;
  std::memcpy(to, text.data(), size);
  to[size] = '\0';
}

// Runs `f` and returns what it throws as a status, recorded in `error` if given. Allocates nothing.
template <typename F>
kvt_status Caught(kvt_ctx::LastError* error, F&& f) noexcept {
  const auto note = [error](kvt_status status, uint64_t offset, std::string_view message,
                            std::string_view hint) {
    if (error == nullptr) return status;
    error->status = status;
    error->offset = offset;
    Copy(message, error->message, sizeof error->message);
    Copy(hint, error->hint, sizeof error->hint);
    return status;
  };
  try {
    f();
    return 0;
  } catch (const Error& failure) {
    const Finding finding =
        failure.finding() == Finding::kNoResources ? Finding::kNoMemory : failure.finding();
    return note(ExitStatusFor(finding), failure.offset().value_or(UINT64_MAX), failure.message(),
                failure.hint());
  } catch (const BatchFailure& failure) {
    if (error != nullptr) *error = failure.first;
    return failure.first.status;
  } catch (const CallbackFailure& failure) {
    return note(failure.status, UINT64_MAX, "a callback failed", "");
  } catch (const std::length_error&) {  // a container was asked for more elements than it can hold
    return note(ExitStatusFor(Finding::kNoMemory), UINT64_MAX, "out of memory", "");
  } catch (const std::bad_alloc&) {
    return note(ExitStatusFor(Finding::kNoMemory), UINT64_MAX, "out of memory", "");
  } catch (const std::exception& failure) {
    return note(ExitStatusFor(Finding::kInternal), UINT64_MAX, failure.what(), "");
  } catch (...) {
    return note(ExitStatusFor(Finding::kInternal), UINT64_MAX, "unknown exception", "");
  }
}

// Runs one call on a context, which serves one at a time, and keeps its failure for kvt_ctx_error.
// A cancel request that came before the result was decided makes the call fail.
template <typename F>
kvt_status Call(kvt_ctx* ctx, F&& f) noexcept {
  if (ctx == nullptr) return ExitStatusFor(Finding::kBadArgument);
  if (!ctx->state.Begin()) return ExitStatusFor(Finding::kBusy);
  ctx->last_error = {};
  const kvt_status status = Caught(&ctx->last_error, [&] {
    try {
      f();
    } catch (...) {
      ctx->state.Commit();  // an earlier cancel request takes precedence
      throw;
    }
    ctx->state.Commit();
  });
  ctx->state.End();
  return status;
}

// Runs one call on an object made from a context; errors are kept with the context.
template <typename T, typename F>
kvt_status CallOn(T* object, F&& f) noexcept {
  return Call(object == nullptr ? nullptr : object->ctx, f);
}

// Runs a call that passes the result of `make` to the caller, unless it was cancelled meanwhile.
template <typename T, typename F>
kvt_status CallToMake(kvt_ctx* ctx, T** out, F&& make) noexcept {
  return Call(ctx, [&] {
    Require(out != nullptr, "out");
    std::unique_ptr<T> made = make();
    ctx->state.Commit();
    *out = made.release();
  });
}

inline ByteSpan Span(const void* data, size_t bytes) {
  Require(data != nullptr || bytes == 0, "a buffer is null");
  Require(bytes <= UINTPTR_MAX - reinterpret_cast<uintptr_t>(data), "a buffer ends beyond memory");
  return {static_cast<const std::byte*>(data), bytes};
}
inline std::span<std::byte> Span(void* data, size_t bytes) {
  const ByteSpan checked = Span(static_cast<const void*>(data), bytes);
  return {static_cast<std::byte*>(data), checked.size()};
}

// Converts the caller's description. Throws kBadArgument for impossible values.
FrameDescription MakeDescription(const kvt_desc* desc);

// Returns the tensor of a complete description: one piece, without bytes. Throws kBadArgument for
// descriptions without a shape, and for sizes whose products could overflow.
KvTensor MakeTensor(const kvt_desc& desc);

// Returns a worker's own coder, configured like the context's. Cancelling `state` stops it.
inline FrameCoder& PrepareCoder(kvt_ctx* ctx, const CallState& state,
                                kvt_ctx::BatchWorker& worker) {
  if (!worker.coder) worker.coder = std::make_unique<FrameCoder>(ctx->level);
  worker.coder->UseState(&state);
  worker.coder->UseProfile(ctx->profile);
  worker.coder->UseBlocks(ctx->coder.uses_blocks());
  return *worker.coder;
}

// Keeps the failure of the first failed item in the order of the items. May be called from any
// thread.
class FirstFailure {
 public:
  void Note(size_t index, const kvt_ctx::LastError& error) {
    const std::lock_guard lock(mutex_);
    if (index >= index_) return;
    index_ = index;
    error_ = error;
  }
  size_t index() const { return index_; }  // SIZE_MAX: none failed
  void ThrowIfAny() const {
    if (index_ != SIZE_MAX) throw BatchFailure{error_};
  }

 private:
  std::mutex mutex_;
  size_t index_ = SIZE_MAX;
  kvt_ctx::LastError error_;
};

// Returns nullptr if the calling thread works alone.
inline ThreadPool* FindPool(kvt_ctx* ctx) {
  return ctx->pool == nullptr || ctx->pool->threads == 1 ? nullptr : kvtool_private_pool(ctx->pool);
}

// Throws kBadArgument with the text `what` if a buffer that is read and one that is written
// overlap.
inline void RequireApart(ByteSpan read, ByteSpan written, std::string_view what) {
  const std::less<const std::byte*> before;
  const bool overlap = before(read.data(), written.data() + written.size()) &&
                       before(written.data(), read.data() + read.size());
  Require(!overlap || read.empty() || written.empty(), what);
}

// Throws kLimit if kvt_params does not allow this many bytes.
inline void RequireWithinLimit(const kvt_ctx* ctx, uint64_t raw_bytes) {
  if (ctx->max_raw_bytes == 0 || raw_bytes <= ctx->max_raw_bytes) return;
  throw Error(Finding::kLimit, "{} raw bytes, the context's limit is {}", raw_bytes,
              ctx->max_raw_bytes);
}

// Counters for kvt_ctx_stats. May be called from any thread.
using Clock = std::chrono::steady_clock;

inline uint64_t NanosecondsSince(Clock::time_point start) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
}

// Counts a frame or page whose encoding began at `start`.
inline void CountEncoded(kvt_ctx* ctx, Clock::time_point start, uint64_t raw_bytes,
                         uint64_t stored_bytes, bool stored_raw) {
  ctx->sums.encode_ns += NanosecondsSince(start);
  ctx->sums.raw_bytes += raw_bytes;
  ctx->sums.stored_bytes += stored_bytes;
  ++ctx->sums.frames;
  if (stored_raw) ++ctx->sums.stored_raw;
}

// Runs a decoding call and counts its outcome.
template <typename F>
void Counted(kvt_ctx* ctx, F&& decode) {
  const Clock::time_point start = Clock::now();
  try {
    decode();
    ctx->sums.decode_ns += NanosecondsSince(start);
    ++ctx->sums.decoded;
  } catch (const Error& failure) {
    if (failure.code() == ErrorCode::kInvalidData || failure.code() == ErrorCode::kUnsupported) {
      ++ctx->sums.refused;
    }
    throw;
  }
}

// Multiplies sizes that a caller states.
inline uint64_t CheckedProduct(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t product;
  Require(!__builtin_mul_overflow(a, b, &product), what);
  return product;
}

}  // namespace kv::api
