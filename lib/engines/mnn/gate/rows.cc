// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Rows of MNN's suite: writes them from replays, reads them from logs, and describes them in
// schemas.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lib/engines/mnn/gate/engine.h"
#include "lib/engines/mnn/logs/analyzer.h"
#include "lib/engines/mnn/logs/truth.h"
#include "lib/fields/fields.h"

namespace kv::mnn {

using namespace gate;

namespace {

using enum Voice;
using enum Needs;
using enum Better;
using enum Kind;

// The figures of MNN's own gate under its keys, with its definitions. "Best" is the maximum over
// the rows, even for latencies and fallbacks.
constexpr MetricInfo kMetrics[] = {
    {"lossy_best", kOriginal, kReplay, kHigher, kNumber,
     "largest h2o_lossy_ratio of any row: the last plan's, of one layer", "eviction_ratio_best"},
    {"lossless_selected_value", kOriginal, kReplay, kHigher, kNumber,
     "offline estimate over the front layers, grouped by 192 tokens; no runtime figure",
     "offline_ratio"},
    {"decode_gate_tps", kOriginal, kEngine, kHigher, kNumber, "tokens/s of the whole model",
     "tokens_per_second"},
    {"decode_best", kOriginal, kEngine, kHigher, kNumber, "fastest row, tokens/s"},
    {"decode_baseline", kOriginal, kEngine, kNeither, kNumber, "baseline tokens/s"},
    {"decode_drop_ratio", kOriginal, kEngine, kLower, kNumber,
     "(decode_baseline - decode_gate_tps) / decode_baseline", "tokens_per_second_drop"},
    {"runtime_decomp_best_us", kOriginal, kClock, kLower, kNumber, "slowest row's decode time",
     "decode_us"},
    {"runtime_async_wait_best_us", kOriginal, kClock, kLower, kNumber, "longest wait for workers",
     "wait_us"},
    {"runtime_async_wait_headroom_us", kOriginal, kClock, kHigher, kNumber, "limit - longest wait"},
    {"runtime_async_wait_headroom_ratio", kOriginal, kClock, kHigher, kNumber, "headroom / limit"},
    {"runtime_queue_peak_best", kOriginal, kReplay, kLower, kNumber, "deepest queue of any row",
     "queue_peak"},
    {"runtime_fallback_best", kOriginal, kReplay, kLower, kNumber, "most fallbacks of any row",
     "fallbacks"},
    {"runtime_backpressure_skip_best", kOriginal, kReplay, kLower, kNumber,
     "most submissions skipped because the queue was full", "queue_skips"},
    {"runtime_decode_cache_hit_best", kOriginal, kReplay, kNeither, kNumber, "most cache hits",
     "cache_hits"},
    {"runtime_decode_cache_miss_best", kOriginal, kReplay, kNeither, kNumber, "most cache misses",
     "cache_misses"},
    {"kv_content_consistency_pass", kOriginal, kReplay, kHigher, kFlag,
     "no fallback, some activity, no suspicious log line; no byte is compared"},
    {"kv_invalid_log_count", kOriginal, kEngine, kLower, kNumber, "suspicious lines in the logs",
     "suspicious_log_lines"},
    {"baseline_decode_tps_avg", kOriginal, kEngine, kNeither, kNumber, "llm_demo without H2O"},
    {"candidate_decode_tps_avg", kOriginal, kEngine, kHigher, kNumber, "llm_demo with H2O"},
    {"candidate_lossy_ratio_avg", kOriginal, kReplay, kHigher, kNumber, "mean over rows"},
    {"candidate_lossless_ratio_avg", kOriginal, kReplay, kHigher, kNumber, "mean over rows"},
    {"candidate_runtime_total_ratio_avg", kOriginal, kReplay, kHigher, kNumber,
     "mean of lossy x lossless: factors of different layers"},
    {"decode_pass", kOriginal, kEngine, kHigher, kFlag, "the engine's own verdict on speed"},
};

// A case whose row is being written.
struct Row {
  const CaseResult& result;
  const OutputNames& outputs;

  bool ran() const { return result.origin != Origin::kNone; }
  const Row* if_suite(std::string_view name) const {
    return result.spec.suite == name ? this : nullptr;
  }
};
using RowField = Fields<Row>::Field;

const Rule* LimitOn(const CaseSpec& spec, std::string_view metric, Op op) {
  const auto found = std::find_if(spec.rules.begin(), spec.rules.end(), [&](const Rule& rule) {
    return rule.metric == metric && rule.op == op;
  });
  return found == spec.rules.end() ? nullptr : &*found;
}

std::string_view QualityStatus(Status status) {
  constexpr std::string_view kWords[] = {"PASS", "FAIL", "NOT_RUN", "INCONCLUSIVE"};
  return kWords[static_cast<size_t>(status)];
}

std::string FailureReason(const Row& row) {
  const CaseResult& result = row.result;
  return result.status == Status::kPass           ? std::string()
         : result.status == Status::kNotRun       ? "not run: " + result.reason
         : result.status == Status::kInconclusive ? "inconclusive: " + result.reason
                                                  : result.reason;
}

RowField Figure(std::string_view metric, std::string_view key = {}) {
  const MetricInfo& info = *std::find_if(std::begin(kMetrics), std::end(kMetrics),
                                         [&](const auto& one) { return one.name == metric; });
  return {key.empty() ? metric : key,
          info.summary,
          [&info](const Row& row) {
            const std::optional<double> value = row.result.measured.Value(info.name);
            return value ? FigureValue(*value, info.is_flag()) : Value();
          },
          {.schema = FigureSchema(info)}};
}

RowField DropTarget() {
  return {"decode_drop_target",
          "Largest decode_drop_ratio that passes; null where no rule limits it",
          [](const Row& row) {
            const Rule* drop = LimitOn(row.result.spec, "decode_drop_ratio", Op::kAtMost);
            return drop == nullptr ? std::nullopt : std::optional(drop->limit);
          }};
}

// Returns a field for a key whose text a replay does not have.
RowField NoText(std::string_view key, std::string_view text) {
  return {key, text, [](const Row&) { return ""; }};
}

const Fields<Row>& RuntimeFields() {
  static const Fields<Row> fields = {
      {"quality_status",
       "The verdict as the engine's scripts spell it: PASS or FAIL; of a replay also NOT_RUN and "
       "INCONCLUSIVE",
       [](const Row& row) { return QualityStatus(row.result.status); }},
      Figure("lossy_best"),
      Figure("lossless_selected_value"),
      {"decode_aggregation",
       "How the tokens/s of rows become decode_gate_tps: avg, median, p90 or best",
       [](const Row&) { return "avg"; }},
      Figure("decode_gate_tps"),
      Figure("decode_best"),
      Figure("decode_baseline"),
      Figure("decode_drop_ratio"),
      DropTarget(),
      Figure("runtime_decomp_best_us"),
      Figure("runtime_async_wait_best_us"),
      Figure("runtime_async_wait_headroom_us"),
      Figure("runtime_async_wait_headroom_ratio"),
      {"runtime_async_wait_headroom_warn",
       "Whether runtime_async_wait_headroom_ratio is below the share at which the engine warns "
       "(default: 0.15)",
       [](const Row& row) {
         const auto headroom = row.result.measured.Value("runtime_async_wait_headroom_ratio");
         return headroom && *headroom >= 0 &&
                *headroom < logs::AnalyzerOptions{}.async_wait_headroom_warn_ratio;
       }},
      Figure("runtime_queue_peak_best"),
      Figure("runtime_fallback_best"),
      Figure("runtime_backpressure_skip_best"),
      Figure("runtime_decode_cache_hit_best"),
      Figure("runtime_decode_cache_miss_best"),
      Figure("kv_content_consistency_pass"),
      Figure("kv_invalid_log_count")};
  return fields;
}

const Fields<Row>& DemoFields() {
  static const Fields<Row> fields = {
      Figure("baseline_decode_tps_avg"),
      Figure("candidate_decode_tps_avg"),
      Figure("decode_drop_ratio"),
      DropTarget(),
      Figure("candidate_lossy_ratio_avg"),
      Figure("candidate_lossless_ratio_avg"),
      Figure("candidate_runtime_total_ratio_avg"),
      Figure("runtime_decomp_best_us"),
      Figure("runtime_decode_cache_hit_best", "decode_cache_hit_best"),
      Figure("decode_pass"),
      NoText("run_order", "Order in which baseline and candidate ran; empty for a replay")};
  return fields;
}

const Fields<Row>& RowFields() {
  const auto runtime = [](const Row& row) { return row.if_suite(kRuntimeSuite); };
  const auto demo = [](const Row& row) { return row.if_suite(kDemoSuite); };
  static const Fields<Row> report = {
      {"summary_exists", "Whether a report of the case was found or written",
       [](const Row& row) { return row.ran() && !row.outputs.summary_md.empty(); }},
      {"quality_gate_found", "Whether the report has a verdict; for a replay, whether it was run",
       [](const Row& row) { return row.ran(); }}};
  static const Fields<Row> demo_report = {
      NoText("report_json", "Path of the report on the run of prompts; empty if there is none")};
  static const Fields<Row> fields = {
      {"suite", "Suite that the case belongs to: runtime (bench) or llm_demo (prompts)",
       [](const Row& row) { return row.result.spec.suite; }, OneOf(kRuntimeSuite, kDemoSuite)},
      {"case", "Name of the case", [](const Row& row) { return row.result.spec.name; }},
      {"mode", "Mode of the case: a mode of the engine, compare or quant",
       [](const Row& row) { return row.result.spec.mode; }},
      {"return_code", "Exit status of the engine's script, 0 for a replay; null if nothing was run",
       [](const Row& row) { return row.ran() ? std::optional(0) : std::nullopt; }},
      Fields<Row>::Inline(runtime, report),
      {"failure_reason",
       "Why the case did not pass, after 'not run: ' or 'inconclusive: ' where that applies; empty "
       "if it passed",
       FailureReason},
      {"overall_pass", "Whether the case passed",
       [](const Row& row) { return row.result.status == Status::kPass; }},
      {"summary", "Path of the case's report as given; empty if no report was written",
       [](const Row& row) { return row.outputs.summary_md; }},
      Fields<Row>::Inline(demo, demo_report),
      NoText("console_log", "Path of the engine's console log; empty for a replay"),
      Fields<Row>::Inline(runtime, RuntimeFields()),
      Fields<Row>::Inline(demo, DemoFields())};
  return fields;
}

// Restores the rules of MNN's gate from the figures of its row, because it does not record them.
void AddOriginalRules(const Json& row, CaseView& c) {
  const auto add = [&](const char* metric, double value, double limit) {
    Measurements measured;
    measured.Set(metric, value);
    c.rules.push_back(Evaluate({metric, Op::kAtMost, limit}, measured));
  };
  const double target = NumberIn(row, "decode_drop_target").value_or(0);
  const double baseline = std::max(NumberIn(row, "decode_baseline").value_or(0),
                                   NumberIn(row, "baseline_decode_tps_avg").value_or(0));
  const auto drop = NumberIn(row, "decode_drop_ratio");
  if (drop && baseline > 0) add("decode_drop_ratio", *drop, target);
  const auto wait = NumberIn(row, "runtime_async_wait_best_us");
  const auto headroom = NumberIn(row, "runtime_async_wait_headroom_us");
  if (wait && headroom && *headroom != 0) {
    add("runtime_async_wait_best_us", *wait, *wait + *headroom);
  }
}

Value NumberSchema(std::string_view text) {
  return Value::Object{{"description", text}, {"type", Value::List{"number", "null"}}};
}

// Returns the schema of a figure over the rows of the logs.
Value SpreadSchema(std::string_view text) {
  return Value::Object{
      {"description", fmt::format("{}, over the rows of the logs", text)},
      {"type", "object"},
      {"properties",
       Value::Object{{"least", NumberSchema("Smallest; null where rows are not known")},
                     {"mean", NumberSchema("Mean; null if not known")},
                     {"median", NumberSchema("Median; null where rows are not known")},
                     {"most", NumberSchema("Largest; null if not known")}}}};
}

const Fields<logs::LosslessLines::Layer>& LayerLinesFields() {
  using Layer = logs::LosslessLines::Layer;
  static const Fields<Layer> fields = {
      {"layer", "Number of the layer", &Layer::layer},
      {"lines", "Lossless log lines of the layer", &Layer::lines},
      {"ratio", "Lossless ratio of the layer's last log line", &Layer::last_ratio, Nullable()},
      {"fallbacks", "Fallbacks in the layer's log lines", &Layer::fallbacks, Nullable()}};
  return fields;
}

}  // namespace

std::span<const MetricInfo> GateMetrics() { return kMetrics; }

Value MakeRow(const CaseResult& result, const OutputNames& outputs) {
  return RowFields().Object({result, outputs});
}

// Returns the schema of a row. The engine's own rows may lack any key that only one suite has.
Value RowSchema() {
  Value schema = RowFields().Schema();
  std::erase_if(*schema.get_if<Value::Object>(),
                [](const Value::Member& one) { return one.first == "dependentRequired"; });
  return schema;
}

CaseView ReadRow(const Json& row) {
  CaseView c;
  c.name = TextAt(row, "case", "unnamed");
  c.suite = TextAt(row, "suite");
  c.mode = TextAt(row, "mode");
  c.origin = "engine";
  c.reason = TextAt(row, "failure_reason");
  c.status = TruthAt(row, "overall_pass")           ? Status::kPass
             : c.reason.find("not run: ") == 0      ? Status::kNotRun
             : c.reason.find("inconclusive: ") == 0 ? Status::kInconclusive
                                                    : Status::kFail;
  // If the row's overall verdict is negative, its parts are listed.
  const bool denied = NumberIn(row, "return_code").value_or(0) != 0 ||
                      FlagIn(row, "decode_pass") == false ||
                      FlagIn(row, "kv_content_consistency_pass") == false ||
                      TextAt(row, "quality_status") == "FAIL";
  if (c.status == Status::kPass && denied) c.status = Status::kFail;
  AddOriginalRules(row, c);
  for (const auto& item : row.items()) {
    const bool number = item.value().is_number() && item.key() != "return_code";
    if (number || item.key() == "kv_content_consistency_pass") {
      c.engine.emplace_back(item.key(), item.value());
    }
  }
  return c;
}

Value::Object LogFigureSchemas() {
  const auto text = [](std::string_view sentence) {
    return Value::Object{{"description", sentence}, {"type", "string"}};
  };
  return {
      {"rows", Value::Object{{"description", "Rows of the logs that the figures are of"},
                             {"type", "integer"},
                             {"minimum", 0}}},
      {"lossy_median",
       NumberSchema(
           "Median of the rows' lossy ratios, as the logs report them; null if not known")},
      {"lossless_worst", NumberSchema("Smallest lossless ratio of a row, as the logs report it; "
                                      "null where rows are not known")},
      {"lossless_mean",
       NumberSchema(
           "Mean of the rows' lossless ratios, as the logs report them; null if not known")},
      {"whole_model_ratio_reason", text("Why whole_model_ratio is null")},
      {"content_reason", text("Why content is null")},
      {"decode_tokens_per_second", SpreadSchema("Tokens/s of decoding")},
      {"decode_repeat_deviation",
       NumberSchema("Relative deviation of the tokens/s over the repetitions of a row; null if the "
                    "logs do not say")},
      {"decode_drop_like_for_like",
       NumberSchema("Drop of tokens/s as a share of that of baseline rows of the same lengths; "
                    "null without baseline rows")},
      {"decode_drop_worst", NumberSchema("Largest decode_drop_ratio of a bucket of prompts")},
      {"decode_noise",
       NumberSchema(
           "Relative noise of the tokens/s, below which a drop says nothing: that of the baselines "
           "or twice decode_repeat_deviation, whichever is larger; null if not known")},
      {"decompress_us", SpreadSchema("Microseconds spent decompressing")},
      {"async_wait_us", SpreadSchema("Microseconds spent waiting for workers")},
      {"queue_peak", SpreadSchema("Largest number of ranges waiting for compression")},
      {"fallbacks",
       SpreadSchema("Fallbacks, which are ranges that failed to be compressed or to be restored")},
      {"backpressure_skips", SpreadSchema("Ranges skipped because the queue was full")},
      {"decode_cache_hits", SpreadSchema("Reads answered from the cache of decoded ranges")},
      {"layers", Value::Object{{"description", "Layers with lossless lines in the logs"},
                               {"type", "array"},
                               {"items", LayerLinesFields().Schema()}}}};
}

}  // namespace kv::mnn
