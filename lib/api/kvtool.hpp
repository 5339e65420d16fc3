// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
//
// kvtool.hpp: kvtool.h with owners, spans and exceptions, C++20. Every function is inline, so no
// C++ type crosses the library's boundary and any compiler will do. kvtool.h has the rules and the
// meaning of each call.
#ifndef KVTOOL_HPP_
#define KVTOOL_HPP_

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvtool.h"

namespace kvtool {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;
using Key = std::array<uint8_t, 16>;  // a context

// A call that failed: its finding (1103 of KV1103), whose fault it is, where in the input.
class Error : public std::exception {
 public:
  Error(kvt_status status, uint64_t offset, std::string_view message, std::string_view hint)
      : status_(status), offset_(offset), hint_(hint) {
    text_ = std::string(message.empty() ? kvt_explain(status, 1) : message) + " [" +
            kvt_explain(status, 0) + "]";
  }

  kvt_status status() const noexcept { return status_; }
  int finding() const noexcept { return -status_; }
  int fault() const noexcept { return kvt_fault(status_); }
  uint64_t offset() const noexcept { return offset_; }  // UINT64_MAX: none
  const std::string& hint() const noexcept { return hint_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  kvt_status status_;
  uint64_t offset_;
  std::string text_, hint_;
};

inline void Check(kvt_status status) {
  if (status != 0) throw Error(status, UINT64_MAX, {}, {});
}

// The 16 bytes that name what a frame holds.
inline Key MakeKey(std::string_view text) {
  Key key;
  kvt_hash128(text.data(), text.size(), key.data());
  return key;
}

// A description with its size filled in; the other fields may be set afterwards.
inline kvt_desc Describe(uint8_t dtype, uint64_t tokens, uint32_t heads, uint32_t head_dim,
                         const Key& context = {}) {
  kvt_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.dtype = dtype;
  desc.tokens = tokens;
  desc.heads = heads;
  desc.head_dim = head_dim;
  for (size_t i = 0; i < context.size(); ++i) desc.context[i] = context[i];
  return desc;
}

// The header of a frame. Throws Error.
inline kvt_info Info(Bytes frame) {
  kvt_info info = {};
  info.struct_size = sizeof info;
  Check(kvt_frame_info(frame.data(), frame.size(), &info));
  return info;
}

// Worker threads; must outlive the contexts that use it.
class Pool {
 public:
  explicit Pool(uint32_t threads = 0) {
    kvt_pool* pool = nullptr;
    Check(kvt_pool_create(threads, &pool));
    pool_.reset(pool);
  }
  kvt_pool* get() const { return pool_.get(); }

 private:
  struct Free {
    void operator()(kvt_pool* pool) const { kvt_pool_free(pool); }
  };
  std::unique_ptr<kvt_pool, Free> pool_;
};

// One per thread. Methods throw Error; those named Try return the status instead and never throw.
class Context {
 public:
  explicit Context(uint32_t level = KVT_DEFAULT, const Pool* pool = nullptr,
                   uint64_t max_raw_bytes = 0) {
    const kvt_params params = {sizeof params, level, max_raw_bytes,
                               pool == nullptr ? nullptr : pool->get()};
    kvt_ctx* ctx = nullptr;
    Check(kvt_ctx_create(&params, &ctx));
    ctx_.reset(ctx);
  }

  std::vector<std::byte> Encode(const kvt_desc& desc, Bytes raw) {
    std::vector<std::byte> frame(kvt_encode_bound(raw.size()));
    frame.resize(Encode(desc, raw, frame));
    return frame;
  }
  // Into caller's memory; the size of the frame.
  size_t Encode(const kvt_desc& desc, Bytes raw, MutableBytes frame) {
    size_t written = 0;
    Raise(kvt_encode(get(), &desc, raw.data(), raw.size(), frame.data(), frame.size(), &written));
    return written;
  }

  void Decode(Bytes frame, const Key& context, MutableBytes raw) {
    Raise(TryDecode(frame, context, raw));
  }
  [[nodiscard]] kvt_status TryDecode(Bytes frame, const Key& context, MutableBytes raw) noexcept {
    return kvt_decode(get(), frame.data(), frame.size(), context.data(), raw.data(), raw.size());
  }
  // Bytes written to the front of `raw`.
  size_t DecodeTokens(Bytes frame, const Key& context, uint64_t begin, uint64_t count,
                      MutableBytes raw) {
    size_t written = 0;
    Raise(kvt_decode_tokens(get(), frame.data(), frame.size(), context.data(), begin, count,
                            raw.data(), raw.size(), &written));
    return written;
  }
  [[nodiscard]] kvt_status TryVerify(Bytes frame, const Key& context) noexcept {
    return kvt_verify(get(), frame.data(), frame.size(), context.data());
  }

  // Statuses lie in the items; the call's is the first failed item's.
  [[nodiscard]] kvt_status EncodeBatch(std::span<kvt_item> items) noexcept {
    return kvt_encode_batch(get(), items.data(), items.size(), sizeof(kvt_item));
  }
  [[nodiscard]] kvt_status DecodeBatch(std::span<kvt_item> items) noexcept {
    return kvt_decode_batch(get(), items.data(), items.size(), sizeof(kvt_item));
  }

  // What `level` is likely to make of these bytes, from a sample.
  kvt_rate Estimate(const kvt_desc& desc, Bytes raw, uint32_t level) {
    kvt_rate rate = {sizeof rate, level, 0, 0, 0};
    Raise(kvt_estimate(get(), &desc, raw.data(), raw.size(), &rate, 1, sizeof rate));
    return rate;
  }

  void BlockScores(const kvt_scores& scores, std::span<float> sums) {
    Raise(kvt_block_scores(get(), &scores, sums.data(), sums.size()));
  }

  void Cancel() noexcept { kvt_ctx_cancel(get()); }  // any thread
  kvt_stats Stats() const noexcept {                 // any thread
    kvt_stats stats = {};
    stats.struct_size = sizeof stats;
    kvt_ctx_stats(get(), &stats);
    return stats;
  }
  kvt_ctx* get() const noexcept { return ctx_.get(); }

 private:
  void Raise(kvt_status status) const {
    if (status == 0) return;
    kvt_error error = {};
    error.struct_size = sizeof error;
    kvt_ctx_error(get(), &error);
    // A context that was busy kept no error of this call.
    if (error.status != status) Check(status);
    throw Error(status, error.offset, error.message, error.hint);
  }

  struct Free {
    void operator()(kvt_ctx* ctx) const { kvt_ctx_free(ctx); }
  };
  std::unique_ptr<kvt_ctx, Free> ctx_;
};

// MNN's eviction for one sequence.
class H2o {
 public:
  static kvt_h2o_params Defaults() {
    kvt_h2o_params params = {};
    params.struct_size = sizeof params;
    kvt_h2o_defaults(&params);
    return params;
  }
  H2o(const Context& context, const kvt_h2o_params& params, const kvt_geometry& geometry) {
    kvt_h2o* h2o = nullptr;
    Check(kvt_h2o_create(context.get(), &params, &geometry, &h2o));
    h2o_.reset(h2o);
  }

  // The plans point into the object until its next call.
  kvt_h2o_call Begin(uint64_t new_tokens) {
    kvt_h2o_call call = {};
    call.struct_size = sizeof call;
    Check(kvt_h2o_begin(h2o_.get(), new_tokens, &call));
    return call;
  }
  kvt_h2o_call Finish(std::span<const float> block_sums, uint64_t query_rows) {
    kvt_h2o_call call = {};
    call.struct_size = sizeof call;
    Check(kvt_h2o_finish(h2o_.get(), block_sums.data(), block_sums.size(), query_rows, &call));
    return call;
  }
  void Truncate(uint32_t layer, uint64_t length) {
    Check(kvt_h2o_truncate(h2o_.get(), layer, length));
  }

 private:
  struct Free {
    void operator()(kvt_h2o* h2o) const { kvt_h2o_free(h2o); }
  };
  std::unique_ptr<kvt_h2o, Free> h2o_;
};

}  // namespace kvtool

#endif  // KVTOOL_HPP_
