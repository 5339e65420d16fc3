// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Compares the sizes at every level with testdata/sizes.tsv, so that the diff of a commit shows
// which ratios it changed. KVTOOL_UPDATE_SIZES=1 rewrites the file.
#include <fmt/format.h>
#include <zstd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "formats/registry.h"
#include "lib/core/archive/archive.h"
#include "tests/bench/stand_in.h"

namespace kv::sizes_test {
namespace {

constexpr Effort kEfforts[] = {Effort::kCompat, Effort::kFast, Effort::kDefault, Effort::kHigh,
                               Effort::kMax};

class Nowhere : public Sink {
  void Write(ByteSpan) override {}
};

void AddStates(std::ostream& table) {
  const std::filesystem::path folder = std::filesystem::path(KVTOOL_TESTDATA) / "llamacpp/states";
  ThreadPool pool(1);
  for (const char* name :
       {"s260k-v050-f16.seq0.bin", "s260k-v050-bf16.seq0.bin", "s260k-b3889-f16-vtrans.seq0.bin",
        "kjv3m-b8352-q8_0.seq0.bin", "kjv3m-v050-q4_0-rotated.seq0.bin",
        "kjv3m-v050-q5_1-rotated.seq0.bin", "kjv3m-v050-iq4_nl-rotated.session.bin"}) {
    if (!std::filesystem::exists(folder / name)) continue;
    const Source source = Source::Open(folder / name);
    const Snapshot snapshot = OpenSnapshot(source, {});
    for (const Effort effort : kEfforts) {
      WriteOptions options;
      options.effort = effort;
      options.check = false;
      Nowhere sink;
      const WriteSummary summary = WriteArchive(source, &snapshot, options, pool, sink);
      for (const ChunkKind kind : {ChunkKind::kKey, ChunkKind::kValue}) {
        const WriteSummary::Part& part = summary.parts[static_cast<size_t>(kind)];
        table << fmt::format("{} {}\t{}\t{}\t{}\n", name, kind == ChunkKind::kKey ? 'K' : 'V',
                             Name(effort), part.raw_bytes, part.stored_bytes);
      }
    }
  }
}

void AddStandIns(std::ostream& table) {
  const bench::StandInShape shape{256, 4, 64};
  const std::pair<const char*, std::vector<float>> sets[] = {
      {"K", bench::StandInK(shape, 1)},
      {"V", bench::StandInV(shape, 2)},
      {"repeating V", bench::StandInRepeatingV(shape, 3, 60)}};
  CodecScratch scratch;
  for (const auto& [name, values] : sets) {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
      const Bytes raw = bench::Store(values, dtype);
      for (const uint64_t tokens : {64, 256}) {
        const uint64_t chunk_bytes = raw.size() / 256 * tokens;
        for (const Effort effort : kEfforts) {
          uint64_t stored = 0;
          for (uint64_t at = 0; at < raw.size(); at += chunk_bytes) {
            stored += EncodeChunk({dtype, tokens, 4, 64, Order::kTokenHeadDim},
                                  ByteSpan(raw).subspan(at, chunk_bytes), effort, scratch)
                          .payload.size();
          }
          table << fmt::format("made-up {} {}, {} KiB chunks\t{}\t{}\t{}\n", name, Name(dtype),
                               chunk_bytes >> 10, Name(effort), raw.size(), stored);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("compressed sizes are those of the table", "[sizes][figures]") {
  if (ZSTD_versionNumber() != 10504) return;  // other versions of zstd give other sizes
  std::ostringstream table;
  table << "data\tlevel\traw_bytes\tstored_bytes\n";
  AddStates(table);
  AddStandIns(table);
  const std::filesystem::path path = std::filesystem::path(KVTOOL_TESTDATA) / "sizes.tsv";
  if (std::getenv("KVTOOL_UPDATE_SIZES") != nullptr) {
    std::ofstream(path) << table.str();
    return;
  }
  std::ifstream file(path);
  std::istringstream got(table.str());
  std::string expected_line, line;
  while (std::getline(file, expected_line)) {
    REQUIRE(std::getline(got, line));
    CHECK(line == expected_line);
  }
  CHECK_FALSE(std::getline(got, line));
}

}  // namespace kv::sizes_test
