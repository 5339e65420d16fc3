// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <utility>

#include "lib/core/base/file.h"

namespace kv::test {

// Returns a source whose only file is in memory.
inline Source MakeSource(Bytes bytes, const std::string& name = "memory") {
  Source source;
  source.path = name;
  source.files.push_back({name, FileSource::FromBytes(std::move(bytes), name)});
  return source;
}

}  // namespace kv::test
