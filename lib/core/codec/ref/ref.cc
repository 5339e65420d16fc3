// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// The encoder of reference chunks (ref.h; FORMAT.md, "Reference chunks"): which parts of the
// proposed runs help, and how the similar rows are coded. Reading rows of a reference is expensive,
// so samples decide first.

#include "lib/core/codec/ref/ref.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>

#include "lib/core/codec/codec.h"
#include "lib/core/codec/context/prev.h"
#include "lib/core/codec/halves.h"
#include "lib/core/codec/ref/similar_rows.h"
#include "lib/core/codec/wrappers/wrappers.h"

namespace kv {
namespace {

// Differences are forecast from neighbours only if that saves one byte in this many, and only for
// at least this many rows, from which the forecast can learn.
constexpr uint64_t kLeastGainByNeighbours = 200, kLeastRowsToLearn = 64;

// A chunk whose similar rows are to be coded.
struct SimilarChunk {
  const ChunkShape& shape;
  uint64_t rows;
  double own_bits;  // estimated bits per value if no reference is used
  Effort effort;
  std::span<const ReferenceRun> runs;  // all runs, equal ones included
  std::span<const size_t> near_of;     // per similar run, the proposed run that it is part of
  const Rotation& rotation;            // rotation of keys
  const ReferenceRows& references;
  const BesideNeighbours* neighbours;  // may be nullptr
};

// Chooses the coding of a chunk's similar rows: a list of the values that differ, static tables, or
// learned distributions, with or without a forecast from neighbours.
class SimilarEncoder {
 public:
  SimilarEncoder(const SimilarChunk& chunk, SimilarRows& similar, CodecScratch& scratch,
                 ErrorsHead& errors)
      : chunk_(chunk), similar_(similar), scratch_(scratch), errors_(errors) {}

  // Appends the similar rows, rotation first, and sets their factors, kOwnRow for rows that are
  // cheaper to code without a reference. Returns kRef, kRefSparse, kRefCdf or kRefLayers; only the
  // last uses the header of the errors.
  CodecId Encode(ByteWriter& out) {
    bool rotated = false;
    for (const ReferenceRun& run : chunk_.runs) rotated = rotated || run.position_shift != 0;
    WriteRotation(rotated ? chunk_.rotation : Rotation(), out);
    const uint64_t values = similar_.values.size();
    const uint64_t differences = CountDifferences(similar_, values / kFewDifferences);
    if (differences * kFewDifferences >= values) return EncodeDistances(out);
    ByteWriter list(scratch_.NewPayload()), distances(scratch_.NewPayload());
    EncodeSimilarDifferences(similar_, scratch_, list);
    CodecId codec = CodecId::kRefSparse;
    if (differences * kVeryFewDifferences >= values) {
      codec = EncodeDistances(distances);
      if (static_cast<double>(list.size()) <= static_cast<double>(distances.size()) + OwnBytes()) {
        std::fill(similar_.factors.begin(), similar_.factors.end(), uint8_t{0});
        codec = CodecId::kRefSparse;
      }
    }
    out.Append(codec == CodecId::kRefSparse ? list.bytes() : distances.bytes());
    scratch_.Recycle(list.Release());
    scratch_.Recycle(distances.Release());
    return codec;
  }

 private:
  // Estimates the size of the remaining rows (kOwnRow), which are coded without the reference.
  double OwnBytes() const {
    const auto own = std::count(similar_.factors.begin(), similar_.factors.end(), kOwnRow);
    return static_cast<double>(own) * static_cast<double>(similar_.columns) * chunk_.own_bits / 8;
  }

  CodecId EncodeDistances(ByteWriter& out) {
    if (chunk_.effort < Effort::kMax) {
      EncodeSimilarRows(similar_, chunk_.own_bits, scratch_, out);
      return CodecId::kRef;
    }
    // Tables win where nearly all values are equal or lie on a coarse grid, so both codings are
    // tried. Rows that one of them turned into remaining rows are charged with the bytes they will
    // take there.
    ByteWriter learned(scratch_.NewPayload()), tables(scratch_.NewPayload());
    const bool fits =
        EncodeSimilarDistributions(similar_, HeadDim(chunk_.shape), scratch_, learned);
    EncodeSimilarRows(similar_, chunk_.own_bits, scratch_, tables);
    const bool learn = fits && static_cast<double>(learned.size()) <
                                   static_cast<double>(tables.size()) + OwnBytes();
    const bool by_neighbours = learn && ExpectByNeighbours(learned);
    out.Append(learn ? learned.bytes() : tables.bytes());
    if (learn) std::replace(similar_.factors.begin(), similar_.factors.end(), kOwnRow, uint8_t{0});
    scratch_.Recycle(learned.Release());
    scratch_.Recycle(tables.Release());
    if (!learn) return CodecId::kRef;
    return by_neighbours ? CodecId::kRefLayers : CodecId::kRefCdf;
  }

  // Tries again with a forecast from neighbours, and replaces `learned` if that saves enough.
  bool ExpectByNeighbours(ByteWriter& learned) {
    if (chunk_.neighbours == nullptr || chunk_.neighbours->all.empty() ||
        similar_.rows() < kLeastRowsToLearn || !FitsLayers(chunk_.shape)) {
      return false;
    }
    errors_ = ErrorsHeadHere();
    const std::unique_ptr<NeighbourErrors> forecast = Forecast();
    if (forecast == nullptr) return false;
    for (size_t i = 0; i < errors_.neighbours.size(); ++i)
      errors_.neighbours[i].hash = forecast->hashes()[i];
    ByteWriter better(scratch_.NewPayload());
    EncodeSimilarDistributions(similar_, HeadDim(chunk_.shape), scratch_, better, forecast.get());
    const bool gains = better.size() < learned.size() - learned.size() / kLeastGainByNeighbours;
    if (gains) std::swap(better, learned);
    scratch_.Recycle(better.Release());
    return gains;
  }

  // Returns nullptr if a reference has the chunk's rows but not those of a neighbour.
  std::unique_ptr<NeighbourErrors> Forecast() const {
    std::vector<ReferenceRun> runs;
    for (const ReferenceRun& run : chunk_.runs) {
      if (!run.equal) runs.push_back(run);
    }
    try {
      return std::make_unique<NeighbourErrors>(errors_, runs, chunk_.rows, similar_.columns,
                                               chunk_.references, chunk_.neighbours->source);
    } catch (const Error& error) {
      if (error.finding() == Finding::kReferenceDiffers || error.finding() == Finding::kBadFrame)
        return nullptr;
      throw;
    }
  }

  ErrorsHead ErrorsHeadHere() const {
    ErrorsHead head;
    head.rotates = !chunk_.neighbours->is_value;
    for (const BesideNeighbours::One& one : chunk_.neighbours->all) {
      ErrorNeighbour neighbour{.neighbour = one.neighbour, .layers = {}};
      for (const size_t place : chunk_.near_of) neighbour.layers.push_back(one.runs[place].layer);
      head.neighbours.push_back(std::move(neighbour));
    }
    head.rotation = chunk_.rotation;
    for (const size_t place : chunk_.near_of)
      head.shifts_of_runs.push_back(chunk_.neighbours->position_shifts[place]);
    return head;
  }

  const SimilarChunk& chunk_;
  SimilarRows& similar_;
  CodecScratch& scratch_;
  ErrorsHead& errors_;
};

// Fewer than kFewEqualRows consecutive equal rows are coded as similar rows. Between similar rows
// the limit is kFewBetweenSimilarRows, because a run of its own costs more bytes than marking equal
// rows.
constexpr uint64_t kFewEqualRows = 8, kFewBetweenSimilarRows = 256;
// A run is dropped if a sample of this many rows is cheaper to code without it.
constexpr uint64_t kSampledRows = 32;
// Only kFirstRows rows of a run longer than kLongRun are read at first: reading all is expensive,
// and wasted if the run does not help.
constexpr uint64_t kLongRun = 128, kFirstRows = 12;
// Bits per value beyond those of its residual's magnitude.
constexpr double kBitsBeyondMagnitude = 1.5;
// Similar rows are used if a sample's estimate is below this share of the size of literals. The
// margin is larger for keys, which the row above predicts better than it does values. Samples
// underestimate by some 6 %.
constexpr double kClearLoss = 0.92, kClearLossOfKeys = 0.89;
// Share of the literal size that a level may reach without a reference. Above it, the chunk is
// coded both ways.
constexpr double kBestOfContexts = 0.7;

// Approximate bits of each residual symbol with its raw bits.
constexpr std::array<uint8_t, 256> MakeSymbolBits() {
  std::array<uint8_t, 256> bits{};
  for (uint32_t symbol = 0; symbol < bits.size(); ++symbol) {
    const uint32_t bucket =
        symbol < kResidualMagnitudes ? symbol : symbol - (kResidualMagnitudes - 1);
    bits[symbol] = static_cast<uint8_t>(bucket < 16 ? static_cast<uint32_t>(std::bit_width(bucket))
                                                    : bucket / 4 + 1);
  }
  return bits;
}
constexpr std::array<uint8_t, 256> kSymbolBits = MakeSymbolBits();

// Encodes one chunk by proposed runs: takes the parts of each run that help, then codes the similar
// rows together and all other rows as a chunk of their own.
class ByReference {
 public:
  ByReference(const ChunkShape& shape, ByteSpan raw, const Rotation& rotation,
              const ReferenceRows& references, Effort effort, CodecScratch& scratch,
              const InnerEncoder& own, const BesideNeighbours* neighbours)
      : shape_(shape),
        raw_(raw),
        rotation_(rotation),
        references_(references),
        effort_(effort),
        scratch_(scratch),
        own_(own),
        neighbours_(neighbours),
        rows_(ReferenceGridRows(shape, raw.size())),
        row_bytes_(raw.size() / rows_),
        columns_(row_bytes_ / Info(shape.dtype).block_bytes),
        halves_(AreHalves(shape.dtype)),
        values_(shape.dtype, raw, &scratch.context.arena),
        expected_(MakeForm(HalvesShape(shape)), columns_, rotation),
        is_own_(rows_, 1),
        similar_(&scratch.context.arena) {
    similar_.form = MakeForm(HalvesShape(shape));
    similar_.columns = columns_;
  }

  // Estimates the bits per value that literals take, with which runs are compared.
  void Survey() {
    if (!halves_) return;
    const HalfSurvey survey = SurveyHalves(values_.bytes(), similar_.form, false);
    literal_ = survey.high_bytes + survey.low_bytes;
    own_bits_ = 8 * static_cast<double>(literal_) / static_cast<double>(values_.bytes().size() / 2);
  }

  // Examines one of the proposed runs, the one at index `place`.
  void Take(const ReferenceRun& run, size_t place) {
    taken_ = place;
    Bytes bytes = scratch_.NewPayload();
    if (IsWorthReading(run, bytes)) TakeRead(run, bytes);
    scratch_.Recycle(std::move(bytes));
  }

  EncodedChunk Finish() {
    // Returns before taking a payload from the scratch: one that is not recycled would cost the
    // next chunk an allocation.
    if (head_.runs.empty()) return own_(shape_, raw_);
    EncodedChunk chunk{CodecId::kRef, scratch_.NewPayload(), {}};
    ByteWriter similar(scratch_.NewPayload());
    ErrorsHead errors;
    if (!similar_.factors.empty()) {
      const SimilarChunk whole{shape_,   rows_,     own_bits_,   effort_,    head_.runs,
                               near_of_, rotation_, references_, neighbours_};
      chunk.codec = SimilarEncoder(whole, similar_, scratch_, errors).Encode(similar);
    }
    for (uint64_t at = 0; at < similar_.factors.size(); ++at) {
      if (similar_.factors[at] == kOwnRow) is_own_[near_row_[at]] = 1;
    }
    EncodedChunk own = EncodeOwn();
    ByteWriter start;
    WriteReferenceHead(head_, start);
    if (chunk.codec == CodecId::kRefLayers) WriteErrorsHead(errors, start);
    chunk.payload.reserve(start.size() + own.payload.size() + similar.size());
    for (const ByteSpan bytes : {start.bytes(), ByteSpan(own.payload), similar.bytes()})
      chunk.payload.insert(chunk.payload.end(), bytes.begin(), bytes.end());
    chunk.planes = std::move(own.planes);
    scratch_.Recycle(std::move(own.payload));
    scratch_.Recycle(similar.Release());
    // Unless the result is clearly smaller than contexts could get, codes the chunk without
    // references too.
    const bool clear = similar_.factors.empty() ||
                       static_cast<double>(chunk.payload.size()) < kBestOfContexts * LiteralBytes();
    if (clear && chunk.payload.size() < raw_.size()) return chunk;
    EncodedChunk alone = own_(shape_, raw_);
    if (alone.payload.size() <= chunk.payload.size()) std::swap(alone, chunk);
    scratch_.Recycle(std::move(alone.payload));
    return chunk;
  }

 private:
  // Estimates the literal size of all rows, counting repeated rows once.
  double LiteralBytes() {
    const RowPlan repeated = FindRepeatedRows(raw_, row_bytes_, &scratch_.context.arena);
    return static_cast<double>(literal_) * repeated.unique / static_cast<double>(rows_);
  }

  // Samples a few rows of a long run: true if one of them is equal or all together are similar.
  // Reading the whole run takes far longer.
  bool IsWorthReading(const ReferenceRun& run, Bytes& bytes) {
    if (run.rows < kLongRun) return true;
    uint64_t bits = 0, looked = 0;
    for (uint64_t i = 0; i < kFirstRows; ++i) {
      ReferenceRun one = run;
      const auto row = static_cast<uint32_t>(run.rows * (2 * i + 1) / (2 * kFirstRows));
      one.first_row += row;
      one.first_token += row;
      one.rows = 1;
      const std::optional<DType> dtype = Read(one, bytes);
      if (!dtype) return false;
      if (IsSameType(one, *dtype, bytes) && run.position_shift == 0 &&
          std::memcmp(bytes.data(), raw_.data() + one.first_row * row_bytes_, row_bytes_) == 0) {
        return true;
      }
      if (!ServesAsFloats(one, *dtype, bytes)) continue;
      bits += EstimateBits(one.first_row, *dtype, bytes, run.position_shift);
      looked += columns_;
    }
    return looked > 0 && AreFew(run, bits, looked);
  }

  static bool IsFloat(DType dtype) {
    return AreHalves(dtype) || dtype == DType::kF32 || IsBlockQuantised(dtype);
  }

  // Reads the run's rows; nullopt if the reference has no such tokens.
  std::optional<DType> Read(const ReferenceRun& run, Bytes& bytes) const {
    try {
      return references_.Read(run, columns_ * Info(shape_.dtype).block_elements, bytes);
    } catch (const Error& error) {
      if (error.finding() != Finding::kReferenceDiffers) throw;
      return std::nullopt;
    }
  }
  bool IsSameType(const ReferenceRun& run, DType dtype, const Bytes& bytes) const {
    return dtype == shape_.dtype && bytes.size() == row_bytes_ * run.rows;
  }
  bool ServesAsFloats(const ReferenceRun& run, DType dtype, const Bytes& bytes) const {
    const DTypeInfo& info = Info(dtype);
    return halves_ && columns_ % info.block_elements == 0 &&
           bytes.size() == columns_ / info.block_elements * info.block_bytes * run.rows &&
           (run.position_shift == 0 || !rotation_.angles.empty()) && IsFloat(dtype);
  }

  // Divides a run into pieces: equal ones, which are copied, and similar ones in between, which are
  // kept if a sample shows that they help.
  void TakeRead(const ReferenceRun& run, Bytes& bytes) {
    const std::optional<DType> dtype = Read(run, bytes);
    if (!dtype) return;
    const uint64_t theirs = bytes.size() / run.rows;
    const bool same_type = IsSameType(run, *dtype, bytes);
    const bool as_floats = ServesAsFloats(run, *dtype, bytes);
    if (!same_type && !as_floats) return;
    const auto piece = [&](uint64_t begin, uint64_t end) {
      ReferenceRun part = run;
      part.first_row += static_cast<uint32_t>(begin);
      part.first_token += begin;
      part.rows = static_cast<uint32_t>(end - begin);
      return part;
    };
    std::vector<Piece> pieces;
    uint64_t open = 0;  // first row that is not yet in a piece
    const auto similar = [&](uint64_t end) {
      if (!as_floats || end == open) return;
      const ByteSpan rows = ByteSpan(bytes).subspan(open * theirs, (end - open) * theirs);
      if (Helps(piece(open, end), *dtype, rows, theirs)) pieces.push_back({open, end, false});
    };
    for (uint64_t row = 0; same_type && run.position_shift == 0 && row < run.rows;) {
      uint64_t end = row;
      while (end < run.rows &&
             std::memcmp(bytes.data() + end * theirs,
                         raw_.data() + (run.first_row + end) * row_bytes_, row_bytes_) == 0) {
        ++end;
      }
      if (end - row >= std::min<uint64_t>(kFewEqualRows, run.rows)) {
        similar(row);
        pieces.push_back({row, end, true});
        open = end;
      }
      row = end + 1;
    }
    similar(run.rows);
    for (const Piece& one : JoinPieces(std::move(pieces))) {
      const ByteSpan rows =
          ByteSpan(bytes).subspan(one.begin * theirs, (one.end - one.begin) * theirs);
      ReferenceRun part = piece(one.begin, one.end);
      part.equal = one.equal;
      one.equal ? Add(part, rows) : TakeNear(part, *dtype, rows);
    }
  }

  // A range of rows, counted within the run.
  struct Piece {
    uint64_t begin = 0, end = 0;
    bool equal = false;
  };
  // Short equal pieces next to similar ones become similar, because a run of their own would cost
  // more. Similar pieces that touch are merged.
  std::vector<Piece> JoinPieces(std::vector<Piece> pieces) const {
    const auto is_near = [&](size_t i, uint64_t Piece::*here, uint64_t Piece::*there,
                             size_t other) {
      return other < pieces.size() && !pieces[other].equal &&
             pieces[i].*here == pieces[other].*there;
    };
    std::vector<bool> becomes_similar(pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      becomes_similar[i] = pieces[i].equal &&
                           pieces[i].end - pieces[i].begin < kFewBetweenSimilarRows &&
                           (is_near(i, &Piece::end, &Piece::begin, i + 1) ||
                            (i > 0 && is_near(i, &Piece::begin, &Piece::end, i - 1)));
    }
    std::vector<Piece> joined;
    for (size_t i = 0; i < pieces.size(); ++i) {
      Piece one = pieces[i];
      if (becomes_similar[i]) one.equal = false;
      const bool meets = !joined.empty() && joined.back().end == one.begin;
      if (meets && !one.equal && !joined.back().equal) {
        joined.back().end = one.end;
      } else {
        joined.push_back(one);
      }
    }
    return joined;
  }

  void Add(ReferenceRun run, ByteSpan rows) {
    run.hash = Hash128(rows);
    std::fill_n(is_own_.begin() + run.first_row, run.rows, uint8_t{0});
    head_.runs.push_back(run);
  }

  void TakeNear(const ReferenceRun& run, DType dtype, ByteSpan rows) {
    Add(run, rows);
    const uint64_t at = similar_.values.size(), more = run.rows * columns_;
    if (at == 0) {
      similar_.values.reserve(rows_ * columns_);
      similar_.expected.reserve(rows_ * columns_);
    }
    similar_.values.resize(at + more);
    similar_.expected.resize(at + more);
    similar_.factors.resize(similar_.factors.size() + run.rows);
    near_of_.push_back(taken_);
    std::memcpy(similar_.values.data() + at, GetRow(run.first_row), 2 * more);
    expected_.Make(dtype, rows, run.position_shift, similar_.expected.data() + at);
    for (uint32_t row = 0; row < run.rows; ++row) near_row_.push_back(run.first_row + row);
  }

  // Returns true if a sample of the rows takes fewer bits with the reference than without.
  bool Helps(const ReferenceRun& run, DType dtype, ByteSpan rows, uint64_t theirs) {
    const uint64_t step = std::max<uint64_t>(1, run.rows / kSampledRows);
    uint64_t looked = 0, bits = 0;
    for (uint64_t row = step / 2; row < run.rows; row += step) {
      bits += EstimateBits(run.first_row + row, dtype, rows.subspan(row * theirs, theirs),
                           run.position_shift);
      looked += columns_;
    }
    return looked == 0 || AreFew(run, bits, looked);
  }

  // Returns a row as halves.
  const std::byte* GetRow(uint64_t row) const {
    return values_.bytes().data() + 2 * columns_ * row;
  }

  // Estimates the bits of a row, given the reference's row.
  uint64_t EstimateBits(uint64_t row, DType dtype, ByteSpan theirs, int32_t shift) {
    std::vector<uint16_t> values(columns_), expected(columns_), extras(columns_);
    std::vector<uint8_t> symbols(columns_);
    expected_.Make(dtype, theirs, shift, expected.data());
    std::memcpy(values.data(), GetRow(row), 2 * columns_);
    ResidualSymbols(values.data(), expected.data(), columns_,
                    {similar_.form.bfloat, similar_.form.byte_shift}, symbols.data(),
                    extras.data());
    uint64_t bits = 0;
    for (const uint8_t symbol : symbols) bits += kSymbolBits[symbol];
    return bits;
  }
  bool AreFew(const ReferenceRun& run, uint64_t bits, uint64_t values) const {
    return static_cast<double>(bits) / static_cast<double>(values) + kBitsBeyondMagnitude <
           (run.is_value ? kClearLoss : kClearLossOfKeys) * own_bits_;
  }

  EncodedChunk EncodeOwn() {
    const auto own = static_cast<uint64_t>(std::count(is_own_.begin(), is_own_.end(), uint8_t{1}));
    if (own == 0) return {};
    EncodedChunk chunk;
    if (own == rows_) {
      chunk = own_(shape_, raw_);
    } else {
      Bytes rows = scratch_.NewPayload();
      rows.reserve(own * row_bytes_);
      for (uint64_t row = 0; row < rows_; ++row) {
        const ByteSpan bytes = raw_.subspan(row * row_bytes_, row_bytes_);
        if (is_own_[row] != 0) rows.insert(rows.end(), bytes.begin(), bytes.end());
      }
      chunk = own_(OwnRowsShape(shape_, raw_.size(), own), rows);
      scratch_.Recycle(std::move(rows));
    }
    head_.own_codec = chunk.codec;
    head_.own_bytes = static_cast<uint32_t>(chunk.payload.size());
    return chunk;
  }

  const ChunkShape& shape_;
  const ByteSpan raw_;
  const Rotation& rotation_;
  const ReferenceRows& references_;
  const Effort effort_;
  CodecScratch& scratch_;
  const InnerEncoder& own_;
  const BesideNeighbours* const neighbours_;
  const uint64_t rows_, row_bytes_, columns_;
  const bool halves_;
  const Halves values_;
  ExpectedRows expected_;
  std::vector<uint8_t> is_own_;  // per row of the chunk
  std::vector<uint32_t> near_row_;
  size_t taken_ = 0;             // index of the proposed run that is examined
  std::vector<size_t> near_of_;  // per similar run: index of the proposed run that it is part of
  SimilarRows similar_;
  ReferenceHead head_;
  uint64_t literal_ = 0;
  double own_bits_ = 0;
};

}  // namespace

EncodedChunk EncodeByReference(const ChunkShape& shape, ByteSpan raw,
                               std::span<const ReferenceRun> proposed, const Rotation& rotation,
                               const ReferenceRows& references, Effort effort,
                               CodecScratch& scratch, const InnerEncoder& own,
                               const BesideNeighbours* neighbours) {
  // Rows must be whole tokens: a reference's rows are.
  const uint64_t row_bytes = shape.heads * shape.units_per_head * Info(shape.dtype).block_bytes;
  const bool fits = !raw.empty() && raw.size() == shape.tokens * row_bytes &&
                    shape.order == Order::kTokenHeadDim && effort != Effort::kCompat &&
                    ReferenceGridRows(shape, raw.size()) == shape.tokens;
  if (!fits || proposed.empty()) return own(shape, raw);
  const Arena::Scope temporaries(&scratch.context.arena);
  scratch.Expect(raw.size());
  ByReference encoder(shape, raw, rotation, references, effort, scratch, own, neighbours);
  encoder.Survey();
  for (size_t i = 0; i < proposed.size(); ++i) encoder.Take(proposed[i], i);
  return encoder.Finish();
}

}  // namespace kv
