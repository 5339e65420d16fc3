// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Files that real engines wrote: testdata/llamacpp, and all of $KVTOOL_SHARED_DATA/llamacpp if set.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "formats/registry.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"

namespace kv::llama_files_test {
namespace {
namespace fs = std::filesystem;

std::vector<fs::path> Roots() {
  std::vector<fs::path> roots = {fs::path(KVTOOL_TESTDATA) / "llamacpp"};
  const char* shared = std::getenv("KVTOOL_SHARED_DATA");
  if (shared != nullptr && *shared != '\0') roots.push_back(fs::path(shared) / "llamacpp");
  return roots;
}

// Returns the path of a state or trace, in whichever root has it; in testdata, traces have their
// own folder.
std::optional<fs::path> Find(const std::string& name) {
  std::vector<fs::path> roots = Roots();
  roots.emplace_back(KVTOOL_TESTDATA);
  for (const fs::path& root : roots) {
    if (fs::exists(root / name)) return root / name;
  }
  return std::nullopt;
}

bool Has(const std::string& text, const char* part) { return text.find(part) != text.npos; }

// Returns the layout that the engine build in a file's name wrote (shared/data README).
std::string FindLayout(const std::string& name) {
  const bool mrope = Has(name, "mrope");
  if (Has(name, "raw-ctx")) return "context blob, layout D/E";
  if (Has(name, "raw-seq")) return "sequence blob, layout C/D/E";
  if (Has(name, ".session")) {
    return Has(name, "v050")    ? "SESSION 10, layout E"
           : Has(name, "b8352") ? "SESSION 9, layout D"
           : Has(name, "b6122") ? "SESSION 9, layout C"
                                : "SESSION 9, layout A/B";
  }
  if (Has(name, "b3889")) return "SEQ 2, layout A";
  if (Has(name, "b5640")) return "SEQ 2, layout B";
  if (Has(name, "b6122") || Has(name, "b8352"))
    return mrope ? "SEQ 2, layout D'" : "SEQ 2, layout C/D";
  return mrope ? "SEQ 3, layout E'" : "SEQ 3, layout E";
}

DType KTypeOf(const std::string& name) {
  for (const DType dtype :
       {DType::kIQ4_NL, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_1, DType::kBF16}) {
    if (Has(name, std::string(Name(dtype)).c_str())) return dtype;
  }
  return Has(name, "f32") ? DType::kF32 : DType::kF16;
}

Snapshot OpenFile(const fs::path& path, OpenOptions options = {}) {
  const std::string name = path.filename().string();
  if (Has(name, "raw-ctx")) options.from.assign("llama-ctx-blob");
  if (Has(name, "raw-seq")) options.from.assign("llama-seq-blob");
  return OpenSnapshot(Source::Open(path), options);
}

TEST_CASE("every state of a real engine reads, and all its K and V are regions", "[llama]") {
  size_t files = 0;
  for (const fs::path& root : Roots()) {
    for (const auto& entry : fs::directory_iterator(root / "states")) {
      const std::string name = entry.path().filename().string();
      INFO(name);
      ++files;
      if (Has(name, "recurrent")) {
        try {
          OpenFile(entry.path());
          FAIL("opened");
        } catch (const Error& error) {
          CHECK(error.code() == ErrorCode::kUnsupported);
          CHECK_THAT(error.message(), Catch::Contains("recurrent state of architecture mamba"));
        }
        continue;
      }
      const Snapshot snapshot = OpenFile(entry.path());
      CHECK(snapshot.format_version == FindLayout(name));
      CHECK(snapshot.layers.size() == (Has(name, "kjv3m") ? 4 : Has(name, "synthetic") ? 6 : 5));
      CHECK(snapshot.layers[0].k.dtype == KTypeOf(name));
      CHECK(snapshot.cell_groups.size() == (Has(name, "iswa") ? 2 : 1));

      const std::vector<Region> regions = FindRegions(snapshot);
      uint64_t covered = 0, transposed = 0;
      for (const Region& region : regions) {
        covered += region.size;
        transposed += region.order == Order::kHeadDimToken;
      }
      CHECK(covered == snapshot.kv_bytes());
      // The last V ends at the end of the file: no byte is unread.
      CHECK(regions.back().offset + regions.back().size == snapshot.source.total_bytes());
      if (Has(name, "vtrans")) CHECK(transposed == snapshot.layers.size());
      for (const CellGroup& group : snapshot.cell_groups) {
        for (const LayerKv& layer : snapshot.layers) {
          if (layer.group == group.group) CHECK(layer.k.tokens() == group.cells.size());
        }
      }
    }
  }
  CHECK(files >= 5);
}

TEST_CASE("cells tell streams, shared prefixes, windows and holes", "[llama]") {
  const auto cells = [](const char* name, size_t group = 0) {
    const auto path = Find(std::string("states/") + name);
    REQUIRE(path);
    return OpenFile(*path).cell_groups[group];
  };
  const CellGroup streams = cells("s260k-b8352-2seq.session.bin");
  CHECK(streams.streams == 2);
  CHECK(streams.cells[120].stream == 1);
  CHECK(streams.cells[120].position == 0);
  CHECK(streams.cells[120].sequences == std::vector<int32_t>{1});

  const CellGroup shared = cells("s260k-v050-shared-prefix.session.bin");
  REQUIRE(shared.cells.size() == 96);
  CHECK(shared.cells[59].sequences == std::vector<int32_t>{0, 1});
  CHECK(shared.cells[60].sequences == std::vector<int32_t>{1});

  const CellGroup window = cells("synthetic-gemma3-iswa-v050.seq0.bin", 1);
  CHECK(window.group == "swa");
  REQUIRE(window.cells.size() == 64);
  CHECK(window.cells[0].position == 136);

  const CellGroup holes = cells("s260k-v050-holes.session.bin");
  REQUIRE(holes.cells.size() == 40);
  CHECK(holes.cells[15].position == 15);
  CHECK(holes.cells[16].position == 40);
  const CellGroup shifted = cells("s260k-v050-shifted.seq0.bin");
  CHECK(shifted.cells[16].position == 16);
}

std::vector<float> Floats(const Snapshot& snapshot, uint32_t layer, bool is_value) {
  const LayerKv& kv = snapshot.layers[layer];
  const KvTensor& tensor = is_value ? *kv.v : kv.k;
  std::vector<float> values = GatherFloats(tensor, 0, tensor.tokens(), Order::kTokenHeadDim);
  UndoHadamard(snapshot, tensor, is_value, values);
  return values;
}

// Returns the largest difference over the values that both have.
double MaxDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
  return worst;
}

TEST_CASE("cells kept around a hole are the rows of the whole cache", "[llama]") {
  const Snapshot holes = OpenFile(*Find("states/s260k-v050-holes.seq0.bin"));
  const Snapshot shifted = OpenFile(*Find("states/s260k-v050-shifted.seq0.bin"));
  const Snapshot whole = OpenFile(*Find("states/s260k-v050-raw-seqdata.bin"));  // 48 tokens
  for (uint32_t layer = 0; layer < 5; ++layer) {
    for (const bool is_value : {false, true}) {
      // V is transposed in one and stored as rows in the other; layers after the first depend on
      // the kernel.
      const std::vector<float> some = Floats(holes, layer, is_value);
      const std::vector<float> all = Floats(whole, layer, is_value);
      CHECK(some == Floats(shifted, layer, is_value));
      for (size_t cell = 0; cell < 24; ++cell) {
        const auto position = static_cast<size_t>(holes.cell_groups[0].cells[cell].position);
        double worst = 0;
        for (size_t e = 0; e < 32; ++e)
          worst = std::max<double>(worst, std::abs(some[cell * 32 + e] - all[position * 32 + e]));
        CHECK(worst <= (layer == 0 ? 0.0 : 0.02));
      }
    }
  }
}

TEST_CASE("transposed and plain V of one prompt are the same values", "[llama]") {
  const auto plain = Find("states/s260k-b6122-f16-plain.seq0.bin");
  const auto transposed = Find("states/s260k-b6122-f16-vtrans.seq0.bin");
  if (!plain || !transposed) return;  // the files exist only in the shared data
  const Snapshot a = OpenFile(*plain), b = OpenFile(*transposed);
  CHECK(Floats(a, 0, true) == Floats(b, 0, true));
  for (uint32_t layer = 1; layer < 5; ++layer)
    CHECK(MaxDifference(Floats(a, layer, true), Floats(b, layer, true)) < 0.005);
}

TEST_CASE("quantised caches come back near their f16 sibling", "[llama]") {
  const Snapshot exact = OpenFile(*Find("trace/kjv3m.seq0.bin"));  // the first 96 tokens
  OpenOptions options;
  options.geometry.emplace();
  options.geometry->uniform.k_dim = 64;
  int files = 0;
  for (const fs::path& root : Roots()) {
    for (const auto& entry : fs::directory_iterator(root / "states")) {
      const std::string name = entry.path().filename().string();
      if (!Has(name, "kjv3m")) continue;
      INFO(name);
      options.rotated = Has(name, "unrotated") || Has(name, "b8352") ? "no" : "auto";
      const Snapshot snapshot = OpenFile(entry.path(), options);
      const bool rotated =
          IsBlockQuantised(snapshot.layers[0].k.dtype) && options.rotated == "auto";
      CHECK((snapshot.k_hadamard == HadamardState::kYes) == rotated);
      for (const bool is_value : {false, true}) {
        const std::vector<float> got = Floats(snapshot, 0, is_value);
        const std::vector<float> want = Floats(exact, 0, is_value);
        double error = 0, norm = 0;
        for (size_t i = 0; i < want.size(); ++i) {
          error += (got[i] - want[i]) * (got[i] - want[i]);
          norm += want[i] * want[i];
        }
        const LayerKv& layer = snapshot.layers[0];
        const DType dtype = is_value ? layer.v->dtype : layer.k.dtype;
        const double limit = dtype == DType::kQ8_0     ? 0.01
                             : dtype == DType::kQ5_1   ? 0.05
                             : IsBlockQuantised(dtype) ? 0.12
                                                       : 1e-4;
        CHECK(std::sqrt(error / norm) < limit);
      }
      ++files;
    }
  }
  CHECK(files >= 5);
}

// Returns the data of an npy (version 1, C order) after its header.
Bytes NpyData(const fs::path& path) {
  const auto file = FileSource::Open(path);
  const auto header = LoadLE<uint16_t>(file->bytes().data() + 8);
  const ByteSpan data = file->bytes().subspan(10 + size_t{header});
  return {data.begin(), data.end()};
}

TEST_CASE("K and V are the very values that the engine computed", "[llama]") {
  int compared = 0;
  for (const char* model : {"kjv3m", "s260k", "baby105"}) {
    const auto state = Find(fmt::format("trace/{}.seq0.bin", model));
    if (!state) continue;
    const Snapshot snapshot = OpenFile(*state);
    for (const LayerKv& layer : snapshot.layers) {
      for (const char which : {'K', 'V'}) {
        const auto npy = Find(fmt::format("trace/{}-L{}-{}.npy", model, layer.index, which));
        if (!npy) continue;
        const KvTensor& tensor = which == 'K' ? layer.k : *layer.v;
        CHECK(Gather(tensor, 0, tensor.tokens(), Order::kTokenHeadDim) == NpyData(*npy));
        ++compared;
      }
    }
  }
  CHECK(compared >= 2);
}

}  // namespace
}  // namespace kv::llama_files_test
