// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Why keys are taken for rotated where the file does not say so, in Snapshot::storage: it travels
// through archives and array files with the keys.
inline constexpr const char* kRotationAssumed = "key_rotation_assumed";

// Takes the keys for rotated (RoPE applied) for a reason that the file does not prove.
inline void AssumeRotated(Snapshot& snapshot, std::string reason) {
  snapshot.key_rotation = KeyRotation::kRotated;
  snapshot.storage[kRotationAssumed] = std::move(reason);
}

// The reason, or empty where the file itself tells.
inline std::string RotationAssumption(const Snapshot& snapshot) {
  const auto at = snapshot.storage.find(kRotationAssumed);
  return at == snapshot.storage.end() ? std::string() : at->second;
}

}  // namespace kv
