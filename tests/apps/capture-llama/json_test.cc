// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/capture-llama/json.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/capture-llama/failure.h"

namespace kv::capture_json_test {
namespace {

using capture::Failure;
using capture::JsonObject;
using capture::JsonReader;

std::string StringOf(const std::string& text) {
  JsonReader json(text, "text");
  std::string out = json.String();
  json.End();
  return out;
}

bool Accepts(const std::string& text) {
  try {
    JsonReader json(text, "text");
    json.Skip();
    json.End();
    return true;
  } catch (const Failure& failure) {
    CHECK(failure.status == capture::kInvalid);
    return false;
  }
}

TEST_CASE("the capture program reads strings with every escape") {
  CHECK(StringOf(R"( "a\"\\\/\b\f\n\r\tz" )") == "a\"\\/\b\f\n\r\tz");
  CHECK(StringOf(R"("\u0041\u00e9\u20ac\ud83d\ude00")") == "A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  for (const char* text : {R"("\ud83d")", R"("\ude00")", R"("\ud83dx")", R"("\u12g4")", R"("\u12)",
                           R"("\x")", R"("a)", "\"\n\"", R"("\)"}) {
    CHECK_THROWS_AS(StringOf(text), Failure);
  }
}

TEST_CASE("the capture program reads integers within bounds") {
  const auto read = [](const std::string& text) {
    return JsonReader(text, "text").Integer(-5, 99);
  };
  CHECK(read("99") == 99);
  CHECK(read(" -5,") == -5);
  for (const char* text : {"100", "-6", "1.0", "1e1", "", "x", "9223372036854775808", "--1"}) {
    CHECK_THROWS_AS(read(text), Failure);
  }
}

TEST_CASE("the capture program skips what JSON is, and refuses what is none") {
  for (const char* text :
       {"{}", "[]", "[1, -2.5e3, true, false, null, \"x\"]", R"({"a": {"b": [[]]}})", "1e999"}) {
    CHECK(Accepts(text));
  }
  for (const char* text : {"", "{", "[", "[1,]", "[1 2]", "{\"a\"}", "{\"a\":}", "{a:1}",
                           "{\"a\":1,}", "tru", "1 2", "[}", "nan", "{\"a\":1 \"b\":2}"}) {
    CHECK_FALSE(Accepts(text));
  }
  const std::string deep(100000, '[');
  CHECK_FALSE(Accepts(deep));
}

TEST_CASE("the capture program writes JSON that others read") {
  const std::string odd("q\"\\\x01\xC3\xA9\xFF\xED\xA0\x80\xF0\x9F\x98\x80", 14);
  JsonObject inner, outer;
  inner.Add("n", int64_t{-3}).Add("x", 0.1).Add("none", std::nan("")).Add("yes", true);
  outer.Add(odd, odd).Add("inner", inner).Raw("list", "[1,2]");
  for (const std::string& text : {outer.Line(), outer.Document()}) {
    const nlohmann::json read = nlohmann::json::parse(text);
    const std::string shown =
        "q\"\\\x01\xC3\xA9"
        "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
        "\xF0\x9F\x98\x80";
    CHECK(read.at(shown) == shown);
    CHECK(read.at("inner") ==
          nlohmann::json({{"n", -3}, {"x", 0.1}, {"none", nullptr}, {"yes", true}}));
    CHECK(read.at("list") == nlohmann::json({1, 2}));
    // The parser reads everything that the writer writes.
    JsonReader again(text, "again");
    again.Skip();
    again.End();
  }
}

}  // namespace
}  // namespace kv::capture_json_test
