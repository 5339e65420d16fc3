// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>

#include "lib/api/context.h"
#include "lib/core/base/file.h"
#include "lib/core/base/progress.h"

// The caller's functions as kvtool's own types.
namespace kv::api {

inline const kvt_sink& CheckedSink(const kvt_sink* sink) {
  Require(sink != nullptr && sink->struct_size == sizeof *sink, "sink->struct_size");
  Require(sink->reserved == 0 && sink->write != nullptr, "sink");
  return *sink;
}

inline const kvt_source& CheckedSource(const kvt_source* source) {
  Require(source != nullptr && source->struct_size == sizeof *source, "source->struct_size");
  Require(source->reserved == 0 && (source->read_at != nullptr || source->bytes == 0), "source");
  return *source;
}

// Ends the call unless a function of the caller's returned 0. A status of the library's would be
// taken for what the library found, so that those are refused.
inline void RequireDone(kvt_status returned) {
  constexpr kvt_status kLeast = -39999, kMost = -30000;
  if (returned == 0) return;
  if (returned >= kLeast && returned <= kMost) throw CallbackFailure{returned};
  throw Error(Finding::kBadArgument, "a callback returned {}: neither 0 nor a status from {} to {}",
              returned, kLeast, kMost);
}

// Reads a piece at a time, so that a call can be cancelled in between.
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

// The pool of a context, or one thread, which is the caller's.
class Threads {
 public:
  explicit Threads(kvt_ctx* ctx) : pool_(PoolOf(ctx)) {
    if (pool_ == nullptr) pool_ = &own_.emplace(1);
  }
  ThreadPool& operator*() const { return *pool_; }

 private:
  std::optional<ThreadPool> own_;
  ThreadPool* pool_;
};

// Ends a long call where kvt_ctx_cancel was called.
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

// The name of a tensor in the files that kvtool writes.
inline std::string PartName(uint32_t layer, bool is_value) {
  return fmt::format("{}_{}", is_value ? 'v' : 'k', layer);
}

}  // namespace kv::api
