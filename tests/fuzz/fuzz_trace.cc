// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any bytes as a safetensors trace: it is refused, or every row it claims can be read.
#include <vector>

#include "formats/safetensors/safetensors.h"
#include "formats/trace/trace.h"
#include "lib/core/base/error.h"
#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  try {
    kv::Source source;
    source.path = "fuzz";
    source.files.push_back(
        {"fuzz", kv::FileSource::FromBytes(kv::Bytes(bytes, bytes + size), "fuzz")});
    const kv::AttentionTrace trace =
        kv::TraceOfTensors(kv::ReadSafetensors(std::move(source), {}), "");
    if (trace.end_position() > 1 << 16) return 0;
    std::vector<float> row(std::max<uint64_t>(trace.end_position(), trace.head_dim));
    for (const kv::TraceLayer& layer : trace.layers) {
      for (uint64_t r = 0; r < trace.rows; ++r) {
        for (uint32_t head = 0; head < trace.query_heads; ++head) {
          if (layer.queries) kv::ReadQueries(layer, head, r, 1, row.data());
          if (!layer.probabilities.empty()) {
            kv::ReadProbabilityRow(layer, head, r, trace.end_position(), row.data());
          }
        }
      }
    }
    for (const kv::TraceLayer& layer : trace.layers) {
      if (!layer.gradients) continue;
      row.resize(std::max<uint64_t>(row.size(), layer.gradients->shape[3]));
      for (uint64_t s = 0; s < trace.gradients->samples; ++s) {
        for (uint64_t p = trace.gradients->begin; p < trace.gradients->end(); ++p) {
          kv::ReadGradient(trace, layer, s, p, trace.query_heads - 1, row.data());
        }
      }
    }
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
