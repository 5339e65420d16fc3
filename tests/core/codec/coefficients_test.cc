// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "lib/core/codec/transformed/transformed.h"
#include "tests/support/refusal.h"

namespace kv::coefficients_test {
namespace {

// Component c codes the values -(20 - c) to 20 - c, and from c = 20 on only 0. The most frequent
// value is 0.
StepCode MakeCode(size_t count) {
  StepCode code{0.5f, {}};
  for (size_t c = 0; c < count; ++c) {
    StepTable table{static_cast<uint32_t>(c < 20 ? 20 - c : 0), {}};
    const uint32_t symbols = table.symbols();
    table.frequencies.assign(symbols, 1);
    table.frequencies[table.reach] = static_cast<uint16_t>(2048 - (symbols - 1));
    code.tables.push_back(std::move(table));
  }
  return code;
}

std::vector<int16_t> MakeValues(const StepCode& code, uint64_t tokens, double deviation) {
  std::mt19937 random(11);
  std::normal_distribution<double> normal(0, deviation);
  std::vector<int16_t> values;
  for (uint64_t i = 0; i < tokens * code.tables.size(); ++i)
    values.push_back(static_cast<int16_t>(std::lround(normal(random))));
  return values;
}

Finding Refusal(const StepCode& code, ByteSpan stream, uint64_t tokens) {
  std::vector<int16_t> back(tokens * code.tables.size());
  return test::FindingOf([&] { DecodeCoefficients(code, stream, tokens, back); });
}

}  // namespace

TEST_CASE("coefficients of every number of components and tokens come back", "[transformed]") {
  for (const size_t count : {0u, 1u, 15u, 16u, 17u, 50u}) {
    for (const uint64_t tokens : {1u, 7u, 128u}) {
      for (const double deviation : {0.001, 2.0, 5000.0}) {
        INFO(count << " components, " << tokens << " tokens, deviation " << deviation);
        const StepCode code = MakeCode(count);
        std::vector<int16_t> values = MakeValues(code, tokens, deviation);
        if (!values.empty() && deviation > 100) values.front() = INT16_MIN;
        const Bytes stream = EncodeCoefficients(code, values, tokens);
        std::vector<int16_t> back(values.size(), 99);
        DecodeCoefficients(code, stream, tokens, back);
        CHECK(back == values);
      }
    }
  }
}

TEST_CASE("a known stream decodes as FORMAT.md says", "[transformed][golden]") {
  // One component that codes only the value 0: its symbol has the frequency 2047, the escape 1.
  const StepCode code = MakeCode(21);
  StepCode last{1, {code.tables.back()}};
  REQUIRE(last.tables[0].frequencies == std::vector<uint16_t>{2047, 1});
  const Bytes stream = EncodeCoefficients(last, std::vector<int16_t>{0, -3}, 2);
  REQUIRE(stream.size() == 64 + 2);
  // The escape turns the state 2^15 into x = 2^15 * 2048 + 2047, the 0 before it x into
  // x / 2047 * 2048 + x % 2047. Both stay below 2^31, so no word is written.
  CHECK(LoadLE<uint32_t>(&stream[0]) == 67143696);
  CHECK(LoadLE<uint32_t>(&stream[4]) == 1u << 15);
  CHECK(LoadLE<int16_t>(&stream[64]) == -3);
}

TEST_CASE("streams that the encoder cannot have written are refused", "[transformed][reject]") {
  const StepCode code = MakeCode(40);
  const std::vector<int16_t> values = MakeValues(code, 20, 3);
  const Bytes stream = EncodeCoefficients(code, values, 20);
  CHECK(Refusal(code, {}, 20) == Finding::kTruncated);
  for (const size_t size : {size_t{63}, size_t{64}, stream.size() - 1}) {
    INFO(size);
    CHECK_THROWS_AS(
        [&] {
          std::vector<int16_t> back(values.size());
          DecodeCoefficients(code, ByteSpan(stream).first(size), 20, back);
        }(),
        Error);
  }
  Bytes longer = stream;
  longer.resize(longer.size() + 2);
  CHECK(Refusal(code, longer, 20) == Finding::kTrailingBytes);
  Bytes low = stream;
  StoreLE<uint32_t>(low.data(), (1u << 15) - 1);
  CHECK(Refusal(code, low, 20) == Finding::kBadFrame);
  StoreLE<uint32_t>(low.data(), 1u << 31);
  CHECK(Refusal(code, low, 20) == Finding::kBadFrame);
  // The last value is an escape; a value that the table can code must not be escaped.
  StepCode one{1, {code.tables[15]}};
  Bytes escaped = EncodeCoefficients(one, std::vector<int16_t>{1000}, 1);
  StoreLE<int16_t>(&escaped[escaped.size() - 2], 2);
  CHECK(Refusal(one, escaped, 1) == Finding::kBadFrame);
}

}  // namespace kv::coefficients_test
