// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>

#include "lib/core/codec/backends.h"
#include "lib/engines/mnn/runtime/config.h"

namespace kv::mnn::runtime {

// Turns a range of K or V, gathered as [head][token][dim], into a blob and back. Tests derive
// codecs that fail or damage blobs. Any thread may call it, each with scratch memory of its own.
class RangeCodec {
 public:
  virtual ~RangeCodec() = default;
  // Throws on failure; an empty blob counts as a failure too.
  virtual Bytes Encode(bool is_value, uint32_t element_bytes, ByteSpan raw,
                       CodecScratch& scratch) const = 0;
  // Fills `raw` or throws.
  virtual void Decode(bool is_value, uint32_t element_bytes, ByteSpan blob,
                      std::span<std::byte> raw, CodecScratch& scratch) const = 0;
};

// The engine's codec, which makes a gear container per tensor.
class GearRangeCodec : public RangeCodec {
 public:
  explicit GearRangeCodec(const Config& config)
      : keys_(config.predictors_k), values_(config.predictors_v) {}

  Bytes Encode(bool is_value, uint32_t element_bytes, ByteSpan raw,
               CodecScratch& scratch) const override;
  void Decode(bool is_value, uint32_t element_bytes, ByteSpan blob, std::span<std::byte> raw,
              CodecScratch& scratch) const override;

 private:
  PredictorSet keys_, values_;
};

}  // namespace kv::mnn::runtime
