// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Compares what config.json and GGUF say about RoPE with transformers' own frequencies.
#include "formats/model_config/model_config.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/registry.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_dir.h"

namespace kv::model_config_test {
namespace {

using nlohmann::json;
using test::GgufBuilder;
using test::TempDir;

ModelRope FindRope(const json& config) {
  const TempDir temp;
  return ReadModelRope(*FileSource::Open(temp.WriteFile("config.json", AsBytes(config.dump()))))
      .value();
}

Finding Refusal(const json& config) {
  try {
    FindRope(config);
  } catch (const Error& error) {
    CHECK((error.finding() != Finding::kUnsupportedKind || !error.hint().empty()));
    return error.finding();
  }
  return Finding{0};
}

json Plain() {
  return {{"num_hidden_layers", 6}, {"num_attention_heads", 8}, {"num_key_value_heads", 2},
          {"hidden_size", 512},     {"rope_theta", 1e6},        {"max_position_embeddings", 4096},
          {"model_type", "qwen3"}};
}

TEST_CASE("frequencies and factors are those of transformers") {
  std::ifstream file(KVTOOL_TESTDATA "/engines/rope/transformers.json");
  const json golden = json::parse(file);
  REQUIRE(golden.at("cases").size() == 10);
  for (const json& made : golden.at("cases")) {
    INFO(made.at("name").get<std::string>());
    const ModelRope model = FindRope(made.at("config"));
    const std::vector<double> frequencies =
        InverseFrequencies(model.rope, 64, made.at("length").get<uint64_t>());
    const auto want = made.at("inv_freq").get<std::vector<double>>();
    REQUIRE(frequencies.size() == want.size());
    for (size_t i = 0; i < want.size(); ++i) CHECK(frequencies[i] == Approx(want[i]).epsilon(3e-6));
    CHECK(AttentionFactor(model.rope.scaling) ==
          Approx(made.at("attention").get<double>()).epsilon(1e-9));
  }
}

TEST_CASE("layers with a window may have a base of their own") {
  json gemma = Plain();
  gemma["model_type"] = "gemma3_text";
  gemma["rope_local_base_freq"] = 10000;
  gemma["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8}};
  const auto check = [](const ModelRope& model) {
    REQUIRE(model.layers.size() == 6);
    for (uint32_t i = 0; i < 6; ++i) {
      CHECK(model.Of(i).theta == (i == 5 ? 1e6 : 1e4));
      CHECK((model.Of(i).scaling.kind == RopeScaling::Kind::kLinear) == (i == 5));
    }
  };
  check(FindRope(gemma));
  check(FindRope({{"text_config", gemma}}));
  json newer = Plain();
  newer["layer_types"] = {"sliding_attention", "sliding_attention", "sliding_attention",
                          "sliding_attention", "sliding_attention", "full_attention"};
  newer["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8}, {"rope_theta", 1e6}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  check(FindRope(newer));
  GgufBuilder gguf;
  gguf.Text("general.architecture", "gemma3")
      .U32("gemma3.block_count", 6)
      .U32("gemma3.embedding_length", 512)
      .U32("gemma3.attention.head_count", 8)
      .U32("gemma3.attention.head_count_kv", 2)
      .U32("gemma3.attention.sliding_window", 512)
      .F32("gemma3.rope.freq_base", 1e6F)
      .Text("gemma3.rope.scaling.type", "linear")
      .F32("gemma3.rope.scaling.factor", 8);
  const TempDir temp;
  check(ReadModelRope(*FileSource::Open(temp.WriteFile("m.gguf", gguf.Write()))).value());
}

// Makes a model file with one tensor of four f32 values.
Bytes WithTensor(GgufBuilder& gguf, std::string_view name) {
  Bytes bytes = gguf.Write();
  StoreLE<uint64_t>(&bytes[8], 1);  // tensors
  ByteWriter info;
  info.U64(name.size());
  info.Append(name);
  info.U32(1);
  info.U64(4);
  info.U32(0);
  info.U64(32);
  const Bytes told = info.Release();
  bytes.insert(bytes.end(), told.begin(), told.end());
  bytes.resize((bytes.size() + 31) / 32 * 32 + 32);
  for (const float factor : {1.0F, 2.0F, 4.0F, 8.0F}) {
    bytes.resize(bytes.size() + 4);
    StoreLE(&bytes[bytes.size() - 4], factor);
  }
  return bytes;
}

GgufBuilder Small() {
  GgufBuilder gguf;
  gguf.Text("general.architecture", "llama")
      .U32("llama.block_count", 2)
      .U32("llama.embedding_length", 64)
      .U32("llama.context_length", 2048)
      .U32("llama.attention.head_count", 8);
  return gguf;
}

TEST_CASE("a GGUF's tensor of factors divides the frequencies") {
  GgufBuilder gguf = Small();
  Bytes bytes = WithTensor(gguf, "rope_freqs.weight");
  const TempDir temp;
  const auto model = ReadModelRope(*FileSource::Open(temp.WriteFile("m.gguf", bytes)));
  REQUIRE(model);
  CHECK(InverseFrequencies(model->rope, 8).at(3) == Approx(1e-3 / 8));
  CHECK(InverseFrequencies(model->rope, 8).at(0) == 1);
  bytes.resize(bytes.size() - 1);
  CHECK_THROWS_AS(ReadModelRope(*FileSource::Open(temp.WriteFile("m.gguf", bytes))), Error);
  // LongRoPE's frequencies depend on the size of the engine's context, which is unknown here.
  GgufBuilder longer = Small();
  bytes = WithTensor(longer, "rope_factors_long.weight");
  CHECK_THROWS_WITH(ReadModelRope(*FileSource::Open(temp.WriteFile("m.gguf", bytes))),
                    Catch::Contains("LongRoPE") && Catch::Contains("2048"));
}

TEST_CASE("a GGUF's factor on keys and original context are the engine's") {
  const TempDir temp;
  GgufBuilder gguf = Small();
  gguf.F32("llama.rope.scaling.attn_factor", 1.25F);
  Rope rope = ReadModelRope(*FileSource::Open(temp.WriteFile("m.gguf", gguf.Write()))).value().rope;
  CHECK(AttentionFactor(rope.scaling) == 1.25);
  gguf.Text("llama.rope.scaling.type", "yarn").F32("llama.rope.scaling.factor", 4);
  rope = ReadModelRope(*FileSource::Open(temp.WriteFile("m.gguf", gguf.Write()))).value().rope;
  CHECK(rope.scaling.original == 2048);
  CHECK(AttentionFactor(rope.scaling) == Approx(1.25 * (0.1 * std::log(4.0) + 1)));
  gguf.U32("llama.rope.scaling.original_context_length", 512);
  rope = ReadModelRope(*FileSource::Open(temp.WriteFile("m.gguf", gguf.Write()))).value().rope;
  CHECK(rope.scaling.original == 512);
}

// Returns one letter per layer, which tells if it is rotated.
std::string Unrotated(const ModelRope& model) {
  std::string text;
  for (uint32_t i = 0; i < 6; ++i) text += Name(model.Of(i).scaling) == "no rotation" ? '-' : 'r';
  return text;
}

TEST_CASE("layers without RoPE are not turned") {
  const auto of = [](const char* model, json more) {
    json config = Plain();
    config.update({{"model_type", model}});
    config.update(more);
    return Unrotated(FindRope(config));
  };
  CHECK(of("qwen3", json::object()) == "rrrrrr");
  CHECK(of("smollm3", json::object()) == "rrr-rr");
  CHECK(of("smollm3", {{"no_rope_layers", {1, 0, 1, 0, 1, 1}}}) == "r-r-rr");
  CHECK(of("llama4_text", {{"no_rope_layers", json::array()}, {"no_rope_layer_interval", 2}}) ==
        "r-r-r-");
  CHECK(of("cohere2", {{"sliding_window_pattern", 3}}) == "rr-rr-");
  CHECK(of("exaone4", {{"sliding_window", nullptr}}) == "rrrrrr");
  CHECK(of("exaone4", {{"sliding_window", 512}}) == "rrr-rr");
  CHECK(of("granitemoehybrid", {{"position_embedding_type", "nope"}}) == "------");
  CHECK(of("granitemoehybrid", {{"position_embedding_type", "rope"}}) == "rrrrrr");
  CHECK(of("jamba", json::object()) == "------");
  CHECK(of("falcon", {{"alibi", true}}) == "------");
  CHECK(of("falcon", {{"alibi", false}}) == "rrrrrr");

  const auto gguf = [](const std::string& name, bool finetuned) {
    GgufBuilder file;
    file.Text("general.architecture", name)
        .U32(name + ".block_count", 6)
        .U32(name + ".embedding_length", 512)
        .U32(name + ".attention.head_count", 8)
        .U32(name + ".attention.sliding_window", 512);
    const std::byte flag{finetuned};
    file.Raw(name + ".rope.scaling.finetuned", 7, {&flag, 1});
    const TempDir temp;
    return Unrotated(
        ReadModelRope(*FileSource::Open(temp.WriteFile("m.gguf", file.Write()))).value());
  };
  CHECK(gguf("smollm3", true) == "rrr-rr");
  CHECK(gguf("cohere2", true) == "rrr-rr");
  CHECK(gguf("granitehybrid", true) == "rrrrrr");
  CHECK(gguf("granitehybrid", false) == "------");
}

TEST_CASE("fields that transformers prefers are preferred") {
  json config = Plain();
  config["rope_scaling"] = {
      {"rope_type", "dynamic"}, {"factor", 2}, {"original_max_position_embeddings", 1024}};
  CHECK(FindRope(config).rope.scaling.original == 4096);
  config["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 1024}};
  CHECK(FindRope(config).rope.scaling.factor == 4);
  json factors = json::array();
  for (int i = 0; i < 32; ++i) factors.push_back(1 + i);
  config["rope_scaling"] = {{"rope_type", "longrope"},
                            {"factor", 8},
                            {"original_max_position_embeddings", 1024},
                            {"short_factor", factors},
                            {"long_factor", factors}};
  CHECK(FindRope(config).rope.scaling.factor == 8);
  config["rope_scaling"].erase("factor");
  CHECK(FindRope(config).rope.scaling.factor == 4);
  config["original_max_position_embeddings"] = 2048;  // Phi-3's, takes precedence
  CHECK(FindRope(config).rope.scaling.original == 2048);
  CHECK(FindRope(config).rope.scaling.factor == 2);
  json olmo = Plain();
  olmo.update(
      {{"model_type", "olmo3"},
       {"rope_scaling",
        {{"rope_type", "yarn"}, {"factor", 8}, {"original_max_position_embeddings", 512}}}});
  const ModelRope model = FindRope(olmo);  // the scaling does not apply to windowed layers
  CHECK(model.Of(0).scaling.kind == RopeScaling::Kind::kNone);
  CHECK(model.Of(0).theta == 1e6);
  CHECK(model.Of(3).scaling.kind == RopeScaling::Kind::kYarn);
}

TEST_CASE("what a config cannot say is refused, M-RoPE with a way out") {
  json config = Plain();
  config["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {16, 24, 24}}};
  CHECK(Refusal(config) == Finding::kUnsupportedKind);
  config["rope_scaling"] = {{"rope_type", "default"}, {"mrope_section", {16, 24, 24}}};
  CHECK(Refusal(config) == Finding::kUnsupportedKind);
  config["rope_scaling"] = {{"rope_type", "novel"}};
  CHECK(Refusal(config) == Finding::kUnsupportedKind);
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", -1}};
  CHECK(Refusal(config) == Finding::kBadField);
  config["rope_scaling"] = {{"rope_type", "longrope"}};
  CHECK(Refusal(config) == Finding::kMissingRecord);
  CHECK(Refusal({{"rope_theta", 1e4}}) == Finding::kMissingRecord);
  json latent = Plain();
  latent["kv_lora_rank"] = 512;
  CHECK(Refusal(latent) == Finding::kUnsupportedKind);
  const TempDir temp;
  CHECK_THROWS_AS(ReadModelRope(*FileSource::Open(temp.WriteFile("c", AsBytes("{\"a\":")))), Error);
}

TEST_CASE("heads and layers come from config.json too") {
  const TempDir temp;
  json config = Plain();
  config["layer_types"] = {"linear_attention", "full_attention",   "linear_attention",
                           "full_attention",   "linear_attention", "full_attention"};
  const ModelGeometry geometry =
      ReadModelGeometry(FileSource::Open(temp.WriteFile("config.json", AsBytes(config.dump()))));
  REQUIRE(geometry.layers.size() == 6);
  CHECK(geometry.layers[0].kv_heads == 2);
  CHECK(geometry.layers[0].k_dim == 64);
  CHECK_FALSE(geometry.layers[0].has_kv);
  CHECK(geometry.layers[1].has_kv);
  CHECK(geometry.query_heads == 8);
}

TEST_CASE("lists of frequencies are numbers and nothing else") {
  const TempDir temp;
  const auto read = [&](std::string_view text) {
    return ReadFrequencies(temp.WriteFile("f", AsBytes(text)).string());
  };
  CHECK(read("[1, 0.5,\n 1e-3, 0]\n") == std::vector<double>{1, 0.5, 1e-3, 0});
  for (const char* text : {"", "1 two", "-1", "5", "nan", "inf"})
    CHECK_THROWS_AS(read(text), Error);
}

}  // namespace
}  // namespace kv::model_config_test
