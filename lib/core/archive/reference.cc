// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/reference.h"

#include <fmt/format.h>

#include "lib/core/base/checked.h"
#include "lib/core/snapshot/layout.h"

namespace kv {

namespace {

Error Differs(const ReferenceRun& run, const Reference& reference, std::string_view how) {
  return Error(Finding::kReferenceDiffers,
               fmt::format("layer {} {} of '{}' {}", run.layer, run.is_value ? 'V' : 'K',
                           Printable(reference.name.file), how));
}

}  // namespace

RowsOfReferences::Found RowsOfReferences::Find(const ReferenceRun& run, uint64_t elements) const {
  const auto missing = [] {
    return Error(Finding::kReferenceMissing, "the chunk needs rows of another cache")
        .Hint("give the cache that the archive was coded against with --base");
  };
  if (references_.empty()) throw missing();  // nobody looked for any
  if (run.reference >= references_.size()) {
    throw Error(Finding::kBadFrame, fmt::format("the chunk names reference {} of {}", run.reference,
                                                references_.size()));
  }
  const Reference* reference = references_[run.reference].get();
  if (reference == nullptr) throw missing();
  if (reference->missing) throw *reference->missing;
  const LayerKv* layer = reference->snapshot.Find(run.layer);
  if (layer == nullptr || (run.is_value && !layer->v))
    throw Differs(run, *reference, "is not there");
  const KvTensor& tensor = run.is_value ? *layer->v : layer->k;
  const uint64_t tokens = tensor.tokens();
  if (run.first_token > tokens || run.rows > tokens - run.first_token)
    throw Differs(run, *reference, fmt::format("has only {} tokens", tokens));
  if (tensor.channels() != elements) {
    throw Differs(run, *reference,
                  fmt::format("has {} channels, not {}", tensor.channels(), elements));
  }
  return {*reference, tensor, static_cast<size_t>(layer - reference->snapshot.layers.data())};
}

void RowsOfReferences::Fill(const Found& found, const ReferenceRun& run,
                            std::span<std::byte> rows) {
  const Reference& reference = found.reference;
  if (reference.rows == nullptr) {
    return Gather(found.tensor, run.first_token, run.rows, 0, found.tensor.heads,
                  Order::kTokenHeadDim, rows);
  }
  try {
    reference.rows->Read(found.layer_position, run.is_value, run.first_token, run.rows, rows);
  } catch (const Error& error) {
    if (error.finding() == Finding::kReferenceMissing ||
        error.finding() == Finding::kProfileMissing) {
      throw;
    }
    throw Differs(run, reference, fmt::format("cannot be read: {}", error.message()));
  }
}

DType RowsOfReferences::Read(const ReferenceRun& run, uint64_t elements, Bytes& rows) const {
  const Found found = Find(run, elements);
  rows.resize(CheckedMul(run.rows, found.tensor.row_bytes(), "rows of a reference"));
  Fill(found, run, rows);
  return found.tensor.dtype;
}

void RowsOfReferences::ReadEqual(const ReferenceRun& run, DType dtype, uint64_t elements,
                                 std::span<std::byte> rows) const {
  const Found found = Find(run, elements);
  if (found.tensor.dtype != dtype || run.rows * found.tensor.row_bytes() != rows.size())
    throw Differs(run, found.reference, "has rows of another size");
  Fill(found, run, rows);
}

bool ReferencePlan::Uses(size_t reference) const {
  for (const Group& group : groups_) {
    for (const TokenRun& run : group.runs) {
      if (run.reference == reference) return true;
    }
  }
  return false;
}

void ReferencePlan::Renumber(const std::vector<uint16_t>& places) {
  for (Group& group : groups_) {
    for (TokenRun& run : group.runs) run.reference = places[run.reference];
    for (auto& [layer, there] : group.layers) {
      std::vector<std::optional<uint32_t>> kept(there.size());
      for (size_t i = 0; i < there.size(); ++i) kept[places[i]] = there[i];
      there = std::move(kept);
    }
  }
}

const ReferencePlan::Group* ReferencePlan::GroupOf(uint32_t layer, size_t& place) const {
  for (const Group& group : groups_) {
    for (place = 0; place < group.layers.size(); ++place) {
      if (group.layers[place].first == layer) return &group;
    }
  }
  return nullptr;
}

std::vector<ReferenceRun> ReferencePlan::RunsOf(uint32_t layer, bool is_value, uint64_t begin,
                                                uint64_t count) const {
  std::vector<ReferenceRun> runs;
  size_t place = 0;
  const Group* group = GroupOf(layer, place);
  if (group == nullptr) return runs;
  for (const TokenRun& run : group->runs) {
    const std::optional<uint32_t>& there = group->layers[place].second[run.reference];
    const uint64_t from = std::max(begin, run.here),
                   to = std::min(begin + count, run.here + run.tokens);
    if (!there || from >= to) continue;
    runs.push_back({.reference = run.reference,
                    .is_value = is_value,
                    .layer = *there,
                    .first_row = static_cast<uint32_t>(from - begin),
                    .rows = static_cast<uint32_t>(to - from),
                    .first_token = run.there + from - run.here,
                    .turn = is_value ? 0 : run.turn});
  }
  return runs;
}

const Rotation& ReferencePlan::RotationOf(uint32_t layer) const {
  static const Rotation kNone;
  size_t place = 0;
  const Group* group = GroupOf(layer, place);
  return group == nullptr ? kNone : group->rotation;
}

}  // namespace kv
