// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/ref/runs.h"

#include <fmt/format.h>

#include "lib/core/codec/chunk_levels.h"
#include "lib/core/codec/split/split.h"

namespace kv {

void WriteReferenceHead(const ReferenceHead& head, ByteWriter& out) {
  out.U8(static_cast<uint8_t>(head.own_codec));
  out.U8(0);
  out.U16(0);
  out.U32(head.own_bytes);
  out.U32(static_cast<uint32_t>(head.runs.size()));
  for (const ReferenceRun& run : head.runs) {
    out.U16(run.reference);
    out.U8(run.is_value ? 1 : 0);
    out.U8(run.equal ? 1 : 0);
    out.U32(run.layer);
    out.U32(run.first_row);
    out.U32(run.rows);
    out.U64(run.first_token);
    out.I32(run.turn);
    out.Append(run.hash);
  }
}

ReferenceHead ReadReferenceHead(ByteReader& reader, const ChunkShape& shape, uint64_t raw_bytes) {
  const auto require = [&](bool holds, std::string_view rule) {
    if (!holds) throw Error(Finding::kBadFrame, fmt::format("reference runs: {}", rule)).At(0);
  };
  const uint64_t rows = ReferenceGridRows(shape, raw_bytes);
  const bool halves = (shape.dtype == DType::kF16 || shape.dtype == DType::kBF16) && rows > 0 &&
                      raw_bytes % (2 * rows) == 0;
  ReferenceHead head;
  head.own_codec = static_cast<CodecId>(reader.U8("codec of own rows"));
  require(reader.U8("reserved field") == 0 && reader.U16("reserved field") == 0,
          "a reserved field is not 0");
  require(!NeedsOthers(head.own_codec) && head.own_codec != kSplitCodec,
          "own rows refer to nothing");
  head.own_bytes = reader.U32("bytes of own rows");
  const uint32_t count = reader.U32("number of runs");
  require(count <= rows, "there are more runs than rows");
  ByteReader runs(reader.TakeArray(count, kRunBytes, "runs"), reader.offset());
  uint64_t next = 0;
  for (uint32_t i = 0; i < count; ++i) {
    ReferenceRun run;
    run.reference = runs.U16("reference");
    const uint8_t is_value = runs.U8("K or V"), equal = runs.U8("kind of run");
    run.is_value = is_value != 0;
    run.equal = equal != 0;
    run.layer = runs.U32("layer");
    run.first_row = runs.U32("first row");
    run.rows = runs.U32("rows");
    run.first_token = runs.U64("first token");
    run.turn = runs.I32("turn");
    const ByteSpan hash = runs.Take(run.hash.size(), "hash");
    std::copy(hash.begin(), hash.end(), run.hash.begin());
    require(is_value <= 1 && equal <= 1, "a run is of no kind that there is");
    require(run.rows > 0 && run.first_row >= next && run.first_row <= rows &&
                run.rows <= rows - run.first_row,
            "they are not in order or leave the chunk");
    require(run.first_token <= UINT64_MAX - run.rows, "tokens have no numbers of 64 bits");
    require(run.equal ? run.turn == 0 : halves, "only 16-bit floats are near others");
    next = uint64_t{run.first_row} + run.rows;
    head.runs.push_back(run);
  }
  return head;
}

uint64_t ReferenceGridRows(const ChunkShape& shape, uint64_t raw_bytes) {
  if (shape.order != Order::kTokenHeadDim) return 1;
  const uint64_t rows = GridOf(shape, raw_bytes).rows;
  return raw_bytes % rows == 0 && rows <= UINT32_MAX ? rows : 1;
}

ChunkShape OwnRowsShape(const ChunkShape& shape, uint64_t raw_bytes, uint64_t rows) {
  ChunkShape own = shape;
  own.tokens = rows;
  if (ReferenceGridRows(shape, raw_bytes) == 1 && rows == 1) {
    own.heads = 1;
    own.units_per_head = raw_bytes / Info(shape.dtype).block_bytes;
  }
  own.order = Order::kTokenHeadDim;
  return own;
}

}  // namespace kv
