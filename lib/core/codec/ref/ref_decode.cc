// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "lib/core/codec/chunk_levels.h"
#include "lib/core/codec/ref/runs.h"
#include "lib/core/codec/ref_cdf/near_distributions.h"
#include "lib/core/codec/ref_layers/ref_layers.h"
#include "lib/core/codec/ref_sparse/near_differences.h"

namespace kv {
namespace {

// Makes sure that rows are those that the encoder had.
void RequireHash(ByteSpan rows, const ReferenceRun& run) {
  if (Hash128(rows) != run.hash) {
    throw Error(Finding::kReferenceDiffers,
                fmt::format("tokens {}:{} of layer {} {} of reference {} are not those that the "
                            "chunk was coded with",
                            run.first_token, run.first_token + run.rows, run.layer,
                            run.is_value ? 'V' : 'K', run.reference));
  }
}

void RequireRows(bool fits, const ReferenceRun& run) {
  if (fits) return;
  throw Error(
      Finding::kReferenceDiffers,
      fmt::format("rows of layer {} {} of reference {} are of another size than the chunk's",
                  run.layer, run.is_value ? 'V' : 'K', run.reference));
}

uint64_t BytesOf(const ChunkShape& shape) {
  return shape.tokens * shape.heads * shape.units_per_head * Info(shape.dtype).block_bytes;
}

void DecodeByNeighbours(const ChunkShape& shape, const ErrorsHead& head,
                        std::span<const ReferenceRun> near_runs, uint64_t rows,
                        const ReferenceRows& references, ByteReader& reader, NearRows& near,
                        CodecScratch& scratch) {
  if (!FitsLayers(shape) || rows != shape.tokens || near.columns > BlockRegression::kMaxColumns)
    throw Error(Finding::kBadFrame, "the chunk's rows are not tokens").At(0);
  if (scratch.neighbours == nullptr)
    throw Error(Finding::kLostChunk, "the chunk needs others of its archive");
  NeighbourErrors forecast(head, near_runs, rows, near.columns, references, *scratch.neighbours);
  for (size_t i = 0; i < head.neighbours.size(); ++i) {
    const ErrorNeighbour& one = head.neighbours[i];
    if (forecast.hashes()[i] == one.hash) continue;
    throw Error(Finding::kReferenceDiffers,
                fmt::format("tokens of layer {} {} of the references are not those that the chunk "
                            "was coded with",
                            one.layers.front(), one.neighbour.is_value ? 'V' : 'K'));
  }
  DecodeNearDistributions(reader, near, scratch, &forecast);
}

}  // namespace

void ReferenceRows::ReadEqual(const ReferenceRun& run, DType dtype, uint64_t elements,
                              std::span<std::byte> rows) const {
  Bytes bytes;
  RequireRows(Read(run, elements, bytes) == dtype && bytes.size() == rows.size(), run);
  std::copy(bytes.begin(), bytes.end(), rows.begin());
}

std::vector<ReferenceRun> ReadReferenceRuns(const ChunkShape& shape, ByteSpan payload) {
  ByteReader reader(payload);
  return ReadReferenceHead(reader, shape, BytesOf(shape)).runs;
}

void DecodeRowsWithoutReference(const ChunkShape& shape, ByteSpan payload, CodecScratch& scratch,
                                std::span<std::byte> rows) {
  ByteReader reader(payload);
  const uint64_t row_bytes = shape.heads * shape.units_per_head * Info(shape.dtype).block_bytes;
  const ReferenceHead head = ReadReferenceHead(reader, shape, shape.tokens * row_bytes);
  uint64_t own = shape.tokens;
  for (const ReferenceRun& run : head.runs) {
    KV_ASSERT(run.equal);
    own -= run.rows;
  }
  const ByteSpan own_chunk = reader.Take(head.own_bytes, "own rows");
  reader.ExpectEnd("the frame");
  if (own == 0 || rows.size() != own * row_bytes)
    throw Error(Finding::kBadFrame, "the chunk has other own rows").At(0);
  const ChunkShape own_shape =
      own == shape.tokens ? shape : OwnRowsShape(shape, shape.tokens * row_bytes, own);
  DecodeChunk(head.own_codec, own_shape, own_chunk, rows, scratch);
}

std::vector<Neighbour> ReadErrorNeighbours(const ChunkShape& shape, ByteSpan payload) {
  ByteReader reader(payload);
  uint64_t near_runs = 0;
  for (const ReferenceRun& run : ReadReferenceHead(reader, shape, BytesOf(shape)).runs)
    near_runs += run.equal ? 0 : 1;
  std::vector<Neighbour> neighbours;
  if (near_runs == 0) return neighbours;
  for (const ErrorNeighbour& one : ReadErrorsHead(reader, near_runs).neighbours)
    neighbours.push_back(one.neighbour);
  return neighbours;
}

template <CodecId kCodec>
void DecodeByReference(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                       CodecScratch& scratch) {
  const bool content_is_checked = std::exchange(scratch.content_is_checked, false);
  ByteReader reader(payload);
  const ReferenceHead head = ReadReferenceHead(reader, shape, raw.size());
  constexpr bool kByNeighbours = kCodec == CodecId::kRefLayers;
  std::vector<ReferenceRun> near_runs;
  for (const ReferenceRun& run : head.runs) {
    if (!run.equal) near_runs.push_back(run);
  }
  ErrorsHead errors;
  if (kByNeighbours && !near_runs.empty()) errors = ReadErrorsHead(reader, near_runs.size());
  const ByteSpan own_chunk = reader.Take(head.own_bytes, "own rows");
  const uint64_t rows = ReferenceGridRows(shape, raw.size());
  if (raw.empty()) throw Error(Finding::kBadFrame, "a chunk without rows").At(0);
  const uint64_t row_bytes = raw.size() / rows;
  const ReferenceRows* references = scratch.references;
  scratch.references = nullptr;  // own rows have none

  const uint64_t near_rows =
      std::accumulate(near_runs.begin(), near_runs.end(), uint64_t{0},
                      [](uint64_t sum, const ReferenceRun& run) { return sum + run.rows; });
  NearRows near(&scratch.context.arena);
  near.bfloat = shape.dtype == DType::kBF16;
  near.columns = row_bytes / Info(shape.dtype).block_bytes;
  near.factors.resize(near_rows);
  near.expected.resize(near_rows * near.columns);
  near.values.resize(near.expected.size());
  const uint64_t rotation_at = reader.offset();
  const Rotation rotation = near_rows > 0 ? ReadRotation(reader, near.columns) : Rotation();
  ExpectedRows expected(near.bfloat, near.columns, rotation);

  if (references == nullptr && !head.runs.empty()) {
    throw Error(Finding::kReferenceMissing, "the chunk needs rows of another cache")
        .Hint("give the cache that it was coded against with --base");
  }
  std::vector<uint8_t> is_own(rows, 1);
  Bytes bytes = scratch.NewPayload();
  uint64_t at = 0;
  for (const ReferenceRun& run : head.runs) {
    std::fill_n(is_own.begin() + run.first_row, run.rows, uint8_t{0});
    const uint64_t elements = near.columns * Info(shape.dtype).block_elements;
    if (run.equal) {
      const std::span<std::byte> rows_here =
          raw.subspan(run.first_row * row_bytes, run.rows * row_bytes);
      references->ReadEqual(run, shape.dtype, elements, rows_here);
      if (!content_is_checked) RequireHash(rows_here, run);
      continue;
    }
    const DType dtype = references->Read(run, elements, bytes);
    RequireHash(bytes, run);
    const DTypeInfo& info = Info(dtype);
    RequireRows(
        near.columns % info.block_elements == 0 &&
            bytes.size() == run.rows * (near.columns / info.block_elements * info.block_bytes),
        run);
    if (run.turn != 0 && rotation.turns.empty())
      throw Error(Finding::kBadFrame, "rows are turned by angles that are not there")
          .At(rotation_at);
    expected.Make(dtype, bytes, run.turn, near.expected.data() + at * near.columns);
    at += run.rows;
  }
  scratch.Recycle(std::move(bytes));
  if (near_rows > 0 && kByNeighbours) {
    DecodeByNeighbours(shape, errors, near_runs, rows, *references, reader, near, scratch);
  } else if (near_rows > 0) {
    kCodec == CodecId::kRefCdf      ? DecodeNearDistributions(reader, near, scratch)
    : kCodec == CodecId::kRefSparse ? DecodeNearDifferences(reader, near, scratch)
                                    : DecodeNearRows(reader, near, scratch);
  }
  reader.ExpectEnd("the frame");

  at = 0;
  for (const ReferenceRun& run : head.runs) {
    for (uint64_t row = run.first_row; !run.equal && row < run.first_row + run.rows; ++row, ++at) {
      is_own[row] = near.factors[at] == kOwnRow ? 1 : 0;
      if (is_own[row] != 0) continue;
      std::memcpy(raw.data() + row * row_bytes, near.values.data() + at * near.columns, row_bytes);
    }
  }
  const auto own = static_cast<uint64_t>(std::count(is_own.begin(), is_own.end(), uint8_t{1}));
  if ((own == 0) != (head.own_bytes == 0))
    throw Error(Finding::kBadFrame, "the own rows do not fit the runs").At(0);
  if (own == 0) return;
  if (own == rows) return DecodeChunk(head.own_codec, shape, own_chunk, raw, scratch);
  const ChunkShape own_shape = OwnRowsShape(shape, raw.size(), own);
  // Mostly they follow each other: what a cache has beyond its reference.
  const auto first = static_cast<uint64_t>(std::ranges::find(is_own, 1) - is_own.begin());
  if (std::all_of(is_own.begin() + static_cast<ptrdiff_t>(first),
                  is_own.begin() + static_cast<ptrdiff_t>(std::min(first + own, rows)),
                  [](uint8_t one) { return one != 0; })) {
    return DecodeChunk(head.own_codec, own_shape, own_chunk,
                       raw.subspan(first * row_bytes, own * row_bytes), scratch);
  }
  ArenaVector<std::byte> own_rows(own * row_bytes, &scratch.context.arena);
  DecodeChunk(head.own_codec, own_shape, own_chunk, own_rows, scratch);
  const std::byte* from = own_rows.data();
  for (uint64_t row = 0; row < rows; ++row) {
    if (is_own[row] == 0) continue;
    std::memcpy(raw.data() + row * row_bytes, from, row_bytes);
    from += row_bytes;
  }
}
template void DecodeByReference<CodecId::kRef>(const ChunkShape&, ByteSpan, std::span<std::byte>,
                                               CodecScratch&);
template void DecodeByReference<CodecId::kRefCdf>(const ChunkShape&, ByteSpan, std::span<std::byte>,
                                                  CodecScratch&);
template void DecodeByReference<CodecId::kRefLayers>(const ChunkShape&, ByteSpan,
                                                     std::span<std::byte>, CodecScratch&);
template void DecodeByReference<CodecId::kRefSparse>(const ChunkShape&, ByteSpan,
                                                     std::span<std::byte>, CodecScratch&);

}  // namespace kv
