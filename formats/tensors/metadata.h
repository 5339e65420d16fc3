// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace kv {

// Text beside tensors, which safetensors keeps in __metadata__. npz and npy folders carry the same
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
// + tensor name: the layout number that LMCache keeps beside a tensor's shape.
inline const std::string kMemoryFormatPrefix = "lmcache.fmt.";

std::string Lookup(const TensorMetadata& metadata, std::string_view key);  // empty if absent
bool IsKvtoolFile(const TensorMetadata& metadata);

// A JSON object of strings, or nothing if the text is something else.
std::optional<TensorMetadata> ParseMetadata(std::string_view json);
std::string MetadataJson(const TensorMetadata& metadata);

}  // namespace kv
