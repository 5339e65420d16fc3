// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any bytes as a stream of block scores: it is read or refused, and what is read replays or is
// refused by name.
#include "formats/trace/trace.h"
#include "lib/core/base/error.h"
#include "lib/engines/mnn/h2o/mnn_replay.h"
#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  try {
    const kv::AttentionTrace trace =
        kv::OpenBlockScores(kv::FileSource::FromBytes(kv::Bytes(bytes, bytes + size), "fuzz"));
    const kv::BlockScoreStream& stream = *trace.block_scores;
    if (stream.layers > 64 || *trace.prompt_tokens > 10000) return 0;
    kv::eviction::BlockConfig config;
    for (const auto& [name, value] : stream.parameters) {
      kv::mnn::h2o::SetParameter(name, value, config);
    }
    for (const auto revision :
         {kv::mnn::h2o::MnnRevision::kFinal, kv::mnn::h2o::MnnRevision::kR6}) {
      const auto source =
          kv::mnn::h2o::StreamBlockSums(stream.open(), stream.layers, *trace.prompt_tokens);
      kv::mnn::h2o::ReplayMnn(config,
                              {stream.layers, stream.query_heads, stream.kv_heads, stream.head_dim,
                               stream.element_bytes},
                              revision, *trace.prompt_tokens, 1u << 20, *source);
    }
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
