// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string_view>

#include "apps/python/src/buffers.h"
#include "lib/api/kvtool.h"

// The keyword arguments by which Python describes what is encoded.
namespace kvtool_python {

// KVT_FAST to KVT_MAX of "fast", "default", "high", "max" or 1 to 4.
uint32_t ParseLevel(nb::handle level);
const char* LevelName(uint32_t level);

// As encode() takes them; None where nothing was given.
struct DescriptionArguments {
  nb::handle dtype, shape, order, role, tag, context;
};

// What `buffer` is: the arguments first, then what the buffer says of itself. A buffer that is not
// there (an object in pieces) says nothing.
kvt_desc Describe(const DescriptionArguments& arguments, const Buffer* buffer);

// Of three axes; fewer or more are brought to three as docs/python.md says.
void SetShape(kvt_desc& desc, const std::vector<uint64_t>& shape);

// The 16 bytes of hash128, or throws ValueError.
void ParseContext(nb::handle context, uint8_t out[16]);

const char* OrderName(uint8_t order);
const char* RoleName(uint8_t role);

}  // namespace kvtool_python
