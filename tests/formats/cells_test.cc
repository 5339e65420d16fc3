// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>

#include "formats/safetensors/safetensors.h"
#include "formats/tensors/kvtool_arrays.h"
#include "lib/core/snapshot/diff.h"
#include "tests/support/mlp_weights.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_dir.h"

namespace kv::cells_test {
namespace {

std::vector<Cell> CellsOf(std::string_view text, size_t count) {
  std::vector<Cell> cells(count);
  ReadSequences(text, cells);
  return cells;
}

}  // namespace

TEST_CASE("sequences of cells survive as runs of text", "[cells]") {
  const std::vector<Cell> cells = {{0, 0, {0, 1}}, {1, 0, {0, 1}}, {2, 0, {1}}, {3, 0, {}}};
  CHECK(SequencesText(cells) == "0,1*2;1*1;*1");
  const std::vector<Cell> read = CellsOf("0,1*2;1*1;*1", 4);
  for (size_t i = 0; i < cells.size(); ++i) CHECK(read[i].sequences == cells[i].sequences);
  CHECK(SequencesText({}).empty());
}

TEST_CASE("text that speaks of other cells is refused", "[cells]") {
  for (const char* text : {"0*2", "0*4", "0*0;0*3", "0", "x*3", "0*x", "-1*3", "0*-3", "0,*3",
                           "0*1;*9", "2147483648*3", "0*99999999999999999999"}) {
    INFO(text);
    CHECK_THROWS_AS(CellsOf(text, 3), Error);
  }
  std::string long_list = "0";
  for (int i = 0; i < 300; ++i) long_list += ",1";
  CHECK_THROWS_AS(CellsOf(long_list + "*1000", 1000), Error);
}

TEST_CASE("a file may name as many caches as it pays to look for", "[cells]") {
  const auto import = [](size_t caches) {
    TensorFile file;
    for (size_t i = 0; i < caches; ++i) {
      file.metadata["kvtool.caches"] += (i == 0 ? "" : ",") + std::to_string(i) + ":1";
    }
    Snapshot snapshot;
    ImportCells(file, snapshot);
    return snapshot.cell_groups.size();
  };
  CHECK(import(64) == 64);
  CHECK(test::FindingOf([&] { import(65); }) == Finding::kLimit);
}

TEST_CASE("everything beside the tensors survives an array file", "[cells]") {
  Snapshot snapshot = test::MakeCache({.layers = 3, .tokens = 4});
  snapshot.engine = "llama.cpp";
  snapshot.layers[0].group = "full";
  snapshot.layers[1].group = snapshot.layers[2].group = "swa";
  snapshot.tokens = {9, -1, 7};
  snapshot.storage = {{"v_order", "transposed"}, {"tokens", "record"}};
  snapshot.cell_groups = {{.group = "full", .streams = 3, .cells = {}},
                          {.group = "swa", .streams = 1, .cells = {}}};
  for (int i = 0; i < 4; ++i) {
    snapshot.cell_groups[0].cells.push_back({i, static_cast<uint32_t>(i / 3), {i % 2, 5}});
    snapshot.cell_groups[1].cells.push_back({7 - i, 0, {1}});
  }
  snapshot.cell_groups[1].extension_words = 2;
  snapshot.cell_groups[1].extensions = {1, 2, 3, 4, 5, 6, -7, 8};
  const test::TempDir folder;
  const std::string path = (folder / "a.safetensors").string();
  WriteSafetensors(snapshot, path, Overwrite::kRefuse);
  const Snapshot read = OpenSafetensors(Source::Open(path), {});
  CHECK(read.tokens == snapshot.tokens);
  CHECK(read.storage == snapshot.storage);
  REQUIRE(read.cell_groups.size() == 2);
  CHECK(read.cell_groups[0].streams == 3);
  CHECK(read.cell_groups[1].extensions == snapshot.cell_groups[1].extensions);
  ThreadPool pool(1);
  const SnapshotDiff diff = DiffSnapshots(snapshot, read, {}, pool);
  CHECK(diff.verdict() == DiffVerdict::kIdentical);
  CHECK(diff.notes.empty());
}

}  // namespace kv::cells_test
