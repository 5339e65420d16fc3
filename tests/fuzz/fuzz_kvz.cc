// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any bytes as an archive: opened, checked, restored as far as it goes, loaded as tensors. And as a
// source: what is archived at the level of the first byte is restored, without a refusal.
#include <cstddef>
#include <cstdint>

#include "lib/core/archive/archive.h"
#include "lib/core/snapshot/layout.h"
#include "tests/fuzz/accepted.h"
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

// The bytes as f16 and as anything, in small chunks; an Error ends the run.
void RoundTrip(ByteSpan input, ThreadPool& pool) {
  if (input.empty()) return;
  const auto effort = static_cast<Effort>(std::to_integer<unsigned>(input[0]) % 5);
  Source source;
  source.files.push_back({"", FileSource::FromBytes({input.begin(), input.end()}, "source")});
  constexpr uint32_t kHeads = 2, kHeadDim = 8, kRow = 2 * kHeads * kHeadDim;
  const std::byte* data = source.files.front().data->bytes().data();
  const uint64_t tokens = input.size() / 2 / kRow;
  Snapshot snapshot;
  snapshot.source = source;
  for (const Order order : {Order::kTokenHeadDim, Order::kHeadDimToken}) {
    if (tokens == 0) break;
    const uint32_t layer = static_cast<uint32_t>(snapshot.layers.size());
    snapshot.layers.push_back({layer,
                               {},
                               {},
                               ContiguousTensor(data + layer * tokens * kRow, DType::kF16, tokens,
                                                kHeads, kHeadDim, order),
                               {}});
  }
  MemorySink archive;
  WriteOptions options;
  options.chunk_bytes = 2048;
  options.effort = effort;
  options.check = false;
  WriteArchive(source, tokens == 0 ? nullptr : &snapshot, options, pool, archive);
  const Archive opened = Archive::Open(FileSource::FromBytes(std::move(archive.bytes()), "fresh"));
  KV_ASSERT(opened.damage().empty());
  SourceComparer comparer(opened, source);
  KV_ASSERT(Restore(opened, {}, pool, comparer).intact());
  KV_ASSERT(comparer.differences().empty());
}

}  // namespace

kv::Bytes FuzzRepair(kv::ByteSpan input, unsigned choice) {
  return kv::fuzz::RepairKvz(input, {choice % 4 != 0, choice % 8 < 6});
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  static ThreadPool pool(1);
  RoundTrip({begin, size}, pool);
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
    ++kv::fuzz::accepted;
  } catch (const Error&) {
    // Refused, with a name.
  }
  return 0;
}
