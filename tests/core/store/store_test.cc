// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/store/store.h"

#include <catch2/catch.hpp>
#include <random>

#include "lib/core/snapshot/layout.h"
#include "lib/core/store/cut.h"
#include "lib/core/store/index.h"
#include "tests/support/temp_dir.h"

namespace kv::store::store_test {
namespace {

constexpr uint32_t kHeads = 2, kDim = 8;

// K and V of one layer in the given order, of the first tokens of a chat, after a head of its own.
struct Chat {
  Source source;
  Snapshot snapshot;

  Chat(uint64_t tokens, Order order, uint32_t seed = 1) {
    const uint64_t row = kHeads * kDim * 2;
    Bytes bytes(20 + tokens);
    for (uint64_t which = 0; which < 2; ++which) {
      Bytes rows(tokens * row);
      for (uint64_t i = 0; i < rows.size(); ++i) {
        rows[i] = static_cast<std::byte>((i * 2654435761u + which * 77 + seed) >> 8);
      }
      Bytes stored(rows.size());
      Reorder(rows, Order::kTokenHeadDim, stored, order, tokens, kHeads, kDim, 2);
      bytes.insert(bytes.end(), stored.begin(), stored.end());
    }
    const uint64_t head = 20 + tokens;
    source.path = "chat";
    source.files.push_back({"chat", FileSource::FromBytes(std::move(bytes), "chat")});
    const std::byte* data = source.files[0].data->bytes().data() + head;
    LayerKv layer;
    layer.k = ContiguousTensor(data, DType::kF16, tokens, kHeads, kDim, order);
    layer.v = ContiguousTensor(data + tokens * row, DType::kF16, tokens, kHeads, kDim, order);
    snapshot.source = source;
    snapshot.format = "test";
    snapshot.layers.push_back(layer);
  }
};

class Memory : public RestoreTarget {
 public:
  Sink& Begin(size_t) override { return sink_; }
  void End(size_t) override {}
  Bytes& bytes() { return sink_.bytes(); }

 private:
  MemorySink sink_;
};

Bytes Restored(Store& store, const std::string& what, ThreadPool& pool) {
  Memory memory;
  store.Restore(store.Load(store.Find(what)), memory, pool, nullptr);
  return memory.bytes();
}

AddReport Add(Store& store, const Chat& chat, ThreadPool& pool, const std::string& name = "chat") {
  AddOptions options;
  options.name = name;
  return store.Add(chat.source, &chat.snapshot, options, pool);
}

}  // namespace

TEST_CASE("a state that has grown shares all that it had, in every order", "[store]") {
  const Order order = GENERATE(Order::kTokenHeadDim, Order::kHeadTokenDim, Order::kHeadDimToken);
  const test::TempDir folder;
  ThreadPool pool(2);
  Store store(folder / "s", Store::Use::kAdd);
  // 500: ends within a block; 520: a tail that is too short to be kept; 900: goes on behind it.
  for (const uint64_t tokens : {500, 520, 900}) {
    const Chat chat(tokens, order);
    const AddReport report = Add(store, chat, pool);
    CHECK(report.prefix_tokens == (tokens == 500 ? 0 : 500));
    const auto bytes = chat.source.files[0].data->bytes();
    CHECK(Restored(store, "chat", pool) == Bytes(bytes.begin(), bytes.end()));
  }
  CHECK(Add(store, Chat(900, order), pool).was_there);
  CHECK(store.States().size() == 3);
  CHECK(store.Find("chat@1").id == 1);
  CHECK(store.Find("@2").source_bytes == 20 + 520 * (1 + 64));
  CHECK_THROWS_AS(store.Find("chat@4"), Error);
  CHECK_THROWS_AS(store.Find("nobody"), Error);
  CHECK(store.Check(pool, nullptr).problems.empty());
}

TEST_CASE("another beginning shares nothing, the same rows in another order all", "[store]") {
  const test::TempDir folder;
  ThreadPool pool(1);
  Store store(folder / "s", Store::Use::kAdd);
  Add(store, Chat(600, Order::kTokenHeadDim), pool);
  CHECK(Add(store, Chat(600, Order::kTokenHeadDim, 5), pool, "other").prefix_tokens == 0);
  const AddReport turned = Add(store, Chat(600, Order::kHeadDimToken), pool, "turned");
  CHECK(turned.prefix_tokens == 600);
  CHECK(turned.new_raw_bytes == 0);
}

TEST_CASE("pieces end at blocks and are not short", "[store]") {
  Extent extent;
  extent.kind = Extent::Kind::kTensor;
  extent.dtype = DType::kF16;
  extent.heads = 1;
  extent.units = 8;
  extent.tokens = 1000;
  CHECK(EndOfPiece(extent, 0, 256) == 256);
  CHECK(EndOfPiece(extent, 200, 256) == 512);  // 56 tokens would be short
  CHECK(EndOfPiece(extent, 100, 256) == 256);
  CHECK(EndOfPiece(extent, 768, 256) == 1000);
  extent.tokens = 800;
  CHECK(EndOfPiece(extent, 512, 256) == 800);  // the rest of 32 joins
  CHECK(IsWorthKeeping(extent, 512, 288, 256));
  CHECK_FALSE(IsWorthKeeping(extent, 512, 20, 256));
  CHECK(IsWorthKeeping(extent, 492, 20, 256));  // ends at a block
}

TEST_CASE("records are read as they were written, and refused cut or changed", "[store]") {
  StateRecord record;
  record.id = 7;
  record.name = "chat";
  record.source_bytes = 5 + 10;
  Extent literal, opaque;
  literal.literal.resize(5);
  opaque.kind = Extent::Kind::kOpaque;
  opaque.bytes = 10;
  opaque.pieces.push_back({Blake2b256(AsBytes("abc")), 10});
  record.files.push_back({"", 15, 99, false, {literal, opaque}});
  const Bytes bytes = Encode(record);
  const StateRecord read = DecodeState(bytes);
  CHECK(Encode(read) == bytes);
  CHECK(read.files[0].extents[1].pieces[0].id == opaque.pieces[0].id);
  for (size_t size = 0; size < bytes.size(); ++size) {
    CHECK_THROWS_AS(DecodeState(ByteSpan(bytes).first(size)), Error);
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    Bytes changed = bytes;
    changed[at] ^= std::byte{4};
    CHECK_THROWS_AS(DecodeState(changed), Error);
  }
  record.source_bytes = 16;
  CHECK_THROWS_AS(DecodeState(Encode(record)), Error);
}

TEST_CASE("a name in a record is that of a file or of a folder", "[store]") {
  StateRecord record;
  record.id = 1;
  record.name = "folder";
  record.is_folder = true;
  record.files = {{"a", 0, 0, false, {}}, {"b/c", 0, 0, false, {}}};
  record.empty_folders = {"d"};
  DecodeState(Encode(record));
  const auto refuses = [&](const std::string& file, const std::string& folder) {
    record.files[1].name = file;
    record.empty_folders = {folder};
    CHECK_THROWS_AS(DecodeState(Encode(record)), Error);
  };
  refuses("a/b", "d");
  refuses("b", "a");
  refuses("b", "b");
  refuses("b", "a/b");
  refuses("d/e/f", "d");
}

TEST_CASE("names of states can be names of files", "[store]") {
  for (const char* name : {"chat", "slot0.bin", "a b", "x@2"}) CHECK(IsStateName(name));
  for (const char* name : {"", ".", "..", "a/b", "@2", "a\nb", "\xff", "a\\b"}) {
    CHECK_FALSE(IsStateName(name));
  }
}

TEST_CASE("a value that the index cannot take is an error, not NULL", "[store]") {
  const test::TempDir folder;
  const std::string path = (folder.path() / "index.sqlite").string();
  Index::Create(path);
  Database database(path, Database::Use::kOpen);
  Statement statement(database, "SELECT ?");
  // Longer than SQLite takes, which it says before it looks at the text, as it says that there is
  // no memory.
  const std::string_view text("text");
  CHECK_THROWS_AS(statement.Bind(1, std::string_view(text.data(), size_t{1} << 31)), Error);
  CHECK(statement.Bind(1, text).Step());
  CHECK(statement.Text(0) == text);
}

TEST_CASE("BLAKE2b of 32 bytes is that of other programs", "[store]") {
  CHECK(HexText(Blake2b256({})) ==
        "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
  CHECK(HexText(Blake2b256(AsBytes("abc"))) ==
        "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
}

TEST_CASE("collecting frees what no state needs, and rewrites what is mostly waste", "[store]") {
  const test::TempDir folder;
  ThreadPool pool(1);
  {
    Store store(folder / "s", Store::Use::kAdd);
    Add(store, Chat(300, Order::kTokenHeadDim), pool, "short");
    Add(store, Chat(2000, Order::kTokenHeadDim), pool, "long");
    Add(store, Chat(1000, Order::kTokenHeadDim), pool, "middle");
  }
  Store store(folder / "s", Store::Use::kAlone);
  CHECK(store.Prune(0, {"long"}).size() == 1);
  const CollectReport report = store.Collect();
  CHECK(report.rewritten_packs == 1);
  CHECK(report.after_bytes < report.before_bytes);
  const Chat middle(1000, Order::kTokenHeadDim);
  const auto bytes = middle.source.files[0].data->bytes();
  CHECK(Restored(store, "middle", pool) == Bytes(bytes.begin(), bytes.end()));
  CHECK(store.Check(pool, nullptr).problems.empty());
  CHECK(store.Collect().removed_objects == 0);
}

}  // namespace kv::store::store_test
