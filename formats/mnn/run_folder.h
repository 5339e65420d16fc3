// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "formats/mnn/meta.h"

namespace kv::mnn {

// One meta with the data files it names, whose sizes have been checked against it.
struct Dump {
  DumpMeta meta;
  const SourceFile* file = nullptr;  // the meta itself
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
};

struct LayerDumps {
  std::vector<Dump> logical, packed;
  const Dump& first() const { return logical.empty() ? packed.front() : logical.front(); }
};

struct RunDumps {
  std::map<uint32_t, LayerDumps> layers;  // by layer id
  std::vector<std::string> strangers;     // files that no meta names
};

// Whether any file is a dump's meta by its content.
bool HoldsDumps(const Source& source);

// Every dump of the one run in a folder, checked for sizes, names and agreement within layers. The
// result points into `source`. Throws kAmbiguousFormat for several runs.
RunDumps ReadRun(const Source& source);

// "a, b, c, d and 4 more"
std::string Listed(const std::vector<std::string>& names);

}  // namespace kv::mnn
