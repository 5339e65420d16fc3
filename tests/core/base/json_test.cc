// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/json.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "lib/core/base/utf8.h"
#include "tests/support/host_locale.h"
#include "tests/support/refusal.h"

namespace kv::json_test {

using test::FindingOf;

std::string Nested(size_t levels, char open, char close) {
  return std::string(levels, open) + std::string(levels, close);
}

std::string Wide(size_t keys) {
  std::string text = "{";
  for (size_t i = 0; i < keys; ++i) text += fmt::format("{}\"k{}\":{}", i == 0 ? "" : ",", i, i);
  return text + "}";
}

TEST_CASE("A document is read as the library reads it") {
  const std::string text =
      R"({"b": [1, -2, 2.5, true, null, "\u00e9", {}], "a": {"c": [[], {"d": []}]}, "b": {"last": 1}})";
  CHECK(ReadJson(text) == nlohmann::json::parse(text));
  CHECK(ReadOrderedJson(text) == nlohmann::ordered_json::parse(text));
  CHECK(ReadOrderedJson(text).dump() == nlohmann::ordered_json::parse(text).dump());
  for (const char* scalar : {"1", "\"x\"", "null", "false", "[]", "{}", " [1] "}) {
    CHECK(ReadJson(scalar) == nlohmann::json::parse(scalar));
  }
}

TEST_CASE("A text that is not JSON says where and why") {
  for (const char* text : {"", "[", "[1,]", "{\"a\" 1}", "[1] 2", "nul", "// c\n1", "\"\xff\""}) {
    JsonMistake mistake;
    CHECK(ReadJson(text, {}, &mistake).is_discarded());
    CHECK(mistake.kind == JsonMistake::Kind::kSyntax);
    CHECK_FALSE(mistake.text.empty());
    CHECK(ReadOrderedJson(text).is_discarded());
  }
  JsonMistake mistake;
  CHECK(ReadJson("[1, 1e999]", {}, &mistake).is_discarded());
  CHECK(mistake.kind == JsonMistake::Kind::kRange);
  CHECK(ReadJson("// c\n[1, /* c */ 2]", {.comments = true}).size() == 2);
  CHECK(ReadJson(R"({"a": {"b": 1}, "b": 2})", {.unique_keys = true}).size() == 2);
  CHECK(ReadJson(R"({"a": {"b": 1, "c": 2, "b": 3}})", {.unique_keys = true}, &mistake)
            .is_discarded());
  CHECK(mistake.kind == JsonMistake::Kind::kTwice);
  CHECK(mistake.text == "b");
  CHECK(
      ReadJson(R"({"a": 1, "a": 2, "b": 1e999})", {.unique_keys = true}, &mistake).is_discarded());
  CHECK(mistake.kind == JsonMistake::Kind::kRange);
}

TEST_CASE("A mistake in a long token is told in few words") {
  const std::string digits(1000000, '9');
  std::string letters = "\"";
  for (int i = 0; i < 500000; ++i) letters += "\u00e9";
  for (const std::string& text : {digits, "1" + digits + "e9", letters, "a" + letters}) {
    JsonMistake mistake;
    CHECK(ReadJson(text, {}, &mistake).is_discarded());
    CHECK(mistake.text.size() < 300);
    CHECK(IsUtf8(mistake.text));
  }
}

TEST_CASE("Depth, keys and bytes of a document are bounded") {
  const auto refused = [](const std::string& text, const JsonLimits& limits = {}) {
    return FindingOf([&] { ReadJson(text, limits); }) == Finding::kLimit &&
           FindingOf([&] { ReadOrderedJson(text, limits); }) == Finding::kLimit;
  };
  CHECK(ReadJson(Nested(kDeepestJson, '[', ']')).is_array());
  CHECK(refused(Nested(kDeepestJson + 1, '[', ']')));
  CHECK(refused(Nested(3000000, '[', ']')));
  CHECK(refused(std::string(600000, '[')));
  std::string objects = "1";
  for (int i = 0; i < 65; ++i) objects = "{\"a\":" + objects + "}";
  CHECK(refused(objects));
  CHECK(refused("{\"a\":[" + objects + "]}"));
  // Brackets and quotes inside strings do not count as levels.
  CHECK(ReadJson("[\"" + std::string(1000, '[') + "\\\"" + std::string(1000, '{') + "\"]").size() ==
        1);
  CHECK(ReadOrderedJson(Wide(4096)).size() == 4096);
  CHECK(refused(Wide(4097)));
  CHECK(refused("[{\"a\":" + Wide(9) + "}]", {.keys = 8}));
  CHECK(ReadJson("[1]", {.bytes = 3}).size() == 1);
  CHECK(refused("[1] ", {.bytes = 3}));
}

TEST_CASE("A message shows values, and of objects and arrays the kind alone") {
  CHECK(ShowJson(nlohmann::json("a\x1b")) == "\"a\\x5cu001b\"");
  CHECK(ShowJson(nlohmann::json(std::string(100, 'x'))) == "\"" + std::string(39, 'x') + "...");
  CHECK(ShowJson(nlohmann::json("\xff")) == "\"\\xef\\xbf\\xbd\"");
  CHECK(ShowJson(nlohmann::ordered_json(-1.5)) == "-1.5");
  CHECK(ShowJson(nlohmann::json()) == "null");
  CHECK(ShowJson(ReadJson(Nested(64, '[', ']'))) == "an array");
  CHECK(ShowJson(ReadOrderedJson("{\"a\":1}")) == "an object");
}

TEST_CASE("JSON's numbers are the same whatever decimal point the host has", "[json]") {
  for (const char* territory : {"de_DE", "ps_AF"}) {
    const test::HostLocale host(territory);
    INFO(territory);
    if (!host.is_set()) {
      WARN("skipped: neither setlocale nor localedef has the locale here");
      continue;
    }
    CHECK(ReadJson("[1.5, -0.125, 2.25e1]") == nlohmann::json::array({1.5, -0.125, 22.5}));
    CHECK(ReadOrderedJson("{\"a\": 2.36}")["a"] == 2.36);
    CHECK(host.is_set());
  }
}

}  // namespace kv::json_test
