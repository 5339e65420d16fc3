// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "formats/format.h"
#include "formats/tensors/kvtool_arrays.h"
#include "lib/core/base/tensor.h"

namespace kv {

// Reads one file, or a folder of them (tensors then carry their file). Only headers are read;
// tensors are views. Throws as the rules of FORMAT.md say.
TensorFile ReadSafetensors(Source source, const OpenOptions& options);

// Returns a file up to its tensors' values, which follow in the given order, without gaps.
Bytes SafetensorsHead(const std::vector<const TensorToWrite*>& order,
                      const TensorMetadata& metadata);

// Writes a file in the official writer's order and padding, in bounded memory.
void WriteSafetensorsFile(const std::vector<TensorToWrite>& tensors, const TensorMetadata& metadata,
                          Sink& sink);

// Detects the formats, for the registry.
Confidence ProbeSafetensors(const Source& source);
Snapshot OpenSafetensors(Source source, const OpenOptions& options);
void WriteSafetensors(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);

}  // namespace kv
