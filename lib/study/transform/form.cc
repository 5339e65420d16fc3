// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Stores coefficients in groups, and searches the groups that lose least within a budget of bits.
#include "lib/study/transform/form.h"

#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/core/base/half.h"

namespace kv::transform {
namespace {

constexpr CodeType kOwnTypes[] = {CodeType::kInt2, CodeType::kInt4, CodeType::kInt8,
                                  CodeType::kFp8};
constexpr uint32_t kUnit = 16;
constexpr uint32_t kUnitsOfGroups[] = {1, 4, 16, 64};

float ToHalf(float value) { return F16ToF32(F32ToF16(value)); }

void EncodeIntegers(uint32_t bits, std::span<const float> values, std::span<uint8_t> codes,
                    std::span<float> out) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const auto largest = static_cast<float>((1u << bits) - 1);
  const float step = ToHalf((*most - *least) / largest), minimum = ToHalf(*least);
  for (size_t i = 0; i < values.size(); ++i) {
    const float level = step > 0 ? std::nearbyint((values[i] - minimum) / step) : 0;
    const float code = std::clamp(level, 0.0f, largest);
    codes[i] = static_cast<uint8_t>(code);
    out[i] = code * step + minimum;
  }
}

void EncodeFloats(std::span<const float> values, std::span<uint8_t> codes, std::span<float> out) {
  float most = 0;
  for (const float value : values) most = std::max(most, std::fabs(value));
  const float scale = ToHalf(most / kE4M3Max);
  for (size_t i = 0; i < values.size(); ++i) {
    codes[i] = scale > 0 ? F32ToE4M3(values[i] / scale, Float8Overflow::kSaturate) : 0;
    out[i] = E4M3ToF32(codes[i]) * scale;
  }
}

void StoreOwn(CodeType type, std::span<const float> values, std::span<float> out, Faults&) {
  std::vector<uint8_t> codes(values.size());
  EncodeGroup(type, values, codes, out);
}

}  // namespace

const Form kKvtcForm = {"kvtc", kOwnTypes, StoreOwn};

void EncodeGroup(CodeType type, std::span<const float> values, std::span<uint8_t> codes,
                 std::span<float> out) {
  if (type == CodeType::kFp8) return EncodeFloats(values, codes, out);
  EncodeIntegers(Info(type).bits, values, codes, out);
}

void StoreRow(const Form& form, const CodeSchema& schema, std::span<const float> row,
              std::span<float> out, Faults& faults) {
  KV_ASSERT(CountComponents(schema) <= row.size() && row.size() == out.size());
  std::fill(out.begin(), out.end(), 0.0f);
  uint64_t at = 0;
  for (const CodeGroup& group : schema) {
    if (group.type != CodeType::kNone)
      form.store(group.type, row.subspan(at, group.size), out.subspan(at, group.size), faults);
    at += group.size;
  }
}

namespace {

// Means over tokens of the squared error of every group that a search may choose.
class GroupErrors {
 public:
  GroupErrors(const Form& form, const Rows& rows)
      : form_(form), units_(rows.components / kUnit), dropped_(units_, 0.0) {
    for (uint64_t t = 0; t < rows.tokens; ++t) Add(rows.Row(t));
    const auto tokens = static_cast<double>(rows.tokens);
    for (double& error : dropped_) error /= tokens;
    for (double& error : errors_) error /= tokens;
  }

  uint64_t units() const { return units_; }
  double Dropped(uint64_t unit) const { return dropped_[unit]; }
  double Of(uint64_t begin, size_t size, size_t type) const {
    return errors_[(size * form_.types.size() + type) * units_ + begin];
  }

 private:
  void Add(std::span<const float> row) {
    errors_.resize(std::size(kUnitsOfGroups) * form_.types.size() * units_);
    for (uint64_t unit = 0; unit < units_; ++unit) {
      for (const float value : row.subspan(unit * kUnit, kUnit))
        dropped_[unit] += static_cast<double>(value) * static_cast<double>(value);
    }
    double* error = errors_.data();
    for (const uint32_t size : kUnitsOfGroups) {
      for (const CodeType type : form_.types) {
        for (uint64_t begin = 0; begin < units_; ++begin, ++error) {
          if (begin + size <= units_)
            *error += Measure(type, row.subspan(begin * kUnit, uint64_t{size} * kUnit));
        }
      }
    }
  }

  double Measure(CodeType type, std::span<const float> values) {
    out_.resize(values.size());
    Faults unused;
    form_.store(type, values, out_, unused);
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double error = static_cast<double>(out_[i]) - static_cast<double>(values[i]);
      sum += error * error;
    }
    return sum;
  }

  const Form& form_;
  uint64_t units_;
  std::vector<double> dropped_, errors_;
  std::vector<float> out_;
};

// Returns the groups of least error + lambda * bits. Among equals the smaller size wins, then the
// earlier type.
CodeSchema Choose(const Form& form, const GroupErrors& errors, double lambda) {
  const uint64_t units = errors.units();
  std::vector<double> best(units + 1, 0.0);
  std::vector<CodeGroup> last(units + 1);
  for (uint64_t end = 1; end <= units; ++end) {
    best[end] = best[end - 1] + errors.Dropped(end - 1);
    last[end] = {kUnit, CodeType::kNone};
    for (size_t size = 0; size < std::size(kUnitsOfGroups); ++size) {
      if (kUnitsOfGroups[size] > end) break;
      const uint64_t begin = end - kUnitsOfGroups[size];
      for (size_t type = 0; type < form.types.size(); ++type) {
        const CodeGroup group{kUnitsOfGroups[size] * kUnit, form.types[type]};
        const double cost =
            best[begin] + errors.Of(begin, size, type) + lambda * static_cast<double>(group.bits());
        if (cost >= best[end]) continue;
        best[end] = cost;
        last[end] = group;
      }
    }
  }
  CodeSchema schema;
  for (uint64_t end = units; end > 0; end -= schema.back().size / kUnit)
    schema.push_back(last[end]);
  std::reverse(schema.begin(), schema.end());
  return schema;
}

}  // namespace

CodeSchema FitSchema(const Form& form, const Rows& rows, double budget_bits) {
  KV_ASSERT(rows.components % kUnit == 0 && rows.tokens > 0);
  const GroupErrors errors(form, rows);
  constexpr int kSteps = 60;  // bisects 18 decades to the last bit of lambda
  double low = 1e-12, high = 1e6;
  CodeSchema best(errors.units(), {kUnit, CodeType::kNone});
  for (int i = 0; i < kSteps; ++i) {
    const double lambda = std::sqrt(low * high);
    CodeSchema schema = Choose(form, errors, lambda);
    const bool fits = static_cast<double>(CountBits(schema)) <= budget_bits;
    (fits ? high : low) = lambda;
    if (fits) best = std::move(schema);
  }
  return best;
}

}  // namespace kv::transform
