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

constexpr size_t kTried = 4;  // at most 4 entries and 4 regressions are tried
constexpr uint64_t kMostWeightsTried = 1 << 16, kMostColumnsTried = 64;

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

// Neighbours with as many columns as are asked for, of values that depend on their layer.
class AnyNeighbours : public NeighbourSource {
 public:
  NeighbourChunk Read(const Neighbour& neighbour) const override {
    Bytes rows(kRows * neighbour.columns * 2);
    for (size_t i = 0; i < rows.size() / 2; ++i)
      StoreLE(rows.data() + 2 * i,
              static_cast<uint16_t>(0x3800 + (i + neighbour.layer) * 2654435761u % 1024));
    return {neighbour.is_value ? DType::kBF16 : DType::kF16,
            std::make_shared<const Bytes>(std::move(rows))};
  }
  static constexpr uint64_t kRows = 40;
};

// Codes rows by a regression; its weights or rotation may still be refused.
void UseRegression(const Profile& profile, size_t number, ByteSpan input) {
  const Regression& one = profile.regressions().list[number];
  if (one.weights() > kMostWeightsTried || one.columns > kMostColumnsTried) return;
  Bytes raw(AnyNeighbours::kRows * one.columns * 2);
  for (size_t i = 0; i < raw.size(); ++i) raw[i] = input[(i * 7 + number) % input.size()];
  static CodecScratch scratch;
  const AnyNeighbours neighbours;
  const ChunkInputs inputs{.neighbours = &neighbours, .profile = &profile};
  const ChunkShape shape{DType::kF16, AnyNeighbours::kRows, 1, one.columns, Order::kTokenHeadDim};
  Bytes payload, back(raw.size());
  try {
    if (!EncodeProfiledLayers(profile, number, 7, shape, raw, neighbours, UINT64_MAX, scratch,
                              payload))
      return;
  } catch (const Error&) {
    return;
  }
  DecodeChunk(CodecId::kProfiledLayers, shape, payload, back, scratch, inputs);
  if (back != raw) std::abort();
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
  for (size_t i = 0; i < std::min(kTried, profile->regressions().list.size()); ++i)
    UseRegression(*profile, i, input);
  return 0;
}
