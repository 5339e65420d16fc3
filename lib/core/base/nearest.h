// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kv {

// The word that the user probably meant: the nearest of `words` if it is near enough, else empty.
std::string Nearest(std::string_view word, std::span<const std::string> words);

}  // namespace kv
