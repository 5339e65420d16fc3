// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Chunks whose repeated rows are stored once (wrappers.h; FORMAT.md in this folder): finding equal
// rows, and the references that tell where they go.

#include <bit>
#include <cstring>

#include "lib/core/codec/wrappers/wrappers.h"

namespace kv {
namespace {

// Returns the bytes per reference, each of which is stored as a plane: as many as the number of
// distinct rows needs.
uint32_t ReferenceBytes(uint32_t unique) {
  return (static_cast<uint32_t>(std::bit_width(unique)) + 7) / 8;
}

// Hashes the first and the last sixteen bytes only; equal rows have equal hashes.
uint64_t HashOfEnds(ByteSpan row) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  uint64_t words[4] = {};
  if (row.size() >= 16) {
    std::memcpy(words, row.data(), 16);
    std::memcpy(words + 2, row.data() + row.size() - 16, 16);
  } else {
    std::memcpy(words, row.data(), row.size());
  }
  uint64_t hash = 0;
  for (const uint64_t word : words) {
    hash = (hash ^ word) * kOdd;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

RowPlan FindRepeatedRows(ByteSpan raw, uint64_t row_bytes, Arena* arena) {
  KV_ASSERT(row_bytes > 0 && raw.size() % row_bytes == 0);
  // Rows are hashed by their beginning and end, and compared in full only with rows of the same
  // hash. At most kMostTries rows are compared, so that rows which differ only in the middle do not
  // take quadratic time.
  constexpr int kMostTries = 8;
  const uint64_t rows = raw.size() / row_bytes;
  RowPlan plan;
  plan.references = ArenaVector<uint32_t>(arena);
  plan.references.reserve(rows);
  struct Slot {
    uint64_t hash = 0;
    uint32_t row = 0, number = 0;  // number: index of the distinct row + 1; 0 marks a free slot
  };
  ArenaVector<Slot> slots(std::bit_ceil(2 * rows), arena);
  for (uint64_t row = 0; row < rows; ++row) {
    const ByteSpan bytes = raw.subspan(row * row_bytes, row_bytes);
    const uint64_t hash = HashOfEnds(bytes);
    uint64_t at = hash & (slots.size() - 1);
    int tries = 0;
    while (slots[at].number != 0) {
      if (slots[at].hash == hash) {
        if (std::memcmp(bytes.data(), raw.data() + slots[at].row * row_bytes, row_bytes) == 0)
          break;
        if (++tries == kMostTries) break;
      }
      at = (at + 1) & (slots.size() - 1);
    }
    const bool found = slots[at].number != 0 && tries < kMostTries;
    plan.references.push_back(found ? slots[at].number : 0);
    if (!found) ++plan.unique;
    if (slots[at].number == 0) slots[at] = {hash, static_cast<uint32_t>(row), plan.unique};
  }
  return plan;
}

std::span<std::byte> NewRows(const RowPlan& plan, ByteSpan raw, uint64_t row_bytes,
                             CodecScratch& scratch) {
  const std::span<std::byte> rows =
      scratch.rows.Get(plan.unique * row_bytes).first(plan.unique * row_bytes);
  std::byte* out = rows.data();
  for (size_t row = 0; row < plan.references.size(); ++row) {
    if (plan.references[row] != 0) continue;
    std::memcpy(out, raw.data() + row * row_bytes, row_bytes);
    out += row_bytes;
  }
  return rows;
}

void WriteReferences(const RowPlan& plan, CodecScratch& scratch, Bytes& out) {
  const uint32_t width = ReferenceBytes(plan.unique);
  Arena* const arena = &scratch.context.arena;
  ArenaVector<std::byte> planes(arena);
  planes.reserve(width * plan.references.size());
  for (uint32_t byte = 0; byte < width; ++byte) {
    for (const uint32_t reference : plan.references)
      planes.push_back(static_cast<std::byte>(reference >> (8 * byte)));
  }
  // Repeated phrases of the text appear as matches here, if there are any; otherwise literals are
  // smaller.
  ArenaVector<std::byte> frame(Zstd::Bound(planes.size()), arena), literals(frame.size(), arena);
  frame.resize(scratch.zstd.Compress(planes, frame));
  literals.resize(scratch.zstd.CompressLiterals(planes, literals));
  if (frame.empty() || (!literals.empty() && literals.size() < frame.size())) frame.swap(literals);
  KV_ASSERT(!frame.empty());
  ByteWriter header;
  header.U32(plan.unique);
  header.U32(static_cast<uint32_t>(frame.size()));
  header.Append(frame);
  out.insert(out.end(), header.bytes().begin(), header.bytes().end());
}

RowPlan ReadReferences(ByteReader& reader, uint64_t rows, CodecScratch& scratch) {
  RowPlan plan;
  plan.references = ArenaVector<uint32_t>(&scratch.context.arena);
  const uint64_t at = reader.offset();
  plan.unique = reader.U32("new rows");
  if (plan.unique == 0 || plan.unique > rows) {
    throw Error(Finding::kBadFrame, "{} of {} rows cannot be new", plan.unique, rows).At(at);
  }
  const uint32_t size = reader.U32("length of the references");
  const ByteSpan frame = reader.Take(size, "references");
  const uint32_t width = ReferenceBytes(plan.unique);
  const std::span<std::byte> planes = scratch.planes.Get(rows * width).first(rows * width);
  if (!scratch.zstd.Decompress(frame, planes)) {
    throw Error(Finding::kBadPayload, "the references do not decode to {} bytes", planes.size())
        .At(at + 8);
  }
  plan.references.reserve(rows);
  uint32_t next = 0;
  for (uint64_t row = 0; row < rows; ++row) {
    uint32_t reference = 0;
    for (uint32_t byte = 0; byte < width; ++byte)
      reference |= static_cast<uint32_t>(planes[byte * rows + row]) << (8 * byte);
    if (reference == 0) ++next;
    if (reference > next || next > plan.unique) {
      throw Error(Finding::kBadFrame, "row {} refers to a row that does not exist", row).At(at + 8);
    }
    plan.references.push_back(reference);
  }
  if (next != plan.unique) {
    throw Error(Finding::kBadFrame, "{} rows are new, but the header says {}", next, plan.unique)
        .At(at);
  }
  return plan;
}

void RepeatRows(const RowPlan& plan, ByteSpan new_rows, uint64_t row_bytes,
                std::span<std::byte> raw) {
  KV_ASSERT(new_rows.size() == plan.unique * row_bytes &&
            raw.size() == plan.references.size() * row_bytes);
  uint64_t next = 0;
  for (size_t row = 0; row < plan.references.size(); ++row) {
    const uint64_t from = plan.references[row] == 0 ? next++ : plan.references[row] - 1;
    std::memcpy(raw.data() + row * row_bytes, new_rows.data() + from * row_bytes, row_bytes);
  }
}

ArenaVector<uint32_t> StepsOfNewRows(const RowPlan& plan, const RowSteps& steps, Arena* arena) {
  ArenaVector<uint32_t> of_new(arena);
  if (steps.empty()) return of_new;
  CheckSteps(steps, plan.references.size());
  of_new.reserve(plan.unique);
  for (size_t row = 0; row < plan.references.size(); ++row) {
    if (plan.references[row] == 0) of_new.push_back(steps[row]);
  }
  return of_new;
}

ChunkShape NewRowsShape(const ChunkShape& shape, const RowPlan& plan, const ChunkGrid& grid) {
  return {shape.dtype, plan.unique, 1, grid.columns, Order::kTokenHeadDim};
}

EncodedChunk JoinRows(const RowPlan& plan, EncodedChunk inner, CodecScratch& scratch) {
  EncodedChunk chunk{CodecId::kRows, scratch.NewPayload(), {}};
  chunk.payload.push_back(static_cast<std::byte>(inner.codec));
  WriteReferences(plan, scratch, chunk.payload);
  chunk.payload.insert(chunk.payload.end(), inner.payload.begin(), inner.payload.end());
  chunk.planes = std::move(inner.planes);
  scratch.Recycle(std::move(inner.payload));
  return chunk;
}

void DecodeRepeatedRows(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                        CodecScratch& scratch, const ChunkInputs& inputs, InnerDecoder inner) {
  const ChunkGrid grid = FindGrid(shape, raw.size());
  const uint64_t row_bytes = raw.size() / grid.rows;
  if (raw.empty() || row_bytes * grid.rows != raw.size()) {
    throw Error(Finding::kBadFrame, "{} bytes are not {} rows", raw.size(), grid.rows);
  }
  ByteReader reader(payload);
  const auto codec = static_cast<CodecId>(reader.U8("codec of the rows"));
  if (codec == CodecId::kRows || !MayBeInside(codec)) {
    throw Error(Finding::kBadFrame, "a chunk of rows cannot hold rows, a split chunk or references")
        .At(0);
  }
  const RowPlan plan = ReadReferences(reader, grid.rows, scratch);
  const uint64_t new_bytes = plan.unique * row_bytes;
  const std::span<std::byte> new_rows = scratch.rows.Get(new_bytes).first(new_bytes);
  const auto new_steps = StepsOfNewRows(plan, inputs.steps, &scratch.context.arena);
  ChunkInputs of_new = inputs;
  of_new.steps = RowSteps(new_steps);
  inner(codec, NewRowsShape(shape, plan, grid), reader.Take(reader.remaining(), "rows"), new_rows,
        scratch, of_new);
  RepeatRows(plan, new_rows, row_bytes, raw);
}

}  // namespace kv
