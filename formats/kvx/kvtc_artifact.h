// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/file.h"
#include "lib/core/transform/transform.h"

namespace kv {

// The kvtc.pt of SGLang's backend for Ascend NPUs, of one worker.
struct KvtcArtifact {
  struct Group {
    std::optional<int64_t> size;  // nothing where it is no integer, as True
    std::string type;
  };
  struct Side {
    std::vector<float> mean;
    TransformPart basis;
    std::map<uint64_t, std::vector<Group>> schemas;  // by ratio; none of the version v1-noquant
  };
  Side k, v;
};

// Throws what ReadTorch throws, kUnsupportedVersion, kMissingRecord for a worker that is not in it,
// kBadField for shapes, values and ratios that no artifact has.
KvtcArtifact ReadKvtcArtifact(const Source& source, std::string_view worker);

}  // namespace kv
