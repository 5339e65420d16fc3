// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Tests hand-made states of every layout, and every reason to refuse one.
#include "formats/llama_state/llama_state.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "lib/core/snapshot/layout.h"
#include "tests/support/llama_builder.h"

namespace kv::llama_state_test {
namespace {

using test::LlamaState;
using test::MakeSource;

Snapshot Open(Bytes bytes, const OpenOptions& options = {}) {
  return llama_state::Open(MakeSource(std::move(bytes)), options);
}

// Returns the finding with which opening fails; the test fails if opening succeeds.
Finding FindingOf(Bytes bytes, const OpenOptions& options = {}) {
  try {
    Open(std::move(bytes), options);
  } catch (const Error& error) {
    UNSCOPED_INFO(error.what());
    return error.finding();
  }
  FAIL("opened");
  return Finding::kInternal;
}

OpenOptions WithLayout(std::string layout) {
  OpenOptions options;
  options.layout = std::move(layout);
  return options;
}

void Put32(Bytes& bytes, uint64_t at, uint32_t value) { StoreLE(bytes.data() + at, value); }

struct Variant {
  const char* name;
  LlamaState state;
};

// Returns one state for each layout, kind and storage.
std::vector<Variant> Variants() {
  std::vector<Variant> all;
  const auto add = [&](const char* version, bool session, uint32_t number, bool streams,
                       bool outputs, uint32_t extension, std::vector<int32_t> ids) {
    LlamaState state;
    state.is_session = session;
    state.version = number;
    state.has_streams = streams;
    state.has_outputs = outputs;
    state.extension = extension;
    for (LlamaState::Cell& cell : state.caches[0].streams[0]) cell.sequences = ids;
    all.push_back({version, state});
  };
  add("SEQ 2, layout A", false, 2, false, false, 0, {});
  add("SEQ 2, layout B", false, 2, false, false, 0, {3});
  add("SEQ 2, layout C/D", false, 2, true, false, 0, {3});
  add("SEQ 2, layout D'", false, 2, true, false, 8, {3});
  add("SEQ 3, layout E", false, 3, true, false, 0, {3});
  add("SEQ 3, layout E'", false, 3, true, false, 12, {3});
  add("SESSION 9, layout A/B", true, 9, false, true, 0, {0, 1});
  add("SESSION 9, layout C", true, 9, true, true, 0, {0, 1});
  add("SESSION 9, layout D", true, 9, true, false, 0, {0, 1});
  add("SESSION 9, layout D'", true, 9, true, false, 8, {0});
  add("SESSION 10, layout E", true, 10, true, false, 0, {0, 1});
  add("SESSION 10, layout E'", true, 10, true, false, 12, {0});
  return all;
}

void CheckValues(const KvTensor& tensor, uint32_t layer, bool is_value, uint64_t first = 0) {
  const Bytes got = Gather(tensor, first, tensor.tokens() - first, Order::kTokenHeadDim);
  for (uint64_t t = first; t < tensor.tokens(); ++t) {
    for (uint64_t e = 0; e < tensor.channels(); ++e) {
      const auto value = LoadLE<uint16_t>(got.data() + 2 * ((t - first) * tensor.channels() + e));
      REQUIRE(value == LlamaState::Value(layer, is_value, t, e));
    }
  }
}

TEST_CASE("every layout of llama.cpp states reads, V as rows and transposed", "[llama]") {
  for (Variant& variant : Variants()) {
    for (const uint32_t transposed : {0u, 1u}) {
      INFO(variant.name << " transposed " << transposed);
      variant.state.caches[0].transposed = transposed;
      variant.state.caches[0].v_row = 8;  // V's heads may have another size than K's
      Bytes bytes = variant.state.Write();
      const Source source = MakeSource(bytes);
      CHECK(llama_state::Probe(source) == Confidence::kCertain);
      const Snapshot snapshot = Open(bytes);
      CHECK(snapshot.format_version == variant.name);
      CHECK(snapshot.engine == "llama.cpp");
      CHECK(snapshot.model == (variant.state.is_session ? "llama" : ""));
      CHECK(snapshot.tokens == std::vector<int32_t>{5, 6, 7});
      CHECK(snapshot.key_rotation == KeyRotation::kRotated);
      CHECK(snapshot.notes.empty());
      REQUIRE(snapshot.layers.size() == 2);
      REQUIRE(snapshot.cell_groups.size() == 1);
      const CellGroup& group = snapshot.cell_groups[0];
      CHECK(group.streams == 1);
      REQUIRE(group.cells.size() == 3);
      for (size_t i = 0; i < 3; ++i) {
        CHECK(group.cells[i].position == static_cast<int64_t>(i));
        CHECK(group.cells[i].sequences == variant.state.caches[0].streams[0][i].sequences);
      }
      for (const LayerKv& layer : snapshot.layers) {
        CHECK_FALSE(layer.k.heads_known);
        CHECK(layer.k.channels() == 8);
        CHECK(layer.v->channels() == 4);
        CheckValues(layer.k, layer.index, false);
        CheckValues(*layer.v, layer.index, true);
      }
      const std::vector<Region> regions = FindRegions(snapshot);
      REQUIRE(regions.size() == 4);
      CHECK(regions[3].offset + regions[3].size == bytes.size());
      CHECK(regions[3].order == (transposed != 0 ? Order::kHeadDimToken : Order::kTokenHeadDim));
    }
  }
}

TEST_CASE("a state cut anywhere is refused, but for places that cannot be told", "[llama]") {
  for (Variant& variant : Variants()) {
    INFO(variant.name);
    LlamaState::Marks marks;
    const Bytes bytes = variant.state.Write(&marks);
    for (uint64_t size = 0; size < bytes.size(); ++size) {
      INFO("cut to " << size);
      Bytes cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
      // K without V is how latent attention is stored: reported, not refused.
      if (variant.state.has_streams && size == marks.k_ends[0]) {
        const Snapshot snapshot = Open(cut);
        REQUIRE(snapshot.notes.size() == 1);
        CHECK(snapshot.notes[0].is_warning);
        CHECK_FALSE(snapshot.layers[0].v.has_value());
        continue;
      }
      // An output of row 0 is also how an empty cache of layout D begins.
      if (variant.state.has_outputs && size == 41) {
        CHECK(Open(cut).layers.empty());
        continue;
      }
      CHECK(FindingOf(cut) == Finding::kTruncated);
    }
    Bytes longer = bytes;
    longer.insert(longer.end(), 8, std::byte{0});
    CHECK(FindingOf(longer) == Finding::kTrailingBytes);
  }
}

TEST_CASE("impossible fields are refused with what they are", "[llama]") {
  LlamaState::Marks marks;
  const Bytes good = LlamaState{}.Write(&marks);
  const uint64_t cells = marks.body + 8, tail = cells + 3 * 12;
  const auto finding = [&](uint64_t at, uint32_t value) {
    Bytes bytes = good;
    Put32(bytes, at, value);
    return FindingOf(bytes);
  };
  CHECK(finding(0, 0x78787878) == Finding::kBadMagic);
  CHECK(finding(8, 0xffffffff) == Finding::kTruncated);  // token count
  CHECK(finding(marks.body, 0) == Finding::kBadField);   // streams
  CHECK(finding(marks.body, 257) == Finding::kBadField);
  CHECK(finding(marks.body + 4, 0xffffffff) != Finding::kInternal);  // cells
  CHECK(finding(cells, 0x80000000) == Finding::kBadField);           // position
  CHECK(finding(cells + 4, 0) == Finding::kBadField);                // the number of ids of a cell
  CHECK(finding(cells + 4, 2) == Finding::kBadField);
  CHECK(finding(cells + 8, 0xffffffff) == Finding::kBadField);  // the id
  CHECK(finding(cells + 20, 1) == Finding::kBadField);          // differs from the first cell's id
  CHECK(finding(tail, 2) == Finding::kBadField);                // v_trans
  CHECK(finding(tail + 4, 0) == Finding::kBadField);            // layers
  CHECK(finding(tail + 4, 4097) == Finding::kBadField);
  CHECK(finding(tail + 8, 12) == Finding::kUnknownDtype);  // 12 is q4_K, which no cache has
  CHECK(finding(tail + 8, 0xffffffff) == Finding::kUnknownDtype);
  // 15 bytes are not a whole number of f16 values.
  CHECK(finding(tail + 12, 15) == Finding::kBadField);
  CHECK(finding(tail + 12, 0) == Finding::kLimit);
  CHECK(finding(tail + 16, 0x80000000) == Finding::kLimit);  // row of 2^63 bytes
  CHECK(finding(tail + 12, 1 << 20) == Finding::kTruncated);
}

TEST_CASE("a transposed V of blocks or with a wrong element size is refused", "[llama]") {
  LlamaState state;
  state.caches[0].transposed = 1;
  state.caches[0].v_element = 4;
  CHECK(FindingOf(state.Write()) == Finding::kBadField);
  state.caches[0].v_element = 18;
  state.caches[0].v_type = 2;
  CHECK(FindingOf(state.Write()) == Finding::kBadField);
}

TEST_CASE("other versions are refused by their number", "[llama]") {
  for (const bool session : {false, true}) {
    const uint32_t newest = session ? 10 : 3;
    for (uint32_t version = 0; version <= newest + 1; ++version) {
      if (version == newest || version == newest - 1) continue;
      INFO(session << " " << version);
      LlamaState state;
      state.is_session = session;
      state.version = version;
      const bool never = !session && version == 0;
      CHECK(FindingOf(state.Write()) ==
            (never ? Finding::kBadVersion : Finding::kUnsupportedVersion));
    }
  }
  LlamaState state;
  state.is_session = true;
  state.version = 6;
  CHECK_THROWS_WITH(Open(state.Write()), Catch::Contains("SESSION version 6"));
}

TEST_CASE("sliding-window models have two caches", "[llama]") {
  LlamaState state;
  LlamaState::Cache window;
  window.layers = 3;
  window.streams = {{{1}, {2}}};
  window.transposed = 1;
  state.caches.push_back(window);
  const Snapshot snapshot = Open(state.Write());
  REQUIRE(snapshot.layers.size() == 5);
  REQUIRE(snapshot.cell_groups.size() == 2);
  CHECK(snapshot.cell_groups[0].group == "full");
  CHECK(snapshot.cell_groups[1].group == "swa");
  CHECK(snapshot.cell_groups[1].cells[0].position == 1);
  for (uint32_t i = 0; i < 5; ++i) {
    CHECK(snapshot.layers[i].index == i);
    CHECK(snapshot.layers[i].group == (i < 2 ? "full" : "swa"));
    CHECK(snapshot.layers[i].k.tokens() == (i < 2 ? 3 : 2));
    CheckValues(*snapshot.layers[i].v, i < 2 ? i : i - 2, true);
  }
  state.caches[1].has_v = false;
  CHECK(Open(state.Write()).layers[4].group == "index");
  state.caches.push_back(window);
  CHECK(Open(state.Write()).layers[7].group == "swa");
  state.caches.push_back(window);
  CHECK(FindingOf(state.Write()) == Finding::kTrailingBytes);
}

TEST_CASE("streams become pieces; empty ones write nothing", "[llama]") {
  LlamaState state;
  state.is_session = true;
  state.version = 10;
  state.caches[0].streams = {{{0}, {1}}, {}, {{0, {2}}, {1, {2}}, {2, {2}}}};
  for (const uint32_t transposed : {0u, 1u}) {
    state.caches[0].transposed = transposed;
    const Snapshot snapshot = Open(state.Write());
    const LayerKv& layer = snapshot.layers[1];
    REQUIRE(layer.k.pieces.size() == 2);
    CHECK(layer.v->tokens() == 5);
    CHECK(snapshot.cell_groups[0].streams == 3);
    CHECK(snapshot.cell_groups[0].cells[2].stream == 2);
    CHECK(snapshot.cell_groups[0].cells[2].sequences == std::vector<int32_t>{2});
    // Every stream numbers its own cells.
    const Bytes v = Gather(*layer.v, 2, 3, Order::kTokenHeadDim);
    CHECK(LoadLE<uint16_t>(v.data()) == LlamaState::Value(1, true, 0, 0));
    CHECK(FindRegions(snapshot).size() == 8);
  }
  SECTION("streams must agree") {
    Bytes bytes = state.Write();
    LlamaState first = state;
    first.caches[0].streams = {{{0}, {1}}, {}};
    const uint64_t third = first.Write().size() + 4 + 3 * 12;
    Put32(bytes, third, 0);  // v_trans
    CHECK(FindingOf(bytes) == Finding::kInconsistent);
    bytes = state.Write();
    Put32(bytes, third + 12, 8);  // sets the row size of K in layer 0
    CHECK(FindingOf(bytes) == Finding::kInconsistent);
  }
  SECTION("a sequence lives in one stream") {
    state.is_session = false;
    state.version = 3;
    CHECK(FindingOf(state.Write()) == Finding::kBadField);
    state.caches[0].streams[0].clear();
    CHECK(Open(state.Write()).layers[0].k.tokens() == 3);
  }
}

TEST_CASE("an empty cache has no layers", "[llama]") {
  LlamaState state;
  state.tokens = {};
  state.caches[0].streams = {{}};
  const Snapshot snapshot = Open(state.Write());
  CHECK(snapshot.layers.empty());
  CHECK(snapshot.kv_bytes() == 0);
  REQUIRE(snapshot.notes.size() == 1);
  CHECK(snapshot.notes[0].text == "the cache is empty");
  state.has_streams = false;
  state.version = 2;
  // An empty cache of layouts A and B states its layers.
  CHECK(Open(state.Write()).layers.size() == 2);
}

TEST_CASE("two readings of the same bytes are reported, --layout chooses", "[llama]") {
  // V of one channel and 22 tokens, whose bytes could also be the rest of a second cache that
  // stores only K.
  LlamaState state;
  state.caches[0].layers = 1;
  state.caches[0].k_row = state.caches[0].v_row = 2;
  state.caches[0].streams[0].resize(22);
  Bytes bytes = state.Write();
  const std::vector<uint32_t> second = {1, 0, 0, 1, 0, 0, 1, 1, 2, 0, 7};
  for (size_t i = 0; i < second.size(); ++i) Put32(bytes, bytes.size() - 44 + 4 * i, second[i]);
  try {
    Open(bytes);
    FAIL("opened");
  } catch (const Error& error) {
    CHECK(error.finding() == Finding::kAmbiguousFormat);
    CHECK_THAT(error.message(), Catch::Contains("E and E-k,k"));
    CHECK_THAT(error.hint(), Catch::Contains("--layout"));
  }
  CHECK(Open(bytes, WithLayout("E")).layers.size() == 1);
  CHECK(Open(bytes, WithLayout("E-k,k")).layers.size() == 2);
  CHECK(FindingOf(bytes, WithLayout("C")) == Finding::kBadHeader);
}

TEST_CASE("server slot files keep a record where the tokens are", "[llama]") {
  LlamaState state;
  // marker, version, 4 text tokens, 2 media: at index 1 of 3 bytes, at 3 of 4; 1 byte of padding
  state.tokens = {-1, 1, 4, 10, -1, 12, -1, 2, 1, 3, 3, 0x04cccccc, 0x44000000, 0x00444444};
  const Snapshot snapshot = Open(state.Write());
  CHECK(snapshot.tokens == std::vector<int32_t>{10, -1, 12, -1});
  const auto with = [&](size_t word, int32_t value) {
    LlamaState other = state;
    other.tokens[word] = value;
    return FindingOf(other.Write());
  };
  CHECK(with(1, 2) == Finding::kUnsupportedVersion);
  CHECK(with(2, 1000) == Finding::kTruncated);
  CHECK(with(2, -1) == Finding::kTruncated);
  CHECK(with(7, 1 << 30) == Finding::kTruncated);
  CHECK(with(8, 0) == Finding::kBadField);   // this word is no media position
  CHECK(with(9, 99) == Finding::kBadField);  // past the text
  CHECK(with(10, 1000) == Finding::kTruncated);
  CHECK(with(13, 0x01444444) == Finding::kTrailingBytes);
  state.tokens.push_back(0);
  CHECK(FindingOf(state.Write()) == Finding::kTrailingBytes);
}

TEST_CASE("recurrent states are named: alone refused, behind attention left as they are",
          "[llama]") {
  const auto recurrent = [](ByteWriter& out, std::vector<int32_t> ids,
                            const std::vector<uint64_t>& rows = {24, 24, 128, 128}) {
    out.U32(1);
    out.I32(41);
    out.U32(static_cast<uint32_t>(ids.size()));
    for (int32_t id : ids) out.I32(id);
    out.U32(0);
    out.U32(4);  // number of rows: R and S of two layers
    for (const uint64_t row : rows) {
      out.I32(0);
      out.U64(row);
      out.Pad(row, std::byte{1});
    }
  };
  LlamaState state;
  state.is_session = true;
  state.version = 10;
  state.architecture = "jamba";
  SECTION("attention and recurrent") {
    ByteWriter out;
    out.Append(state.Write());
    recurrent(out, {0});
    const uint64_t caches = state.Write().size();
    const Bytes file = out.Release();
    const Snapshot snapshot = Open(file);
    REQUIRE(snapshot.layers.size() == 2);
    CHECK(snapshot.model == "jamba");
    CHECK(snapshot.storage.at("recurrent") ==
          fmt::format("2 of 4 layers, 1 cell, {} bytes at {:#x}", file.size() - caches, caches));
    const std::vector<Region> regions = FindRegions(snapshot);
    CHECK(regions.back().offset + regions.back().size == caches);
    // With one byte more or less, the rest cannot be interpreted.
    CHECK(FindingOf({file.begin(), file.end() - 1}) == Finding::kTrailingBytes);
    Bytes more = file;
    more.emplace_back();
    CHECK(FindingOf(more) == Finding::kTrailingBytes);
  }
  SECTION("two caches, one without V, and states of convolutions only") {
    state.caches.push_back(LlamaState::Cache{.has_v = false});
    ByteWriter out;
    out.Append(state.Write());
    recurrent(out, {0}, {24, 24, 0, 0});
    const Snapshot snapshot = Open(out.Release());
    CHECK(snapshot.layers.size() == 4);
    CHECK_FALSE(snapshot.layers[3].v);
  }
  SECTION("a sequence, whose states carry no ids") {
    state.is_session = false;
    state.version = 3;
    ByteWriter out;
    out.Append(state.Write());
    recurrent(out, {});
    const Snapshot snapshot = Open(out.Release());
    CHECK(snapshot.layers.size() == 2);
    CHECK(snapshot.storage.count("recurrent") == 1);
    CHECK_FALSE(llama_state::NotKept(snapshot).empty());
  }
  SECTION("rows that no state has") {
    for (const std::vector<uint64_t>& rows : std::vector<std::vector<uint64_t>>{
             {24, 24, 128}, {128, 128, 24, 24}, {0, 0, 128, 128}, {24, 22, 128, 128}, {}}) {
      ByteWriter out;
      out.Append(state.Write());
      recurrent(out, {0}, rows);
      CHECK(FindingOf(out.Release()) == Finding::kTrailingBytes);
    }
  }
  SECTION("recurrent only") {
    state.architecture = "mamba";
    state.caches.clear();
    ByteWriter out;
    out.Append(state.Write());
    recurrent(out, {0});
    CHECK(FindingOf(out.Release()) == Finding::kUnsupportedKind);
  }
  SECTION("a sequence of the time when both had one grammar") {
    LlamaState::Cache cache;
    cache.k_type = cache.v_type = 0;
    cache.v_row = 64;
    cache.streams = {{{7, {}}}};
    LlamaState old;
    old.version = 2;
    old.has_streams = false;
    old.caches = {cache};
    CHECK(FindingOf(old.Write()) == Finding::kAmbiguousFormat);
    CHECK(Open(old.Write(), WithLayout("A")).layers.size() == 2);
  }
  SECTION("DeepSeek V4") {
    state.caches.clear();
    ByteWriter out;
    out.Append(state.Write());
    out.U32(0x34565344);
    out.U32(1);
    out.U32(0);
    CHECK(FindingOf(out.Release()) == Finding::kUnsupportedKind);
  }
}

TEST_CASE("whether quantised caches are rotated is never silently assumed", "[llama]") {
  LlamaState state;
  state.caches[0].k_type = state.caches[0].v_type = 8;
  state.caches[0].k_row = state.caches[0].v_row = 4 * 34;  // 128 channels of q8_0
  ModelGeometry geometry;
  const auto opened = [&](uint32_t head_dim, const char* rotated) {
    OpenOptions options;
    options.rotated = rotated;
    if (head_dim != 0) {
      geometry.uniform.k_dim = head_dim;
      options.geometry = geometry;
    }
    return Open(state.Write(), options);
  };
  using enum HadamardState;
  CHECK(opened(0, "auto").k_hadamard == kUnknown);
  CHECK(opened(0, "auto").notes.size() == 1);
  CHECK(opened(64, "auto").k_hadamard == kYes);
  CHECK(opened(64, "auto").notes.size() == 1);
  CHECK(opened(64, "no").v_hadamard == kNo);
  CHECK(opened(64, "yes").notes.empty());
  CHECK(opened(32, "auto").k_hadamard == kNo);
  CHECK(opened(32, "auto").notes.empty());
  CHECK_THROWS_AS(opened(32, "yes"), Error);
  state.version = 2;  // layouts C and D both exist with and without rotation
  CHECK(opened(64, "auto").v_hadamard == kUnknown);
  CHECK(opened(64, "yes").v_hadamard == kYes);
  state.has_streams = false;  // B was written before
  CHECK(opened(64, "auto").k_hadamard == kNo);
  CHECK(opened(64, "auto").notes.empty());
}

TEST_CASE("blobs from memory read when asked for", "[llama]") {
  LlamaState state;
  LlamaState::Marks marks;
  const Bytes file = state.Write(&marks);
  const Bytes blob(file.begin() + static_cast<std::ptrdiff_t>(marks.body), file.end());
  CHECK(llama_state::Probe(MakeSource(blob)) == Confidence::kNo);
  CHECK(llama_state::OpenSeqBlob(MakeSource(blob), {}).layers.size() == 2);
  ByteWriter prefixed;
  prefixed.U32(0xaf143cd8);
  prefixed.I32(0);
  prefixed.Append(blob);
  CHECK(llama_state::OpenSeqBlob(MakeSource(prefixed.Release()), {}).layers.size() == 2);
  state.is_session = true;
  state.version = 9;
  state.tokens = {};
  for (const bool outputs : {false, true}) {
    state.has_outputs = outputs;
    const Bytes session = state.Write();
    const Bytes context(session.begin() + 12, session.end());
    const Snapshot snapshot = llama_state::OpenCtxBlob(MakeSource(context), {});
    CHECK(snapshot.model == "llama");
    CHECK(snapshot.format_version ==
          (outputs ? "context blob, layout C" : "context blob, layout D/E"));
  }
}

}  // namespace
}  // namespace kv::llama_state_test
