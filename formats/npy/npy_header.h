// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/base/dtype.h"

namespace kv {

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";
inline constexpr uint64_t kNpyHeaderCap = 64 << 10;

// The header of an npy file.
struct NpyHeader {
  std::string descr;  // numpy's type word: "<f2"
  bool fortran_order = false;
  std::vector<uint64_t> shape;
  uint64_t data_offset = 0;  // from the start of the file
};

// How an element type is stored.
struct NpyType {
  DType dtype = DType::kF32;
  bool swapped = false;  // big-endian
  bool raw = false;  // |V1, |V2: bits of a type numpy does not have; dtype is an unsigned integer
};

// Parses the Python literal of the header; nothing is evaluated. Throws kBadMagic, kBadVersion,
// kBadHeader, kTruncated, kLimit, kUnsupportedDtype (structured).
NpyHeader ParseNpyHeader(ByteSpan file);

// Throws kUnsupportedKind for object arrays, kUnsupportedDtype for text, times and the like,
// kUnknownDtype for types that numpy never writes.
NpyType NpyTypeOf(std::string_view descr);

// The header of a version 1.0 file, padded so that the values begin at a multiple of 64.
Bytes MakeNpyHeader(DType dtype, const std::vector<uint64_t>& shape);

}  // namespace kv
