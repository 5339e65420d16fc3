// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/base/file.h"
#include "lib/core/base/hash.h"
#include "lib/core/snapshot/select.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// One step of a plan (kvtool.h2o-plan/1): from the query at token + 1 on, a layer or one of its kv
// heads holds only `kept` of the positions up to `token`.
struct PlanEvent {
  uint64_t token = 0;
  uint32_t layer = 0;
  std::optional<uint32_t> kv_head;  // empty: all heads of the layer
  KeepPlan kept;                    // as written, possibly unsorted
  std::optional<uint64_t> length_before;
};

// Applies a plan's events to the cache that they are for, and reports impossible ones.
class EvictionPlanWalk {
 public:
  // The heads of every layer must be known.
  explicit EvictionPlanWalk(const Snapshot& snapshot);

  // Applies an event. If it is impossible, returns why and changes nothing.
  std::optional<std::string> Apply(const PlanEvent& event);

  struct Layer {
    uint32_t layer = 0;
    bool by_head = false;  // true: events name kv heads
    uint64_t events = 0;
    std::vector<uint64_t> kept;  // tokens held at the end, by kv head
  };
  std::vector<Layer> Layers() const;
  uint64_t tokens(uint32_t layer) const { return layers_.at(layer).layer->k.tokens(); }
  uint64_t full_bytes() const { return full_bytes_; }
  double kept_bytes() const;  // bytes of K and V at the end
  // Returns true if all heads of all layers hold the same tokens at every moment, as a cache with
  // one list of tokens must.
  bool is_common() const;

 private:
  struct Unit {
    KeepPlan held;      // held positions before `next`
    uint64_t next = 0;  // one past the last event's token; later positions are held
    uint64_t events = 0;
    StreamingHash history;  // hash of the events
  };
  struct State {
    const LayerKv* layer = nullptr;
    std::optional<bool> by_head;
    std::vector<Unit> units;  // by kv head
  };

  std::optional<std::string> WrongWith(const PlanEvent& event, const State& state) const;

  uint64_t full_bytes_ = 0, last_token_ = 0;
  std::map<uint32_t, State> layers_;
};

// A plan (kvtool.h2o-plan/1) without its events.
struct PlanHeader {
  std::string engine, schedule, policy;
  // The snapshot that the plan was made from.
  std::string source_file, source_xxh3;
  uint64_t source_bytes = 0;
};

// Reads a plan event by event, because a plan of every step would not fit in memory. `on_event`
// gets each event with its number. Throws kBadText, kBadVersion, kBadField with the event's number,
// kMissingRecord.
PlanHeader ReadPlan(const FileSource& file,
                    const std::function<void(uint64_t number, const PlanEvent& event)>& on_event);

}  // namespace kv
