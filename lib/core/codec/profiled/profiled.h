// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by profiled.cc, profiled_layers.cc

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
// Throws what DecodeChunk throws, and kProfileMissing without a profile.
void DecodeProfiled(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                    CodecScratch& scratch, const ChunkInputs& inputs);

// Layered chunks whose weights come from a profile (codec 33): fixed weights that were learnt from
// thousands of tokens predict better than those that a chunk learns as it goes, from its first row
// on, and cost no solving (docs/profiles.md, "Across layers").

// Encodes with a regression of the profile. `position` is that of the first row. Returns false if
// the result is not smaller than `to_beat` bytes.
bool EncodeProfiledLayers(const Profile& profile, size_t regression, uint32_t position,
                          const ChunkShape& shape, ByteSpan raw, const NeighbourSource& source,
                          uint64_t to_beat, CodecScratch& scratch, Bytes& payload,
                          const RowSteps& steps = {});
// Learns the state in which the coder begins a chunk from at least 16 sample rows of the model, and
// adds it to `regression` and `integers`. `positions` has one entry for each row.
void LearnRegressionStart(const Regressions& of, ByteSpan values, HalfForm form,
                          const std::vector<uint32_t>& positions, const NeighbourSource& source,
                          Regression& regression, std::vector<int8_t>& integers);
// Returns the neighbours that a chunk needs. Throws what DecodeChunk throws, and kProfileMissing.
const std::vector<Neighbour>& ReadProfiledNeighbours(ByteSpan payload, const Profile* profile);
// Throws what DecodeChunk throws, kProfileMissing and kLostChunk.
void DecodeProfiledLayers(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                          CodecScratch& scratch, const ChunkInputs& inputs);

}  // namespace kv
