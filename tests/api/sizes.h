// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <set>

#include "lib/api/kvtool.h"

// Calls `use` with every size from 0 to 16 beyond the struct's, in memory where exactly that many
// bytes belong to the struct. Sizes of this version and older ones are accepted; others give
// KV0010. Nothing beyond the struct is written.
template <typename T>
void TrySizes(const T& sound, const std::function<kvt_status(T*)>& use,
              const std::set<size_t>& versions = {sizeof(T)}) {
  for (uint32_t size = 0; size <= sizeof(T) + 16; ++size) {
    alignas(T) unsigned char memory[sizeof(T) + 16];
    std::memset(memory, 0xa5, sizeof memory);
    std::memcpy(memory, &sound, std::min<size_t>(std::max<size_t>(size, 4), sizeof(T)));
    std::memcpy(memory, &size, sizeof size);
    INFO(size << " of " << sizeof(T));
    CHECK(use(reinterpret_cast<T*>(memory)) ==
          (versions.contains(size) ? kvt_status{KVT_OK} : kvt_status{KVT_E_BAD_ARGUMENT}));
    const size_t own = std::max<size_t>(size, 4);
    CHECK(std::all_of(memory + std::min(own, sizeof memory), memory + sizeof memory,
                      [](unsigned char byte) { return byte == 0xa5; }));
  }
}
