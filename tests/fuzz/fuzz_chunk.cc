// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The input is a codec, dtype, tokens, columns, effort and flags, then a payload. The payload is
// decoded by the codec. It is also taken as values, which must come back both from the level and
// from the codec that the upper bits of the flags select.
#include <cstdlib>

#include "lib/core/base/half.h"
#include "lib/core/codec/cdf/layers.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/codec/ref/ref.h"
#include "lib/core/codec/ref/similar_rows.h"
#include "tests/fuzz/accepted.h"
#include "tests/support/any_codec.h"
#include "tests/support/profiles.h"

namespace {

using namespace kv;

// Rows that depend only on their number, so that a changed run often still has a matching hash.
class Pattern : public ReferenceRows {
 public:
  DType Read(const ReferenceRun& run, uint64_t elements, Bytes& rows) const override {
    rows.resize(2 * elements * run.rows);
    const uint64_t first = run.first_token * elements;
    for (size_t i = 0; i < rows.size() / 2; ++i)
      StoreLE(rows.data() + 2 * i,
              static_cast<uint16_t>(0x3800 + (first + i) * 2654435761u % 1024));
    return DType::kF16;
  }
};

// Other chunks of the archive, with as many rows and sixteen columns.
class PatternNeighbours : public NeighbourSource {
 public:
  explicit PatternNeighbours(uint64_t tokens) : tokens_(tokens) {}
  NeighbourChunk Read(const Neighbour& neighbour) const override {
    Bytes rows;
    Pattern().Read({.layer = neighbour.layer,
                    .rows = static_cast<uint32_t>(tokens_),
                    .first_token = neighbour.layer},
                   16, rows);
    return {neighbour.is_value ? DType::kBF16 : DType::kF16,
            std::make_shared<const Bytes>(std::move(rows))};
  }

 private:
  const uint64_t tokens_;
};

// Encodes the values with neighbours that do not predict them.
void RoundTripByLayers(uint64_t columns, ByteSpan values, CodecScratch& scratch) {
  if (columns == 0) return;
  const uint64_t rows = values.size() / 2 / columns;
  const ChunkShape shape{DType::kF16, rows, 1, columns, Order::kTokenHeadDim};
  if (!FitsLayers(shape)) return;
  const ByteSpan whole = values.first(rows * columns * 2);
  const PatternNeighbours neighbours(rows);
  const Neighbour wanted[] = {{1, false, 16}, {2, true, 7}};
  Bytes payload, back(whole.size());
  if (!EncodeByLayers(shape, whole, false, wanted, neighbours, UINT64_MAX, scratch, payload))
    std::abort();
  DecodeChunk(CodecId::kLayers, shape, payload, back, scratch, {.neighbours = &neighbours});
  if (!std::equal(back.begin(), back.end(), whole.begin())) std::abort();
}

// Encodes values near those of a reference (Pattern); the input decides how near.
void RoundTripByReference(const ChunkShape& shape, ByteSpan values, Effort effort,
                          CodecScratch& scratch) {
  if (values.empty() || shape.tokens == 0) return;
  const Pattern pattern;
  const ReferenceRun run{.rows = static_cast<uint32_t>(shape.tokens)};
  Bytes near;
  pattern.Read(run, shape.units_per_head, near);
  const size_t shared = std::min(near.size(), values.size());
  for (size_t i = 0; i < shared; ++i)
    near[i] ^= values[i] & static_cast<std::byte>(i % 2 != 0 ? 0x01 : 0x7f);
  near.resize(shape.tokens * shape.units_per_head * 2);
  const ChunkShape halves{DType::kF16, shape.tokens, 1, shape.units_per_head, shape.order};
  const EncodedChunk chunk = EncodeByReference(halves, near, std::span(&run, 1), {}, pattern,
                                               effort, scratch, EncoderAt(effort, scratch));
  Bytes back(near.size());
  DecodeChunk(chunk.codec, halves, chunk.payload, back, scratch, {.references = &pattern});
  if (back != near) std::abort();
}

// Encodes rows that differ from a reference as a neighbouring chunk does; the input sets low bits.
void RoundTripByErrors(uint64_t columns, ByteSpan values, CodecScratch& scratch) {
  if (columns == 0) return;
  const uint64_t rows = values.size() / 2 / columns;
  const ChunkShape shape{DType::kF16, rows, 1, columns, Order::kTokenHeadDim};
  if (!FitsLayers(shape)) return;
  const Pattern pattern;
  const PatternNeighbours source(rows);
  const ReferenceRun run{.rows = static_cast<uint32_t>(rows)};
  const BesideNeighbours beside{
      {{{1, false, 16}, {run}}, {{2, true, 7}, {run}}}, {0}, source, /*is_value=*/false};
  const NeighbourChunk here = source.Read(beside.all[0].neighbour);
  Bytes there, near;
  pattern.Read(run, 16, there);
  pattern.Read(run, columns, near);
  const auto half = [](const Bytes& rows, size_t i) {
    return F16ToF32(LoadLE<uint16_t>(rows.data() + 2 * i));
  };
  for (size_t i = 0; i < near.size() / 2; ++i) {
    const auto error = [&](size_t column) {
      const size_t at = i / columns * 16 + (i + column) % columns % 16;
      return half(*here.raw, at) - half(there, at);
    };
    const float sum = (error(0) - error(3)) + (error(7) - error(12));
    StoreLE(near.data() + 2 * i, F32ToF16(half(near, i) + sum / 16));
    near[2 * i] ^= values[2 * i] & std::byte{0x07};
  }
  Rotation rotation;
  if (columns == 16) rotation = {8, std::vector<uint32_t>(8, 0x01000000)};
  const EncodedChunk chunk =
      EncodeByReference(shape, near, std::span(&run, 1), rotation, pattern, Effort::kMax, scratch,
                        EncoderAt(Effort::kMax, scratch), &beside);
  Bytes back(near.size());
  DecodeChunk(chunk.codec, shape, chunk.payload, back, scratch,
              {.references = &pattern, .neighbours = &source});
  if (back != near) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 6) return 0;
  static CodecScratch scratch;
  const auto codec = static_cast<CodecId>(data[0]);
  const DType dtype = AllDTypes()[data[1] % AllDTypes().size()].dtype;
  const uint64_t tokens = data[2], columns = data[3];
  const auto effort = static_cast<Effort>(data[4] % 5);
  const ByteSpan rest = std::as_bytes(std::span(data + 6, size - 6));

  const ChunkShape shape{dtype, tokens, 1, columns, Order::kTokenHeadDim};
  Bytes raw(tokens * columns * Info(dtype).block_bytes);
  const Pattern pattern;
  const PatternNeighbours neighbours(tokens);
  static const auto profile = kv::test::TrainedProfile();
  ChunkInputs inputs{.references = &pattern, .neighbours = &neighbours, .profile = profile.get()};
  try {
    DecodeChunk(codec, shape, rest, raw, scratch, inputs);
    ++fuzz::accepted;
  } catch (const Error&) {
  }

  inputs.neighbours = nullptr;
  if (codec == CodecId::kLayers) RoundTripByLayers(columns, rest, scratch);
  if (codec == CodecId::kRefLayers) RoundTripByErrors(columns, rest, scratch);

  const uint64_t unit_bytes = Info(dtype).block_bytes;
  const uint64_t width = columns == 0 ? 1 : columns;
  const ChunkShape whole{dtype, rest.size() / (unit_bytes * width), 1, width, Order::kTokenHeadDim};
  const ByteSpan values = data[5] % 2 == 0 ? rest.first(whole.tokens * width * unit_bytes) : rest;
  Bytes back(values.size());
  const auto require_back = [&](const EncodedChunk& chunk) {
    DecodeChunk(chunk.codec, whole, chunk.payload, back, scratch, inputs);
    if (!std::equal(back.begin(), back.end(), values.begin(), values.end())) std::abort();
  };
  require_back(EncodeChunk(whole, values, effort, scratch));
  const CodecRow& row = Codecs()[data[5] / 2 % Codecs().size()];
  EncodedChunk chunk{row.id, {}, {}};
  if (!values.empty() && row.takes(dtype) &&
      kv::test::EncodeByRow(row, whole, values, *profile, scratch, chunk)) {
    require_back(chunk);
  }
  RoundTripByReference(whole, values, effort, scratch);
  return 0;
}
