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

namespace kv::gate {

// Whose definition a figure has.
enum class Voice {
  kOriginal,  // a key of the engine's own gate, with its definition
  kTrue,      // ours: measured on the very bytes, with the worst row instead of the best
};

// What a figure needs to be known.
enum class Needs {
  kReplay,  // a replay or engine logs
  kEngine,  // a run of the whole engine
  kClock,   // wall time, which --deterministic leaves out
};

enum class Better { kHigher, kLower, kNeither };

struct MetricInfo {
  std::string_view name;  // such as "attention_error.worst"
  Voice voice;
  Needs needs;
  Better better;
  bool is_flag;  // true or false, stored as 1 or 0
  std::string_view summary;
  std::string_view word = {};  // what a config may call it that knows no engine's words
};

// The figures that the gate itself defines, in the order of reports. Engines add their own.
std::span<const MetricInfo> OwnMetrics();

// The part of the cache that decided a figure. Tokens are positions, and the end is exclusive.
struct Where {
  std::optional<uint32_t> layer = {};
  std::string kind = {};  // "K", "V" or empty
  std::optional<uint32_t> head = {};
  std::optional<uint64_t> token_begin = {}, token_end = {};
  std::string log = {};              // for engine logs, the file and row
  std::optional<uint32_t> dim = {};  // of one value; a channel of all heads if `head` is unknown

  bool known() const { return layer || head || token_begin || !kind.empty() || !log.empty(); }
  bool operator==(const Where&) const = default;
};
// Writes a place such as "layer 3 K, head 2, tokens 16:47"; empty if nothing is known. A single
// token reads "token 16", or "tokens 16:17" with `always_range`.
std::string Text(const Where& where, bool always_range = false);

// The values that a figure may have where a replay cannot know it more closely. A rule that holds
// for some of them only is inconclusive.
struct FigureRange {
  double least = 0, most = 0;
  std::string why;
};

// One figure: a value, or the reason why it is not known.
struct Measurement {
  std::optional<double> value;
  std::string reason;  // with a value: what explains it, should its rule fail
  Where where = {};
  std::optional<double> noise = {};       // how far the figure varies when nothing is changed
  std::optional<FigureRange> range = {};  // nothing: `value` is exact
  bool undefined = false;  // it was measured, but no number came of it: every rule on it fails
};

class Measurements {
 public:
  // A value that is not finite makes the figure undefined.
  void Set(std::string_view name, double value, Where where = {}, std::string note = {});
  void Missing(std::string_view name, std::string reason);
  void Undefined(std::string_view name, std::string reason);
  // These have no effect on a figure that is not there.
  void SetNoise(std::string_view name, double noise);
  void SetRange(std::string_view name, const FigureRange& range);
  void Copy(std::string_view name, const Measurements& from);  // `from` must have the figure
  // Null if nothing was ever said about the figure.
  const Measurement* Find(std::string_view name) const;
  std::optional<double> Value(std::string_view name) const;

 private:
  std::map<std::string, Measurement, std::less<>> by_name_;
};

}  // namespace kv::gate
