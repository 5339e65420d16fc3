// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/analysis/dump_rows.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/core/snapshot/cast.h"
#include "tests/support/mlp_weights.h"

namespace kv::analysis::dump_rows_test {

std::vector<nlohmann::ordered_json> RowsJson(const std::vector<Value>& rows) {
  std::vector<nlohmann::ordered_json> all;
  for (const Value& row : rows) all.push_back(ToJson(row));
  return all;
}

TEST_CASE("a dump's row has the columns of its element size") {
  test::CacheShape shape;
  shape.head_dim = 8;
  ThreadPool pool(2);
  const Snapshot wide = test::MakeCache(shape);
  const Snapshot half = CastSnapshot(test::MakeCache(shape), DType::kF16, pool);
  const auto rows_of = [&](const Snapshot& snapshot, double base) {
    const std::vector<DumpEntry> entries = ListDumpEntries(snapshot);
    RowOptions options;
    if (base != 0) {
      options.rope.emplace();
      options.rope->rope.theta = base;
    }
    return RowsJson(DistributionRows(entries, options, pool));
  };
  const auto f16 = rows_of(half, 0), f32 = rows_of(wide, 0);
  REQUIRE(f16.size() == 2);
  CHECK(f16[1]["layer_id"] == 1);
  CHECK(f16[0]["bytes_per_elem"] == 2);
  CHECK(f16[0]["k_gear_ratio"].get<double>() > 0);
  CHECK(f16[0]["k_split16_ratio"].get<double>() == 0);
  CHECK(f16[0]["k_rope_inv_gear_ratio"].get<double>() == 0);
  CHECK(f32[0]["k_gear_ratio"].get<double>() == 0);
  CHECK(f32[0]["v_split16_ratio"].get<double>() > 0);
  CHECK(f32[0]["k_hi16_entropy"].get<double>() > f32[0]["k_entropy"].get<double>() - 8);

  const auto rotated = rows_of(half, 10000);
  CHECK(rotated[0]["k_rope_inv_gear_ratio"].get<double>() > 0);
  CHECK(rotated[0]["k_rope_inv_half_gear_ratio"].get<double>() > 0);
  CHECK(rotated[0]["k_rope_inv_max_abs_diff"].get<double>() >=
        rotated[0]["k_rope_inv_mean_abs_diff"].get<double>());

  const std::string csv = RowsCsv(DistributionRows(ListDumpEntries(half), {}, pool));
  CHECK(csv.substr(0, 24) == "layer_id,stage,seq_start");
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 3);
  CHECK(csv.find(",0.0,") != csv.npos);
}

TEST_CASE("a dump's keys are turned back as the model's layer turns them") {
  test::CacheShape shape;
  shape.head_dim = 4;
  const Snapshot snapshot = test::MakeCache(shape);
  ThreadPool pool(1);
  std::vector<DumpEntry> entries = ListDumpEntries(snapshot);
  for (DumpEntry& entry : entries) entry.seq_start = 7;
  ModelRope model;
  model.layers.resize(2);
  model.layers[1].theta = 50;
  model.layers[1].scaling = ParseScaling("linear:3");
  RowOptions options;
  options.rope = model;
  const auto rows = RowsJson(DistributionRows(entries, options, pool));
  for (const size_t layer : {size_t{0}, size_t{1}}) {
    const double frequencies[2] = {layer == 0 ? 1 : 1 / 3.0,
                                   layer == 0 ? 0.01 : 1 / std::sqrt(50.0) / 3};
    const std::vector<float> keys =
        GatherFloats(snapshot.layers[layer].k, 0, shape.tokens, Order::kTokenHeadDim);
    double largest = 0;
    for (size_t c = 0; c < keys.size(); ++c) {
      const size_t pair = c % 4 % 2, head = c / 4 * 4;
      const double angle = -static_cast<double>(7 + c / (4 * shape.heads)) * frequencies[pair];
      const double x = static_cast<double>(keys[head + pair]);
      const double y = static_cast<double>(keys[head + 2 + pair]);
      const double rotated = c % 4 < 2 ? x * std::cos(angle) - y * std::sin(angle)
                                       : y * std::cos(angle) + x * std::sin(angle);
      largest = std::max(largest, std::abs(rotated - static_cast<double>(keys[c])));
    }
    CHECK(rows[layer]["k_rope_inv_half_max_abs_diff"].get<double>() ==
          Approx(largest).epsilon(1e-5));
  }
  // The position in a damaged meta does not affect rotation.
  entries[0].seq_start = INT64_MAX;
  CHECK(DistributionRows(entries, options, pool)[0].Find("k_rope_inv_max_abs_diff")->number() == 0);
}

TEST_CASE("averages weigh every dump alike, zeros in or out") {
  const Value a = Value::Object{{"layer_id", 1}, {"k_entropy", 2.0}, {"k_gear_ratio", 0.0}};
  const Value b = Value::Object{{"layer_id", 5}, {"k_entropy", 4.0}, {"k_gear_ratio", 3.0}};
  CHECK(ToJson(RowAverages({a, b}, false)) ==
        nlohmann::ordered_json{{"dumps", 2}, {"k_entropy", 3.0}, {"k_gear_ratio", 1.5}});
  CHECK(RowAverages({a, b}, true).Find("k_gear_ratio")->number() == 3.0);
  CHECK(ToJson(RowAverages({}, true)) == nlohmann::ordered_json{{"dumps", 0}});
  CHECK(RowsCsv({}).empty());
  CHECK(ReportRows({a, b}, false).rows[0].Find("k_gear_ratio")->is_null());
}

TEST_CASE("text in a CSV cell is quoted where it must be") {
  const Value row = Value::Object{{"stage", "a \"b\", c"}, {"n", 3}, {"x", 2.0}, {"y", 0.5}};
  CHECK(RowsCsv({row}) == "stage,n,x,y\r\n\"a \"\"b\"\", c\",3,2.0,0.5\r\n");
}

}  // namespace kv::analysis::dump_rows_test
