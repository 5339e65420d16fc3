// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <string_view>

namespace kv {

// How the units of one tensor are ordered in memory. Names read from the outermost axis inwards.
// The values are stored in .kvz archives: never changed, never reused.
enum class Order : uint8_t {
  kTokenHeadDim = 0,  // [token][kv head][dim]: rows, what llama.cpp, vLLM and MNN dumps store
  kHeadTokenDim = 1,  // [kv head][token][dim]: what engines feed their codec, HF caches
  kHeadDimToken = 2,  // [kv head][dim][token]: llama.cpp's transposed V
  kStorage = 3,       // as stored; too irregular to name (packed tiles)
};
std::string_view Name(Order order);

}  // namespace kv
