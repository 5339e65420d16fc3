// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by runtime.cc, mnn_runtime.cc, design_runtime.cc

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lib/core/codec/backends.h"
#include "lib/engines/mnn/runtime/config.h"
#include "lib/engines/mnn/runtime/layer_cache.h"

namespace kv::mnn::runtime {

// FNV-1a with 64 bits as the MNN engine computes it. Its offset basis is 1469598103934665603, a
// digit short of the standard 14695981039346656037, so values differ from stock FNV-1a. To hash
// several pieces, pass the hash of the first as the seed of the next.
constexpr uint64_t kFnv1aBasis = 1469598103934665603u;

inline uint64_t Fnv1a64(ByteSpan bytes, uint64_t seed = kFnv1aBasis) {
  uint64_t hash = seed;
  for (const std::byte b : bytes) hash = (hash ^ static_cast<uint64_t>(b)) * 1099511628211u;
  return hash;
}

// Measures the time since its construction.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  int64_t us() const { return static_cast<int64_t>(seconds() * 1e6); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Turns a range of K or V, gathered as [head][token][dim], into a blob and back. Tests derive
// codecs that fail or damage blobs. Thread-safe; each thread passes its own scratch memory.
class RangeCodec {
 public:
  virtual ~RangeCodec() = default;
  // Throws on failure; an empty blob counts as a failure too.
  virtual Bytes Encode(bool is_value, uint32_t element_bytes, ByteSpan raw,
                       CodecScratch& scratch) const = 0;
  // Fills `raw` or throws.
  virtual void Decode(bool is_value, uint32_t element_bytes, ByteSpan blob,
                      std::span<std::byte> raw, CodecScratch& scratch) const = 0;
};

// The engine's codec, which makes a gear container per tensor.
class GearRangeCodec : public RangeCodec {
 public:
  explicit GearRangeCodec(const Config& config)
      : keys_(config.predictors_k), values_(config.predictors_v) {}

  Bytes Encode(bool is_value, uint32_t element_bytes, ByteSpan raw,
               CodecScratch& scratch) const override;
  void Decode(bool is_value, uint32_t element_bytes, ByteSpan blob, std::span<std::byte> raw,
              CodecScratch& scratch) const override;

 private:
  PredictorSet keys_, values_;
};

// A range to encode. Its bytes are shared with the code that gathered them.
struct EncodeTask {
  uint64_t id = 0;  // counts up in the order of submission
  uint32_t layer = 0;
  uint64_t begin = 0, tokens = 0;
  std::array<uint32_t, 2> element_bytes{};
  RangeBytes raw;
  bool engine_raw_hash = false;  // computes the raw hash for the engine's strict check
  bool verify = false;           // decodes the blob and compares it before it is used
};

struct EncodeResult {
  EncodeTask task;
  std::array<Bytes, 2> blobs;
  std::array<uint64_t, 2> hashes{};  // hashes of the raw bytes
  uint64_t engine_raw_hash = 0, engine_blob_hash = 0;
  int64_t us = 0;         // time of encoding
  int64_t verify_us = 0;  // time of decoding and comparing
  bool failed = false;    // true: an encoder threw or returned nothing
  std::array<bool, 2> verified{};

  uint64_t blob_bytes() const { return blobs[0].size() + blobs[1].size(); }
};

// Returns true if a blob of the result decodes to its source.
bool DecodesToSource(const RangeCodec& codec, const EncodeResult& result, bool is_value,
                     CodecScratch& scratch);

// Runs encoders on its own threads, which start as work comes in, behind one queue of bounded
// length. Results wait until the owner takes them. The destructor drops queued tasks and waits for
// running ones.
class EncodeWorkers {
 public:
  EncodeWorkers(const RangeCodec& codec, uint64_t threads, uint64_t capacity);
  ~EncodeWorkers();
  EncodeWorkers(const EncodeWorkers&) = delete;
  EncodeWorkers& operator=(const EncodeWorkers&) = delete;

  // Returns false and does not change `task` if the queue is full.
  bool TrySubmit(EncodeTask& task);
  // Takes the finished results, in the order of submission.
  std::vector<EncodeResult> TakeReady();
  // Waits for all tasks, adds the time waited to `wait_us`, and takes all results.
  std::vector<EncodeResult> WaitAll(int64_t& wait_us);

  uint64_t untaken() const;  // submitted tasks whose results were not taken yet

 private:
  void Loop(const std::stop_token& stop);

  const RangeCodec& codec_;
  const uint64_t most_threads_, capacity_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<EncodeTask> queued_;
  std::vector<EncodeResult> finished_;
  uint64_t running_ = 0;
  std::vector<std::jthread> threads_;  // declared last: joined before other members are destroyed
};

// The action of a call that an event records.
enum class EventKind {
  kEvict,         // H2O decided; tokens = kept, of `length`
  kCompact,       // H2O's plan was applied; tokens = kept
  kEncode,        // a range was handed to the encoder
  kApply,         // the encoder's result came back; bytes and microseconds are set
  kDrop,          // a range's raw bytes were dropped (mnn: overwritten with zeros; design: freed)
  kRestore,       // a range's raw bytes were restored (mnn), or a reader decoded it (design)
  kDecode,        // a range was decoded and compared (mnn: probe, full)
  kShrink,        // the cold range became shorter: blocks and plan were dropped
  kBackpressure,  // the queue was full: mnn never encodes the range, design tries again later
  kFallback,      // a step failed; `what` names it
};
std::string_view Name(EventKind kind);

struct Event {
  EventKind kind = EventKind::kEncode;
  uint64_t token = 0;              // position decoded
  uint32_t layer = 0;              // layer number in the snapshot
  uint64_t length = 0;             // tokens in the layer's cache
  uint64_t begin = 0, tokens = 0;  // range of tokens in the layer's cache
  uint64_t raw_bytes = 0, compressed_bytes = 0;
  int64_t us = 0;
  std::string_view what;
};

// Bytes of K and V of all layers together, after one decode step.
struct Resident {
  uint64_t token = 0;
  uint64_t full = 0;       // size if nothing were evicted, compressed or over-allocated
  uint64_t held = 0;       // raw size of the rows that the layers hold
  uint64_t raw = 0;        // allocated for raw rows (mnn: buffers that never shrink)
  uint64_t blobs = 0;      // size of compressed ranges, called blobs
  uint64_t caches = 0;     // size of decoded copies
  uint64_t in_flight = 0;  // copies that wait for a worker, at most until their token ends

  uint64_t total() const { return raw + blobs + caches + in_flight; }
};

// The engine's counters of one layer, by its definitions: samples without gain and failures count
// as compressed to their raw size, skipped ranges do not count, and a time is at least 1 us if data
// was restored.
struct LayerCounters {
  uint64_t raw_bytes = 0, compressed_bytes = 0, decompressed_bytes = 0;
  int64_t compress_us = 0, decompress_us = 0;
  uint64_t fallback_count = 0;
  uint64_t update_count = 0;
  uint64_t backpressure_skip_count = 0;

  void Add(const LayerCounters& other);
};

// The figures that the engine exports after a layer call (h2o_lossless_*): sums over the layers.
struct EngineMetrics {
  double ratio = 1.0;    // h2o_lossless_ratio
  int64_t codec_us = 0;  // h2o_codec_us: of the last result
  LayerCounters sums;    // h2o_lossless_raw_bytes ...
  // Peaks of the queue with the slowest possible workers, and with workers that take no time; a
  // real engine's peak lies in between.
  uint64_t queue_depth_peak = 0, queue_depth_peak_least = 0;
  uint64_t async_queue_peak = 0;
  int64_t async_wait_us = 0;
  uint64_t decode_cache_hit = 0, decode_cache_miss = 0;
};

// True counts of the same work.
struct Measured {
  uint64_t encode_calls = 0, encoded_tokens = 0;
  uint64_t encoded_raw_bytes = 0;   // inputs of the encoder; encoded twice, counted twice
  uint64_t encoded_blob_bytes = 0;  // outputs of the encoder, used or not
  // Bytes of blobs that were decoded to their source; only the ratio of these is verified. With
  // MNN's own runtime the replay decodes each blob once for this, outside all timings.
  uint64_t verified_raw_bytes = 0, verified_blob_bytes = 0;
  std::array<uint64_t, 2> verified_raw_of{}, verified_blob_of{};  // verified bytes of K and of V
  uint64_t verify_failures = 0;
  uint64_t no_gain = 0;   // ranges whose blob is not smaller than the range
  uint64_t failures = 0;  // encoders and decoders that threw
  uint64_t backpressure = 0;
  uint64_t decode_calls = 0;  // how often a decoder ran for a reader
  uint64_t cache_copies = 0;  // reads served from a cache of decoded ranges
  uint64_t seeded_hits = 0;   // copies served from entries that no decoder made
  int64_t encode_us = 0, decode_us = 0, wait_us = 0;

  void Add(const Measured& other);
  void AddVerified(bool is_value, uint64_t raw_bytes, uint64_t blob_bytes);
  double verified_ratio() const {
    return verified_blob_bytes == 0
               ? 1.0
               : static_cast<double>(verified_raw_bytes) / static_cast<double>(verified_blob_bytes);
  }
};

// Counts of one layer.
struct LayerRecord {
  LayerCounters counters;  // as MNN's code defines them
  Measured measured;
  ContentCheck content;
};

// The inputs of a runtime. Everything that they refer to must outlive it.
struct RuntimeSetup {
  const Snapshot& snapshot;  // rows of 2 or 4-byte elements
  const Config& config;      // sanitised
  eviction::LayerRange h2o_range;
  uint64_t trigger_min = 1, update_interval = 1;  // parameters of H2O
  uint64_t prompt = 0;
  uint64_t cache_bytes = 0;
  const RangeCodec& codec;
  std::vector<Event>* events = nullptr;
};

// The lossless runtime: the caches of all layers, and the operations on them in the order of a
// layer call. Counts, workers and comparisons with the snapshot are the same under both policies,
// the engine's and its design's, which decide what is encoded and which raw bytes are dropped for
// it. One thread makes all calls; worker threads only encode.
class Runtime {
 public:
  virtual ~Runtime() = default;

  // Begins a layer call. Restores dropped raw bytes.
  void Start(uint32_t layer, uint64_t token) {
    token_ = token;
    Restore(layer);
  }
  virtual void Compact(uint32_t layer, const KeepPlan& kept) = 0;
  virtual void Append(uint32_t layer, uint64_t position) = 0;
  virtual std::span<const uint32_t> positions(uint32_t layer) = 0;
  virtual void Visit(uint32_t layer, bool is_value, const PieceVisitor& visit) = 0;
  // Does the lossless step. Returns true if H2O must drop its plan for this layer.
  bool Step(const LayerCall& call);
  // Flips one bit of the last row that layer 0 holds raw, a fault that the comparison must find.
  // Returns false if the layer holds no raw row.
  virtual bool Damage() = 0;
  // Waits for the results of workers. A layer is not read before its next call, one token later, so
  // results are taken at the end of each token. MNN also takes results that are ready between two
  // layer calls; the bytes held would then depend on thread timing, so this is not imitated.
  void Settle();
  // Restores everything that was dropped, and compares all rows with the snapshot.
  void Finish();

  virtual Resident LayerBytes(uint32_t layer) const = 0;
  virtual Resident TotalBytes() const;
  virtual LayerRecord Record(uint32_t layer) const { return records_[layer]; }
  virtual EngineMetrics Metrics() const;
  int64_t wait_us() const { return wait_us_; }  // time spent waiting for workers
  // Returns the time spent on comparisons, which a replay makes and an engine does not.
  double audit_seconds() const { return audit_seconds_; }

 protected:
  Runtime(const RuntimeSetup& setup, bool has_workers);

  // The steps of a policy: in a layer call, when a result is taken, and at the end.
  virtual void Restore(uint32_t /*layer*/) {}
  virtual bool EncodeNext(const LayerCall& call) = 0;
  virtual void Apply(EncodeResult& result, LayerRecord& record) = 0;
  virtual void Compare(uint32_t layer) = 0;

  uint64_t untaken() const { return workers_ == nullptr ? 0 : workers_->untaken(); }
  // Encodes, on a worker if there are any. The number of results not taken must be below the
  // queue's length.
  void Submit(EncodeTask task);

  const RuntimeSetup setup_;
  std::vector<LayerRecord> records_;  // by place
  CodecScratch scratch_;
  uint64_t token_ = 0, next_id_ = 0;
  uint64_t in_flight_bytes_ = 0;
  uint64_t queue_peak_ = 0, queue_peak_least_ = 0, async_peak_ = 0;
  double audit_seconds_ = 0;
  std::unique_ptr<EncodeWorkers> workers_;

 private:
  void Take(EncodeResult result);

  int64_t wait_us_ = 0, last_codec_us_ = 0;
};

// Make a runtime as MNN's code does it, event for event (mnn_runtime.cc), and as its documentation
// promises it (design_runtime.cc).
std::unique_ptr<Runtime> MakeMnnRuntime(const RuntimeSetup& setup);
std::unique_ptr<Runtime> MakeDesignRuntime(const RuntimeSetup& setup);

}  // namespace kv::mnn::runtime
