// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/mnn/mnn.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "formats/registry.h"
#include "lib/core/snapshot/layout.h"
#include "tests/support/archives.h"
#include "tests/support/temp_dir.h"

namespace kv::mnn::mnn_test {
namespace {

using nlohmann::json;

constexpr uint64_t kHeads = 2, kDim = 3, kRow = kHeads * kDim * 2;

// Makes an update whose row t is filled with one byte that names update and row.
Bytes Rows(uint64_t tokens, int first) {
  Bytes bytes;
  for (uint64_t t = 0; t < tokens; ++t) {
    bytes.insert(bytes.end(), kRow, static_cast<std::byte>(first + static_cast<int>(t)));
  }
  return bytes;
}

json LogicalMeta(uint64_t begin, uint64_t tokens, uint32_t layer = 0) {
  const std::string range = fmt::format("t{}_{}", begin, begin + tokens);
  return {{"layer_id", layer},
          {"seq_start", begin},
          {"seq_len", tokens},
          {"seq_end_exclusive", begin + tokens},
          {"kv_heads", kHeads},
          {"head_dim", kDim},
          {"bytes_per_elem", 2},
          {"dtype", "fp16"},
          {"add", tokens},
          {"stage", tokens == 1 ? "decode" : "prefill"},
          {"run_id", "r"},
          {"k_file", "k_" + range + ".bin"},
          {"v_file", "v_" + range + ".bin"}};
}

// Describes a layer with hP 2, lP 1, flash block 4: K heads are [ceil(T/2)][3][2], V heads
// [ceil(T/4)][2][4][2].
json PackedMeta(uint64_t tokens, uint32_t layer = 0) {
  const std::string range = fmt::format("packed_t0_{}", tokens);
  const uint64_t key = (tokens + 1) / 2 * 2 * kDim * 2, value = (tokens + 3) / 4 * 4 * 4 * 2;
  return {{"layout", "packed"},
          {"layer_id", layer},
          {"used_seq_len", tokens},
          {"max_seq_len", tokens + 64},
          {"kv_heads", kHeads},
          {"head_dim", kDim},
          {"bytes_per_elem", 2},
          {"pack_h", 2},
          {"pack_l", 1},
          {"flash_upper_kv", 4},
          {"key_stride_bytes", 4096},
          {"value_stride_bytes", 4096},
          {"key_used_bytes", key},
          {"value_used_bytes", value},
          {"stage", "prefill"},
          {"run_id", "r"},
          {"k_file", "packed_k_" + range + ".bin"},
          {"v_file", "packed_v_" + range + ".bin"}};
}

class DumpFolder {
 public:
  void Meta(const std::string& name, const json& meta) const {
    temp_.WriteFile(name, AsBytes(meta.dump()));
  }
  void Data(const std::string& name, const Bytes& bytes) const { temp_.WriteFile(name, bytes); }
  void Logical(const std::string& folder, uint64_t begin, uint64_t tokens, int fill,
               uint32_t layer = 0) const {
    const json meta = LogicalMeta(begin, tokens, layer);
    Meta(fmt::format("{}meta_t{}_{}.json", folder, begin, begin + tokens), meta);
    Data(folder + meta["k_file"].get<std::string>(), Rows(tokens, fill));
    Data(folder + meta["v_file"].get<std::string>(), Rows(tokens, fill + 100));
  }
  void Packed(const std::string& folder, uint64_t tokens, uint32_t layer = 0) const {
    const json meta = PackedMeta(tokens, layer);
    Meta(fmt::format("{}packed_meta_packed_t0_{}.json", folder, tokens), meta);
    for (const char* part : {"k", "v"}) {
      const uint64_t head = meta[*part == 'k' ? "key_used_bytes" : "value_used_bytes"];
      Data(folder + meta[fmt::format("{}_file", part)].get<std::string>(),
           Bytes(kHeads * head, std::byte{7}));
    }
  }
  Source Open(const std::string& below = "") const { return Source::Open(temp_ / below); }

 private:
  test::TempDir temp_;
};

Snapshot Read(const DumpFolder& folder, const std::string& layout = "") {
  OpenOptions options;
  options.layout = layout;
  return OpenSnapshot(folder.Open(), options);
}

// Returns the message that opening fails with, or nothing.
template <typename Body>
std::string Refusal(Finding finding, Body body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(FindingId(error.finding()) == FindingId(finding));
    return error.what();
  }
  return "";
}

std::string ParseRefusal(const json& meta, Finding finding) {
  return Refusal(finding, [&] { ParseMeta(AsBytes(meta.dump())); });
}

}  // namespace

TEST_CASE("updates of a layer are joined by position", "[mnn]") {
  const DumpFolder folder;
  folder.Logical("layer_0/", 0, 5, 10);
  folder.Logical("layer_0/", 5, 1, 20);
  const Snapshot snapshot = Read(folder);
  CHECK(snapshot.engine == "MNN");
  CHECK(snapshot.format_version == "logical");
  CHECK(snapshot.notes.empty());
  REQUIRE(snapshot.layers.size() == 1);
  REQUIRE(snapshot.layers[0].k.tokens() == 6);
  Bytes expected = Rows(5, 10);
  const Bytes last = Rows(1, 20);
  expected.insert(expected.end(), last.begin(), last.end());
  CHECK(Gather(snapshot.layers[0].k, 0, 6, Order::kTokenHeadDim) == expected);
  CHECK(FindRegions(snapshot).size() == 4);
}

TEST_CASE("gaps, overlaps and stray files are told", "[mnn]") {
  const DumpFolder folder;
  for (const uint32_t layer : {0, 1}) {
    const std::string name = fmt::format("layer_{}/", layer);
    folder.Logical(name, 0, 6, 10, layer);
    folder.Logical(name, 4, 1, 50, layer);
    folder.Logical(name, 9, 1, 60, layer);
  }
  folder.Data("layer_1/k_t6_9.bin", Rows(3, 1));
  const Snapshot snapshot = Read(folder);
  REQUIRE(snapshot.layers[0].k.tokens() == 7);
  const Bytes rows = Gather(snapshot.layers[0].k, 0, 7, Order::kTokenHeadDim);
  CHECK(rows[4 * kRow] == std::byte{50});  // the later one
  CHECK(rows[5 * kRow] == std::byte{15});  // the first row again
  CHECK(rows[6 * kRow] == std::byte{60});
  REQUIRE(snapshot.notes.size() == 3);
  CHECK(snapshot.notes[0].text.find("layers 0-1: several updates wrote tokens 4:5") == 0);
  CHECK(snapshot.notes[1].text == "layers 0-1: no update holds tokens 6:9");
  CHECK(snapshot.notes[2].text == "1 file is named by no meta: layer_1/k_t6_9.bin");
}

TEST_CASE("a capped update says so", "[mnn]") {
  const DumpFolder folder;
  json meta = LogicalMeta(0, 4);
  meta["add"] = 70;
  folder.Meta("meta_t0_4.json", meta);
  folder.Data("k_t0_4.bin", Rows(4, 1));
  folder.Data("v_t0_4.bin", Rows(4, 2));
  const Snapshot snapshot = Read(folder);
  REQUIRE(snapshot.notes.size() == 1);
  CHECK(snapshot.notes[0].text ==
        "layer 0: dumps were capped: k_t0_4.bin holds the first 4 of its update's 70 tokens");
}

TEST_CASE("the layout option chooses between logical and packed dumps", "[mnn]") {
  const DumpFolder folder;
  folder.Logical("layer_3/", 0, 5, 10, 3);
  folder.Packed("layer_3/", 5, 3);
  folder.Packed("layer_3/", 6, 3);
  CHECK(Read(folder).layers[0].k.tokens() == 5);
  CHECK(Read(folder, "packed").layers[0].k.tokens() == 6);
  CHECK(Read(folder, "packed").format_version == "packed");
  CHECK(Refusal(Finding::kUsage, [&] { Read(folder, "hex"); }) ==
        folder.Open().path + ": --layout hex: an MNN dump is 'logical' or 'packed'");

  const DumpFolder only_packed;
  only_packed.Packed("", 5);
  CHECK(Read(only_packed).format_version == "packed");
  CHECK(Refusal(Finding::kMissingRecord, [&] { Read(only_packed, "logical"); }) != "");
}

TEST_CASE("padding of a packed dump never reaches the values", "[mnn]") {
  const DumpFolder folder;
  folder.Packed("", 5);
  const json meta = PackedMeta(5);
  // All bytes are padding (0xff) except where the index functions point.
  const PackGeometry geometry{5, kDim, 2, 1, 4};
  for (const bool value : {false, true}) {
    const uint64_t head = meta[value ? "value_used_bytes" : "key_used_bytes"];
    Bytes bytes(kHeads * head, std::byte{0xff});
    for (uint64_t h = 0; h < kHeads; ++h) {
      for (uint64_t t = 0; t < 5; ++t) {
        for (uint64_t d = 0; d < kDim; ++d) {
          const uint64_t index = value ? ValueIndex(geometry, t, d) : KeyIndex(geometry, t, d);
          StoreLE<uint16_t>(bytes.data() + h * head + index * 2, 0);
        }
      }
    }
    folder.Data(meta[value ? "v_file" : "k_file"].get<std::string>(), bytes);
  }
  const Snapshot snapshot = Read(folder);
  CHECK(Gather(snapshot.layers[0].k, 0, 5, Order::kTokenHeadDim) == Bytes(5 * kRow));
  CHECK(Gather(*snapshot.layers[0].v, 0, 5, Order::kTokenHeadDim) == Bytes(5 * kRow));
}

TEST_CASE("a root with several runs asks which", "[mnn]") {
  const DumpFolder folder;
  folder.Logical("run_a/layer_0/", 0, 2, 1);
  CHECK(Read(folder).layers.size() == 1);
  folder.Logical("run_b/layer_0/", 0, 2, 1);
  const std::string message = Refusal(Finding::kAmbiguousFormat, [&] { Read(folder); });
  CHECK(message.find("holds 2 runs of dumps: run_a, run_b") != message.npos);
  CHECK(OpenSnapshot(folder.Open("run_b"), {}).layers.size() == 1);
  CHECK(OpenSnapshot(folder.Open("run_b/layer_0"), {}).layers.size() == 1);
}

TEST_CASE("two-byte elements can be said to be bf16", "[mnn]") {
  const DumpFolder folder;
  folder.Logical("", 0, 2, 1);
  OpenOptions options;
  options.as_dtype = "bf16";
  CHECK(OpenSnapshot(folder.Open(), options).layers[0].v->dtype == DType::kBF16);
}

TEST_CASE("folders are known by what their files hold, not by names", "[mnn]") {
  const DumpFolder folder;
  json meta = LogicalMeta(0, 2);
  meta["k_file"] = "keys";
  meta["v_file"] = "values";
  folder.Meta("about.txt", meta);
  folder.Data("keys", Rows(2, 1));
  folder.Data("values", Rows(2, 2));
  CHECK(ProbeDump(folder.Open()) == Confidence::kCertain);
  CHECK(Read(folder).layers[0].k.tokens() == 2);

  const DumpFolder other;
  other.Data("meta_t0_2.json", {std::byte{'{'}, std::byte{'}'}});
  other.Data("k_t0_2.bin", Rows(2, 1));
  CHECK(ProbeDump(other.Open()) == Confidence::kNo);
}

TEST_CASE("missing and wrongly sized halves are refused by name", "[mnn]") {
  const DumpFolder folder;
  folder.Logical("layer_0/", 0, 4, 1);
  folder.Data("layer_0/v_t0_4.bin", Rows(3, 1));
  CHECK(Refusal(Finding::kTruncated, [&] { Read(folder); })
            .find("layer_0/v_t0_4.bin: has 36 bytes, but meta_t0_4.json gives it 48") !=
        std::string::npos);
  folder.Data("layer_0/v_t0_4.bin", Rows(5, 1));
  CHECK(Refusal(Finding::kSizeMismatch, [&] { Read(folder); }) != "");
  std::filesystem::remove(folder.Open().path + "/layer_0/v_t0_4.bin");
  CHECK(Refusal(Finding::kMissingRecord, [&] { Read(folder); })
            .find("layer_0/meta_t0_4.json: v_file 'v_t0_4.bin' is not in the folder") !=
        std::string::npos);
}

TEST_CASE("metas that contradict each other are refused", "[mnn]") {
  const DumpFolder folder;
  folder.Logical("layer_0/", 0, 4, 1);
  json meta = LogicalMeta(4, 1);
  SECTION("two metas name one file") { meta["k_file"] = "k_t0_4.bin"; }
  SECTION("another shape") {
    meta["kv_heads"] = kDim;
    meta["head_dim"] = kHeads;
  }
  SECTION("another layer in the folder") { meta["layer_id"] = 1; }
  folder.Meta("layer_0/meta_t4_5.json", meta);
  folder.Data("layer_0/k_t4_5.bin", Rows(1, 1));
  folder.Data("layer_0/v_t4_5.bin", Rows(1, 1));
  if (meta["k_file"] == "k_t0_4.bin") folder.Data("layer_0/k_t0_4.bin", Rows(4, 1));
  CHECK_THROWS_AS(Read(folder), Error);
}

TEST_CASE("one layer in two folders is refused", "[mnn]") {
  const DumpFolder folder;
  folder.Logical("layer_0/", 0, 4, 1);
  folder.Logical("copy/", 4, 1, 1);
  CHECK(Refusal(Finding::kInconsistent, [&] { Read(folder); }).find("layer 0 is also in copy") !=
        std::string::npos);
}

TEST_CASE("a damaged meta among good ones is refused, not overlooked", "[mnn]") {
  const DumpFolder folder;
  folder.Logical("", 0, 4, 1);
  folder.Data("meta_t4_5.json", {std::byte{'{'}});
  CHECK(Refusal(Finding::kBadText, [&] { Read(folder); }).find("meta_t4_5.json") !=
        std::string::npos);
}

TEST_CASE("meta fields are read strictly", "[mnn]") {
  CHECK(ParseMeta(AsBytes(LogicalMeta(0, 4).dump())).k_bytes() == 4 * kRow);
  const auto with = [](const char* key, const json& value) {
    json meta = LogicalMeta(0, 4);
    meta[key] = value;
    return meta;
  };
  json missing = LogicalMeta(0, 4);
  missing.erase("head_dim");
  CHECK(ParseRefusal(missing, Finding::kBadField).find("'head_dim' is missing") !=
        std::string::npos);
  CHECK(ParseRefusal(with("kv_heads", 0), Finding::kBadField) != "");
  CHECK(ParseRefusal(with("kv_heads", -2), Finding::kBadField) != "");
  CHECK(ParseRefusal(with("kv_heads", 2.0), Finding::kBadText) != "");
  CHECK(ParseRefusal(with("kv_heads", "2"), Finding::kBadText) != "");
  CHECK(ParseRefusal(with("seq_len", 0), Finding::kBadField) != "");
  CHECK(ParseRefusal(with("seq_len", uint64_t{1} << 40), Finding::kBadField) != "");
  CHECK(ParseRefusal(with("seq_end_exclusive", 5), Finding::kInconsistent) != "");
  CHECK(ParseRefusal(with("bytes_per_elem", 3), Finding::kBadField) != "");
  CHECK(ParseRefusal(with("bytes_per_elem", 4), Finding::kInconsistent) != "");
  CHECK(ParseRefusal(with("dtype", "unknown"), Finding::kInconsistent) != "");
  CHECK(ParseRefusal(with("add", 3), Finding::kBadField) != "");
  CHECK(ParseRefusal(with("quant_key", 1), Finding::kBadText) != "");
  CHECK(ParseRefusal(with("layout", "tiled"), Finding::kBadField) != "");
  CHECK(ParseRefusal(with("v_file", "k_t0_4.bin"), Finding::kInconsistent) != "");
  for (const char* name : {"../k.bin", "/k.bin", "a/k.bin", "", ".", "..", "a\\b"}) {
    INFO(name);
    CHECK(ParseRefusal(with("k_file", name), Finding::kUnsafeName) != "");
  }
  const auto refuse = [](const std::string& text) {
    return Refusal(Finding::kBadText, [&] { ParseMeta(AsBytes(text)); });
  };
  const std::string good = LogicalMeta(0, 4).dump();
  CHECK(refuse("[]") != "");
  CHECK(refuse(good + "x") != "");
  CHECK(refuse(good.substr(0, good.size() - 1) + ",\"run_id\":1e999}").find("out of range") !=
        std::string::npos);
  CHECK(refuse(good.substr(0, good.size() - 1)) != "");
  CHECK(
      refuse(good.substr(0, good.size() - 1) + ",\"seq_len\":4}").find("'seq_len' occurs twice") !=
      std::string::npos);
}

TEST_CASE("packed metas must agree with the formulas of the packing", "[mnn]") {
  CHECK(ParseMeta(AsBytes(PackedMeta(5).dump())).v_bytes() == kHeads * 2 * 4 * 4 * 2);
  const auto with = [](const char* key, const json& value) {
    json meta = PackedMeta(5);
    meta[key] = value;
    return meta;
  };
  CHECK(ParseRefusal(with("key_used_bytes", 34), Finding::kSizeMismatch) != "");
  CHECK(ParseRefusal(with("value_used_bytes", 66), Finding::kSizeMismatch) != "");
  CHECK(ParseRefusal(with("pack_h", 0), Finding::kBadField) != "");
  CHECK(ParseRefusal(with("pack_l", 2), Finding::kSizeMismatch) != "");
  CHECK(ParseRefusal(with("flash_upper_kv", 8), Finding::kSizeMismatch) ==
        "");  // the same size: 8 = 2*4
  CHECK(ParseRefusal(with("flash_upper_kv", 16), Finding::kSizeMismatch) != "");
  CHECK(ParseRefusal(with("pack_h", (1u << 31) - 1), Finding::kSizeMismatch) != "");
  // A head ends before the last token, because the engine's memory was cut off.
  json cut = PackedMeta(5);
  cut["key_stride_bytes"] = cut["key_used_bytes"] = 24;
  CHECK(ParseRefusal(cut, Finding::kSizeMismatch).find("too small") != std::string::npos);
  // Without flash attention a block is as long as the capacity.
  json plain = PackedMeta(5);
  plain["flash_upper_kv"] = 0;
  plain["value_used_bytes"] = 69 * 4 * 2;
  CHECK(ParseMeta(AsBytes(plain.dump())).pack.flash_block == 69);
}

TEST_CASE("what the writer writes is read back, packed sources included", "[mnn]") {
  const DumpFolder folder;
  folder.Packed("layer_0/", 5, 0);
  folder.Logical("layer_7/", 0, 3, 10, 7);
  folder.Logical("layer_7/", 3, 2, 40, 7);
  const Snapshot snapshot = Read(folder);
  const test::TempDir temp;
  WriteDump(snapshot, (temp / "again/").string(), Overwrite::kRefuse);
  const Snapshot again = OpenSnapshot(Source::Open(temp / "again"), {});
  REQUIRE(again.layers.size() == 2);
  CHECK(again.notes.empty());
  for (size_t i = 0; i < 2; ++i) {
    CHECK(again.layers[i].index == snapshot.layers[i].index);
    CHECK(again.layers[i].k.pieces.size() == 1);
    CHECK(Gather(again.layers[i].k, 0, 5, Order::kTokenHeadDim) ==
          Gather(snapshot.layers[i].k, 0, 5, Order::kTokenHeadDim));
    CHECK(Gather(*again.layers[i].v, 0, 5, Order::kTokenHeadDim) ==
          Gather(*snapshot.layers[i].v, 0, 5, Order::kTokenHeadDim));
  }
  CHECK_THROWS_AS(WriteDump(snapshot, (temp / "again").string(), Overwrite::kRefuse), Error);
}

TEST_CASE("what an MNN dump cannot say is not written", "[mnn]") {
  const Bytes rows(4 * 6 * 4);
  const auto tensor = [&](DType dtype, uint64_t tokens, uint32_t heads, uint32_t dim) {
    return ContiguousTensor(rows.data(), dtype, tokens, heads, dim, Order::kTokenHeadDim);
  };
  const test::TempDir temp;
  const auto refuse = [&](const KvTensor& k, std::optional<KvTensor> v, Finding finding) {
    Snapshot snapshot;
    snapshot.layers.push_back({.k = k, .v = std::move(v)});
    CHECK(Refusal(finding,
                  [&] { WriteDump(snapshot, (temp / "out").string(), Overwrite::kRefuse); }) != "");
    CHECK(std::filesystem::is_empty(temp.path()));
  };
  const KvTensor good = tensor(DType::kF32, 4, 2, 3);
  refuse(tensor(DType::kBF16, 4, 2, 3), good, Finding::kUnsupportedDtype);
  refuse(good, tensor(DType::kF16, 4, 2, 3), Finding::kUnsupportedLayout);
  refuse(good, tensor(DType::kF32, 4, 3, 2), Finding::kUnsupportedLayout);
  refuse(good, tensor(DType::kF32, 3, 2, 3), Finding::kUnsupportedLayout);
  refuse(good, std::nullopt, Finding::kUnsupportedLayout);
  KvTensor rows_only = tensor(DType::kF32, 4, 1, 6);
  rows_only.heads_known = false;
  refuse(rows_only, rows_only, Finding::kGeometryMissing);
}

TEST_CASE("a dump folder comes back from an archive, its data never opaque bytes", "[mnn][kvz]") {
  const DumpFolder folder;
  folder.Logical("layer_0/", 0, 9, 10);
  // The updates overlap: part of the first one is in no tensor.
  folder.Logical("layer_0/", 4, 2, 50);
  folder.Packed("layer_0/", 7);
  folder.Packed("layer_0/", 9);
  for (const char* layout : {"logical", "packed"}) {
    const Snapshot snapshot = Read(folder, layout);
    const Archive archive = test::OpenBytes(test::Pack(snapshot.source, &snapshot, 64));
    const test::Unpacked unpacked = test::Unpack(archive);
    REQUIRE(unpacked.files.size() == snapshot.source.files.size());
    for (size_t i = 0; i < unpacked.files.size(); ++i) {
      CHECK(unpacked.files[i] == test::CopyOf(snapshot.source.files[i].data->bytes()));
    }
    for (const ArchivedChunk& chunk : archive.chunks()) {
      const std::string& name = archive.files()[chunk.head.file].name;
      INFO(name << " at " << chunk.head.source_offset);
      CHECK(chunk.head.dtype == (name.ends_with(".bin") ? DType::kF16 : DType::kU8));
    }
    CHECK(archive.HoldsTensor(0, false) == (layout == std::string("logical")));
  }
}

}  // namespace kv::mnn::mnn_test
