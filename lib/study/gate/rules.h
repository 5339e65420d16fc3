// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/fields/value.h"

namespace kv::gate {

// The party that defines a figure.
enum class Voice {
  kOriginal,  // defined by the engine's own gate, under its key
  kTrue,      // defined by kvtool: measured on the same bytes, by the worst row instead of the best
};

// The input that a figure requires.
enum class Needs {
  kReplay,  // a replay or engine logs
  kEngine,  // a run of the whole engine
  kClock,   // wall time, which --deterministic leaves out
};

enum class Better { kHigher, kLower, kNeither };

// The kind of a figure's values. All are stored as double, flags as 1 or 0.
enum class Kind { kNumber, kCount, kFlag };

struct MetricInfo {
  std::string_view name;  // such as "attention_error.worst"
  Voice voice;
  Needs needs;
  Better better;
  Kind kind;
  std::string_view summary;
  std::string_view word = {};  // engine-neutral name that a config may use

  bool is_flag() const { return kind == Kind::kFlag; }
};

// Returns a figure as documents have it: counts and bytes are whole numbers, flags true or false,
// and NaN is null.
Value FigureValue(double value, bool is_flag);
// Returns the schema of a figure, which may be null.
Value FigureSchema(const MetricInfo& info);

// Returns the figures that the gate itself defines, in the order of reports. Engines add their own.
std::span<const MetricInfo> OwnMetrics();

// The part of the cache that decided a figure. Tokens are positions, and the end is exclusive.
struct Where {
  std::optional<uint32_t> layer = {};
  std::string kind = {};  // "K", "V" or empty
  std::optional<uint32_t> head = {};
  std::optional<uint64_t> token_begin = {}, token_end = {};
  std::string log = {};              // for engine logs, the file and row
  std::optional<uint32_t> dim = {};  // channel of a value; over all heads if `head` is unknown

  bool known() const { return layer || head || token_begin || !kind.empty() || !log.empty(); }
  bool operator==(const Where&) const = default;
};
// Writes a place such as "layer 3 K, head 2, tokens 16:47"; empty if nothing is known. A single
// token reads "token 16", or "tokens 16:17" with `always_range`.
std::string Text(const Where& where, bool always_range = false);

// The possible values of a figure that a replay cannot determine exactly. A rule that holds for
// only some of them is inconclusive.
struct FigureRange {
  double least = 0, most = 0;
  std::string why;
};

// One figure: a value, or the reason why it is unknown.
struct Measurement {
  std::optional<double> value;
  std::string reason;  // explains the value, in case its rule fails
  Where where = {};
  std::optional<double> noise = {};       // how far the figure varies if nothing is changed
  std::string noise_why = {};             // the source of that noise; empty: the suite's baselines
  std::optional<FigureRange> range = {};  // nothing: `value` is exact
  bool undefined = false;                 // measured, but not a number, so every rule on it fails
};

class Measurements {
 public:
  // A value that is not finite makes the figure undefined.
  void Set(std::string_view name, double value, Where where = {}, std::string note = {});
  void Missing(std::string_view name, std::string reason);
  void Undefined(std::string_view name, std::string reason);
  // These have no effect on a missing figure.
  void SetNoise(std::string_view name, double noise, std::string why = {});
  void SetRange(std::string_view name, const FigureRange& range);
  void Copy(std::string_view name, const Measurements& from);  // `from` must have the figure
  // Returns null if nothing was recorded for the figure.
  const Measurement* Find(std::string_view name) const;
  std::optional<double> Value(std::string_view name) const;

 private:
  std::map<std::string, Measurement, std::less<>> by_name_;
};

enum class Op { kAtLeast, kAtMost, kAbove, kBelow, kEqual, kDiffers };
std::string_view Name(Op op);  // ">="
std::optional<Op> ParseOp(std::string_view text);
bool Holds(double value, Op op, double limit);

// A threshold on one figure of one case.
struct Rule {
  std::string metric;
  Op op = Op::kAtLeast;
  double limit = 0;       // NaN if a rule of engine logs has none
  bool required = false;  // true: the rule fails if its figure is unknown
  bool implied = false;   // true: no config requested the rule, so alone it decides nothing
  bool is_flag = false;   // the figure and the limit are true (1) or false (0)
  std::string word = {};  // the metric's name in the config, if it differs

  const std::string& shown() const { return word.empty() ? metric : word; }
};

// The status of a rule or a case. Not run means that the figure was not measured, which proves
// nothing. Inconclusive means that it was measured, but the limit lies within its noise.
enum class Status { kPass, kFail, kNotRun, kInconclusive };
std::string_view Name(Status status);  // "pass", "fail", "not_run", "inconclusive"
std::string_view Text(Status status);  // as in a sentence: "not run" instead of "not_run"

struct RuleOutcome {
  Rule rule;
  Status status = Status::kNotRun;
  std::optional<double> value;
  // Distance of the value from the limit; negative if broken, absent for flags.
  std::optional<double> margin;
  std::string reason;  // why the rule was not run, or has this status
  Where where;
  std::string reproduce;                // the command line that reproduces a failure
  std::optional<double> baseline = {};  // older value, for a rule on a baseline
  bool pinned = false;                  // true: the baseline is the pinned one, not the last
  // For engine logs, the engine's own value and verdict, which may differ.
  std::optional<double> engine_value = {};
  std::optional<bool> engine_pass = {};

  // Returns the margin as a share of the limit; infinite if that is meaningless.
  double slack() const;
};

// Speeds of replays that alternate between the baseline and the case's parameters. Only the spread
// of equal replays tells whether two speeds really differ.
struct Noise {
  std::vector<double> baseline_tps, candidate_tps;
  double seconds = 0;  // duration of the shortest replay, in seconds

  // Returns the wider of the two spreads, each (max - min) / median; nothing from fewer than two
  // runs.
  std::optional<double> relative() const;
  double baseline() const;  // medians
  double candidate() const;
};
// Shorter replays are not judged by their time, because a scheduler's tick would decide.
inline constexpr double kLeastSeconds = 0.1;

// Judges a rule by its figure. Rules on speed need `noise`.
RuleOutcome Evaluate(const Rule& rule, const Measurements& measured, const Noise* noise = nullptr);

// Writes an outcome such as "lossy_best 1 < 3".
std::string Text(const RuleOutcome& outcome);
// Returns what a report writes behind an outcome, such as " (was 3.2), at layer 3 K".
std::string OlderAndPlace(const RuleOutcome& outcome);
std::string NumberText(double value, bool is_flag = false);

// Permitted change of a figure from its value in an older run, as a share of that value.
struct DeltaRule {
  std::string_view metric;
  std::optional<double> max_drop, max_rise;
  bool is_flag = false;   // the metric is true (1) or false (0)
  bool is_asked = false;  // true: a config gives it, so it must compare something
};

}  // namespace kv::gate
