// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>

#include "lib/core/snapshot/snapshot.h"

namespace kv::analysis {

// Returns how many bits per value the best linear prediction of each channel from the channels
// before it in its head would save if values were Gaussian: -log2(det R) / 2 / head_dim with a
// head's correlation matrix R, averaged over heads. Returns nothing if the heads are unknown or too
// wide, or if there are too few tokens: a matrix of few samples looks dependent when it is not.
std::optional<double> CrossChannelGain(const KvTensor& tensor);

}  // namespace kv::analysis
