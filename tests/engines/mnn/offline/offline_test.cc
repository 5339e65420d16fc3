// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/offline/offline.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "formats/mnn/mnn.h"
#include "tests/support/mlp_weights.h"
#include "tests/support/temp_dir.h"

namespace kv::mnn::offline::offline_test {
namespace {

using nlohmann::json;

// A folder of dumps whose metadata files can be damaged one by one.
class Dumps {
 public:
  // Adds K and V of `tokens` x 2 heads x 4 values of `element` bytes. Returns the metadata, which
  // tests change.
  json Meta(int layer, int begin, int tokens, int element = 2) const {
    return {{"layer_id", layer},
            {"seq_start", begin},
            {"seq_len", tokens},
            {"kv_heads", 2},
            {"head_dim", 4},
            {"bytes_per_elem", element},
            {"stage", tokens == 1 ? "decode" : "prefill"},
            {"run_id", "run"},
            {"k_file", "k_" + std::to_string(begin) + ".bin"},
            {"v_file", "v_" + std::to_string(begin) + ".bin"}};
  }
  void Add(const json& meta, uint64_t bytes) {
    const std::string folder = "run/layer_" + std::to_string(meta.value("layer_id", 0)) + "/";
    for (const char* key : {"k_file", "v_file"}) {
      if (meta.contains(key) && meta[key].is_string() && !meta[key].get<std::string>().empty()) {
        Bytes content(bytes);
        for (size_t i = 0; i < bytes; ++i) content[i] = static_cast<std::byte>(i * 37 + i / 11);
        temp.WriteFile(folder + meta[key].get<std::string>(), content);
      }
    }
    AddMeta(folder, meta.dump());
  }
  void Add(const json& meta) {
    Add(meta, meta.at("seq_len").get<uint64_t>() * 8 * meta.at("bytes_per_elem").get<uint64_t>());
  }
  void AddMeta(const std::string& folder, const std::string& text) {
    temp.WriteFile(folder + "meta_" + std::to_string(100 + metas_++) + ".json", AsBytes(text));
  }
  Result Run(const Options& options, int threads = 1) const {
    const Source source = Source::Open(temp.path());
    ThreadPool pool(threads);
    return Simulate(mnn::ReadOfflineEntries(source), options, pool);
  }

  test::TempDir temp;

 private:
  int metas_ = 0;
};

using Reasons = std::vector<std::pair<std::string, uint64_t>>;

}  // namespace

TEST_CASE("what the original skips is skipped for its reasons") {
  Dumps dumps;
  dumps.Add(dumps.Meta(0, 0, 4));
  dumps.AddMeta("run/layer_0/", "{not json");
  json bad = dumps.Meta(0, 10, 4);
  bad["kv_heads"] = "two";
  dumps.Add(bad, 64);
  bad = dumps.Meta(0, 20, 4);
  bad["seq_len"] = 0;
  dumps.Add(bad, 64);
  bad = dumps.Meta(0, 30, 4);
  bad.erase("k_file");
  dumps.Add(bad, 64);
  bad = dumps.Meta(0, 40, 4);
  bad["v_file"] = "gone.bin";
  dumps.AddMeta("run/layer_0/", bad.dump());
  dumps.Add(dumps.Meta(0, 50, 4, 8));   // no such element
  dumps.Add(dumps.Meta(0, 60, 4), 63);  // a byte short
  dumps.Add(dumps.Meta(0, 70, 4, 4));
  dumps.Add(dumps.Meta(5, 80, 4));  // an entry outside the scope does not count as skipped
  bad = dumps.Meta(0, 90, 4);
  bad["k_file"] = "../../../etc/passwd";
  dumps.AddMeta("run/layer_0/", bad.dump());

  Options options;
  Result result = dumps.Run(options);
  CHECK(result.scanned == 11);
  CHECK(result.entries == 3);
  CHECK(result.converted == 1);
  CHECK(result.skipped == 8);
  CHECK(result.skip_reasons == Reasons{{"meta_parse_error", 1},
                                       {"meta_invalid_numeric_fields", 1},
                                       {"invalid_shape", 1},
                                       {"missing_k_or_v_file", 1},
                                       {"missing_k_or_v_binary", 2},
                                       {"unsupported_bytes_per_elem_8", 1},
                                       {"compression_failed", 1}});
  CHECK(result.k.raw == 2 * 64);  // the f32 entry counts as 64 values of f16

  options.strict_fp16 = true;
  result = dumps.Run(options);
  CHECK(result.entries == 2);
  CHECK(result.converted == 0);
  CHECK(result.skip_reasons.back() == std::pair<std::string, uint64_t>{"compression_failed", 1});

  // In joined groups, one bad part removes its whole group.
  options = {};
  options.entry_mode = EntryMode::kAggregate;
  options.aggregate_by_stage = true;
  result = dumps.Run(options);
  CHECK(result.k.raw == 0);
  CHECK(result.total().ratio() == 0);
  CHECK(result.groups == 1);
}

TEST_CASE("entries are selected by stage, layer and length") {
  Dumps dumps;
  for (const int layer : {0, 1, 2, 3}) {
    dumps.Add(dumps.Meta(layer, 0, 5));
    dumps.Add(dumps.Meta(layer, 5, 1));
  }
  const auto selected = [&](const Options& options) { return dumps.Run(options).entries; };
  Options options;
  CHECK(selected(options) == 4);
  options.stage = Stage::kDecode;
  CHECK(selected(options) == 2);
  options = {};
  options.scope = Scope::kLayerRange;
  CHECK(selected(options) == 4);  // 2 and 3
  options.layer_end = 2;
  CHECK(selected(options) == 2);
  options.scope = Scope::kLayerIds;
  options.layer_ids = {0, 3, 9};
  CHECK(dumps.Run(options).layers == std::set<int64_t>{0, 3});
  options = {};
  options.min_tokens = 2;
  CHECK(selected(options) == 2);
  options = {};
  options.max_tokens = 1;
  CHECK(selected(options) == 2);
  options.min_tokens = 3;
  CHECK(selected(options) == 0);
}

TEST_CASE("joined entries follow each other by position and may be cut anywhere") {
  Dumps dumps;
  dumps.Add(dumps.Meta(0, 6, 1));
  dumps.Add(dumps.Meta(0, 0, 6));
  dumps.Add(dumps.Meta(0, 7, 1));
  Options options;
  options.entry_mode = EntryMode::kAggregate;
  Result result = dumps.Run(options);
  CHECK(result.groups == 1);
  CHECK(result.k.chunk_meta == 4 + 4 * 3);
  CHECK(result.k.raw == 8 * 8 * 2);
  options.aggregate_by_stage = true;
  CHECK(dumps.Run(options).groups == 2);

  options = OnlineSimOptions();
  options.chunk_tokens = 3;
  result = dumps.Run(options);
  CHECK(result.groups == 1);
  CHECK(result.chunks == 2 * 3);
  CHECK(result.v.chunk_meta == 3 * 8);
  options.entry_mode = EntryMode::kChunked;
  CHECK(dumps.Run(options).chunks == 2 * (2 + 1 + 1));
  options.chunk_tokens = 0;
  CHECK(dumps.Run(options).chunks == 2 * 3);
}

TEST_CASE("a snapshot is one entry per layer, the same as its dump") {
  test::CacheShape shape;
  const Snapshot snapshot = test::MakeCache(shape);
  const std::vector<DumpEntry> entries = ListDumpEntries(snapshot);
  REQUIRE(entries.size() == snapshot.layers.size());
  Options options = OnlineSimOptions();
  options.chunk_tokens = 5;
  ThreadPool one(1), four(4);
  const Result result = Simulate(entries, options, one);
  CHECK(result.entries == std::min<size_t>(2, entries.size()));
  CHECK(result.ratio() > 0.5);
  const auto document = [&](const Result& of) {
    return ToJson(DocumentFields().Object({"x", options, of})).dump();
  };
  CHECK(document(result) == document(Simulate(entries, options, four)));

  Snapshot no_values = test::MakeCache(shape);
  for (LayerKv& layer : no_values.layers) layer.v.reset();
  const Result none = Simulate(ListDumpEntries(no_values), options, one);
  CHECK(none.entries == 0);
  CHECK(none.skip_reasons == Reasons{{"missing_k_or_v_binary", 2}});
}

TEST_CASE("predictor lists are read as the original reads them") {
  using P = Predictor;
  CHECK(ParsePredictorList(" raw, xor_seq,raw ,,", "--k-hi-predictors") ==
        std::vector<P>{P::kRaw, P::kXorSeq});
  CHECK_THROWS_AS(ParsePredictorList("delta", "--x"), Error);
  CHECK_THROWS_AS(ParsePredictorList(" , ", "--x"), Error);
}

}  // namespace kv::mnn::offline::offline_test
