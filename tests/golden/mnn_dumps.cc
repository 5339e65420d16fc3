// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Dumps that MNN's own dump header and pack code wrote, and one made for the blend goldens.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <map>

#include "formats/mnn/mnn.h"
#include "formats/registry.h"
#include "lib/core/snapshot/layout.h"
#include "tests/golden/golden.h"
#include "tests/support/temp_dir.h"

namespace kv::golden {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json ReadJson(const fs::path& path) { return json::parse(std::ifstream(path)); }

Bytes ReadBytes(const fs::path& path) {
  const auto source = FileSource::Open(path);
  return {source->bytes().begin(), source->bytes().end()};
}

std::vector<fs::path> FoldersIn(const fs::path& path) {
  std::vector<fs::path> folders;
  if (!fs::exists(path)) return folders;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.is_directory()) folders.push_back(entry.path());
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

// The logical rows of one layer by position, read without kvtool's reader.
struct DumpTruth {
  uint64_t heads = 0, head_dim = 0, unit = 0;
  std::map<uint64_t, Bytes> k, v;  // rows

  uint64_t row_bytes() const { return heads * head_dim * unit; }
  ByteSpan Element(bool value, uint64_t token, uint64_t head, uint64_t dim) const {
    const ByteSpan row((value ? v : k).at(token));
    if (row.size() != row_bytes()) FAIL("token " << token << " has a row of another size");
    return row.subspan((head * head_dim + dim) * unit, unit);
  }
  Bytes Rows(bool value) const {
    Bytes all;
    for (const auto& [token, row] : value ? v : k) all.insert(all.end(), row.begin(), row.end());
    return all;
  }
};

std::vector<json> MetasIn(const fs::path& folder, const std::string& prefix) {
  std::vector<json> metas;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().rfind(prefix, 0) == 0)
      metas.push_back(ReadJson(entry.path()));
  }
  return metas;
}

DumpTruth ReadDumpTruth(const fs::path& folder) {
  DumpTruth truth;
  for (const json& meta : MetasIn(folder, "meta_t")) {
    truth.heads = meta.at("kv_heads");
    truth.head_dim = meta.at("head_dim");
    truth.unit = meta.at("bytes_per_elem");
    for (const bool value : {false, true}) {
      const Bytes all = ReadBytes(folder / meta.at(value ? "v_file" : "k_file"));
      const uint64_t row = truth.row_bytes(), begin = meta.at("seq_start"),
                     tokens = meta.at("seq_len");
      REQUIRE(row > 0);
      REQUIRE(all.size() / row == tokens);
      REQUIRE(all.size() % row == 0);
      for (uint64_t t = 0; t < tokens; ++t) {
        const auto from = all.begin() + static_cast<std::ptrdiff_t>(t * row);
        (value ? truth.v : truth.k)[begin + t] = {from, from + static_cast<std::ptrdiff_t>(row)};
      }
    }
  }
  return truth;
}

mnn::PackGeometry FindGeometry(const json& meta, uint64_t tokens) {
  const int64_t flash = meta.at("flash_upper_kv");
  return {.tokens = tokens,
          .head_dim = meta.at("head_dim"),
          .pack_h = meta.at("pack_h"),
          .pack_l = meta.at("pack_l"),
          .flash_block =
              flash > 0 ? static_cast<uint64_t>(flash) : meta.at("max_seq_len").get<uint64_t>()};
}

// Returns true if a packed file holds at index(t, d) the logical value of row tokens[t].
bool PackedHolds(const Bytes& packed, uint64_t head_bytes, const mnn::PackGeometry& geometry,
                 const std::vector<uint64_t>& tokens, const DumpTruth& truth, bool value) {
  for (uint64_t h = 0; h < truth.heads; ++h) {
    for (uint64_t t = 0; t < tokens.size(); ++t) {
      for (uint64_t d = 0; d < truth.head_dim; ++d) {
        const uint64_t index =
            value ? mnn::ValueIndex(geometry, t, d) : mnn::KeyIndex(geometry, t, d);
        const uint64_t at = h * head_bytes + index * truth.unit;
        if (at + truth.unit > packed.size()) return false;
        const ByteSpan expected = truth.Element(value, tokens[t], h, d);
        if (!std::equal(expected.begin(), expected.end(), packed.begin() + static_cast<long>(at)))
          return false;
      }
    }
  }
  return true;
}

void CheckPackedDumps(const fs::path& folder, const DumpTruth& truth, Run& run) {
  for (const json& meta : MetasIn(folder, "packed_meta_")) {
    const uint64_t used = meta.at("used_seq_len");
    const mnn::PackGeometry geometry = FindGeometry(meta, used);
    std::vector<uint64_t> tokens(used);
    for (uint64_t t = 0; t < used; ++t) tokens[t] = t;
    for (const bool value : {false, true}) {
      const std::string file = meta.at(value ? "v_file" : "k_file");
      INFO(folder / file);
      const uint64_t head = meta.at(value ? "value_used_bytes" : "key_used_bytes");
      CHECK((value ? mnn::ValueElements(geometry) : mnn::KeyElements(geometry)) * truth.unit ==
            head);
      CHECK(PackedHolds(ReadBytes(folder / file), head, geometry, tokens, truth, value));
      run.Checked();
    }
  }
}

// Checks the engine's own files, which are its packed memory with heads at whole strides: the
// contents of `moved`.
void CheckCacheFiles(const fs::path& folder, const json& meta, const DumpTruth& truth,
                     const std::vector<uint64_t>& kept, Run& run) {
  const test::TempDir temp;
  fs::copy_file(folder / meta.at("k_file"), temp / "prompt_0.k");
  fs::copy_file(folder / meta.at("v_file"), temp / "prompt_0.v");
  OpenOptions options;
  options.raw = fmt::format(
      "mnn-cache:{}:H={},D={},T={},hP={},lP={}", truth.unit == 2 ? "f16" : "f32", truth.heads,
      truth.head_dim, kept.size(), meta.at("pack_h").get<int>(), meta.at("pack_l").get<int>());
  const int flash = meta.at("flash_upper_kv");
  if (flash > 0) options.raw += fmt::format(",FA={}", flash);
  INFO(options.raw);
  const Snapshot snapshot = OpenSnapshot(Source::Open(temp.path()), options);
  REQUIRE(snapshot.layers.size() == 1);
  for (const bool value : {false, true}) {
    Bytes rows;
    for (const uint64_t token : kept) {
      const Bytes& row = (value ? truth.v : truth.k).at(token);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    const KvTensor& tensor = value ? *snapshot.layers[0].v : snapshot.layers[0].k;
    CHECK(Gather(tensor, 0, tensor.tokens(), Order::kTokenHeadDim) == rows);
    run.Checked();
  }
}

// Checks a cache after the engine's compaction: the rows of `reserve_pairs` [begin, count], one
// after another, in heads at the engine's full stride.
void CheckMoved(const fs::path& folder, const DumpTruth& truth, Run& run) {
  if (!fs::exists(folder / "moved.json")) return;
  const json meta = ReadJson(folder / "moved.json");
  std::vector<uint64_t> kept;
  const json& pairs = meta.at("reserve_pairs");
  for (size_t i = 0; i < pairs.size(); i += 2) {
    for (uint64_t n = 0; n < pairs[i + 1]; ++n) kept.push_back(pairs[i].get<uint64_t>() + n);
  }
  REQUIRE(kept.size() == meta.at("len_after"));
  const mnn::PackGeometry geometry = FindGeometry(meta, kept.size());
  for (const bool value : {false, true}) {
    const std::string file = meta.at(value ? "v_file" : "k_file");
    INFO(folder / file);
    const uint64_t stride = meta.at(value ? "value_stride_bytes" : "key_stride_bytes");
    mnn::PackGeometry whole = geometry;
    whole.tokens = meta.at("max_seq_len");
    CHECK((value ? mnn::ValueElements(whole) : mnn::KeyElements(whole)) * truth.unit == stride);
    CHECK(PackedHolds(ReadBytes(folder / file), stride, geometry, kept, truth, value));
    run.Checked();
  }
  CheckCacheFiles(folder, meta, truth, kept, run);
}

void CheckReader(const fs::path& run_folder, const std::map<uint32_t, DumpTruth>& truths,
                 Run& run) {
  for (const char* layout : {"", "logical", "packed"}) {
    OpenOptions options;
    options.layout = layout;
    INFO(run_folder << " --layout " << layout);
    const Snapshot snapshot = OpenSnapshot(Source::Open(run_folder), options);
    CHECK(snapshot.format == "mnn-dump");
    REQUIRE(snapshot.layers.size() == truths.size());
    for (const LayerKv& layer : snapshot.layers) {
      const DumpTruth& truth = truths.at(layer.index);
      const uint64_t tokens = truth.k.size();
      REQUIRE(layer.k.tokens() == tokens);
      REQUIRE(layer.v->tokens() == tokens);
      CHECK(Gather(layer.k, 0, tokens, Order::kTokenHeadDim) == truth.Rows(false));
      CHECK(Gather(*layer.v, 0, tokens, Order::kTokenHeadDim) == truth.Rows(true));
      run.Checked(2);
    }
  }
}

}  // namespace

void CheckMnnDumps(Run& run) {
  for (const fs::path& run_folder : FoldersIn(Root() / "mnn/dumps")) {
    std::map<uint32_t, DumpTruth> truths;
    for (const fs::path& folder : FoldersIn(run_folder)) {
      const DumpTruth truth = ReadDumpTruth(folder);
      REQUIRE(!truth.k.empty());
      CheckPackedDumps(folder, truth, run);
      CheckMoved(folder, truth, run);
      truths[MetasIn(folder, "meta_t").front().at("layer_id")] = truth;
    }
    CheckReader(run_folder, truths, run);
  }
}

void CheckBlendMnnDump(Run& run) {
  for (const json& item : run.Json("blend/manifest.json").value("files", json::array())) {
    if (item.at("format") != "mnn-dump") continue;
    const auto file = run.File("blend/" + item.at("file").get<std::string>());
    const auto meta = run.File("blend/" + item.at("meta").get<std::string>());
    if (!file || !meta) continue;
    INFO(*file);
    const fs::path folder = meta->parent_path();
    const Snapshot snapshot = OpenSnapshot(Source::Open(folder), {});
    REQUIRE(snapshot.layers.size() == 1);
    for (const auto& [name, expected] : item.at("tensors").items()) {
      const KvTensor& tensor = name == "v" ? *snapshot.layers[0].v : snapshot.layers[0].k;
      CHECK(Name(tensor.dtype) == (expected.at("dtype") == "F32" ? "f32" : "f16"));
      CHECK(expected.at("shape") == json({tensor.tokens(), tensor.heads, tensor.head_dim}));
      CHECK(Gather(tensor, 0, tensor.tokens(), Order::kTokenHeadDim) == ReadBytes(*file));
      const auto floats = GatherFloats(tensor, 0, tensor.tokens(), Order::kTokenHeadDim);
      const auto first = expected.at("first").get<std::vector<float>>();
      REQUIRE(first.size() <= floats.size());
      CHECK(std::equal(first.begin(), first.end(), floats.begin()));
    }
    run.Checked();

    // Written again under the same run name, the folder is equal byte for byte.
    const test::TempDir temp;
    const fs::path out = temp / folder.parent_path().filename().string();
    mnn::WriteDump(snapshot, out.string(), Overwrite::kRefuse);
    for (const SourceFile& written : Source::Open(out / folder.filename()).files) {
      INFO(written.name);
      CHECK(ReadBytes(out / folder.filename() / written.name) == ReadBytes(folder / written.name));
    }
    run.Checked();
  }
}

}  // namespace kv::golden
