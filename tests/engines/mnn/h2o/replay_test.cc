// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/replay.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "lib/engines/mnn/h2o/mnn_replay.h"
#include "lib/engines/mnn/h2o/report.h"
#include "lib/study/eviction/quality.h"
#include "tests/support/attention_case.h"
#include "tests/support/small_replay.h"
#include "tests/support/targets.h"

namespace kv::mnn::h2o::replay_test {
namespace {

using test::AttentionCase;
using test::MakeAttentionCase;
using test::RecordProbabilities;
using test::RunOn;
using test::SmallRequest;

using Json = nlohmann::ordered_json;

Json PlanEvents(const ReplayRun& run) {
  Json json = Json::array();
  ForEachPlanEvent(run, [&](const eviction::PlanEvent& event) {
    json.push_back(ToJson(eviction::PlanEventFields().Object(event)));
  });
  return json;
}

std::string Text(const AttentionCase& made, const ReplayRequest& request, int threads) {
  const ReplayResult result = RunOn(made, request, threads);
  return ToJson(ReportFields().Object({made.snapshot, made.trace, request, result, true})).dump() +
         PlanEvents(result.runs.front()).dump();
}

// nullptr stands for budgets; the others are the engine's rules.
constexpr const eviction::EngineRule* kEngines[] = {nullptr, &kIntervals, &kDesign, &kMnn, &kMnnR6};

std::vector<std::string> AllPolicies() {
  std::vector<std::string> names;
  for (const eviction::PolicyInfo& policy : eviction::Policies()) names.emplace_back(policy.name);
  return names;
}

}  // namespace

TEST_CASE("replays are the same for every SIMD target and number of threads", "[h2o]") {
  const auto made = MakeAttentionCase({}, 1);
  ReplayRequest request = SmallRequest();
  request.policies = AllPolicies();
  request.targets = {1.5f, 3.0f};
  for (const eviction::EngineRule* engine : kEngines) {
    request.engine = engine;
    request.chosen = {"layer_start"};
    request.config.layer_start = engine == &kMnnR6 ? 0 : 1;
    const std::string expected = Text(*made, request, 1);
    CHECK(Text(*made, request, 4) == expected);
    test::ForEachTarget([&](const std::string& target) {
      INFO(target);
      CHECK(Text(*made, request, 2) == expected);
    });
  }
}

TEST_CASE("every policy keeps the same number of tokens, and none beats the oracle", "[h2o]") {
  for (const uint32_t seed : {1u, 2u, 3u}) {
    const auto made = MakeAttentionCase({}, seed);
    ReplayRequest request = SmallRequest();
    request.policies = AllPolicies();
    request.config.update_interval = 60;  // one eviction only, for which the oracle is optimal
    const ReplayResult result = RunOn(*made, request);
    const ReplayRun* oracle = nullptr;
    for (const ReplayRun& run : result.runs) {
      if (run.policy == "oracle-mass") oracle = &run;
    }
    REQUIRE(oracle != nullptr);
    for (const ReplayRun& run : result.runs) {
      INFO(run.policy << " seed " << seed);
      if (run.policy == "full") continue;
      if (run.policy != "pyramid") CHECK(run.steps.back().kept == oracle->steps.back().kept);
      CHECK(run.quality->mass.mean <= oracle->quality->mass.mean + 1e-9);
      for (const eviction::LayerPlan& plan : run.plans) {
        for (const eviction::Eviction& event : plan.events) {
          for (uint32_t unit = 0; unit < plan.units; ++unit) {
            const KeepPlan kept = plan.HeldBefore(unit, event.token + 1);
            CHECK(IsApplicable(kept, event.token + 1));
            CHECK(KeptTokens(kept) == event.kept);
          }
        }
      }
    }
  }
}

TEST_CASE("keeping all costs exactly nothing, losing mass M costs -ln M", "[h2o]") {
  const auto made = MakeAttentionCase({}, 4);
  ReplayRequest request = SmallRequest();
  request.policies = {"full", "random"};
  const ReplayResult result = RunOn(*made, request);
  const AttentionSummary& full = *result.runs[0].quality;
  CHECK(full.mass.min == 1.0);
  CHECK(full.output_error.max == 0.0);
  CHECK(full.kl.max == 0.0);
  CHECK(full.top_k[0].min == 1.0);
  CHECK(full.evicting_rows == 0);
  const AttentionSummary& random = *result.runs[1].quality;
  CHECK(random.evicting_rows > 0);
  CHECK(random.kl.max == Approx(-std::log(random.mass.min)).epsilon(1e-9));
  CHECK(random.mass.min < 0.9);
  // The range excludes layer 0, which keeps everything.
  CHECK(result.runs[1].layers[0].summary.mass.min == 1.0);
}

TEST_CASE("probabilities give the plans and figures of the queries they came from",
          "[h2o][figures]") {
  struct Variant {
    double softcap;
    uint64_t window;
    WeightRule weights;
    const eviction::EngineRule* engine = &kIntervals;
  };
  for (const Variant& variant :
       {Variant{0, 0, WeightRule::kSoftmax}, Variant{0, 0, WeightRule::kFlashLocal},
        Variant{3, 0, WeightRule::kSoftmax}, Variant{0, 50, WeightRule::kSoftmax},
        Variant{3, 0, WeightRule::kSoftmax, nullptr},
        Variant{0, 50, WeightRule::kSoftmax, nullptr}}) {
    INFO("softcap " << variant.softcap << " window " << variant.window);
    const auto queries = MakeAttentionCase({}, 5);
    const auto probabilities = MakeAttentionCase({}, 5);
    for (AttentionCase* made : {queries.get(), probabilities.get()}) {
      made->trace.softcap = variant.softcap;
      made->trace.window = variant.window;
    }
    RecordProbabilities(*probabilities);
    ReplayRequest request = SmallRequest();
    request.engine = variant.engine;
    request.policies = AllPolicies();
    request.weights = variant.weights;
    const ReplayResult a = RunOn(*queries, request), b = RunOn(*probabilities, request);
    for (size_t i = 0; i < a.runs.size(); ++i) {
      INFO(a.runs[i].policy);
      CHECK(PlanEvents(a.runs[i]) == PlanEvents(b.runs[i]));
      CHECK(a.runs[i].quality->mass.mean == Approx(b.runs[i].quality->mass.mean).epsilon(1e-5));
      CHECK(a.runs[i].quality->output_error.mean ==
            Approx(b.runs[i].quality->output_error.mean).epsilon(1e-4));
    }
  }
}

TEST_CASE("the compacted snapshot holds the kept rows, and a wrong one is noticed", "[h2o]") {
  const auto made = MakeAttentionCase({}, 6);
  ReplayRequest request = SmallRequest();
  for (const eviction::Granularity granularity :
       {eviction::Granularity::kLayer, eviction::Granularity::kKvHead}) {
    request.granularity = granularity;
    const ReplayResult result = RunOn(*made, request);
    const ReplayRun& run = result.runs.front();
    Snapshot compacted = Compacted(made->snapshot, run);
    CHECK(CheckRows(made->snapshot, run, compacted) > 0);
    CHECK(compacted.kv_bytes() < made->snapshot.kv_bytes());
    CHECK(compacted.layers[0].k.tokens() == 160);
    // The V rows of another token, as the engine's fault R6 moved them.
    std::swap(*compacted.layers[1].v, *compacted.layers[2].v);
    try {
      CheckRows(made->snapshot, run, compacted);
      FAIL("swapped V passed");
    } catch (const Error& error) {
      CHECK(error.finding() == Finding::kContentDiffers);
    }
  }
}

TEST_CASE("a missing layer changes nothing of the others in the mnn engine", "[h2o]") {
  const auto whole = MakeAttentionCase({}, 7);
  auto part = MakeAttentionCase({}, 7);
  part->trace.layers.erase(part->trace.layers.begin() + 1);
  ReplayRequest request = SmallRequest();
  request.engine = &kMnn;
  const ReplayResult a = RunOn(*whole, request), b = RunOn(*part, request);
  CHECK(b.missing_layers == std::vector<uint32_t>{1});
  REQUIRE(b.runs[0].plans.size() == 2);
  const eviction::LayerPlan &of_a = a.runs[0].plans[2], &of_b = b.runs[0].plans[1];
  CHECK(of_a.events == of_b.events);
  for (const eviction::Eviction& event : of_b.events) {
    CHECK(of_a.HeldBefore(0, event.token + 1) == of_b.HeldBefore(0, event.token + 1));
  }
  request.engine = &kMnnR6;
  // One score vector for all layers needs all layers.
  CHECK_THROWS_AS(RunOn(*part, request), Error);
}

TEST_CASE("a run in which nothing happens names the parameter", "[h2o]") {
  const auto made = MakeAttentionCase({}, 8);
  const auto why = [&](const std::function<void(ReplayRequest&)>& change) {
    ReplayRequest request = SmallRequest();
    request.measure_quality = false;
    change(request);
    const ReplayResult result = RunOn(*made, request);
    return result.runs.front().nothing_because;
  };
  CHECK(why([](ReplayRequest&) {}).empty());
  CHECK(why([](ReplayRequest& r) {
          r.config.trigger_min_tokens = 512;
        }).find("h2o_trigger_min_tokens 512") != std::string::npos);
  CHECK(why([](ReplayRequest& r) {
          r.config.update_interval = 1000;
        }).find("h2o_update_interval 1000") != std::string::npos);
  CHECK(why([](ReplayRequest& r) { r.config.recent_tokens = 140; }).find("h2o_recent_tokens 140") !=
        std::string::npos);
  CHECK(why([](ReplayRequest& r) {
          r.config.layer_start = 2;
          r.config.layer_end = 1;
        }).find("layer_start") != std::string::npos);
}

TEST_CASE("the trace is refused by name where the snapshot differs", "[h2o]") {
  const auto finding = [](const std::function<void(AttentionCase&)>& change) -> std::string {
    auto made = MakeAttentionCase({}, 9);
    change(*made);
    try {
      RequireMatch(made->trace, made->snapshot);
    } catch (const Error& error) {
      CHECK(error.finding() == Finding::kTraceMismatch);
      return error.what();
    }
    return "";
  };
  CHECK(finding([](AttentionCase&) {}).empty());
  CHECK(finding([](AttentionCase& c) { c.snapshot.layers.pop_back(); }).find("layer 2") !=
        std::string::npos);
  CHECK(finding([](AttentionCase& c) { c.trace.kv_heads = 4; }).find("4 kv heads") !=
        std::string::npos);
  CHECK(finding([](AttentionCase& c) { c.trace.query_heads = 3; }).find("not a multiple") !=
        std::string::npos);
  CHECK(finding([](AttentionCase& c) { c.trace.head_dim = 8; }).find("head dim 8") !=
        std::string::npos);
  CHECK(finding([](AttentionCase& c) { c.trace.rows = 161; }).find("position 161") !=
        std::string::npos);
  CHECK(finding([](AttentionCase& c) {
          c.trace.tokens = {1, 2, 3};
          c.snapshot.tokens = {1, 5, 3};
        }).find("token 1 is 2") != std::string::npos);
  CHECK(finding([](AttentionCase& c) {
          c.snapshot.cell_groups.push_back({"", 1, {{0, 0, {}}, {2, 0, {}}}});
        }).find("position 2") != std::string::npos);
  CHECK(finding([](AttentionCase& c) {
          // The keys of layer 0 point to the numbers of layer 1.
          const std::byte* other = c.snapshot.layers[1].k.pieces[0].data;
          c.trace.layers[0].keys = ContiguousView(DType::kF16, {160, 2, 16}, other);
        }).find("layer 0") != std::string::npos);
  CHECK(finding([](AttentionCase& c) {
          const std::byte* same = c.snapshot.layers[0].k.pieces[0].data;
          c.trace.layers[0].keys = ContiguousView(DType::kF16, {160, 2, 16}, same);
        }).empty());
}

TEST_CASE("budgets of a pyramid fall from layer to layer and add up", "[h2o]") {
  const auto made = MakeAttentionCase({6, 4, 2, 16, 420}, 10);
  ReplayRequest request = SmallRequest();
  request.config.layer_start = 0;
  request.config.trigger_min_tokens = 400;
  request.config.update_interval = 30;
  request.prompt_tokens = 380;
  request.policies = {"pyramid", "snapkv"};
  request.measure_quality = false;
  const ReplayResult result = RunOn(*made, request);
  uint64_t previous = UINT64_MAX, sum = 0, common = 0;
  for (const eviction::LayerPlan& plan : result.runs[0].plans) {
    REQUIRE(plan.events.size() == 1);
    CHECK(plan.events[0].kept <= previous);
    previous = plan.events[0].kept;
    sum += previous;
  }
  for (const eviction::LayerPlan& plan : result.runs[1].plans) common += plan.events[0].kept;
  CHECK(previous < result.runs[0].plans[0].events[0].kept);
  CHECK(std::abs(static_cast<double>(sum) - static_cast<double>(common)) <= 6);
}

TEST_CASE("a budget is met at every step, by every policy alike", "[h2o]") {
  const auto made = MakeAttentionCase({}, 11);
  ReplayRequest request = SmallRequest();
  request.engine = nullptr;
  request.chosen = {"layer_start"};
  request.paper.window = 6;
  request.paper.grow = false;
  request.policies = AllPolicies();
  request.targets.clear();
  request.budgets = {{std::nullopt, 0.3, false}, {40, 1, false}};
  const ReplayResult result = RunOn(*made, request);
  for (const ReplayRun& run : result.runs) {
    INFO(run.policy << " " << run.target_text());
    if (run.policy == "full") continue;
    const uint64_t slack =
        run.policy == "block" ? static_cast<uint64_t>(run.config.block_tokens) - 1 : 0;
    std::vector<eviction::LengthWalk> walks(run.schedules.begin(), run.schedules.end());
    for (uint64_t token = 64; token < result.end; ++token) {
      uint64_t held = 0, evicting = 0;
      for (size_t l = 0; l < walks.size(); ++l) {
        const uint64_t length = walks[l].At(token);
        if (!run.schedules[l].in_range) {
          CHECK(length == token + 1);
          continue;
        }
        held += length;
        ++evicting;
        // The plan keeps as many tokens as the schedule says.
        CHECK(KeptTokens(run.plans[l].HeldBefore(0, token + 1)) == length);
      }
      const uint64_t budget = evicting * run.budget->At(token + 1);
      CHECK(held >= budget);
      CHECK(held <= budget + evicting * slack);
    }
  }
}

TEST_CASE("ratios rise with the target, and runs come in their order", "[h2o]") {
  const auto made = MakeAttentionCase({}, 12);
  ReplayRequest request = SmallRequest();
  request.engine = nullptr;
  request.measure_quality = false;
  request.policies = {"block", "tova"};
  request.targets = {8, 1.5, 4, 2, 3};
  const ReplayResult result = RunOn(*made, request);
  for (size_t i = 1; i < result.runs.size(); ++i) {
    CHECK(result.runs[i - 1].ratio() <= result.runs[i].ratio());
  }
  for (const ReplayRun& run : result.runs) {
    INFO(run.policy << " " << run.target_text());
    if (run.policy == "tova") CHECK(run.ratio() == Approx(run.target_ratio()).epsilon(0.03));
    CHECK(run.ratio() <= run.target_ratio() + 0.3);
  }
}

TEST_CASE("sinks turned to their places in the cache attend as if nothing lay between", "[h2o]") {
  // Every key and query is the same vector, rotated to its position. A score depends only on the
  // distance, so a sink that was rotated near a query scores like a neighbour.
  auto made = MakeAttentionCase({1, 1, 1, 16, 160}, 13);
  const Rope rope;
  std::vector<int64_t> positions(160);
  std::iota(positions.begin(), positions.end(), 0);
  const RopeTable table(rope, 16, positions);
  std::byte* keys = made->Keep(160 * 16 * 4);
  for (size_t t = 0; t < 160; ++t) {
    std::vector<float> key(16, 0.5f);
    table.Rotate(t, 1, key.data());
    for (size_t i = 0; i < 16; ++i) StoreLE(keys + 4 * (t * 16 + i), key[i]);
  }
  LayerKv& layer = made->snapshot.layers[0];
  layer.k = ContiguousTensor(keys, DType::kF32, 160, 1, 16, Order::kTokenHeadDim);
  made->trace.layers[0].queries = ContiguousView(DType::kF32, {160, 1, 16}, keys);
  ReplayRequest request = SmallRequest();
  request.engine = nullptr;
  request.policies = {"streaming"};
  request.targets.clear();
  request.budgets = {{30, 1, false}};
  const ReplayResult plain = RunOn(*made, request);
  request.re_rotation = rope;
  const ReplayResult rotated = RunOn(*made, request);
  CHECK(PlanEvents(plain.runs[0]) == PlanEvents(rotated.runs[0]));
  // The same tokens stay, so their mass in the full cache is the same, but the outputs differ.
  CHECK(rotated.runs[0].quality->mass.mean == Approx(plain.runs[0].quality->mass.mean));
  CHECK(rotated.runs[0].quality->output_error.mean != plain.runs[0].quality->output_error.mean);
  // The last row, computed directly: 31 keys at distances 30 to 0, whichever tokens they are.
  const std::span<const float> floats(reinterpret_cast<const float*>(keys), 160 * 16);
  const LayerAttention attention(made->trace, made->trace.layers[0], layer);
  const std::vector<float> v = GatherFloats(*layer.v, 0, 160, Order::kTokenHeadDim);
  const std::vector<uint64_t> last = {159};
  const AttentionRows row =
      eviction::CompareReRotated(attention, rotated.runs[0].plans[0], 0, last, floats, v);
  const KeepPlan held = rotated.runs[0].plans[0].HeldBefore(0, 159);
  REQUIRE(held == KeepPlan{{0, 4}, {133, 26}});
  std::vector<uint32_t> tokens = ListTokens(held);
  tokens.push_back(159);
  std::vector<double> weights;
  double sum = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const float *q = &floats[159 * 16], *k = &floats[(129 + i) * 16];  // query 159 and key 129 + i
    double score = 0;
    for (size_t d = 0; d < 16; ++d) score += static_cast<double>(q[d]) * static_cast<double>(k[d]);
    weights.push_back(std::exp(score / 4));
    sum += weights.back();
  }
  double norm2 = 0;
  for (size_t d = 0; d < 16; ++d) {
    double out = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      out += weights[i] / sum * static_cast<double>(v[tokens[i] * 16 + d]);
    }
    norm2 += out * out;
  }
  CHECK(row.changed_norm2[0] == Approx(norm2).epsilon(1e-4));
}

TEST_CASE("tokens outside a sliding window are neither held nor saved", "[h2o]") {
  const auto made = MakeAttentionCase({}, 41);
  for (TraceLayer& layer : made->trace.layers) layer.rule.window = 40;
  ReplayRequest request = SmallRequest();
  request.engine = nullptr;
  request.config.layer_start = 0;
  request.targets.clear();
  request.policies = {"window"};
  const auto ratio_of = [&](uint64_t tokens) {
    request.budgets = {{tokens, 0, false}};
    const ReplayResult result = RunOn(*made, request);
    CHECK(std::count_if(result.notes.begin(), result.notes.end(), [](const std::string& note) {
            return note.find("layers 0, 1, 2 with a sliding window (of at least 40 tokens)") == 0;
          }) == 1);
    return result.runs.front().ratio();
  };
  CHECK(ratio_of(80) == 1);
  CHECK(ratio_of(20) == Approx(2));
  for (TraceLayer& layer : made->trace.layers) layer.rule.window.reset();
  request.budgets = {{80, 0, false}};
  const ReplayResult whole = RunOn(*made, request);
  CHECK(whole.runs.front().ratio() == Approx(2));
}

TEST_CASE("layers without rows count as kept, as the run's own plan has it", "[h2o]") {
  auto made = MakeAttentionCase({}, 14);
  made->trace.layers.erase(made->trace.layers.begin() + 1);
  for (const eviction::EngineRule* engine : std::span(kEngines).first(4)) {
    ReplayRequest request = SmallRequest();
    request.engine = engine;
    request.policies = {"block", "window"};
    const ReplayResult result = RunOn(*made, request);
    for (const ReplayRun& run : result.runs) {
      INFO(eviction::EngineText(result) << " " << run.policy);
      uint64_t kept = 0;  // kept before the last row; under a budget, after it
      for (const LayerKv& layer : made->snapshot.layers) {
        const auto plan = std::find_if(run.plans.begin(), run.plans.end(),
                                       [&](const auto& each) { return each.layer == layer.index; });
        const uint64_t row = layer.k.row_bytes() + layer.v->row_bytes();
        const bool within = run.budget.has_value();
        kept += row * (plan == run.plans.end() || plan->events.empty()
                           ? result.end
                           : KeptTokens(plan->HeldBefore(0, result.end - (within ? 0 : 1))) +
                                 (within ? 0 : 1));
      }
      CHECK(run.evictions() > 0);
      CHECK(run.steps.back().kept == kept);
      CHECK(run.steps.back().allocated >= kept);
      CHECK(run.schedules[1].evictions.empty());
    }
    ForEachEvent(result, [](const ReplayEvent& made_event) {
      const Json event = ToJson(ReplayEventFields().Object(made_event));
      if (event["type"] == "call" && event["layer"] == 1) CHECK_FALSE(event.contains("kept"));
    });
  }
}

TEST_CASE("a policy that amounts to another one says so", "[h2o]") {
  const auto made = MakeAttentionCase({}, 15);
  ReplayRequest request = SmallRequest();
  request.engine = nullptr;
  request.policies = {"snapkv", "pyramid", "window", "streaming"};
  request.targets.clear();
  request.budgets = {{30, 1, false}};
  const auto names = [&](uint64_t window) {
    request.paper.window = window;
    std::vector<std::string> texts;
    for (const ReplayRun& run : RunOn(*made, request).runs) texts.push_back(run.policy_text());
    std::sort(texts.begin(), texts.end());
    return texts;
  };
  CHECK(names(64) == std::vector<std::string>{"pyramid (= window here)", "snapkv (= window here)",
                                              "streaming", "window"});
  CHECK(names(20) ==
        std::vector<std::string>{"pyramid (= snapkv here)", "snapkv", "streaming", "window"});
  CHECK(names(1) == std::vector<std::string>{"pyramid", "snapkv", "streaming", "window"});
  request.paper.sinks = 0;
  CHECK(names(1)[2] == "streaming (= window here)");
  request.paper.window = 64;
  request.budgets.push_back({100, 1, false});
  const ReplayResult result = RunOn(*made, request);
  const std::string page =
      eviction::ReportPage({made->snapshot, made->trace, request, result}).Text();
  CHECK(page.find("streaming (= window here)</text>") != std::string::npos);
  CHECK(page.find(">snapkv (= window here)</th>") != std::string::npos);
}

}  // namespace kv::mnn::h2o::replay_test
