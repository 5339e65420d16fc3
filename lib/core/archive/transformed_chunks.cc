// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/transformed_chunks.h"

#include <algorithm>
#include <cmath>

namespace kv {
namespace {

// Limit of the cache of coefficients, which all layers of a group need again.
constexpr uint64_t kMostCachedBytes = uint64_t{96} << 20;

[[noreturn]] void RefuseChunk(std::string_view why) {
  throw Error(Finding::kBadFrame, "the archive's transform does not fit: {}", why);
}

void RequireRotations(const Transform& transform, const Approximation& approximation) {
  if (approximation.layers.size() != transform.layers) {
    throw Error(Finding::kInconsistent, "the archive has {} layers, the transform {}",
                approximation.layers.size(), transform.layers);
  }
  for (const Rotation& rotation : approximation.rotations) {
    const uint64_t pairs = rotation.angles.size();
    if (2 * pairs > transform.k.dim || (rotation.distance != 1 && rotation.distance != pairs))
      throw Error(Finding::kInconsistent, "a rotation of {} pairs does not fit heads of {} values",
                  pairs, transform.k.dim);
  }
}

}  // namespace

ArchiveTransform::ArchiveTransform(std::shared_ptr<const Transform> transform,
                                   const Approximation& approximation)
    : transform_(std::move(transform)), approximation_(approximation) {
  RequireRotations(*transform_, approximation_);
  k_ = MakeGroups(transform_->k);
  v_ = MakeGroups(transform_->v);
}

std::vector<ArchiveTransform::Group> ArchiveTransform::MakeGroups(const TransformSide& side) const {
  const TransformPlan* plan = side.Find(kStepForm, approximation_.ratio);
  if (plan == nullptr) {
    throw Error(Finding::kInconsistent, "the transform has no tables for the ratio {}",
                approximation_.ratio);
  }
  std::vector<Group> groups;
  std::vector<size_t> group_of;  // by component
  const uint32_t row = side.heads * side.dim;
  for (const TransformPart& part : side.parts) {
    if (part.first_feature % row != 0 || part.features % row != 0)
      throw Error(Finding::kBadField, "a part of the transform's basis divides a layer");
    group_of.insert(group_of.end(), part.rank(), groups.size());
    groups.push_back(
        {&part, {plan->steps.step, {}}, part.first_feature / row, part.features / row});
  }
  const std::vector<uint64_t> order = side.OrderComponents();
  std::vector<uint64_t> first(groups.size());  // index of the first component of each part
  for (size_t i = 1; i < groups.size(); ++i) first[i] = first[i - 1] + groups[i - 1].part->rank();
  for (size_t i = 0; i < plan->steps.tables.size(); ++i) {
    const size_t group = group_of[order[i]];
    std::vector<StepTable>& tables = groups[group].code.tables;
    if (order[i] - first[group] != tables.size())
      throw Error(Finding::kBadField, "variances of the transform do not descend");
    tables.push_back(plan->steps.tables[i]);
  }
  return groups;
}

const ArchiveTransform::Group& ArchiveTransform::FindGroup(uint32_t layer, bool is_value) const {
  const auto& layers = approximation_.layers;
  const auto at = std::ranges::find(layers, layer, &Approximation::Layer::number);
  if (at == layers.end()) RefuseChunk("it has no such layer");
  const auto place = static_cast<uint32_t>(at - layers.begin());
  const std::vector<Group>& groups = Groups(is_value);
  return *std::ranges::find_if(groups, [&](const Group& group) {
    return place >= group.first_layer && place < group.first_layer + group.layers;
  });
}

ArchiveTransform::Coefficients ArchiveTransform::FindDecoded(size_t place) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [of, coefficients] : cache_) {
    if (of == place) return coefficients;
  }
  return nullptr;
}

ArchiveTransform::Coefficients ArchiveTransform::Decode(const ChunkHead& holder, size_t place,
                                                        ByteSpan payload) const {
  if (Coefficients decoded = FindDecoded(place)) return decoded;
  const Group& group = FindGroup(holder.layer, holder.kind == ChunkKind::kValue);
  if (holder.tokens > kStreamTokens) RefuseChunk("more than 128 tokens");
  std::vector<int16_t> symbols(holder.tokens * group.code.tables.size());
  DecodeCoefficients(group.code, payload, holder.tokens, symbols);
  auto made = std::make_shared<std::vector<float>>();
  made->reserve(symbols.size());
  for (const int16_t symbol : symbols) made->push_back(symbol * group.code.step);
  const std::lock_guard lock(mutex_);
  cache_.emplace_back(place, made);
  cached_bytes_ += made->size() * sizeof(float);
  while (cached_bytes_ > kMostCachedBytes && cache_.size() > 1) {
    cached_bytes_ -= cache_.front().second->size() * sizeof(float);
    cache_.pop_front();
  }
  return made;
}

void ArchiveTransform::Restore(const ChunkHead& head, const std::vector<float>& coefficients,
                               std::span<std::byte> raw) const {
  const bool is_value = head.kind == ChunkKind::kValue;
  const TransformSide& side = is_value ? transform_->v : transform_->k;
  const Group& group = FindGroup(head.layer, is_value);
  const auto layer =
      std::ranges::find(approximation_.layers, head.layer, &Approximation::Layer::number);
  const uint64_t place = static_cast<uint64_t>(layer - approximation_.layers.begin());
  if (uint64_t{head.head_begin} + head.heads > side.heads ||
      uint64_t{head.unit_begin} + head.units > side.dim ||
      (head.heads > 1 && head.units != side.dim)) {
    RefuseChunk("the chunk's heads are not among the transform's");
  }
  const Rotation* rotation = is_value ? nullptr : &approximation_.rotations.at(layer->rotation);
  if (rotation != nullptr && rotation->angles.empty()) rotation = nullptr;
  if (rotation != nullptr && head.units != side.dim) RefuseChunk("rotated keys of partial heads");
  if (coefficients.size() != head.tokens * group.code.tables.size() || head.by_cells ||
      !TakesTransform(head.dtype)) {
    RefuseChunk("the chunk's tokens or element type do not match its coefficients");
  }
  const uint64_t feature =
      place * side.heads * side.dim + uint64_t{head.head_begin} * side.dim + head.unit_begin;
  const TransformedRows rows{
      .coefficients = coefficients.data(),
      .components = group.code.tables.size(),
      .vectors = group.part->vectors.data() + feature - group.part->first_feature,
      .stride = group.part->features,
      .mean = side.mean.data() + feature,
      .rotation = rotation,
      .head_dim = side.dim,
      .position = head.token_begin};
  RestoreRows(head.shape(), rows, raw);
}

TransformedChunks::Key TransformedChunks::MakeKey(const ChunkHead& head) const {
  const bool is_value = head.kind == ChunkKind::kValue;
  const uint32_t first = transform->FindGroup(head.layer, is_value).first_layer;
  return {is_value, transform->approximation().layers[first].number, head.token_begin};
}

bool TransformedChunks::Encode(ChunkHead& head, Bytes& payload) const {
  const Key key = MakeKey(head);
  const auto stream = streams.find(key);
  if (stream == streams.end()) return false;
  const bool holds = head.layer == key.layer && head.head_begin == 0 && head.unit_begin == 0;
  payload = holds ? stream->second : Bytes();
  head.codec_parameter = holds ? 0 : 1 + key.layer;
  return true;
}

void TransformedChunks::Decode(const ChunkHead& head, std::span<std::byte> raw) const {
  const auto stream = streams.find(MakeKey(head));
  KV_ASSERT(stream != streams.end());
  const auto place = static_cast<size_t>(std::distance(streams.begin(), stream));
  transform->Restore(head, *transform->Decode(head, place, stream->second), raw);
}

void LossSums::Add(DType dtype, ByteSpan original, ByteSpan approximated) {
  const std::vector<float> from = WidenRows(dtype, original), to = WidenRows(dtype, approximated);
  for (size_t i = 0; i < from.size(); ++i) {
    const double value = from[i], off = static_cast<double>(to[i]) - value;
    error += off * off;
    energy += value * value;
    largest = std::max(largest, std::fabs(off));
  }
}

void LossSums::Add(const LossSums& other) {
  error += other.error;
  energy += other.energy;
  largest = std::max(largest, other.largest);
}

Loss LossSums::Finish() const { return {energy > 0 ? std::sqrt(error / energy) : 0, largest}; }

}  // namespace kv
