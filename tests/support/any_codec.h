// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/cdf/layers.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/codec/profiled/profiled.h"
#include "lib/core/codec/ref/ref.h"

namespace kv::test {

// Encodes with the encoder of any row of the table. A codec that needs more than the chunk gets no
// references, and of the profile the best entry or a regression without neighbours. Returns false
// if the codec cannot store the bytes, or restores approximations from a transform.
inline bool EncodeByRow(const CodecRow& row, const ChunkShape& shape, ByteSpan raw,
                        const Profile& profile, CodecScratch& scratch, EncodedChunk& out) {
  if (row.encode != nullptr) return row.encode(shape, raw, kAnySize, {}, scratch, out);
  if (raw.empty() || row.needs.transform) return false;
  class None : public NeighbourSource {
    NeighbourChunk Read(const Neighbour&) const override { return {}; }
  };
  if (row.needs.profile && row.needs.neighbours) {
    const uint64_t columns = FindGrid(shape, raw.size()).columns;
    const std::vector<Regression>& list = profile.regressions().list;
    const auto found = std::ranges::find_if(
        list, [&](const auto& one) { return one.columns == columns && one.taps() == 0; });
    return found != list.end() &&
           EncodeProfiledLayers(profile, static_cast<size_t>(found - list.begin()), 0, shape, raw,
                                None(), kAnySize, scratch, out.payload);
  }
  if (row.needs.profile) {
    if (raw.size() % 2 != 0) return false;
    const auto entry = FindProfileEntry(profile, {}, shape, raw, &scratch.context.arena);
    if (!entry) return false;
    const auto columns = static_cast<uint32_t>(FindGrid(shape, raw.size()).columns);
    EncodeProfiled(profile, *entry, columns, raw, scratch, out.payload);
    return true;
  }
  if (row.needs.references) {
    EncodedChunk own = EncodeChunk(shape, raw, Effort::kFast, scratch);
    ByteWriter frame;
    WriteReferenceHead({{}, own.codec, static_cast<uint32_t>(own.payload.size())}, frame);
    frame.Append(own.payload);
    out.payload = frame.Release();
    return true;
  }
  return raw.size() % 2 == 0 &&
         EncodeByLayers(shape, raw, false, {}, None(), kAnySize, scratch, out.payload);
}

}  // namespace kv::test
