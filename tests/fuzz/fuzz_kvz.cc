// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any bytes as an archive: it is opened, checked, restored as far as possible and loaded as
// tensors. And as a source: it must be archived at the level of the first byte, with another cache
// as the reference if the upper bit is set, and be restored; no refusal is allowed there.
#include <array>
#include <cstddef>
#include <cstdint>

#include "lib/core/archive/archive.h"
#include "lib/core/snapshot/layout.h"
#include "tests/fuzz/accepted.h"
#include "tests/fuzz/fuzz_repair.h"
#include "tests/fuzz/repair.h"
#include "tests/support/memory_sink.h"

namespace {

using namespace kv;

class Nowhere : public RestoreTarget, private Sink {
 public:
  Sink& Begin(size_t) override { return *this; }
  void End(size_t) override {}

 private:
  void Write(ByteSpan) override {}
};

// A decompression bomb is valid, but takes long to fuzz.
constexpr uint64_t kMostBytes = 32 << 20;

uint64_t TensorBytes(const Archive& archive) {
  return archive.description() ? archive.description()->kv_bytes() : 0;
}

constexpr uint32_t kHeads = 2, kHeadDim = 8, kRow = 2 * kHeads * kHeadDim;

// Returns two layers of f16, each with half of the bytes as its K and without V.
Snapshot AsCache(Bytes bytes) {
  Snapshot snapshot;
  const uint64_t tokens = bytes.size() / 2 / kRow;
  snapshot.source.files.push_back({"", FileSource::FromBytes(std::move(bytes), "source")});
  const std::byte* data = snapshot.source.files.front().data->bytes().data();
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
  return snapshot;
}

std::shared_ptr<const Reference> AsReference(Bytes bytes) {
  auto reference = std::make_shared<Reference>();
  reference->name = {.file = "base", .format = "fuzz", .source_bytes = bytes.size()};
  reference->snapshot = AsCache(std::move(bytes));
  return reference;
}

// Returns rows that depend only on their number: archives in the corpus are coded against them.
References FixedReferences(size_t count) {
  static const std::shared_ptr<const Reference> fixed = [] {
    Bytes rows(64 * 2 * kRow);
    for (size_t i = 0; i < rows.size() / 2; ++i)
      StoreLE(rows.data() + 2 * i, static_cast<uint16_t>(0x3800 + i * 2654435761u % 1024));
    return AsReference(std::move(rows));
  }();
  return References(count, fixed);
}

// Returns the same rows except the first; the input decides how similar those of the second layer
// are.
std::shared_ptr<const Reference> NearReference(ByteSpan input) {
  Bytes rows(input.begin(), input.end());
  const size_t layer = rows.size() / 2 / kRow * kRow;
  for (size_t i = 0; i < std::min<size_t>(layer, kRow); ++i) rows[i] ^= std::byte{1};
  for (size_t i = 0; i + layer < rows.size(); i += 2) rows[i + layer] ^= rows[i] & std::byte{0x3f};
  return AsReference(std::move(rows));
}

// Encodes the bytes as f16 and as unknown bytes, in small chunks; an Error ends the run.
void RoundTrip(ByteSpan input, ThreadPool& pool) {
  if (input.empty()) return;
  const unsigned choice = std::to_integer<unsigned>(input[0]);
  const Snapshot snapshot = AsCache({input.begin(), input.end()});
  const Source& source = snapshot.source;
  MemorySink archive;
  WriteOptions options;
  options.chunk_bytes = 2048;
  options.effort = static_cast<Effort>(choice % 5);
  options.check = false;
  options.joined_layers = 2;
  if (choice >= 0x80) options.references.push_back(NearReference(input));
  WriteArchive(source, snapshot.layers.empty() ? nullptr : &snapshot, options, pool, archive);
  Archive opened = Archive::Open(FileSource::FromBytes(std::move(archive.bytes()), "fresh"));
  if (!opened.reference_names().empty()) opened.UseReferences(options.references);
  KV_ASSERT(opened.damage().empty());
  SourceComparer comparer(opened, source);
  KV_ASSERT(Restore(opened, {}, pool, comparer).intact());
  KV_ASSERT(comparer.differences().empty());
}

// Encodes the bytes as a folder of pages of one layer's K, which are coded together, and a rest.
void PagesRoundTrip(ByteSpan input, ThreadPool& pool) {
  constexpr uint64_t kPage = 4 * kRow;
  constexpr std::array kOrders = {Order::kTokenHeadDim, Order::kHeadTokenDim, Order::kHeadDimToken};
  const Order order = kOrders[input.empty() ? 0 : std::to_integer<unsigned>(input[0]) % 3];
  Source source;
  source.is_folder = true;
  LayerKv layer;
  for (uint64_t at = 0; at < input.size() && source.files.size() < 64; at += kPage) {
    const ByteSpan part = input.subspan(at, std::min(kPage, input.size() - at));
    const auto number = static_cast<char>(source.files.size());
    const std::string name = {static_cast<char>('a' + number / 8),
                              static_cast<char>('a' + number % 8)};
    source.files.push_back({name, FileSource::FromBytes({part.begin(), part.end()}, name)});
    if (part.size() < kPage) break;
    KvTensor page = ContiguousTensor(source.files.back().data->bytes().data(), DType::kF16, 4,
                                     kHeads, kHeadDim, order);
    if (layer.has_k()) {
      layer.k.pieces.push_back(page.pieces[0]);
    } else {
      layer.k = std::move(page);
    }
  }
  Snapshot snapshot;
  snapshot.source = source;
  if (layer.has_k()) snapshot.layers.push_back(std::move(layer));
  MemorySink archive;
  WriteOptions options;
  options.chunk_bytes = 2048;
  options.check = false;
  WriteArchive(source, snapshot.layers.empty() ? nullptr : &snapshot, options, pool, archive);
  const Archive opened = Archive::Open(FileSource::FromBytes(std::move(archive.bytes()), "pages"));
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
  PagesRoundTrip({begin, size}, pool);
  try {
    Archive archive = Archive::Open(FileSource::FromBytes(Bytes(begin, begin + size), "fuzz"));
    archive.UseReferences(FixedReferences(archive.reference_names().size()));
    for (const ArchivedChunk& chunk : archive.chunks()) {
      try {
        archive.ListRuns(chunk);
      } catch (const Error&) {
      }
    }
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
    // The archive was refused with an error.
  }
  return 0;
}
