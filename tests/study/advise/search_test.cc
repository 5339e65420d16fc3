// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "lib/study/advise/advice.h"

namespace kv::advise::search_test {
namespace {

struct Shape {
  LossKind kind = LossKind::kFisher;
  uint32_t units = 4, candidates = 4, groups = 1;
  uint64_t rows = 10, channels = 2;
  size_t runs = 2;
};

double FullOf(const Shape& shape) { return 7 + 100.0 * shape.units; }

// Effects that grow as options keep less, with a part that all units share, so that layers add up.
Measured RandomCase(const Shape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0.2f, 1.0f);
  Measured made{shape.kind, shape.groups, {}, {}};
  for (size_t run = 0; run < shape.runs; ++run) {
    RunRows rows;
    rows.rows = rows.population = shape.rows;
    rows.channels = shape.channels;
    rows.fixed_kept = rows.fixed_held = 7 / FullOf(shape);
    for (uint32_t g = 0; g < shape.groups && shape.kind != LossKind::kFisher; ++g) {
      std::vector<float>& norm2 = rows.norm2.emplace_back();
      for (uint64_t r = 0; r < shape.rows; ++r) norm2.push_back(20 + 5 * uniform(random));
      rows.weight.push_back(static_cast<double>(uniform(random)));
    }
    rows.norm2_sum = SumNorm2(rows);
    made.runs.push_back(rows);
  }
  for (uint32_t u = 0; u < shape.units; ++u) {
    Unit unit{u / 2, u % 2, u % shape.groups, {}};
    const std::vector<double> all(shape.runs, 100 / FullOf(shape));
    unit.options.push_back({UINT32_MAX, all, all, {}, {}, 0});
    unit.options[0].effect.resize(shape.runs);
    unit.options[0].error2.resize(shape.runs);
    for (uint32_t c = 0; c < shape.candidates; ++c) {
      Option option;
      option.candidate = c;
      const float size = uniform(random) * static_cast<float>(c + 1);
      for (size_t run = 0; run < shape.runs; ++run) {
        const double kept = 100.0 - 15.0 * (c + 1) - static_cast<double>(uniform(random));
        option.kept.push_back(kept / FullOf(shape));
        option.held.push_back((kept + 3) / FullOf(shape));
        Effect effect(shape.rows * shape.channels);
        for (size_t i = 0; i < effect.size(); ++i) {
          const float x = size * normal(random);
          if (shape.kind == LossKind::kSensitivity) {
            // Makes o' = o - e, with o.e = |x| and with e.e above |x|^2 / o.o, its smallest
            // possible value.
            const float along = std::abs(i < shape.rows ? x : effect[i - shape.rows]);
            effect[i] = i < shape.rows ? -along : 0.3f - 2 * along + along * along / 8;
          }
          if (shape.kind == LossKind::kOutput) effect[i] = x * x;
          if (shape.kind == LossKind::kFisher) effect[i] = 0.1f * x;
        }
        option.effect.push_back(effect);
        std::vector<float>& error2 = option.error2.emplace_back();
        for (uint64_t r = 0; r < shape.rows; ++r) error2.push_back(size * size * uniform(random));
      }
      unit.options.push_back(option);
    }
    made.units.push_back(unit);
  }
  return made;
}

// The loss from its definition, without the code under test.
double LossByHand(const Measured& made, const Choice& choice, size_t run) {
  const RunRows& rows = made.runs[run];
  const auto summed = [&](uint64_t channel, uint64_t row, std::optional<uint32_t> group) {
    double sum = 0;
    for (size_t u = 0; u < choice.size(); ++u) {
      const Unit& unit = made.units[u];
      if (choice[u] == 0 || (group && unit.group != *group)) continue;
      sum += static_cast<double>(unit.options[choice[u]].effect[run][channel * rows.rows + row]);
    }
    return sum;
  };
  double loss = 0;
  if (made.kind == LossKind::kFisher) {
    for (uint64_t s = 0; s < rows.channels; ++s) {
      for (uint64_t r = 0; r < rows.rows; ++r) loss += std::pow(summed(s, r, {}), 2);
    }
    return loss / 2 / static_cast<double>(rows.channels * rows.rows);
  }
  if (made.kind == LossKind::kOutput) {
    double norm2 = 0;
    for (uint64_t r = 0; r < rows.rows; ++r) {
      loss += summed(0, r, {});
      norm2 += static_cast<double>(rows.norm2[0][r]);
    }
    return loss / norm2;
  }
  for (uint32_t g = 0; g < made.groups; ++g) {
    double cosine = 0;
    for (uint64_t r = 0; r < rows.rows; ++r) {
      const auto n = static_cast<double>(rows.norm2[g][r]);
      cosine += (n + summed(0, r, g)) / std::sqrt(n * (n + summed(1, r, g)));
    }
    loss += rows.weight[g] * 2 * (1 - cosine / static_cast<double>(rows.rows));
  }
  return loss;
}

double ShareByHand(const Measured& made, const Choice& choice, size_t run) {
  double kept = made.runs[run].fixed_kept;
  for (size_t u = 0; u < choice.size(); ++u) kept += made.units[u].options[choice[u]].kept[run];
  return kept;
}

template <typename Visit>
void ForEachChoice(const Measured& made, const Visit& visit) {
  Choice choice(made.units.size(), 0);
  for (;;) {
    visit(choice);
    size_t u = 0;
    while (u < choice.size() && ++choice[u] == made.units[u].options.size()) choice[u++] = 0;
    if (u == choice.size()) return;
  }
}

Shape ShapeOf(LossKind kind) {
  Shape shape;
  shape.kind = kind;
  if (kind == LossKind::kOutput) shape.channels = 1;
  if (kind == LossKind::kSensitivity) shape.groups = 2;
  return shape;
}

constexpr LossKind kKinds[] = {LossKind::kFisher, LossKind::kSensitivity, LossKind::kOutput};

}  // namespace

TEST_CASE("a mixture costs what its definition says, however it was reached", "[advise]") {
  for (const LossKind kind : kKinds) {
    INFO(Name(kind));
    const Measured made = RandomCase(ShapeOf(kind), 3);
    Mixture walked(made, Choice(made.units.size(), 0));
    CHECK(walked.loss() == 0);
    CHECK(walked.share() == Approx(1));
    std::mt19937 random(5);
    for (int step = 0; step < 60; ++step) {
      const size_t unit = random() % made.units.size();
      const auto option = static_cast<uint32_t>(random() % made.units[unit].options.size());
      const double loss = walked.loss(), share = walked.share();
      const Mixture::Change change = walked.Try(unit, option);
      walked.Take(unit, option);
      CHECK(walked.loss() == Approx(loss + change.loss).margin(1e-12));
      CHECK(walked.share() == Approx(share + change.share).margin(1e-12));
      const Outcome outcome = Mixture::Evaluate(made, walked.choice());
      for (size_t run = 0; run < 2; ++run) {
        CHECK(outcome.loss[run] == Approx(LossByHand(made, walked.choice(), run)).margin(1e-9));
        CHECK(outcome.kept_share[run] == Approx(ShareByHand(made, walked.choice(), run)));
      }
      CHECK(walked.loss() == Approx(outcome.mean_loss()).margin(1e-9));
      CHECK(walked.worst_loss() == Approx(outcome.worst_loss()).margin(1e-9));
    }
  }
}

TEST_CASE("a search may take units for independent", "[advise]") {
  Measured made = RandomCase(ShapeOf(LossKind::kFisher), 4);
  made.independent = 0.75;
  const Choice choice = {1, 0, 4, 2};
  double expected = 0;
  for (size_t run = 0; run < 2; ++run) {
    double alone = 0;
    for (size_t u = 0; u < choice.size(); ++u) {
      // The squared error of the option times the ratio of loss to squared error over all options
      // of the unit.
      double loss = 0, all2 = 0, mine2 = 0;
      for (uint32_t o = 1; o < made.units[u].options.size(); ++o) {
        Choice one(choice.size(), 0);
        one[u] = o;
        loss += LossByHand(made, one, run);
        for (const float x : made.units[u].options[o].error2[run]) {
          all2 += static_cast<double>(x);
          if (o == choice[u]) mine2 += static_cast<double>(x);
        }
      }
      alone += mine2 * loss / all2;
    }
    expected += (0.25 * LossByHand(made, choice, run) + 0.75 * alone) / 2;
  }
  Mixture mixture(made, Choice(4, 0));
  double walked = 0;
  for (size_t u = 0; u < choice.size(); ++u) {
    walked += mixture.Try(u, choice[u]).loss;
    mixture.Take(u, choice[u]);
  }
  CHECK(mixture.loss() == Approx(expected));
  CHECK(walked == Approx(expected));
  // The loss of the measured part stays the same.
  CHECK(Mixture::Evaluate(made, choice).loss[0] == Approx(LossByHand(made, choice, 0)));
}

TEST_CASE("the search finds what trying everything finds, or nearly", "[advise][figures]") {
  ThreadPool pool(1);
  for (const LossKind kind : kKinds) {
    INFO(Name(kind));
    int exact = 0, cases = 0;
    double excess = 0;
    for (uint32_t seed = 0; seed < 40; ++seed) {
      const Measured made = RandomCase(ShapeOf(kind), seed);
      const Outcome least = Mixture::Evaluate(made, Choice(made.units.size(), 4));
      const Limits limits{0.2 * least.worst_loss(), 1};
      double best = 1;
      ForEachChoice(made, [&](const Choice& choice) {
        double worst = 0, share = 0;
        for (size_t run = 0; run < 2; ++run) {
          worst = std::max(worst, LossByHand(made, choice, run));
          share += ShareByHand(made, choice, run) / 2;
        }
        if (worst <= *limits.loss) best = std::min(best, share);
      });
      const Found found = Search(made, 4, limits, pool);
      REQUIRE(found.best);
      CHECK(Meets(found.best->outcome, limits));
      const double mine = found.best->outcome.mean_share();
      CHECK(mine >= best - 1e-9);
      if (found.best_uniform) CHECK(mine <= found.best_uniform->outcome.mean_share() + 1e-12);
      exact += mine < best + 1e-9;
      excess += mine / best - 1;
      ++cases;
    }
    CHECK(exact >= cases / 3);
    CHECK(excess / cases < 0.04);
  }
}

TEST_CASE("losses that add up and grow ever faster are minimised exactly", "[advise]") {
  // One row with a loss of one per dropped square: greedy steps are then optimal.
  Measured made{LossKind::kOutput, 1, {}, {}};
  made.runs.push_back({1, 1, 1, 0, 0, {{1.0f}}, 1, {}});
  const float weights[] = {1, 2.5f, 7};
  for (uint32_t u = 0; u < 3; ++u) {
    Unit unit{u, 0, 0, {}};
    for (uint32_t dropped = 0; dropped <= 4; ++dropped) {
      const double kept = (100.0 - 20.0 * dropped) / 300;
      Option option{dropped == 0 ? UINT32_MAX : dropped - 1, {kept}, {kept}, {{}}, {}, 0};
      if (dropped > 0) option.effect[0] = {weights[u] * static_cast<float>(dropped * dropped)};
      unit.options.push_back(option);
    }
    made.units.push_back(unit);
  }
  ThreadPool pool(2);
  const Found found = Search(made, 4, {std::nullopt, 0.5}, pool);
  REQUIRE(found.best);
  for (const Point& point : found.frontier) {
    double least = 1e9;
    ForEachChoice(made, [&](const Choice& choice) {
      if (ShareByHand(made, choice, 0) <= point.outcome.mean_share() + 1e-12) {
        least = std::min(least, LossByHand(made, choice, 0));
      }
    });
    CHECK(point.outcome.mean_loss() == Approx(least));
  }
  CHECK(found.best->outcome.mean_share() <= 0.5);
  CHECK(found.frontier.front().outcome.mean_loss() == 0);
  CHECK(found.uniform.size() == 4);
}

TEST_CASE("the frontier descends in bytes and ascends in loss", "[advise]") {
  ThreadPool one(1), four(4);
  for (const LossKind kind : kKinds) {
    const Measured made = RandomCase(ShapeOf(kind), 21);
    const Limits limits{std::nullopt, 0.6};
    const Found found = Search(made, 4, limits, one), again = Search(made, 4, limits, four);
    REQUIRE(found.frontier.size() > 3);
    for (size_t i = 1; i < found.frontier.size(); ++i) {
      CHECK(found.frontier[i].outcome.mean_share() < found.frontier[i - 1].outcome.mean_share());
      CHECK(found.frontier[i].outcome.mean_loss() > found.frontier[i - 1].outcome.mean_loss());
    }
    REQUIRE(again.frontier.size() == found.frontier.size());
    for (size_t i = 0; i < found.frontier.size(); ++i) {
      CHECK(again.frontier[i].choice == found.frontier[i].choice);
    }
    CHECK(again.best->choice == found.best->choice);
  }
}

TEST_CASE("a limit that nothing meets leaves the whole cache, or nothing", "[advise]") {
  ThreadPool pool(1);
  const Measured made = RandomCase(ShapeOf(LossKind::kFisher), 8);
  const Found whole = Search(made, 4, {1e-9, 1}, pool);
  REQUIRE(whole.best);
  CHECK(whole.best->outcome.mean_share() == Approx(1));
  CHECK_FALSE(whole.best_uniform);
  CHECK_FALSE(Search(made, 4, {1e-9, 0.5}, pool).best);
  CHECK_FALSE(Search(made, 4, {std::nullopt, 0.01}, pool).best);
}

TEST_CASE("a fold searches the others and pays in the one left out", "[advise]") {
  ThreadPool pool(1);
  Shape shape = ShapeOf(LossKind::kFisher);
  shape.runs = 3;
  const Measured made = RandomCase(shape, 9);
  const Limits limits{0.05, 1};
  const CrossChecked checked = CrossCheck(made, 4, limits, limits, pool);
  CHECK_FALSE(checked.halves);
  REQUIRE(checked.folds.size() == 3);
  const Found others = Search(OfRuns(made, {0, 2}), 4, limits, pool);
  const Fold& fold = checked.folds[1];
  CHECK(fold.left_out == 1);
  REQUIRE(fold.found);
  CHECK(fold.promised == others.best->outcome.worst_loss());
  CHECK(fold.left_out_loss == Approx(LossByHand(made, others.best->choice, 1)));
  CHECK(fold.left_out_share == Approx(ShareByHand(made, others.best->choice, 1)));
  CHECK(fold.holds == (fold.left_out_loss <= 0.05));
  double product = 1;
  for (const Fold& each : checked.folds) product *= each.left_out_loss / each.promised;
  CHECK(checked.optimism() == Approx(std::max(1.0, std::cbrt(product))));
}

TEST_CASE("halves of one run add up to it", "[advise]") {
  for (const LossKind kind : kKinds) {
    Shape shape = ShapeOf(kind);
    shape.runs = 1;
    const Measured made = RandomCase(shape, 10);
    const Measured halves = InHalves(made);
    REQUIRE(halves.runs.size() == 2);
    const Choice choice = {1, 2, 3, 4};
    const Outcome of_halves = Mixture::Evaluate(halves, choice);
    for (size_t half = 0; half < 2; ++half) {
      CHECK(of_halves.loss[half] == Approx(LossByHand(halves, choice, half)).margin(1e-9));
    }
    if (kind == LossKind::kOutput) continue;  // output error is a ratio of sums, not a mean
    CHECK(of_halves.mean_loss() == Approx(LossByHand(made, choice, 0)).margin(1e-9));
  }
  ThreadPool pool(1);
  Shape shape = ShapeOf(LossKind::kFisher);
  shape.runs = 1;
  const CrossChecked checked = CrossCheck(RandomCase(shape, 11), 4, {0.05, 1}, {0.05, 1}, pool);
  CHECK(checked.halves);
  CHECK(checked.folds.size() == 2);
}

TEST_CASE("a sample's standard error covers the loss of all rows", "[advise]") {
  for (const LossKind kind : kKinds) {
    INFO(Name(kind));
    Shape shape = ShapeOf(kind);
    shape.runs = 1;
    shape.rows = 400;
    const Measured all = RandomCase(shape, 12);
    const Choice choice = {4, 3, 2, 4};
    const double truth = LossByHand(all, choice, 0);
    CHECK(Mixture::Evaluate(all, choice).standard_error[0] == 0);
    double squares = 0;
    for (uint32_t seed = 0; seed < 40; ++seed) {
      std::vector<uint64_t> order(400);
      for (uint64_t i = 0; i < 400; ++i) order[i] = i;
      std::mt19937 random(seed);
      std::shuffle(order.begin(), order.end(), random);
      Measured part = all;
      const auto pick = [&](std::vector<float>& values) {
        std::vector<float> some;
        for (uint64_t from = 0; from < values.size(); from += 400) {
          for (size_t i = 0; i < 80; ++i) some.push_back(values[from + order[i]]);
        }
        values = some;
      };
      part.runs[0].rows = 80;
      for (auto& norm2 : part.runs[0].norm2) pick(norm2);
      part.runs[0].norm2_sum = SumNorm2(part.runs[0]);
      for (Unit& unit : part.units) {
        for (Option& option : unit.options) pick(option.effect[0]);
      }
      const Outcome outcome = Mixture::Evaluate(part, choice);
      CHECK(outcome.standard_error[0] > 0);
      squares += std::pow((outcome.loss[0] - truth) / outcome.standard_error[0], 2);
    }
    // The standard errors match the observed deviations.
    CHECK(squares / 40 > 0.3);
    CHECK(squares / 40 < 2.5);
  }
}

}  // namespace kv::advise::search_test
