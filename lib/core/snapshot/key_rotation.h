// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>

#include "lib/core/base/error.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// The key in Snapshot::storage of the reason why keys are assumed to be rotated although the file
// does not say so. It travels with the keys through archives and array files.
inline constexpr const char* kRotationAssumed = "key_rotation_assumed";

// Assumes that the keys are rotated (RoPE applied), for a reason that the file does not prove.
inline void AssumeRotated(Snapshot& snapshot, std::string reason) {
  snapshot.key_rotation = KeyRotation::kRotated;
  snapshot.storage[kRotationAssumed] = std::move(reason);
}

// The reason, or empty if the file itself tells.
inline std::string RotationAssumption(const Snapshot& snapshot) {
  const auto at = snapshot.storage.find(kRotationAssumed);
  return at == snapshot.storage.end() ? std::string() : at->second;
}

// For formats whose readers take every key for rotated.
inline void RequireRotatedKeys(const Snapshot& snapshot, std::string_view what) {
  if (snapshot.key_rotation != KeyRotation::kUnrotated) return;
  Error error(Finding::kUnsupportedLayout,
              "keys are from before RoPE, which " + std::string(what) + " cannot express");
  throw error.Hint("--to torch-dict or safetensors can");
}

}  // namespace kv
