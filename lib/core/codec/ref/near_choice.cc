// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/ref/near_choice.h"

#include <algorithm>
#include <memory>

#include "lib/core/codec/chunk_levels.h"
#include "lib/core/codec/ref_cdf/near_distributions.h"
#include "lib/core/codec/ref_sparse/near_differences.h"

namespace kv {
namespace {

// Differences are expected from those of neighbours if that saves one byte in so many, and only of
// as many rows as something can be learned from.
constexpr uint64_t kLeastGainByNeighbours = 200, kLeastRowsToLearn = 64;

class NearEncoder {
 public:
  NearEncoder(const NearChunk& chunk, NearRows& near, CodecScratch& scratch, ErrorsHead& errors)
      : chunk_(chunk), near_(near), scratch_(scratch), errors_(errors) {}

  CodecId Encode(ByteWriter& out) {
    bool turned = false;
    for (const ReferenceRun& run : chunk_.runs) turned = turned || run.turn != 0;
    WriteRotation(turned ? chunk_.rotation : Rotation(), out);
    const uint64_t values = near_.values.size();
    const uint64_t differences = CountDifferences(near_, values / kFewDifferences);
    if (differences * kFewDifferences >= values) return EncodeDistances(out);
    ByteWriter list(scratch_.NewPayload()), distances(scratch_.NewPayload());
    EncodeNearDifferences(near_, scratch_, list);
    CodecId codec = CodecId::kRefSparse;
    if (differences * kVeryFewDifferences >= values) {
      codec = EncodeDistances(distances);
      if (static_cast<double>(list.size()) <= static_cast<double>(distances.size()) + OwnBytes()) {
        std::fill(near_.factors.begin(), near_.factors.end(), uint8_t{0});
        codec = CodecId::kRefSparse;
      }
    }
    out.Append(codec == CodecId::kRefSparse ? list.bytes() : distances.bytes());
    scratch_.Recycle(list.Release());
    scratch_.Recycle(distances.Release());
    return codec;
  }

 private:
  // About what the rows take that EncodeNearRows made own rows.
  double OwnBytes() const {
    const auto own = std::count(near_.factors.begin(), near_.factors.end(), kOwnRow);
    return static_cast<double>(own) * static_cast<double>(near_.columns) * chunk_.own_bits / 8;
  }

  CodecId EncodeDistances(ByteWriter& out) {
    if (chunk_.effort < Effort::kMax) {
      EncodeNearRows(near_, chunk_.own_bits, scratch_, out);
      return CodecId::kRef;
    }
    // Tables are better where nearly all values are equal or lie on a grid. Rows that one of the
    // two ways takes as own rows are not free: they count as what they would take.
    ByteWriter learned(scratch_.NewPayload()), tables(scratch_.NewPayload());
    const bool fits = EncodeNearDistributions(near_, HeadDim(chunk_.shape), scratch_, learned);
    EncodeNearRows(near_, chunk_.own_bits, scratch_, tables);
    const bool learn = fits && static_cast<double>(learned.size()) <
                                   static_cast<double>(tables.size()) + OwnBytes();
    const bool by_neighbours = learn && ExpectByNeighbours(learned);
    out.Append(learn ? learned.bytes() : tables.bytes());
    if (learn) std::replace(near_.factors.begin(), near_.factors.end(), kOwnRow, uint8_t{0});
    scratch_.Recycle(learned.Release());
    scratch_.Recycle(tables.Release());
    if (!learn) return CodecId::kRef;
    return by_neighbours ? CodecId::kRefLayers : CodecId::kRefCdf;
  }

  // Replaces `learned` if the differences of neighbours say enough more of those here.
  bool ExpectByNeighbours(ByteWriter& learned) {
    if (chunk_.neighbours == nullptr || chunk_.neighbours->all.empty() ||
        near_.rows() < kLeastRowsToLearn || !FitsLayers(chunk_.shape)) {
      return false;
    }
    errors_ = ErrorsHeadHere();
    const std::unique_ptr<NeighbourErrors> forecast = Forecast();
    if (forecast == nullptr) return false;
    for (size_t i = 0; i < errors_.neighbours.size(); ++i)
      errors_.neighbours[i].hash = forecast->hashes()[i];
    ByteWriter better(scratch_.NewPayload());
    EncodeNearDistributions(near_, HeadDim(chunk_.shape), scratch_, better, forecast.get());
    const bool gains = better.size() < learned.size() - learned.size() / kLeastGainByNeighbours;
    if (gains) std::swap(better, learned);
    scratch_.Recycle(better.Release());
    return gains;
  }

  // Null if a reference has no such rows for a neighbour as it has for the chunk.
  std::unique_ptr<NeighbourErrors> Forecast() const {
    std::vector<ReferenceRun> runs;
    for (const ReferenceRun& run : chunk_.runs) {
      if (!run.equal) runs.push_back(run);
    }
    try {
      return std::make_unique<NeighbourErrors>(errors_, runs, chunk_.rows, near_.columns,
                                               chunk_.references, chunk_.neighbours->source);
    } catch (const Error& error) {
      if (error.finding() == Finding::kReferenceDiffers || error.finding() == Finding::kBadFrame)
        return nullptr;
      throw;
    }
  }

  ErrorsHead ErrorsHeadHere() const {
    ErrorsHead head;
    head.turns = !chunk_.neighbours->is_value;
    for (const BesideNeighbours::One& one : chunk_.neighbours->all) {
      ErrorNeighbour neighbour{.neighbour = one.neighbour, .layers = {}};
      for (const size_t place : chunk_.near_of) neighbour.layers.push_back(one.runs[place].layer);
      head.neighbours.push_back(std::move(neighbour));
    }
    head.rotation = chunk_.rotation;
    for (const size_t place : chunk_.near_of)
      head.turns_of_runs.push_back(chunk_.neighbours->turns[place]);
    return head;
  }

  const NearChunk& chunk_;
  NearRows& near_;
  CodecScratch& scratch_;
  ErrorsHead& errors_;
};

}  // namespace

CodecId EncodeNear(const NearChunk& chunk, NearRows& near, CodecScratch& scratch,
                   ErrorsHead& errors, ByteWriter& out) {
  return NearEncoder(chunk, near, scratch, errors).Encode(out);
}

}  // namespace kv
