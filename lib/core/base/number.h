// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <locale.h>

#include <charconv>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// Numbers in text. strtod and similar functions depend on the locale of the process, which belongs
// to the program that loaded the library: under de_DE they read "1.5" as 1 without an error.
namespace kv {

std::optional<double> TakeReal(std::string_view& text);

// Takes a number off the front of `text`, without leading blanks or '+'. Returns nullopt, and
// leaves the text, if there is none or an integer does not fit T. A double beyond its range becomes
// infinite, one too small becomes 0, as in C and in Python.
template <typename T>
requires std::integral<T> || std::same_as<T, double> std::optional<T> TakeNumber(
    std::string_view& text, [[maybe_unused]] int base = 10) {
  if constexpr (std::same_as<T, double>) {
    return TakeReal(text);
  } else {
    T number = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number, base);
    if (error != std::errc()) return std::nullopt;
    text.remove_prefix(static_cast<size_t>(stop - text.data()));
    return number;
  }
}

// Returns the number if the whole text is one, otherwise nullopt.
template <typename T>
std::optional<T> ParseNumber(std::string_view text, int base = 10) {
  const std::optional<T> number = TakeNumber<T>(text, base);
  return text.empty() ? number : std::nullopt;
}

// Returns the double that prints like the float: 0.9, not 0.89999997615814209.
double ShortestDouble(float value);

// Formats ascending numbers as "0-3,7", with `between` in place of the comma.
std::string RangesText(std::span<const uint32_t> numbers, std::string_view between = ",");

// Gives the calling thread the locale "C" during its lifetime, for libraries whose number parsing
// depends on the locale: CLI11 and nlohmann/json.
class CLocale {
 public:
  CLocale();
  ~CLocale();
  CLocale(const CLocale&) = delete;
  CLocale& operator=(const CLocale&) = delete;

 private:
  locale_t own_, before_;
};

}  // namespace kv
