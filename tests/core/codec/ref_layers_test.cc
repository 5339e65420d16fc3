// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "lib/core/codec/chunk.h"
#include "lib/core/codec/ref/ref.h"
#include "lib/core/kernels/dequantise.h"
#include "tests/support/refusal.h"
#include "tests/support/targets.h"

namespace kv::ref_layers_test {
namespace {

constexpr uint64_t kColumns = 32, kRows = 300;
using Values = std::vector<float>;
// Identifies K or V of a layer: its number, and true for V.
using Which = std::pair<uint32_t, bool>;

Values Noise(uint32_t seed, float deviation) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  Values values(kRows * kColumns);
  for (float& value : values) value = normal(random);
  return values;
}

// Multiplies rows by a matrix of random weights.
Values Mixed(const Values& rows, uint32_t seed, uint64_t columns = kColumns) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(kColumns)));
  Values weights(kColumns * columns), mixed(kRows * columns);
  for (float& weight : weights) weight = normal(random);
  for (uint64_t row = 0; row < kRows; ++row) {
    for (uint64_t i = 0; i < kColumns; ++i) {
      for (uint64_t c = 0; c < columns; ++c)
        mixed[row * columns + c] += rows[row * kColumns + i] * weights[i * columns + c];
    }
  }
  return mixed;
}

Values operator+(Values a, const Values& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

Bytes As(DType dtype, const Values& values) {
  Bytes bytes(values.size() * Info(dtype).block_bytes);
  FromFloats(dtype, values, bytes.data());
  return bytes;
}

// Elsewhere gives the rows of another cache, the reference.
class Elsewhere : public ReferenceRows {
 public:
  void Put(Which which, DType dtype, const Values& values) {
    tensors_[which] = {dtype, As(dtype, values)};
  }
  DType Read(const ReferenceRun& run, uint64_t elements, Bytes& rows) const override {
    const auto at = tensors_.find({run.layer, run.is_value});
    if (at == tensors_.end()) throw Error(Finding::kReferenceDiffers, "no such layer");
    const auto& [dtype, bytes] = at->second;
    const uint64_t row = elements * Info(dtype).block_bytes;
    if ((run.first_token + run.rows) * row > bytes.size())
      throw Error(Finding::kReferenceDiffers, "too few");
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(run.first_token * row);
    rows.assign(begin, begin + static_cast<std::ptrdiff_t>(run.rows * row));
    return dtype;
  }

 private:
  std::map<Which, std::pair<DType, Bytes>> tensors_;
};

class Here : public NeighbourSource {
 public:
  void Put(Which which, DType dtype, const Values& values) {
    tensors_[which] = {dtype, std::make_shared<const Bytes>(As(dtype, values))};
  }
  NeighbourChunk Read(const Neighbour& one) const override {
    const auto at = tensors_.find({one.layer, one.is_value});
    if (at == tensors_.end()) throw Error(Finding::kLostChunk, "no such chunk");
    return at->second;
  }

 private:
  std::map<Which, NeighbourChunk> tensors_;
};

Rotation Turning() {
  Rotation rotation{8, {}};
  for (uint32_t i = 0; i < 8; ++i) rotation.angles.push_back(0x20000000u >> i);
  return rotation;
}

// Rotates each row by its index plus `more`.
Values Rotated(const Values& rows, uint32_t more = 0) {
  const Rotation rotation = Turning();
  Rotator rotator(rotation, kColumns);
  Values rotated(rows.size());
  for (uint32_t row = 0; row < kRows; ++row)
    rotator.Rotate(row + more, rows.data() + row * kColumns, rotated.data() + row * kColumns);
  return rotated;
}

// K or V of a layer with a reference. Its errors correlate with those of the layer before and of
// its own K. The reference numbers its layers from 10, and its positions are 7 higher.
struct Case {
  explicit Case(bool is_value, DType dtype = DType::kF16, DType theirs = DType::kF32)
      : is_value(is_value), shape{dtype, kRows, 2, kColumns / 2, Order::kTokenHeadDim} {
    const Values cause = Noise(1, 0.02f);
    const auto put = [&](Which which, uint32_t seed, bool turns, DType here_type) {
      const Values there = Noise(seed, 1);
      const Values values = there + (Mixed(cause, seed + 1) + Noise(seed + 2, 0.002f));
      elsewhere.Put({which.first + 10, which.second}, theirs, turns ? Rotated(there, 7) : there);
      const Values stored = turns ? Rotated(values) : values;
      here.Put(which, here_type, stored);
      return As(here_type, stored);
    };
    raw = put({3, is_value}, 5, !is_value, dtype);
    put({2, false}, 10, true, DType::kF16);
    put({2, true}, 20, false, DType::kBF16);
    neighbours = {{2, false, kColumns}, {2, true, 20}};
    if (is_value) {
      put({3, false}, 30, true, DType::kF16);
      neighbours.push_back({3, false, 9});
    }
  }

  ReferenceRun AdviseRun(Which which, uint32_t first, uint32_t rows) const {
    return {.is_value = which.second,
            .layer = which.first + 10,
            .first_row = first,
            .rows = rows,
            .first_token = first,
            .position_shift = which.second ? 0 : -7};
  }

  EncodedChunk Encode(CodecScratch& scratch, Effort effort = Effort::kMax) const {
    std::vector<ReferenceRun> runs;
    BesideNeighbours beside{.all = {}, .position_shifts = {}, .source = here, .is_value = is_value};
    for (const Neighbour& one : neighbours) beside.all.push_back({one, {}});
    for (const auto& [first, rows] : {std::pair<uint32_t, uint32_t>{10, 150}, {170, 120}}) {
      runs.push_back(AdviseRun({3, is_value}, first, rows));
      for (BesideNeighbours::One& one : beside.all)
        one.runs.push_back(AdviseRun({one.neighbour.layer, one.neighbour.is_value}, first, rows));
      beside.position_shifts.push_back(-7);
    }
    return EncodeByReference(shape, raw, runs, Turning(), elsewhere, effort, scratch,
                             EncoderAt(effort, scratch), &beside);
  }

  Bytes Decode(CodecId codec, ByteSpan payload, CodecScratch& scratch) const {
    Bytes back(raw.size());
    DecodeChunk(codec, shape, payload, back, scratch,
                {.references = &elsewhere, .neighbours = &here});
    return back;
  }
  Finding RefusalOf(ByteSpan payload) const {
    CodecScratch scratch;
    try {
      Decode(CodecId::kRefLayers, payload, scratch);
    } catch (const Error& error) {
      return error.finding();
    }
    return Finding::kInternal;  // accepted
  }

  bool is_value;
  ChunkShape shape;
  std::vector<Neighbour> neighbours;
  Elsewhere elsewhere;
  Here here;
  Bytes raw;
};

}  // namespace

TEST_CASE("errors are expected from those of neighbours", "[ref][layers]") {
  for (const bool is_value : {false, true}) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      INFO((is_value ? "V " : "K ") << Name(dtype));
      const Case one(is_value, dtype);
      Case alone = one;
      alone.neighbours.clear();
      CodecScratch scratch;
      const EncodedChunk apart = alone.Encode(scratch);
      REQUIRE(apart.codec == CodecId::kRefCdf);
      std::optional<Bytes> first;
      test::ForEachTarget([&](const std::string& target) {
        INFO(target);
        CodecScratch own;
        const EncodedChunk chunk = one.Encode(own);
        REQUIRE(chunk.codec == CodecId::kRefLayers);
        if (!first) first = chunk.payload;
        CHECK(chunk.payload == *first);
        CHECK(one.Decode(chunk.codec, chunk.payload, own) == one.raw);
      });
      CHECK(first->size() < apart.payload.size() * 9 / 10);
      CHECK(ReadErrorNeighbours(one.shape, *first) == one.neighbours);
    }
  }
}

TEST_CASE("neighbours that say nothing are left out", "[ref][layers]") {
  Case one(true);
  one.here.Put({2, false}, DType::kF16, Noise(77, 1));
  one.here.Put({2, true}, DType::kF16, Noise(78, 1));
  one.here.Put({3, false}, DType::kF16, Noise(79, 1));
  CodecScratch scratch;
  CHECK(one.Encode(scratch).codec == CodecId::kRefCdf);
  CHECK(Case(true).Encode(scratch, Effort::kHigh).codec == CodecId::kRef);
  // A neighbour is ignored if the reference lacks its rows.
  Case poor(true);
  poor.neighbours = {{9, false, 4}};
  poor.here.Put({9, false}, DType::kF16, Noise(80, 1));
  CHECK(poor.Encode(scratch).codec == CodecId::kRefCdf);
}

TEST_CASE("values that are no numbers come back, and are no taps", "[ref][layers]") {
  Case one(true);
  Values odd = Noise(20, 1);
  for (size_t i = 0; i < odd.size(); i += 41) odd[i] = i % 2 ? NAN : INFINITY;
  one.here.Put({2, true}, DType::kBF16, odd);
  for (size_t i = 0; i < one.raw.size(); i += 998) {
    one.raw[i + 1] = std::byte{0x7c};
    one.raw[i] = std::byte{static_cast<uint8_t>(i % 3)};
  }
  CodecScratch scratch;
  const EncodedChunk chunk = one.Encode(scratch);
  REQUIRE(chunk.codec == CodecId::kRefLayers);
  CHECK(one.Decode(chunk.codec, chunk.payload, scratch) == one.raw);
}

TEST_CASE("chunks of errors that no encoder writes are refused", "[ref][layers]") {
  const Case one(false);
  CodecScratch scratch;
  const Bytes good = one.Encode(scratch).payload;
  REQUIRE(one.RefusalOf(good) == Finding::kInternal);
  // Layout: a header of 12 bytes, two runs; then two neighbours of 32 bytes each, and a rotation.
  constexpr size_t kHead = 12 + 2 * 44, kFirst = kHead + 2, kTurns = kFirst + 2 * 32;
  const auto forged = [&](size_t at, uint8_t value) {
    Bytes bytes = good;
    bytes.at(at) = std::byte{value};
    return one.RefusalOf(bytes);
  };
  CHECK(forged(kHead, 0) == Finding::kBadFrame);       // no neighbours
  CHECK(forged(kHead, 5) == Finding::kBadFrame);       // too many
  CHECK(forged(kHead + 1, 2) == Finding::kBadFrame);   // the flag may only be 0 or 1
  CHECK(forged(kFirst, 8) == Finding::kLostChunk);     // the layer does not exist
  CHECK(forged(kFirst + 4, 2) == Finding::kBadFrame);  // neither K nor V
  CHECK(forged(kFirst + 5, 1) == Finding::kBadFrame);  // reserved
  CHECK(forged(kFirst + 6, 0) == Finding::kBadFrame);  // no columns
  // One column more than the rows have.
  CHECK(forged(kFirst + 6, kColumns + 1) == Finding::kBadFrame);
  // More columns than any chunk may have.
  CHECK(forged(kFirst + 7, 0xff) == Finding::kBadFrame);
  CHECK(forged(kFirst + 8, 1) == Finding::kReferenceDiffers);   // the reference lacks this layer
  CHECK(forged(kFirst + 16, 1) == Finding::kReferenceDiffers);  // hash
  CHECK(forged(kTurns, 0) == Finding::kBadFrame);               // rotation partners 0 apart
  CHECK(forged(kTurns + 2, 0) != Finding::kInternal);           // rotated by 0 positions
  // Rows are only taken from a neighbour with exactly as many columns.
  Case other = one;
  other.elsewhere.Put({12, true}, DType::kF32, Noise(99, 1));
  CHECK(other.RefusalOf(good) == Finding::kReferenceDiffers);
  CHECK(test::FindingOf([&] {
          CodecScratch without;
          Bytes back(one.raw.size());
          DecodeChunk(CodecId::kRefLayers, one.shape, good, back, without,
                      {.references = &one.elsewhere});
        }) == Finding::kLostChunk);
  for (size_t size = 0; size < good.size(); size += size < 300 ? 1 : 997) {
    INFO(size);
    CHECK(one.RefusalOf(ByteSpan(good).first(size)) != Finding::kInternal);
  }
  for (size_t at = 0; at < good.size(); at += at < 300 ? 3 : 501) {
    const Finding finding = forged(at, static_cast<uint8_t>(at));
    CHECK((finding == Finding::kInternal || finding < Finding::kForbiddenGlobal));
  }
}

}  // namespace kv::ref_layers_test
