// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by lmcache_reader.cc

#include <cstdint>
#include <string_view>

namespace kv::lmcache {

// LMCache's numbers for the layouts of a chunk.
struct MemoryFormat {
  int number;
  std::string_view name;  // LMCache's own word
  std::string_view axes;  // outermost first, letters as in formats/raw; empty where it is no cache
};

// By number or by LMCache's word, or null.
const MemoryFormat* FindMemoryFormat(int64_t number);
const MemoryFormat* FindMemoryFormat(std::string_view name);
// Returns the same layout. Throws kUnsupportedKind if it does not hold K and V.
const MemoryFormat& CacheFormat(const MemoryFormat& format);
// Throws kBadField for numbers that LMCache never had.
const MemoryFormat& MemoryFormatOf(int64_t number);
// The number as text, as metadata keeps it.
const MemoryFormat& MemoryFormatOf(std::string_view number);

}  // namespace kv::lmcache
