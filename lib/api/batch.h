// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/api/context.h"

namespace kv::api {

// Encodes one frame. `written` may be nullptr; it is set as kvtool.h specifies for kvt_encode.
void EncodeFrame(kvt_ctx* ctx, FrameCoder& coder, const kvt_desc* desc, ByteSpan raw,
                 std::span<std::byte> out, size_t* written);
void DecodeFrame(kvt_ctx* ctx, FrameCoder& coder, ByteSpan frame, const Hash128Bytes* context,
                 std::span<std::byte> raw);

// The objects that one call or one ticket of a queue codes: items, or the pages of a table. Each is
// coded on its own, so that a bad one affects no other.
class Batch {
 public:
  // `memory` is scratch for the checks. Sets the status of every item: KV0010 if one of its buffers
  // overlaps a buffer that the batch writes, else 0. Throws kBadArgument for an array that memory
  // cannot hold, and for a table that contradicts itself or whose memory overlaps the batch's
  // outputs.
  Batch(const kvt_ctx* ctx, const kvt_batch& batch, kvt_ctx::BatchWorker& memory);
  size_t count() const { return is_table_ ? entries_.size() : items_.size(); }
  // Returns true if several threads can share one object: the segments of a frame.
  bool has_frames() const { return !is_table_; }
  // Codes one object, or refuses it if `state` was cancelled. Either way sets its status and
  // records a failure. May be called from any thread.
  void Run(kvt_ctx* ctx, const CallState& state, size_t index, FrameCoder& coder,
           kvt_ctx::BatchWorker& memory, FirstFailure& first) const;

 private:
  void CheckTable(const kvt_ctx* ctx, std::vector<kvt_ctx::BatchRange>& ranges) const;
  void CodeItem(kvt_ctx* ctx, kvt_item& item, FrameCoder& coder, Bytes& memory) const;
  void CodePage(kvt_ctx* ctx, size_t index, FrameCoder& coder) const;

  bool encodes_, is_table_;
  kvt_table table_ = {};
  Elements<kvt_item> items_;
  Elements<kvt_entry> entries_;  // entries of the table
  FrameDescription page_;
};

// Codes a whole batch on the threads of the context's pool.
kvt_status CallBatch(kvt_ctx* ctx, const kvt_batch& batch);

}  // namespace kv::api
