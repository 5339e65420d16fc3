// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/profiled/profile.h"

// Codes chunks with the tables, first rows and repeated rows of a profile, which decoding needs.
// FORMAT.md in this folder is the grammar.
namespace kv {

// What is known of a chunk beside its shape.
struct ProfilePlace {
  std::optional<uint32_t> layer;
  std::optional<bool> is_value;
};

// The profile's entry for a chunk. Where the place does not say which, the values do.
std::optional<size_t> FindProfileEntry(const Profile& profile, const ProfilePlace& place,
                                       const ChunkShape& shape, ByteSpan raw, Arena* arena);

// Encodes by the profile where that takes fewer bytes than the level's own codecs are likely to,
// otherwise as `own` does at that level. The profile serves levels above fast.
EncodedChunk EncodeWithProfile(const Profile& profile, const ProfilePlace& place,
                               const ChunkShape& shape, ByteSpan raw, Effort effort,
                               CodecScratch& scratch, const InnerEncoder& own);

// Appends the payload to `out`. `raw` is rows of `columns` values of the entry's type.
void EncodeProfiled(const Profile& profile, size_t entry, uint32_t columns, ByteSpan raw,
                    CodecScratch& scratch, Bytes& out);
// Throws as DecodeChunk, and kProfileMissing without a profile.
void DecodeProfiled(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                    CodecScratch& scratch, const ChunkInputs& inputs);

}  // namespace kv
