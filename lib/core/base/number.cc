// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/number.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/system.h"

namespace kv {
namespace {

// exceeds the exponent of any number that fits a text
constexpr int64_t kFarExponent = int64_t{1} << 40;

// Distinguishes numbers too large for a double from those too small: returns true if the place of
// the first nonzero digit is above 1.
bool IsLarge(std::string_view number) {
  const size_t mark = std::min(number.find_first_of("eE"), number.size());
  const std::string_view digits = number.substr(0, mark);
  const auto point = static_cast<int64_t>(std::min(digits.find('.'), digits.size()));
  const auto first = static_cast<int64_t>(digits.find_first_of("123456789"));
  int64_t exponent = 0;
  if (mark < number.size()) {
    std::string_view text = number.substr(mark + 1);
    if (text.starts_with('+')) text.remove_prefix(1);
    exponent =
        TakeNumber<int64_t>(text).value_or(text.starts_with('-') ? -kFarExponent : kFarExponent);
  }
  return point - first + std::clamp(exponent, -kFarExponent, kFarExponent) > 0;
}

}  // namespace

std::optional<double> TakeReal(std::string_view& text) {
  double number = 0;
  const auto [end, error] = sys::ReadReal(text.data(), text.data() + text.size(), number);
  if (error == std::errc::invalid_argument) return std::nullopt;
  const std::string_view taken = text.substr(0, static_cast<size_t>(end - text.data()));
  // from_chars leaves the value unchanged if it is out of range.
  if (error == std::errc::result_out_of_range) {
    number = std::copysign(IsLarge(taken) ? HUGE_VAL : 0.0, taken.starts_with('-') ? -1.0 : 1.0);
  }
  text.remove_prefix(taken.size());
  return number;
}

double ShortestDouble(float value) {
  return ParseNumber<double>(fmt::format("{}", value)).value_or(value);
}

std::string RangesText(std::span<const uint32_t> numbers, std::string_view between) {
  std::string text;
  for (size_t begin = 0, end; begin < numbers.size(); begin = end) {
    for (end = begin + 1; end < numbers.size() && numbers[end] <= numbers[end - 1] + 1;) ++end;
    if (!text.empty()) text += between;
    text += std::to_string(numbers[begin]);
    if (end - begin > 1) text += "-" + std::to_string(numbers[end - 1]);
  }
  return text;
}

CLocale::CLocale() : own_(::newlocale(LC_ALL_MASK, "C", nullptr)), before_(::uselocale(own_)) {}

CLocale::~CLocale() {
  if (own_ == nullptr) return;
  ::uselocale(before_);
  ::freelocale(own_);
}

}  // namespace kv
