// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/gguf/gguf.h"

#include <catch2/catch.hpp>

#include "formats/registry.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/llama_builder.h"

namespace kv::gguf_test {
namespace {

using test::GgufBuilder;

ModelGeometry Read(Bytes bytes) {
  return ReadGgufGeometry(*FileSource::FromBytes(std::move(bytes), "model.gguf"));
}

Finding FindingOf(Bytes bytes) {
  try {
    Read(std::move(bytes));
  } catch (const Error& error) {
    UNSCOPED_INFO(error.what());
    return error.finding();
  }
  FAIL("read");
  return Finding::kInternal;
}

GgufBuilder Llama(uint32_t layers = 3) {
  GgufBuilder builder;
  builder.Text("general.architecture", "llama")
      .Strings("tokenizer.ggml.tokens", {"a", "", "long token"})
      .U32("llama.block_count", layers)
      .U32("llama.embedding_length", 64)
      .U32("llama.attention.head_count", 8)
      .U32("llama.attention.head_count_kv", 4);
  return builder;
}

TEST_CASE("real model files say heads, sizes and RoPE", "[gguf]") {
  const std::string folder = KVTOOL_TESTDATA "/llamacpp/";
  const ModelGeometry small = ReadModelGeometry(FileSource::Open(folder + "s260k-header.gguf"));
  CHECK(small.architecture == "llama");
  REQUIRE(small.layers.size() == 5);
  CHECK(small.query_heads == 8);
  for (const ModelGeometry::Layer& layer : small.layers) {
    CHECK(layer.kv_heads == 4);
    CHECK(layer.k_dim == 8);
    CHECK(layer.v_dim == 8);
    CHECK(layer.has_kv);
    CHECK_FALSE(layer.sliding);
  }
  CHECK(small.rope_base == 10000.0);
  CHECK(small.rope_dims == 8);
  CHECK(small.rope_style == "gptj");
  const ModelGeometry large = ReadModelGeometry(FileSource::Open(folder + "kjv3m-header.gguf"));
  CHECK(large.layers.size() == 4);
  CHECK(large.layers[3].k_dim == 64);
}

TEST_CASE("head sizes, per-layer heads and layers without a cache", "[gguf]") {
  GgufBuilder builder;
  builder.Text("general.architecture", "x")
      .U32("x.block_count", 4)
      .U32("x.attention.head_count", 8)
      .I32s("x.attention.head_count_kv", {0, 2, 4, 8})
      .U32("x.attention.key_length", 96)
      .U32("x.attention.value_length", 64)
      .U32("x.attention.shared_kv_layers", 1);
  const ModelGeometry geometry = Read(builder.Write(2));
  CHECK(geometry.rope_style.empty());  // not guessed
  CHECK(geometry.rope_base == 0);
  CHECK_FALSE(geometry.layers[0].has_kv);
  CHECK(geometry.layers[1].has_kv);
  CHECK(geometry.layers[2].kv_heads == 4);
  CHECK(geometry.layers[2].k_dim == 96);
  CHECK(geometry.layers[2].v_dim == 64);
  CHECK_FALSE(geometry.layers[3].has_kv);
}

TEST_CASE("hybrids that say how often attention comes", "[gguf]") {
  GgufBuilder builder;
  builder.Text("general.architecture", "qwen3next")
      .U32("qwen3next.block_count", 8)
      .U32("qwen3next.embedding_length", 64)
      .U32("qwen3next.attention.head_count", 8)
      .U32("qwen3next.attention.head_count_kv", 2);
  const auto attention = [](const ModelGeometry& model) {
    std::vector<size_t> which;
    for (size_t i = 0; i < model.layers.size(); ++i) {
      if (model.layers[i].has_kv) which.push_back(i);
    }
    return which;
  };
  CHECK(attention(Read(builder.Write())) == std::vector<size_t>{3, 7});
  builder.U32("qwen3next.full_attention_interval", 2);
  CHECK(attention(Read(builder.Write())) == std::vector<size_t>{1, 3, 5, 7});
}

TEST_CASE("window patterns: an array, a period, the architecture's own", "[gguf]") {
  const auto sliding = [](GgufBuilder builder) {
    std::string text;
    for (const ModelGeometry::Layer& layer : Read(builder.Write()).layers)
      text += layer.sliding ? 's' : layer.k_dim == 32 ? 'F' : 'f';
    return text;
  };
  const auto gemma = [] {
    GgufBuilder builder;
    return builder.Text("general.architecture", "gemma3")
        .U32("gemma3.block_count", 7)
        .U32("gemma3.embedding_length", 128)
        .U32("gemma3.attention.head_count", 4);
  };
  CHECK(sliding(gemma()) == "FFFFFFF");
  CHECK(sliding(gemma().U32("gemma3.attention.sliding_window", 0)) == "FFFFFFF");
  CHECK(sliding(gemma().U32("gemma3.attention.sliding_window", 64)) == "sssssFs");
  CHECK(sliding(gemma()
                    .U32("gemma3.attention.sliding_window", 64)
                    .U32("gemma3.attention.sliding_window_pattern", 2)) == "sFsFsFs");
  CHECK(sliding(gemma()
                    .U32("gemma3.attention.sliding_window", 64)
                    .Bools("gemma3.attention.sliding_window_pattern",
                           {true, true, false, true, false, true, true})) == "ssFsFss");
  GgufBuilder dense_first;
  dense_first.Text("general.architecture", "smallthinker")
      .U32("smallthinker.block_count", 5)
      .U32("smallthinker.attention.head_count", 2)
      .U32("smallthinker.attention.key_length", 32)
      .U32("smallthinker.attention.key_length_swa", 16)
      .U32("smallthinker.attention.sliding_window", 9);
  CHECK(sliding(dense_first) == "FsssF");
  CHECK(Read(dense_first.Write()).layers[1].k_dim == 16);
}

TEST_CASE("malformed model files are refused", "[gguf]") {
  const Bytes good = Llama().Write();
  CHECK(Read(good).layers.size() == 3);
  for (size_t size = 0; size < good.size(); ++size) {
    INFO("cut to " << size);
    CHECK(FindingOf({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)}) ==
          Finding::kTruncated);
  }
  Bytes bytes = good;
  bytes[0] = std::byte{'X'};
  CHECK(FindingOf(bytes) == Finding::kBadMagic);
  CHECK(FindingOf(Llama().Write(0)) == Finding::kBadVersion);
  CHECK(FindingOf(Llama().Write(1)) == Finding::kUnsupportedVersion);
  CHECK(FindingOf(Llama().Write(4)) == Finding::kUnsupportedVersion);
  CHECK_THROWS_WITH(Read(Llama().Write(0x03000000)), Catch::Contains("big-endian"));
  bytes = good;
  StoreLE<uint64_t>(bytes.data() + 16, 1 << 20);
  CHECK(FindingOf(bytes) == Finding::kLimit);  // keys
  StoreLE<uint64_t>(bytes.data() + 16, 7);
  CHECK(FindingOf(bytes) == Finding::kTruncated);
  StoreLE<uint64_t>(bytes.data() + 24, UINT64_MAX);
  CHECK(FindingOf(bytes) == Finding::kBadName);  // UINT64_MAX as the length of a key
  CHECK(FindingOf(Llama().U32("llama.block_count", 3).Write()) == Finding::kDuplicateName);
  CHECK(FindingOf(Llama().Raw("x", 13, {}).Write()) == Finding::kBadField);

  ByteWriter array;
  array.U32(9);
  array.U64(0);
  CHECK(FindingOf(Llama().Raw("x", 9, array.bytes()).Write()) == Finding::kBadField);
  ByteWriter strings;
  strings.U32(8);
  strings.U64(UINT64_MAX / 4);
  CHECK(FindingOf(Llama().Raw("x", 9, strings.bytes()).Write()) == Finding::kTruncated);
  ByteWriter doubles;
  doubles.U32(12);
  doubles.U64(UINT64_MAX / 4);
  CHECK(FindingOf(Llama().Raw("x", 9, doubles.bytes()).Write()) == Finding::kOverflow);
}

TEST_CASE("geometry that cannot be is refused", "[gguf]") {
  GgufBuilder none;
  CHECK(FindingOf(none.Write()) == Finding::kMissingRecord);
  none.Text("general.architecture", "llama");
  CHECK(FindingOf(none.Write()) == Finding::kMissingRecord);
  CHECK(FindingOf(Llama(0).Write()) == Finding::kBadField);
  CHECK(FindingOf(Llama(5000).Write()) == Finding::kLimit);
  CHECK(FindingOf(Llama().U32("llama.attention.key_length", 1 << 30).Write()) == Finding::kLimit);
  CHECK(FindingOf(Llama().Text("llama.attention.key_length", "8").Write()) == Finding::kBadField);
  CHECK(FindingOf(Llama().I32s("llama.attention.key_length", {}).Write()) == Finding::kBadField);
  CHECK(FindingOf(Llama().U32("llama.rope.freq_base", 1).Write()) == Finding::kBadField);
  const auto base = [] {
    GgufBuilder builder;
    return builder.Text("general.architecture", "x")
        .U32("x.block_count", 3)
        .U32("x.attention.head_count", 8);
  };
  CHECK(FindingOf(base().I32s("x.attention.head_count_kv", {1, 2}).Write()) ==
        Finding::kInconsistent);
  CHECK(FindingOf(base().I32s("x.attention.head_count_kv", {1, 2, -1}).Write()) ==
        Finding::kBadField);
  CHECK(FindingOf(base().U32("x.attention.head_count_kv", 0).Write()) == Finding::kUnsupportedKind);
}

TEST_CASE("a model divides the rows of its states", "[gguf]") {
  test::LlamaState state;
  OpenOptions options;
  const auto open = [&] { return OpenSnapshot(test::MakeSource(state.Write()), options); };
  SECTION("layer numbers and heads") {
    GgufBuilder builder;
    builder.Text("general.architecture", "llama")
        .U32("llama.block_count", 3)
        .U32("llama.attention.head_count", 4)
        .I32s("llama.attention.head_count_kv", {2, 0, 4})
        .I32s("llama.attention.unused", {1})
        .U32("llama.attention.key_length", 4)
        .U32("llama.attention.value_length", 2);
    options.geometry = Read(builder.Write());
    state.caches[0].k_row = 16;
    state.caches[0].v_row = 8;
    // Without this number of heads, rows of the third layer would need 16 channels.
    CHECK_THROWS_AS(open(), Error);
    options.geometry->layers[2].kv_heads = 2;
    const Snapshot snapshot = open();
    CHECK(snapshot.heads_known());
    CHECK(snapshot.model == "llama");
    CHECK(snapshot.layers[1].label == "blk.2");
    CHECK(snapshot.layers[1].k.heads == 2);
    CHECK(snapshot.layers[1].k.head_dim == 4);
    CHECK(snapshot.layers[1].v->head_dim == 2);
    state.is_session = true;
    state.version = 10;
    state.architecture.assign("qwen2");
    CHECK_THROWS_WITH(open(), Catch::Contains("architecture qwen2"));
  }
  SECTION("latent attention keeps one vector per token") {
    GgufBuilder builder;
    builder.Text("general.architecture", "deepseek2")
        .U32("deepseek2.block_count", 2)
        .U32("deepseek2.attention.head_count", 4)
        .U32("deepseek2.attention.key_length", 2)
        .U32("deepseek2.attention.value_length", 1)
        .U32("deepseek2.attention.kv_lora_rank", 5)
        .U32("deepseek2.rope.dimension_count", 3);
    options.geometry = Read(builder.Write());
    CHECK(options.geometry->layers[0].latent_dim == 8);
    state.caches[0].has_v = false;
    const Snapshot latent = open();
    CHECK(latent.layers[0].k.heads == 1);
    CHECK(latent.layers[0].k.head_dim == 8);
    CHECK(latent.heads_known());
    // Versions of llama.cpp without latent caches stored K and V of each head.
    state.caches[0].has_v = true;
    state.caches[0].k_row = 4 * 4;
    state.caches[0].v_row = 4 * 2;
    options.geometry->layers[0].latent_dim = options.geometry->layers[1].latent_dim = 9;
    CHECK(open().layers[0].k.heads == 4);
  }
  SECTION("layers go to their caches") {
    GgufBuilder builder;
    builder.Text("general.architecture", "gemma2")
        .U32("gemma2.block_count", 3)
        .U32("gemma2.attention.head_count", 1)
        .U32("gemma2.attention.key_length", 8)
        .U32("gemma2.attention.key_length_swa", 4)
        .U32("gemma2.attention.sliding_window", 2);
    options.geometry = Read(builder.Write());
    state.caches[0].layers = 1;
    state.caches.push_back(state.caches[0]);
    state.caches[1].layers = 2;
    state.caches[1].k_row = state.caches[1].v_row = 8;
    options.geometry->layers[0].v_dim = options.geometry->layers[2].v_dim = 4;
    const Snapshot snapshot = open();
    CHECK(snapshot.layers[0].label == "blk.1");
    CHECK(snapshot.layers[1].label == "blk.0");
    CHECK(snapshot.layers[2].label == "blk.2");
    CHECK(snapshot.layers[2].k.head_dim == 4);
    options.geometry->layers[0].sliding = false;
    CHECK_THROWS_WITH(open(), Catch::Contains("sliding window"));
  }
}

}  // namespace
}  // namespace kv::gguf_test
