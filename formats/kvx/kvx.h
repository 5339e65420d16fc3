// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Learnt transforms as files: kvtool's own (.kvx), and those of SGLang.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/base/file.h"
#include "lib/core/transform/transform.h"

namespace kv {

// Returns a learnt transform as a file. FORMAT.md has the grammar.
Bytes WriteTransform(const Transform& transform);
bool LooksLikeTransform(ByteSpan file);
// Throws kBadMagic, kUnsupportedVersion, kTruncated, kChecksum, kTrailingBytes, kBadField, kLimit.
Transform ReadTransform(ByteSpan file);

// A kvtc.pt of SGLang's backend for Ascend NPUs, for one worker.
struct KvtcArtifact {
  struct Group {
    std::optional<int64_t> size;  // empty if it is no integer, such as True
    std::string type;
  };
  struct Side {
    std::vector<float> mean;
    TransformPart basis;
    std::map<uint64_t, std::vector<Group>> schemas;  // by ratio; none in version v1-noquant
  };
  Side k, v;
};

// Throws what ReadTorch throws, kUnsupportedVersion, kMissingRecord if the worker is not in the
// file, kBadField for shapes, values and ratios that are invalid in an artifact.
KvtcArtifact ReadKvtcArtifact(const Source& source, std::string_view worker);

}  // namespace kv
