// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/tensors/tensor_snapshot.h"

#include <catch2/catch.hpp>
#include <random>

#include "formats/npy/npy.h"
#include "formats/safetensors/safetensors.h"
#include "formats/tensors/tensor_names.h"
#include "lib/core/snapshot/layout.h"
#include "tests/support/temp_dir.h"

namespace kv::tensor_snapshot_test {
namespace {

// Tensors of one shape with u16 elements that count up: an element's value is its index in C order.
class Arrays {
 public:
  Arrays& Add(std::string name, std::vector<uint64_t> shape, DType dtype = DType::kU16,
              std::string file = {}) {
    uint64_t count = 1;
    for (const uint64_t extent : shape) count *= extent;
    Bytes bytes(count * Info(dtype).block_bytes);
    for (uint64_t i = 0; i < count && dtype == DType::kU16; ++i)
      StoreLE(&bytes[2 * i], static_cast<uint16_t>(i + 1000 * file_.tensors.size()));
    for (uint64_t i = 0; i < count && dtype == DType::kI64; ++i)
      StoreLE(&bytes[8 * i], static_cast<int64_t>(3 * i));
    file_.spools.push_back(FileSource::FromBytes(std::move(bytes), name));
    file_.tensors.push_back(
        {std::move(name),
         ContiguousView(dtype, std::move(shape), file_.spools.back()->bytes().data()),
         std::move(file)});
    return *this;
  }
  Arrays& Say(std::string_view key, std::string value) {
    file_.metadata[std::string(key)] = std::move(value);
    return *this;
  }
  // Makes the named vector refer to the single integer `value`.
  void Set(std::string_view name, const int64_t& value) {
    for (NamedTensor& tensor : file_.tensors) {
      if (tensor.name == name) tensor.view.data = reinterpret_cast<const std::byte*>(&value);
    }
  }
  Snapshot Open(const OpenOptions& options = {}) const { return BuildSnapshot(file_, options); }
  Finding Refusal(const OpenOptions& options = {}) const {
    try {
      BuildSnapshot(file_, options);
    } catch (const Error& error) {
      return error.finding();
    }
    return Finding{0};
  }

 private:
  TensorFile file_;
};

OpenOptions Layout(std::string layout) {
  OpenOptions options;
  options.layout = std::move(layout);
  return options;
}

uint16_t At(const KvTensor& tensor, uint64_t token, uint32_t head, uint32_t dim) {
  const Bytes row = Gather(tensor, token, 1, Order::kTokenHeadDim);
  return LoadLE<uint16_t>(&row[2 * (head * tensor.head_dim + dim)]);
}

TEST_CASE("name patterns match by their placeholders, whatever the case and separator") {
  const auto layer = [](std::string_view pattern, std::string_view name) {
    const auto match = MatchName(pattern, name);
    return match ? static_cast<int>(match->layer) * 10 + static_cast<int>(match->part) : -1;
  };
  CHECK(layer("{x}_cache.{i}", "key_cache.12") == 120);
  CHECK(layer("{x}_cache.{i}", "Value_Cache/3") == 31);
  CHECK(layer("{x}_{i}", "keys_5") == 50);
  CHECK(layer("{x}{i}", "v7") == 71);
  CHECK(layer("layer{i}.{x}", "layer3/key") == 30);
  CHECK(layer("{x}_{i}", "key_5_") == -1);
  CHECK(layer("{i}.{01}", "7/1") == 71);
  CHECK(layer("*-l{i}-{x}", "run-7-L2-K") == 20);
  CHECK(layer("foo.{i}", "foo.4") == 42);
  CHECK(layer("{x}.{i}", "k.1234567") == -1);
  CHECK(layer("{x}.{i}", "k.") == -1);
}

TEST_CASE("every built-in pattern finds K and V") {
  for (const auto& [k, v] : std::vector<std::pair<std::string, std::string>>{
           {"key_cache.2", "value_cache.2"},
           {"layers.2.keys", "layers.2.values"},
           {"layers.2.key", "layers.2.value"},
           {"layer.2.k", "layer.2.v"},
           {"layer_2_key", "layer_2_value"},
           {"k_2", "v_2"},
           {"K.2", "V.2"},
           {"past_key_values.2.key", "past_key_values.2.value"},
           {"past_key_values.2.0", "past_key_values.2.1"},
           {"present.2.key", "present.2.value"},
           {"model.layers.2.self_attn.k", "model.layers.2.self_attn.v"},
           {"2/0", "2/1"},
           {"2.0", "2.1"},
           {"dump-L2-K", "dump-L2-V"}}) {
    INFO(k);
    const Snapshot snapshot = Arrays().Add(k, {1, 2, 3, 4}).Add(v, {1, 2, 3, 4}).Open();
    REQUIRE(snapshot.layers.size() == 1);
    CHECK(snapshot.layers[0].index == 2);
    CHECK(snapshot.layers[0].k.tokens() == 3);
    CHECK(At(snapshot.layers[0].k, 2, 1, 3) == 4 * (3 * 1 + 2) + 3);
    CHECK(At(*snapshot.layers[0].v, 0, 0, 0) == 1000);
  }
}

TEST_CASE("names that say two things are refused") {
  CHECK(Arrays()
            .Add("k_0", {2, 3, 4})
            .Add("v_0", {2, 3, 4})
            .Add("key_cache.0", {2, 3, 4})
            .Refusal() == Finding::kAmbiguousFormat);
  CHECK(Arrays().Add("k_0", {2, 3, 4}).Add("k_00", {2, 3, 4}).Refusal() == Finding::kDuplicateName);
  CHECK(Arrays().Add("k_0", {2, 3, 4}).Add("key_0", {2, 3, 4}).Refusal() ==
        Finding::kDuplicateName);
  CHECK(Arrays().Add("k_0", {2, 3, 4}).Add("v_1", {2, 3, 4}).Refusal() == Finding::kMissingRecord);
  CHECK(Arrays().Add("k_0", {2, 3, 4}).Add("v_0", {2, 4, 4}).Refusal(Layout("htd")) ==
        Finding::kInconsistent);
  CHECK(Arrays().Add("w1", {2, 3}).Add("w2", {2, 3}).Refusal() == Finding::kUnsupportedKind);
  CHECK(Arrays().Refusal() == Finding::kUnsupportedKind);
}

TEST_CASE("patterns given choose among names") {
  Arrays arrays;
  arrays.Add("k_0", {2, 3, 4})
      .Add("v_0", {2, 3, 4})
      .Add("old.0.K", {2, 3, 5})
      .Add("old.0.V", {2, 3, 5});
  OpenOptions options = Layout("htd");
  options.k_pattern = "old.{i}.K";
  options.v_pattern = "old.{i}.V";
  const Snapshot snapshot = arrays.Open(options);
  CHECK(snapshot.layers.at(0).k.head_dim == 5);
  CHECK(snapshot.layers.at(0).v->head_dim == 5);
  options.v_pattern.clear();
  CHECK_FALSE(arrays.Open(options).layers.at(0).v.has_value());
  options.k_pattern = "none";
  CHECK(arrays.Refusal(options) == Finding::kUnsupportedKind);
  options.k_pattern = "a*b*";
  CHECK(arrays.Refusal(options) == Finding::kUsage);
  options.k_pattern.clear();
  options.v_pattern = "v_{i}";
  CHECK(arrays.Refusal(options) == Finding::kUsage);
}

TEST_CASE(
    "rank 3 is read by --layout, by what the file says, by the heads told; else one is asked") {
  const auto heads = [](const Snapshot& snapshot) { return snapshot.layers.at(0).k.heads; };
  Arrays plain;
  plain.Add("k_0", {2, 3, 4}).Add("v_0", {2, 3, 4});
  // Integer values do not show which axis is which.
  CHECK(plain.Refusal() == Finding::kAmbiguousFormat);
  OpenOptions told_heads;
  told_heads.geometry.emplace().uniform = {.kv_heads = 3};
  CHECK(heads(plain.Open(told_heads)) == 3);
  told_heads.geometry->uniform.kv_heads = 2;
  CHECK(heads(plain.Open(told_heads)) == 2);
  CHECK(plain.Open(told_heads).notes.empty());
  OpenOptions guess;
  guess.may_guess_axes = true;
  CHECK(plain.Open(guess).storage.at("axes_guessed") == "yes");
  CHECK(plain.Open(guess).notes.size() == 1);
  CHECK(Arrays().Add("k.0", {2, 3, 4}).Say("kvtool.trace", "1").Open().layers.at(0).k.heads ==
        3);  // only traces use these names
  CHECK(heads(plain.Open(Layout("thd"))) == 3);
  CHECK(plain.Open(Layout("thd")).notes.empty());
  CHECK(heads(plain.Open(Layout("[S, H, D]"))) == 3);

  Arrays told = plain;
  told.Say("kvtool.layout", "token,head,dim");
  CHECK(heads(told.Open()) == 3);
  CHECK(told.Open().notes.empty());
  told.Say("kvtool.layout", "upside,down");
  CHECK(told.Refusal() == Finding::kUnsupportedLayout);

  Arrays counted = plain;
  counted.Add("positions", {2}, DType::kI64);
  const Snapshot snapshot = counted.Open();
  CHECK(heads(snapshot) == 3);
  REQUIRE(snapshot.cell_groups.size() == 1);
  CHECK(snapshot.cell_groups[0].cells.at(1).position == 3);
}

TEST_CASE("axes are named by letters") {
  CHECK(Axes::Parse("bhsd").text() == "[batch, head, token, dim]");
  CHECK(Axes::Parse("TH(2D)").text() == "[token, head, K/V x dim]");
  CHECK(Axes::Parse("t(hd)").text() == "[token, channel]");
  for (const char* bad :
       {"", "hd", "th", "thdd", "xtd", "()td", "(lt)d", "t(hd", "thd)", "thc", "tdc", "t((hd))"}) {
    INFO(bad);
    CHECK_THROWS_AS(Axes::Parse(bad), Error);
  }
}

OpenOptions Heads(uint32_t heads, uint32_t dim) {
  OpenOptions options;
  options.geometry.emplace().uniform = {.kv_heads = heads, .k_dim = dim};
  return options;
}

TEST_CASE("a joined axis is divided by what is known of the heads") {
  // The shape is that of a TensorRT-LLM block: [layer, K/V, head x token x dim].
  const Arrays block = std::move(Arrays().Add("a", {3, 2, 4 * 5 * 6}));
  OpenOptions options = Heads(4, 6);
  options.layout = "l2(htd)";
  const Snapshot s = block.Open(options);
  REQUIRE(s.layers.size() == 3);
  CHECK(s.layers[0].k.tokens() == 5);
  CHECK(At(*s.layers[2].v, 3, 2, 1) == (2 * 2 + 1) * 120 + 2 * 30 + 3 * 6 + 1);
  CHECK(block.Refusal(Layout("l2(htd)")) == Finding::kGeometryMissing);
  options = Heads(7, 6);
  options.layout = "l2(htd)";
  CHECK(block.Refusal(options) == Finding::kInconsistent);
}

TEST_CASE("a kv_cache of rank 3 is K and V side by side or one of them, by the head size") {
  const Arrays pool = std::move(Arrays().Add("kv_cache", {4, 5, 6}));
  CHECK(pool.Refusal() == Finding::kAmbiguousFormat);
  CHECK(At(*pool.Open(Heads(0, 3)).layers[0].v, 1, 1, 2) == 30 + 6 + 3 + 2);
  CHECK_FALSE(pool.Open(Heads(0, 6)).layers[0].v);
}

TEST_CASE("a kv_cache of rank 4 whose rows are K and V of one head is a pool, not tokens") {
  const Arrays pool = std::move(Arrays().Add("kv_cache", {4, 2, 5, 6}));
  CHECK(pool.Refusal(Heads(0, 3)) == Finding::kUnsupportedLayout);
  CHECK(pool.Open(Heads(0, 6)).layers[0].k.heads == 5);
}

TEST_CASE("an 8-bit kv_cache holds what --as says") {
  OpenOptions options;
  options.as_dtype = "f8_e4m3";
  const Snapshot s = Arrays().Add("kv_cache", {2, 3, 8}, DType::kU8).Open(options);
  CHECK(s.layers[0].v->dtype == DType::kF8E4M3);
  options.as_dtype = "bf16";
  CHECK(Arrays().Add("kv_cache", {2, 3, 8}, DType::kU8).Open(options).layers[0].k.dtype ==
        DType::kU8);
}

TEST_CASE("a cache is found below one name of the root, and never below two") {
  const Arrays one = std::move(Arrays()
                                   .Add("past_key_values/layers/0/keys", {1, 2, 3, 4})
                                   .Add("past_key_values/layers/0/values", {1, 2, 3, 4})
                                   .Add("attentions/0/0", {1, 4, 3, 3})
                                   .Add("attentions/0/1", {1, 4, 3, 3})
                                   .Add("logits", {1, 3, 9}));
  CHECK(one.Open().layers.at(0).v->tokens() == 3);
  CHECK(one.Open().key_rotation == KeyRotation::kRotated);
  const Arrays two = std::move(Arrays()
                                   .Add("a/key_cache/0", {1, 2, 3, 4})
                                   .Add("a/value_cache/0", {1, 2, 3, 4})
                                   .Add("b/key_cache/0", {1, 2, 3, 4})
                                   .Add("b/value_cache/0", {1, 2, 3, 4}));
  CHECK(two.Refusal() == Finding::kAmbiguousFormat);
  OpenOptions chosen;
  chosen.k_pattern = "b.key_cache.{i}";
  chosen.v_pattern = "b.value_cache.{i}";
  CHECK(At(two.Open(chosen).layers.at(0).k, 0, 0, 0) == 2000);
}

TEST_CASE("attention probabilities are named for what they are") {
  CHECK(Arrays().Add("0", {1, 4, 6, 6}).Add("1", {1, 4, 6, 6}).Refusal() ==
        Finding::kUnsupportedKind);
  // By their names, two layers of three steps look like pairs of K and V.
  Arrays steps;
  for (uint64_t step = 0; step < 3; ++step) {
    for (const char* layer : {"0", "1"}) {
      const uint64_t queries = step == 0 ? 6 : 1;
      steps.Add(std::to_string(step) + "/" + layer, {1, 4, queries, 6 + step});
    }
  }
  CHECK(steps.Refusal() == Finding::kUnsupportedKind);
  Arrays pairs;
  for (const char* name : {"0/0", "0/1", "1/0", "1/1"}) pairs.Add(name, {1, 4, 6, 6});
  CHECK(pairs.Open().layers.size() == 2);
}

TEST_CASE("one array may hold layers, K and V, and both side by side") {
  const auto k = [](const Snapshot& s, size_t layer) { return At(s.layers.at(layer).k, 1, 1, 2); };
  const auto v = [](const Snapshot& s, size_t layer) { return At(*s.layers.at(layer).v, 1, 1, 2); };
  {
    const Snapshot s = Arrays().Add("a", {3, 2, 4, 5, 6}).Open(Layout("L2THD"));
    REQUIRE(s.layers.size() == 3);
    CHECK(k(s, 2) == ((2 * 2 + 0) * 4 + 1) * 30 + 6 + 2);
    CHECK(v(s, 2) == ((2 * 2 + 1) * 4 + 1) * 30 + 6 + 2);
  }
  {
    const Snapshot s = Arrays().Add("a", {2, 3, 4, 5, 6}).Open();
    CHECK(s.layers.size() == 3);
    CHECK(s.layers[0].k.heads == 4);
    CHECK(s.notes.size() == 1);
  }
  {
    const Snapshot s = Arrays().Add("kv_cache", {4, 5, 6}).Open(Layout("TH(2D)"));
    CHECK(k(s, 0) == 30 + 6 + 2);
    CHECK(v(s, 0) == 30 + 6 + 3 + 2);
    CHECK(s.layers[0].v->head_dim == 3);
  }
  {
    const Snapshot s = Arrays().Add("kv_cache", {4, 2, 5, 6}).Open();
    CHECK(v(s, 0) == 60 + 30 + 6 + 2);
  }
  CHECK(Arrays().Add("a", {2, 2, 4, 5, 6}).Refusal() == Finding::kAmbiguousFormat);
  CHECK(Arrays().Add("a", {3, 2, 60}).Refusal() == Finding::kAmbiguousFormat);
  CHECK(Arrays().Add("kv_cache", {2, 2, 5, 6}).Refusal() == Finding::kAmbiguousFormat);
  CHECK(Arrays().Add("a", {3}).Refusal() == Finding::kUnsupportedKind);
  CHECK(Arrays().Add("kv_cache", {4, 5, 6}).Refusal() == Finding::kAmbiguousFormat);
  CHECK(Arrays().Add("a", {uint64_t{1} << 40, 2, 0, 5, 6}).Refusal() == Finding::kLimit);
  CHECK(Arrays().Add("a", {3, 5, 6}).Refusal(Layout("2TC")) == Finding::kInconsistent);
  CHECK(Arrays().Add("a", {5, 6, 3}).Refusal(Layout("TH(2D)")) == Finding::kInconsistent);
  CHECK(Arrays().Add("a", {5, 6}).Refusal(Layout("THD")) == Finding::kInconsistent);
  CHECK(Arrays().Add("k_0", {2, 3, 4}).Add("k_1", {2, 3, 4}).Refusal(Layout("LTC")) ==
        Finding::kUsage);
  CHECK(Arrays().Add("k_0", {2, 3, 4}).Add("v_0", {2, 3, 4}).Refusal(Layout("2TC")) ==
        Finding::kUsage);
}

TEST_CASE("a folder with one kv_cache per layer is vLLM's, its heads from --kv-heads") {
  Arrays arrays;
  for (const char* file : {"model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn"})
    arrays.Add("kv_cache", {2, 3, 8}, DType::kU16, file);
  Snapshot snapshot = arrays.Open();
  REQUIRE(snapshot.layers.size() == 2);
  CHECK(snapshot.engine == "vLLM");
  CHECK(snapshot.layers[1].label == "model.layers.1.self_attn.attn");
  CHECK_FALSE(snapshot.heads_known());
  ModelGeometry geometry;
  geometry.uniform.kv_heads = 2;
  ApplyGeometry(geometry, snapshot);
  CHECK(At(snapshot.layers[1].k, 2, 1, 3) == 1000 + 16 + 7);
  CHECK(At(*snapshot.layers[1].v, 0, 0, 0) == 1000 + 24);
}

TEST_CASE("one row of a batch is read when it is named") {
  Arrays arrays;
  arrays.Add("key_cache.0", {3, 2, 4, 5}).Add("value_cache.0", {3, 2, 4, 5});
  CHECK(arrays.Refusal() == Finding::kUsage);
  OpenOptions options;
  options.batch = 2;
  CHECK(At(arrays.Open(options).layers[0].k, 0, 0, 0) == 80);
  options.batch = 3;
  CHECK(arrays.Refusal(options) == Finding::kUsage);
}

TEST_CASE("a batch is read as a whole where any is taken: its rows one after another") {
  Arrays arrays;
  arrays.Add("key_cache.0", {3, 2, 4, 5}).Add("value_cache.0", {3, 2, 4, 5});
  OpenOptions options;
  options.any_batch = true;
  const Snapshot all = arrays.Open(options);
  CHECK(all.storage.at("batch_rows") == "3");
  REQUIRE(all.layers.at(0).k.tokens() == 12);
  for (uint64_t row = 0; row < 3; ++row) {
    CHECK(At(all.layers[0].k, 4 * row + 1, 1, 2) == 40 * row + 20 + 5 + 2);
    CHECK(At(*all.layers[0].v, 4 * row, 0, 0) == 1000 + 40 * row);
  }
  options.batch = 2;
  CHECK(arrays.Open(options).storage.count("batch_rows") == 0);
  CHECK(arrays.Open(options).layers.at(0).k.tokens() == 4);
  Arrays uneven;
  uneven.Add("key_cache.0", {3, 2, 4, 5}).Add("value_cache.0", {2, 2, 4, 5});
  options.batch.reset();
  CHECK(uneven.Refusal(options) == Finding::kInconsistent);
  CHECK(Arrays().Add("key_cache.0", {uint64_t{1} << 40, 2, 0, 5}).Refusal(options) ==
        Finding::kLimit);
}

TEST_CASE("token ids beyond 32 bits are refused") {
  const int64_t token = int64_t{1} << 40;
  Arrays arrays;
  arrays.Add("k_0", {1, 2, 3, 4}).Add("tokens", {1}, DType::kI64);
  CHECK(arrays.Open().tokens == std::vector<int32_t>{0});
  arrays.Set("tokens", token);
  CHECK(arrays.Refusal() == Finding::kBadField);
}

TEST_CASE("integers become the floats that --as says") {
  OpenOptions options = Layout("thd");
  options.as_dtype = "bf16";
  const Snapshot snapshot = Arrays().Add("k_0", {2, 3, 4}).Open(options);
  CHECK(snapshot.layers[0].k.dtype == DType::kBF16);
}

// Makes a snapshot with every dtype of caches, cells in two groups, and layers in memory in another
// than the canonical order.
Snapshot Sample(DType dtype, Bytes& bytes) {
  const uint64_t tokens = 37;
  const uint32_t heads = 3, dim = 64;
  const uint64_t size = tokens * BytesOf(dtype, uint64_t{heads} * dim);
  std::mt19937 random(static_cast<unsigned>(dtype));
  bytes.resize(4 * size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  Snapshot snapshot;
  snapshot.format = "test";
  snapshot.engine = "engine";
  snapshot.model = "model";
  snapshot.key_rotation = KeyRotation::kRotated;
  for (uint32_t i = 0; i < 2; ++i) {
    LayerKv layer{.index = 5 * i, .label = {}, .group = i == 0 ? "full" : "swa", .k = {}, .v = {}};
    const std::byte* at = bytes.data() + 2 * i * size;
    const Order order = i == 0 ? Order::kHeadDimToken : Order::kHeadTokenDim;
    layer.k = ContiguousTensor(at, dtype, tokens, heads, dim, Order::kTokenHeadDim);
    layer.v = ContiguousTensor(at + size, dtype, tokens, heads, dim, order);
    snapshot.layers.push_back(layer);
    CellGroup cells{.group = layer.group, .streams = i + 1, .cells = {}};
    for (uint64_t t = 0; t < tokens; ++t) {
      cells.cells.push_back({.position = static_cast<int64_t>(3 * t),
                             .stream = static_cast<uint32_t>(t) % (i + 1),
                             .sequences = {}});
    }
    snapshot.cell_groups.push_back(cells);
  }
  snapshot.tokens = {5, -1, 7};
  return snapshot;
}

TEST_CASE("a snapshot written to arrays reads back bit for bit, in each container") {
  using Write = void (*)(const Snapshot&, const std::string&, const OutputRules&);
  using Open = Snapshot (*)(Source, const OpenOptions&);
  struct Container {
    const char* name;
    Write write;
    Open open;
    Confidence (*probe)(const Source&);
  };
  for (const Container& container :
       {Container{"safetensors", WriteSafetensors, OpenSafetensors, ProbeSafetensors},
        Container{"npz", WriteNpz, OpenNpz, ProbeNpz},
        Container{"npy", WriteNpy, OpenNpy, ProbeNpy}}) {
    for (const DTypeInfo& info : AllDTypes()) {
      INFO(container.name << " of " << info.name);
      Bytes bytes;
      const Snapshot written = Sample(info.dtype, bytes);
      const test::TempDir folder;
      const std::string path = folder / "out";
      container.write(written, path, Overwrite::kRefuse);
      const Source source = Source::Open(path);
      CHECK(container.probe(source) == Confidence::kCertain);
      const Snapshot read = container.open(source, {});
      read.CheckContent();
      CHECK(read.notes.empty());
      CHECK(read.engine == written.engine);
      CHECK(read.model == written.model);
      CHECK(read.key_rotation == written.key_rotation);
      CHECK(read.tokens == written.tokens);
      REQUIRE(read.layers.size() == 2);
      for (size_t i = 0; i < 2; ++i) {
        const LayerKv &a = written.layers[i], &b = read.layers[i];
        CHECK(a.index == b.index);
        CHECK(a.group == b.group);
        CHECK(b.k.dtype == info.dtype);
        CHECK(b.k.heads == a.k.heads);
        CHECK(b.k.head_dim == a.k.head_dim);
        CHECK(Gather(a.k, 0, 37, Order::kTokenHeadDim) == Gather(b.k, 0, 37, Order::kTokenHeadDim));
        CHECK(Gather(*a.v, 0, 37, Order::kTokenHeadDim) ==
              Gather(*b.v, 0, 37, Order::kTokenHeadDim));
        REQUIRE(read.cell_groups.size() == 2);
        CHECK(read.cell_groups[i].streams == i + 1);
        for (size_t t = 0; t < 37; ++t) {
          CHECK(read.cell_groups[i].cells[t].position == written.cell_groups[i].cells[t].position);
          CHECK(read.cell_groups[i].cells[t].stream == written.cell_groups[i].cells[t].stream);
        }
      }
    }
  }
}

TEST_CASE("arrays are not written while heads are unknown or two layers are one") {
  Bytes bytes;
  Snapshot snapshot = Sample(DType::kF16, bytes);
  snapshot.layers[0].k.heads_known = false;
  const test::TempDir folder;
  CHECK_THROWS_AS(WriteNpz(snapshot, folder / "x", Overwrite::kRefuse), Error);
  snapshot.layers[0].k.heads_known = true;
  snapshot.layers[0].index = snapshot.layers[1].index;
  CHECK_THROWS_AS(WriteNpz(snapshot, folder / "x", Overwrite::kRefuse), Error);
  CHECK_FALSE(std::filesystem::exists(folder / "x"));
}

}  // namespace
}  // namespace kv::tensor_snapshot_test
