// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The codec of ranges, and the threads that encode.
#include "lib/engines/mnn/runtime/workers.h"

#include <algorithm>
#include <exception>
#include <new>

#include "lib/core/base/error.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/parallel.h"
#include "lib/core/codec/planes/gear.h"

namespace kv::mnn::runtime {
namespace {

GearKind ToGearKind(uint32_t element_bytes) {
  if (element_bytes == 2) return GearKind::kTwoPlanes;
  if (element_bytes == 4) return GearKind::kFourPlanes;
  throw Error(Finding::kUnsupportedDtype, "elements of {} bytes: the codec knows 2 and 4",
              element_bytes);
}

void Encode(const RangeCodec& codec, EncodeResult& result, CodecScratch& scratch) {
  const Stopwatch watch;
  for (const bool is_value : {false, true}) {
    const auto& raw = result.task.raw.tensors[is_value];
    if (raw == nullptr) continue;
    result.blobs[is_value] =
        codec.Encode(is_value, result.task.element_bytes[is_value], *raw, scratch);
    result.failed |= result.blobs[is_value].empty();
  }
  result.us = watch.us();
}

void Describe(const RangeCodec& codec, EncodeResult& result, CodecScratch& scratch) {
  const EncodeTask& task = result.task;
  uint64_t raw_hash = kFnv1aBasis, blob_hash = kFnv1aBasis;
  for (const bool is_value : {false, true}) {
    const auto& raw = task.raw.tensors[is_value];
    if (raw == nullptr) continue;
    result.hashes[is_value] = Hash64(*raw);
    if (task.engine_raw_hash) raw_hash = Fnv1a64(*raw, raw_hash);
    blob_hash = Fnv1a64(result.blobs[is_value], blob_hash);
  }
  result.engine_raw_hash = task.engine_raw_hash ? raw_hash : 0;
  result.engine_blob_hash = result.failed ? 0 : blob_hash;
  if (!task.verify || result.failed) return;
  const Stopwatch watch;
  for (const bool is_value : {false, true}) {
    if (task.raw.tensors[is_value] == nullptr) continue;
    result.verified[is_value] = DecodesToSource(codec, result, is_value, scratch);
  }
  result.verify_us = watch.us();
}

}  // namespace

Bytes GearRangeCodec::Encode(bool is_value, uint32_t element_bytes, ByteSpan raw,
                             CodecScratch& scratch) const {
  GearOptions options;
  options.predictors.fill(is_value ? values_ : keys_);
  Bytes blob;
  EncodeGear(ToGearKind(element_bytes), raw, options, scratch, blob);
  return blob;
}

void GearRangeCodec::Decode(bool /*is_value*/, uint32_t element_bytes, ByteSpan blob,
                            std::span<std::byte> raw, CodecScratch& scratch) const {
  DecodeGear(ToGearKind(element_bytes), blob, raw, scratch);
}

bool DecodesToSource(const RangeCodec& codec, const EncodeResult& result, bool is_value,
                     CodecScratch& scratch) {
  try {
    Bytes decoded(result.task.raw.tensors[is_value]->size());
    codec.Decode(is_value, result.task.element_bytes[is_value], result.blobs[is_value], decoded,
                 scratch);
    return Hash64(decoded) == result.hashes[is_value];
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return false;
  }
}

EncodeResult RunEncoder(const RangeCodec& codec, EncodeTask task, CodecScratch& scratch) noexcept {
  EncodeResult result;
  result.task = std::move(task);
  try {
    Encode(codec, result, scratch);
    Describe(codec, result, scratch);
  } catch (const std::bad_alloc&) {
    std::terminate();  // kvtool ran out of memory, which does not count as a failure of the engine
  } catch (...) {
    result.failed = true;
  }
  if (result.failed) result.blobs = {};
  return result;
}

EncodeWorkers::EncodeWorkers(const RangeCodec& codec, uint64_t threads, uint64_t capacity)
    : codec_(codec), most_threads_(threads), capacity_(capacity) {}

EncodeWorkers::~EncodeWorkers() {
  {
    const std::lock_guard lock(mutex_);
    queued_.clear();
  }
  for (std::jthread& thread : threads_) thread.request_stop();
}

bool EncodeWorkers::TrySubmit(EncodeTask& task) {
  const std::lock_guard lock(mutex_);
  if (queued_.size() + running_ >= capacity_) return false;
  queued_.push_back(std::move(task));
  if (threads_.size() < std::min<uint64_t>(most_threads_, queued_.size() + running_)) {
    try {
      threads_.emplace_back([this](const std::stop_token& stop) { Loop(stop); });
    } catch (const std::exception& failure) {
      if (threads_.empty()) {
        queued_.clear();  // the results would not be taken
        ThrowNoThread(failure, "a thread that encodes");
      }
    }
  }
  changed_.notify_all();
  return true;
}

std::vector<EncodeResult> EncodeWorkers::TakeReady() {
  std::vector<EncodeResult> taken;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(finished_);
  }
  std::sort(taken.begin(), taken.end(),
            [](const EncodeResult& a, const EncodeResult& b) { return a.task.id < b.task.id; });
  return taken;
}

std::vector<EncodeResult> EncodeWorkers::WaitAll(int64_t& wait_us) {
  {
    std::unique_lock lock(mutex_);
    if (!queued_.empty() || running_ > 0) {
      const Stopwatch watch;
      changed_.wait(lock, [this] { return queued_.empty() && running_ == 0; });
      wait_us += watch.us();
    }
  }
  return TakeReady();
}

uint64_t EncodeWorkers::untaken() const {
  const std::lock_guard lock(mutex_);
  return queued_.size() + running_ + finished_.size();
}

void EncodeWorkers::Loop(const std::stop_token& stop) {
  CodecScratch scratch;
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !queued_.empty(); })) {
    EncodeTask task = std::move(queued_.front());
    queued_.pop_front();
    ++running_;
    lock.unlock();
    EncodeResult result = RunEncoder(codec_, std::move(task), scratch);
    lock.lock();
    finished_.push_back(std::move(result));
    --running_;
    changed_.notify_all();
  }
}

}  // namespace kv::mnn::runtime
