// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "lib/core/frame/frame.h"

namespace kv {
namespace {

constexpr uint64_t kPlaces = 4;  // number of places from which the sample is taken

struct Sample {
  ChunkShape shape;
  Bytes copied;  // the sample, unless it is the whole input
  ByteSpan bytes;
};

// Samples rows from several places. The row above each sampled row is the same as in the frame,
// except for the first one of each place.
Sample Take(const FrameDescription& description, ByteSpan raw) {
  FrameHeader header;
  header.raw_bytes = raw.size();
  header.description = ShapeThatExplains(description, raw.size());
  const SegmentGrid grid = ChooseSegments(header);
  Sample sample{grid.row, {}, raw};
  const uint64_t unit = std::max<uint64_t>(grid.row_bytes, Info(grid.row.dtype).block_bytes);
  uint64_t units = raw.size() / unit;
  const uint64_t wanted = std::max<uint64_t>(1, kFrameSampleBytes / kPlaces / unit);
  if (raw.size() > kFrameSampleBytes && units > kPlaces * wanted) {
    sample.copied.reserve(kPlaces * wanted * unit);
    const uint64_t step = (units - wanted) / (kPlaces - 1);
    for (uint64_t place = 0; place < kPlaces; ++place) {
      const ByteSpan rows = raw.subspan(place * step * unit, wanted * unit);
      sample.copied.insert(sample.copied.end(), rows.begin(), rows.end());
    }
    sample.bytes = sample.copied;
    units = kPlaces * wanted;
  }
  // A single row may be far longer than a sample.
  if (sample.bytes.size() > kFrameSampleBytes) {
    sample.bytes = sample.bytes.first(kFrameSampleBytes);
    sample.shape = {description.dtype, 0, 0, 0, Order::kStorage};
  } else if (grid.row_bytes != 0) {
    sample.shape.tokens = units;
  }
  return sample;
}

// Returns the bytes per second of the faster of two runs; a slow first run is not repeated.
template <typename F>
double Fastest(uint64_t bytes, F&& run) {
  using Clock = std::chrono::steady_clock;
  constexpr double kLong = 1e-3;
  double best = INFINITY;
  for (int round = 0; round < 2; ++round) {
    const Clock::time_point start = Clock::now();
    run();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, std::max(seconds, 1e-9));
    if (seconds > kLong) break;
  }
  return static_cast<double>(bytes) / best;
}

}  // namespace

FrameRate FrameCoder::Estimate(const FrameDescription& description, ByteSpan raw) {
  FrameRate rate;
  if (raw.empty()) return rate;
  const Sample sample = Take(description, raw);
  const Reuse<Worker>::Lease worker(workers_);
  CodecScratch& scratch = (*worker).scratch;
  EncodedChunk chunk;
  rate.encode_bytes_s = Fastest(sample.bytes.size(), [&] {
    scratch.Recycle(std::move(chunk.payload));
    chunk = EncodeSegment(description, sample.shape, sample.bytes, Sides::kTogether, scratch);
  });
  Bytes back(sample.bytes.size());
  rate.decode_bytes_s = Fastest(sample.bytes.size(), [&] {
    DecodeChunk(chunk.codec, sample.shape, chunk.payload, back, scratch,
                {.profile = profile_.get()});
  });
  const double kept =
      static_cast<double>(chunk.payload.size()) / static_cast<double>(sample.bytes.size());
  const auto raw_bytes = static_cast<double>(raw.size());
  rate.ratio = raw_bytes / (raw_bytes * kept + static_cast<double>(kFrameHeaderBytes));
  scratch.Recycle(std::move(chunk.payload));
  return rate;
}

uint64_t FrameCoderBytes(Effort level, uint64_t raw_bytes, uint64_t threads) {
  // Memory that the codecs of a level need for one segment, as measured, plus a half: zstd's
  // contexts and tables, and buffers that grow with the segment.
  constexpr std::pair<uint64_t, uint64_t> kNeeds[] = {
      {6 << 20, 8}, {3 << 20, 7}, {4 << 20, 8}, {5 << 20, 12}, {12 << 20, 40}};
  const auto [fixed, per_byte] = kNeeds[static_cast<size_t>(level)];
  const uint64_t segment = std::min(raw_bytes, kMaxSegmentBytes);
  const uint64_t worker = fixed + per_byte * segment;
  // Payloads, including what a vector reserves beyond them, and the lists of segments.
  const uint64_t own = raw_bytes / 4 * 5 + (64 << 10);
  uint64_t workers, all;
  const bool overflows = __builtin_mul_overflow(worker, threads, &workers) ||
                         __builtin_add_overflow(own, workers, &all) || own < raw_bytes;
  return overflows ? UINT64_MAX : all;
}

}  // namespace kv
