// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/attention/attention.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "lib/core/base/parallel.h"

namespace kv::attention_test {
namespace {

// One head with its queries, at positions that see some of the keys.
struct Head {
  uint64_t rows, keys, dim;
  std::vector<float> q, k, v;
  std::vector<int64_t> positions;

  Head(uint64_t rows_in, uint64_t keys_in, uint64_t dim_in, uint32_t seed)
      : rows(rows_in), keys(keys_in), dim(dim_in) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (auto* values : {&q, &k, &v}) {
      values->resize((values == &q ? rows : keys) * dim);
      for (float& value : *values) value = normal(random);
    }
    for (uint64_t i = 0; i < rows; ++i) {
      positions.push_back(static_cast<int64_t>(keys - rows + i));
    }
  }
  HeadQueries queries() const { return {MakeMatrix(q, rows, dim), positions}; }
  HeadCache cache() const { return {MakeMatrix(k, keys, dim), MakeMatrix(v, keys, dim), {}, {}}; }
};

// The formulas, computed in double for one row and one subset.
struct Naive {
  std::vector<double> p, output, changed_output;
  double mass = 0, kl = 0, js = 0;

  Naive(const Head& head, uint64_t row, std::span<const uint8_t> kept)
      : p(head.keys), output(head.dim), changed_output(head.dim) {
    double sum = 0, kept_sum = 0;
    for (uint64_t j = 0; j < head.keys; ++j) {
      if (static_cast<int64_t>(j) > head.positions[row]) continue;
      double score = 0;
      for (uint64_t d = 0; d < head.dim; ++d) {
        score += double{head.q[row * head.dim + d]} * double{head.k[j * head.dim + d]};
      }
      p[j] = std::exp(score / std::sqrt(static_cast<double>(head.dim)));
      sum += p[j];
      if (kept[j]) kept_sum += p[j];
    }
    for (uint64_t j = 0; j < head.keys; ++j) {
      const double changed = kept[j] ? p[j] / kept_sum : 0;
      p[j] /= sum;
      if (kept[j]) mass += p[j];
      if (changed > 0) kl += changed * std::log(changed / p[j]);
      const double middle = (p[j] + changed) / 2;
      if (changed > 0) js += changed * std::log(changed / middle) / 2;
      if (p[j] > 0) js += p[j] * std::log(p[j] / middle) / 2;
      for (uint64_t d = 0; d < head.dim; ++d) {
        output[d] += p[j] * double{head.v[j * head.dim + d]};
        changed_output[d] += changed * double{head.v[j * head.dim + d]};
      }
    }
  }
};

std::vector<uint8_t> EveryThird(uint64_t keys) {
  std::vector<uint8_t> kept(keys);
  for (uint64_t j = 0; j < keys; j += 3) kept[j] = 1;
  return kept;
}

// Subset expresses kept keys as a changed cache.
struct Subset {
  std::vector<float> k, v;
  std::vector<int64_t> positions;
  std::vector<TokenRange> sources;

  Subset(const Head& head, std::span<const uint8_t> kept) {
    for (uint64_t j = 0; j < head.keys; ++j) {
      if (!kept[j]) continue;
      k.insert(k.end(), &head.k[j * head.dim], &head.k[j * head.dim] + head.dim);
      v.insert(v.end(), &head.v[j * head.dim], &head.v[j * head.dim] + head.dim);
      positions.push_back(static_cast<int64_t>(j));
      sources.push_back({j, j + 1});
    }
  }
  HeadCache cache(uint64_t dim) const {
    return {
        MakeMatrix(k, positions.size(), dim), MakeMatrix(v, positions.size(), dim), positions, {}};
  }
};

// Returns a plan that keeps one set of keys to the end.
std::vector<uint32_t> KeptForever(std::span<const uint8_t> kept) {
  std::vector<uint32_t> before(kept.size());
  std::transform(kept.begin(), kept.end(), before.begin(),
                 [](uint8_t byte) { return byte != 0 ? UINT32_MAX : 0; });
  return before;
}

AttentionRows CompareKept(const HeadQueries& queries, const HeadCache& full,
                          std::span<const uint8_t> kept, const AttentionRule& rule = {}) {
  const std::vector<uint32_t> before = KeptForever(kept);
  const KeptBefore set = before;
  return std::move(CompareKeptSets(queries, full, {&set, 1}, rule).front());
}

AttentionRows CompareKeptProbabilities(const FloatMatrix& probabilities, const FloatMatrix& v,
                                       std::span<const uint8_t> kept) {
  const std::vector<uint32_t> before = KeptForever(kept);
  const KeptBefore set = before;
  return std::move(CompareKeptSetsProbabilities(probabilities, {}, v, {&set, 1}).front());
}

}  // namespace

TEST_CASE("metrics of a kept subset follow their formulas", "[metrics]") {
  const Head head(70, 150, 16, 7);
  const std::vector<uint8_t> kept = EveryThird(head.keys);
  const AttentionRows rows = CompareKept(head.queries(), head.cache(), kept);
  REQUIRE(rows.rows() == head.rows);
  for (uint64_t i = 0; i < head.rows; ++i) {
    const Naive naive(head, i, kept);
    REQUIRE(rows.mass[i] == Approx(naive.mass).epsilon(1e-6));
    REQUIRE(rows.kl[i] == Approx(naive.kl).epsilon(1e-6));
    REQUIRE(rows.js[i] == Approx(naive.js).epsilon(1e-6));
    REQUIRE(std::abs(rows.kl[i] + std::log(rows.mass[i])) < 1e-9);  // KL = -ln M
    REQUIRE(rows.evicting[i] == 1);
    double error2 = 0, norm2 = 0, changed2 = 0, dot = 0;
    for (uint64_t d = 0; d < head.dim; ++d) {
      const double o = naive.output[d], c = naive.changed_output[d];
      error2 += (o - c) * (o - c);
      norm2 += o * o;
      changed2 += c * c;
      dot += o * c;
    }
    REQUIRE(rows.error2[i] == Approx(error2).epsilon(1e-5));
    REQUIRE(rows.norm2[i] == Approx(norm2).epsilon(1e-5));
    REQUIRE(rows.changed_norm2[i] == Approx(changed2).epsilon(1e-5));
    REQUIRE(rows.dot[i] == Approx(dot).epsilon(1e-4).margin(1e-6));
  }
}

TEST_CASE("keeping every key costs exactly nothing", "[metrics]") {
  const Head head(65, 130, 8, 3);
  const std::vector<uint8_t> all(head.keys, 1);
  const Subset subset(head, all);
  for (const AttentionRows& rows : {CompareKept(head.queries(), head.cache(), all),
                                    CompareCaches(head.queries(), head.cache(), head.queries(),
                                                  subset.cache(head.dim), subset.sources)}) {
    const AttentionSummary summary = Summarise({&rows, 1});
    CHECK(summary.rows == head.rows);
    CHECK(summary.evicting_rows == 0);
    CHECK(summary.mass.min == 1);
    CHECK(summary.changed_mass.min == 1);
    CHECK(summary.kl.max == 0);
    CHECK(summary.js.max == 0);
    CHECK(summary.output_error.max == 0);
    CHECK(summary.output_error_frobenius == 0);
    CHECK(summary.output_cosine.min == 1);
    for (const Distribution& top : summary.top_k) CHECK(top.min == 1);
  }
}

TEST_CASE("a subset written as a changed cache measures the same", "[metrics]") {
  const Head head(40, 90, 12, 5);
  const std::vector<uint8_t> kept = EveryThird(head.keys);
  const Subset subset(head, kept);
  const AttentionRows a = CompareKept(head.queries(), head.cache(), kept);
  const AttentionRows b = CompareCaches(head.queries(), head.cache(), head.queries(),
                                        subset.cache(head.dim), subset.sources);
  for (uint64_t i = 0; i < head.rows; ++i) {
    REQUIRE(b.mass[i] == Approx(a.mass[i]));
    REQUIRE(b.changed_mass[i] == Approx(1));
    REQUIRE(b.kl[i] == Approx(a.kl[i]).epsilon(1e-6));
    REQUIRE(b.js[i] == Approx(a.js[i]).epsilon(1e-6));
    REQUIRE(b.error2[i] == Approx(a.error2[i]).epsilon(1e-4));
    for (size_t k = 0; k < kTopK.size(); ++k) REQUIRE(b.top_k[k][i] == a.top_k[k][i]);
  }
}

TEST_CASE("changes along a gradient are the same by every comparison", "[metrics][kl]") {
  const Head head(70, 150, 12, 15);
  const std::vector<uint8_t> kept = EveryThird(head.keys);
  const Subset subset(head, kept);
  const std::vector<uint32_t> before = KeptForever(kept);
  const KeptBefore set = before;
  // With g = o the change along it is o.o' - |o|^2; a second gradient is not finite in one row.
  std::vector<double> p(head.rows * head.keys);
  AttentionProbabilities(head.queries(), head.cache(), {}, 0, head.rows, p);
  std::vector<float> narrow, o;
  Narrow(p, narrow);
  Outputs(narrow, head.rows, head.cache().v, o);
  std::vector<float> bad(o.size(), 1.0f);
  bad[40 * head.dim + 3] = INFINITY;
  const std::vector<FloatMatrix> g = {MakeMatrix(o, head.rows, head.dim),
                                      MakeMatrix(bad, head.rows, head.dim)};
  for (const AttentionRows& rows :
       {CompareKeptSets(head.queries(), head.cache(), {&set, 1}, {}, g).front(),
        CompareKeptSetsProbabilities(MakeMatrix(narrow, head.rows, head.keys), head.positions,
                                     head.cache().v, {&set, 1}, g)
            .front(),
        CompareCaches(head.queries(), head.cache(), head.queries(), subset.cache(head.dim),
                      subset.sources, {}, g)}) {
    REQUIRE(rows.log_p_change.size() == 2);
    for (uint64_t i = 0; i < head.rows; ++i) {
      REQUIRE(rows.log_p_change[0][i] ==
              Approx(rows.dot[i] - rows.norm2[i]).epsilon(1e-4).margin(1e-6));
      REQUIRE(std::isnan(rows.log_p_change[1][i]) == (i == 40));
    }
  }
}

TEST_CASE("one key for a group of equal keys is exact once it is biased by the log of its size",
          "[metrics]") {
  Head head(8, 12, 4, 9);
  for (uint64_t j = 1; j < 4; ++j) {  // tokens 0..3 are alike
    std::copy_n(&head.k[0], 4, &head.k[j * 4]);
    std::copy_n(&head.v[0], 4, &head.v[j * 4]);
  }
  const std::vector<float> k(head.k.begin() + 12, head.k.end());
  const std::vector<float> v(head.v.begin() + 12, head.v.end());
  std::vector<TokenRange> sources = {{0, 4}};
  for (uint64_t j = 4; j < 12; ++j) sources.push_back({j, j + 1});
  std::vector<float> bias(9, 0.0f);
  const HeadQueries queries{MakeMatrix(head.q, 8, 4), {}};
  const AttentionRows plain = CompareCaches(
      queries, head.cache(), queries, {MakeMatrix(k, 9, 4), MakeMatrix(v, 9, 4), {}, {}}, sources);
  bias[0] = std::log(4.0f);
  const AttentionRows biased =
      CompareCaches(queries, head.cache(), queries,
                    {MakeMatrix(k, 9, 4), MakeMatrix(v, 9, 4), {}, bias}, sources);
  const AttentionSummary a = Summarise({&plain, 1}), b = Summarise({&biased, 1});
  CHECK(a.output_error.mean > 0.01);
  CHECK(a.kl.mean > 0.001);
  CHECK(b.output_error.max < 1e-5);
  CHECK(b.kl.max < 1e-6);
  CHECK(b.mass.max < 1);  // every group loses a part of its attention
}

TEST_CASE("mass grows with the budget, and top-k hits are counted against the kept set",
          "[metrics]") {
  const Head head(20, 200, 8, 11);
  std::vector<uint8_t> kept(head.keys, 0);
  std::vector<double> last(head.rows, 0.0);
  for (uint64_t budget = 0; budget <= head.keys; budget += 25) {
    for (uint64_t j = 0; j < budget; ++j) kept[j * 7 % head.keys] = 1;
    const AttentionRows rows = CompareKept(head.queries(), head.cache(), kept);
    for (uint64_t i = 0; i < head.rows; ++i) {
      REQUIRE(rows.mass[i] >= last[i]);
      last[i] = rows.mass[i];
    }
  }
  // An oracle that keeps exactly the largest 8 of a row hits all of 8 and half of 16.
  const HeadQueries one{MakeMatrix(head.q, 1, head.dim), {}};
  std::vector<double> p(head.keys);
  AttentionProbabilities(one, head.cache(), {}, 0, 1, p);
  std::vector<uint32_t> order(head.keys);
  for (uint32_t j = 0; j < order.size(); ++j) order[j] = j;
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return p[a] > p[b]; });
  std::fill(kept.begin(), kept.end(), 0);
  for (int i = 0; i < 8; ++i) kept[order[i]] = 1;
  const AttentionRows rows = CompareKept(one, head.cache(), kept);
  CHECK(rows.top_k[0][0] == 1.0);
  CHECK(rows.top_k[1][0] == 0.5);
  CHECK(rows.top_k[2][0] == 0.125);
}

TEST_CASE("windows, softcaps and positions decide what a query sees", "[metrics]") {
  const Head head(4, 10, 4, 13);
  std::vector<double> p(4 * 10);
  AttentionProbabilities(head.queries(), head.cache(), {.window = 3}, 0, 4, p);
  for (int64_t i = 0; i < 4; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < 10; ++j) {
      const int64_t distance = head.positions[i] - j;
      REQUIRE((p[i * 10 + j] > 0) == (distance >= 0 && distance < 3));
      sum += p[i * 10 + j];
    }
    REQUIRE(sum == Approx(1));
  }
  // The sums over deciles and over layers equal the total.
  AttentionProbabilities({MakeMatrix(head.q, 4, 4), {}}, head.cache(), {.softcap = 1e-6}, 0, 4, p);
  for (double value : p) REQUIRE(value == Approx(0.1).epsilon(1e-4));
  // A query before every key sees nothing: all figures are zero, and nothing can be lost.
  const std::vector<int64_t> before = {-1, -1, -1, -1};
  const HeadQueries blind{MakeMatrix(head.q, 4, 4), before};
  const AttentionRows rows = CompareKept(blind, head.cache(), std::vector<uint8_t>(10, 0));
  CHECK(rows.mass[0] == 1);
  CHECK(rows.evicting[0] == 0);
  CHECK(rows.norm2[0] == 0);
}

TEST_CASE("a row that keeps nothing has lost everything", "[metrics]") {
  const Head head(2, 6, 4, 17);
  const AttentionRows rows =
      CompareKept(head.queries(), head.cache(), std::vector<uint8_t>(head.keys, 0));
  const AttentionSummary summary = Summarise({&rows, 1});
  CHECK(summary.mass.max == 0);
  CHECK(std::isinf(summary.kl.min));
  CHECK(summary.js.min == Approx(std::log(2.0)));
  CHECK(summary.output_error.min == Approx(1));
  CHECK(summary.output_cosine.max == Approx(0).margin(1e-6));
}

TEST_CASE("recorded probabilities give what queries give", "[metrics]") {
  const Head head(10, 40, 8, 19);
  std::vector<double> p(head.rows * head.keys);
  AttentionProbabilities(head.queries(), head.cache(), {}, 0, head.rows, p);
  const std::vector<float> recorded(p.begin(), p.end());
  const std::vector<uint8_t> kept = EveryThird(head.keys);
  const AttentionRows a = CompareKept(head.queries(), head.cache(), kept);
  const AttentionRows b = CompareKeptProbabilities(MakeMatrix(recorded, head.rows, head.keys),
                                                   MakeMatrix(head.v, head.keys, head.dim), kept);
  for (uint64_t i = 0; i < head.rows; ++i) {
    REQUIRE(b.mass[i] == Approx(a.mass[i]).epsilon(1e-6));
    REQUIRE(b.error2[i] == Approx(a.error2[i]).epsilon(1e-4));
  }
}

TEST_CASE("NaN in a key makes its rows NaN, counted and left out of the figures", "[metrics]") {
  Head head(6, 6, 4, 23);
  head.k[5 * 4] = std::nanf("");  // only the last query can see key 5
  const std::vector<uint8_t> kept = EveryThird(head.keys);
  const Subset subset(head, kept);
  for (const AttentionRows& rows : {CompareKept(head.queries(), head.cache(), kept),
                                    CompareCaches(head.queries(), head.cache(), head.queries(),
                                                  subset.cache(head.dim), subset.sources)}) {
    const AttentionSummary summary = Summarise({&rows, 1});
    CHECK(summary.mass.nans == 1);
    CHECK(summary.mass.count == 5);
    CHECK(summary.kl.nans == 1);
    CHECK(summary.output_error.nans == 1);
    CHECK(std::isfinite(summary.output_error.max));
  }
}

TEST_CASE("NaN and Inf in queries never count as a row that lost nothing", "[metrics]") {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    for (const double softcap : {0.0, 30.0}) {
      for (const bool one_sided : {false, true}) {
        INFO(bad << " softcap " << softcap << " one-sided " << one_sided);
        Head head(6, 20, 4, 27);
        head.q[2 * 4 + 1] = bad;
        // All scores are minus infinity: no key is visible, which must not count as no loss.
        for (uint64_t j = 0; one_sided && j < head.keys; ++j) head.k[j * 4 + 1] = bad > 0 ? -1 : 1;
        const std::vector<uint8_t> kept = EveryThird(head.keys), all(head.keys, 1);
        const Subset subset(head, kept);
        const AttentionRule rule{0, softcap, 0};
        for (const AttentionRows& rows :
             {CompareKept(head.queries(), head.cache(), kept, rule),
              CompareKept(head.queries(), head.cache(), all, rule),
              CompareCaches(head.queries(), head.cache(), head.queries(), subset.cache(head.dim),
                            subset.sources, rule)}) {
          CHECK(std::isnan(rows.mass[2]));
          const AttentionSummary summary = Summarise({&rows, 1});
          CHECK(summary.rows == 6);
          CHECK(summary.undefined_rows == 1);
          CHECK(summary.mass.count == 5);
          CHECK(summary.kl.count == 5);
          CHECK(summary.js.count == 5);
          for (const Distribution& top : summary.top_k) CHECK(top.count == 5);
          CHECK(summary.output_error.count == 5);
          CHECK(summary.output_cosine.count == 5);
          CHECK(std::isfinite(summary.output_error_frobenius));
        }
      }
    }
  }
}

TEST_CASE("NaN in a value spoils the outputs of the rows that see it, and no others", "[metrics]") {
  Head head(6, 6, 4, 23);
  head.v[4 * 4] = std::nanf("");  // queries 4 and 5 can see key 4
  const AttentionRows rows = CompareKept(head.queries(), head.cache(), EveryThird(head.keys));
  const AttentionSummary summary = Summarise({&rows, 1});
  CHECK(summary.mass.count == 6);
  CHECK(summary.output_error.count == 4);
  CHECK(summary.undefined_rows == 2);
}

TEST_CASE("a kept set that shrinks from query to query is the sets of its moments", "[metrics]") {
  const Head head(70, 150, 16, 37);
  std::vector<uint32_t> before(head.keys);
  for (uint64_t j = 0; j < head.keys; ++j) {
    before[j] = j % 3 == 0 ? UINT32_MAX : static_cast<uint32_t>(j * 97 % 160);
  }
  const KeptBefore set = before;
  const AttentionRows rows = CompareKeptSets(head.queries(), head.cache(), {&set, 1}).front();
  for (const uint64_t row : {0, 3, 40, 69}) {
    std::vector<uint8_t> kept(head.keys);
    for (uint64_t j = 0; j < head.keys; ++j) kept[j] = before[j] > head.positions[row];
    const AttentionRows moment = CompareKept(head.queries(), head.cache(), kept);
    CHECK(rows.mass[row] == moment.mass[row]);
    CHECK(rows.kl[row] == moment.kl[row]);
    CHECK(rows.top_k[1][row] == moment.top_k[1][row]);
    CHECK(rows.error2[row] == Approx(moment.error2[row]));
  }
}

TEST_CASE("the standard error of a sample is the spread of samples", "[metrics]") {
  // 400 clusters of two or three values; the mean of a sample of 50, 2000 times.
  std::mt19937 random(41);
  std::normal_distribution<double> normal;
  std::vector<std::vector<double>> clusters(400);
  double sum = 0, count = 0;
  for (size_t i = 0; i < clusters.size(); ++i) {
    const double common = normal(random);
    for (size_t j = 0; j < 2 + i % 2; ++j) {
      clusters[i].push_back(5 + common + 0.3 * normal(random));
      sum += clusters[i].back();
      ++count;
    }
  }
  double squares = 0, stated = 0;
  constexpr int kSamples = 2000;
  for (int s = 0; s < kSamples; ++s) {
    std::shuffle(clusters.begin(), clusters.end(), random);
    ClusterError error;
    double part = 0, values = 0;
    for (uint64_t i = 0; i < 50; ++i) {
      for (const double value : clusters[i]) {
        error.Add(i, value);
        part += value;
        ++values;
      }
    }
    squares += (part / values - sum / count) * (part / values - sum / count);
    stated += error.Get(50, 400);
  }
  CHECK(stated / kSamples == Approx(std::sqrt(squares / kSamples)).epsilon(0.05));
  ClusterError all;
  for (uint64_t i = 0; i < 400; ++i) all.Add(i, clusters[i][0]);
  CHECK(all.Get(400, 400) == 0);
  CHECK(std::isnan(all.Get(1, 400)));
}

TEST_CASE("heads are concatenated in the output metrics and pooled in the others", "[metrics]") {
  const Head a(12, 30, 8, 29), b(12, 30, 8, 31);
  const std::vector<uint8_t> kept = EveryThird(30);
  const std::vector<AttentionRows> heads = {CompareKept(a.queries(), a.cache(), kept),
                                            CompareKept(b.queries(), b.cache(), kept)};
  const AttentionSummary both = Summarise(heads);
  CHECK(both.rows == 12);
  CHECK(both.mass.count == 24);
  CHECK(both.output_error.count == 12);
  double expected = 0;
  for (uint64_t i = 0; i < 12; ++i) {
    expected += std::sqrt((heads[0].error2[i] + heads[1].error2[i]) /
                          (heads[0].norm2[i] + heads[1].norm2[i]));
  }
  CHECK(both.output_error.mean == Approx(expected / 12));
  // Deciles and layers sum to the whole.
  AttentionSamples parts;
  parts.Add(heads, 0, 5);
  parts.Add(heads, 5, 12);
  const AttentionSummary whole = parts.Summarise();
  CHECK(whole.output_error.mean == Approx(both.output_error.mean));
  CHECK(whole.mass.p5 == both.mass.p5);
  CHECK(whole.output_error_frobenius == Approx(both.output_error_frobenius));
}

TEST_CASE("metrics have the same bits for every number of threads", "[metrics]") {
  std::vector<Head> heads;
  for (uint32_t h = 0; h < 6; ++h) heads.emplace_back(66, 100, 16, 100 + h);
  const std::vector<uint8_t> kept = EveryThird(100);
  std::vector<std::vector<AttentionRows>> results;
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    std::vector<AttentionRows> rows(heads.size());
    pool.ParallelFor(heads.size(), [&](uint64_t h) {
      rows[h] = CompareKept(heads[h].queries(), heads[h].cache(), kept);
    });
    results.push_back(std::move(rows));
  }
  for (size_t h = 0; h < heads.size(); ++h) {
    for (const auto& result : results) {
      REQUIRE(result[h].mass == results[0][h].mass);
      REQUIRE(result[h].error2 == results[0][h].error2);
      REQUIRE(result[h].dot == results[0][h].dot);
    }
  }
}

}  // namespace kv::attention_test
