// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/number.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "formats/torch/pickle.h"
#include "lib/study/gate/log_files.h"
#include "tests/support/host_locale.h"

namespace kv::number_test {

TEST_CASE("A text is a number if all of it is", "[number]") {
  CHECK(ParseNumber<uint32_t>("4294967295") == 4294967295u);
  CHECK(ParseNumber<int64_t>("-9223372036854775808") == std::numeric_limits<int64_t>::min());
  CHECK(ParseNumber<uint64_t>("00ff", 16) == 255u);
  CHECK(ParseNumber<double>("1.5") == 1.5);
  CHECK(ParseNumber<double>("-2e-3") == -0.002);
  for (const char* text : {"", "-", "+1", " 1", "1 ", "1x", "0x1", "1,5", "-1", "4294967296"}) {
    INFO("'" << text << "'");
    CHECK_FALSE(ParseNumber<uint32_t>(text));
  }
  for (const char* text : {"", ".", "+1.5", " 1.5", "1.5 ", "1,5", "1.5.", "0x1p3", "1e", "--1"}) {
    INFO("'" << text << "'");
    CHECK_FALSE(ParseNumber<double>(text));
  }
}

TEST_CASE("Doubles out of range are infinite or 0, however they are written", "[number]") {
  const std::string zeros(400, '0');
  using Texts = std::vector<std::string>;
  for (const std::string& text :
       Texts{"1e400", "1e+99999999999999999999", "1" + zeros, "1" + zeros + "e-5", "0.001e999"}) {
    INFO(text);
    CHECK(ParseNumber<double>(text) == HUGE_VAL);
    CHECK(ParseNumber<double>("-" + text) == -HUGE_VAL);
  }
  for (const std::string& text : Texts{"1e-400", "1e-99999999999999999999", "0." + zeros + "1",
                                       "0." + zeros + "1e5", "100e-999"}) {
    INFO(text);
    CHECK(ParseNumber<double>(text) == 0.0);
    CHECK(std::signbit(ParseNumber<double>("-" + text).value()));
  }
  CHECK(std::isnan(ParseNumber<double>("nan").value()));
  CHECK(ParseNumber<double>("-inf") == -HUGE_VAL);
}

TEST_CASE("What follows a number stays in the text", "[number]") {
  std::string_view text = "12-1.5e2x";
  CHECK(TakeNumber<uint64_t>(text) == 12u);
  CHECK(TakeNumber<double>(text) == -150.0);
  CHECK_FALSE(TakeNumber<double>(text));
  CHECK(text == "x");
}

TEST_CASE("A float's shortest double prints as the float does", "[number]") {
  CHECK(ShortestDouble(0.9f) == 0.9);
  CHECK(ShortestDouble(-1e-30f) == -1e-30);
  CHECK(std::isnan(ShortestDouble(NAN)));
  CHECK(ShortestDouble(HUGE_VALF) == HUGE_VAL);
}

TEST_CASE("Numbers are read the same in a program that called setlocale", "[number]") {
  const test::GermanLocale german;
  if (!german.is_set()) {
    WARN("skipped: neither setlocale nor localedef has de_DE.UTF-8 here");
    return;
  }
  CHECK(ParseNumber<double>("1.5") == 1.5);
  CHECK_FALSE(ParseNumber<double>("1,5"));
  CHECK(ShortestDouble(0.9f) == 0.9);
  CHECK(gate::ParseJson("[2.36, 1e400]", "").dump() == "[2.36,\"Infinity\"]");
  const std::string stream = "F2.5\n.";
  const Pickle pickle = ReadPickle(AsBytes(stream));
  CHECK(pickle[pickle.root()].real() == 2.5);
  {
    const CLocale locale;
    CHECK(std::strtod("1.5", nullptr) == 1.5);
  }
  CHECK(std::strtod("1,5", nullptr) == 1.5);  // ParseNumber restored the program's locale
}

}  // namespace kv::number_test
