// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/model_config/model_config.h"
#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const auto file = kv::FileSource::FromBytes({begin, begin + size}, "config.json");
  try {
    kv::ReadConfigGeometry(*file);
    const kv::ModelRope model = kv::model_config::FindRope(kv::model_config::Config(file->bytes()));
    for (uint32_t layer = 0; layer < 2; ++layer) {
      kv::RequireFit(model.Of(layer), 64);
      kv::InverseFrequencies(model.Of(layer), 64, 5000);
    }
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
