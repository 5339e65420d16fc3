// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by pack.cc

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>

#include "lib/api/context.h"
#include "lib/core/base/file.h"
#include "lib/core/base/progress.h"

namespace kv {
struct OpenOptions;
}

// Adapts the caller's functions and references to kvtool's own types.
namespace kv::api {

// Returns the list passed to a call. Throws kBadArgument if an element is null.
std::span<const kvt_reference* const> Given(const kvt_reference* const* references, size_t count);
// Returns options for archives in memory: only these references are used, no others are searched
// for.
OpenOptions WithReferences(const kvt_ctx& ctx, std::span<const kvt_reference* const> references);

inline kvt_sink CheckedSink(const kvt_sink* sink) {
  const kvt_sink whole = Whole(sink, "sink->struct_size");
  Require(whole.reserved == 0 && whole.write != nullptr, "sink");
  return whole;
}

inline kvt_source CheckedSource(const kvt_source* source) {
  const kvt_source whole = Whole(source, "source->struct_size");
  Require(whole.reserved == 0 && (whole.read_at != nullptr || whole.bytes == 0), "source");
  return whole;
}

// Ends the call unless a callback returned 0. A status in the library's own range is refused, since
// it would look like a finding of the library.
inline void RequireDone(kvt_status returned) {
  if (returned == KVT_OK) return;
  if (returned >= KVT_CALLBACK_MIN && returned <= KVT_CALLBACK_MAX) throw CallbackFailure{returned};
  throw Error(Finding::kBadArgument, "a callback returned {}: neither 0 nor a status from {} to {}",
              returned, static_cast<int>(KVT_CALLBACK_MIN), static_cast<int>(KVT_CALLBACK_MAX));
}

// Reads piece by piece, so that the call can be cancelled in between.
inline void Fetch(const kvt_ctx& ctx, const kvt_source& source, uint64_t offset,
                  std::span<std::byte> to) {
  constexpr uint64_t kMostRead = 16 << 20;
  while (!to.empty()) {
    ctx.state.StopIfCancelled();
    const size_t step = std::min<uint64_t>(to.size(), kMostRead);
    RequireDone(source.read_at(source.user, offset, to.data(), step));
    to = to.subspan(step);
    offset += step;
  }
}

// Gives loops the threads of the context's pool, or only the calling thread.
class Threads {
 public:
  explicit Threads(kvt_ctx* ctx) : pool_(FindPool(ctx)) {
    if (pool_ == nullptr) pool_ = &own_.emplace(1);
  }
  ThreadPool& operator*() const { return *pool_; }

 private:
  std::optional<ThreadPool> own_;
  ThreadPool* pool_;
};

// Ends a long call after kvt_ctx_cancel.
class CancelWatch : public Progress {
 public:
  explicit CancelWatch(const kvt_ctx& ctx) : ctx_(ctx) {}
  void Begin(uint64_t) override { Advance(0); }
  void Advance(uint64_t) override { ctx_.state.StopIfCancelled(); }

 private:
  const kvt_ctx& ctx_;
};

class CallbackSink : public Sink {
 public:
  explicit CallbackSink(const kvt_sink& sink) : sink_(sink) {}
  void Write(ByteSpan bytes) override {
    if (!bytes.empty()) RequireDone(sink_.write(sink_.user, bytes.data(), bytes.size()));
  }

 private:
  const kvt_sink sink_;
};

// Returns the name of a tensor in files that kvtool writes.
inline std::string PartName(uint32_t layer, bool is_value) {
  return fmt::format("{}_{}", is_value ? 'v' : 'k', layer);
}

}  // namespace kv::api
