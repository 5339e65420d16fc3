// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// What an engine does with the installed library: calls a kernel and lists the formats.
#include <cstdio>
#include <vector>

#include "formats/registry.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/targets.h"

int main() {
  const std::vector<float> values = {1.0f, -2.5f, 65504.0f};
  std::vector<std::byte> halves(2 * values.size());
  std::vector<float> back(values.size());
  kv::FloatToHalf(values.data(), halves.data(), values.size());
  kv::HalfToFloat(halves.data(), back.data(), values.size());
  if (back != values) return 1;
  std::printf("%zu formats, kernels on %s\n", kv::Formats().size(), kv::ActiveSimdTarget().c_str());
  return 0;
}
