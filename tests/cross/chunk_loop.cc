// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Codes one chunk of 1 MiB again and again, for scripts/bench/instructions.py, which counts the
// instructions of one more time:
//   chunk_loop TARGET f16|bf16 LEVEL|CODEC encode|decode TIMES
// The chunk is synthetic K (tests/bench/stand_in.h), the same bytes on every machine. Prints the
// codec and the sizes.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "lib/core/codec/chunk.h"
#include "lib/core/kernels/targets.h"
#include "tests/bench/stand_in.h"

namespace {

kv::EncodedChunk Encode(const std::string& how, const kv::ChunkShape& shape, kv::ByteSpan raw,
                        kv::CodecScratch& scratch) {
  if (const auto level = kv::ParseEffort(how)) return kv::EncodeChunk(shape, raw, *level, scratch);
  for (const kv::CodecRow& row : kv::Codecs()) {
    kv::EncodedChunk chunk{row.id, {}, {}};
    if (row.name == how && row.encode != nullptr &&
        row.encode(shape, raw, kv::kAnySize, {}, scratch, chunk))
      return chunk;
  }
  std::fprintf(stderr, "%s is neither a level nor a codec for these values\n", how.c_str());
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6 || !kv::ForceSimdTarget(argv[1])) {
    std::fprintf(stderr, "chunk_loop TARGET f16|bf16 LEVEL|CODEC encode|decode TIMES\n");
    return 2;
  }
  const bool is_bf16 = std::string(argv[2]) == "bf16", decodes = std::string(argv[4]) == "decode";
  const kv::DType dtype = is_bf16 ? kv::DType::kBF16 : kv::DType::kF16;
  const kv::bench::StandInShape size{.tokens = 512};
  const kv::Bytes raw = kv::bench::Store(kv::bench::StandInK(size, 1), dtype);
  const kv::ChunkShape shape{
      .dtype = dtype, .tokens = size.tokens, .heads = size.heads, .units_per_head = size.head_dim};
  kv::CodecScratch scratch;
  kv::EncodedChunk chunk = Encode(argv[3], shape, raw, scratch);
  const kv::Bytes payload(chunk.payload.begin(), chunk.payload.end());
  kv::Bytes restored(raw.size());
  for (int i = std::atoi(argv[5]); i > 0; --i) {
    if (decodes) {
      kv::DecodeChunk(chunk.codec, shape, payload, restored, scratch);
    } else {
      chunk = Encode(argv[3], shape, raw, scratch);
    }
  }
  const std::string name(kv::Name(chunk.codec));
  std::printf("%s %zu %zu\n", name.c_str(), raw.size(), payload.size());
  return decodes && restored != raw;
}
