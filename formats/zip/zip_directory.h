// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Inside formats/zip: the numbers of the format and the parser of its directory.
#pragma once

#include "formats/zip/zip_reader.h"

namespace kv::zip {

inline constexpr uint32_t kLocalSignature = 0x04034b50;
inline constexpr uint32_t kCentralSignature = 0x02014b50;
inline constexpr uint32_t kEndSignature = 0x06054b50;
inline constexpr uint32_t kEnd64Signature = 0x06064b50;
inline constexpr uint32_t kLocator64Signature = 0x07064b50;
inline constexpr uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22;
inline constexpr uint64_t kEnd64Bytes = 56, kLocator64Bytes = 20;
inline constexpr uint16_t kZip64Extra = 1;
inline constexpr uint16_t kAlignmentExtra = 0xd935;  // skipped by every reader
inline constexpr uint16_t kStored = 0, kDeflated = 8;
inline constexpr uint16_t kFlagSizesFollow = 1 << 3, kFlagUtf8 = 1 << 11;
// Encrypted, patched, strongly encrypted, directory masked.
inline constexpr uint16_t kFlagsRefused = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 13;
inline constexpr uint32_t kSaturated32 = 0xffffffff;
inline constexpr uint16_t kSaturated16 = 0xffff;

// The entries in the directory's order, and their names by place.
std::vector<ZipEntry> ReadDirectory(ByteSpan file, NameTable& names);

}  // namespace kv::zip
