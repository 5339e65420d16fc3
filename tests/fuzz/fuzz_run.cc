// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any bytes as a run.json and as a file of sensitivities: what is accepted is within its bounds.
#include <cmath>
#include <cstdlib>

#include "formats/run/run.h"
#include "lib/core/base/error.h"
#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const auto file = kv::FileSource::FromBytes(kv::Bytes(bytes, bytes + size), "fuzz");
  try {
    const kv::RecordedRun run = kv::ReadRun(*file, "/");
    if (run.snapshot.empty() || run.prompt_tokens > run.tokens) std::abort();
    for (const std::string& path : {run.snapshot, run.prefill, run.trace, run.logits}) {
      if (path.find("/../") != std::string::npos) std::abort();
    }
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  try {
    for (const auto& [layer, weight] : kv::ReadSensitivity(*file).Weights()) {
      if (!std::isfinite(weight) || weight < 0) std::abort();
    }
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
