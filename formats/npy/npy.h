// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/format.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/dtype.h"
#include "lib/core/base/tensor.h"

namespace kv {

// Reads one .npy file (one tensor without a name) or a folder of them (each named by its file).
// Views map the file; only big-endian values are copied, to a spool file. Throws as the rules of
// FORMAT.md say.
TensorFile ReadNpy(Source source, const OpenOptions& options);
// Reads the arrays of an .npz. Deflated members are inflated, within options.max_bytes.
TensorFile ReadNpz(Source source, const OpenOptions& options);

// Detects the formats, for the registry.
Confidence ProbeNpy(const Source& source);
Confidence ProbeNpz(const Source& source);
Snapshot OpenNpy(Source source, const OpenOptions& options);
Snapshot OpenNpz(Source source, const OpenOptions& options);
void WriteNpy(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);
void WriteNpz(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";
inline constexpr uint64_t kNpyHeaderCap = 64 << 10;

// The header of an npy file.
struct NpyHeader {
  std::string descr;  // numpy's type word: "<f2"
  bool fortran_order = false;
  std::vector<uint64_t> shape;
  uint64_t data_offset = 0;  // from the start of the file
};

// The form in which an element type is stored.
struct NpyType {
  DType dtype = DType::kF32;
  bool swapped = false;  // big-endian
  bool raw = false;      // |V1, |V2: bits of a type that numpy lacks; dtype is an unsigned integer
};

// Parses the Python literal of the header; nothing is evaluated. Throws kBadMagic, kBadVersion,
// kBadHeader, kTruncated, kLimit, kUnsupportedDtype (structured).
NpyHeader ParseNpyHeader(ByteSpan file);

// Throws kUnsupportedKind for object arrays, kUnsupportedDtype for text, times and the like,
// kUnknownDtype for types that numpy does not write.
NpyType ParseNpyType(std::string_view descr);

// Returns the header of a version 1.0 file, padded so that the values begin at a multiple of 64.
Bytes MakeNpyHeader(DType dtype, const std::vector<uint64_t>& shape);

}  // namespace kv
