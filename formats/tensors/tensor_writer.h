// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "formats/tensors/metadata.h"
#include "lib/core/base/tensor.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// A tensor on its way into a container: what its header needs, and its values in C order when asked
// for. Never of a block type.
struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF16;
  std::vector<uint64_t> shape;
  std::function<void(Sink&)> write;  // exactly bytes()

  uint64_t bytes() const;
};

struct TensorExport {
  std::vector<TensorToWrite> tensors;
  TensorMetadata metadata;
};

// K and V become k_{layer} and v_{layer}, [token, head, dim], with positions and token ids beside
// them; metadata hold what the arrays cannot express. Block types become bytes, [token, head, block
// bytes]. The snapshot must outlive the export; values are gathered in bounded memory while
// written. Throws kGeometryMissing while heads are unknown.
TensorExport ExportOf(const Snapshot& snapshot);

}  // namespace kv
