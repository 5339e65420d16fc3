// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Words in Snapshot::storage, which travel through archives.
inline constexpr const char* kBatchRows = "batch_rows";  // how many; absent for one sequence
inline constexpr const char* kAxesGuessed =
    "axes_guessed";  // nothing told which axis counts tokens

// How many sequences of equal length stand one after another in every tensor. Throws kBadField if
// the recorded number does not divide the tensors.
uint64_t BatchRows(const Snapshot& snapshot);

}  // namespace kv
