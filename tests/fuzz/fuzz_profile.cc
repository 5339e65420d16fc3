// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// A profile, whose size and hash are made right first: it is refused, or pages coded with it come
// back, and decoding arbitrary bytes with it never writes beyond the page.
#include <cstdlib>
#include <cstring>

#include "lib/core/codec/chunk.h"
#include "lib/core/codec/profiled/profiled.h"
#include "tests/fuzz/accepted.h"

namespace {

using namespace kv;

constexpr size_t kTried = 4;  // entries that are tried

Bytes Repaired(ByteSpan input) {
  Bytes file(input.begin(), input.end());
  if (file.size() < 44) return file;
  StoreLE<uint64_t>(file.data() + 16, file.size());
  const Hash128Bytes hash = Hash128(ByteSpan(file).first(file.size() - 16));
  std::copy(hash.begin(), hash.end(), file.end() - 16);
  return file;
}

void UseEntry(const Profile& profile, size_t number, ByteSpan input) {
  const ProfileEntry& entry = profile.entries()[number];
  if (entry.columns > 4096) return;
  const uint64_t rows = 3;
  const uint32_t columns = entry.columns;
  if (columns < kRansLanes) return;
  Bytes raw(rows * entry.row_bytes());
  for (size_t i = 0; i < raw.size(); ++i) raw[i] = input[(i * 7 + number) % input.size()];
  static CodecScratch scratch;
  const ChunkInputs inputs{.profile = &profile};
  const Arena::Scope temporaries(&scratch.context.arena);
  const ChunkShape shape{entry.dtype, rows, 1, columns, Order::kTokenHeadDim};
  Bytes payload, back(raw.size());
  EncodeProfiled(profile, number, columns, raw, scratch, payload);
  DecodeChunk(CodecId::kProfiled, shape, payload, back, scratch, inputs);
  if (back != raw) std::abort();
  try {
    payload = Bytes(input.begin(), input.end());
    StoreLE<uint16_t>(payload.data(), static_cast<uint16_t>(number));
    DecodeChunk(CodecId::kProfiled, shape, payload, back, scratch, inputs);
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteSpan input = std::as_bytes(std::span(data, size));
  std::shared_ptr<const Profile> profile;
  try {
    profile = Profile::Read(Repaired(input));
  } catch (const Error&) {
    return 0;
  }
  ++fuzz::accepted;
  for (size_t i = 0; i < std::min(kTried, profile->entries().size()); ++i)
    UseEntry(*profile, i, input);
  return 0;
}
