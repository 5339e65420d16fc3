// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/ref/ref.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "lib/core/codec/chunk.h"
#include "lib/core/kernels/dequantise.h"
#include "tests/support/targets.h"

namespace kv::ref_test {
namespace {

constexpr uint64_t kColumns = 48;

// Rows gives the rows of K or V of one layer, in any type.
class Rows : public ReferenceRows {
 public:
  Rows(DType dtype, Bytes bytes) : dtype_(dtype), bytes_(std::move(bytes)) {}
  DType Read(const ReferenceRun& run, uint64_t elements, Bytes& rows) const override {
    const DTypeInfo& info = Info(dtype_);
    const uint64_t row = elements / info.block_elements * info.block_bytes;
    if ((run.first_token + run.rows) * row > bytes_.size())
      throw Error(Finding::kReferenceDiffers, "too few");
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(run.first_token * row);
    rows.assign(begin, begin + static_cast<std::ptrdiff_t>(run.rows * row));
    return dtype_;
  }

 private:
  DType dtype_;
  Bytes bytes_;
};

std::vector<float> Values(uint64_t rows, uint32_t seed, float noise = 0, uint32_t noise_seed = 0) {
  std::mt19937 random(seed), other(noise_seed);
  std::normal_distribution<float> normal, more;
  std::vector<float> values(rows * kColumns);
  for (float& value : values) value = 3 * normal(random) + noise * more(other);
  return values;
}

Bytes As(DType dtype, const std::vector<float>& values) {
  Bytes bytes(values.size() * Info(dtype).block_bytes);
  FromFloats(dtype, values, bytes.data());
  return bytes;
}

ChunkShape ShapeOf(DType dtype, uint64_t rows) {
  return {dtype, rows, 2, kColumns / 2, Order::kTokenHeadDim};
}

Rotation Turning() {
  Rotation rotation{12, {}};
  for (uint32_t i = 0; i < 12; ++i) rotation.angles.push_back(0x20000000u >> i);
  return rotation;
}

// Encodes the chunk, then decodes and compares it on every target. All targets must encode alike.
EncodedChunk Code(const ChunkShape& shape, const Bytes& raw, const std::vector<ReferenceRun>& runs,
                  const Rows& rows, Effort effort = Effort::kDefault) {
  const Rotation rotation = Turning();
  std::optional<EncodedChunk> first;
  test::ForEachTarget([&](const std::string& target) {
    INFO(target);
    CodecScratch scratch;
    EncodedChunk chunk = EncodeByReference(shape, raw, runs, rotation, rows, effort, scratch,
                                           EncoderAt(effort, scratch));
    if (!first) first = chunk;
    REQUIRE(chunk.payload == first->payload);
    Bytes back(raw.size());
    DecodeChunk(chunk.codec, shape, chunk.payload, back, scratch, {.references = &rows});
    REQUIRE(back == raw);
  });
  return *first;
}

Finding RefusalOf(const ChunkShape& shape, ByteSpan payload, uint64_t raw_bytes, const Rows* rows,
                  CodecId codec = CodecId::kRef) {
  CodecScratch scratch;
  Bytes back(raw_bytes);
  try {
    DecodeChunk(codec, shape, payload, back, scratch, {.references = rows});
  } catch (const Error& error) {
    return error.finding();
  }
  return Finding::kInternal;  // accepted
}

}  // namespace

TEST_CASE("rows near those of a reference come back, whatever type it has", "[ref]") {
  constexpr uint64_t kRows = 200;
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const Bytes raw = As(dtype, Values(kRows, 1));
    for (const DType theirs : {DType::kF16, DType::kBF16, DType::kF32}) {
      INFO(Name(dtype) << " by " << Name(theirs));
      const Rows rows(theirs, As(theirs, Values(kRows + 9, 1, 0.01f, 2)));
      const EncodedChunk chunk = Code(ShapeOf(dtype, kRows), raw,
                                      {{.first_row = 10, .rows = 180, .first_token = 10}}, rows);
      REQUIRE(chunk.codec == CodecId::kRef);
      CHECK(chunk.payload.size() < raw.size() * 7 / 10);
    }
  }
}

TEST_CASE("equal rows cost nothing, of any type", "[ref]") {
  constexpr uint64_t kRows = 300;
  for (const DType dtype : {DType::kF16, DType::kF32, DType::kBF16}) {
    Bytes raw = As(dtype, Values(kRows, 3));
    const Rows rows(dtype, raw);
    raw[raw.size() / 2] ^= std::byte{1};  // one row differs
    const EncodedChunk chunk = Code(ShapeOf(dtype, kRows), raw, {{.rows = kRows}}, rows);
    REQUIRE(chunk.codec == (dtype == DType::kF32 ? CodecId::kRef : CodecId::kRefSparse));
    CHECK(chunk.payload.size() < (dtype == DType::kF32 ? 300 : 80));
  }
}

TEST_CASE("turned keys are near those at another position", "[ref]") {
  constexpr uint64_t kRows = 100;
  const std::vector<float> values = Values(kRows, 5);
  const Rotation rotation = Turning();
  Rotator rotator(rotation, kColumns);
  std::vector<float> rotated(values.size());
  for (uint64_t row = 0; row < kRows; ++row)
    rotator.Rotate(static_cast<uint32_t>(-7), values.data() + row * kColumns,
                   rotated.data() + row * kColumns);
  const Bytes raw = As(DType::kF16, rotated);
  const Rows rows(DType::kF16, As(DType::kF16, values));
  const EncodedChunk chunk =
      Code(ShapeOf(DType::kF16, kRows), raw, {{.rows = kRows, .position_shift = -7}}, rows);
  REQUIRE(chunk.codec == CodecId::kRef);
  CHECK(chunk.payload.size() < raw.size() / 3);
}

TEST_CASE("values that are no numbers, and grids of low zeros, come back", "[ref]") {
  constexpr uint64_t kRows = 64;
  std::mt19937 random(9);
  std::vector<float> values = Values(kRows, 6, 0.01f, 1);
  for (size_t i = 0; i < values.size(); i += 37) values[i] = i % 2 ? NAN : -INFINITY;
  const Rows rows(DType::kF16, As(DType::kF16, Values(kRows, 6)));
  Code(ShapeOf(DType::kF16, kRows), As(DType::kF16, values), {{.rows = kRows}}, rows);
  Bytes coarse = As(DType::kF16, Values(kRows, 6, 0.1f, 1));
  for (size_t i = 0; i < coarse.size(); i += 2) coarse[i] &= std::byte{0xe0};
  Code(ShapeOf(DType::kF16, kRows), coarse, {{.rows = kRows}}, rows);
}

TEST_CASE("a reference that does not help is left out", "[ref]") {
  constexpr uint64_t kRows = 200;
  const ChunkShape shape = ShapeOf(DType::kF16, kRows);
  const Bytes raw = As(DType::kF16, Values(kRows, 7));
  CodecScratch scratch;
  const EncodedChunk alone = EncodeChunk(shape, raw, Effort::kDefault, scratch);
  const Rows other(DType::kF16, As(DType::kF16, Values(kRows, 8)));
  CHECK(Code(shape, raw, {{.rows = kRows}}, other).payload == alone.payload);
  // Only the last rows are similar: the others are coded as without the reference.
  std::vector<float> half = Values(kRows, 8), same = Values(kRows, 7);
  std::copy(same.begin() + 100 * kColumns, same.end(), half.begin() + 100 * kColumns);
  for (float& value : half) value *= 1.001f;
  const EncodedChunk mixed =
      Code(shape, raw, {{.rows = kRows}}, Rows(DType::kF16, As(DType::kF16, half)));
  CHECK(mixed.payload.size() < alone.payload.size());
}

TEST_CASE("frames that no encoder writes are refused", "[ref]") {
  constexpr uint64_t kRows = 100;
  const ChunkShape shape = ShapeOf(DType::kF16, kRows);
  const Bytes raw = As(DType::kF16, Values(kRows, 1));
  const Rows rows(DType::kF16, As(DType::kF16, Values(kRows, 1, 0.01f, 2)));
  const std::vector<ReferenceRun> runs = {{.first_row = 2, .rows = 60, .first_token = 2}};
  const Bytes good = Code(shape, raw, runs, rows).payload;
  REQUIRE(RefusalOf(shape, good, raw.size(), &rows) == Finding::kInternal);
  CHECK(RefusalOf(shape, good, raw.size(), nullptr) == Finding::kReferenceMissing);
  const Rows others(DType::kF16, As(DType::kF16, Values(kRows, 4)));
  CHECK(RefusalOf(shape, good, raw.size(), &others) == Finding::kReferenceDiffers);
  const Rows few(DType::kF16, As(DType::kF16, Values(20, 1)));
  CHECK(RefusalOf(shape, good, raw.size(), &few) == Finding::kReferenceDiffers);
  const auto forged = [&](size_t at, uint8_t value) {
    Bytes bytes = good;
    bytes.at(at) = std::byte{value};
    return RefusalOf(shape, bytes, raw.size(), &rows);
  };
  CHECK(forged(0, 25) == Finding::kBadFrame);             // this inner codec needs references
  CHECK(forged(0, 24) == Finding::kBadFrame);             // this inner codec splits heads
  CHECK(forged(1, 1) == Finding::kBadFrame);              // reserved
  CHECK(forged(11, 1) == Finding::kBadFrame);             // 2^24 runs
  CHECK(forged(14, 2) == Finding::kBadFrame);             // neither K nor V
  CHECK(forged(15, 2) == Finding::kBadFrame);             // the kind of the run is undefined
  CHECK(forged(20, 50) == Finding::kBadFrame);            // the run extends past the chunk
  CHECK(forged(27, 0x80) == Finding::kBadFrame);          // a run with far more rows than exist
  CHECK(forged(35, 0xff) == Finding::kReferenceDiffers);  // the reference has no such tokens
  CHECK(forged(36, 1) == Finding::kBadFrame);             // rotated by 0 positions
  CHECK(forged(40, 0) == Finding::kReferenceDiffers);
  for (size_t size = 0; size < good.size(); size += size < 200 ? 1 : 97) {
    INFO(size);
    CHECK(RefusalOf(shape, ByteSpan(good).first(size), raw.size(), &rows) != Finding::kInternal);
  }
  Bytes longer = good;
  longer.resize(good.size() + 2);
  CHECK(RefusalOf(shape, longer, raw.size(), &rows) == Finding::kBadPayload);
  // Damage anywhere is refused or decodes to other values, without any other effect.
  for (size_t at = 0; at < good.size(); at += 3) {
    const Finding finding = forged(at, static_cast<uint8_t>(at));
    CHECK((finding == Finding::kInternal || finding < Finding::kForbiddenGlobal));
  }
}

// Draws errors that depend on the expected value and on the errors of neighbours, as real ones do.
std::vector<float> Related(const std::vector<float>& values) {
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  std::vector<float> near = values;
  for (size_t row = 0; row < near.size(); row += kColumns) {
    float carried = 0;
    for (size_t c = 0; c < kColumns; ++c) {
      carried = 0.98f * carried + 0.02f * normal(random);
      near[row + c] += carried + 0.01f * values[row + c];
    }
  }
  return near;
}

TEST_CASE("learned distributions of errors take less than tables", "[ref]") {
  constexpr uint64_t kRows = 300;
  const std::vector<float> values = Values(kRows, 1);
  const std::vector<ReferenceRun> runs = {{.first_row = 10, .rows = 200, .first_token = 10},
                                          {.first_row = 230, .rows = 50, .first_token = 230}};
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    INFO(Name(dtype));
    std::vector<float> near = Related(values);
    near[40 * kColumns] = NAN;
    near[41 * kColumns + 1] = -INFINITY;
    near[42 * kColumns + 2] = 60000;  // 60000 is far from the expected value
    const Bytes raw = As(dtype, near);
    const Rows rows(DType::kF32, As(DType::kF32, values));
    const EncodedChunk tables = Code(ShapeOf(dtype, kRows), raw, runs, rows);
    const EncodedChunk learned = Code(ShapeOf(dtype, kRows), raw, runs, rows, Effort::kMax);
    CHECK(learned.payload.size() < tables.payload.size() * 19 / 20);
  }
}

TEST_CASE("the slowest level keeps to tables where they take less", "[ref]") {
  constexpr uint64_t kRows = 200;
  // Most values are equal; a few rows differ in too many values to learn from.
  std::vector<float> values = Values(kRows, 1), few = values;
  for (size_t i = 0; i < few.size(); i += 11) few[i] *= 1.001f;
  const Rows rows(DType::kF16, As(DType::kF16, values));
  CHECK(
      Code(ShapeOf(DType::kF16, kRows), As(DType::kF16, few), {{.rows = kRows}}, rows, Effort::kMax)
          .codec == CodecId::kRef);
  const Bytes short_raw = As(DType::kF16, Values(12, 1, 0.001f, 3));
  const Rows short_rows(DType::kF16, As(DType::kF16, Values(12, 1)));
  CHECK(Code(ShapeOf(DType::kF16, 12), short_raw, {{.rows = 12}}, short_rows, Effort::kMax).codec !=
        CodecId::kRefCdf);
}

TEST_CASE("where nearly all values are equal, those that are not are listed", "[ref]") {
  constexpr uint64_t kRows = 300;
  const std::vector<float> values = Values(kRows, 1);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const Effort effort : {Effort::kFast, Effort::kDefault, Effort::kMax}) {
      // Every tenth row differs in one value: the equal rows between them do not form runs.
      std::vector<float> few = values;
      for (size_t row = 5; row < 200; row += 10) few[row * kColumns + row % kColumns] *= 1.01f;
      const ChunkShape shape = ShapeOf(dtype, kRows);
      const Rows rows(dtype, As(dtype, values));
      EncodedChunk chunk = Code(shape, As(dtype, few), {{.rows = kRows}}, rows, effort);
      CHECK(chunk.codec == CodecId::kRefSparse);
      const auto runs = ReadReferenceRuns(shape, chunk.payload);
      REQUIRE(runs.size() == 1);
      CHECK_FALSE(runs[0].equal);
      CHECK(chunk.payload.size() < 12 + 44 + 4 + 20 * 3);
      // Most rows are equal to the reference, so they are copied.
      few = values;
      few[0] *= 1.01f;
      chunk = Code(shape, As(dtype, few), {{.rows = kRows}}, rows, effort);
      const auto two = ReadReferenceRuns(shape, chunk.payload);
      REQUIRE(two.size() == 2);
      CHECK((!two[0].equal && two[0].rows == 1 && two[1].equal));
      CHECK(RefusalOf(shape, chunk.payload, 2 * kRows * kColumns, nullptr, chunk.codec) ==
            Finding::kReferenceMissing);
      // 40 rows equal to the reference are coded as a copy, even next to rows that are unlike it.
      std::vector<float> half = Values(kRows, 5);
      std::copy_n(values.begin(), 40 * kColumns, half.begin());
      const EncodedChunk part = Code(shape, As(dtype, half), {{.rows = kRows}}, rows, effort);
      const auto kept = ReadReferenceRuns(shape, part.payload);
      REQUIRE(kept.size() == 1);
      CHECK((kept[0].equal && kept[0].rows == 40));
    }
  }
}

TEST_CASE("learned distributions that no encoder writes are refused", "[ref]") {
  constexpr uint64_t kRows = 60;
  const ChunkShape shape = ShapeOf(DType::kF16, kRows);
  const std::vector<float> values = Values(kRows, 1);
  const Bytes raw = As(DType::kF16, Related(values));
  const Rows rows(DType::kF16, As(DType::kF16, values));
  const Bytes good = Code(shape, raw, {{.rows = kRows}}, rows, Effort::kMax).payload;
  const auto refusal = [&](ByteSpan payload) {
    return RefusalOf(shape, payload, raw.size(), &rows, CodecId::kRefCdf);
  };
  REQUIRE(refusal(good) == Finding::kInternal);
  CHECK(RefusalOf(shape, good, raw.size(), nullptr, CodecId::kRefCdf) ==
        Finding::kReferenceMissing);
  const auto forged = [&](size_t at, uint8_t value) {
    Bytes bytes = good;
    bytes.at(at) = std::byte{value};
    return refusal(bytes);
  };
  // Layout: header (12 bytes), one run (44), a rotation without angles (4), length of the factors,
  // the factors; then the cdf header, 20 bytes and 2 for each far channel.
  const size_t factors = 12 + 44 + 4, head = factors + 4 + LoadLE<uint32_t>(good.data() + factors);
  const size_t far = std::to_integer<size_t>(good[head + 2]), hints = head + 20 + 2 * far;
  CHECK(forged(factors + 3, 1) == Finding::kTruncated);
  CHECK(forged(factors + 4, 0) == Finding::kBadPayload);
  CHECK(forged(head, 0) == Finding::kBadFrame);         // no exponent
  CHECK(forged(head + 3, 1) == Finding::kBadFrame);     // classes
  CHECK(forged(head + 4, 59) == Finding::kBadFrame);    // rows
  CHECK(forged(head + 8, 24) == Finding::kBadFrame);    // columns
  CHECK(forged(head + 16, 0) == Finding::kBadFrame);    // rotation partners 0 apart
  CHECK(forged(head + 18, 1) == Finding::kBadFrame);    // turns
  CHECK(forged(hints, 0) == Finding::kBadFrame);        // no hint
  CHECK(forged(hints, 3) == Finding::kBadFrame);        // too many
  CHECK(forged(hints + 1, 109) == Finding::kBadFrame);  // power
  CHECK(refusal(ByteSpan(good).first(good.size() - 4)) == Finding::kBadPayload);
  CHECK(refusal(ByteSpan(good).first(good.size() - 1)) == Finding::kTrailingBytes);
  for (size_t size = 0; size < good.size(); size += size < 200 ? 1 : 97) {
    INFO(size);
    CHECK(refusal(ByteSpan(good).first(size)) != Finding::kInternal);
  }
  for (size_t at = 0; at < good.size(); at += 7) {
    const Finding finding = forged(at, static_cast<uint8_t>(at));
    CHECK((finding == Finding::kInternal || finding < Finding::kForbiddenGlobal));
  }
}

}  // namespace kv::ref_test
