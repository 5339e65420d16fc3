// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lib/core/base/file.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv::test {

// A synthetic snapshot file: a header of odd size, tensors in any order with odd gaps between them,
// and a tail. Values are float-like noise, so that every codec has work to do.
class KvSourceBuilder {
 public:
  explicit KvSourceBuilder(uint32_t seed = 1) : random_(seed) { Filler(37); }

  struct Shape {
    DType dtype = DType::kF16;
    Order order = Order::kTokenHeadDim;
    uint64_t tokens = 64;
    uint32_t heads = 2, head_dim = 32;
    bool heads_known = true;
    int pieces = 1;  // parts into which the tensor is cut, with filler between them
  };

  // Adds the next layer. V may have another shape than K.
  void Layer(const Shape& k, const Shape* v) {
    LayerKv layer{.index = static_cast<uint32_t>(snapshot_.layers.size() * 2 + 1)};
    layer.k = Tensor(k);
    if (v != nullptr) layer.v = Tensor(*v);
    snapshot_.layers.push_back(std::move(layer));
  }

  void Filler(size_t count) {
    for (size_t i = 0; i < count; ++i) bytes_.push_back(static_cast<std::byte>(random_() % 7));
  }

  // The source and the snapshot that a reader would return for it; the views point into the source.
  Snapshot Build(const std::string& name = "made-up.bin") {
    Snapshot snapshot = snapshot_;
    const auto data = FileSource::FromBytes(bytes_, name);
    snapshot.source.path = name;
    snapshot.source.files.push_back({name, data});
    snapshot.format = "made-up";
    snapshot.format_version = "7, layout odd";
    snapshot.engine = "engine";
    snapshot.facts = {{"layout", "odd"}, {"page", "1"}};
    snapshot.tokens = {5, -1, 7};
    for (LayerKv& layer : snapshot.layers) {
      Rebase(layer.k, data->bytes().data());
      if (layer.v) Rebase(*layer.v, data->bytes().data());
    }
    return snapshot;
  }

 private:
  void Rebase(KvTensor& tensor, const std::byte* base) {
    for (StridedPiece& piece : tensor.pieces) {
      piece.data = base + reinterpret_cast<uintptr_t>(piece.data);  // was an offset
    }
  }

  KvTensor Tensor(const Shape& shape) {
    KvTensor tensor{.dtype = shape.dtype,
                    .heads = shape.heads,
                    .head_dim = shape.head_dim,
                    .heads_known = shape.heads_known};
    uint64_t left = shape.tokens;
    for (int i = 0; i < shape.pieces && left > 0; ++i) {
      const uint64_t tokens = i + 1 == shape.pieces ? left : std::max<uint64_t>(1, left / 3);
      left -= tokens;
      const uint64_t offset = bytes_.size();
      const KvTensor piece =
          ContiguousTensor(reinterpret_cast<const std::byte*>(offset), shape.dtype, tokens,
                           shape.heads, shape.head_dim, shape.order);
      tensor.pieces.push_back(piece.pieces[0]);
      Values(shape.dtype, tokens * tensor.row_bytes());
      Filler(random_() % 5);
    }
    return tensor;
  }

  void Values(DType dtype, uint64_t size) {
    const uint32_t word = Info(dtype).block_bytes;
    for (uint64_t i = 0; i < size; ++i) {
      // Sign and exponent bytes vary little, mantissas are noise.
      const bool is_top = i % word == word - 1;
      bytes_.push_back(static_cast<std::byte>(is_top ? 0x3a + (random_() & 0x83) : random_()));
    }
  }

  std::mt19937 random_;
  Bytes bytes_;
  Snapshot snapshot_;
};

}  // namespace kv::test
