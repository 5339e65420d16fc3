// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/gate/engine.h"

#include "lib/engines/mnn/gate/cases.h"
#include "lib/engines/mnn/gate/logs.h"
#include "lib/engines/mnn/gate/metrics.h"
#include "lib/engines/mnn/gate/replay_case.h"
#include "lib/engines/mnn/gate/rows.h"
#include "lib/engines/mnn/gate/sized_cases.h"
#include "lib/engines/mnn/logs/analyzer.h"
#include "lib/engines/mnn/logs/suite.h"

namespace kv::mnn {
namespace {

constexpr std::string_view kRuntimes[] = {"mnn", "mnn-r6", "design"};
constexpr gate::SuiteInfo kSuites[] = {{kRuntimeSuite, "Runtime"}, {kDemoSuite, kDemoSuite}};

// Ratios may drop by 1%, attention error may rise by 5%, resident bytes by 1%.
constexpr gate::DeltaRule kBaselineRules[] = {{"lossy_worst", 0.01, {}},
                                              {"whole_model_ratio", 0.01, {}},
                                              {"measured_ratio", 0.01, {}},
                                              {"measured_ratio_mean", 0.01, {}},
                                              {"lossless_selected_value", 0.01, {}},
                                              {"attention_error.mean", {}, 0.05},
                                              {"attention_error.evicting_mean", {}, 0.05},
                                              {"resident_bytes.peak", {}, 0.01}};

constexpr std::string_view kColumns[] = {
    "whole_model_ratio",    "measured_ratio",          "lossy_worst",
    "lossy_mean",           "content.compared_ranges", "content.mismatches",
    "attention_error.mean", "attention_error.worst",   "resident_bytes.peak"};

constexpr gate::FigurePair kPairs[] = {
    {"eviction", "lossy_best", "lossy_worst"},
    {"real prompts", "candidate_lossy_ratio_avg", "lossy_worst", kDemoSuite},
    {"lossless", "lossless_selected_value", "measured_ratio", {}, true},
    {"real prompts", "candidate_lossless_ratio_avg", "measured_ratio", kDemoSuite},
    {"whole model", "candidate_runtime_total_ratio_avg", "whole_model_ratio"},
    {"content", "kv_content_consistency_pass", "content.compared_ranges"},
    {"decode speed", "decode_drop_ratio", "attention_drop_ratio"}};

constexpr gate::HistoryFigure kHistory[] = {
    {"whole_model_ratio", "ratio", "Ratio of the whole model. Higher is better."},
    {"measured_ratio", "ratio", "Lossless ratio of verified bytes. Higher is better."},
    {"lossy_best", "ratio", "Eviction ratio, of the best row of each case (lossy_best)."},
    {"attention_error.mean", "error", "Mean attention error. Lower is better.", false, true},
    {"attention_error.evicting_mean", "error",
     "Mean attention error of queries that lost a key. Lower is better.", false, true},
    {"resident_bytes.peak", "bytes", "Most bytes of K and V held. Lower is better.", true, true},
    {"decode_drop_ratio", "share", "Decode speed lost against the baseline. Lower is better.",
     false}};

constexpr std::string_view kRemarks[] = {
    "This summary is the engine's own. Its *_best figures are the largest of any row, also "
    "where more is worse; one good row passes a ratio.",
    "lossless_selected_value is an offline estimate over the first layers, not a figure of "
    "these runs.",
    "kv_content_consistency_pass compares no content: it counts log lines, queue activity and "
    "fallbacks.",
    "decode_drop_ratio sets the mean of the rows against the best row of another batch."};

bool Compresses(const gate::CaseSpec& spec) {
  return gate::IsOn(spec.params, "h2o_lossless_enable");
}

gate::CaseResult Replay(const gate::CaseSpec& spec, const gate::Subject& subject,
                        Progress* progress) {
  return ReplayCase(spec, subject, progress);
}

}  // namespace

const gate::Engine& Engine() {
  static const gate::Engine engine = {.name = "mnn",
                                      .runtimes = kRuntimes,
                                      .modes = kModes,
                                      .mode_param = kModeParam,
                                      .params = GateParams(),
                                      .metrics = GateMetrics(),
                                      .baseline_rules = kBaselineRules,
                                      .suites = kSuites,
                                      .case_names = CaseNames(),
                                      .suite_case = SuiteCaseOf,
                                      .rules_of = RulesOf,
                                      .sized_cases = SizedCases,
                                      .compresses = Compresses,
                                      .replay = Replay,
                                      .log_options = logs::AnalyzerOptionNames,
                                      .read_logs = ReadLogs,
                                      .report = {.title = "H2O final Summary",
                                                 .columns = kColumns,
                                                 .pairs = kPairs,
                                                 .history = kHistory,
                                                 .remarks = kRemarks,
                                                 .row = RowOf,
                                                 .line = logs::SuiteLine,
                                                 .read_row = ReadRow}};
  return engine;
}

}  // namespace kv::mnn
