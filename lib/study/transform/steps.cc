// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The form kvtc_rans: chooses one step for all components, makes a table of symbols for each, and
// codes blocks of tokens.
#include "lib/study/transform/steps.h"

#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/core/codec/context/model.h"
#include "lib/core/kernels/rans.h"

namespace kv::transform {
namespace {

// The prior has kPseudoCounts counts and at least kFloor per symbol; deviations have a least value.
constexpr double kPseudoCounts = 40, kFloor = 1e-5, kLeastDeviation = 1e-9;
constexpr double kCountScale = 1 << 20;  // one probability unit in counts

double GaussBelow(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double LaplaceBelow(double x) { return x < 0 ? 0.5 * std::exp(x) : 1 - 0.5 * std::exp(-x); }

// Returns the deviation of the values in units of the step, with the sample's n - 1.
double Deviation(std::span<const float> values, float step) {
  double sum = 0, squares = 0;
  const auto count = static_cast<double>(values.size());
  for (const float value : values) sum += static_cast<double>(value);
  for (const float value : values) {
    const double off = static_cast<double>(value) - sum / count;
    squares += off * off;
  }
  const double deviation = std::sqrt(squares / std::max(1.0, count - 1));
  return std::max(deviation, kLeastDeviation) / static_cast<double>(step);
}

std::array<double, kSymbols> Probabilities(std::span<const float> values, float step) {
  const double deviation = Deviation(values, step), width = deviation / std::sqrt(2.0);
  std::array<double, kSymbols> p;
  double sum = 0;
  for (uint32_t i = 0; i < kSymbols; ++i) {
    const double low = static_cast<double>(i) - kMostSymbol - 1.5, high = low + 1;
    // Each tail is computed on the side on which it is small, for precision.
    const double sign = low + high > 0 ? -1 : 1;
    const double gauss =
        sign * (GaussBelow(sign * high / deviation) - GaussBelow(sign * low / deviation));
    const double laplace =
        sign * (LaplaceBelow(sign * high / width) - LaplaceBelow(sign * low / width));
    p[i] = 0.5 * gauss + 0.5 * laplace + kFloor;
    sum += p[i];
  }
  for (double& of_symbol : p) of_symbol *= kPseudoCounts / sum;
  for (const float value : values) {
    constexpr float kEnd = kMostSymbol + 1;
    p[static_cast<size_t>(std::clamp(ToSymbol(value, step), -kEnd, kEnd) + kEnd)] += 1;
  }
  for (double& of_symbol : p) of_symbol /= kPseudoCounts + static_cast<double>(values.size());
  return p;
}

}  // namespace

float ToSymbol(float value, float step) { return std::nearbyint(value / step); }

std::array<double, kSymbols> SymbolBits(std::span<const float> values, float step) {
  std::array<double, kSymbols> bits = Probabilities(values, step);
  for (double& of_symbol : bits) of_symbol = -std::log2(of_symbol);
  return bits;
}

StepTable MakeStepTable(std::span<const float> values, float step) {
  const std::array<double, kSymbols> p = Probabilities(values, step);
  // Symbols rarer than a slot of the table are escaped; a slot would cost the other symbols more.
  StepTable made;
  made.reach = kMostSymbol;
  const double least = 1.0 / kRansTotal;
  const auto at = [&](int32_t symbol) { return p[static_cast<size_t>(symbol + kMostSymbol + 1)]; };
  while (made.reach > 0 && at(static_cast<int32_t>(made.reach)) < least &&
         at(-static_cast<int32_t>(made.reach)) < least) {
    --made.reach;
  }
  std::array<uint32_t, 256> counts{};
  double escaped = 1;
  const auto reach = static_cast<int32_t>(made.reach);
  for (int32_t symbol = -reach; symbol <= reach; ++symbol) {
    escaped -= at(symbol);
    counts[static_cast<size_t>(symbol + reach)] =
        1 + static_cast<uint32_t>(at(symbol) * kCountScale);
  }
  counts[made.symbols() - 1] = 1 + static_cast<uint32_t>(std::max(0.0, escaped) * kCountScale);
  const LeveledTable table = MakeTable(counts.data(), made.symbols());
  made.frequencies.assign(table.frequencies.begin(), table.frequencies.begin() + made.symbols());
  return made;
}

namespace {

// Returns the index of a symbol in its table; the last one is the escape.
uint32_t FindSymbol(const StepTable& table, float symbol) {
  const auto reach = static_cast<float>(table.reach);
  return std::fabs(symbol) <= reach ? static_cast<uint32_t>(symbol + reach) : table.escape();
}

// Returns the bits of all rows, by the tables alone.
double CountRowBits(const StepCode& code, const Rows& rows) {
  double bits = 0;
  for (size_t c = 0; c < code.tables.size(); ++c) {
    const StepTable& table = code.tables[c];
    for (uint64_t t = 0; t < rows.tokens; ++t) {
      const uint32_t place = FindSymbol(table, ToSymbol(rows.Row(t)[c], code.step));
      bits += kRansTotalBits - std::log2(static_cast<double>(table.frequencies[place]));
      if (place + 1 == table.symbols()) bits += kEscapeBits;
    }
  }
  return bits;
}

StepCode LearnTables(const Rows& rows, float step) {
  StepCode code{step, {}};
  std::vector<float> column(rows.tokens);
  for (uint64_t c = 0; c < rows.components; ++c) {
    for (uint64_t t = 0; t < rows.tokens; ++t) column[t] = rows.Row(t)[c];
    code.tables.push_back(MakeStepTable(column, step));
  }
  return code;
}

}  // namespace

StepCode FitSteps(const Rows& learn, const Rows& judge, double budget_bits) {
  constexpr int kBisections = 24;
  double low = 1e-4, high = 1e4;
  for (int i = 0; i < kBisections; ++i) {
    const double step = std::sqrt(low * high);
    const StepCode code = LearnTables(learn, static_cast<float>(step));
    const bool fits = CountRowBits(code, judge) <= budget_bits * static_cast<double>(judge.tokens);
    (fits ? high : low) = step;
  }
  return LearnTables(learn, static_cast<float>(high));
}

uint64_t StoreBlock(const StepCode& code, const Rows& rows, std::span<float> out, Faults& faults) {
  KV_ASSERT(code.tables.size() <= rows.components && out.size() == rows.values.size());
  std::fill(out.begin(), out.end(), 0.0f);
  const size_t count = code.tables.size();
  std::vector<int16_t> symbols(rows.tokens * count);
  for (uint64_t t = 0; t < rows.tokens; ++t) {
    for (size_t c = 0; c < count; ++c) {
      const float symbol = ToSymbol(rows.Row(t)[c], code.step);
      const float kept = std::clamp<float>(symbol, INT16_MIN, INT16_MAX);
      faults.clipped += kept != symbol;
      symbols[t * count + c] = static_cast<int16_t>(kept);
      out[t * rows.components + c] = kept * code.step;
    }
  }
  return EncodeCoefficients(code, symbols, rows.tokens).size();
}

}  // namespace kv::transform
