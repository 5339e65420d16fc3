// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Files of engines' stores: chunks with a header, headerless pages, packed cache files, and pages
// joined in the caller's order.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "formats/lmcache/lmcache.h"
#include "formats/mnn/mnn.h"
#include "formats/pages.h"
#include "formats/raw/raw.h"
#include "formats/registry.h"
#include "lib/core/snapshot/layout.h"
#include "tests/support/temp_dir.h"

namespace kv::stores_test {
namespace {

using test::TempDir;

Bytes Counting(uint64_t count, uint16_t first = 0) {
  ByteWriter out;
  for (uint64_t i = 0; i < count; ++i) out.U16(static_cast<uint16_t>(first + i));
  return out.Release();
}

Bytes Chunk(int32_t format, int32_t dtype, std::initializer_list<int32_t> shape, Bytes payload) {
  ByteWriter out;
  for (const int32_t field : {static_cast<int32_t>(payload.size()), format, dtype}) out.I32(field);
  for (const int32_t extent : shape) out.I32(extent);
  Bytes bytes = out.Release();
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

Source Named(std::string name, Bytes bytes) {
  Source source;
  source.path = name;
  source.files.push_back({name, FileSource::FromBytes(std::move(bytes), name)});
  return source;
}

uint16_t At(const KvTensor& tensor, uint64_t token, uint64_t channel) {
  return LoadLE<uint16_t>(&Gather(tensor, token, 1, Order::kTokenHeadDim)[2 * channel]);
}

OpenOptions Raw(std::string raw, std::string order = "") {
  OpenOptions options;
  options.raw = std::move(raw);
  options.order = std::move(order);
  return options;
}

Finding Refusal(const Source& source, const OpenOptions& options) {
  try {
    OpenSnapshot(source, options);
  } catch (const Error& error) {
    return error.finding();
  }
  return Finding{0};
}

TEST_CASE("LMCache chunks of every layout give the elements of their axes") {
  {
    const Snapshot s = OpenSnapshot(Named("a", Chunk(1, 1, {2, 3, 4, 5}, Counting(120))), {});
    CHECK(s.format == "lmcache");
    REQUIRE(s.layers.size() == 3);
    CHECK(At(s.layers[2].k, 1, 3) == (2 * 4 + 1) * 5 + 3);
    CHECK(At(*s.layers[2].v, 1, 3) == ((3 + 2) * 4 + 1) * 5 + 3);
    CHECK_FALSE(s.heads_known());
  }
  {
    const Snapshot s = OpenSnapshot(Named("a", Chunk(2, 3, {4, 2, 6, 0}, Counting(48))), {});
    REQUIRE(s.layers.size() == 1);
    CHECK(At(*s.layers[0].v, 2, 1) == (2 * 2 + 1) * 6 + 1);
  }
  {
    const Snapshot s = OpenSnapshot(Named("a", Chunk(3, 2, {2, 4, 6, 1}, Counting(48))), {});
    CHECK(At(*s.layers.at(0).v, 2, 1) == (4 + 2) * 6 + 1);
  }
  {
    const Snapshot s = OpenSnapshot(Named("a", Chunk(6, 3, {1, 3, 4, 5}, Counting(60))), {});
    REQUIRE(s.layers.size() == 3);
    CHECK_FALSE(s.layers[0].v);
    CHECK(At(s.layers[1].k, 3, 4) == (4 + 3) * 5 + 4);
  }
}

TEST_CASE("a damaged LMCache chunk is refused by the field that is wrong") {
  const Bytes good = Chunk(1, 1, {2, 3, 4, 5}, Counting(120));
  const auto with = [&](size_t field, int32_t value) {
    Bytes bytes = good;
    StoreLE(&bytes[4 * field], value);
    return Refusal(Named("a", std::move(bytes)), {});
  };
  CHECK(with(0, 7) == Finding::kSizeMismatch);
  CHECK(with(0, -1) == Finding::kSizeMismatch);
  CHECK(with(2, 0) == Finding::kUnsupportedDtype);
  CHECK(with(2, 99) == Finding::kUnknownDtype);
  CHECK(with(4, 4) == Finding::kSizeMismatch);
  CHECK(with(3, 3) == Finding::kBadField);
  CHECK(with(4, 0) == Finding::kBadField);
  // Without its layout the file cannot be distinguished from other bytes.
  CHECK(with(1, 9) == Finding::kUnknownFormat);
  CHECK(Refusal(Named("a", Chunk(4, 6, {1, 1, 1, 9}, Bytes(9))), {}) == Finding::kUnsupportedKind);
  OpenOptions named;
  named.from = "lmcache";
  CHECK(Refusal(Named("a", Bytes(27)), named) == Finding::kTruncated);
  CHECK_THROWS_AS(lmcache::GetMemoryFormat("seven"), Error);
  CHECK(Refusal(Named("a", Chunk(1, 6, {2, 70000, 1, 1}, Bytes(140000))), {}) == Finding::kLimit);
}

TEST_CASE("presets have the engines' orders and say what is missing") {
  // 2 (K, V) x 3 layers x 4 tokens x 2 heads x 5 dims.
  const Bytes page = Counting(2 * 3 * 4 * 2 * 5);
  const auto v = [&](const char* raw) {
    const Snapshot s = OpenSnapshot(Named("page.bin", page), Raw(raw));
    REQUIRE(s.layers.size() == 3);
    REQUIRE(s.layers[1].v->tokens() == 4);
    return At(*s.layers[1].v, 2, 5 + 3);  // token 2, head 1, dim 3
  };
  CHECK(v("hicache:bf16:L=3,H=2,D=5") == (((3 + 1) * 4 + 2) * 2 + 1) * 5 + 3);
  CHECK(v("hicache-page-first:bf16:L=3,H=2,D=5") == (((4 + 2) * 3 + 1) * 2 + 1) * 5 + 3);
  CHECK(v("hicache-page-head:bf16:L=3,H=2,D=5") == (((2 + 1) * 4 + 2) * 3 + 1) * 5 + 3);
  CHECK(v("lmcache-disk:bf16:L=3,H=2,D=5") == (((3 + 1) * 4 + 2) * 2 + 1) * 5 + 3);
  CHECK(v("lmcache-fast:bf16:L=3,H=2,D=5") == (((2 + 1) * 4 + 2) * 2 + 1) * 5 + 3);
  CHECK(v("vllm-fs:bf16:L=3,P=4,H=2,D=5") == (((2 + 1) * 4 + 2) * 2 + 1) * 5 + 3);
  CHECK(v("vllm-fs-hnd:bf16:L=3,P=4,H=2,D=5") == (((2 + 1) * 2 + 1) * 4 + 2) * 5 + 3);
  CHECK(v("vllm-fs:bf16:L=3,P=2,H=2,D=5") ==
        ((((3 + 1) * 2 + 1) * 2 + 0) * 2 + 1) * 5 + 3);  // token 2 is the first of block 1
  OpenOptions flags = Raw("hicache:bf16:L=3");
  flags.geometry.emplace().uniform = {.kv_heads = 2, .k_dim = 5};
  CHECK(OpenSnapshot(Named("page.bin", page), flags).layers[0].k.heads == 2);
  for (const char* raw :
       {"hicache", "hicache:", "hicache:bf16", "hicache:bf16:L=3,H=2", "hicache:q8_0:L=3,H=2,D=5",
        "hicache:bf16:L=3,H=2,D=5,Q=1", "hicache:bf16:L=3,L=3,H=2,D=5", "hicache:bf16:L=0,H=2,D=5",
        "hicache:bf16:L,H=2,D=5", "vllm-fs:bf16:L=3,H=2,D=5", "hicache-page-head:bf16:L=3,C=10"}) {
    INFO(raw);
    CHECK(Refusal(Named("page.bin", page), Raw(raw)) == Finding::kUsage);
  }
  CHECK(Refusal(Named("page.bin", page), Raw("hicache:bf16:L=3,H=2,D=7")) ==
        Finding::kSizeMismatch);
}

TEST_CASE("a name may give what LMCache's raw files leave out") {
  const Snapshot s = OpenSnapshot(Named("org-model@1@0@77aa@half@12.pt", Counting(4 * 2 * 6)),
                                  Raw("lmcache-disk-layer::H=2,D=3"));
  CHECK(s.layers.at(0).index == 12);
  CHECK(s.layers[0].k.dtype == DType::kF16);
  CHECK(At(*s.layers[0].v, 3, 4) == (3 * 2 + 1) * 6 + 4);
  CHECK(Refusal(Named("77aa.pt", Counting(48)), Raw("lmcache-disk-layer::H=2,D=3")) ==
        Finding::kUsage);
}

TEST_CASE("the fs tier's config tells sizes, and only those not given") {
  const TempDir temp;
  const std::string config =
      R"({"model_name": "org/m", "tokens_per_hash": 4, "blocks_per_file": 1, "tp_size": 2,
          "dtype": "torch.bfloat16", "inference_engine": "vllm",
          "kv_cache_groups": [{"tokens_per_block": 4, "layer_names": ["a", "b", "c"]}]})";
  temp.WriteFile("m/config.json", AsBytes(config));
  temp.WriteFile("m_r0/abc/de_g0/01.bin", Counting(240));
  temp.WriteFile("m_r0/abc/de_g0/02.bin", Counting(240, 1000));
  const Source folder = Source::Open(temp.path());
  const Snapshot s = OpenSnapshot(folder, Raw("vllm-fs::H=2,D=5", "*.bin"));
  REQUIRE(s.layers.size() == 3);
  CHECK(s.layers[0].k.tokens() == 8);
  CHECK(s.model == "org/m");
  CHECK(At(s.layers[0].k, 4, 0) == 1000);
  CHECK(OpenSnapshot(folder, Raw("vllm-fs:f16:H=2,D=5,P=2", "01.*")).layers[0].k.dtype ==
        DType::kF16);
  // The two files have no given order.
  CHECK(Refusal(folder, Raw("vllm-fs::H=2,D=5")) == Finding::kUsage);
  temp.WriteFile("m/config.json", AsBytes(R"({"kv_cache_groups": [{"tokens_per_block": -1}]})"));
  CHECK(Refusal(Source::Open(temp.path()), Raw("vllm-fs::H=2,D=5", "*.bin")) == Finding::kBadField);
  temp.WriteFile("m/config.json", AsBytes("["));
  CHECK(Refusal(Source::Open(temp.path()), Raw("vllm-fs::H=2,D=5", "*.bin")) == Finding::kBadText);
}

TEST_CASE("pages are joined layer by layer in the order given") {
  const TempDir temp;
  temp.WriteFile("pages/x/b.data", Chunk(1, 1, {2, 2, 3, 4}, Counting(48)));
  temp.WriteFile("pages/a.data", Chunk(1, 1, {2, 2, 5, 4}, Counting(80, 500)));
  const Source folder = Source::Open(temp / "pages");
  const auto list = [&](std::string_view text) {
    return temp.WriteFile("order.txt", AsBytes(text)).string();
  };
  const Snapshot s = OpenSnapshot(folder, Raw("", list("b\r\na.data\n")));
  REQUIRE(s.layers.size() == 2);
  CHECK(s.layers[1].k.tokens() == 8);
  CHECK(At(s.layers[1].k, 2, 1) == (3 + 2) * 4 + 1);
  CHECK(At(*s.layers[1].v, 3, 0) == 500 + 3 * 20);
  CHECK(std::any_of(s.facts.begin(), s.facts.end(),
                    [](const auto& fact) { return fact.first == "pages"; }));
  CHECK(At(OpenSnapshot(folder, Raw("", "*.data")).layers[0].k, 0, 0) == 500);
  CHECK(Refusal(folder, {}) == Finding::kUsage);
  CHECK(Refusal(folder, Raw("", list("a\na\n"))) == Finding::kUsage);
  CHECK(Refusal(folder, Raw("", list("c\n"))) == Finding::kMissingRecord);
  CHECK(Refusal(folder, Raw("", list("\n"))) == Finding::kUsage);
  CHECK(Refusal(folder, Raw("", (temp / "none.txt").string())) == Finding::kOpenFailed);
  temp.WriteFile("pages/c.data", Chunk(1, 1, {2, 2, 3, 5}, Counting(60)));
  CHECK(Refusal(Source::Open(temp / "pages"), Raw("", "*.data")) == Finding::kInconsistent);
  temp.WriteFile("pages/y/b.data", Chunk(1, 1, {2, 2, 3, 4}, Counting(48)));
  CHECK(Refusal(Source::Open(temp / "pages"), Raw("", list("b\n"))) == Finding::kUsage);
}

TEST_CASE("cells and token ids of pages follow one another where all pages have them") {
  const Bytes values = Counting(6);
  const auto page = [&](int64_t position, bool has_cells) {
    Snapshot part;
    part.layers.resize(1);
    part.layers[0].k = ContiguousTensor(values.data(), DType::kF16, 2, 1, 3, Order::kTokenHeadDim);
    if (has_cells) part.cell_groups.push_back({"", 1, {{position}, {position + 1}}});
    part.tokens = {static_cast<int32_t>(position)};
    return part;
  };
  const auto join = [](std::vector<Snapshot> parts) { return Concatenate(std::move(parts), {}); };
  const Snapshot whole = join({page(0, true), page(2, true)});
  REQUIRE(whole.cell_groups.size() == 1);
  CHECK(whole.cell_groups[0].cells.at(3).position == 3);
  CHECK(whole.tokens == std::vector<int32_t>{0, 2});
  CHECK(whole.layers.at(0).k.tokens() == 4);
  CHECK(join({page(0, true), page(2, false), page(4, true)}).cell_groups.empty());
  Snapshot other = page(2, true);
  other.layers[0].v = other.layers[0].k;
  CHECK_THROWS_AS(join({page(0, true), other}), Error);
}

TEST_CASE("layers in files of their own come together") {
  const TempDir temp;
  for (const char* name :
       {"m@1@0@aa@half@0.pt", "m@1@0@aa@half@1.pt", "m@1@0@bb@half@0.pt", "m@1@0@bb@half@1.pt"}) {
    temp.WriteFile(name, Counting(2 * 2 * 6));
  }
  const Snapshot s =
      OpenSnapshot(Source::Open(temp.path()), Raw("lmcache-disk-layer::H=2,D=3", "*.pt"));
  REQUIRE(s.layers.size() == 2);
  CHECK(s.layers[1].index == 1);
  CHECK(s.layers[1].v->tokens() == 4);
  // A model file describes the whole cache, not one page.
  OpenOptions model = Raw("lmcache-disk-layer::", "*.pt");
  model.geometry.emplace().layers.resize(2, {.kv_heads = 2, .k_dim = 3});
  CHECK(OpenSnapshot(Source::Open(temp.path()), model).layers[1].k.heads == 2);
}

// Writes one layer of an MNN cache with room for `capacity` tokens; the value of an element is its
// position.
void WriteCache(const TempDir& temp, const std::string& stem, const mnn::PackGeometry& room,
                uint64_t heads) {
  ByteWriter k, v;
  for (uint64_t i = 0; i < heads * mnn::KeyElements(room); ++i) k.U16(static_cast<uint16_t>(i));
  for (uint64_t i = 0; i < heads * mnn::ValueElements(room); ++i) v.U16(static_cast<uint16_t>(i));
  temp.WriteFile(stem + ".k", k.Release());
  temp.WriteFile(stem + ".v", v.Release());
}

TEST_CASE("MNN cache files are read by the packing that the user names") {
  const uint64_t flash = GENERATE(uint64_t{0}, uint64_t{64});
  mnn::PackGeometry room{.tokens = 70, .head_dim = 6, .pack_h = 8, .pack_l = 2, .flash_block = 70};
  if (flash != 0) room.flash_block = flash;
  const TempDir temp;
  for (const char* stem : {"prompt_0", "prompt_1"}) WriteCache(temp, stem, room, 2);
  const std::string raw =
      "mnn-cache:f16:H=2,D=6,hP=8,lP=2" + (flash == 0 ? std::string() : ",FA=64");
  const Snapshot s = OpenSnapshot(Source::Open(temp.path()), Raw(raw + ",T=67"));
  REQUIRE(s.layers.size() == 2);
  CHECK(s.layers[0].k.tokens() == 67);
  CHECK(s.notes.size() == 1);  // no _sync markers
  for (const auto& [token, dim] : {std::pair<uint64_t, uint64_t>{0, 0}, {9, 5}, {66, 3}}) {
    const uint64_t head = 1;
    CHECK(At(s.layers[1].k, token, head * 6 + dim) ==
          head * mnn::KeyElements(room) + mnn::KeyIndex(room, token, dim));
    CHECK(At(*s.layers[1].v, token, head * 6 + dim) ==
          head * mnn::ValueElements(room) + mnn::ValueIndex(room, token, dim));
  }
  const auto refusal = [&](const std::string& text) {
    return Refusal(Source::Open(temp.path()), Raw(text));
  };
  CHECK(refusal(raw) == Finding::kUsage);
  CHECK(refusal(raw + ",T=200") == Finding::kSizeMismatch);
  CHECK(refusal("mnn-cache:f16:H=2,D=6,T=67,hP=16,lP=2,FA=64") == Finding::kSizeMismatch);
  for (const char* marker :
       {"prompt_0_sync.k", "prompt_0_sync.v", "prompt_1_sync.k", "prompt_1_sync.v"}) {
    temp.WriteFile(marker, {});
  }
  CHECK(OpenSnapshot(Source::Open(temp.path()), Raw(raw + ",T=67")).notes.empty());
  std::filesystem::remove(temp / "prompt_1.v");
  CHECK(refusal(raw + ",T=67") == Finding::kMissingRecord);
}

TEST_CASE("MNN caches in mapped files are numbered by address") {
  const mnn::PackGeometry room{
      .tokens = 70, .head_dim = 4, .pack_h = 4, .pack_l = 1, .flash_block = 64};
  const TempDir temp;
  WriteCache(temp, "00007f0000001000", room, 1);
  WriteCache(temp, "00007f0000000000", room, 1);
  const Snapshot s =
      OpenSnapshot(Source::Open(temp.path()), Raw("mnn-cache:f16:H=1,D=4,T=6,hP=4,lP=1,FA=64"));
  REQUIRE(s.layers.size() == 2);
  CHECK(s.layers[0].label == "00007f0000000000");
  CHECK(s.notes.size() == 1);
}

TEST_CASE("what is not read is refused by name and with its reason") {
  CHECK(Refusal(Named("m.gguf", Bytes(Counting(40))), {}) == Finding::kUnknownFormat);
  for (const std::string_view magic :
       {"GGUF", "ftrt", "lmgg", "\x1f\x8b", "\x28\xb5\x2f\xfd", "\x89HDF\r\n\x1a\n", "PAR1"}) {
    Bytes bytes(100);
    std::copy(AsBytes(magic).begin(), AsBytes(magic).end(), bytes.begin());
    CHECK(Refusal(Named("file", bytes), {}) == Finding::kUnsupportedKind);
  }
  Bytes tar(1024);
  const auto put = [&](size_t at, std::string_view text) {
    std::copy(AsBytes(text).begin(), AsBytes(text).end(),
              tar.begin() + static_cast<std::ptrdiff_t>(at));
  };
  put(0, "sys_info");
  put(148, "        ");
  put(257, "ustar");
  unsigned sum = 0;
  for (const std::byte b : tar) sum += static_cast<unsigned>(b);
  CHECK(Refusal(Named("old.pt", tar), {}) == Finding::kUnknownFormat);  // checksum missing
  std::string octal;
  for (int shift = 15; shift >= 0; shift -= 3) octal += static_cast<char>('0' + (sum >> shift & 7));
  put(148, octal);
  CHECK(Refusal(Named("old.pt", tar), {}) == Finding::kUnsupportedKind);
  for (const ForeignFormat& format : ForeignFormats()) CHECK_FALSE(format.reason.empty());
  for (const std::string_view id :
       {"exllama", "tensorrt-llm", "ctranslate2", "whisper.cpp", "onnx-genai", "ollama"}) {
    INFO(id);
    const auto named = std::find_if(ForeignFormats().begin(), ForeignFormats().end(),
                                    [&](const ForeignFormat& format) { return format.id == id; });
    REQUIRE(named != ForeignFormats().end());
    CHECK_FALSE(named->hint.empty());  // the hint names an alternative
  }
}

TEST_CASE("the catalogue lists every format once per kind, as the registry has it") {
  std::set<std::pair<FormatKind, std::string_view>> seen;
  for (const FormatListing& format : ListFormats()) {
    INFO(format.id);
    CHECK(seen.emplace(format.kind, format.id).second);
    CHECK_FALSE(format.summary.empty());
    if (format.kind == FormatKind::kPreset) {
      const auto preset = raw::ParsePreset(format.id);
      REQUIRE(preset);
      // The table of formats and the reader require the same fields.
      for (const char letter : preset->preset->order) {
        const bool open =
            letter == 'T' || (letter == 'P' && format.needs.find("P=") == format.needs.npos);
        if (letter == '2' || open) continue;
        CHECK(format.needs.find(std::string(1, letter) + "=") != format.needs.npos);
      }
    }
    if (format.kind == FormatKind::kSnapshot) {
      const FormatEntry* entry = FindFormat(format.id);
      REQUIRE(entry != nullptr);
      CHECK(format.writes == (entry->write != nullptr));
    }
  }
}

}  // namespace
}  // namespace kv::stores_test
