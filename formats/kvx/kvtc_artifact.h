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
