// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "lib/engines/mnn/runtime/counters.h"
#include "lib/engines/mnn/runtime/layer_cache.h"
#include "lib/engines/mnn/runtime/range_codec.h"
#include "lib/engines/mnn/runtime/schedule.h"

namespace kv::mnn::runtime {

// A call that did something.
enum class EventKind {
  kEvict,         // H2O decided; tokens = kept, of `length`
  kCompact,       // its plan was applied; tokens = kept
  kEncode,        // a range was handed to the encoder
  kApply,         // its result came back; bytes and microseconds are set
  kDrop,          // its raw bytes were given up (mnn: overwritten with zeros; design: freed)
  kRestore,       // its raw bytes came back into the cache (mnn), or a reader decoded it (design)
  kDecode,        // it was decoded and compared (mnn: probe, full)
  kShrink,        // the cold range became shorter: blocks and plan thrown away
  kBackpressure,  // the queue was full: mnn skips the range for good, design comes back to it
  kFallback,      // something failed; `what` says it
};
std::string_view Name(EventKind kind);

struct Event {
  EventKind kind = EventKind::kEncode;
  uint64_t token = 0;              // position decoded
  uint32_t layer = 0;              // of the snapshot
  uint64_t length = 0;             // tokens in the layer's cache
  uint64_t begin = 0, tokens = 0;  // of the range, in the layer's cache
  uint64_t raw_bytes = 0, compressed_bytes = 0;
  int64_t us = 0;
  std::string_view what;
};

// Bytes of K and V, all layers together, after one decode step.
struct Resident {
  uint64_t token = 0;
  uint64_t full = 0;       // if nothing were evicted, compressed or over-allocated
  uint64_t held = 0;       // rows that the layers hold, at their raw size
  uint64_t raw = 0;        // allocated for raw rows (mnn: buffers that never shrink)
  uint64_t blobs = 0;      // compressed
  uint64_t caches = 0;     // decoded copies
  uint64_t in_flight = 0;  // copies that wait for a worker, until the end of their token

  uint64_t total() const { return raw + blobs + caches + in_flight; }
  void Add(const Resident& other);
};

// What both runtimes are made of. Everything outlives the runtime.
struct RuntimeSetup {
  const Snapshot& snapshot;  // rows of 2 or 4-byte elements
  const Config& config;      // sanitised
  eviction::LayerRange h2o_range;
  uint64_t trigger_min = 1, update_interval = 1;  // H2O's
  uint64_t prompt = 0;
  uint64_t cache_bytes = 0;
  bool deterministic = false;
  bool skips_of_slowest = false;  // whether the queue is full is asked of the slowest workers
  const RangeCodec& codec;
  std::vector<Event>* events = nullptr;
};

// The caches of all layers and what is done to them, in the order of a layer call. All calls come
// from one thread; workers are inside.
class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual void Start(uint32_t layer, uint64_t token) = 0;  // what was given up comes back
  virtual void Compact(uint32_t layer, const KeepPlan& kept) = 0;
  virtual void Append(uint32_t layer, uint64_t position) = 0;
  virtual std::span<const uint32_t> positions(uint32_t layer) = 0;
  virtual void Visit(uint32_t layer, bool is_value, const PieceVisitor& visit) = 0;
  // The lossless step. True: H2O must forget the plan it has for this layer.
  virtual bool Step(const LayerCall& call, uint64_t token) = 0;
  // Flips one bit of the last row that layer 0 holds raw: the fault that comparing must find. False
  // where it holds none.
  virtual bool Damage() = 0;
  // After the last call: results of workers are awaited.
  virtual void Settle() = 0;
  // Then: everything given up comes back, and all that is held is compared with the snapshot.
  virtual void Finish() = 0;

  virtual Resident LayerBytes(uint32_t layer) const = 0;
  virtual Resident TotalBytes() const = 0;
  virtual LayerCounters Counters(uint32_t layer) const = 0;
  virtual EngineMetrics Metrics() const = 0;
  virtual Measured MeasuredOf(uint32_t layer) const = 0;
  virtual ContentCheck ContentOf(uint32_t layer) const = 0;
  virtual int64_t wait_us() const = 0;  // blocked until workers were done
  // Time spent on comparing, which a replay does and an engine does not.
  virtual double audit_seconds() const = 0;
};

std::unique_ptr<Runtime> MakeMnnRuntime(const RuntimeSetup& setup);
std::unique_ptr<Runtime> MakeDesignRuntime(const RuntimeSetup& setup);

}  // namespace kv::mnn::runtime
