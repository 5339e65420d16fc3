// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Axes of arrays: parsing --layout, strided views of K and V, and finding the token axis from the
// values alone.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "formats/tensors/tensor_names.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/kernels/dequantise.h"

namespace kv {

namespace {

constexpr std::string_view kRoles = "L2BTHDC";
constexpr uint32_t kWidest = 1 << 24;  // largest number of heads or dims

std::string_view AxisWord(char role) {
  constexpr std::string_view kWords[] = {"layer", "K/V", "batch",  "token",
                                         "head",  "dim", "channel"};
  return kWords[std::min(kRoles.find(role), std::size(kWords) - 1)];
}

// Returns true if an axis has this role, alone or joined with others. One letter is the common
// case, tested first because every tensor asks several times.
bool Holds(const std::string& axis, char role) {
  return axis.size() == 1 ? axis[0] == role : axis.find(role) != axis.npos;
}

}  // namespace

std::string_view ExampleLayout(size_t rank) {
  constexpr std::string_view kExamples[] = {"tc", "thd", "bhtd", "2lthd", "l2bthd"};
  return kExamples[std::clamp<size_t>(rank, 2, 6) - 2];
}

Axes Axes::Parse(std::string_view text) {
  Axes axes;
  bool joined = false;
  std::string seen;
  const auto refuse = [&](std::string_view why) {
    return Error(Finding::kUsage, "--layout '{}': {}", text, why)
        .Hint(
            "one letter per axis: L layer, 2 K/V, B batch, T token, H head, D dim, C channels; "
            "e.g. thd, bhtd, 2lthd, th(2d), l2(htd)");
  };
  for (char c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    if (c == 'S') c = 'T';
    if (c == '[' || c == ']' || c == ',' || c == ' ') continue;
    if (c == '(' || c == ')') {
      if (joined == (c == '(')) throw refuse("unbalanced parentheses");
      joined = c == '(';
      if (joined) axes.axes_.emplace_back();
      continue;
    }
    if (kRoles.find(c) == kRoles.npos) throw refuse("unknown letter");
    if (seen.find(c) != seen.npos) throw refuse("a letter occurs twice");
    seen += c;
    if (joined) {
      axes.axes_.back() += c;
    } else {
      axes.axes_.emplace_back(1, c);
    }
  }
  if (joined) throw refuse("unbalanced parentheses");
  if (const std::string_view fault = axes.FindFault(); !fault.empty()) throw refuse(fault);
  std::ranges::replace(axes.axes_, std::string("HD"), std::string("C"));  // (HD) means C
  return axes;
}

std::string_view Axes::FindFault() const {
  if (!Has('T') || Has('D') == Has('C') || (Has('C') && Has('H')))
    return "needs T, and either D (with H) or C";
  for (const std::string& axis : axes_) {
    if (axis.empty()) return "empty parentheses";
    if (axis.find_first_of("LB") != axis.npos && axis.size() > 1)
      return "layers and batch rows have an axis of their own";
  }
  return {};
}

bool Axes::Has(char role) const {
  return std::any_of(axes_.begin(), axes_.end(),
                     [&](const std::string& axis) { return Holds(axis, role); });
}

std::string Axes::text() const {
  std::string out;
  for (const std::string& axis : axes_) {
    out += out.empty() ? "" : ", ";
    for (size_t i = 0; i < axis.size(); ++i) {
      out += i == 0 ? "" : " x ";
      out += AxisWord(axis[i]);
    }
  }
  return "[" + out + "]";
}

// Finds an axis. A joined one is divided by the known sizes of its parts; one part may follow from
// the rest.
Axes::Axis Axes::Find(const TensorView& array, char role, const HeadSizes& heads) const {
  for (size_t i = 0; i < axes_.size(); ++i) {
    const std::string& axis = axes_[i];
    if (!Holds(axis, role)) continue;
    if (axis.size() == 1) return {array.shape[i], array.strides[i]};
    const size_t at = axis.find(role);
    uint64_t known = 1, inner = 1, own = 0;
    size_t open = axis.npos;
    const auto size_of = [&](char part) {
      return part == '2' ? 2 : part == 'H' ? heads.count : part == 'D' ? heads.dim : 0;
    };
    for (size_t part = 0; part < axis.size(); ++part) {
      const uint64_t size = size_of(axis[part]);
      if (size == 0 && open != axis.npos) {
        throw Error(Finding::kGeometryMissing, "{} cannot be divided without the heads", text())
            .Hint("give --kv-heads and --head-dim, or --model MODEL");
      }
      if (size == 0) open = part;
      if (size != 0) known = CheckedMul(known, size, "joined axis");
    }
    const uint64_t rest = array.shape[i] / known;
    if (array.shape[i] % known != 0 || (open == axis.npos && rest != 1)) {
      throw Error(Finding::kInconsistent, "axis {} has {} elements, not a multiple of {}", i,
                  array.shape[i], known);
    }
    for (size_t part = axis.size(); part-- > at;) {
      own = part == open ? rest : size_of(axis[part]);
      if (part > at) inner *= own;
    }
    return {own, inner * array.strides[i]};
  }
  return {};
}

uint64_t Axes::Extent(const TensorView& array, char role) const {
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].size() == 1 && axes_[i][0] == role) return array.shape[i];
  }
  return 1;
}

KvTensor Axes::View(const TensorView& array, const Place& place, const HeadSizes& heads) const {
  const auto refuse = [&](std::string why) {
    return Error(Finding::kInconsistent, "shape [{}] cannot be {}: {}",
                 fmt::join(array.shape, ", "), text(), why)
        .Hint("name the axes with --layout, e.g. --layout {}", ExampleLayout(array.rank()));
  };
  if (array.rank() != rank()) throw refuse(fmt::format("it has {} axes", array.rank()));
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (!Holds(axes_[i], '2')) continue;
    const uint64_t extent = array.shape[i];
    if (axes_[i].size() == 1 ? extent != 2 : extent % 2 != 0)
      throw refuse(fmt::format("axis {} does not hold K and V", i));
  }
  const auto axis = [&](char role) { return Find(array, role, heads); };
  const Axis dim = axis(Has('C') ? 'C' : 'D'), head = axis('H'), token = axis('T');
  if (dim.extent == 0 || head.extent == 0 || dim.extent > kWidest || head.extent > kWidest) {
    throw refuse("heads and dims must be between 1 and 2^24");
  }
  uint64_t offset = 0;
  for (const auto& [role, index] :
       {std::pair('L', place.layer), {'2', place.part}, {'B', place.batch}}) {
    const Axis outer = axis(role);
    if (index >= outer.extent)
      throw refuse(fmt::format("there is no {} {}", AxisWord(role), index));
    offset += index * outer.stride;
  }
  const uint64_t bytes = Info(array.dtype).block_bytes;
  KvTensor tensor{.dtype = array.dtype,
                  .heads = static_cast<uint32_t>(head.extent),
                  .head_dim = static_cast<uint32_t>(dim.extent),
                  .heads_known = !Has('C'),
                  .pieces = {}};
  // An axis of one element may have any stride; FindRegions recognises this one.
  const uint64_t dim_stride = dim.extent == 1 ? bytes : dim.stride;
  tensor.pieces.push_back({token.extent == 0 ? array.data : array.data + offset,
                           token.extent,
                           {token.stride},
                           {head.stride},
                           {dim_stride}});
  return tensor;
}

namespace {

constexpr uint64_t kReach = 8;      // distances compared
constexpr uint64_t kStarts = 2048;  // runs of kReach pairs, over all lines of an axis
constexpr uint64_t kLines = 32;     // least number of positions of the other axis, if it has them
constexpr uint64_t kDims = 512;
// Weight of a mean direction in q; chosen with kDecidingMargin (FORMAT.md).
constexpr double kMeanWeight = 4;
// This is added to the variance, because real values are never quite even.
constexpr double kUneven = 0.01 * 0.01;
constexpr double kTiny = 1e-12;

struct Resemblance {
  double q = 0;
  double variance = 0;  // variance of log q
  bool is_measured = false;
};

// Reads rows of one tensor as unit vectors.
class UnitRows {
 public:
  explicit UnitRows(const TensorView& values)
      : values_(values),
        dims_(std::min(values.shape[2], kDims)),
        raw_(dims_ * Info(values.dtype).block_bytes) {}

  uint64_t dims() const { return dims_; }

  // Returns false for a row without direction: zeros, or not finite.
  bool Read(uint64_t first, uint64_t second, std::span<float> out) {
    const uint64_t unit = Info(values_.dtype).block_bytes;
    const std::byte* from = values_.data + first * values_.strides[0] + second * values_.strides[1];
    for (uint64_t i = 0; i < dims_; ++i)
      std::memcpy(&raw_[i * unit], from + i * values_.strides[2], unit);
    ToFloats(values_.dtype, raw_, out);
    double squares = 0;
    for (const float value : out) squares += double{value} * value;
    if (!(squares > 0) || !std::isfinite(squares)) return false;
    const double scale = 1 / std::sqrt(squares);
    for (float& value : out) value = static_cast<float>(value * scale);
    return true;
  }

 private:
  const TensorView& values_;
  uint64_t dims_;
  Bytes raw_;
};

// Cosines of rows by their distance.
class Cosines {
 public:
  void Add(uint64_t distance, double cosine) {
    Sums& sums = by_distance_[distance - 1];
    ++sums.pairs;
    sums.linear += cosine;
    sums.squared += cosine * cosine;
  }
  Resemblance Result() const {
    double linear = 0, squared = 0, distances = 0, pairs = 0;
    for (const Sums& sums : by_distance_) {
      if (sums.pairs == 0) continue;
      const auto count = static_cast<double>(sums.pairs);
      linear += sums.linear / count;
      squared += sums.squared / count;
      pairs += count;
      ++distances;
    }
    if (distances == 0) return {};
    const double mean = std::max(0.0, linear / distances);
    return {squared / distances + kMeanWeight * mean * mean, 2 / pairs, true};
  }

 private:
  struct Sums {
    uint64_t pairs = 0;
    double linear = 0, squared = 0;
  };
  std::array<Sums, kReach> by_distance_;
};

Resemblance AlongAxis(UnitRows& rows, const TensorView& values, int axis) {
  const uint64_t extent = values.shape[axis], others = values.shape[1 - axis];
  if (extent == 1) return {1 / static_cast<double>(rows.dims()), 0, true};
  const uint64_t lines = std::min(others, std::max(kLines, kStarts / (extent - 1)));
  const uint64_t starts = std::min(extent - 1, kStarts / lines);
  const uint64_t dims = rows.dims();
  std::vector<float> window((kReach + 1) * dims);
  const auto row = [&](uint64_t i) { return std::span(window).subspan(i * dims, dims); };
  Cosines cosines;
  for (uint64_t line = 0; line < lines; ++line) {
    const uint64_t other = line * others / lines;
    for (uint64_t k = 0; k < starts; ++k) {
      const uint64_t start = k * (extent - 1) / starts;
      const auto read = [&](uint64_t i) {
        return axis == 0 ? rows.Read(start + i, other, row(i))
                         : rows.Read(other, start + i, row(i));
      };
      if (!read(0)) continue;
      for (uint64_t i = 1; i <= kReach && start + i < extent; ++i) {
        if (!read(i)) continue;
        double cosine = 0;
        for (uint64_t d = 0; d < dims; ++d) cosine += double{row(0)[d]} * row(i)[d];
        cosines.Add(i, cosine);
      }
    }
  }
  return cosines.Result();
}

}  // namespace

double TokenAxis::margin() const {
  return is_measured ? std::abs(log_ratio) / std::sqrt(variance) : 0;
}

std::optional<int> TokenAxis::axis() const {
  if (margin() < kDecidingMargin) return std::nullopt;
  return log_ratio > 0 ? 0 : 1;
}

void TokenAxis::Add(const TokenAxis& other) {
  if (!other.is_measured) return;
  log_ratio += other.log_ratio;
  variance += other.variance;
  is_measured = true;
}

TokenAxis FindTokenAxis(const TensorView& values) {
  KV_ASSERT(values.rank() == 3);
  const bool is_empty =
      std::find(values.shape.begin(), values.shape.end(), 0) != values.shape.end();
  if (is_empty || values.data == nullptr || !Info(values.dtype).is_float ||
      IsBlockQuantised(values.dtype)) {
    return {};
  }
  UnitRows rows(values);
  const Resemblance first = AlongAxis(rows, values, 0), second = AlongAxis(rows, values, 1);
  if (!first.is_measured || !second.is_measured) return {};
  return {std::log(std::max(first.q, kTiny) / std::max(second.q, kTiny)),
          first.variance + second.variance + kUneven, true};
}

}  // namespace kv
