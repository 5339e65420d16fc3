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

// Where a figure comes from.
enum class Voice {
  kOriginal,  // a key of the original gate, with the original's definition
  kTrue,      // what that key is taken for: measured on the very bytes, worst row instead of best
};

// What may keep a figure from being known.
enum class Needs {
  kReplay,  // replayed cases and engine logs have it
  kEngine,  // only a whole engine has it
  kClock,   // wall time: not under --deterministic
};

enum class Better { kHigher, kLower, kNeither };

struct MetricInfo {
  std::string_view name;  // "lossy_best", "attention_error.worst"
  Voice voice;
  Needs needs;
  Better better;
  bool is_flag;  // true or false, kept as 1 or 0
  std::string_view summary;
};

// The figures that the gate itself defines, in the order of reports. Engines add their own.
std::span<const MetricInfo> OwnMetrics();

// The part of the cache that decided a figure. Tokens are positions; end exclusive.
struct Where {
  std::optional<uint32_t> layer = {};
  std::string kind = {};  // "K", "V" or empty
  std::optional<uint32_t> head = {};
  std::optional<uint64_t> token_begin = {}, token_end = {};
  std::string log = {};              // of engine logs: the file and row
  std::optional<uint32_t> dim = {};  // of one value; a channel of all heads where `head` is unknown

  bool known() const { return layer || head || token_begin || !kind.empty() || !log.empty(); }
  bool operator==(const Where&) const = default;
};
// "layer 3 K, head 2, tokens 16:47"; empty when nothing is known. A single token is "token 16", or
// a range as well where that is wanted.
std::string Text(const Where& where, bool always_range = false);

// One figure: a value, or the reason why there is none.
struct Measurement {
  std::optional<double> value;
  std::string reason;  // of a value: what a reader of a failure must know
  Where where = {};
  std::optional<double> noise = {};  // how far the figure varies when nothing is changed
};

class Measurements {
 public:
  // A value that is not finite becomes a reason.
  void Set(std::string_view name, double value, Where where = {}, std::string note = {});
  void Missing(std::string_view name, std::string reason);
  void SetNoise(std::string_view name, double noise);  // no effect on a figure that is not there
  void Copy(std::string_view name, const Measurements& from);  // which must have it
  // Null: never spoken of.
  const Measurement* Find(std::string_view name) const;
  std::optional<double> Value(std::string_view name) const;

 private:
  std::map<std::string, Measurement, std::less<>> by_name_;
};

}  // namespace kv::gate
