// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Approximates a source by a learnt transform: projects blocks of tokens, codes their coefficients,
// and replaces K and V in copies of the files by what an archive will restore.
#include "lib/core/archive/approximate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lib/core/archive/chunk_encoder.h"
#include "lib/core/kernels/ordered_product.h"
#include "lib/core/snapshot/layout.h"

namespace kv {
namespace {

bool AllFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

// Returns the rotation of a layer's keys in units of 2^-32 circles, as archives store it.
Rotation MakeRotation(const Rope& rope, uint32_t head_dim, uint64_t tokens) {
  Rotation rotation;
  for (const double frequency : InverseFrequencies(rope, head_dim, tokens)) {
    const double circles = frequency / (2 * std::numbers::pi);
    rotation.angles.push_back(static_cast<uint32_t>(std::llround(circles * 4294967296.0)));
  }
  const bool halves = rope.pairs == RopePairs::kHalves && !rotation.angles.empty();
  rotation.distance = halves ? static_cast<uint32_t>(rotation.angles.size()) : 1;
  return rotation;
}

const KvTensor& Tensor(const LayerKv& layer, bool is_value) {
  return is_value ? *layer.v : layer.k;
}

[[noreturn]] void RefuseLayout(std::string_view why) {
  throw Error(Finding::kUnsupportedLayout, "K and V cannot be replaced where they are stored: {}",
              why)
      .Hint("'kvtool convert' writes the cache in a format of plain tensors, such as safetensors");
}

std::vector<ChunkHead> PlanHeads(const Source& source, const Snapshot& snapshot,
                                 std::span<const uint64_t> cuts) {
  std::vector<uint64_t> sizes;
  for (const SourceFile& file : source.files) sizes.push_back(file.data->size());
  return kvz::PlanChunks(sizes, FindRegions(snapshot), kvz::kMaxChunkBytes / 2, Effort::kDefault,
                         cuts);
}

// Returns the kept vectors as [feature][component], so that components are the adjacent columns of
// a projection.
std::vector<float> Transpose(const ArchiveTransform::Group& group) {
  const uint64_t features = group.part->features, count = group.code.tables.size();
  std::vector<float> out(features * count);
  for (uint64_t c = 0; c < count; ++c) {
    for (uint64_t f = 0; f < features; ++f)
      out[f * count + c] = group.part->vectors[c * features + f];
  }
  return out;
}

void RequireReplaceableBy(std::span<const ChunkHead> heads, const Snapshot& snapshot) {
  std::map<std::pair<uint32_t, bool>, uint64_t> held;  // bytes
  for (const ChunkHead& head : heads) {
    if (head.kind == ChunkKind::kOpaque) continue;
    held[{head.layer, head.kind == ChunkKind::kValue}] += head.raw_bytes;
  }
  for (const LayerKv& layer : snapshot.layers) {
    for (const bool is_value : {false, true}) {
      const KvTensor& tensor = Tensor(layer, is_value);
      if (!TakesTransform(tensor.dtype)) {
        throw Error(Finding::kUnsupportedDtype,
                    "only f16, bf16 and f32 can be approximated, not {}", Name(tensor.dtype));
      }
      if (held[{layer.index, is_value}] != tensor.bytes())
        RefuseLayout("values are packed, deflated or padded");
    }
  }
}

class Approximator {
 public:
  Approximator(const Source& source, const Snapshot& snapshot,
               std::shared_ptr<const Transform> transform, Approximation wanted, ThreadPool& pool)
      : source_(source),
        snapshot_(snapshot),
        tokens_(snapshot.layers.front().k.tokens()),
        wanted_(std::move(wanted)),
        transform_(std::move(transform)),
        pool_(pool) {
    begin_ = wanted_.sinks;
    end_ = tokens_ - std::min<uint64_t>(tokens_, wanted_.window);
    if (begin_ >= end_) {
      throw Error(Finding::kUsage,
                  "the first {} and last {} tokens stay exact, and the cache has only {}: nothing "
                  "is left to approximate",
                  wanted_.sinks, wanted_.window, tokens_);
    }
    chunks_ = std::make_shared<TransformedChunks>();
    chunks_->transform = std::make_shared<ArchiveTransform>(transform_, wanted_);
    for (uint64_t cut = begin_; cut < end_; cut += kStreamTokens) chunks_->cuts.push_back(cut);
    chunks_->cuts.push_back(end_);
    std::erase(chunks_->cuts, 0);
  }

  ApproximatedSource Run() {
    PlaceHeads();
    for (const SourceFile& file : source_.files)
      made_.files.emplace_back(file.data->bytes().begin(), file.data->bytes().end());
    for (const bool is_value : {false, true}) {
      for (const Group& group : chunks_->transform->Groups(is_value))
        ApproximateGroup(is_value, group);
    }
    SumLosses();
    if (!transform_->k.weights.empty())
      wanted_.expected_kl = std::max(0.0, error_) / 2 / static_cast<double>(end_ - begin_);
    chunks_->transform = std::make_shared<ArchiveTransform>(transform_, wanted_);
    made_.tokens = end_ - begin_;
    made_.chunks = chunks_;
    return std::move(made_);
  }

 private:
  using Group = ArchiveTransform::Group;
  using Key = TransformedChunks::Key;

  struct Block {
    uint64_t begin = 0, count = 0;
    Bytes stream = {};
    uint64_t clipped = 0;
    double error = 0;  // sum of squared errors of features, each times its weight
    bool is_exact = false;
  };

  // Finds the chunks of every block.
  void PlaceHeads() {
    heads_ = PlanHeads(source_, snapshot_, chunks_->cuts);
    RequireReplaceableBy(heads_, snapshot_);
    sums_.resize(heads_.size());
    for (size_t i = 0; i < heads_.size(); ++i) {
      const ChunkHead& head = heads_[i];
      if (head.kind == ChunkKind::kOpaque || head.token_begin < begin_ || head.token_begin >= end_)
        continue;
      const uint64_t left = (head.token_begin - begin_) % kStreamTokens;
      if (left != 0 || head.tokens != std::min(kStreamTokens, end_ - head.token_begin))
        RefuseLayout("tokens lie in several pieces");
      places_[Key{head.kind == ChunkKind::kValue, head.layer, head.token_begin}].push_back(i);
    }
  }

  void ApproximateGroup(bool is_value, const Group& group) {
    const std::vector<float> columns = Transpose(group);
    std::vector<Block> blocks;
    for (uint64_t begin = begin_; begin < end_; begin += kStreamTokens)
      blocks.push_back({begin, std::min(kStreamTokens, end_ - begin)});
    pool_.ParallelFor(blocks.size(),
                      [&](uint64_t i) { ApproximateBlock(is_value, group, columns, blocks[i]); });
    const uint32_t holder = wanted_.layers[group.first_layer].number;
    for (Block& block : blocks) {
      made_.clipped += block.clipped;
      made_.exact_blocks += block.is_exact ? 1 : 0;
      if (block.is_exact) continue;
      error_ += block.error;
      chunks_->streams[Key{is_value, holder, block.begin}] = std::move(block.stream);
    }
  }

  // Returns the centred rows of a group's layers times the weights, keys without rotation, and sets
  // the error of a block without coefficients.
  std::vector<float> WeighedRows(bool is_value, const Group& group, Block& block) const {
    const TransformSide& side = is_value ? transform_->v : transform_->k;
    const uint64_t features = group.part->features, row = uint64_t{side.heads} * side.dim;
    std::vector<float> rows(block.count * features);
    for (uint32_t l = 0; l < group.layers; ++l) {
      const uint64_t place = group.first_layer + l;
      std::vector<float> values = GatherFloats(Tensor(snapshot_.layers[place], is_value),
                                               block.begin, block.count, Order::kTokenHeadDim);
      HeadRotator rotator(wanted_.rotations.at(wanted_.layers[place].rotation), side.dim);
      for (uint64_t t = 0; t < block.count; ++t) {
        const std::span<float> token = std::span(values).subspan(t * row, row);
        if (!is_value) rotator.Rotate(static_cast<uint32_t>(-(block.begin + t)), token);
        for (uint64_t i = 0; i < row; ++i) {
          const float centred = token[i] - side.mean[place * row + i];
          const float weighed = side.Weigh(place * row + i, centred);
          block.error += static_cast<double>(centred) * static_cast<double>(weighed);
          rows[t * features + l * row + i] = weighed;
        }
      }
    }
    return rows;
  }

  void ApproximateBlock(bool is_value, const Group& group, const std::vector<float>& columns,
                        Block& block) {
    const std::vector<float> rows = WeighedRows(is_value, group, block);
    block.is_exact = !AllFinite(rows);
    if (block.is_exact) return;
    const uint64_t count = group.code.tables.size();
    std::vector<float> coefficients(block.count * count);
    AddProducts(rows.data(), block.count, group.part->features, columns.data(), count, count,
                coefficients.data());
    block.is_exact = !AllFinite(coefficients);  // a block is exact if sums of large values overflow
    if (block.is_exact) return;
    std::vector<int16_t> symbols(coefficients.size());
    for (size_t i = 0; i < symbols.size(); ++i) {
      const float symbol = std::nearbyint(coefficients[i] / group.code.step);
      const float kept = std::clamp<float>(symbol, INT16_MIN, INT16_MAX);
      block.clipped += kept != symbol;
      symbols[i] = static_cast<int16_t>(kept);
      // The basis is orthonormal, so each coefficient explains its own share of the error.
      const double whole = coefficients[i], off = kept * group.code.step - coefficients[i];
      block.error += off * off - whole * whole;
      coefficients[i] = kept * group.code.step;
    }
    block.is_exact = !ReplaceBlock(is_value, group, block, coefficients);
    if (!block.is_exact) block.stream = EncodeCoefficients(group.code, symbols, block.count);
  }

  // Writes the values that the coefficients restore, unless one is not finite, and sums errors.
  bool ReplaceBlock(bool is_value, const Group& group, const Block& block,
                    const std::vector<float>& coefficients) {
    std::vector<std::pair<size_t, Bytes>> restored;
    for (uint32_t l = 0; l < group.layers; ++l) {
      const uint32_t layer = wanted_.layers[group.first_layer + l].number;
      for (const size_t i : places_.at(Key{is_value, layer, block.begin})) {
        Bytes& raw = restored.emplace_back(i, Bytes(heads_[i].raw_bytes)).second;
        chunks_->transform->Restore(heads_[i], coefficients, raw);
        if (!AllFinite(WidenRows(heads_[i].dtype, raw))) return false;
      }
    }
    for (const auto& [i, raw] : restored) {
      const ChunkHead& head = heads_[i];
      const ByteSpan file = source_.files[head.file].data->bytes();
      Bytes original(head.raw_bytes);
      kvz::GatherChunk(head, file.subspan(head.source_offset, head.extent_bytes), original);
      sums_[i].Add(head.dtype, original, raw);
      kvz::ScatterChunk(
          head, raw,
          std::span(made_.files[head.file]).subspan(head.source_offset, head.extent_bytes));
    }
    return true;
  }

  // Adds sums in the order of chunks, so that a comparison with the original has equal totals.
  void SumLosses() {
    std::map<std::pair<uint32_t, bool>, LossSums> sums;
    for (size_t i = 0; i < heads_.size(); ++i)
      sums[{heads_[i].layer, heads_[i].kind == ChunkKind::kValue}].Add(sums_[i]);
    for (Approximation::Layer& layer : wanted_.layers) {
      layer.k = sums[{layer.number, false}].Finish();
      layer.v = sums[{layer.number, true}].Finish();
    }
  }

  const Source& source_;
  const Snapshot& snapshot_;
  const uint64_t tokens_;
  Approximation wanted_;
  const std::shared_ptr<const Transform> transform_;
  ThreadPool& pool_;
  uint64_t begin_ = 0, end_ = 0;  // approximated tokens
  std::shared_ptr<TransformedChunks> chunks_;
  std::vector<ChunkHead> heads_;
  std::vector<LossSums> sums_;                 // by head
  double error_ = 0;                           // of all blocks
  std::map<Key, std::vector<size_t>> places_;  // which heads belong to a layer's block
  ApproximatedSource made_;
};

}  // namespace

void TakeLayers(const Snapshot& snapshot, const ModelRope* rope, Approximation& wanted) {
  const KvTensor& first = snapshot.layers.front().k;
  const bool rotates = snapshot.key_rotation != KeyRotation::kUnrotated;
  if (rotates && rope == nullptr) {
    throw Error(Finding::kUsage, "K is coded before RoPE, and how it is rotated is unknown")
        .Hint("give --model MODEL, or --rope-base and --rope-style");
  }
  for (const LayerKv& layer : snapshot.layers) {
    Rotation rotation;
    if (rotates) rotation = MakeRotation(rope->Of(layer.index), first.head_dim, first.tokens());
    const auto same = std::ranges::find_if(wanted.rotations, [&](const Rotation& known) {
      return known.distance == rotation.distance && known.angles == rotation.angles;
    });
    const auto place = static_cast<uint32_t>(same - wanted.rotations.begin());
    if (same == wanted.rotations.end()) wanted.rotations.push_back(std::move(rotation));
    wanted.layers.push_back({layer.index, place, {}, {}});
  }
}

void RequireReplaceable(const Source& source, const Snapshot& snapshot) {
  RequireReplaceableBy(PlanHeads(source, snapshot, {}), snapshot);
}

ApproximatedSource ApproximateSource(const Source& source, const Snapshot& snapshot,
                                     std::shared_ptr<const Transform> transform,
                                     Approximation wanted, ThreadPool& pool) {
  return Approximator(source, snapshot, std::move(transform), std::move(wanted), pool).Run();
}

}  // namespace kv
