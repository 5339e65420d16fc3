// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/corpus/spread.h"

#include <algorithm>
#include <cmath>

namespace kv::corpus {
namespace {

// Of sorted values the one below which a share of them lies: one of them, never between two.
uint64_t PlaceOfShare(double share, uint64_t count) {
  const auto rank = static_cast<uint64_t>(std::ceil(share * static_cast<double>(count)));
  return std::max<uint64_t>(rank, 1) - 1;
}

// Takes values in their order, all of them twice: first to count and to add up, then to choose.
class SpreadBuilder {
 public:
  void Count(const FigureValue& value) {
    if (spread_.count++ == 0) spread_.min = value.value;
    spread_.max = value.value;
    sum_ += value.value;
    original_ += value.original;
    left_ += value.left;
  }

  void Choose(const FigureValue& value) {
    if (at_ == 0) spread_.mean = sum_ / static_cast<double>(spread_.count);
    const double from_mean = value.value - spread_.mean;
    squares_ += from_mean * from_mean;
    for (const auto& [share, chosen] :
         {std::pair{0.05, &spread_.p5}, {0.5, &spread_.median}, {0.95, &spread_.p95}}) {
      if (PlaceOfShare(share, spread_.count) == at_) *chosen = value.value;
    }
    ++at_;
  }

  Spread Finish() {
    const auto count = static_cast<double>(spread_.count);
    spread_.deviation = spread_.count < 2 ? 0 : std::sqrt(squares_ / (count - 1));
    if (left_ > 0) spread_.weighted = static_cast<double>(original_) / static_cast<double>(left_);
    return spread_;
  }

 private:
  Spread spread_;
  double sum_ = 0, squares_ = 0;
  uint64_t at_ = 0, original_ = 0, left_ = 0;
};

// The few values that lie farthest outside the middle half, by 1.5 times its width and more.
class OutlierList {
 public:
  OutlierList(const Merged& merged, const FigureExtent& figure) {
    constexpr uint64_t kFewest = 8;
    if (figure.count < kFewest) return;
    low_ = merged.ValueAt(figure, PlaceOfShare(0.25, figure.count));
    high_ = merged.ValueAt(figure, PlaceOfShare(0.75, figure.count));
    looks_ = true;
  }

  void Look(const FigureValue& value) {
    constexpr size_t kMost = 5;
    if (!looks_ || Distance(value) <= 1.5 * (high_ - low_)) return;
    const auto place = std::upper_bound(far_.begin(), far_.end(), value,
                                        [&](const FigureValue& a, const FigureValue& b) {
                                          if (Distance(a) != Distance(b))
                                            return Distance(a) > Distance(b);
                                          return a.input < b.input;
                                        });
    far_.insert(place, value);
    if (far_.size() > kMost) far_.pop_back();
  }

  std::vector<FigureValue>& far() { return far_; }

 private:
  double Distance(const FigureValue& value) const {
    return std::max(low_ - value.value, value.value - high_);
  }

  double low_ = 0, high_ = 0;
  bool looks_ = false;
  std::vector<FigureValue> far_;
};

}  // namespace

FigureSpread SpreadOf(const Merged& merged, const FigureExtent& figure) {
  SpreadBuilder all;
  std::map<uint32_t, SpreadBuilder> groups;
  OutlierList outliers(merged, figure);
  merged.ForEachValue(figure, [&](const FigureValue& value) {
    all.Count(value);
    groups[value.group].Count(value);
  });
  merged.ForEachValue(figure, [&](const FigureValue& value) {
    all.Choose(value);
    groups[value.group].Choose(value);
    outliers.Look(value);
  });
  FigureSpread spread{all.Finish(), {}, std::move(outliers.far())};
  for (auto& [group, builder] : groups) spread.by_group[group] = builder.Finish();
  return spread;
}

}  // namespace kv::corpus
