// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Tests states that kvtool writes: they have the bytes that engines wrote, or are refused before
// anything is written.
#include <catch2/catch.hpp>
#include <filesystem>

#include "formats/llama_state/llama_state.h"
#include "lib/core/snapshot/diff.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/select.h"
#include "tests/support/llama_builder.h"
#include "tests/support/mlp_weights.h"
#include "tests/support/temp_dir.h"

namespace kv::llama_writer_test {
namespace {
namespace fs = std::filesystem;

using test::LlamaState;

Snapshot Open(Bytes bytes) { return llama_state::Open(test::MakeSource(std::move(bytes)), {}); }

enum class As { kSequence, kSession };

Bytes Written(const Snapshot& snapshot, As as = As::kSequence) {
  const test::TempDir folder;
  const fs::path path = folder / "out.bin";
  const auto write = as == As::kSession ? llama_state::WriteSession : llama_state::WriteSequence;
  write(snapshot, path.string(), Overwrite::kRefuse);
  const auto file = FileSource::Open(path);
  return {file->bytes().begin(), file->bytes().end()};
}

// Returns the finding with which writing fails; no output may remain.
Finding Refusal(const Snapshot& snapshot, As as = As::kSequence) {
  const test::TempDir folder;
  const auto write = as == As::kSession ? llama_state::WriteSession : llama_state::WriteSequence;
  try {
    write(snapshot, (folder / "out.bin").string(), Overwrite::kRefuse);
  } catch (const Error& error) {
    UNSCOPED_INFO(error.what());
    CHECK(fs::is_empty(folder.path()));
    return error.finding();
  }
  FAIL("written");
  return Finding::kInternal;
}

void ExpectSame(const Snapshot& a, const Snapshot& b) {
  ThreadPool pool(1);
  const SnapshotDiff diff = DiffSnapshots(a, b, {}, pool);
  for (const std::string& text : diff.structure) UNSCOPED_INFO(text);
  CHECK(diff.verdict() == DiffVerdict::kIdentical);
}

// Returns the letter of the layout in "SEQ 2, layout C/D".
std::string LetterOf(const Snapshot& snapshot) {
  std::string word = snapshot.format_version.substr(snapshot.format_version.rfind(' ') + 1);
  word = word.substr(0, word.find_first_of("-'"));
  return word.substr(word.size() - 1);
}

LlamaState Sequence(int version, bool streams, uint32_t extension, std::vector<int32_t> ids) {
  LlamaState state;
  state.version = static_cast<uint32_t>(version);
  state.has_streams = streams;
  state.extension = extension;
  for (LlamaState::Cell& cell : state.caches[0].streams[0]) cell.sequences = ids;
  return state;
}

}  // namespace

TEST_CASE("a sequence is written as each layout's engine wrote it", "[llama][writer]") {
  const std::pair<const char*, LlamaState> layouts[] = {
      {"A", Sequence(2, false, 0, {})}, {"B", Sequence(2, false, 0, {3})},
      {"C", Sequence(2, true, 0, {3})}, {"D", Sequence(2, true, 0, {3})},
      {"D", Sequence(2, true, 8, {3})}, {"E", Sequence(3, true, 0, {3})},
      {"E", Sequence(3, true, 12, {3})}};
  for (const auto& [letter, layout] : layouts) {
    for (const uint32_t transposed : {0U, 1U}) {
      LlamaState state = layout;
      state.caches[0].transposed = transposed;
      const Bytes bytes = state.Write();
      Snapshot snapshot = Open(bytes);
      snapshot.storage["version"] = letter;
      INFO("layout " << letter << ", extension " << state.extension << ", transposed "
                     << transposed);
      CHECK(Written(snapshot) == bytes);
    }
  }
}

TEST_CASE("several caches, streams and caches without V are written as read", "[llama][writer]") {
  LlamaState state;
  SECTION("full and sliding window, V transposed in one") {
    state.caches.push_back({.layers = 3, .transposed = 1, .streams = {{{7}, {8}}}});
  }
  SECTION("no V at all") { state.caches[0].has_v = false; }
  SECTION("a stream of several, the others empty") {
    state.caches[0].streams = {{}, {{0, {1}}, {1, {1}}}, {}};
  }
  SECTION("empty") { state.caches[0].streams = {{}, {}}; }
  const Bytes bytes = state.Write();
  CHECK(Written(Open(bytes)) == bytes);
}

TEST_CASE("a session keeps every sequence, its logits not", "[llama][writer]") {
  LlamaState state;
  state.is_session = true;
  state.version = 10;
  state.caches[0].streams = {{{0, {0, 1}}, {1, {1}}}, {}, {{5, {2}}}};
  CHECK(Written(Open(state.Write()), As::kSession) == state.Write());
  state.version = 9;
  state.has_outputs = true;
  Snapshot snapshot = Open(state.Write());
  CHECK(llama_state::NotKept(snapshot).size() == 1);
  snapshot.storage["version"] = "b6122";
  const Snapshot again = Open(Written(snapshot, As::kSession));
  CHECK(again.format_version == "SESSION 9, layout C");
  ExpectSame(snapshot, again);
  snapshot.model.clear();
  CHECK(Refusal(snapshot, As::kSession) == Finding::kGeometryMissing);
}

TEST_CASE("states that engines wrote come back byte for byte", "[llama][writer]") {
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(KVTOOL_TESTDATA "/llamacpp/states")) {
    const std::string name = entry.path().filename().string();
    if (name.find(".seq") == name.npos) continue;
    ++files;
    INFO(name);
    Source source = Source::Open(entry.path());
    const ByteSpan bytes = source.files[0].data->bytes();
    const Bytes wanted(bytes.begin(), bytes.end());
    Snapshot snapshot = llama_state::Open(std::move(source), {});
    snapshot.storage["version"] = LetterOf(snapshot);
    CHECK(Written(snapshot) == wanted);
  }
  CHECK(files > 0);
}

TEST_CASE("the order in memory does not show in the file", "[llama][writer]") {
  for (const char* order : {"rows", "transposed"}) {
    Snapshot rows = test::MakeCache({.heads = 2, .head_dim = 8});
    rows.storage["v_order"] = order;
    const Bytes wanted = Written(rows);
    for (const Order other : {Order::kHeadTokenDim, Order::kHeadDimToken}) {
      Snapshot snapshot = test::MakeCache({.heads = 2, .head_dim = 8, .order = other});
      snapshot.storage["v_order"] = order;
      CHECK(Written(snapshot) == wanted);
    }
    // Dims in groups, as packed engine layouts keep them.
    Snapshot packed = rows;
    KvTensor& v = *packed.layers[0].v;
    v.pieces[0].dim.group = 4;
    v.pieces[0].dim.group_step = 16;
    CHECK(Written(packed) == wanted);
    ExpectSame(rows, Open(wanted));
  }
}

TEST_CASE("rows without cells are numbered as a prompt fills them", "[llama][writer]") {
  const Snapshot snapshot = Open(Written(test::MakeCache({.tokens = 5})));
  REQUIRE(snapshot.cell_groups.size() == 1);
  CHECK(snapshot.cell_groups[0].cells[4].position == 4);
  CHECK(snapshot.cell_groups[0].cells[4].sequences == SequenceIds{0});
  CHECK(llama_state::NotKept(test::MakeCache({})).size() == 1);  // positions
}

TEST_CASE("one sequence is cut out of a context as the engine does it", "[llama][writer]") {
  const Source source =
      Source::Open(KVTOOL_TESTDATA "/llamacpp/states/s260k-b8352-2seq.session.bin");
  const Snapshot session = llama_state::Open(source, {});
  CHECK(Refusal(session) == Finding::kUnsupportedLayout);
  for (const int32_t sequence : {0, 1}) {
    const Snapshot one = SelectSequence(session, sequence);
    CHECK(one.tokens.empty());  // the session does not say whose tokens it lists
    const Snapshot again = Open(Written(one));
    CHECK(again.layers[0].k.tokens() == 120);
    ExpectSame(one, again);
  }
  CHECK_THROWS_AS(SelectSequence(session, 2), Error);
}

TEST_CASE("what llama.cpp cannot hold is refused", "[llama][writer]") {
  const Snapshot good = Open(LlamaState{}.Write());
  Snapshot bad = good;
  SECTION("keys before RoPE") { bad.key_rotation = KeyRotation::kUnrotated; }
  SECTION("sequences") { bad.cell_groups[0].cells[1].sequences = {4}; }
  SECTION("rows") { bad.layers[1].k = SliceTokens(bad.layers[1].k, 0, 2); }
  SECTION("V of some layers") { bad.layers[1].v.reset(); }
  SECTION("positions") { bad.cell_groups[0].cells[0].position = int64_t{1} << 31; }
  SECTION("order of streams") {
    bad.cell_groups[0].streams = 2;
    bad.cell_groups[0].cells[0].stream = 1;
  }
  SECTION("one stream only, then") {
    bad.cell_groups[0].streams = 2;
    bad.storage["version"] = "B";
  }
  SECTION("lost extensions") { bad.storage["extension_words"] = "3"; }
  SECTION("transposed blocks") {
    bad.layers[0].v->dtype = bad.layers[1].v->dtype = DType::kQ8_0;
    bad.layers[0].v->head_dim = bad.layers[1].v->head_dim = 32;
    bad.storage["v_order"] = "transposed";
  }
  CHECK(Refusal(bad) == Finding::kUnsupportedLayout);
}

TEST_CASE("types that are no cache types are refused by name", "[llama][writer]") {
  Snapshot snapshot = Open(LlamaState{}.Write());
  snapshot.layers[0].k.dtype = DType::kI16;
  CHECK(Refusal(snapshot) == Finding::kUnsupportedDtype);
}

TEST_CASE("newer builds keep the token of each cell of an M-RoPE model", "[llama][writer]") {
  Snapshot snapshot = Open(Sequence(2, true, 8, {0}).Write());
  const Snapshot newer = Open(Written(snapshot));
  REQUIRE(newer.cell_groups[0].extension_words == 3);
  const int32_t word = 0x09090909;
  CHECK(newer.cell_groups[0].extensions ==
        std::vector<int32_t>{word, word, 5, word, word, 6, word, word, 7});
  snapshot.tokens.pop_back();
  CHECK(Refusal(snapshot) == Finding::kUnsupportedLayout);
  snapshot.storage["version"] = "C";
  CHECK(Refusal(snapshot) == Finding::kUnsupportedLayout);
}

TEST_CASE("a list that begins like a record is written as one", "[llama][writer]") {
  Snapshot snapshot = Open(LlamaState{}.Write());
  snapshot.tokens = {-1, 4, 5};
  const Snapshot again = Open(Written(snapshot));
  CHECK(again.tokens == snapshot.tokens);
  CHECK(again.storage.at("tokens") == "record");
  CHECK(Written(again) == Written(snapshot));
}

TEST_CASE("builds name layouts as far as it is known", "[llama][writer]") {
  const auto letter = [](const char* version) { return llama_state::FindTarget(version).letter; };
  CHECK(letter("") == 'E');
  CHECK(letter("A") == 'A');
  CHECK(letter("b4753") == 'A');
  CHECK(letter("b5640") == 'B');
  CHECK(letter("b7000") == 'C');
  CHECK(letter("b10361") == 'D');
  CHECK(letter("v0.4.0") == 'E');
  CHECK(letter("v1.0") == 'E');
  for (const char* version :
       {"F", "e", "b", "b12x", "b100", "b5000", "b7900", "b20000", "v0.3.9", "v", "x1"}) {
    INFO(version);
    CHECK_THROWS_AS(letter(version), Error);
  }
}

}  // namespace kv::llama_writer_test
