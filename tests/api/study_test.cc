// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// kvtool_study.h as a program sees it: it links the two shared libraries and nothing else of
// kvtool.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "lib/api/kvtool_study.h"
#include "tests/api/cases.h"
#include "tests/api/sizes.h"

namespace {

using namespace api_cases;

TEST_CASE("An analysis says what compresses") {
  const Context ctx;
  Buffer page = Page(512, 256);
  std::copy_n(page.begin(), 512 * 30, page.begin() + 512 * 100);  // 30 rows again
  std::fill_n(page.begin() + 512 * 200, 512 * 3, uint8_t{0});
  const uint16_t nan = 0x7fc0, infinity = 0xff80;
  std::memcpy(&page[512 * 300], &nan, 2);
  std::memcpy(&page[512 * 301], &infinity, 2);
  const kvt_desc desc = Desc(512, 2, 128);
  kvt_analysis analysis = {};
  analysis.struct_size = sizeof analysis;
  std::string json;
  const kvt_sink sink = {sizeof sink, 0, &json, [](void* user, const void* src, size_t n) {
                           static_cast<std::string*>(user)->append(static_cast<const char*>(src),
                                                                   n);
                           return kvt_status{0};
                         }};
  REQUIRE(kvt_analyze(ctx, &desc, page.data(), page.size(), &analysis, &sink) == 0);
  CHECK(analysis.raw_bytes == page.size());
  CHECK(analysis.coded_bytes < page.size());
  CHECK(analysis.codec == 18);  // rows
  CHECK(analysis.values == page.size() / 2);
  CHECK(analysis.nans == 1);
  CHECK(analysis.infinities == 1);
  CHECK(analysis.zeros >= 3 * 256);
  CHECK(analysis.zero_rows == 3);
  CHECK(analysis.repeated_rows == 30);
  CHECK(analysis.bits_per_value <=
        8.0 * static_cast<double>(analysis.coded_bytes) / static_cast<double>(analysis.values));
  CHECK(analysis.bound_bits_per_value > 4);
  CHECK(json.find("\"dtype\":\"bf16\"") != std::string::npos);
  CHECK(json.find("\"repeated_rows\":30") != std::string::npos);
  CHECK(json.back() == '}');
  REQUIRE(kvt_analyze(ctx, &desc, page.data(), page.size(), nullptr, nullptr) == 0);
  CHECK(kvt_analyze(ctx, &desc, page.data(), page.size() - 2, &analysis, nullptr) ==
        KVT_E_BAD_ARGUMENT);
  CHECK(kvt_analyze(ctx, nullptr, page.data(), page.size(), &analysis, nullptr) ==
        KVT_E_BAD_ARGUMENT);
  kvt_desc unknown = desc;
  unknown.order = KVT_ORDER_UNKNOWN;
  CHECK(kvt_analyze(ctx, &unknown, page.data(), page.size(), &analysis, nullptr) ==
        KVT_E_BAD_ARGUMENT);
  kvt_sink full = sink;
  full.write = [](void*, const void*, size_t) { return kvt_status{-30003}; };
  CHECK(kvt_analyze(ctx, &desc, page.data(), page.size(), nullptr, &full) == -30003);
}

TEST_CASE("MNN's eviction runs in a decode loop, and misuse is refused") {
  const Context ctx;
  const kvt_geometry geometry = {sizeof geometry, 2, 4, 2, 16, 2};
  kvt_h2o_params params = {};
  params.struct_size = sizeof params;
  kvt_h2o_defaults(&params);
  CHECK(params.block_tokens == 64);
  params.layer_start = 0;
  params.sink_tokens = params.recent_tokens = 16;
  params.block_tokens = 16;
  params.update_interval = 1;
  params.trigger_min_tokens = 64;
  params.prompt_tokens = 128;
  kvt_h2o* h2o = nullptr;
  REQUIRE(kvt_h2o_create(ctx, &params, &geometry, &h2o) == 0);

  kvt_h2o_call call = {};
  call.struct_size = sizeof call;
  CHECK(kvt_h2o_finish(h2o, nullptr, 0, 1, &call) == KVT_E_BAD_ARGUMENT);
  std::vector<uint64_t> cached(geometry.layers, params.prompt_tokens);
  uint64_t evictions = 0;
  const std::vector<float> queries(64, 0.5f), keys(400 * 32, 0.25f);
  for (int token = 0; token < 20; ++token) {
    for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
      REQUIRE(kvt_h2o_begin(h2o, 1, &call) == 0);
      CHECK(kvt_h2o_begin(h2o, 1, &call) == KVT_E_BAD_ARGUMENT);
      CHECK(call.layer == layer);
      if (call.apply != 0) {
        uint64_t kept = 0;
        for (size_t i = 0; i < call.plan->count; ++i) kept += call.plan->ranges[i].count;
        CHECK(kept < cached[layer]);
        cached[layer] = kept;
        ++evictions;
      }
      ++cached[layer];
      REQUIRE(call.length == cached[layer]);
      const size_t blocks = (call.length + 15) / 16;
      std::vector<float> sums(blocks);
      const kvt_scores scores = {sizeof scores,
                                 KVT_F32,
                                 &geometry,
                                 queries.data(),
                                 1,
                                 keys.data(),
                                 call.length,
                                 call.length,
                                 128,
                                 64,
                                 0,
                                 16};
      REQUIRE(kvt_block_scores(ctx, &scores, sums.data(), blocks) == 0);
      float total = 0;
      for (const float sum : sums) total += sum;
      CHECK(total == Approx(4));  // per query head the weights sum to 1
      CHECK(kvt_block_scores(ctx, &scores, sums.data(), blocks - 1) == KVT_E_BAD_ARGUMENT);
      CHECK(kvt_h2o_finish(h2o, sums.data(), blocks - 1, 1, &call) == KVT_E_BAD_ARGUMENT);
      CHECK(kvt_h2o_finish(h2o, sums.data(), blocks, UINT64_MAX, &call) == KVT_E_BAD_ARGUMENT);
      CHECK(kvt_h2o_finish(h2o, sums.data(), blocks, uint64_t{1} << 31, &call) ==
            KVT_E_BAD_ARGUMENT);
      REQUIRE(kvt_h2o_finish(h2o, sums.data(), blocks, 1, &call) == 0);
    }
  }
  CHECK(evictions > 0);
  CHECK(kvt_h2o_truncate(h2o, 0, cached[0] - 1) == 0);
  CHECK(kvt_h2o_truncate(h2o, 2, 0) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_h2o_truncate(h2o, 0, 1 << 20) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_h2o_begin(h2o, UINT64_MAX, &call) == KVT_E_BAD_ARGUMENT);
  kvt_h2o_free(h2o);
}

TEST_CASE("Wrong scores are refused") {
  const Context ctx;
  const Buffer page = Page(16, 64);
  const kvt_desc desc = Desc(16, 1, 64);
  CHECK(kvt_analyze(ctx, &desc, nullptr, page.size(), nullptr, nullptr) == KVT_E_BAD_ARGUMENT);
  const kvt_geometry geometry = {sizeof geometry, 1, 1, 1, 64, 2};
  kvt_scores scores = {sizeof scores, KVT_F32, &geometry, nullptr, 1, page.data(), 4, 4,
                       256,           256,     0,         1};
  std::vector<float> sums(4), queries(64);
  CHECK(kvt_block_scores(ctx, &scores, sums.data(), 4) == KVT_E_BAD_ARGUMENT);
  scores.queries = queries.data();
  CHECK(kvt_block_scores(ctx, &scores, nullptr, 4) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_block_scores(ctx, &scores, queries.data() + 60, 4) ==
        KVT_E_BAD_ARGUMENT);  // its own queries
  scores.key_token_stride = SIZE_MAX / 2;
  CHECK(kvt_block_scores(ctx, &scores, sums.data(), 4) == KVT_E_BAD_ARGUMENT);
  scores.keys = nullptr;
  CHECK(kvt_block_scores(ctx, &scores, sums.data(), 4) == KVT_E_BAD_ARGUMENT);
  const kvt_geometry no_heads = {sizeof no_heads, 1, 0, 1, 64, 2};
  scores.geometry = &no_heads;
  scores.keys = page.data();
  scores.key_token_stride = 0;
  CHECK(kvt_block_scores(ctx, &scores, sums.data(), 4) == KVT_E_BAD_ARGUMENT);
}

TEST_CASE("Every struct of a study has its size") {
  const Context ctx;
  const Buffer page = Page(16, 64);
  const kvt_desc desc = Desc(16, 1, 64);
  TrySizes<kvt_analysis>({}, [&](kvt_analysis* out) {
    return kvt_analyze(ctx, &desc, page.data(), page.size(), out, nullptr);
  });
  TrySizes<kvt_h2o_params>({}, [](kvt_h2o_params* out) { return kvt_h2o_defaults(out); });
  TrySizes<kvt_policy_info>({}, [](kvt_policy_info* out) { return kvt_policy_at(0, out); });
  kvt_geometry geometry = {sizeof geometry, 2, 1, 1, 64, 2};
  kvt_h2o_params params = {};
  params.struct_size = sizeof params;
  REQUIRE(kvt_h2o_defaults(&params) == KVT_OK);
  const auto create = [&](const kvt_h2o_params* with, const kvt_geometry* of) {
    kvt_h2o* made = nullptr;
    const kvt_status status = kvt_h2o_create(ctx, with, of, &made);
    kvt_h2o_free(made);
    return status;
  };
  TrySizes<kvt_h2o_params>(params, [&](kvt_h2o_params* given) { return create(given, &geometry); });
  TrySizes<kvt_geometry>(geometry, [&](kvt_geometry* given) { return create(&params, given); });
  TrySizes<kvt_geometry>(geometry, [&](kvt_geometry* given) {
    kvt_policy* policy = nullptr;
    const kvt_status status = kvt_policy_create(ctx, "h2o", given, 0, &policy);
    kvt_policy_free(policy);
    return status;
  });
  TrySizes<kvt_h2o_call>({}, [&](kvt_h2o_call* call) {
    kvt_h2o* h2o = nullptr;
    REQUIRE(kvt_h2o_create(ctx, &params, &geometry, &h2o) == KVT_OK);
    const kvt_status status = kvt_h2o_begin(h2o, 1, call);
    kvt_h2o_free(h2o);
    return status;
  });
  const std::vector<float> queries(64, 1);
  float sum = 0;
  const kvt_scores scores = {
      sizeof scores, KVT_BF16, &geometry, queries.data(), 1, page.data(), 4, 4, 128, 0, 0, 4};
  TrySizes<kvt_scores>(scores, [&](kvt_scores* in) { return kvt_block_scores(ctx, in, &sum, 1); });
}

TEST_CASE("Errors of MNN's eviction are the context's, with their texts") {
  const Context ctx;
  const kvt_geometry geometry = {sizeof geometry, 1, 1, 1, 64, 2};
  kvt_h2o_params params = {};
  params.struct_size = sizeof params;
  REQUIRE(kvt_h2o_defaults(&params) == KVT_OK);
  params.layer_start = 0;
  kvt_h2o* h2o = nullptr;
  const auto text = [&] {
    kvt_error error = {};
    error.struct_size = sizeof error;
    REQUIRE(kvt_ctx_error(ctx, &error) == KVT_OK);
    return std::string(error.message);
  };
  params.revision = 5;
  CHECK(kvt_h2o_create(ctx, &params, &geometry, &h2o) == KVT_E_BAD_ARGUMENT);
  CHECK(text() == "params->revision");
  params.revision = KVT_H2O_R6;
  params.target_mode = KVT_H2O_ADAPTIVE + 1;
  CHECK(kvt_h2o_create(ctx, &params, &geometry, &h2o) == KVT_E_BAD_ARGUMENT);
  CHECK(text() == "params->target_mode");
  params.target_mode = KVT_H2O_STATIC;
  REQUIRE(kvt_h2o_create(ctx, &params, &geometry, &h2o) == KVT_OK);
  kvt_h2o_call call = {};
  call.struct_size = sizeof call;
  CHECK(kvt_h2o_finish(h2o, nullptr, 0, 1, &call) == KVT_E_BAD_ARGUMENT);
  CHECK(text() == "kvt_h2o_finish without kvt_h2o_begin");
  REQUIRE(kvt_h2o_begin(h2o, 100, &call) == KVT_OK);
  CHECK(text().empty());
  REQUIRE(call.plan != nullptr);
  CHECK(call.plan->struct_size == sizeof(kvt_plan));
  CHECK(call.in_range == 1);
  const float sums[9] = {};
  CHECK(kvt_h2o_finish(h2o, sums, 9, 100, &call) == KVT_E_BAD_ARGUMENT);
  CHECK(text() == "blocks: 9 sums, the cache has 2 blocks");
  CHECK(kvt_h2o_finish(h2o, nullptr, 2, 100, &call) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_h2o_truncate(h2o, 0, 1) == KVT_E_BAD_ARGUMENT);
  REQUIRE(kvt_h2o_finish(h2o, sums, 2, 100, &call) == KVT_OK);
  CHECK(kvt_h2o_truncate(h2o, 0, 101) == KVT_E_BAD_ARGUMENT);
  CHECK(text() == "length: above the tokens of the layer's cache");
  CHECK(kvt_h2o_begin(nullptr, 1, &call) == KVT_E_BAD_ARGUMENT);
  kvt_h2o_free(h2o);
}

}  // namespace
