// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/tensor.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {
// Text beside tensors, which safetensors keeps in __metadata__. npz and npy folders carry that text
// as a JSON object of strings. Keys of kvtool's own files begin with "kvtool.".
using TensorMetadata = std::map<std::string, std::string>;

inline constexpr std::string_view kLayoutKey = "kvtool.layout";
inline constexpr std::string_view kEngineKey = "kvtool.engine";
inline constexpr std::string_view kModelKey = "kvtool.model";
inline constexpr std::string_view kSourceKey = "kvtool.source";
inline constexpr std::string_view kKeyRotationKey = "kvtool.key_rotation";
inline constexpr std::string_view kKHadamardKey = "kvtool.k_hadamard";
inline constexpr std::string_view kVHadamardKey = "kvtool.v_hadamard";
inline constexpr std::string_view kGroupsKey = "kvtool.layer_groups";
inline constexpr std::string_view kCachesKey = "kvtool.caches";
inline constexpr std::string_view kSequencesKey = "kvtool.sequences";  // + ".swa" as positions
inline constexpr std::string_view kStoragePrefix = "kvtool.storage.";  // + key of Snapshot::storage
inline constexpr std::string_view kDtypePrefix = "kvtool.dtype.";      // + tensor name
// Prefix of the key, before a tensor's name, of the layout number that LMCache keeps with it.
inline const std::string kMemoryFormatPrefix = "lmcache.fmt.";

std::string Lookup(const TensorMetadata& metadata, std::string_view key);  // empty if absent
bool IsKvtoolFile(const TensorMetadata& metadata);

// Parses a JSON object of strings; returns nothing if the text is something else.
std::optional<TensorMetadata> ParseMetadata(std::string_view json);
std::string MetadataJson(const TensorMetadata& metadata);

// A tensor to be written into a container: the fields of its header, and a function that writes its
// values in C order. Its type is never a block type.
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

// Exports K and V as k_{layer} and v_{layer}, [token, head, dim], with positions and token ids
// beside them; metadata hold what the arrays cannot express. Block types become bytes, [token,
// head, block bytes]. The snapshot must outlive the export; values are gathered in bounded memory
// while written. Throws kGeometryMissing while heads are unknown.
TensorExport MakeExport(const Snapshot& snapshot);

// Exports the data beside K and V to an array container: positions, streams, sequences, token ids.
// FORMAT.md has the names.
void ExportCells(const Snapshot& snapshot, TensorExport& out);
// Reads exported cells back; the snapshot must already have its layers. Throws kBadField, kLimit.
void ImportCells(const TensorFile& file, Snapshot& snapshot);

// Returns the values of a vector of i32, u32 or i64.
std::vector<int64_t> ToIntegers(const TensorView& view);

// Returns the sequences of each cell, as runs: "0*512", "0,1*60;1*36", "*3" for none.
std::string SequencesText(const std::vector<Cell>& cells);
// Throws kBadField unless the text describes exactly these cells.
void ReadSequences(std::string_view text, std::vector<Cell>& cells);

}  // namespace kv
