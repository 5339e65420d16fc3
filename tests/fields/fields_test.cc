// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/fields/fields.h"

#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>

namespace kv::fields_test {

struct Part {
  std::string name;
  std::optional<uint32_t> layer;
};

struct Result {
  uint64_t bytes = 0;
  int64_t shift = 0;
  double ratio = 0;
  bool whole = false;
  std::string verdict = "intact";
  std::vector<Part> parts;
  std::optional<Part> worst;
  std::map<std::string, double> by_kind;
};

const Fields<Part>& PartFields() {
  static const Fields<Part> fields = {
      {"name", "Its name", &Part::name, {.column = "part"}},
      {"layer", "Its layer", &Part::layer, {.absent = true, .column = "layer"}}};
  return fields;
}

const Fields<Result>& ResultFields() {
  static const Fields<Result> fields = {
      {"bytes",
       "Bytes of the source",
       &Result::bytes,
       {.column = "bytes", .format = format::AsBytes}},
      {"shift", "Tokens by which it moved", &Result::shift},
      {"ratio",
       "Original bytes by stored ones",
       &Result::ratio,
       {.nullable = true, .column = "ratio", .format = format::AsFactor}},
      {"whole", "True if nothing is lost", &Result::whole},
      {"verdict", "What was found", &Result::verdict, {.choices = {"intact", "damaged"}}},
      {"parts", "What it consists of", &Result::parts, PartFields(), {.item = "One part"}},
      {"worst", "The part with most damage", &Result::worst, PartFields()},
      {"by_kind", "Shares by kind", &Result::by_kind, {.least = 0}},
      {"count", "Number of parts", [](const Result& of) { return of.parts.size(); }}};
  return fields;
}

TEST_CASE("A result becomes the object that its fields describe", "[fields]") {
  Result result;
  result.bytes = 1536;
  result.shift = -2;
  result.ratio = 1.5;
  result.parts = {{"a", 3}, {"b", std::nullopt}};
  result.by_kind = {{"k", 0.25}};
  CHECK(
      ToJson(ResultFields().Object(result)).dump() ==
      R"({"bytes":1536,"shift":-2,"ratio":1.5,"whole":false,"verdict":"intact",)"
      R"("parts":[{"name":"a","layer":3},{"name":"b"}],"worst":null,"by_kind":{"k":0.25},"count":2})");
  result.ratio = std::numeric_limits<double>::infinity();
  CHECK(ToJson(ResultFields().Object(result))["ratio"].is_null());
}

TEST_CASE("A schema says of each field what its getter returns", "[fields]") {
  const nlohmann::ordered_json schema = ToJson(ResultFields().Schema());
  CHECK(schema["required"].size() == ResultFields().entries().size());
  const auto& properties = schema["properties"];
  CHECK(properties["bytes"].dump() ==
        R"({"description":"Bytes of the source","type":"integer","minimum":0})");
  CHECK(properties["shift"]["type"] == "integer");
  CHECK_FALSE(properties["shift"].contains("minimum"));
  CHECK(properties["ratio"]["type"].dump() == R"(["number","null"])");
  CHECK(properties["whole"]["type"] == "boolean");
  CHECK(properties["verdict"]["enum"].dump() == R"(["intact","damaged"])");
  const auto& part = properties["parts"]["items"];
  CHECK(part["description"] == "One part");
  CHECK(part["required"].dump() == R"(["name"])");
  CHECK(part["properties"]["layer"]["type"] == "integer");
  CHECK(properties["worst"]["type"].dump() == R"(["object","null"])");
  CHECK(properties["by_kind"]["additionalProperties"]["type"] == "number");
}

TEST_CASE("Limits hold for a number, the length of a list or that of a text", "[fields]") {
  const Fields<Result> fields = {
      {"bytes", "Bytes", &Result::bytes, {.least = 1}},
      {"ratio", "Ratio", &Result::ratio, {.above = 0}},
      {"verdict", "Verdict", &Result::verdict, {.least = 1}},
      {"parts", "Parts", &Result::parts, PartFields(), {.items = 2, .most_items = 4}}};
  const nlohmann::ordered_json properties = ToJson(fields.Schema())["properties"];
  CHECK(properties["bytes"].dump() == R"({"description":"Bytes","type":"integer","minimum":1})");
  CHECK(properties["ratio"].dump() ==
        R"({"description":"Ratio","type":"number","exclusiveMinimum":0.0})");
  CHECK(properties["verdict"]["minLength"] == 1);
  CHECK(properties["parts"]["minItems"] == 2);
  CHECK(properties["parts"]["maxItems"] == 4);
}

TEST_CASE("The fields of a part stand among those of the whole, or are all missing", "[fields]") {
  struct Whole {
    std::string file;
    std::optional<Part> part;
  };
  const Fields<Part> fields_of_both = {{"first", "Its name", &Part::name},
                                       {"second", "Its layer", &Part::layer}};
  const Fields<Whole> fields = {{"file", "Its file", &Whole::file},
                                Fields<Whole>::Inline(&Whole::part, PartFields())};
  CHECK(ToJson(fields.Object({"f", Part{"a", 3}})).dump() ==
        R"({"file":"f","name":"a","layer":3})");
  CHECK(ToJson(fields.Object({"f", std::nullopt})).dump() == R"({"file":"f"})");
  const nlohmann::ordered_json schema = ToJson(fields.Schema());
  CHECK(schema["required"].dump() == R"(["file"])");
  CHECK(schema["properties"].size() == 3);
  CHECK_FALSE(schema.contains("dependentRequired"));
  const Fields<Whole> twice = {Fields<Whole>::Inline(&Whole::part, fields_of_both)};
  CHECK(ToJson(twice.Schema())["dependentRequired"].dump() == R"({"first":["second"]})");
}

TEST_CASE("Parts of which one is there may share names", "[fields]") {
  struct Either {
    std::optional<Part> first, second;
  };
  const Fields<Either> fields = {Fields<Either>::Inline(&Either::first, PartFields()),
                                 Fields<Either>::Inline(&Either::second, PartFields())};
  CHECK(ToJson(fields.Object({std::nullopt, Part{"b", 1}})).dump() == R"({"name":"b","layer":1})");
  CHECK(ToJson(fields.Schema())["properties"].size() == 2);
}

TEST_CASE("A schema says how many elements a list has", "[fields]") {
  struct Lists {
    std::vector<std::array<uint64_t, 2>> ranges;
    std::vector<double> losses;
  };
  const Fields<Lists> fields = {{"ranges", "Ranges", &Lists::ranges, {.items = 1}},
                                {"losses", "Losses", &Lists::losses, {.least = 0}}};
  CHECK(ToJson(fields.Object({{{3, 4}}, {0.5}})).dump() == R"({"ranges":[[3,4]],"losses":[0.5]})");
  CHECK(ToJson(fields.Schema())["properties"]["losses"]["items"]["minimum"] == 0);
  const nlohmann::ordered_json ranges = ToJson(fields.Schema())["properties"]["ranges"];
  CHECK(ranges["minItems"] == 1);
  CHECK_FALSE(ranges.contains("maxItems"));
  CHECK(ranges["items"]["minItems"] == 2);
  CHECK(ranges["items"]["maxItems"] == 2);
}

TEST_CASE("Documents survive the way to the JSON library and back", "[fields]") {
  const nlohmann::ordered_json json = nlohmann::ordered_json::parse(
      R"({"z":[null,true,-5,18446744073709551615,0.1,"text",{}],"a":{"b":[]}})");
  CHECK(ToJson(FromJson(json)).dump() == json.dump());
}

TEST_CASE("Rows of text have a cell for each field with a heading", "[fields]") {
  Result first, second;
  first.bytes = 1536;
  first.ratio = 1.5;
  const TextTable table = MakeTextTable(ResultFields(), std::vector<Result>{first, second});
  CHECK(table.head == std::vector<std::string>{"bytes", "ratio"});
  CHECK(table.rows[0] == std::vector<std::string>{"1.500 KiB", "1.500x"});
  CHECK(Csv(table) == "bytes,ratio\r\n1.500 KiB,1.500x\r\n0 B,0.000x\r\n");

  // A nested struct between two fields has its columns at its place.
  const Fields<Result> whole = {
      Fields<Result>::Inline(&Result::worst, PartFields()),
      {"bytes", "Bytes of the source", &Result::bytes, {.column = "bytes"}}};
  CHECK(TextHead(whole) == std::vector<std::string>{"part", "layer", "bytes"});
  CHECK(TextRow(whole, first) == std::vector<std::string>{"-", "-", "1536"});
  first.worst = {"a", 3};
  CHECK(TextRow(whole, first) == std::vector<std::string>{"a", "3", "1536"});

  // The table omits a column without values.
  const TextTable parts = MakeTextTable(PartFields(), std::vector<Part>{{"a,\"b\"", std::nullopt}});
  CHECK(parts.head == std::vector<std::string>{"part"});
  CHECK(Csv(parts) == "part\r\n\"a,\"\"b\"\"\"\r\n");
}

}  // namespace kv::fields_test
