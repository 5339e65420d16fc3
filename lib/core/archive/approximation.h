// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by transformed_chunks.cc

#include <cstdint>
#include <string>
#include <vector>

#include "lib/core/base/hash.h"
#include "lib/core/codec/rotation.h"

// An archive whose values a learnt transform approximates, as its source table describes it: it
// restores the approximated state, byte for byte, and never the original.
namespace kv {

// Difference of approximated values from the original ones, over the approximated values alone.
struct Loss {
  double relative = 0;  // root of sum (approximated - original)^2 / sum original^2
  double largest = 0;   // largest absolute difference

  bool operator==(const Loss&) const = default;
};

struct Approximation {
  std::string file;                // name of the transform without folders; empty if unknown
  std::string model;               // model, as the transform states it
  Hash128Bytes hash{};             // hash at the end of the transform's file
  double ratio = 1;                // ratio asked for: of 16-bit values to coefficients
  uint32_t sinks = 0, window = 0;  // first and last tokens that are exact
  uint64_t source_hash = 0;        // of the original; the index has that of what is restored
  std::vector<Rotation> rotations;
  struct Layer {
    uint32_t number = 0;
    uint32_t rotation = 0;  // place of its keys' rotation
    Loss k, v;

    bool operator==(const Layer&) const = default;
  };
  std::vector<Layer> layers;  // in the order of the transform's layers

  Loss WorstLoss(bool is_value) const;  // of all layers
};

}  // namespace kv
