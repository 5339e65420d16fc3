// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "tests/bench/naive_gear.h"

#include <zstd.h>

#include <cstdint>
#include <vector>

namespace kv::bench {
namespace {

using Plane = std::vector<uint8_t>;

Plane Predict(const Plane& plane, int mode) {
  Plane out;
  out.reserve(plane.size());
  uint8_t before = 0;
  for (const uint8_t byte : plane) {
    out.push_back(mode == 0   ? byte
                  : mode == 1 ? static_cast<uint8_t>(byte - before)
                              : static_cast<uint8_t>(byte ^ before));
    before = byte;
  }
  return out;
}

size_t RunAt(const Plane& in, size_t at) {
  size_t run = 1;
  while (at + run < in.size() && run < 131 && in[at + run] == in[at]) ++run;
  return run;
}

Plane Rle(const Plane& in) {
  Plane out;
  for (size_t at = 0; at < in.size();) {
    const size_t run = RunAt(in, at);
    if (run >= 4) {
      out.push_back(static_cast<uint8_t>(0x80 | (run - 4)));
      out.push_back(in[at]);
      at += run;
      continue;
    }
    const size_t control = out.size();
    out.push_back(0);
    size_t count = 0;
    while (at < in.size() && count < 128 && RunAt(in, at) < 4) {
      out.push_back(in[at++]);
      ++count;
    }
    out[control] = static_cast<uint8_t>(count - 1);
  }
  return out;
}

Plane Zstd(const Plane& in) {
  Plane out(ZSTD_compressBound(in.size()));
  out.resize(ZSTD_compress(out.data(), out.size(), in.data(), in.size(), 3));
  return out;
}

}  // namespace

Bytes NaiveGear(ByteSpan raw, size_t plane_count) {
  ByteWriter out;
  out.U32(static_cast<uint32_t>(raw.size() / plane_count));
  for (size_t b = 0; b < plane_count; ++b) {
    Plane plane;
    for (size_t i = b; i < raw.size(); i += plane_count)
      plane.push_back(static_cast<uint8_t>(raw[i]));
    Plane best;
    int best_mode = 0, best_codec = 0;
    for (int mode = 0; mode < 3; ++mode) {
      const Plane predicted = Predict(plane, mode);
      for (int codec = 0; codec < 2; ++codec) {
        Plane payload = codec == 0 ? Rle(predicted) : Zstd(predicted);
        if (!best.empty() && payload.size() >= best.size()) continue;
        best = std::move(payload);
        best_mode = mode;
        best_codec = codec;
      }
    }
    out.U8(static_cast<uint8_t>(best_mode));
    out.U8(static_cast<uint8_t>(best_codec));
    out.U32(static_cast<uint32_t>(plane.size()));
    out.U32(static_cast<uint32_t>(best.size()));
    out.Append(std::as_bytes(std::span(best)));
  }
  return out.Release();
}

}  // namespace kv::bench
