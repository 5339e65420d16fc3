// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/sglang/ascend.h"

#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/core/base/half.h"
#include "lib/core/base/utf8.h"

namespace kv::sglang {
namespace {

// The types in the order in which the search tries them: precision never rises along the
// components.
constexpr CodeType kAscendTypes[] = {CodeType::kFloat32, CodeType::kBFloat16, CodeType::kInt8,
                                     CodeType::kInt4};
constexpr float kFarOffset = 2048;

float ToBFloat(float value) { return BF16ToF32(F32ToBF16(value)); }

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

}  // namespace

const transform::Form kAscendForm = {"kvtc_ascend", kAscendTypes, StoreGroup};

uint16_t AscendCodes::stored_scale() const { return F32ToF16(scale); }
uint16_t AscendCodes::stored_offset() const { return F32ToF16(-offset); }

float DecodeAscend(float code, uint16_t scale, uint16_t negative_offset) {
  return ToBFloat((code + F16ToF32(negative_offset)) * F16ToF32(scale));
}

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
    if (range != 0) value = DecodeAscend(code, stored.stored_scale(), stored.stored_offset());
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

}  // namespace kv::sglang
