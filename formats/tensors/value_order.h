// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string_view>

#include "formats/tensors/reading.h"

namespace kv {

enum class TokenPlace { kBeforeHeads, kAfterHeads };

// Two readings of the same arrays that differ in the order of the token and head axes, the two
// before the last.
struct ValueOrders {
  std::string_view token_first, head_first;  // as --layout: "THD", "HTD"
  // The choice, with a warning, if the values do not tell; without it the user is asked.
  std::optional<TokenPlace> usual = {};
};

// Decides by the values of some of the layers (lib/core/snapshot/token_axis.h). Throws
// kAmbiguousFormat, naming --layout, if they do not decide.
Reading ReadByValues(const KvTensors& found, const OpenOptions& options, const ValueOrders& orders);

}  // namespace kv
