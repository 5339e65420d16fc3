// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads a plan and computes for each position the last row that sees it.
#include "apps/capture-llama/plan.h"

#include <algorithm>
#include <map>

#include "apps/capture-llama/failure.h"
#include "apps/capture-llama/json.h"
#include "apps/capture-llama/tensor_file.h"

namespace kv::capture {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 32;

struct Event {
  int32_t token = -1, layer = -1;
  int32_t head = -1;  // -1: all heads
  std::vector<Evictions::Run> kept;
  bool has_head = false, has_kept = false;
};

// Reads runs [begin, count], which must ascend without overlapping.
void ReadKept(JsonReader& json, int32_t tokens, std::vector<Evictions::Run>& kept) {
  json.Array([&] {
    int32_t numbers[2] = {};
    int read = 0;
    json.Array([&] {
      if (read == 2) json.Refuse("a range in 'kept' has more than two numbers");
      numbers[read++] = static_cast<int32_t>(json.Integer(0, tokens));
    });
    if (read != 2) json.Refuse("a range in 'kept' does not have two numbers");
    const auto [begin, count] = numbers;
    if (count > tokens - begin) json.Refuse("a range exceeds the run's tokens");
    if (!kept.empty() && begin < kept.back().second) json.Refuse("kept ranges do not ascend");
    if (count != 0) kept.emplace_back(begin, begin + count);
  });
}

Event ReadEvent(JsonReader& json, const Geometry& geometry, int32_t tokens) {
  Event event;
  json.Object([&](std::string_view key) {
    if (key == "token") {
      event.token = static_cast<int32_t>(json.Integer(0, tokens - 1));
    } else if (key == "layer") {
      event.layer = static_cast<int32_t>(json.Integer(0, geometry.layers - 1));
    } else if (key == "kv_head") {
      event.has_head = true;
      if (!json.Null()) event.head = static_cast<int32_t>(json.Integer(0, geometry.kv_heads - 1));
    } else if (key == "kept") {
      event.has_kept = true;
      event.kept.clear();
      ReadKept(json, tokens, event.kept);
    } else {
      json.Skip();
    }
  });
  if (event.token < 0 || event.layer < 0 || !event.has_head || !event.has_kept) {
    json.Refuse("an event lacks token, layer, kv_head or kept");
  }
  if (!event.kept.empty() && event.kept.back().second > event.token + 1) {
    json.Refuse("an event keeps positions after its token");
  }
  return event;
}

}  // namespace

Evictions::Evictions(const Geometry& geometry, int32_t tokens)
    : layers_(geometry.layers),
      kv_heads_(geometry.kv_heads),
      tokens_(tokens),
      last_rows_(size_t(geometry.layers) * size_t(geometry.kv_heads) * size_t(tokens), kNever) {}

std::span<const int32_t> Evictions::LastRows(int32_t layer, int32_t head) const {
  const size_t list = size_t(layer) * size_t(kv_heads_) + size_t(head);
  return std::span(last_rows_).subspan(list * size_t(tokens_), size_t(tokens_));
}

bool Evictions::Keep(int32_t layer, int32_t head, int32_t token, const std::vector<Run>& kept) {
  const size_t list = size_t(layer) * size_t(kv_heads_) + size_t(head);
  int32_t* const rows = last_rows_.data() + list * size_t(tokens_);
  for (const auto& [begin, end] : kept) {
    if (std::any_of(rows + begin, rows + end, [&](int32_t row) { return row < token; }))
      return false;
  }
  int32_t at = 0;
  const auto evict_up_to = [&](int32_t end) {
    for (; at < end; ++at) rows[at] = std::min(rows[at], token);
  };
  for (const auto& [begin, end] : kept) {
    evict_up_to(begin);
    at = end;
  }
  evict_up_to(token + 1);
  return true;
}

bool Evictions::common() const {
  const std::span<const int32_t> first = LastRows(0, 0);
  for (size_t begin = 0; begin < last_rows_.size(); begin += size_t(tokens_)) {
    if (!std::equal(first.begin(), first.end(),
                    last_rows_.begin() + static_cast<ptrdiff_t>(begin))) {
      return false;
    }
  }
  return true;
}

int32_t Evictions::First() const {
  return last_rows_.empty() ? kNever : *std::min_element(last_rows_.begin(), last_rows_.end());
}

std::vector<std::pair<int32_t, std::vector<Evictions::Run>>> Evictions::Steps() const {
  const std::span<const int32_t> rows = LastRows(0, 0);
  std::map<int32_t, std::vector<Run>> steps;
  for (int32_t at = 0; at < tokens_;) {
    int32_t end = at + 1;
    while (end < tokens_ && rows[size_t(end)] == rows[size_t(at)]) ++end;
    if (rows[size_t(at)] != kNever) steps[rows[size_t(at)]].emplace_back(at, end);
    at = end;
  }
  return {steps.begin(), steps.end()};
}

std::vector<Evictions::Run> GoneAt(std::span<const int32_t> last_rows, int32_t row) {
  std::vector<Evictions::Run> gone;
  const auto end = static_cast<int32_t>(last_rows.size());
  for (int32_t at = 0; at < end; ++at) {
    if (last_rows[size_t(at)] >= row) continue;
    if (gone.empty() || gone.back().second != at) gone.emplace_back(at, at);
    gone.back().second = at + 1;
  }
  return gone;
}

Evictions ReadPlan(const std::string& path, const Geometry& geometry, int32_t tokens) {
  const std::string text = ReadFile(path, kMostBytes);
  JsonReader json(text, path);
  Evictions evictions(geometry, tokens);
  bool is_plan = false, has_events = false;
  json.Object([&](std::string_view key) {
    if (key == "schema") {
      is_plan = json.String() == "kvtool.h2o-plan/1";
      if (!is_plan) json.Refuse("the schema is not kvtool.h2o-plan/1");
    } else if (key == "events") {
      has_events = true;
      json.Array([&] {
        const Event event = ReadEvent(json, geometry, tokens);
        const int32_t first = std::max(event.head, 0);
        const int32_t last = event.head < 0 ? geometry.kv_heads - 1 : event.head;
        for (int32_t head = first; head <= last; ++head) {
          if (!evictions.Keep(event.layer, head, event.token, event.kept)) {
            json.Refuse("an event keeps what an earlier one evicted");
          }
        }
      });
    } else {
      json.Skip();
    }
  });
  json.End();
  if (!is_plan || !has_events)
    throw Failure(kInvalid, path + ": is not a plan (kvtool.h2o-plan/1)");
  return evictions;
}

}  // namespace kv::capture
