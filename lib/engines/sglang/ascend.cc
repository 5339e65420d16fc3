// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/sglang/ascend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "lib/core/base/error.h"
#include "lib/core/base/half.h"
#include "lib/core/base/utf8.h"

namespace kv::sglang {
namespace {

// The types in the order in which the search tries them: precision never rises along the
// components.
constexpr CodeType kAscendTypes[] = {CodeType::kFloat32, CodeType::kBFloat16, CodeType::kInt8,
                                     CodeType::kInt4};
constexpr uint32_t kAscendSizes[] = {1, 8, 16, 64, 256, 1024};
constexpr uint32_t kNibbles = 8;  // number of int4 codes in a word
constexpr float kFarOffset = 2048;

float ToBFloat(float value) { return BF16ToF32(F32ToBF16(value)); }

bool HasCodes(CodeType type) { return type == CodeType::kInt8 || type == CodeType::kInt4; }

void StoreGroup(CodeType type, std::span<const float> values, std::span<float> out,
                transform::Faults& faults) {
  if (type == CodeType::kFloat32) {
    std::copy(values.begin(), values.end(), out.begin());
  } else if (type == CodeType::kBFloat16) {
    std::transform(values.begin(), values.end(), out.begin(), ToBFloat);
  } else {
    const AscendCodes stored = StoreAscend(type, values);
    std::copy(stored.values.begin(), stored.values.end(), out.begin());
    faults.far_offsets += std::fabs(stored.offset) > kFarOffset;
  }
}

float Decoded(float code, uint16_t scale, uint16_t negative_offset) {
  return ToBFloat((code + F16ToF32(negative_offset)) * F16ToF32(scale));
}

}  // namespace

const transform::Form kAscendForm = {"kvtc_ascend", kAscendTypes, StoreGroup};

uint16_t AscendCodes::stored_scale() const { return F32ToF16(scale); }
uint16_t AscendCodes::stored_offset() const { return F32ToF16(-offset); }

AscendCodes StoreAscend(CodeType type, std::span<const float> values) {
  const float least_code = type == CodeType::kInt8 ? -128 : -8, most_code = -1 - least_code;
  AscendCodes stored;
  for (const float value : values) stored.values.push_back(ToBFloat(value));
  const auto [least, most] = std::minmax_element(stored.values.begin(), stored.values.end());
  const float range = *most - *least;
  stored.scale = range == 0 ? 1.0f : range / (most_code - least_code);
  stored.offset = least_code - *least / stored.scale;
  stored.codes.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    float& value = stored.values[i];
    const float code =
        std::clamp(std::nearbyint(value / stored.scale + stored.offset), least_code, most_code);
    stored.codes[i] = static_cast<int8_t>(std::isnan(code) ? 0 : code);
    if (range != 0) value = Decoded(code, stored.stored_scale(), stored.stored_offset());
  }
  return stored;
}

CodeSchema ParseSchema(std::span<const SchemaEntry> entries, uint64_t rank) {
  if (entries.empty()) throw Error(Finding::kBadField, "a schema without groups");
  CodeSchema schema;
  uint64_t left = rank;
  for (const SchemaEntry& entry : entries) {
    const std::optional<CodeType> type = ParseCodeType(entry.type);
    const auto* known =
        std::find(std::begin(kAscendTypes), std::end(kAscendTypes), type.value_or(CodeType::kNone));
    if (known == std::end(kAscendTypes)) {
      throw Error(Finding::kBadField,
                  "a group of type '{}', expected float32, bfloat16, int8, int4",
                  Escaped(entry.type));
    }
    if (!entry.size || *entry.size <= 0) {
      throw Error(Finding::kBadField, "the size of a group is not a positive integer");
    }
    const auto size = static_cast<uint64_t>(*entry.size);
    if (*type == CodeType::kInt4 && size % kNibbles != 0) {
      throw Error(Finding::kBadField, "an int4 group of {}, expected a multiple of {}", size,
                  kNibbles);
    }
    if (size > left) {
      throw Error(Finding::kBadField, "a schema has more components than the rank {}", rank);
    }
    left -= size;
    schema.push_back({static_cast<uint32_t>(size), *type});
  }
  return schema;
}

uint64_t AscendBudget(uint64_t features, uint64_t ratio) { return 16 * features / ratio; }

namespace {

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
using Frontier = std::vector<Entry>;  // by ascending bits and descending error

// For every end of the components and type of the last group, the entries that no other entry
// beats.
class Programme {
 public:
  Programme(const transform::Rows& rows, uint64_t budget)
      : errors_(rows), budget_(budget), frontiers_(rows.components + 1) {
    for (uint64_t end = 1; end <= rows.components; ++end) {
      for (size_t type = 0; type < std::size(kAscendTypes); ++type) Extend(end, type);
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
      const CodeGroup group{size, kAscendTypes[type]};
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

  // Joins neighbours without scales to one group.
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
  std::vector<std::array<Frontier, std::size(kAscendTypes)>> frontiers_;
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
                : Decoded(CodeAt(page, group, at), page.scales[scale], page.offsets[scale]);
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

}  // namespace kv::sglang
