// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "formats/kvcm/kvcm.h"

namespace kv {
namespace {

uint16_t CodeOf(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 0;
    case DType::kBF16:
      return 1;
    case DType::kF32:
      return 2;
    default:
      throw Error(Finding::kUnsupportedDtype,
                  fmt::format("a .bin holds fp16, bf16 or fp32, not {}", Name(dtype)));
  }
}

}  // namespace

RoundingCounts WriteKvcm(const CompressorWeights& weights, DType dtype, Sink& sink) {
  const WeightsHeader& header = weights.header;
  KV_ASSERT(weights.blocks.size() == uint64_t{header.num_layers} * header.blocks_per_layer);
  ByteWriter head;
  head.U32(kKvcmMagic);
  head.U32(kKvcmVersion);
  head.U16(CodeOf(dtype));
  head.U16(0);
  head.U32(header.num_layers);
  head.U32(header.num_heads);
  head.U32(header.head_dim);
  head.U32(header.hidden_size);
  head.U32(header.compression_factor);
  head.U32(header.min_seq_len);
  head.U32(header.blocks_per_layer);
  head.U32(static_cast<uint32_t>(weights.metadata.size()));
  sink.Write(head.bytes());
  sink.Write(weights.metadata);

  RoundingCounts counts;
  for (const LinearBlock& block : weights.blocks) {
    ByteWriter shape;
    shape.U32(static_cast<uint32_t>(block.rows()));
    shape.U32(static_cast<uint32_t>(block.cols()));
    shape.U32(block.has_bias() ? 1 : 0);
    sink.Write(shape.bytes());
    sink.Write(RoundValues(block.weight, dtype, &counts));
    if (block.has_bias()) sink.Write(RoundValues(block.bias, dtype, &counts));
  }
  return counts;
}

}  // namespace kv
