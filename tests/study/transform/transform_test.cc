// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "formats/kvx/kvx.h"
#include "lib/core/base/hash.h"
#include "lib/core/kernels/rans.h"
#include "lib/study/transform/coded_cache.h"
#include "lib/study/transform/eigen.h"
#include "lib/study/transform/steps.h"
#include "tests/support/mlp_weights.h"
#include "tests/support/refusal.h"

namespace kv::transform {
namespace {

// Rows of 4 layers of 2 heads of 8, with few directions and some noise.
CacheRows RowsFrom(uint32_t seed, uint64_t tokens) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> directions(8 * 64);
  for (float& value : directions) value = normal(random);
  random.seed(seed);
  CacheRows rows{std::vector<float>(tokens * 64), tokens, 64};
  for (uint64_t t = 0; t < tokens; ++t) {
    for (int d = 0; d < 8; ++d) {
      const float weight = normal(random) * static_cast<float>(8 - d);
      for (int i = 0; i < 64; ++i) rows.values[t * 64 + i] += weight * directions[d * 64 + i];
    }
    for (int i = 0; i < 64; ++i) rows.values[t * 64 + i] += 3 + 0.1f * normal(random);
  }
  return rows;
}

Transform Learnt(uint32_t group_layers = 0, bool is_bfloat = false,
                 const std::vector<float>& weights = {}) {
  ThreadPool pool(2);
  LearnOptions options{0, group_layers, is_bfloat, {4, 8}, {&kKvtcForm}, weights};
  Transform transform;
  transform.layers = 4;
  transform.is_bfloat = is_bfloat;
  const CacheRows learn = RowsFrom(1, 400), held_out = RowsFrom(2, 100);
  transform.k = LearnSide(learn, held_out, 4, 2, 8, options, pool);
  transform.v = transform.k;
  return transform;
}

double ErrorOfCoder(const TransformSide& side, const RowCoder& coder, double& bytes) {
  const CacheRows rows = RowsFrom(3, 200);
  const Basis basis(side);
  const std::vector<float> values = basis.Project(rows);
  std::vector<float> stored(values.size());
  Faults faults;
  bytes = coder({values, rows.tokens, basis.components()}, stored, faults);
  const CacheRows back = basis.Restore(stored, rows.tokens);
  double error = 0, energy = 0;
  for (size_t i = 0; i < rows.values.size(); ++i) {
    error += std::pow(static_cast<double>(back.values[i] - rows.values[i]), 2);
    energy += std::pow(static_cast<double>(rows.values[i] - side.mean[i % 64]), 2);
  }
  return std::sqrt(error / energy);
}

Bytes Rehashed(Bytes file) {
  const Hash128Bytes hash = Hash128(ByteSpan(file).first(file.size() - 16));
  std::copy(hash.begin(), hash.end(), file.end() - 16);
  return file;
}

Finding RefusalOf(const Bytes& file) {
  return test::FindingOf([&] { ReadTransform(file); });
}

}  // namespace

TEST_CASE("transform: eigenvectors of a symmetric matrix") {
  constexpr uint64_t n = 37;
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  std::vector<double> matrix(n * n);
  for (uint64_t i = 0; i < n; ++i) {
    for (uint64_t j = 0; j <= i; ++j) matrix[i * n + j] = matrix[j * n + i] = normal(random);
  }
  ThreadPool pool(3);
  const Eigen eigen = SymmetricEigen(matrix, n, pool);
  for (uint64_t v = 0; v < n; ++v) {
    const double* vector = &eigen.vectors[v * n];
    for (uint64_t i = 0; i < n; ++i) {
      double product = 0;
      for (uint64_t j = 0; j < n; ++j) product += matrix[i * n + j] * vector[j];
      CHECK(product == Approx(eigen.values[v] * vector[i]).margin(1e-12));
    }
    double norm = 0;
    for (uint64_t i = 0; i < n; ++i) norm += vector[i] * vector[i];
    CHECK(norm == Approx(1));
    if (v > 0) CHECK(eigen.values[v] <= eigen.values[v - 1]);
  }
  ThreadPool one(1);
  CHECK(SymmetricEigen(matrix, n, one).vectors == eigen.vectors);
  CHECK(SymmetricEigen({0, 0, 0, 0}, 2, one).values == std::vector<double>{0, 0});
}

TEST_CASE("transform: what few directions hold costs few bits") {
  const Transform transform = Learnt();
  RequireOrthonormal(transform);
  CHECK(transform.k.components() == 64);
  double last = 0;
  for (const double ratio : {4.0, 8.0}) {
    const TransformPlan* plan = transform.k.Find("kvtc", ratio);
    REQUIRE(plan != nullptr);
    double bytes = 0;
    const double error = ErrorOfCoder(transform.k, CodeBySchema(kKvtcForm, plan->schema), bytes);
    CHECK(error < 0.3);
    CHECK(error > last);
    CHECK(error == Approx(plan->error).epsilon(0.2));
    CHECK(bytes <= 200 * 64 * 2 / ratio);
    last = error;
    const TransformPlan* steps = transform.k.Find(kStepForm, ratio);
    REQUIRE(steps != nullptr);
    CHECK(ErrorOfCoder(transform.k, CodeBySteps(steps->steps), bytes) < 2 * error);
    CHECK(bytes < 200 * 64 * 2 / ratio * 1.3);
  }
  CHECK(transform.k.Find("kvtc", 5) == nullptr);
}

TEST_CASE("transform: bases of layers apart keep less in as many components") {
  const Transform joint = Learnt(), apart = Learnt(1);
  CHECK(apart.k.parts.size() == 4);
  RequireOrthonormal(apart);
  CHECK(apart.k.Find("kvtc", 8)->error > joint.k.Find("kvtc", 8)->error);
}

// Returns the mean squared error of features below and from 32 on at ratio 8.
std::pair<double, double> ErrorsOfHalves(const TransformSide& side) {
  const CacheRows rows = RowsFrom(3, 200);
  const Basis basis(side);
  const std::vector<float> values = basis.Project(rows);
  std::vector<float> stored(values.size());
  Faults faults;
  CodeBySteps(side.Find(kStepForm, 8)->steps)({values, 200, basis.components()}, stored, faults);
  const CacheRows back = basis.Restore(stored, 200);
  double low = 0, high = 0;
  for (size_t i = 0; i < rows.values.size(); ++i)
    (i % 64 < 32 ? low : high) += std::pow(static_cast<double>(back.values[i] - rows.values[i]), 2);
  return {low / 6400, high / 6400};
}

TEST_CASE("transform: features of large weight are restored more closely") {
  std::vector<float> weights(64, 100.0f);
  std::fill(weights.begin() + 32, weights.end(), 1.0f);
  for (const uint32_t grouping : {0, 2}) {
    const Transform plain = Learnt(grouping), weighted = Learnt(grouping, false, weights);
    RequireOrthonormal(weighted);
    CHECK(WriteTransform(ReadTransform(WriteTransform(weighted))) == WriteTransform(weighted));
    const auto [low, high] = ErrorsOfHalves(plain.k);
    const auto [weighty, light] = ErrorsOfHalves(weighted.k);
    CHECK(weighty < low / 2);
    CHECK(100 * weighty + light < 100 * low + high);
  }
  // Equal weights change nothing but the unit of coefficients.
  const auto [low, high] = ErrorsOfHalves(Learnt().k);
  const auto [same, other] = ErrorsOfHalves(Learnt(0, false, std::vector<float>(64, 4.0f)).k);
  CHECK(same == Approx(low).epsilon(0.02));
  CHECK(other == Approx(high).epsilon(0.02));
}

TEST_CASE("transform: forged weights are refused") {
  const Transform transform = Learnt(0, false, std::vector<float>(64, 1.0f));
  const auto refuses = [&](auto&& forge) {
    Transform forged = transform;
    forge(forged);
    CHECK_THROWS_AS(RequireSound(forged), Error);
  };
  for (const float weight : {0.0f, -1.0f, NAN, INFINITY, 1e-30f, 1e30f})
    refuses([&](Transform& forged) { forged.v.weights[7] = weight; });
  refuses([](Transform& forged) { forged.k.weights.clear(); });
  refuses([](Transform& forged) { forged.k.weights.pop_back(); });
  Transform forged = transform;
  forged.k.weights[3] = 2;
  RequireSound(forged);
  CHECK_THROWS_AS(RequireOrthonormal(forged), Error);
  // The file is cut within the weights, or its version claims weights that it lacks.
  const Bytes file = WriteTransform(transform);
  for (size_t size = 40; size < file.size(); size += 53)
    CHECK(RefusalOf(Rehashed({file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size)})) !=
          Finding::kInternal);
  Bytes plain = WriteTransform(Learnt());
  plain[8] = std::byte{2};
  CHECK(RefusalOf(Rehashed(plain)) != Finding::kInternal);
}

TEST_CASE("transform: a cache has rows if its positions are those of one sequence, named or not") {
  Snapshot snapshot = test::MakeCache({});
  const auto finding_with = [&](std::initializer_list<int32_t> sequences, int64_t first) {
    CellGroup group;
    for (int64_t i = 0; i < 20; ++i) group.cells.push_back({first + i, 0, sequences});
    snapshot.cell_groups = {group};
    return test::FindingOf([&] {
      RequireRows(snapshot);
      throw Error(Finding::kExists, "it has rows");
    });
  };
  CHECK(finding_with({}, 0) == Finding::kExists);  // as kvtool.capture writes it
  CHECK(finding_with({3}, 0) == Finding::kExists);
  CHECK(finding_with({}, 1) == Finding::kUnsupportedKind);
  CHECK(finding_with({0, 1}, 0) == Finding::kUnsupportedKind);
  snapshot.cell_groups[0].cells[7].sequences = {};
  CHECK_THROWS_AS(RequireRows(snapshot), Error);
}

TEST_CASE("transform: the text of a rotation is read back, and no other") {
  for (const char* scaling : {"none", "linear:4", "llama3:8,1,4,8192", "yarn:4,4096,32,1",
                              "yarn:4,4096,32,1,1.25", "dynamic:2,2048"}) {
    for (const uint32_t rotated : {0u, 32u}) {
      Rope rope;
      rope.pairs = rotated == 0 ? RopePairs::kHalves : RopePairs::kNeighbours;
      rope.theta = 500000.5;
      rope.rotary_dim = rotated;
      rope.scaling = ParseScaling(scaling);
      const std::string text = RopeText(rope, 3, 64);
      const std::optional<ModelRope> read = ParseRopeText(text, 3, 64);
      INFO(text);
      REQUIRE(read);
      CHECK(RopeText(*read, 3, 64) == text);
    }
  }
  ModelRope two;
  two.layers = {Rope{}, Rope{}};
  two.layers[1].theta = 1e6;
  for (const std::string& text :
       {RopeText(two, 2, 64), RopeText(WithoutRotation(64), 2, 64), std::string("neox 10000 of 65"),
        std::string("neox -1 of 64"), std::string("neox nan of 64"),
        std::string("neox 10000 of 64 x"), std::string("neox 10000 of 64 none"),
        std::string("neox"), std::string()}) {
    CHECK_FALSE(ParseRopeText(text, 2, 64));
  }
}

TEST_CASE("transform: blocks of rANS decode to the symbols that were stored") {
  const std::vector<float> values = RowsFrom(9, 64).values;
  const Rows rows{values, 64, 64};
  StepCode code = FitSteps(rows, rows, 200);
  Faults faults;
  std::vector<float> out(values.size());
  const uint64_t bytes = StoreBlock(code, rows, out, faults);
  CHECK(static_cast<double>(bytes) < 64 * 200 / 8 + 64 + 16 * 2);
  for (size_t i = 0; i < values.size(); ++i)
    CHECK(std::fabs(out[i] - values[i]) <= code.step * 0.501f);
}

TEST_CASE("transform: files come back, and forged ones are refused") {
  for (const bool is_bfloat : {false, true}) {
    Transform transform = Learnt(2, is_bfloat);
    transform.model = "small";
    transform.sources = {"0123456789abcdef"};
    transform.fingerprints = {1, 2, 3};
    const Bytes file = WriteTransform(transform);
    CHECK(WriteTransform(ReadTransform(file)) == file);
    RequireOrthonormal(ReadTransform(file));
    Bytes changed = file;
    changed[100] ^= std::byte{1};
    CHECK(RefusalOf(changed) == Finding::kChecksum);
    for (size_t size = 0; size < file.size(); size += 97) {
      changed.assign(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
      CHECK(RefusalOf(changed) != Finding::kInternal);
      if (size >= 28) CHECK(RefusalOf(Rehashed(changed)) != Finding::kInternal);
    }
  }
  Transform transform = Learnt();
  const auto refuses = [](const Transform& forged) {
    CHECK_THROWS_AS(RequireSound(forged), Error);
  };
  Transform forged = transform;
  forged.k.mean[3] = NAN;
  refuses(forged);
  forged = transform;
  forged.v.parts[0].vectors[5] = INFINITY;
  refuses(forged);
  forged = transform;
  forged.layers = 5;
  refuses(forged);
  forged = transform;
  forged.k.plans[0].schema.push_back({64, CodeType::kInt8});
  refuses(forged);
  forged = transform;
  forged.k.plans[1].steps.tables[0].frequencies[0] += 1;
  refuses(forged);
  forged = transform;
  forged.k.parts[0].vectors[0] += 0.5f;
  RequireSound(forged);
  CHECK_THROWS_AS(RequireOrthonormal(forged), Error);
}

}  // namespace kv::transform
