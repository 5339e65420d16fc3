// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/diff.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/select.h"
#include "tests/support/kv_source.h"
#include "tests/support/mlp_weights.h"

namespace kv::diff_test {
namespace {

SnapshotDiff Diff(const Snapshot& a, const Snapshot& b, const DiffOptions& options = {},
                  int threads = 2) {
  ThreadPool pool(threads);
  return DiffSnapshots(a, b, options, pool);
}

// Returns a cache of one layer with these values as K, [token][head 2][dim 2].
Snapshot Keys(const std::vector<float>& values) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  Snapshot snapshot;
  snapshot.spools.push_back(FileSource::FromBytes(std::move(bytes), "keys"));
  snapshot.layers.push_back({.index = 3,
                             .k = ContiguousTensor(snapshot.spools[0]->bytes().data(), DType::kF32,
                                                   values.size() / 4, 2, 2, Order::kTokenHeadDim)});
  return snapshot;
}

const TensorDiff& OnlyKeys(const SnapshotDiff& diff) {
  REQUIRE(diff.layers.size() == 1);
  REQUIRE(diff.layers[0].k);
  return *diff.layers[0].k;
}

}  // namespace

TEST_CASE("the same values in any order of storage are identical", "[diff]") {
  const auto orders = {Order::kTokenHeadDim, Order::kHeadTokenDim, Order::kHeadDimToken};
  for (const Order a : orders) {
    for (const Order b : orders) {
      const SnapshotDiff diff = Diff(test::MakeCache({.tokens = 37, .order = a}),
                                     test::MakeCache({.tokens = 37, .order = b}));
      CHECK(diff.verdict() == DiffVerdict::kIdentical);
      CHECK(diff.equal());
      CHECK(diff.Total().values == 2 * 2 * 37 * 12);
    }
  }
}

TEST_CASE("one flipped bit is found wherever it is, however both sides are stored", "[diff]") {
  std::mt19937 random(7);
  for (const Order order : {Order::kTokenHeadDim, Order::kHeadTokenDim, Order::kHeadDimToken}) {
    for (int round = 0; round < 8; ++round) {
      const test::CacheShape shape{.layers = 2, .heads = 3, .head_dim = 8, .tokens = 50};
      const Snapshot a = test::MakeCache(shape);
      test::CacheShape other = shape;
      other.order = order;
      Snapshot b = test::MakeCache(other);
      const size_t tensor = random() % 4;  // K, V, K, V
      const uint64_t token = random() % 50, head = random() % 3, dim = random() % 8;
      KvTensor& changed = tensor % 2 == 0 ? b.layers[tensor / 2].k : *b.layers[tensor / 2].v;
      Bytes bytes(b.spools[tensor]->bytes().begin(), b.spools[tensor]->bytes().end());
      const StridedPiece& piece = changed.pieces[0];
      bytes[token * piece.token.step + head * piece.head.step + dim * piece.dim.step] ^=
          std::byte{1};
      b.spools[tensor] = FileSource::FromBytes(std::move(bytes), "changed");
      changed.pieces[0].data = b.spools[tensor]->bytes().data();

      for (const int threads : {1, 3}) {
        const SnapshotDiff diff = Diff(a, b, {}, threads);
        CHECK(diff.verdict() == DiffVerdict::kDifferent);
        CHECK(diff.Total().different == 1);
        const LayerDiff& layer = diff.layers[tensor / 2];
        const TensorDiff& part = tensor % 2 == 0 ? *layer.k : *layer.v;
        REQUIRE(part.first);
        CHECK(part.max_ulp == 1);
        CHECK(part.first->token == token);
        CHECK(part.first->head == head);
        CHECK(part.first->dim == dim);
        CHECK((part.first->a_bits ^ part.first->b_bits) == 1);
      }
    }
  }
}

TEST_CASE("stored bits decide unless a tolerance is given", "[diff]") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float other_nan = std::bit_cast<float>(std::bit_cast<uint32_t>(nan) ^ 1u);
  const Snapshot a = Keys({0.0F, nan, 1.0F, 2.0F}), b = Keys({-0.0F, other_nan, 1.0F, 2.5F});
  const SnapshotDiff strict = Diff(a, b);
  const TensorDiff& bits = OnlyKeys(strict);
  CHECK(bits.different == 3);
  CHECK(bits.beyond == 3);
  CHECK(bits.not_finite == 1);
  CHECK(bits.max_abs == 0.5);
  CHECK(bits.max_rel == 0.2);
  CHECK(bits.max_ulp == 1U << 21);
  CHECK(bits.first->dim == 0);
  CHECK_FALSE(strict.equal());

  const SnapshotDiff close = Diff(a, b, {.atol = 0.25});
  CHECK(OnlyKeys(close).beyond == 1);
  CHECK(OnlyKeys(close).first->dim == 1);  // the first difference above the tolerance is in head 1
  CHECK(OnlyKeys(close).first->head == 1);
  CHECK(close.verdict() == DiffVerdict::kDifferent);
  CHECK(Diff(a, b, {.atol = 0.5}).verdict() == DiffVerdict::kWithinTolerance);
  CHECK(Diff(a, b, {.atol = 0.5}).equal());
}

TEST_CASE("NaN against a number and opposite infinities are beyond every tolerance", "[diff]") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const SnapshotDiff diff =
      Diff(Keys({nan, inf, 1, inf}), Keys({1, -inf, 1, inf}), {.atol = 1e300});
  CHECK(OnlyKeys(diff).beyond == 2);
  CHECK(OnlyKeys(diff).not_finite == 2);
  CHECK(OnlyKeys(diff).max_abs == 0);
}

TEST_CASE("a widened cache is equal in value, not in bytes", "[diff]") {
  test::KvSourceBuilder builder;
  const test::KvSourceBuilder::Shape half{.dtype = DType::kBF16, .tokens = 9};
  builder.Layer(half, &half);
  const Snapshot a = builder.Build();
  ThreadPool pool(1);
  const Snapshot wide = CastSnapshot(a, DType::kF32, pool);
  const SnapshotDiff diff = Diff(a, wide);
  CHECK(diff.verdict() == DiffVerdict::kEqualValues);
  CHECK_FALSE(diff.equal());
  CHECK(Diff(a, wide, {.atol = 0}).equal());
  const Snapshot floats = test::MakeCache({});
  const SnapshotDiff narrow = Diff(floats, CastSnapshot(floats, DType::kF16, pool));
  CHECK(narrow.verdict() == DiffVerdict::kDifferent);
  CHECK(narrow.Total().max_rel < 0x1p-10);
  CHECK_FALSE(narrow.Total().has_ulp());
}

TEST_CASE("blocks differ as a whole", "[diff]") {
  test::KvSourceBuilder builder;
  builder.Layer({.dtype = DType::kQ8_0, .tokens = 5, .heads = 2, .head_dim = 64}, nullptr);
  const Snapshot a = builder.Build();
  Bytes bytes(a.source.files[0].data->bytes().begin(), a.source.files[0].data->bytes().end());
  const uint64_t offset = a.source.files[0].data->OffsetOf(a.layers[0].k.pieces[0].data);
  // A byte of token 3, head 0, second block.
  bytes[offset + 4 * 34 * 3 + 34 + 2 + 7] ^= std::byte{1};
  Snapshot b = a;
  b.source.files[0].data = FileSource::FromBytes(std::move(bytes), "b");
  b.layers[0].k.pieces[0].data = b.source.files[0].data->bytes().data() + offset;
  const SnapshotDiff diff = Diff(a, b);
  const TensorDiff& keys = OnlyKeys(diff);
  CHECK(keys.different == 32);
  CHECK(keys.first->token == 3);
  CHECK(keys.first->head == 0);
  CHECK(keys.first->dim == 32);
  CHECK(keys.max_abs > 0);
}

TEST_CASE("heads that only one side knows divide the rows of the other", "[diff]") {
  const Snapshot a = test::MakeCache({});
  Snapshot b = a;
  for (LayerKv& layer : b.layers) {
    for (KvTensor* tensor : {&layer.k, &*layer.v}) {
      tensor->head_dim *= tensor->heads;
      tensor->heads = 1;
      tensor->heads_known = false;
    }
  }
  CHECK(Diff(a, b).verdict() == DiffVerdict::kIdentical);
  CHECK(Diff(b, a).verdict() == DiffVerdict::kIdentical);
  CHECK(Diff(b, b).verdict() == DiffVerdict::kIdentical);
  CHECK_FALSE(Diff(b, b).layers[0].k->heads_known);
}

TEST_CASE("what has no counterpart is a difference of structure", "[diff]") {
  const Snapshot a = test::MakeCache({.layers = 3, .tokens = 10});
  SECTION("layers") {
    const SnapshotDiff diff = Diff(a, Select(a, {.layers = std::vector<uint32_t>{0, 2}}));
    CHECK(diff.structure == std::vector<std::string>{"layer 1: only in A"});
    CHECK(diff.layers.size() == 2);
    CHECK(diff.Total().different == 0);
    CHECK_FALSE(diff.equal());
  }
  SECTION("tokens: what both have is compared") {
    const SnapshotDiff diff = Diff(a, Select(a, {.tokens = {{0, 7}}}));
    REQUIRE(diff.structure.size() == 1);
    CHECK(diff.structure[0] == "layer 0 K and 5 more: 10 and 7 tokens, the first 7 compared");
    CHECK(diff.Total().values == 3 * 2 * 7 * 12);
  }
  SECTION("heads") {
    Snapshot b = a;
    b.layers[1].k.heads = 4;
    b.layers[1].k.head_dim = 3;
    const SnapshotDiff diff = Diff(a, b);
    CHECK(diff.structure == std::vector<std::string>{"layer 1 K: 3 heads of 4 and 4 heads of 3"});
  }
  SECTION("V") {
    Snapshot b = a;
    b.layers[2].v.reset();
    CHECK(Diff(a, b).structure == std::vector<std::string>{"layer 2 V: only in A"});
    CHECK(Diff(a, b, {.values = false}).equal());
  }
}

TEST_CASE("positions, sequences and token ids count where both sides have them", "[diff]") {
  Snapshot a = test::MakeCache({.tokens = 3});
  a.tokens = {1, 2, 3};
  a.cell_groups = {{.cells = {{0, 0, {0}}, {1, 0, {0}}, {2, 0, {0, 1}}}}};
  Snapshot b = a;
  CHECK(Diff(a, b).equal());
  SECTION("absent") {
    b.tokens.clear();
    b.cell_groups.clear();
    const SnapshotDiff diff = Diff(a, b);
    CHECK(diff.equal());
    CHECK(diff.notes == std::vector<std::string>{"positions only in A", "token ids only in A"});
  }
  SECTION("other positions") {
    b.cell_groups[0].cells[1].position = 5;
    CHECK(Diff(a, b).structure ==
          std::vector<std::string>{"cell 1: position 1 and 5, the first that differs"});
  }
  SECTION("other sequences") {
    b.cell_groups[0].cells[2].sequences = {0};
    CHECK(Diff(a, b).structure ==
          std::vector<std::string>{"cell 2: sequences 0,1 and 0, the first that differs"});
  }
  SECTION("other further positions") {
    for (CellGroup* group : {&a.cell_groups[0], &b.cell_groups[0]}) {
      group->extension_words = 2;
      group->extensions = {0, 0, 1, 1, 2, 2};
    }
    CHECK(Diff(a, b).equal());
    b.cell_groups[0].extensions[3] = 7;
    CHECK(Diff(a, b).structure ==
          std::vector<std::string>{"cell 1: further positions, the first that differs"});
    b.cell_groups[0].extension_words = 0;
    b.cell_groups[0].extensions.clear();
    CHECK(Diff(a, b).notes.size() == 1);
  }
  SECTION("no sequences") {
    for (Cell& cell : b.cell_groups[0].cells) cell.sequences = {};
    CHECK(Diff(a, b).notes == std::vector<std::string>{"sequence ids only in A"});
  }
  SECTION("other tokens") {
    b.tokens = {1, 9, 3, 4};
    CHECK(Diff(a, b).structure ==
          std::vector<std::string>{"token ids: 3 and 4",
                                   "token id 1: 2 and 9, the first that differs"});
  }
}

TEST_CASE("large tensors are compared in chunks whose results add up", "[diff]") {
  // Tensors of 3 MiB are compared in several chunks.
  const test::CacheShape shape{.layers = 1, .heads = 4, .head_dim = 64, .tokens = 3000};
  const Snapshot a = test::MakeCache(shape, 1), b = test::MakeCache(shape, 2);
  const SnapshotDiff one = Diff(a, b, {}, 1), four = Diff(a, b, {}, 4);
  const TensorDiff &x = *one.layers[0].k, &y = *four.layers[0].k;
  CHECK(x.values == 3000 * 256);
  CHECK(x.different == y.different);
  CHECK(x.sum_abs == y.sum_abs);
  CHECK(x.max_abs == y.max_abs);
  CHECK(x.max_rel == y.max_rel);
  CHECK(x.first->token == 0);
  CHECK(one.bin_tokens == 0);
  CHECK(one.layers[0].k_bins.empty());
  CHECK(x.mean_abs() == Approx(2 / std::sqrt(std::acos(-1.0))).epsilon(0.01));  // of N(0, 2)
}

TEST_CASE("bins of tokens tell where tensors differ, and add up to the whole", "[diff]") {
  const test::CacheShape shape{.layers = 2, .heads = 4, .head_dim = 64, .tokens = 1003};
  const Snapshot a = test::MakeCache(shape, 1);
  const SnapshotDiff same = Diff(a, test::MakeCache(shape, 1), {.token_bins = 10});
  CHECK(same.tokens == 1003);
  CHECK(same.bin_tokens == 101);
  CHECK(same.layers[1].v_bins.empty());  // equal bytes, so no values were compared
  const SnapshotDiff diff = Diff(a, test::MakeCache(shape, 2), {.token_bins = 10}, 4);
  const std::vector<TensorDiff>& bins = diff.layers[0].k_bins;
  REQUIRE(bins.size() == 10);
  uint64_t values = 0, different = 0;
  double most = 0;
  for (const TensorDiff& bin : bins) {
    values += bin.values;
    different += bin.different;
    most = std::max(most, bin.max_abs);
  }
  const TensorDiff& whole = *diff.layers[0].k;
  CHECK(values == whole.values);
  CHECK(different == whole.different);
  CHECK(most == whole.max_abs);
  CHECK(bins[9].values == (1003 - 9 * 101) * 256);
  CHECK(bins[3].first->token == 303);
  const SnapshotDiff one =
      Diff(Keys({1, 2, 3, 4, 5, 6, 7, 8}), Keys({1, 2, 3, 4, 5, 6, 7, 9}), {.token_bins = 240});
  CHECK(one.bin_tokens == 1);
  CHECK(one.layers[0].k_bins.at(0).different == 0);
  CHECK(one.layers[0].k_bins.at(1).different == 1);
}

}  // namespace kv::diff_test
