// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any bytes as an archive: opened, checked, restored as far as it goes, loaded as tensors.
#include <cstddef>
#include <cstdint>

#include "formats/kvz/archive.h"
#include "tests/fuzz/fuzz_repair.h"
#include "tests/fuzz/repair.h"

namespace {

using namespace kv;

class Nowhere : public RestoreTarget, private Sink {
 public:
  Sink& Begin(size_t) override { return *this; }
  void End(size_t) override {}

 private:
  void Write(ByteSpan) override {}
};

// A bomb is no bug, but takes long to fuzz.
constexpr uint64_t kMostBytes = 32 << 20;

uint64_t TensorBytes(const Archive& archive) {
  return archive.description() ? archive.description()->kv_bytes() : 0;
}

}  // namespace

kv::Bytes FuzzRepair(kv::ByteSpan input, unsigned choice) {
  return kv::fuzz::RepairKvz(input, {choice % 4 != 0, choice % 8 < 6});
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  static ThreadPool pool(1);
  try {
    const Archive archive =
        Archive::Open(FileSource::FromBytes(Bytes(begin, begin + size), "fuzz"));
    archive.CheckStored(pool);
    archive.MissingTokens();
    if (archive.source_bytes() > kMostBytes) return 0;
    Nowhere target;
    RestoreOptions options;
    options.keep_going = true;
    const RestoreReport report = Restore(archive, options, pool, target);
    KV_ASSERT(report.bytes == archive.source_bytes());
    if (TensorBytes(archive) <= kMostBytes) LoadTensors(archive, {}, pool);
  } catch (const Error&) {
    // Refused, with a name.
  }
  return 0;
}
