// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kv {

// The nearest of `words` if it is near enough to be what a user meant, else empty.
std::string Nearest(std::string_view word, std::span<const std::string> words);

}  // namespace kv
