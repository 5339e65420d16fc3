// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/profiled/profile.h"

// Codes chunks with a profile: its tables, first rows and repeated rows take the place of the
// chunk's own. Decoding needs the same profile. FORMAT.md in this folder is the grammar.
namespace kv {

// Optional knowledge about a chunk, which narrows the choice of entry.
struct ProfilePlace {
  std::optional<uint32_t> layer;
  std::optional<bool> is_value;
};

// Returns the profile's entry for a chunk. If several fit `place`, returns the one that codes a
// sample of the values best.
std::optional<size_t> FindProfileEntry(const Profile& profile, const ProfilePlace& place,
                                       const ChunkShape& shape, ByteSpan raw, Arena* arena);

// Encodes with the profile if that is likely to take fewer bytes than the level's own codecs,
// otherwise with `own`. Levels up to fast never use the profile.
EncodedChunk EncodeWithProfile(const Profile& profile, const ProfilePlace& place,
                               const ChunkShape& shape, ByteSpan raw, Effort effort,
                               CodecScratch& scratch, const InnerEncoder& own);

// Appends the payload to `out`. `raw` consists of rows of `columns` values of the entry's type.
void EncodeProfiled(const Profile& profile, size_t entry, uint32_t columns, ByteSpan raw,
                    CodecScratch& scratch, Bytes& out);
// Throws as DecodeChunk, and kProfileMissing without a profile.
void DecodeProfiled(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                    CodecScratch& scratch, const ChunkInputs& inputs);

}  // namespace kv
