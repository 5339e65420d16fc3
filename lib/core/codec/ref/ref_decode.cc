// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// The decoder of reference chunks (ref.h). Rows of references are untrusted: their hashes are
// compared before they are used, unless the caller compares a hash of the whole content.

#include <algorithm>
#include <cstring>

#include "lib/core/codec/codec.h"
#include "lib/core/codec/halves.h"
#include "lib/core/codec/ref/ref.h"
#include "lib/core/codec/ref/similar_rows.h"

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
    out.I32(run.position_shift);
    out.Append(run.hash);
  }
}

ReferenceHead ReadReferenceHead(ByteReader& reader, const ChunkShape& shape, uint64_t raw_bytes) {
  const auto require = [&](bool holds, std::string_view rule) {
    if (!holds) throw Error(Finding::kBadFrame, "reference runs: broken rule: {}", rule).At(0);
  };
  const uint64_t rows = ReferenceGridRows(shape, raw_bytes);
  const bool halves =
      AreHalves(shape.dtype) && rows > 0 && raw_bytes % (Info(shape.dtype).block_bytes * rows) == 0;
  ReferenceHead head;
  head.own_codec = static_cast<CodecId>(reader.U8("codec of the remaining rows"));
  require(reader.U8("reserved field") == 0 && reader.U16("reserved field") == 0,
          "a reserved field is not 0");
  require(MayBeInside(head.own_codec), "the codec of the remaining rows needs no other chunk");
  head.own_bytes = reader.U32("bytes of the remaining rows");
  const uint32_t count = reader.U32("number of runs");
  require(count <= rows, "there are no more runs than rows");
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
    run.position_shift = runs.I32("turn");
    const ByteSpan hash = runs.Take(run.hash.size(), "hash");
    std::copy(hash.begin(), hash.end(), run.hash.begin());
    require(is_value <= 1 && equal <= 1, "a run must be of K or V, and equal or similar");
    require(run.rows > 0 && run.first_row >= next && run.first_row <= rows &&
                run.rows <= rows - run.first_row,
            "runs are in order and within the chunk");
    require(run.first_token <= UINT64_MAX - run.rows, "token numbers fit 64 bits");
    require(run.equal ? run.position_shift == 0 : halves,
            "only floats of 16 or 8 bits are similar, and only similar rows are rotated");
    next = uint64_t{run.first_row} + run.rows;
    head.runs.push_back(run);
  }
  return head;
}

uint64_t ReferenceGridRows(const ChunkShape& shape, uint64_t raw_bytes) {
  if (shape.order != Order::kTokenHeadDim) return 1;
  const uint64_t rows = FindGrid(shape, raw_bytes).rows;
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

namespace {

// Throws kReferenceDiffers unless the rows are those that the encoder used.
void RequireHash(ByteSpan rows, const ReferenceRun& run) {
  if (Hash128(rows) != run.hash) {
    throw Error(Finding::kReferenceDiffers,
                "tokens {}:{} of layer {} {} of reference {} are not those that the "
                "chunk was coded with",
                run.first_token, run.first_token + run.rows, run.layer, run.is_value ? 'V' : 'K',
                run.reference);
  }
}

uint64_t RawBytes(const ChunkShape& shape) {
  return shape.tokens * shape.heads * shape.units_per_head * Info(shape.dtype).block_bytes;
}

void DecodeByNeighbours(const ChunkShape& shape, const ErrorsHead& head,
                        std::span<const ReferenceRun> similar_runs, uint64_t rows,
                        const ChunkInputs& inputs, ByteReader& reader, SimilarRows& similar,
                        CodecScratch& scratch) {
  if (!FitsLayers(shape) || rows != shape.tokens || similar.columns > BlockRegression::kMaxColumns)
    throw Error(Finding::kBadFrame, "the chunk's rows are not tokens").At(0);
  if (inputs.neighbours == nullptr)
    throw Error(Finding::kLostChunk, "the chunk needs other chunks of its archive");
  NeighbourErrors forecast(head, similar_runs, rows, similar.columns, *inputs.references,
                           *inputs.neighbours);
  for (size_t i = 0; i < head.neighbours.size(); ++i) {
    const ErrorNeighbour& one = head.neighbours[i];
    if (forecast.hashes()[i] == one.hash) continue;
    throw Error(Finding::kReferenceDiffers,
                "tokens of layer {} {} of the references are not those that the chunk "
                "was coded with",
                one.layers.front(), one.neighbour.is_value ? 'V' : 'K');
  }
  DecodeSimilarDistributions(reader, similar, scratch, &forecast);
}

}  // namespace

std::vector<ReferenceRun> ReadReferenceRuns(const ChunkShape& shape, ByteSpan payload) {
  ByteReader reader(payload);
  return ReadReferenceHead(reader, shape, RawBytes(shape)).runs;
}

void DecodeRowsWithoutReference(const ChunkShape& shape, ByteSpan payload, CodecScratch& scratch,
                                std::span<std::byte> rows, const ChunkInputs& inputs,
                                InnerDecoder inner) {
  ByteReader reader(payload);
  const uint64_t row_bytes = shape.heads * shape.units_per_head * Info(shape.dtype).block_bytes;
  const ReferenceHead head = ReadReferenceHead(reader, shape, shape.tokens * row_bytes);
  uint64_t own = shape.tokens;
  for (const ReferenceRun& run : head.runs) {
    KV_ASSERT(run.equal);
    own -= run.rows;
  }
  const ByteSpan own_chunk = reader.Take(head.own_bytes, "remaining rows");
  reader.ExpectEnd("the frame");
  if (own == 0 || rows.size() != own * row_bytes)
    throw Error(Finding::kBadFrame, "the remaining rows do not match the chunk").At(0);
  const ChunkShape own_shape =
      own == shape.tokens ? shape : OwnRowsShape(shape, shape.tokens * row_bytes, own);
  inner(head.own_codec, own_shape, own_chunk, rows, scratch, inputs);
}

std::vector<Neighbour> ReadErrorNeighbours(const ChunkShape& shape, ByteSpan payload) {
  ByteReader reader(payload);
  uint64_t similar_runs = 0;
  for (const ReferenceRun& run : ReadReferenceHead(reader, shape, RawBytes(shape)).runs)
    similar_runs += run.equal ? 0 : 1;
  std::vector<Neighbour> neighbours;
  if (similar_runs == 0) return neighbours;
  for (const ErrorNeighbour& one : ReadErrorsHead(reader, similar_runs).neighbours)
    neighbours.push_back(one.neighbour);
  return neighbours;
}

namespace {

// Decodes one chunk: reads the rows of references, then the similar rows, then the remaining rows,
// each into its place in the chunk.
class ReferenceDecoder {
 public:
  ReferenceDecoder(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                   CodecScratch& scratch, const ChunkInputs& inputs)
      : shape_(shape),
        raw_(raw),
        scratch_(scratch),
        inputs_(inputs),
        reader_(payload),
        head_(ReadReferenceHead(reader_, shape, raw.size())),
        similar_(&scratch.context.arena) {
    for (const ReferenceRun& run : head_.runs) {
      if (!run.equal) near_runs_.push_back(run);
    }
  }

  void Decode(CodecId codec, InnerDecoder inner) {
    ErrorsHead errors;
    const bool by_neighbours = codec == CodecId::kRefLayers;
    if (by_neighbours && !near_runs_.empty()) errors = ReadErrorsHead(reader_, near_runs_.size());
    const ByteSpan own_chunk = reader_.Take(head_.own_bytes, "remaining rows");
    rows_ = ReferenceGridRows(shape_, raw_.size());
    if (raw_.empty()) throw Error(Finding::kBadFrame, "a chunk without rows").At(0);
    row_bytes_ = raw_.size() / rows_;
    SizeSimilarRows();
    ReadReferences();
    if (similar_.rows() > 0 && by_neighbours) {
      DecodeByNeighbours(shape_, errors, near_runs_, rows_, inputs_, reader_, similar_, scratch_);
    } else if (similar_.rows() > 0) {
      codec == CodecId::kRefCdf      ? DecodeSimilarDistributions(reader_, similar_, scratch_)
      : codec == CodecId::kRefSparse ? DecodeSimilarDifferences(reader_, similar_, scratch_)
                                     : DecodeSimilarRows(reader_, similar_, scratch_);
    }
    reader_.ExpectEnd("the frame");
    PlaceSimilarRows();
    DecodeOwnRows(own_chunk, inner);
  }

 private:
  void SizeSimilarRows() {
    uint64_t rows = 0;
    for (const ReferenceRun& run : near_runs_) rows += run.rows;
    similar_.form = MakeForm(HalvesShape(shape_));
    similar_.columns = row_bytes_ / Info(shape_.dtype).block_bytes;
    similar_.factors.resize(rows);
    similar_.expected.resize(rows * similar_.columns);
    similar_.values.resize(similar_.expected.size());
  }

  // Copies equal rows from the references, and computes what similar rows are expected to be.
  void ReadReferences() {
    const uint64_t rotation_at = reader_.offset();
    const Rotation rotation =
        similar_.rows() > 0 ? ReadRotation(reader_, similar_.columns) : Rotation();
    ExpectedRows expected(similar_.form, similar_.columns, rotation);
    if (inputs_.references == nullptr && !head_.runs.empty()) {
      throw Error(Finding::kReferenceMissing, "the chunk needs rows of another cache")
          .Hint("give the cache that it was coded against with --base");
    }
    is_own_.assign(rows_, 1);
    Bytes bytes = scratch_.NewPayload();
    uint64_t at = 0;
    for (const ReferenceRun& run : head_.runs) {
      std::fill_n(is_own_.begin() + run.first_row, run.rows, uint8_t{0});
      if (run.equal) {
        ReadEqualRun(run);
        continue;
      }
      const DType dtype = ReadSimilarRun(run, bytes);
      if (run.position_shift != 0 && rotation.angles.empty())
        throw Error(Finding::kBadFrame, "rows are rotated, but the frame has no angles")
            .At(rotation_at);
      expected.Make(dtype, bytes, run.position_shift,
                    similar_.expected.data() + at * similar_.columns);
      at += run.rows;
    }
    scratch_.Recycle(std::move(bytes));
  }

  uint64_t RowElements() const { return similar_.columns * Info(shape_.dtype).block_elements; }

  void ReadEqualRun(const ReferenceRun& run) {
    const std::span<std::byte> rows =
        raw_.subspan(run.first_row * row_bytes_, run.rows * row_bytes_);
    inputs_.references->ReadEqual(run, shape_.dtype, RowElements(), rows);
    if (!inputs_.content_is_checked) RequireHash(rows, run);
  }

  DType ReadSimilarRun(const ReferenceRun& run, Bytes& bytes) {
    const DType dtype = inputs_.references->Read(run, RowElements(), bytes);
    RequireHash(bytes, run);
    const DTypeInfo& info = Info(dtype);
    RequireRows(
        similar_.columns % info.block_elements == 0 &&
            bytes.size() == run.rows * (similar_.columns / info.block_elements * info.block_bytes),
        run);
    return dtype;
  }

  void PlaceSimilarRows() {
    uint64_t at = 0;
    for (const ReferenceRun& run : near_runs_) {
      for (uint64_t row = run.first_row; row < run.first_row + run.rows; ++row, ++at) {
        is_own_[row] = similar_.factors[at] == kOwnRow ? 1 : 0;
        if (is_own_[row] != 0) continue;
        const ByteSpan values = std::as_bytes(
            std::span(similar_.values).subspan(at * similar_.columns, similar_.columns));
        const std::span<std::byte> to = raw_.subspan(row * row_bytes_, row_bytes_);
        if (similar_.form.byte_shift != 0) {
          NarrowHalves(shape_.dtype, values, to);
        } else {
          std::copy(values.begin(), values.end(), to.begin());
        }
      }
    }
  }

  void DecodeOwnRows(ByteSpan own_chunk, InnerDecoder inner) {
    const auto own = static_cast<uint64_t>(std::count(is_own_.begin(), is_own_.end(), uint8_t{1}));
    if ((own == 0) != (head_.own_bytes == 0))
      throw Error(Finding::kBadFrame, "the remaining rows do not fit the runs").At(0);
    if (own == 0) return;
    if (own == rows_) return inner(head_.own_codec, shape_, own_chunk, raw_, scratch_, inputs_);
    const ChunkShape own_shape = OwnRowsShape(shape_, raw_.size(), own);
    // The remaining rows are usually consecutive, as the tokens that a cache has beyond its
    // reference; they can then be decoded in place.
    const auto first = static_cast<uint64_t>(std::ranges::find(is_own_, 1) - is_own_.begin());
    if (std::all_of(is_own_.begin() + static_cast<ptrdiff_t>(first),
                    is_own_.begin() + static_cast<ptrdiff_t>(std::min(first + own, rows_)),
                    [](uint8_t one) { return one != 0; })) {
      return inner(head_.own_codec, own_shape, own_chunk,
                   raw_.subspan(first * row_bytes_, own * row_bytes_), scratch_, inputs_);
    }
    ArenaVector<std::byte> own_rows(own * row_bytes_, &scratch_.context.arena);
    inner(head_.own_codec, own_shape, own_chunk, own_rows, scratch_, inputs_);
    const std::byte* from = own_rows.data();
    for (uint64_t row = 0; row < rows_; ++row) {
      if (is_own_[row] == 0) continue;
      std::memcpy(raw_.data() + row * row_bytes_, from, row_bytes_);
      from += row_bytes_;
    }
  }

  const ChunkShape& shape_;
  const std::span<std::byte> raw_;
  CodecScratch& scratch_;
  const ChunkInputs& inputs_;
  ByteReader reader_;
  const ReferenceHead head_;
  std::vector<ReferenceRun> near_runs_;
  SimilarRows similar_;
  std::vector<uint8_t> is_own_;  // per row of the chunk
  uint64_t rows_ = 0, row_bytes_ = 0;
};

}  // namespace

void DecodeByReference(CodecId codec, const ChunkShape& shape, ByteSpan payload,
                       std::span<std::byte> raw, CodecScratch& scratch, const ChunkInputs& inputs,
                       InnerDecoder inner) {
  ReferenceDecoder(shape, payload, raw, scratch, inputs).Decode(codec, inner);
}

}  // namespace kv
