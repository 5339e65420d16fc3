// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/store/store.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "lib/core/base/file.h"
#include "lib/core/snapshot/layout.h"
#include "lib/store/state.h"
#include "tests/support/memory_sink.h"
#include "tests/support/temp_dir.h"

namespace kv::store::store_test {
namespace {

constexpr uint32_t kHeads = 2, kDim = 8;

// K and V of one layer in the given order, for the first tokens of a chat, after a file header.
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
  // 500: ends within a block; 520: the tail is too short for an object; 900: continues after it.
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
  // A cut at 256 would leave a piece of 56 tokens, too few.
  CHECK(EndOfPiece(extent, 200, 256) == 512);
  CHECK(EndOfPiece(extent, 100, 256) == 256);
  CHECK(EndOfPiece(extent, 768, 256) == 1000);
  extent.tokens = 800;
  CHECK(EndOfPiece(extent, 512, 256) == 800);  // the remaining 32 tokens join the piece
  CHECK(IsWorthKeeping(extent, 512, 288, 256));
  CHECK_FALSE(IsWorthKeeping(extent, 512, 20, 256));
  CHECK(IsWorthKeeping(extent, 492, 20, 256));  // the piece ends at a block boundary
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
  const std::optional<Folder> opened = Folder::Open(folder.path().string());
  Index::Create(*opened, "index.sqlite");
  Database database(*opened, "index.sqlite", Database::Use::kRead);
  Statement statement(database, "SELECT ?");
  // A text longer than SQLite's limit, which it reports before it reads the text, like a lack of
  // memory.
  const std::string_view text("text");
  CHECK_THROWS_AS(statement.Bind(1, std::string_view(text.data(), size_t{1} << 31)), Error);
  CHECK(statement.Bind(1, text).Step());
  CHECK(statement.Text(0) == text);
}

TEST_CASE("connections of one process exclude each other, and the last writer is read", "[store]") {
  const test::TempDir folder;
  const std::optional<Folder> opened = Folder::Open(folder.path().string());
  Index::Create(*opened, "index.sqlite");
  std::vector<std::jthread> threads;
  constexpr uint64_t kThreads = 4, kEach = 8;
  for (uint64_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      Index index(*opened, "index.sqlite", Database::Use::kWrite);
      for (uint64_t turn = 0; turn < kEach; ++turn) index.NextNumber(1);
    });
  }
  threads.clear();
  Index reader(*opened, "index.sqlite", Database::Use::kRead);
  CHECK_THROWS_AS(reader.NextNumber(1), Error);  // the store was opened for reading only
  Index writer(*opened, "index.sqlite", Database::Use::kWrite);
  CHECK(writer.NextNumber(1) == kThreads * kEach + 1);
  CHECK(writer.NextNumber(1000) == 1000);
  CHECK(writer.NextNumber(1) == 1001);
  CHECK(writer.NextNumber(kMostNumber - 1) == kMostNumber - 1);
  CHECK_THROWS_AS(writer.NextNumber(1), Error);
}

TEST_CASE("a reader undoes what another connection left unfinished", "[store]") {
  const test::TempDir folder;
  const std::optional<Folder> opened = Folder::Open(folder.path().string());
  Index::Create(*opened, "index.sqlite");
  Index reader(*opened, "index.sqlite", Database::Use::kRead);
  CHECK(reader.States().empty());
  // A journal without pages: magic, their number, nonce, pages of the index, sector and page size.
  const std::string journal = folder / "index.sqlite-journal";
  const auto pages = std::filesystem::file_size(folder / "index.sqlite") / 4096;
  std::string head("\xd9\xd5\x05\xf9\x20\xa1\x63\xd7", 8);
  for (const uint64_t field :
       {uint64_t{0}, uint64_t{1}, uint64_t{pages}, uint64_t{512}, uint64_t{4096}}) {
    for (int shift = 24; shift >= 0; shift -= 8) head.push_back(static_cast<char>(field >> shift));
  }
  head.resize(512);
  std::ofstream(journal) << head;
  CHECK(reader.States().empty());
  CHECK_FALSE(std::filesystem::exists(journal));
}

TEST_CASE("folders of a store hold regular files of their own", "[store]") {
  const test::TempDir folder;
  const std::filesystem::path path = folder.path();
  std::filesystem::create_directory(path / "packs");
  std::ofstream(path / "file") << "text";
  std::filesystem::create_symlink("packs", path / "link");
  std::filesystem::create_symlink("file", path / "alias");
  ::mkfifo((path / "fifo").c_str(), 0600);
  const std::optional<Folder> opened = Folder::Open(path.string());
  CHECK(opened->Below("packs").has_value());
  CHECK_FALSE(opened->Below("nothing").has_value());
  CHECK_THROWS_AS(opened->Below("link"), Error);
  CHECK_THROWS_AS(opened->Below("file"), Error);
  CHECK_THROWS_AS(opened->MakeBelow("link"), Error);
  CHECK(AsText(opened->OpenFile("file")->bytes()) == "text");
  for (const char* name : {"alias", "fifo", "packs", "nothing"}) {
    CHECK(opened->OpenFile(name) == nullptr);
    CHECK_FALSE(opened->Find(name).has_value());
  }
  CHECK_FALSE(opened->Remove("packs"));
  {
    NewFile never(*opened, "new");
    never.Write(AsBytes("x"));
  }
  for (const char* name : {"file", "alias", "packs"}) {
    NewFile refused(*opened, name);
    CHECK_THROWS_AS(refused.Commit(), Error);
  }
  NewFile written(*opened, "new");
  written.Write(AsBytes("yes"));
  written.Commit();
  CHECK(AsText(opened->OpenFile("new")->bytes()) == "yes");
  CHECK(opened->Names().size() == 6);
}

TEST_CASE("deep names are compared in time of their length", "[store]") {
  const auto clashes = [](std::vector<std::string_view> names) {
    return FindNameClash(std::move(names)).has_value();
  };
  CHECK(clashes({"a/b", "a"}));
  CHECK(clashes({"a/b", "a!", "a", "a.b"}));  // '!' and '.' sort before '/'
  CHECK(clashes({"a", "b", "a"}));
  CHECK_FALSE(clashes({"a/b", "a/c", "ab", "a!"}));
  CHECK_FALSE(clashes({"a\x01", "a/b"}));
  std::string deep;
  for (int i = 0; i < 2000; ++i) deep += "a/";
  std::vector<std::string> names;
  for (int i = 0; i < 64; ++i) names.push_back(deep + fmt::format("{:02}", i));
  uint64_t compared = 0;
  CHECK_FALSE(FindNameClash(std::vector<std::string_view>(names.begin(), names.end()), &compared));
  // Each name is compared about log2(64) times; before, each of its 2,000 folders was looked up.
  CHECK(compared < 16 * names.size() * names[0].size());
}

TEST_CASE("BLAKE2b of 32 bytes is that of other programs", "[store]") {
  CHECK(Hex(Blake2b256({})) == "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
  CHECK(Hex(Blake2b256(AsBytes("abc"))) ==
        "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
}

TEST_CASE("runs that add one state at the same time list it once", "[store]") {
  const test::TempDir folder;
  const Chat chat(700, Order::kTokenHeadDim);
  Store(folder / "s", Store::Use::kAdd);
  std::vector<std::jthread> threads;
  std::atomic<int> added = 0;
  constexpr int kThreads = 6;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      ThreadPool pool(1);
      Store store(folder / "s", Store::Use::kAdd);
      added += Add(store, chat, pool).was_there ? 0 : 1;
    });
  }
  threads.clear();
  CHECK(added == 1);
  ThreadPool pool(1);
  Store store(folder / "s", Store::Use::kRead);
  CHECK(store.States().size() == 1);
  const CheckReport report = store.Check(pool, nullptr);
  CHECK(report.problems.empty());
  CHECK(report.leftover_files == 0);
  const auto bytes = chat.source.files[0].data->bytes();
  CHECK(Restored(store, "chat", pool) == Bytes(bytes.begin(), bytes.end()));
}

TEST_CASE("the index takes a state only beside the newest one that was compared", "[store]") {
  const test::TempDir folder;
  const std::optional<Folder> opened = Folder::Open(folder.path().string());
  Index::Create(*opened, "index.sqlite");
  Index index(*opened, "index.sqlite", Database::Use::kWrite);
  StateRecord record;
  record.id = 3;
  record.name = "chat";
  CHECK(index.Add(record, 1, 1, {}, false, 0));
  record.id = 2;
  CHECK_FALSE(index.Add(record, 1, 1, {}, false, 0));
  CHECK(index.States().size() == 1);
  CHECK(index.Add(record, 1, 1, {}, false, 3));
  record.id = 4;
  record.name = "other";
  CHECK(index.Add(record, 1, 1, {}, false, 0));
  CHECK(index.Packs().empty());
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
  const std::vector<StateRow> older = store.Older(0, {"long"});
  CHECK(older.size() == 1);
  CHECK(store.States().size() == 3);
  store.Remove(older);
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
