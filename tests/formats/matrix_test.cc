// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Converts every kind of readable snapshot in the test data to every writable format and back. A
// format that is added to the table of formats is included by itself.
#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "formats/key_pairs.h"
#include "formats/registry.h"
#include "lib/core/snapshot/diff.h"
#include "tests/support/temp_dir.h"

namespace kv::matrix_test {
namespace {
namespace fs = std::filesystem;

// Larger sources are skipped: the test is about their kinds.
constexpr uintmax_t kLargest = 300 << 10;

std::optional<Snapshot> TryOpen(const fs::path& path) {
  OpenOptions options;
  for (const bool with_heads : {true, false}) {
    if (with_heads) {
      options.geometry.emplace();
      options.geometry->source = "test";
      options.geometry->uniform.kv_heads = 2;
    }
    try {
      Snapshot snapshot = OpenSnapshot(Source::Open(path), options);
      snapshot.CheckContent();
      return snapshot;
    } catch (const Error&) {
      options.geometry.reset();
    }
  }
  return std::nullopt;
}

// Returns the properties of a snapshot that matter to a writer.
std::string KindOf(const Snapshot& snapshot) {
  std::string kind = snapshot.format + '|' + snapshot.format_version;
  for (const LayerKv& layer : snapshot.layers) {
    kind += Name(layer.k.dtype);
    kind += layer.v ? Name(layer.v->dtype) : "-";
    kind += layer.group + (layer.k.tokens() == snapshot.layers[0].k.tokens() ? "" : "~");
    if (&layer - snapshot.layers.data() > 2) break;
  }
  for (const CellGroup& group : snapshot.cell_groups) kind += std::to_string(group.streams);
  for (const auto& [key, value] : snapshot.storage) kind += key + value;
  return kind;
}

uintmax_t SizeOf(const fs::path& path) {
  if (!fs::is_directory(path)) return fs::file_size(path);
  uintmax_t total = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) total += entry.file_size();
  }
  return total;
}

// Returns one path for each kind of source.
std::vector<std::pair<std::string, Snapshot>> Sources() {
  std::vector<fs::path> paths;
  for (const char* root : {"llamacpp", "golden", "trace"}) {
    const fs::path folder = fs::path(KVTOOL_TESTDATA) / root;
    if (!fs::exists(folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      const bool is_kind = entry.is_regular_file() || entry.is_directory();
      if (is_kind && SizeOf(entry.path()) <= kLargest) paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::set<std::string> kinds;
  std::vector<std::pair<std::string, Snapshot>> sources;
  for (const fs::path& path : paths) {
    std::optional<Snapshot> snapshot = TryOpen(path);
    if (!snapshot || snapshot->layers.empty() || snapshot->format == "kvz") continue;
    if (kinds.insert(KindOf(*snapshot)).second)
      sources.emplace_back(path.string(), std::move(*snapshot));
  }
  return sources;
}

bool IsRefusal(Finding finding) {
  return FindInfo(finding).code == ErrorCode::kUnsupported || finding == Finding::kGeometryMissing;
}

// Writes and reads again. Returns nothing if the format refused before it wrote anything.
std::optional<Snapshot> Through(const FormatEntry& format, const Snapshot& snapshot,
                                const fs::path& folder,
                                const std::optional<ModelGeometry>& geometry = std::nullopt) {
  static int count = 0;
  const fs::path path = folder / (std::to_string(++count) + "." + std::string(format.id));
  try {
    format.write(snapshot, path.string(), Overwrite::kRefuse);
  } catch (const Error& error) {
    INFO(error.what());
    CHECK(IsRefusal(error.finding()));
    CHECK_FALSE(fs::exists(path));
    return std::nullopt;
  }
  OpenOptions options;
  if (format.probe == nullptr && format.open != nullptr) options.from = format.id;
  options.geometry = geometry;
  return OpenSnapshot(Source::Open(path), options);
}

// Returns the snapshot without the properties that the format states it does not keep.
Snapshot Expected(const FormatEntry& format, Snapshot snapshot) {
  if (format.not_kept == nullptr) return snapshot;
  for (const std::string& what : format.not_kept(snapshot)) {
    if (what.find("layer numbers") == what.npos) continue;
    for (size_t i = 0; i < snapshot.layers.size(); ++i)
      snapshot.layers[i].index = static_cast<uint32_t>(i);
  }
  return snapshot;
}

void ExpectSame(const Snapshot& a, const Snapshot& b) {
  ThreadPool pool(1);
  const SnapshotDiff diff = DiffSnapshots(a, b, {}, pool);
  for (const std::string& text : diff.structure) UNSCOPED_INFO(text);
  CHECK(diff.verdict() == DiffVerdict::kIdentical);
}

// Ignores positions and sequences, which not every format stores.
void ExpectSameValues(const Snapshot& a, const Snapshot& b) {
  ThreadPool pool(1);
  const SnapshotDiff diff = DiffSnapshots(a, b, {}, pool);
  CHECK(diff.layers.size() == a.layers.size());
  CHECK(diff.layers.size() == b.layers.size());
  CHECK(diff.Total().values > 0);
  CHECK(diff.Total().different == 0);
}

// Converts as `convert` does: with RoPE pairs in the order that the format has for the model.
// Returns nothing if the format refuses; the message must name the option to pass.
std::optional<Snapshot> Convert(const FormatEntry& format, Snapshot snapshot,
                                const std::optional<ModelGeometry>& model, const fs::path& folder) {
  snapshot.storage.erase("version");
  try {
    FitKeyPairs(format.pairs, "", model, snapshot);
  } catch (const Error& error) {
    INFO(error.what());
    CHECK(IsRefusal(error.finding()));
    CHECK(error.hint().find("--") != std::string::npos);
    return std::nullopt;
  }
  return Through(format, snapshot, folder, model);
}

// Returns keys in the order of transformers, if the model is known.
std::optional<Snapshot> InHalves(Snapshot snapshot, const std::optional<ModelGeometry>& model) {
  try {
    FitKeyPairs(PairsWanted::kHalves, "", model, snapshot);
    return snapshot;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

TEST_CASE("no format changes values unless it records what it did", "[matrix]") {
  const test::TempDir folder;
  size_t compared = 0, dumps = 0;
  for (const auto& [name, source] : Sources()) {
    const FormatEntry* own = FindFormat(source.format);
    if (own == nullptr || own->write == nullptr || !source.heads_known()) continue;
    for (const char* architecture : {"", "llama", "qwen2"}) {
      const bool is_another = !source.model.empty() && source.model != architecture;
      if (is_another && *architecture != '\0') continue;
      ModelGeometry model;
      model.source = "test";
      model.architecture = architecture;
      model.uniform.kv_heads = source.layers[0].k.heads;
      for (const FormatEntry& format : Formats()) {
        if (format.write == nullptr) continue;
        INFO(name << " of '" << architecture << "' through " << format.id);
        const auto there = Convert(format, source, model, folder.path());
        if (!there) continue;
        INFO("and back");
        const auto back = Convert(*own, *there, model, folder.path());
        if (!back) continue;
        const auto was = InHalves(source, model), is = InHalves(*back, model);
        const bool both = was && is;
        ExpectSameValues(Expected(*own, Expected(format, both ? *was : source)),
                         both ? *is : *back);
        ++compared;
        dumps += format.id == "mnn-dump" || format.id == "infinilm-dump";
      }
    }
  }
  CHECK(compared > 100);
  CHECK(dumps > 20);
}

TEST_CASE("a cache of an engine whose RoPE pairs are not recorded is asked about", "[matrix]") {
  for (const char* engine : {"MNN", "InfiniLM"}) {
    Snapshot snapshot;
    snapshot.engine = engine;
    ModelGeometry model;
    model.architecture = "llama";
    for (const PairsWanted wanted : {PairsWanted::kHalves, PairsWanted::kOfModel}) {
      CHECK_THROWS_AS(FitKeyPairs(wanted, "", model, snapshot), Error);
      CHECK_THROWS_AS(FitKeyPairs(wanted, "", std::nullopt, snapshot), Error);
      CHECK_THROWS_AS(FitKeyPairs(wanted, "halves", model, snapshot), Error);
      Snapshot told = snapshot;
      CHECK_FALSE(FitKeyPairs(wanted, "halves:neighbours", model, told).empty());
      CHECK(PairsToRecord(told) == "neighbours");
    }
    CHECK(FitKeyPairs(PairsWanted::kAsSource, "", model, snapshot).empty());
    CHECK(PairsToRecord(snapshot).empty());
  }
}

TEST_CASE("a cache survives every format that takes it, and the way back", "[matrix]") {
  const test::TempDir folder;
  std::set<std::string_view> used;
  const auto sources = Sources();
  REQUIRE(sources.size() > 1);
  for (const auto& [name, snapshot] : sources) {
    INFO(name << " (" << snapshot.format << ", " << snapshot.format_version << ")");
    size_t carried = 0;
    for (const FormatEntry& format : Formats()) {
      if (format.write == nullptr) continue;
      INFO("through " << format.id);
      const std::optional<Snapshot> there = Through(format, snapshot, folder.path());
      if (!there) continue;
      ++carried;
      used.insert(format.id);
      ExpectSame(Expected(format, snapshot), *there);
      const FormatEntry* own = FindFormat(snapshot.format);
      if (own == nullptr || own->write == nullptr) continue;
      INFO("and back");
      const std::optional<Snapshot> back = Through(*own, *there, folder.path());
      if (back) ExpectSame(Expected(*own, *there), *back);
    }
    if (snapshot.heads_known()) CHECK(carried > 0);
  }
  for (const FormatEntry& format : Formats()) {
    INFO(format.id << " took no snapshot of the test data");
    CHECK((format.write == nullptr || used.count(format.id) == 1));
  }
}

}  // namespace kv::matrix_test
