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

// What a call did.
enum class EventKind {
  kEvict,         // H2O decided; tokens = kept, of `length`
  kCompact,       // its plan was applied; tokens = kept
  kEncode,        // a range was handed to the encoder
  kApply,         // its result came back; bytes and microseconds are set
  kDrop,          // its raw bytes were given up (mnn: overwritten with zeros; design: freed)
  kRestore,       // its raw bytes came back to the cache (mnn), or a reader decoded it (design)
  kDecode,        // it was decoded and compared (mnn: probe, full)
  kShrink,        // the cold range became shorter: blocks and plan thrown away
  kBackpressure,  // the queue was full: mnn skips the range for good, design tries again later
  kFallback,      // something failed; `what` says what
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

// Bytes of K and V of all layers together, after one decode step.
struct Resident {
  uint64_t token = 0;
  uint64_t full = 0;       // needed if nothing were evicted, compressed or over-allocated
  uint64_t held = 0;       // of the rows that the layers hold, at their raw size
  uint64_t raw = 0;        // allocated for raw rows (mnn: buffers that never shrink)
  uint64_t blobs = 0;      // of compressed ranges
  uint64_t caches = 0;     // of decoded copies
  uint64_t in_flight = 0;  // of copies that wait for a worker, at most until their token ends

  uint64_t total() const { return raw + blobs + caches + in_flight; }
  void Add(const Resident& other);
};

// What a runtime is made from. All that it refers to must outlive the runtime.
struct RuntimeSetup {
  const Snapshot& snapshot;  // rows of 2 or 4-byte elements
  const Config& config;      // sanitised
  eviction::LayerRange h2o_range;
  uint64_t trigger_min = 1, update_interval = 1;  // H2O's
  uint64_t prompt = 0;
  uint64_t cache_bytes = 0;
  const RangeCodec& codec;
  std::vector<Event>* events = nullptr;
};

// The caches of all layers, and the operations on them in the order of a layer call. One thread
// makes all calls; a runtime may use worker threads inside.
class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual void Start(uint32_t layer, uint64_t token) = 0;  // restores dropped raw bytes
  virtual void Compact(uint32_t layer, const KeepPlan& kept) = 0;
  virtual void Append(uint32_t layer, uint64_t position) = 0;
  virtual std::span<const uint32_t> positions(uint32_t layer) = 0;
  virtual void Visit(uint32_t layer, bool is_value, const PieceVisitor& visit) = 0;
  // Takes the lossless step. Returns true if H2O must forget its plan for this layer.
  virtual bool Step(const LayerCall& call, uint64_t token) = 0;
  // Flips one bit of the last row that layer 0 holds raw, a fault that the comparison must find.
  // Returns false if the layer holds no raw row.
  virtual bool Damage() = 0;
  // Waits for the results of workers after the last call.
  virtual void Settle() = 0;
  // Then restores everything that was dropped, and compares all rows with the snapshot.
  virtual void Finish() = 0;

  virtual Resident LayerBytes(uint32_t layer) const = 0;
  virtual Resident TotalBytes() const = 0;
  virtual LayerCounters Counters(uint32_t layer) const = 0;
  virtual EngineMetrics Metrics() const = 0;
  virtual Measured MeasuredOf(uint32_t layer) const = 0;
  virtual ContentCheck ContentOf(uint32_t layer) const = 0;
  virtual int64_t wait_us() const = 0;  // spent waiting for workers
  // Spent on comparisons, which a replay makes and an engine does not.
  virtual double audit_seconds() const = 0;
};

std::unique_ptr<Runtime> MakeMnnRuntime(const RuntimeSetup& setup);
std::unique_ptr<Runtime> MakeDesignRuntime(const RuntimeSetup& setup);

}  // namespace kv::mnn::runtime
