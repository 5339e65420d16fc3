// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/api/context.h"

namespace kv::api {

// Encodes one frame. `written` may be null, and is set as kvtool.h says of kvt_encode.
void EncodeFrame(kvt_ctx* ctx, FrameCoder& coder, const kvt_desc* desc, ByteSpan raw,
                 std::span<std::byte> out, size_t* written);
void DecodeFrame(kvt_ctx* ctx, FrameCoder& coder, ByteSpan frame, const Hash128Bytes* context,
                 std::span<std::byte> raw);

// The objects that one call or one ticket of a queue codes: items, or the pages of a table. Each is
// coded alone, so that a bad one changes no other.
class Batch {
 public:
  // `memory` lends room for the checks. Sets the status of every item: KV0010 if a buffer of it
  // overlaps one that the batch writes, else 0. Throws kBadArgument for an array that memory cannot
  // hold, and for a table that contradicts itself or whose memory overlaps what the batch writes.
  Batch(const kvt_ctx* ctx, const kvt_batch& batch, kvt_ctx::BatchWorker& memory);
  size_t count() const { return is_table_ ? entries_.size() : items_.size(); }
  // Returns whether several threads can share one object: the segments of a frame.
  bool has_frames() const { return !is_table_; }
  // Codes one object, unless `state` was cancelled, sets its status and notes its failure. Any
  // thread.
  void Run(kvt_ctx* ctx, const CallState& state, size_t index, FrameCoder& coder,
           kvt_ctx::BatchWorker& memory, FirstFailure& first) const;

 private:
  void CheckTable(const kvt_ctx* ctx, std::vector<kvt_ctx::BatchRange>& ranges) const;
  void CodeItem(kvt_ctx* ctx, kvt_item& item, FrameCoder& coder, Bytes& memory) const;
  void CodePage(kvt_ctx* ctx, size_t index, FrameCoder& coder) const;

  bool encodes_, is_table_;
  kvt_table table_ = {};
  Elements<kvt_item> items_;
  Elements<kvt_entry> entries_;  // of the table
  FrameDescription page_;
};

// Codes a whole batch on the threads of the context's pool.
kvt_status CallBatch(kvt_ctx* ctx, const kvt_batch& batch);

}  // namespace kv::api
