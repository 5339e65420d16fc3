// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>

#include "lib/core/snapshot/snapshot.h"

namespace kv::analysis {

// Bits per value that the best linear prediction of each channel from those before it in its head
// would save, if values were gaussian: -log2(det R) / 2 / head_dim over correlation matrices R, the
// mean of all heads. Nothing where heads are unknown, too wide, or too few tokens tell: a matrix
// from few samples looks dependent when it is not.
std::optional<double> CrossChannelGain(const KvTensor& tensor);

}  // namespace kv::analysis
