// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Quantises rows to integers or fp8 as Dynamo's kernels do, and writes and reads their buffers.
#include "lib/engines/dynamo/kvtc.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/half.h"

namespace kv::dynamo {
namespace {

constexpr int32_t kFp8 = 0, kInteger = 1;  // values of a range's type in its header
constexpr float kSoftOverflow = 248;
// A row with a smaller span counts as constant, as in the kernels.
constexpr float kConstant = 1e-10f;

uint64_t CodesInByte(uint32_t bits) { return bits == 0 ? 1 : 8 / bits; }

bool IsCodeWidth(uint32_t bits) {
  return bits == 0 || bits == 1 || bits == 2 || bits == 4 || bits == 8;
}

// Returns true if rows do not fill whole bytes: then the kernels and their own header disagree on
// where the next row begins.
bool IsTorn(const Range& range, uint64_t rows) {
  return rows > 1 && range.width() % CodesInByte(range.bits) != 0;
}

float ComputeSpan(const Extremes& extremes) {
  const float span = extremes.most - extremes.least;
  return span < kConstant ? 1.0f : span;
}

void RequireRange(const Range& range, uint64_t rows, uint64_t components) {
  const auto fail = [&](std::string_view what) {
    throw Error(Finding::kBadField, "components [{}, {}) {}", range.begin, range.end, what);
  };
  if (!IsCodeWidth(range.bits)) fail("have codes of other than 1, 2, 4 or 8 bits");
  if (range.begin >= range.end) fail("are an empty range");
  if (range.end > components) fail("are not all among those of a row");
  if (IsTorn(range, rows)) {
    fail(
        "do not fill whole bytes of a row: with several rows Dynamo's kernel writes beyond the "
        "size "
        "that its header says, over what follows");
  }
}

}  // namespace

uint64_t Range::row_bytes() const { return CeilDiv(width(), CodesInByte(bits)); }

uint8_t ToFp8(float value, Fp8Path path) {
  if (path == Fp8Path::kSm89 || std::isnan(value)) {
    return F32ToE4M3(value, Float8Overflow::kSaturate);
  }
  const float magnitude = std::fabs(value);
  if (magnitude == 0) return 0;
  const float kept = magnitude >= kSoftOverflow                    ? kE4M3Max
                     : magnitude > 0x1p-10f && magnitude < 0x1p-9f ? 0.0f
                                                                   : magnitude;
  return F32ToE4M3(std::copysign(kept, value), Float8Overflow::kSaturate);
}

Extremes EncodeRow(std::span<const float> row, uint32_t bits, std::byte* packed) {
  Extremes extremes{std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest()};
  for (const float value : row) {
    if (value < extremes.least) extremes.least = value;
    if (value > extremes.most) extremes.most = value;
  }
  const float span = ComputeSpan(extremes), largest = static_cast<float>((1u << bits) - 1);
  std::fill_n(packed, CeilDiv(row.size(), CodesInByte(bits)), std::byte{0});
  for (size_t i = 0; i < row.size(); ++i) {
    const float level = std::round((row[i] - extremes.least) / span * largest);
    // GPUs convert NaN to 0.
    const uint32_t code =
        std::isnan(level) ? 0 : static_cast<uint32_t>(std::clamp(level, 0.0f, largest));
    const uint64_t at = i * bits;
    packed[at / 8] |= static_cast<std::byte>(code << (at % 8));
  }
  return extremes;
}

void DecodeRow(const Extremes& extremes, uint32_t bits, const std::byte* packed,
               std::span<float> out) {
  const float span = ComputeSpan(extremes), largest = static_cast<float>((1u << bits) - 1);
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t at = i * bits;
    const uint32_t code =
        std::to_integer<uint32_t>(packed[at / 8]) >> (at % 8) & ((1u << bits) - 1);
    out[i] = static_cast<float>(code) * span / largest + extremes.least;
  }
}

void RequireSound(std::span<const Range> ranges, uint64_t rows, uint64_t components, Gaps gaps) {
  for (const Range& range : ranges) RequireRange(range, rows, components);
  std::vector<Range> sorted(ranges.begin(), ranges.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  uint64_t end = 0;
  const auto refuse_gap = [&](uint64_t next) {
    if (next == end || gaps == Gaps::kZero) return;
    throw Error(
        Finding::kBadField,
        "no range has the components [{}, {}): Dynamo decodes them from uninitialised memory", end,
        next);
  };
  for (const Range& range : sorted) {
    if (range.begin < end) {
      throw Error(Finding::kBadField, "two ranges have component {}", range.begin);
    }
    refuse_gap(range.begin);
    end = range.end;
  }
  refuse_gap(components);
}

Bytes WriteBuffer(std::span<const float> values, uint64_t rows, uint64_t components,
                  std::span<const Range> ranges, Fp8Path path, Gaps gaps) {
  KV_ASSERT(values.size() == rows * components);
  RequireSound(ranges, rows, components, gaps);
  ByteWriter out;
  for (const Range& range : ranges) {
    const bool is_integer = range.bits != 0;
    Bytes packed(rows * range.row_bytes());
    std::vector<float> extremes(is_integer ? 2 * rows : 0);  // all minima, then all maxima
    for (uint64_t r = 0; r < rows; ++r) {
      const auto row = values.subspan(r * components + range.begin, range.width());
      std::byte* to = packed.data() + r * range.row_bytes();
      if (is_integer) {
        const Extremes of_row = EncodeRow(row, range.bits, to);
        extremes[r] = of_row.least;
        extremes[rows + r] = of_row.most;
      } else {
        for (size_t i = 0; i < row.size(); ++i) to[i] = std::byte{ToFp8(row[i], path)};
      }
    }
    out.I32(is_integer ? kInteger : kFp8);
    out.I32(static_cast<int32_t>(range.bits));
    for (const uint64_t end : {range.begin, range.end}) out.U64(end);
    for (const size_t bytes : {packed.size(), 4 * extremes.size()}) out.U64(bytes);
    out.Append(std::as_bytes(std::span(extremes)));
    out.Append(packed);
  }
  return out.Release();
}

namespace {

// A range of a buffer, with the offsets of its parts.
struct Stored {
  Range range;
  ByteSpan extremes, packed;
};

Range ReadRange(ByteReader& reader) {
  const uint64_t at = reader.offset();
  const int32_t type = reader.I32("range type");
  const int32_t bits = reader.I32("bits of a code");
  const bool is_known = type == kFp8 ? bits == 0 : type == kInteger && bits > 0 && bits <= 8;
  if (!is_known) {
    throw Error(Finding::kBadField, "a range of type {} with codes of {} bits", type, bits).At(at);
  }
  Range range;
  range.begin = reader.U64("first component");
  range.end = reader.U64("end of the components");
  range.bits = static_cast<uint32_t>(bits);
  return range;
}

Stored ReadStored(ByteReader& reader, uint64_t rows, uint64_t components) {
  Stored stored{ReadRange(reader), {}, {}};
  RequireRange(stored.range, rows, components);
  const uint64_t at = reader.offset();
  const uint64_t packed = reader.U64("bytes of the codes");
  const uint64_t extremes = reader.U64("bytes of the extremes");
  const uint64_t expected = CheckedMul(rows, stored.range.row_bytes(), "codes");
  const uint64_t expected_extremes = stored.range.bits == 0 ? 0 : CheckedMul(rows, 8, "extremes");
  if (packed != expected || extremes != expected_extremes) {
    throw Error(Finding::kSizeMismatch,
                "the range has {} bytes of codes and {} of extremes, expected {} and {} of {} rows",
                packed, extremes, expected, expected_extremes, rows)
        .At(at);
  }
  stored.extremes = reader.Take(extremes, "extremes");
  stored.packed = reader.Take(packed, "codes");
  return stored;
}

void Decode(const Stored& stored, uint64_t rows, uint64_t components, std::vector<float>& values) {
  const Range& range = stored.range;
  for (uint64_t r = 0; r < rows; ++r) {
    const std::span<float> out(&values[r * components + range.begin], range.width());
    const std::byte* packed = stored.packed.data() + r * range.row_bytes();
    if (range.bits == 0) {
      for (size_t i = 0; i < out.size(); ++i)
        out[i] = E4M3ToF32(std::to_integer<uint8_t>(packed[i]));
      continue;
    }
    const std::byte* extremes = stored.extremes.data();
    DecodeRow({LoadLE<float>(extremes + 4 * r), LoadLE<float>(extremes + 4 * (rows + r))},
              range.bits, packed, out);
  }
}

}  // namespace

Buffer ReadBuffer(ByteSpan bytes, uint64_t rows, uint64_t components, Gaps gaps) {
  ByteReader reader(bytes);
  std::vector<Stored> all;
  Buffer buffer;
  while (!reader.at_end()) {
    all.push_back(ReadStored(reader, rows, components));
    buffer.ranges.push_back(all.back().range);
  }
  RequireSound(buffer.ranges, rows, components, gaps);
  buffer.values.resize(CheckedMul(rows, components, "values"));
  for (const Stored& stored : all) Decode(stored, rows, components, buffer.values);
  return buffer;
}

}  // namespace kv::dynamo
