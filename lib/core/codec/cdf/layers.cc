// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Layered chunks (layers.h; FORMAT.md, "Layered chunks"): a regression of whole rows on the rows of
// neighbours, whose forecast becomes a tap of the cdf frame. The regression has hundreds of taps,
// so its sums are added and its factor is computed in blocks of rows (panel.h).

#include "lib/core/codec/cdf/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/core/codec/cdf/cdf.h"
#include "lib/core/codec/context/lms.h"
#include "lib/core/codec/halves.h"
#include "lib/core/kernels/panel.h"

namespace kv {
namespace {

// Rows before the first solution, and the fewest and the most between two solutions. They are part
// of the grammar; solving twice as often would gain 0.3 % beside a reference for a quarter more
// time (docs/lab.md, "Prediction from other rows").
constexpr uint64_t kFirstSolution = 32, kLeastRowsBetween = 16, kMostRowsBetween = 512;
// Rows wait until this many can be added together: the sums, which exceed the caches, are then read
// and written once per 64 rows.
constexpr uint64_t kPendingRows = 64;
// Rows of the factor that are computed together, so that their products run on panels in the
// caches.
constexpr uint64_t kFactorRows = 48;
// This is added to every diagonal element, so that a column of zeros does not divide by zero.
constexpr float kTinyBlockRidge = 1e-12f;

uint64_t PanelBegin(uint64_t column) { return column / kPanelLanes * kPanelLanes; }

}  // namespace

BlockRegression::BlockRegression(uint64_t taps, uint64_t columns, float ridge, Arena* arena)
    : taps_(taps),
      columns_(columns),
      padded_taps_(PaddedToPanel(taps)),
      padded_columns_(PaddedToPanel(columns)),
      ridge_(ridge),
      width_(padded_taps_ + padded_columns_),
      sums_(taps * width_, 0.0f, arena),
      factor_(taps * width_, 0.0f, arena),
      pending_(kPendingRows * width_, 0.0f, arena),
      roots_(taps, 0.0f, arena),
      weights_(taps * padded_columns_, 0.0f, arena),
      prediction_(padded_columns_, 0.0f, arena),
      next_solution_(kFirstSolution) {
  KV_ASSERT(taps > 0 && taps <= kMaxTaps + 1 && columns <= kMaxColumns);
}

void BlockRegression::Predict(std::span<float> row) {
  float* taps = pending_row();
  taps[taps_ - 1] = 1;
  std::fill(prediction_.begin(), prediction_.end(), 0.0f);
  PanelAdd(prediction_.data(), padded_columns_, 1, padded_columns_,
           {taps, 1, 0, weights_.data(), static_cast<ptrdiff_t>(padded_columns_), taps_});
  std::copy_n(prediction_.begin(), columns_, row.begin());
}

void BlockRegression::Learn(std::span<const float> row) {
  std::copy_n(row.begin(), columns_, pending_row() + padded_taps_);
  ++pending_rows_;
  ++rows_;
  if (rows_ == next_solution_) {
    AddPending();
    Solve();
    next_solution_ += std::clamp(rows_ / 4, kLeastRowsBetween, kMostRowsBetween);
  } else if (pending_rows_ == kPendingRows) {
    AddPending();
  }
}

// Adds the pending rows' products to the sums. Products of taps are symmetric, so only those on and
// right of the diagonal are kept.
void BlockRegression::AddPending() {
  const auto step = static_cast<ptrdiff_t>(width_);
  for (uint64_t first = 0; first < taps_; first += kFactorRows) {
    PanelAdd(Row(sums_, first) + first, width_, std::min(kFactorRows, taps_ - first),
             width_ - first,
             {pending_.data() + first, step, 1, pending_.data() + first, step, pending_rows_});
  }
  pending_rows_ = 0;
}

void BlockRegression::Solve() {
  std::copy(sums_.begin(), sums_.end(), factor_.begin());
  Factor();
  Substitute();
}

// Computes the transposed Cholesky factor of the taps' products. The columns' products stand to the
// right in the same rows and take the same steps, which solves the lower triangle at once.
void BlockRegression::Factor() {
  const auto step = static_cast<ptrdiff_t>(width_);
  const float ridge = ridge_ * static_cast<float>(taps_) / static_cast<float>(rows_);
  for (uint64_t first = 0; first < taps_; first += kFactorRows) {
    const uint64_t end = std::min(first + kFactorRows, taps_);
    // Rounding may leave less on the diagonal than the ridge added; the ridge is then the floor.
    const auto least = [&](uint64_t i) { return Row(sums_, i)[i] * ridge + kTinyBlockRidge; };
    for (uint64_t i = first; i < end; ++i) Row(factor_, i)[i] += least(i);
    const float* above = factor_.data() + first;
    // Subtracts the products of all rows above this block in one pass, then goes row by row inside
    // it.
    PanelSubtract(Row(factor_, first) + first, width_, end - first, width_ - first,
                  {above, step, 1, above, step, first});
    for (uint64_t i = first; i < end; ++i) {
      float* row = Row(factor_, i);
      const float root = roots_[i] = 1.0f / std::sqrt(std::max(row[i], least(i)));
      for (uint64_t column = i; column < width_; ++column) row[column] *= root;
      const uint64_t from = PanelBegin(i + 1);
      if (i + 1 < end) {
        PanelSubtract(Row(factor_, i + 1) + from, width_, end - i - 1, width_ - from,
                      {row + i + 1, step, 1, row + from, step, 1});
      }
    }
  }
}

// Solves the upper triangle from the last row to the first, block by block as Factor does.
void BlockRegression::Substitute() {
  const auto step = static_cast<ptrdiff_t>(padded_columns_),
             row_step = static_cast<ptrdiff_t>(width_);
  const auto weights = [&](uint64_t i) { return weights_.data() + i * padded_columns_; };
  for (uint64_t end = taps_; end > 0;) {
    const uint64_t first = (end - 1) / kFactorRows * kFactorRows;
    for (uint64_t i = first; i < end; ++i)
      std::copy_n(Row(factor_, i) + padded_taps_, padded_columns_, weights(i));
    if (end < taps_) {
      // Negative steps: FORMAT.md subtracts the taps in descending order.
      PanelSubtract(
          weights(first), padded_columns_, end - first, padded_columns_,
          {Row(factor_, first) + taps_ - 1, -1, row_step, weights(taps_ - 1), -step, taps_ - end});
    }
    for (uint64_t i = end; i-- > first;) {
      float* row = weights(i);
      for (uint64_t column = 0; column < padded_columns_; ++column) row[column] *= roots_[i];
      PanelSubtract(weights(first), padded_columns_, i - first, padded_columns_,
                    {Row(factor_, first) + i, 0, row_step, row, step, 1});
    }
    end = first;
  }
}

namespace {

// Ridge per tap and row, part of the grammar (FORMAT.md, "Expected rows").
constexpr float kRidgeOfValues = 0.01f;

struct LayersHead {
  // true if the chunk's own rows are rotated by their position, as those of K are
  bool rotates = false;
  std::vector<Neighbour> neighbours;
  Rotation rotation;  // common to all rotated rows; found in the first chunk that has one
};

[[noreturn]] void RefuseLayers(uint64_t at, const std::string& what) {
  throw Error(Finding::kBadFrame, what).At(at);
}

void WriteLayersHead(const LayersHead& head, ByteWriter& out) {
  out.U8(static_cast<uint8_t>(head.neighbours.size()));
  out.U8(head.rotates ? 1 : 0);
  for (const Neighbour& one : head.neighbours) WriteNeighbour(one, out);
  WriteRotation(head.rotation, out);
}

LayersHead ReadLayersHead(ByteReader& reader) {
  LayersHead head;
  const uint32_t count = reader.U8("number of neighbours"), flags = reader.U8("flags");
  if (count > kMaxNeighbours || flags > 1)
    RefuseLayers(0, fmt::format("{} neighbours with flags {}", count, flags));
  head.rotates = flags == 1;
  uint64_t taps = 1;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t at = reader.offset();
    head.neighbours.push_back(ReadNeighbour(reader));
    taps += head.neighbours.back().columns;
    if (taps > BlockRegression::kMaxTaps) RefuseLayers(at, "too many columns of neighbours");
  }
  head.rotation = ReadRotation(reader, ChannelModel::kMaxColumns);
  return head;
}

// Forecasts the rows of a chunk from the same rows of its neighbours.
class LayerForecast : public RowForecast {
 public:
  LayerForecast(const LayersHead& head, const ChunkGrid& grid, const RowSteps& steps,
                const NeighbourSource* source)
      : RowForecast(grid.rows, grid.columns, grid.columns),
        head_(head),
        steps_(steps),
        block_(Taps(head), grid.columns, kRidgeOfValues),
        rotator_(head_.rotation, grid.columns),
        forecast_(grid.columns),
        rotated_(grid.columns) {
    for (const Neighbour& one : head.neighbours) {
      neighbours_.push_back(
          std::make_unique<NeighbourTaps>(one, source, grid.rows, head_.rotation, steps));
    }
  }

  const float* Expect(uint64_t row) override {
    float* taps = block_.taps().data();
    for (const auto& one : neighbours_) {
      one->Row(row, taps);
      taps += one->wanted();
    }
    block_.Predict(forecast_);
    const bool rotates = head_.rotates && !head_.rotation.angles.empty();
    if (rotates) rotator_.Rotate(steps_[row], forecast_.data(), rotated_.data());
    std::vector<float>& expected = rotates ? rotated_ : forecast_;
    // A forecast that diverges is cut to 0, because the model's arithmetic is exact below 4 only.
    for (float& value : expected) {
      if (!(std::abs(value) < kRegressLimit)) value = 0;
    }
    return expected.data();
  }
  void Continue(uint64_t, uint64_t, const float*) override {}
  void Learn(uint64_t row, const float* x) override {
    if (head_.rotates) {
      rotator_.Rotate(0u - steps_[row], x, rotated_.data());
      x = rotated_.data();
    }
    block_.Learn({x, columns});
  }

 private:
  static uint64_t Taps(const LayersHead& head) {
    uint64_t taps = 1;
    for (const Neighbour& one : head.neighbours) taps += one.columns;
    return taps;
  }

  const LayersHead& head_;
  const RowSteps steps_;
  BlockRegression block_;
  Rotator rotator_;
  std::vector<float> forecast_, rotated_;
  std::vector<std::unique_ptr<NeighbourTaps>> neighbours_;
};

bool IsLayersGrid(const ChunkGrid& grid) {
  return FitsCdf(grid.rows, grid.columns) && grid.columns <= BlockRegression::kMaxColumns;
}

Rotation FindHalvesRotation(const NeighbourChunk& chunk, uint64_t rows, uint64_t head_dim,
                            const RowSteps& steps) {
  const bool bfloat = chunk.dtype == DType::kBF16;
  const float scale = LmsScale(LmsLargestExponent(*chunk.raw, bfloat));
  return FindRotation(*chunk.raw, bfloat, scale, rows, chunk.raw->size() / 2 / rows, head_dim,
                      steps);
}

}  // namespace

bool FitsLayers(const ChunkShape& shape) {
  const uint64_t columns = shape.heads * shape.units_per_head;
  return AreHalves(shape.dtype) && shape.order == Order::kTokenHeadDim &&
         IsLayersGrid({shape.tokens, columns});
}

bool EncodeByLayers(const ChunkShape& shape, ByteSpan raw, bool is_value,
                    std::span<const Neighbour> neighbours, const NeighbourSource& source,
                    uint64_t to_beat, CodecScratch& scratch, Bytes& payload,
                    const RowSteps& steps) {
  const Arena::Scope temporaries(&scratch.context.arena);
  const ChunkGrid grid = FindGrid(shape, raw.size());
  if (!FitsLayers(shape) || grid.rows != shape.tokens) return false;
  const Halves halves(shape.dtype, raw, &scratch.context.arena);
  const ByteSpan values = halves.bytes();
  LayersHead head{!is_value, {neighbours.begin(), neighbours.end()}, {}};
  // The rotation is measured on the chunk's own rows, or else on its first neighbour that is K.
  if (head.rotates) {
    const auto own = std::make_shared<const Bytes>(values.begin(), values.end());
    head.rotation =
        FindHalvesRotation({HalvesShape(shape).dtype, own}, grid.rows, HeadDim(shape), steps);
  } else {
    for (const Neighbour& one : neighbours) {
      if (one.is_value) continue;
      head.rotation =
          FindHalvesRotation(WidenToHalves(source.Read(one)), grid.rows, HeadDim(shape), steps);
      break;
    }
  }
  const size_t begin = payload.size();
  ByteWriter out(std::move(payload));
  WriteLayersHead(head, out);
  payload = out.Release();
  const uint64_t head_bytes = payload.size() - begin;
  LayerForecast forecast(head, grid, steps, &source);
  if (to_beat > head_bytes &&
      EncodeCdf(values, MakeForm(HalvesShape(shape)), grid.rows, grid.columns, HeadDim(shape),
                steps, to_beat - head_bytes, payload, &scratch.context.arena, &forecast)) {
    return true;
  }
  payload.resize(begin);
  return false;
}

namespace {

NeighbourChunk OpenNeighbour(const Neighbour& neighbour, const NeighbourSource* source,
                             uint64_t rows, const Rotation& rotation) {
  if (source == nullptr) throw Error(Finding::kLostChunk, "the chunk needs others of its archive");
  NeighbourChunk chunk = WidenToHalves(source->Read(neighbour));
  const uint64_t row_bytes = chunk.raw->size() / rows;
  if (!IsHalfFloat(chunk.dtype) || row_bytes * rows != chunk.raw->size() || row_bytes % 2 != 0 ||
      neighbour.columns > row_bytes / 2 || row_bytes / 2 > ChannelModel::kMaxColumns) {
    throw Error(Finding::kBadFrame, "layer {} {} cannot be a neighbour", neighbour.layer,
                neighbour.is_value ? 'V' : 'K');
  }
  if (!neighbour.is_value)
    CheckRotation(rotation.distance, rotation.angles.size(), row_bytes / 2, 0);
  return chunk;
}

}  // namespace

NeighbourTaps::NeighbourTaps(const Neighbour& neighbour, const NeighbourSource* source,
                             uint64_t rows, const Rotation& rotation, const RowSteps& steps)
    : wanted_(neighbour.columns),
      chunk_(OpenNeighbour(neighbour, source, rows, rotation)),
      columns_(chunk_.raw->size() / 2 / rows),
      largest_(LmsLargestExponent(*chunk_.raw, bfloat())),
      rotates_(!neighbour.is_value),
      steps_(steps),
      rotator_(rotation, columns_),
      x_(columns_),
      still_(columns_) {}

void NeighbourTaps::Row(uint64_t row, float* taps) {
  const ModelValue value_of(bfloat(), LmsScale(largest_));
  const std::byte* from = chunk_.raw->data() + 2 * columns_ * row;
  for (uint64_t c = 0; c < columns_; ++c) x_[c] = value_of(LoadLE<uint16_t>(from + 2 * c));
  if (rotates_) rotator_.Rotate(0u - steps_[row], x_.data(), still_.data());
  std::copy_n(rotates_ ? still_.data() : x_.data(), wanted_, taps);
}

NeighbourChunk WidenToHalves(NeighbourChunk chunk) {
  if (FindByteShift(chunk.dtype) == 0) return chunk;
  const Halves halves(chunk.dtype, *chunk.raw, nullptr);
  return {DType::kF16, std::make_shared<const Bytes>(halves.bytes().begin(), halves.bytes().end()),
          FindByteShift(chunk.dtype)};
}

void WriteNeighbour(const Neighbour& neighbour, ByteWriter& out) {
  out.U32(neighbour.layer);
  out.U8(neighbour.is_value ? 1 : 0);
  out.U8(0);
  out.U16(neighbour.columns);
}

Neighbour ReadNeighbour(ByteReader& reader) {
  const uint64_t at = reader.offset();
  Neighbour one;
  one.layer = reader.U32("layer of a neighbour");
  const uint32_t kind = reader.U8("kind of a neighbour"), zero = reader.U8("reserved field");
  one.columns = reader.U16("columns of a neighbour");
  one.is_value = kind == 1;
  if (kind > 1 || zero != 0 || one.columns == 0) RefuseLayers(at, "an invalid neighbour");
  return one;
}

std::vector<Neighbour> ReadNeighbours(ByteSpan payload) {
  ByteReader reader(payload);
  return ReadLayersHead(reader).neighbours;
}

void DecodeByLayers(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                    CodecScratch& scratch, const ChunkInputs& inputs) {
  ByteReader reader(payload);
  const LayersHead head = ReadLayersHead(reader);
  const ChunkGrid grid = FindGrid(shape, raw.size());
  if (shape.order != Order::kTokenHeadDim || !IsLayersGrid(grid) || grid.rows != shape.tokens)
    RefuseLayers(0, "the chunk's rows are not tokens");
  if (head.rotates)
    CheckRotation(head.rotation.distance, head.rotation.angles.size(), grid.columns, 0);
  CheckSteps(inputs.steps, grid.rows);
  LayerForecast forecast(head, grid, inputs.steps, inputs.neighbours);
  DecodeCdf(reader.Take(reader.remaining(), "distributions"), MakeForm(shape), raw, inputs.steps,
            &scratch.context.arena, &forecast);
}

}  // namespace kv
