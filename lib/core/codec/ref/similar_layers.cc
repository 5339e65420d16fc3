// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Forecasts of errors from neighbouring chunks (similar_rows.h; FORMAT.md has the grammar of codec
// 29): a regression of a row's errors on those of K and V of the layer before.

#include <algorithm>
#include <cmath>

#include "lib/core/codec/cdf/channel_model.h"
#include "lib/core/codec/context/lms.h"
#include "lib/core/codec/halves.h"
#include "lib/core/codec/ref/similar_rows.h"

namespace kv {
namespace {

// Stronger than for values (layers.cc), because errors of one layer predict those of another less
// well.
constexpr float kRidgeOfErrors = 0.1f;

void CheckRowsOfReference(const ReferenceRun& run, DType dtype, uint64_t columns, uint64_t bytes) {
  const DTypeInfo& info = Info(dtype);
  if (columns % info.block_elements == 0 &&
      bytes == run.rows * (columns / info.block_elements * info.block_bytes)) {
    return;
  }
  throw Error(Finding::kReferenceDiffers,
              "rows of layer {} {} of reference {} differ in size from a neighbour's", run.layer,
              run.is_value ? 'V' : 'K', run.reference);
}

std::vector<uint32_t> ListRows(std::span<const ReferenceRun> runs) {
  std::vector<uint32_t> rows;
  for (const ReferenceRun& run : runs) {
    for (uint32_t row = 0; row < run.rows; ++row) rows.push_back(run.first_row + row);
  }
  return rows;
}

uint64_t CountTaps(const ErrorsHead& head) {
  uint64_t taps = 1;
  for (const ErrorNeighbour& one : head.neighbours) taps += one.neighbour.columns;
  return taps;
}

}  // namespace

void WriteErrorsHead(const ErrorsHead& head, ByteWriter& out) {
  out.U8(static_cast<uint8_t>(head.neighbours.size()));
  out.U8(head.rotates ? 1 : 0);
  for (const ErrorNeighbour& one : head.neighbours) {
    WriteNeighbour(one.neighbour, out);
    for (const uint32_t layer : one.layers) out.U32(layer);
    out.Append(one.hash);
  }
  WriteRotation(head.rotation, out);
  for (const int32_t shift : head.shifts_of_runs) out.I32(shift);
}

ErrorsHead ReadErrorsHead(ByteReader& reader, uint64_t similar_runs) {
  ErrorsHead head;
  const uint64_t at = reader.offset();
  const uint32_t count = reader.U8("number of neighbours"), flags = reader.U8("flags");
  if (count == 0 || count > kMaxNeighbours || flags > 1 || similar_runs == 0) {
    throw Error(Finding::kBadFrame, "{} neighbours of {} runs with flags {}", count, similar_runs,
                flags)
        .At(at);
  }
  head.rotates = flags == 1;
  for (uint32_t i = 0; i < count; ++i) {
    ErrorNeighbour one;
    one.neighbour = ReadNeighbour(reader);
    ByteReader layers(reader.TakeArray(similar_runs, 4, "layers of references"), reader.offset());
    for (uint64_t run = 0; run < similar_runs; ++run) one.layers.push_back(layers.U32("layer"));
    const ByteSpan hash = reader.Take(one.hash.size(), "hash");
    std::copy(hash.begin(), hash.end(), one.hash.begin());
    head.neighbours.push_back(std::move(one));
  }
  if (CountTaps(head) > BlockRegression::kMaxTaps)
    throw Error(Finding::kBadFrame, "too many columns of neighbours").At(at);
  head.rotation = ReadRotation(reader, ChannelModel::kMaxColumns);
  ByteReader shifts(reader.TakeArray(similar_runs, 4, "rotations of K"), reader.offset());
  for (uint64_t run = 0; run < similar_runs; ++run)
    head.shifts_of_runs.push_back(shifts.I32("rotation of K"));
  return head;
}

// Yields the errors of one neighbour in the similar rows, with the rotation of K undone.
class NeighbourErrors::Taps {
 public:
  Taps(const ErrorsHead& head, const ErrorNeighbour& one, NeighbourChunk chunk, uint64_t rows,
       std::span<const ReferenceRun> runs, const ReferenceRows& references, Hash128Bytes& hash)
      : wanted_(one.neighbour.columns),
        form_{chunk.dtype == DType::kBF16, FindByteShift(chunk.dtype)},
        chunk_(WidenToHalves(std::move(chunk))),
        columns_(CheckColumns(one.neighbour, rows)),
        value_of_(form_.bfloat, LmsScale(LmsLargestExponent(*chunk_.raw, form_.bfloat))),
        rotates_(!one.neighbour.is_value),
        rotator_(head.rotation, columns_),
        errors_(columns_),
        still_(columns_) {
    if (rotates_) CheckRotation(head.rotation.distance, head.rotation.angles.size(), columns_, 0);
    ReadExpected(head, one, runs, references, hash);
  }

  uint64_t wanted() const { return wanted_; }
  void Row(uint64_t similar_row, uint32_t row, float* taps) {
    const std::byte* values = chunk_.raw->data() + 2 * columns_ * row;
    const uint16_t* expected = expected_.data() + columns_ * similar_row;
    for (uint64_t c = 0; c < columns_; ++c) {
      const float error = value_of_(LoadLE<uint16_t>(values + 2 * c)) - value_of_(expected[c]);
      errors_[c] = std::abs(error) < kRegressLimit ? error : 0;
    }
    if (rotates_) rotator_.Rotate(0u - row, errors_.data(), still_.data());
    std::copy_n(rotates_ ? still_.data() : errors_.data(), wanted_, taps);
  }

 private:
  uint64_t CheckColumns(const Neighbour& one, uint64_t rows) const {
    const uint64_t row_bytes = chunk_.raw->size() / rows;
    if (!IsHalfFloat(chunk_.dtype) || row_bytes * rows != chunk_.raw->size() ||
        row_bytes % 2 != 0 || one.columns > row_bytes / 2 ||
        row_bytes / 2 > ChannelModel::kMaxColumns) {
      throw Error(Finding::kBadFrame, "layer {} {} cannot be a neighbour", one.layer,
                  one.is_value ? 'V' : 'K');
    }
    return row_bytes / 2;
  }

  void ReadExpected(const ErrorsHead& head, const ErrorNeighbour& one,
                    std::span<const ReferenceRun> runs, const ReferenceRows& references,
                    Hash128Bytes& hash) {
    // The hash covers the reference's rows in its own type, before they are rotated or converted.
    ExpectedRows expected(form_, columns_, head.rotation);
    StreamingHash all;
    Bytes bytes;
    uint64_t at = 0;
    for (const ReferenceRun& run : runs) at += run.rows;
    expected_.resize(at * columns_);
    at = 0;
    for (size_t i = 0; i < runs.size(); ++i) {
      ReferenceRun run = runs[i];
      run.layer = one.layers[i];
      run.is_value = one.neighbour.is_value;
      run.position_shift = rotates_ ? head.shifts_of_runs[i] : 0;
      const DType dtype = references.Read(run, columns_, bytes);
      CheckRowsOfReference(run, dtype, columns_, bytes.size());
      if (run.position_shift != 0 && head.rotation.angles.empty())
        throw Error(Finding::kBadFrame, "K is rotated, but the frame has no angles");
      all.Update(bytes);
      expected.Make(dtype, bytes, run.position_shift, expected_.data() + at * columns_);
      at += run.rows;
    }
    hash = all.Digest128();
  }

  const uint64_t wanted_;
  const HalfForm form_;
  const NeighbourChunk chunk_;
  const uint64_t columns_;
  const ModelValue value_of_;
  const bool rotates_;
  Rotator rotator_;
  std::vector<uint16_t> expected_;
  std::vector<float> errors_, still_;
};

NeighbourErrors::NeighbourErrors(const ErrorsHead& head, std::span<const ReferenceRun> similar_runs,
                                 uint64_t rows, uint64_t columns, const ReferenceRows& references,
                                 const NeighbourSource& neighbours)
    : head_(head),
      rows_(ListRows(similar_runs)),
      block_(CountTaps(head), columns, kRidgeOfErrors),
      rotator_(head.rotation, columns),
      forecast_(columns),
      rotated_(columns) {
  if (head.rotates) CheckRotation(head.rotation.distance, head.rotation.angles.size(), columns, 0);
  for (const ErrorNeighbour& one : head.neighbours) {
    Hash128Bytes hash;
    taps_.push_back(std::make_unique<Taps>(head, one, neighbours.Read(one.neighbour), rows,
                                           similar_runs, references, hash));
    hashes_.push_back(hash);
  }
}
NeighbourErrors::~NeighbourErrors() = default;

const float* NeighbourErrors::Expect(uint64_t similar_row) {
  float* taps = block_.taps().data();
  for (const auto& one : taps_) {
    one->Row(similar_row, rows_[similar_row], taps);
    taps += one->wanted();
  }
  block_.Predict(forecast_);
  if (!head_.rotates) return forecast_.data();
  rotator_.Rotate(rows_[similar_row], forecast_.data(), rotated_.data());
  return rotated_.data();
}

void NeighbourErrors::Learn(uint64_t similar_row, const float* errors) {
  if (head_.rotates) {
    rotator_.Rotate(0u - rows_[similar_row], errors, rotated_.data());
    errors = rotated_.data();
  }
  block_.Learn({errors, forecast_.size()});
}

}  // namespace kv
