// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Checks on real data that a chunk at one of kvtool's levels is hardly larger than with the
// engine's own choices.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "formats/registry.h"
#include "lib/core/archive/archive.h"
#include "tests/support/memory_sink.h"

namespace kv::compat_test {
namespace {

// For each chunk: its position and size in the file.
using ChunkSizes = std::map<std::pair<uint64_t, uint64_t>, std::pair<uint64_t, uint64_t>>;
ChunkSizes SizesAt(const Source& source, const Snapshot& snapshot, Effort effort,
                   uint64_t chunk_bytes) {
  ThreadPool pool(1);
  WriteOptions options;
  options.effort = effort;
  options.chunk_bytes = chunk_bytes;
  options.check = false;
  MemorySink sink;
  WriteArchive(source, &snapshot, options, pool, sink);
  ChunkSizes sizes;
  const Archive archive = Archive::Open(FileSource::FromBytes(std::move(sink.bytes()), "made"));
  for (const ArchivedChunk& chunk : archive.chunks()) {
    if (chunk.head.kind == ChunkKind::kOpaque) continue;
    sizes[{chunk.head.source_offset, chunk.head.token_begin}] = {chunk.head.raw_bytes,
                                                                 chunk.payload_bytes};
  }
  return sizes;
}

// The variable KVTOOL_COMPAT_DIR=FOLDER selects another set of states.
std::filesystem::path StatesFolder() {
  const char* given = std::getenv("KVTOOL_COMPAT_DIR");
  return given != nullptr ? std::filesystem::path(given)
                          : std::filesystem::path(KVTOOL_TESTDATA) / "llamacpp/states";
}

// Uses the given number of heads; returns nothing if the file is not divisible by it.
std::optional<Snapshot> WithHeads(const Source& source, uint32_t heads) {
  OpenOptions options;
  if (heads > 0) {
    ModelGeometry geometry;
    geometry.uniform.kv_heads = heads;
    options.geometry = geometry;
  }
  try {
    return OpenSnapshot(source, options);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Returns by how many ten-thousandths a chunk of the level may be larger than the engine's. The
// default level does not search for matches that would cost more than they save.
uint64_t AllowedLoss(Effort effort) { return effort == Effort::kDefault ? 40 : 10; }

}  // namespace

TEST_CASE("compat wins on no chunk of a real state by more than one byte in a thousand",
          "[codec][figures]") {
  size_t compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(StatesFolder())) {
    if (!entry.is_regular_file()) continue;
    const Source source = Source::Open(entry.path());
    for (const uint32_t heads : {0u, 4u}) {
      const std::optional<Snapshot> snapshot = WithHeads(source, heads);
      if (!snapshot) continue;
      for (const uint64_t chunk_bytes : {uint64_t{16} << 10, uint64_t{1} << 20}) {
        const ChunkSizes compat = SizesAt(source, *snapshot, Effort::kCompat, chunk_bytes);
        for (const Effort effort : {Effort::kDefault, Effort::kHigh, Effort::kMax}) {
          for (const auto& [place, size] : SizesAt(source, *snapshot, effort, chunk_bytes)) {
            const auto other = compat.find(place);
            if (other == compat.end() || other->second.first != size.first) continue;
            ++compared;
            INFO(entry.path() << ", " << heads << " heads, chunks of " << chunk_bytes << ", "
                              << Name(effort) << ", at " << place.first);
            CHECK(size.second <=
                  other->second.second + other->second.second * AllowedLoss(effort) / 10000);
          }
        }
      }
    }
  }
  CHECK(compared > 500);
}

}  // namespace kv::compat_test
