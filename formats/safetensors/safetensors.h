// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "formats/format.h"
#include "formats/tensors/kvtool_arrays.h"
#include "lib/core/base/tensor.h"

namespace kv {

// One file, or a folder of them (tensors then carry the file they are in). Only headers are read;
// tensors are views. Throws as the rules of FORMAT.md say.
TensorFile ReadSafetensors(Source source, const OpenOptions& options);

// A file up to its tensors' values, which follow in the order given, without gaps.
Bytes SafetensorsHead(const std::vector<const TensorToWrite*>& order,
                      const TensorMetadata& metadata);

// The official writer's order and padding, in bounded memory.
void WriteSafetensorsFile(const std::vector<TensorToWrite>& tensors, const TensorMetadata& metadata,
                          Sink& sink);

// For the registry.
Confidence ProbeSafetensors(const Source& source);
Snapshot OpenSafetensors(Source source, const OpenOptions& options);
void WriteSafetensors(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);

}  // namespace kv
