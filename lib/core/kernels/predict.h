// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

// Each byte against the one before it (0 before the first), modulo 256: the predictors of the gear
// codec. `from` and `to` do not overlap when encoding and may be the same when decoding.
void DeltaEncode(const std::byte* from, size_t size, std::byte* to) noexcept;
void XorEncode(const std::byte* from, size_t size, std::byte* to) noexcept;
// The inverses are running sums: prefix scans.
void DeltaDecode(const std::byte* from, size_t size, std::byte* to) noexcept;
void XorDecode(const std::byte* from, size_t size, std::byte* to) noexcept;

}  // namespace kv
