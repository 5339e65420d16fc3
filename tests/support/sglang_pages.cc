// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "tests/support/sglang_pages.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "lib/core/base/error.h"
#include "lib/core/base/half.h"
#include "lib/engines/sglang/ascend.h"

namespace kv::sglang {
namespace {

constexpr uint32_t kAscendSizes[] = {1, 8, 16, 64, 256, 1024};
constexpr size_t kTypes = 4;  // of kAscendForm

float ToBFloat(float value) { return BF16ToF32(F32ToBF16(value)); }

bool HasCodes(CodeType type) { return type == CodeType::kInt8 || type == CodeType::kInt4; }

// Sums over tokens of squared errors of groups, by their begin and end.
class AscendErrors {
 public:
  explicit AscendErrors(const transform::Rows& rows)
      : rows_(rows), tail_(rows.components + 1, 0.0), rounded_(rows.components + 1, 0.0) {
    for (uint64_t c = 0; c < rows.components; ++c) {
      double energy = 0;
      rounded_[c + 1] = rounded_[c];
      for (uint64_t t = 0; t < rows.tokens; ++t) {
        const float value = rows.Row(t)[c];
        energy += static_cast<double>(value) * static_cast<double>(value);
        rounded_[c + 1] += Squared(ToBFloat(value), value);
      }
      tail_[c] = energy;
    }
    for (uint64_t c = rows.components; c-- > 0;) tail_[c] += tail_[c + 1];
  }

  // Returns the error of dropping all components from `begin` on.
  double Tail(uint64_t begin) const { return tail_[begin]; }
  // Returns the error of one group. bfloat16 rounds each value alone, so its errors are prefix
  // sums; integers depend on the group's range and are coded anew.
  double Of(uint64_t begin, uint64_t size, CodeType type) const {
    if (type == CodeType::kFloat32) return 0;
    if (type == CodeType::kBFloat16) return rounded_[begin + size] - rounded_[begin];
    double sum = 0;
    for (uint64_t t = 0; t < rows_.tokens; ++t) {
      const std::span<const float> values = rows_.Row(t).subspan(begin, size);
      const AscendCodes stored = StoreAscend(type, values);
      for (size_t i = 0; i < size; ++i) sum += Squared(stored.values[i], values[i]);
    }
    return sum;
  }

 private:
  static double Squared(float stored, float value) {
    const double error = static_cast<double>(stored) - static_cast<double>(value);
    return error * error;
  }

  const transform::Rows& rows_;
  std::vector<double> tail_, rounded_;
};

// One way to divide the components up to some index into groups: the last group, and the entry of
// the groups before it.
struct Entry {
  uint64_t bits = 0;
  double error = 0;
  CodeGroup last;
  const Entry* before = nullptr;
};
using Frontier = std::vector<Entry>;  // sorted by ascending bits and descending error

// For every end of the components and type of the last group, the entries that no other entry
// beats.
class Programme {
 public:
  Programme(const transform::Rows& rows, uint64_t budget)
      : errors_(rows), budget_(budget), frontiers_(rows.components + 1) {
    for (uint64_t end = 1; end <= rows.components; ++end) {
      for (size_t type = 0; type < kTypes; ++type) Extend(end, type);
    }
  }

  Allocation Best() const {
    const Entry* best = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (uint64_t end = 1; end < frontiers_.size(); ++end) {
      for (const Frontier& frontier : frontiers_[end]) {
        for (const Entry& entry : frontier) {
          const double error = entry.error + errors_.Tail(end);
          if (error >= least) continue;
          least = error;
          best = &entry;
        }
      }
    }
    if (best == nullptr) {
      throw Error(Finding::kUnsupportedKind, "no group of components fits {} bits a token",
                  budget_);
    }
    return {ReadSchema(best), best->bits, least};
  }

 private:
  // Fills the frontier of divisions that end at `end` with a group of this type: a last group of
  // every size extends all divisions before it whose last type is the same or an earlier (more
  // precise) one.
  void Extend(uint64_t end, size_t type) {
    std::map<uint64_t, Entry> cheapest;  // by bits
    for (const uint32_t size : kAscendSizes) {
      const CodeGroup group{size, kAscendForm.types[type]};
      if (size > end) break;
      // Only int4 has groups of 8; no type has smaller ones.
      if (group.type == CodeType::kInt4 ? size < kNibbles : size == kNibbles) continue;
      if (group.bits() > budget_) continue;
      const double error = errors_.Of(end - size, size, group.type);
      const auto offer = [&](uint64_t bits, double before_error, const Entry* before) {
        if (bits + group.bits() > budget_) return;
        const Entry entry{bits + group.bits(), before_error + error, group, before};
        const auto [at, is_new] = cheapest.emplace(entry.bits, entry);
        if (!is_new && entry.error < at->second.error) at->second = entry;
      };
      if (size == end) offer(0, 0, nullptr);
      for (size_t before = 0; before <= type; ++before) {
        for (const Entry& entry : frontiers_[end - size][before])
          offer(entry.bits, entry.error, &entry);
      }
    }
    Frontier& frontier = frontiers_[end][type];
    for (const auto& [bits, entry] : cheapest) {
      if (frontier.empty() || entry.error < frontier.back().error) frontier.push_back(entry);
    }
  }

  // Reads the schema; neighbouring groups without scales become one group.
  static CodeSchema ReadSchema(const Entry* entry) {
    CodeSchema schema;
    for (; entry != nullptr; entry = entry->before) {
      const CodeGroup& group = entry->last;
      const bool joins =
          !schema.empty() && schema.back().type == group.type && !HasCodes(group.type);
      if (joins) {
        schema.back().size += group.size;
      } else {
        schema.push_back(group);
      }
    }
    std::reverse(schema.begin(), schema.end());
    return schema;
  }

  AscendErrors errors_;
  uint64_t budget_;
  std::vector<std::array<Frontier, kTypes>> frontiers_;
};

}  // namespace

Allocation Allocate(const transform::Rows& projected, uint64_t budget_bits) {
  return Programme(projected, budget_bits).Best();
}

// Lays out groups: those of one type are consecutive in that type's array, each [token][component].
std::vector<PageGroup> PageLayout(const CodeSchema& schema, uint64_t page_tokens) {
  std::vector<PageGroup> groups;
  std::map<CodeType, uint64_t> taken;
  uint64_t feature = 0;
  int64_t scales = 0;
  for (const CodeGroup& group : schema) {
    const uint64_t count =
        page_tokens * group.size / (group.type == CodeType::kInt4 ? kNibbles : 1);
    uint64_t& begin = taken[group.type];
    groups.push_back({feature, feature + group.size, group.type, begin, begin + count,
                      HasCodes(group.type) ? scales++ : -1});
    begin += count;
    feature += group.size;
  }
  return groups;
}

namespace {

struct PageSizes {
  uint64_t float32 = 0, bfloat16 = 0, int8 = 0, int4 = 0, scales = 0;
};

PageSizes ComputeSizes(const std::vector<PageGroup>& layout, uint64_t tokens) {
  PageSizes sizes;
  for (const PageGroup& group : layout) {
    uint64_t& size = group.type == CodeType::kFloat32    ? sizes.float32
                     : group.type == CodeType::kBFloat16 ? sizes.bfloat16
                     : group.type == CodeType::kInt8     ? sizes.int8
                                                         : sizes.int4;
    size = group.payload_end;
    sizes.scales += group.scale >= 0;
  }
  sizes.scales *= tokens;
  return sizes;
}

void WriteCodes(const AscendCodes& codes, const PageGroup& group, uint64_t token, uint64_t scale_at,
                Page& page) {
  page.scales[scale_at] = codes.stored_scale();
  page.offsets[scale_at] = codes.stored_offset();
  const uint64_t first = token * codes.codes.size();
  for (size_t i = 0; i < codes.codes.size(); ++i) {
    if (group.type == CodeType::kInt8) {
      page.int8[group.payload_begin + first + i] = codes.codes[i];
      continue;
    }
    const uint64_t at = first + i;
    const auto nibble = static_cast<uint32_t>(codes.codes[i]) & 15;
    int32_t& word = page.int4[group.payload_begin + at / kNibbles];
    word = static_cast<int32_t>(static_cast<uint32_t>(word) | nibble << (4 * (at % kNibbles)));
  }
}

float CodeAt(const Page& page, const PageGroup& group, uint64_t at) {
  if (group.type == CodeType::kInt8) return page.int8[group.payload_begin + at];
  const auto word = static_cast<uint32_t>(page.int4[group.payload_begin + at / kNibbles]);
  const auto nibble = static_cast<int32_t>(word >> (4 * (at % kNibbles)) & 15);
  return static_cast<float>(nibble < 8 ? nibble : nibble - 16);
}

}  // namespace

Page WritePage(const CodeSchema& schema, const transform::Rows& rows) {
  const std::vector<PageGroup> layout = PageLayout(schema, rows.tokens);
  const PageSizes sizes = ComputeSizes(layout, rows.tokens);
  Page page;
  page.float32.resize(sizes.float32);
  page.bfloat16.resize(sizes.bfloat16);
  page.int8.resize(sizes.int8);
  page.int4.resize(sizes.int4);
  page.scales.resize(sizes.scales);
  page.offsets.resize(sizes.scales);
  for (uint64_t t = 0; t < rows.tokens; ++t) {
    for (const PageGroup& group : layout) {
      const uint64_t size = group.feature_end - group.feature_begin;
      const std::span<const float> values = rows.Row(t).subspan(group.feature_begin, size);
      const uint64_t at = group.payload_begin + t * size;
      if (group.type == CodeType::kFloat32) {
        std::copy(values.begin(), values.end(), &page.float32[at]);
      } else if (group.type == CodeType::kBFloat16) {
        std::transform(values.begin(), values.end(), &page.bfloat16[at], F32ToBF16);
      } else {
        const uint64_t scales = sizes.scales / rows.tokens;
        WriteCodes(StoreAscend(group.type, values), group, t,
                   t * scales + static_cast<uint64_t>(group.scale), page);
      }
    }
  }
  return page;
}

std::vector<float> ReadPage(const CodeSchema& schema, const Page& page, uint64_t page_tokens) {
  const std::vector<PageGroup> layout = PageLayout(schema, page_tokens);
  const PageSizes sizes = ComputeSizes(layout, page_tokens);
  if (page.float32.size() != sizes.float32 || page.bfloat16.size() != sizes.bfloat16 ||
      page.int8.size() != sizes.int8 || page.int4.size() != sizes.int4 ||
      page.scales.size() != sizes.scales || page.offsets.size() != sizes.scales) {
    throw Error(Finding::kSizeMismatch, "the sizes of the page do not match its schema");
  }
  const uint64_t components = CountComponents(schema);
  std::vector<float> values(page_tokens * components);
  for (uint64_t t = 0; t < page_tokens; ++t) {
    for (const PageGroup& group : layout) {
      const uint64_t size = group.feature_end - group.feature_begin;
      const uint64_t scale = t * (sizes.scales / page_tokens) +
                             static_cast<uint64_t>(std::max<int64_t>(group.scale, 0));
      for (uint64_t i = 0; i < size; ++i) {
        const uint64_t at = t * size + i;
        values[t * components + group.feature_begin + i] =
            group.type == CodeType::kFloat32 ? page.float32[group.payload_begin + at]
            : group.type == CodeType::kBFloat16
                ? BF16ToF32(page.bfloat16[group.payload_begin + at])
                : DecodeAscend(CodeAt(page, group, at), page.scales[scale], page.offsets[scale]);
      }
    }
  }
  return values;
}

void UnrotateKeys(std::span<float> keys, uint32_t dim, std::span<const float> table,
                  RopePairs pairs, bool is_bfloat) {
  const auto round = [&](float value) { return is_bfloat ? ToBFloat(value) : value; };
  const uint64_t tokens = table.size() / dim, heads = keys.size() / dim / tokens;
  const uint32_t half = dim / 2;
  for (uint64_t t = 0; t < tokens; ++t) {
    for (uint32_t i = 0; i < half; ++i) {
      const float c = round(table[t * dim + i]), s = round(table[t * dim + half + i]);
      const float norm = round(round(c * c) + round(s * s));
      const uint32_t first = pairs == RopePairs::kHalves ? i : 2 * i;
      const uint32_t second = pairs == RopePairs::kHalves ? i + half : 2 * i + 1;
      for (uint64_t head = 0; head < heads; ++head) {
        float* row = &keys[(t * heads + head) * dim];
        const float x = row[first], y = row[second];
        row[first] = round(round(round(x * c) + round(y * s)) / norm);
        row[second] = round(round(round(y * c) - round(x * s)) / norm);
      }
    }
  }
}

namespace {

constexpr uint32_t kFloatBits = 8;  // components with 8 bits are stored as E4M3
constexpr uint8_t kSplit = 1, kCoded = 2, kFull = 4;

// Returns the bits of integers packed one after another, the first one in the lowest bits.
uint64_t IntegerBits(std::span<const StaticCode> codes) {
  uint64_t bits = 0;
  for (const StaticCode& code : codes) bits += code.bits < kFloatBits ? code.bits : 0;
  return bits;
}

bool IsFloat(const StaticCode& code) { return code.bits == kFloatBits; }

}  // namespace

PageStreams ReadPageStreams(ByteSpan page) {
  ByteReader reader(page);
  if (reader.Text(4, "magic") != "KVTC")
    throw Error(Finding::kBadMagic, "not a page of KVTC").At(0);
  PageStreams streams;
  streams.version = reader.U8("version");
  if (streams.version != 3 && streams.version != 4) {
    throw Error(Finding::kUnsupportedVersion, "a page of version {}, expected 3 or 4",
                streams.version)
        .At(4);
  }
  const uint8_t flags = reader.U8("flags");
  if ((flags & ~(kSplit | kCoded | kFull)) != 0) {
    throw Error(Finding::kBadField, "unknown flags {:#x}", flags).At(5);
  }
  streams.is_split = (flags & kSplit) != 0;
  streams.is_coded = (flags & kCoded) != 0;
  streams.is_full = (flags & kFull) != 0;
  const uint32_t k = reader.U32("bytes of K"), v = reader.U32("bytes of V");
  streams.k = reader.Take(k, "K");
  streams.v = reader.Take(v, "V");
  reader.ExpectEnd("page");
  return streams;
}

Bytes WriteStream(std::span<const float> values, std::span<const StaticCode> codes) {
  KV_ASSERT(values.size() == codes.size());
  Bytes mask(CeilDiv(codes.size(), 8)), floats, integers(CeilDiv(IntegerBits(codes), 8));
  uint64_t at = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    const float level = values[i] / codes[i].scale;
    if (IsFloat(codes[i])) {
      mask[i / 8] |= static_cast<std::byte>(1u << (i % 8));
      floats.push_back(std::byte{F32ToE4M3(level, Float8Overflow::kCast)});
    } else if (codes[i].bits > 0) {
      const auto most = static_cast<float>((1 << (codes[i].bits - 1)) - 1);
      const auto code = static_cast<int32_t>(std::clamp(std::nearbyint(level), -1 - most, most));
      for (uint32_t bit = 0; bit < codes[i].bits; ++bit, ++at)
        integers[at / 8] |= static_cast<std::byte>((code >> bit & 1) << (at % 8));
    }
  }
  ByteWriter out;
  for (const Bytes* part : {&mask, &floats, &integers})
    out.U32(static_cast<uint32_t>(part->size()));
  for (const Bytes* part : {&mask, &floats, &integers}) out.Append(*part);
  return out.Release();
}

std::vector<float> ReadStream(ByteSpan stream, std::span<const StaticCode> codes) {
  ByteReader reader(stream);
  uint32_t sizes[3];
  for (uint32_t& size : sizes) size = reader.U32("bytes of a part");
  const ByteSpan mask = reader.Take(sizes[0], "mask");
  const ByteSpan floats = reader.Take(sizes[1], "fp8 codes");
  const ByteSpan integers = reader.Take(sizes[2], "integers");
  reader.ExpectEnd("stream");
  const auto float_count =
      static_cast<uint64_t>(std::count_if(codes.begin(), codes.end(), IsFloat));
  if (mask.size() != CeilDiv(codes.size(), 8) || floats.size() != float_count ||
      integers.size() != CeilDiv(IntegerBits(codes), 8)) {
    throw Error(Finding::kSizeMismatch,
                "the sizes of the stream do not match {} components of these types", codes.size());
  }
  std::vector<float> values(codes.size(), 0.0f);
  uint64_t next_float = 0, at = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    const bool is_float = (std::to_integer<uint32_t>(mask[i / 8]) >> (i % 8) & 1) != 0;
    if (is_float != IsFloat(codes[i])) {
      throw Error(Finding::kBadField, "the type of component {} differs from its calibration", i);
    }
    if (is_float) {
      values[i] = E4M3ToF32(std::to_integer<uint8_t>(floats[next_float++])) * codes[i].scale;
      continue;
    }
    int32_t code = 0;
    for (uint32_t bit = 0; bit < codes[i].bits; ++bit, ++at)
      code |= static_cast<int32_t>(std::to_integer<uint32_t>(integers[at / 8]) >> (at % 8) & 1)
              << bit;
    if (codes[i].bits > 0 && code >> (codes[i].bits - 1) != 0) code -= 1 << codes[i].bits;
    values[i] = static_cast<float>(code) * codes[i].scale;
  }
  return values;
}

}  // namespace kv::sglang
