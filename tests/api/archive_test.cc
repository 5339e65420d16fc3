// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Tests archives through kvtool.h. The hidden test "archive program" exchanges archives with the
// program, if it gets the name of a file; tests/api/archive_program.py runs it.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "lib/api/kvtool.hpp"
#include "tests/api/cases.h"

namespace {

using namespace api_cases;

struct Memory {
  Buffer bytes;
  uint64_t read = 0;  // number of bytes requested
  kvt_status fail = 0;

  kvt_source Source() {
    return {sizeof(kvt_source), 0, bytes.size(), this,
            [](void* user, uint64_t offset, void* dst, size_t n) {
              auto& self = *static_cast<Memory*>(user);
              if (self.fail != 0) return self.fail;
              self.read += n;
              std::memcpy(dst, self.bytes.data() + offset, n);
              return kvt_status{0};
            }};
  }
  kvt_sink Sink() {
    return {sizeof(kvt_sink), 0, this, [](void* user, const void* src, size_t n) {
              auto& self = *static_cast<Memory*>(user);
              const auto* from = static_cast<const uint8_t*>(src);
              if (self.fail != 0) return self.fail;
              self.bytes.insert(self.bytes.end(), from, from + n);
              return kvt_status{0};
            }};
  }
};

// Two layers; K of one is [head][token][dim].
struct Cache {
  static constexpr uint32_t kTokens = 1500, kHeads = 2, kDim = 128;
  std::vector<kvt_desc> descs;
  std::vector<kvt_part> parts;
  std::vector<Buffer> raw;   // as given
  std::vector<Buffer> rows;  // [token][head][dim]

  Cache() {
    for (uint32_t i = 0; i < 4; ++i) {
      kvt_desc desc = {};
      desc.struct_size = sizeof desc;
      desc.dtype = KVT_BF16;
      desc.role = i % 2 == 0 ? KVT_K : KVT_V;
      desc.order = i == 2 ? KVT_HEAD_TOKEN_DIM : KVT_TOKEN_HEAD_DIM;
      desc.heads = kHeads;
      desc.head_dim = kDim;
      desc.tokens = kTokens;
      descs.push_back(desc);
      rows.push_back(Page(kTokens, kHeads * kDim, i));
      raw.push_back(rows.back());
      if (i != 2) continue;
      for (size_t head = 0; head < kHeads; ++head) {
        for (size_t token = 0; token < kTokens; ++token) {
          std::memcpy(&raw[i][(head * kTokens + token) * 2 * kDim],
                      &rows[i][(token * kHeads + head) * 2 * kDim], 2 * kDim);
        }
      }
    }
    for (uint32_t i = 0; i < 4; ++i) {
      parts.push_back({sizeof(kvt_part), 7 + i / 2, &descs[i], 0, 0, nullptr});
    }
  }
};

kvt_file File(const char* name, const kvt_source* source) {
  return {sizeof(kvt_file), 0, name, source};
}

Buffer Write(kvt_ctx* ctx, const Cache& cache) {
  Memory out;
  const kvt_sink sink = out.Sink();
  kvt_writer* writer = nullptr;
  REQUIRE(kvt_writer_create(ctx, cache.parts.data(), cache.parts.size(), &sink, &writer) == 0);
  for (size_t i = 0; i < cache.parts.size(); ++i) {
    Buffer passing = cache.raw[i];
    REQUIRE(kvt_writer_add(writer, i, passing.data(), passing.size()) == 0);
    std::fill(passing.begin(), passing.end(), uint8_t{0xee});
  }
  REQUIRE(kvt_writer_finish(writer) == 0);
  kvt_writer_free(writer);
  return out.bytes;
}

TEST_CASE("An archive is written through a sink and read by parts") {
  kvt_pool* pool = nullptr;
  REQUIRE(kvt_pool_create(3, &pool) == 0);
  const Cache cache;
  const Context ctx, threaded(pool);
  Memory archive{Write(ctx, cache)};
  CHECK(archive.bytes == Write(threaded, cache));
  CHECK(archive.bytes.size() < 4 * cache.raw[0].size());

  const kvt_source source = archive.Source();
  for (kvt_ctx* by : {ctx.ctx, threaded.ctx}) {
    kvt_reader* reader = nullptr;
    uint64_t parts = 0;
    archive.read = 0;
    REQUIRE(kvt_reader_open(by, &source, &reader, &parts) == 0);
    CHECK(parts == 4);
    CHECK(archive.read < archive.bytes.size() / 20);
    for (uint64_t i = 0; i < parts; ++i) {
      kvt_desc desc = {};
      desc.struct_size = sizeof desc;
      kvt_part part = {sizeof part, 0, nullptr, 0, 0, nullptr};
      REQUIRE(kvt_reader_part(reader, i, &part, &desc) == 0);
      CHECK(part.layer == 7 + i / 2);
      CHECK(part.raw_bytes == cache.rows[i].size());
      CHECK(part.stored_bytes < part.raw_bytes);
      CHECK(std::string(part.name) == (i % 2 == 0 ? "k_" : "v_") + std::to_string(part.layer));
      CHECK(desc.role == (i % 2 == 0 ? KVT_K : KVT_V));
      CHECK(desc.tokens == Cache::kTokens);
      for (const auto& [begin, count] :
           {std::pair{0u, Cache::kTokens}, {511u, 2u}, {1499u, 1u}, {3u, 0u}}) {
        const size_t row = 2 * Cache::kHeads * Cache::kDim;
        Buffer rows(count * row);
        size_t written = 0;
        REQUIRE(kvt_reader_read(reader, i, begin, count, rows.data(), rows.size(), &written) == 0);
        CHECK(written == rows.size());
        CHECK((count == 0 ||
               std::memcmp(rows.data(), cache.rows[i].data() + begin * row, rows.size()) == 0));
      }
    }
    uint8_t byte;
    CHECK(kvt_reader_read(reader, 4, 0, 1, &byte, 1, nullptr) == KVT_E_BAD_ARGUMENT);
    CHECK(kvt_reader_read(reader, 0, Cache::kTokens, 1, &byte, 1, nullptr) == KVT_E_BAD_ARGUMENT);
    CHECK(kvt_reader_read(reader, 0, 1, UINT64_MAX, &byte, 1, nullptr) == KVT_E_BAD_ARGUMENT);
    CHECK(kvt_reader_read(reader, 0, 0, 1, &byte, 1, nullptr) == KVT_E_OUTPUT_TOO_SMALL);
    archive.fail = -30007;
    Buffer rows(2 * Cache::kHeads * Cache::kDim);
    CHECK(kvt_reader_read(reader, 0, 0, 1, rows.data(), rows.size(), nullptr) == -30007);
    archive.fail = 0;
    kvt_reader_free(reader);
  }
  kvt_pool_free(pool);
}

// Returns the description that a part points to, so that the test can change it.
kvt_desc& DescOf(const kvt_part& part) { return const_cast<kvt_desc&>(*part.desc); }

TEST_CASE("Misuse of a writer is refused") {
  const Context ctx;
  Cache cache;
  Memory out;
  const kvt_sink sink = out.Sink();
  const auto create = [&](kvt_writer** writer) {
    return kvt_writer_create(ctx, cache.parts.data(), cache.parts.size(), &sink, writer);
  };
  kvt_writer* writer = nullptr;
  for (const auto& spoil : std::vector<std::function<void(kvt_part&)>>{
           [](kvt_part& p) { p.struct_size = 4; }, [](kvt_part& p) { p.layer = 8; },
           [](kvt_part& p) { p.name = "k_7"; }, [](kvt_part& p) { DescOf(p).heads = 0; },
           [](kvt_part& p) { DescOf(p).heads = 1 << 20; },
           [](kvt_part& p) { DescOf(p).tokens = 0; },
           [](kvt_part& p) { DescOf(p).tokens = UINT64_MAX; },
           [](kvt_part& p) { DescOf(p).dtype = 99; }, [](kvt_part& p) { DescOf(p).role = KVT_KV; },
           [](kvt_part& p) { DescOf(p).role = KVT_V; },
           [](kvt_part& p) { DescOf(p).order = KVT_ORDER_UNKNOWN; }}) {
    Cache fresh;
    std::swap(cache, fresh);
    for (size_t i = 0; i < cache.parts.size(); ++i) cache.parts[i].desc = &cache.descs[i];
    spoil(cache.parts[0]);
    CHECK(create(&writer) == KVT_E_BAD_ARGUMENT);
  }
  cache = Cache();
  for (size_t i = 0; i < cache.parts.size(); ++i) cache.parts[i].desc = &cache.descs[i];
  REQUIRE(create(&writer) == 0);
  CHECK(kvt_writer_add(writer, 1, cache.raw[1].data(), cache.raw[1].size()) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_writer_add(writer, 0, cache.raw[0].data(), cache.raw[0].size()) ==
        KVT_E_BAD_ARGUMENT);  // it failed
  CHECK(kvt_writer_finish(writer) == KVT_E_BAD_ARGUMENT);
  kvt_writer_free(writer);
  REQUIRE(create(&writer) == 0);
  out.fail = -30001;
  CHECK(kvt_writer_add(writer, 0, cache.raw[0].data(), cache.raw[0].size()) == -30001);
  kvt_error error = {};
  error.struct_size = sizeof error;
  kvt_ctx_error(ctx, &error);
  CHECK(error.status == -30001);
  kvt_writer_free(writer);
  CHECK(kvt_writer_create(ctx, cache.parts.data(), 0, &sink, &writer) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_writer_finish(nullptr) == KVT_E_BAD_ARGUMENT);
  kvt_writer_free(nullptr);
  kvt_reader_free(nullptr);
}

TEST_CASE("A callback's own status comes back, and any other number is KV0010") {
  const Context ctx;
  const Cache cache;
  const Buffer archive = Write(ctx, cache);
  for (const kvt_status given : {-39999, -30000, 1, -1, -10, -1103, -29999, -40000, INT32_MIN}) {
    const kvt_status expected = given <= -30000 && given >= -39999 ? given : -10;
    INFO(given);
    Memory failing{archive, 0, given};
    const kvt_source source = failing.Source();
    const kvt_sink sink = failing.Sink();
    const kvt_file file = {sizeof file, 0, "a", &source};
    kvt_reader* reader = nullptr;
    CHECK(kvt_reader_open(ctx, &source, &reader, nullptr) == expected);
    CHECK(kvt_pack(ctx, &file, 1, &sink) == expected);
    kvt_reference* reference = nullptr;
    CHECK(kvt_reference_create(ctx, &file, 1, nullptr, 0, &reference) == expected);
    kvt_writer* writer = nullptr;
    CHECK(kvt_writer_create(ctx, cache.parts.data(), cache.parts.size(), &sink, &writer) ==
          expected);
    failing.fail = 0;
    REQUIRE(kvt_writer_create(ctx, cache.parts.data(), cache.parts.size(), &sink, &writer) == 0);
    failing.fail = given;
    CHECK(kvt_writer_add(writer, 0, cache.raw[0].data(), cache.raw[0].size()) == expected);
    kvt_writer_free(writer);
    Memory whole{archive};
    const kvt_source sound = whole.Source();
    kvt_status opened = given;
    const auto open = [](void* user, const char*, uint64_t, kvt_sink*) {
      return *static_cast<kvt_status*>(user);
    };
    CHECK(kvt_unpack(ctx, &sound, open, &opened) == expected);
  }
  // A callback that returns an invalid status ends the call, even if it does so only once.
  for (int bad = 0; bad < 3; ++bad) {
    struct OneBad {
      Memory memory;
      int bad, calls = 0;
    } one{Memory{archive}, bad};
    const auto read = [](void* user, uint64_t offset, void* dst, size_t n) -> kvt_status {
      OneBad& self = *static_cast<OneBad*>(user);
      if (self.calls++ == self.bad) return -1103;
      std::memcpy(dst, self.memory.bytes.data() + offset, n);
      return 0;
    };
    const kvt_source source = {sizeof source, 0, archive.size(), &one, read};
    kvt_reader* reader = nullptr;
    CHECK(kvt_reader_open(ctx, &source, &reader, nullptr) == KVT_E_BAD_ARGUMENT);
    CHECK(one.calls == bad + 1);
    kvt_reader_free(reader);
  }
  Memory vast;
  kvt_source source = vast.Source();
  source.bytes = UINT64_MAX;  // the caller's mistake, so not KVT_E_INTERNAL
  kvt_reader* reader = nullptr;
  CHECK(kvt_reader_open(ctx, &source, &reader, nullptr) == KVT_E_NO_MEMORY);
  const kvt_file file = {sizeof file, 0, "a", &source};
  const kvt_sink sink = vast.Sink();
  CHECK(kvt_pack(ctx, &file, 1, &sink) == KVT_E_NO_MEMORY);
}

TEST_CASE("kvtool.hpp writes and reads archives, and lets a callback's exception out") {
  Cache cache;
  const kvtool::Context context(KVT_FAST);
  std::vector<kvt_part> parts;
  for (size_t i = 0; i < 4; ++i) {
    parts.push_back(kvtool::Part(7 + static_cast<uint32_t>(i) / 2, cache.descs[i]));
  }
  std::vector<std::byte> archive;
  bool full = false;
  const kvtool::Write append = [&](kvtool::Bytes bytes) {
    if (full) throw std::length_error("full");
    archive.insert(archive.end(), bytes.begin(), bytes.end());
  };
  kvtool::Writer writer(context, parts, append);
  for (size_t i = 0; i < 4; ++i) writer.Add(i, std::as_bytes(std::span(cache.raw[i])));
  writer.Finish();

  bool gone = false;
  kvtool::Reader reader(context, archive.size(), [&](uint64_t offset, kvtool::MutableBytes to) {
    if (gone) throw std::out_of_range("gone");
    std::memcpy(to.data(), archive.data() + offset, to.size());
  });
  REQUIRE(reader.parts() == 4);
  CHECK(reader.At(3).name == "v_8");
  CHECK_THROWS_AS(reader.At(4), kvtool::Error);
  Buffer rows(reader.At(3).raw_bytes);
  CHECK(reader.Read(3, 0, Cache::kTokens, std::as_writable_bytes(std::span(rows))) == rows.size());
  CHECK(rows == cache.rows[3]);
  gone = true;
  CHECK_THROWS_AS(reader.Read(0, 0, 1, std::as_writable_bytes(std::span(rows))), std::out_of_range);
  full = true;
  CHECK_THROWS_AS(kvtool::Writer(context, parts, append), std::length_error);
}

TEST_CASE("contexts say how many layers in a row archives of level max join") {
  const std::string path =
      std::string(KVTOOL_TESTDATA) + "/llamacpp/states/s260k-v050-bf16.seq0.bin";
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> state((std::istreambuf_iterator<char>(in)), {});
  REQUIRE(state.size() > 100000);
  const std::vector<kvtool::File> files = {
      {"state", state.size(), [&](uint64_t offset, kvtool::MutableBytes to) {
         std::memcpy(to.data(), state.data() + offset, to.size());
       }}};
  const auto packed = [&](kvtool::Context& context) {
    std::vector<std::byte> archive;
    kvtool::Pack(context, files, [&](kvtool::Bytes bytes) {
      archive.insert(archive.end(), bytes.begin(), bytes.end());
    });
    return archive;
  };
  kvtool::Context context(KVT_MAX);
  const std::vector<std::byte> eight = packed(context);
  context.JoinLayers(1);
  const std::vector<std::byte> apart = packed(context);
  CHECK(eight.size() < apart.size() - apart.size() / 200);
  context.JoinLayers(2);
  const std::vector<std::byte> two = packed(context);
  CHECK(two.size() > eight.size());
  CHECK(two.size() < apart.size());
  CHECK_THROWS_AS(context.JoinLayers(0), kvtool::Error);
  CHECK_THROWS_AS(context.JoinLayers(17), kvtool::Error);
  CHECK(packed(context) == two);  // an invalid number changes nothing
  context.JoinLayers(8);
  CHECK(packed(context) == eight);
  CHECK(kvt_ctx_join_layers(nullptr, 8) != 0);
  // Levels below KVT_MAX do not join layers.
  kvtool::Context other(KVT_HIGH);
  const std::vector<std::byte> high = packed(other);
  other.JoinLayers(1);
  CHECK(packed(other) == high);
}

TEST_CASE("kvtool.hpp packs and unpacks files, and lets a callback's exception out") {
  const kvtool::Context context(KVT_FAST);
  const std::map<std::string, Buffer> folder = {{"a/b.bin", Page(300, 64, 1)}, {"empty", {}}};
  bool gone = false;
  std::vector<kvtool::File> files;
  for (const auto& [name, bytes] : folder) {
    files.push_back(
        {name, bytes.size(), [&, &bytes = bytes](uint64_t offset, kvtool::MutableBytes to) {
           if (gone) throw std::out_of_range("gone");
           if (!to.empty()) std::memcpy(to.data(), bytes.data() + offset, to.size());
         }});
  }
  std::vector<std::byte> archive;
  const kvtool::Write append = [&](kvtool::Bytes bytes) {
    archive.insert(archive.end(), bytes.begin(), bytes.end());
  };
  kvtool::Pack(context, files, append);
  const kvtool::ReadAt read = [&](uint64_t offset, kvtool::MutableBytes to) {
    std::memcpy(to.data(), archive.data() + offset, to.size());
  };

  std::map<std::string, Buffer> back;
  kvtool::Unpack(context, archive.size(), read, [&](std::string_view name, uint64_t bytes) {
    CHECK(bytes == folder.at(std::string(name)).size());
    Buffer& to = back[std::string(name)];
    return [&to](kvtool::Bytes more) {
      const auto* from = reinterpret_cast<const uint8_t*>(more.data());
      to.insert(to.end(), from, from + more.size());
    };
  });
  CHECK(back == folder);

  const auto refuse = [](std::string_view, uint64_t) -> kvtool::Write {
    throw std::length_error("closed");
  };
  CHECK_THROWS_AS(kvtool::Unpack(context, archive.size(), read, refuse), std::length_error);
  const auto full = [](std::string_view, uint64_t) -> kvtool::Write {
    return [](kvtool::Bytes) { throw std::overflow_error("full"); };
  };
  CHECK_THROWS_AS(kvtool::Unpack(context, archive.size(), read, full), std::overflow_error);
  archive[archive.size() / 2] ^= std::byte{1};
  CHECK_THROWS_AS(kvtool::Unpack(context, archive.size(), read,
                                 [](auto, auto) { return [](kvtool::Bytes) {}; }),
                  kvtool::Error);
  gone = true;
  CHECK_THROWS_AS(kvtool::Pack(context, files, append), std::out_of_range);
}

TEST_CASE("kvtool.hpp learns profiles, and what is coded with one needs it") {
  // Two caches of a model whose channels differ in scale.
  const auto walk = [](uint32_t seed) {
    std::vector<uint16_t> values(256 * 64);
    uint32_t random = seed;
    for (size_t i = 0; i < values.size(); ++i) {
      random = random * 1664525 + 1013904223;
      values[i] = static_cast<uint16_t>(0x2c00 + (i % 64 << 7) + (random >> 22));
    }
    return values;
  };
  const std::vector<uint16_t> learnt = walk(1), page = walk(2);
  kvtool::Context context;
  kvt_desc desc = kvtool::Describe(KVT_F16, 256, 2, 32);
  desc.order = KVT_TOKEN_HEAD_DIM;
  desc.role = KVT_K;
  const std::vector<kvt_part> parts = {kvtool::Part(0, desc)};
  const std::vector<kvtool::Bytes> values = {std::as_bytes(std::span(learnt))};
  const std::vector<std::byte> file = kvtool::Train(context, parts, values, "walks");
  CHECK_THROWS_AS(kvtool::Train(context, parts, {}, "walks"), kvtool::Error);
  const kvtool::Profile profile{kvtool::Bytes(file)};
  CHECK_THROWS_AS(kvtool::Profile(kvtool::Bytes(file).first(20)), kvtool::Error);

  desc.tokens = 32;
  const kvtool::Bytes raw = std::as_bytes(std::span(page)).first(32 * 128);
  const std::vector<std::byte> without = context.Encode(desc, raw);
  context.UseProfile(&profile);
  const std::vector<std::byte> with = context.Encode(desc, raw);
  CHECK(with.size() < without.size());
  CHECK(kvtool::ProfileOf(with) == profile.Hash());
  CHECK(kvtool::ProfileOf(without) == kvtool::Key{});
  std::vector<std::byte> back(raw.size());
  context.Decode(with, {}, back);
  CHECK(std::equal(back.begin(), back.end(), raw.begin()));

  // An archive that was written with the profile cannot be read without it.
  std::vector<std::byte> archive;
  kvtool::Writer writer(context, parts, [&](kvtool::Bytes bytes) {
    archive.insert(archive.end(), bytes.begin(), bytes.end());
  });
  writer.Add(0, raw);
  writer.Finish();
  const kvtool::ReadAt read = [&](uint64_t offset, kvtool::MutableBytes to) {
    std::memcpy(to.data(), archive.data() + offset, to.size());
  };
  kvtool::Reader reader(context, archive.size(), read);
  CHECK(reader.Read(0, 8, 16, back) == 16 * 128);
  CHECK(std::equal(back.begin(), back.begin() + 16 * 128, raw.begin() + 8 * 128));
  context.UseProfile(nullptr);
  CHECK(context.TryVerify(with, {}) == KVT_E_PROFILE_MISSING);
  kvtool::Reader lost(context, archive.size(), read);
  CHECK_THROWS_AS(lost.Read(0, 8, 16, back), kvtool::Error);
  const auto nowhere = [](auto, auto) { return [](kvtool::Bytes) {}; };
  CHECK_THROWS_AS(kvtool::Unpack(context, archive.size(), read, nowhere), kvtool::Error);
  context.UseProfile(&profile);
  kvtool::Unpack(context, archive.size(), read, nowhere);
}

// Calls every function of a reader. Any status is allowed; only a crash is a failure.
void ReadAll(kvt_ctx* ctx, Memory& archive) {
  const kvt_source source = archive.Source();
  kvt_reader* reader = nullptr;
  uint64_t parts = 0;
  if (kvt_reader_open(ctx, &source, &reader, &parts) != 0) return;
  Buffer rows(1 << 20);
  for (uint64_t i = 0; i < parts; ++i) {
    kvt_desc desc = {};
    desc.struct_size = sizeof desc;
    kvt_part part = {sizeof part, 0, nullptr, 0, 0, nullptr};
    REQUIRE(kvt_reader_part(reader, i, &part, &desc) == 0);
    for (const uint64_t begin : {uint64_t{0}, desc.tokens / 2}) {
      const kvt_status status =
          kvt_reader_read(reader, i, begin, 1, rows.data(), rows.size(), nullptr);
      CHECK(status <= 0);
      CHECK(kvt_fault(status) != KVT_FAULT_INTERNAL);
    }
  }
  kvt_reader_free(reader);
}

TEST_CASE("Damage is a status, and what is left can be read") {
  const Context ctx;
  const Cache cache;
  const Buffer sound = Write(ctx, cache);
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    Memory archive{sound};
    // Most positions are in the structure: the first bytes, the index and the trailer.
    const size_t range = i % 3 == 0 ? 400 : i % 3 == 1 ? 1200 : sound.size();
    const size_t at = i % 3 == 1 ? sound.size() - 1 - random() % range : random() % range;
    archive.bytes[at] ^= static_cast<uint8_t>(1u << random() % 8);
    if (i % 10 == 9) archive.bytes.resize(random() % sound.size());
    ReadAll(ctx, archive);
  }
  // An archive that was cut before its index still yields all chunks but the one that was cut.
  Memory cut{sound};
  cut.bytes.resize(sound.size() - 2000);
  const kvt_source source = cut.Source();
  kvt_reader* reader = nullptr;
  uint64_t parts = 0;
  REQUIRE(kvt_reader_open(ctx, &source, &reader, &parts) == 0);
  CHECK(parts == 4);
  Buffer rows(cache.rows[0].size());
  CHECK(kvt_reader_read(reader, 0, 0, Cache::kTokens, rows.data(), rows.size(), nullptr) == 0);
  CHECK(rows == cache.rows[0]);
  CHECK(kvt_fault(kvt_reader_read(reader, 3, 0, Cache::kTokens, rows.data(), rows.size(),
                                  nullptr)) == KVT_FAULT_DATA);
  kvt_reader_free(reader);

  Memory text{Buffer(100, 'x')}, nothing;
  const kvt_source of_text = text.Source(), of_nothing = nothing.Source();
  CHECK(kvt_reader_open(ctx, &of_text, &reader, nullptr) == KVT_E_BAD_MAGIC);
  CHECK(kvt_fault(kvt_reader_open(ctx, &of_nothing, &reader, nullptr)) == KVT_FAULT_DATA);
  kvt_source endless = text.Source();
  endless.bytes = UINT64_MAX;
  CHECK(kvt_reader_open(ctx, &endless, &reader, nullptr) == KVT_E_NO_MEMORY);
  text.fail = -30002;
  CHECK(kvt_reader_open(ctx, &of_text, &reader, nullptr) == -30002);
  endless.struct_size = 8;
  CHECK(kvt_reader_open(ctx, &endless, &reader, nullptr) == KVT_E_BAD_ARGUMENT);
}

using Folder = std::map<std::string, Memory>;

kvt_status Unpack(kvt_ctx* ctx, Memory& archive, Folder& to) {
  const kvt_source source = archive.Source();
  return kvt_unpack(
      ctx, &source,
      [](void* user, const char* name, uint64_t, kvt_sink* sink) {
        *sink = (*static_cast<Folder*>(user))[name].Sink();
        return kvt_status{0};
      },
      &to);
}

TEST_CASE("Files are packed and come back byte for byte") {
  const Context ctx(nullptr, KVT_FAST);
  const Cache cache;
  Memory cache_archive{Write(ctx, cache)};
  Folder whole;
  REQUIRE(Unpack(ctx, cache_archive, whole) == 0);
  REQUIRE(whole.size() == 1);  // the archive below recognises this safetensors file
  const Buffer file = whole.begin()->second.bytes;

  for (const bool folder : {false, true}) {
    Memory tensors{file}, text{Buffer(3000, 'a')}, empty;
    const kvt_source a = tensors.Source(), b = text.Source(), c = empty.Source();
    const std::vector<kvt_file> files = {File("b/x.safetensors", &a), File("a.txt", &b),
                                         File("c", &c)};
    Memory packed;
    const kvt_sink sink = packed.Sink();
    REQUIRE(kvt_pack(ctx, files.data(), folder ? files.size() : 1, &sink) == 0);
    CHECK(packed.bytes.size() < file.size());
    Folder back;
    REQUIRE(Unpack(ctx, packed, back) == 0);
    CHECK(back.size() == (folder ? files.size() : 1));
    CHECK(back[folder ? "b/x.safetensors" : ""].bytes == file);
    if (folder) CHECK(back["a.txt"].bytes == text.bytes);
    const kvt_source source = packed.Source();
    kvt_reader* reader = nullptr;
    uint64_t parts = 0;
    REQUIRE(kvt_reader_open(ctx, &source, &reader, &parts) == 0);
    if (!folder) CHECK(parts == 4);
    kvt_reader_free(reader);

    packed.bytes[packed.bytes.size() / 2] ^= 1;
    CHECK(kvt_fault(Unpack(ctx, packed, back)) == KVT_FAULT_DATA);
    const std::vector<kvt_file> escaping = {File("../x", &a)},
                                twice = {File("a", &a), File("a", &b)},
                                nameless = {File(nullptr, &a)};
    CHECK(kvt_pack(ctx, escaping.data(), 1, &sink) == KVT_E_BAD_ARGUMENT);
    CHECK(kvt_pack(ctx, twice.data(), 2, &sink) == KVT_E_BAD_ARGUMENT);
    CHECK(kvt_pack(ctx, nameless.data(), 1, &sink) == KVT_E_BAD_ARGUMENT);
    CHECK(kvt_pack(ctx, files.data(), 0, &sink) == KVT_E_BAD_ARGUMENT);
  }
}

// Called by archive_program.py: reads an archive of the program and writes one for it.
TEST_CASE("archive program", "[.]") {
  const char* folder = std::getenv("KVTOOL_TEST_FOLDER");
  REQUIRE(folder != nullptr);
  const auto read = [&](const char* name) {
    std::ifstream in(std::string(folder) + "/" + name, std::ios::binary);
    return Buffer(std::istreambuf_iterator<char>(in), {});
  };
  const Context ctx;
  const Cache cache;
  const Buffer archive = Write(ctx, cache);
  std::ofstream(std::string(folder) + "/library.kvz", std::ios::binary)
      .write(reinterpret_cast<const char*>(archive.data()),
             static_cast<std::streamsize>(archive.size()));

  Memory programs{read("program.kvz")};
  const kvt_source source = programs.Source();
  kvt_reader* reader = nullptr;
  uint64_t parts = 0;
  REQUIRE(kvt_reader_open(ctx, &source, &reader, &parts) == 0);
  REQUIRE(parts > 0);
  std::ofstream out(std::string(folder) + "/parts.bin", std::ios::binary);
  for (uint64_t i = 0; i < parts; ++i) {
    kvt_desc desc = {};
    desc.struct_size = sizeof desc;
    kvt_part part = {sizeof part, 0, nullptr, 0, 0, nullptr};
    REQUIRE(kvt_reader_part(reader, i, &part, &desc) == 0);
    Buffer rows(part.raw_bytes);
    REQUIRE(kvt_reader_read(reader, i, 0, desc.tokens, rows.data(), rows.size(), nullptr) == 0);
    out.write(reinterpret_cast<const char*>(rows.data()),
              static_cast<std::streamsize>(rows.size()));
  }
  kvt_reader_free(reader);
  Folder back;
  REQUIRE(Unpack(ctx, programs, back) == 0);
  CHECK(back.begin()->second.bytes == read("source.bin"));
}

}  // namespace
