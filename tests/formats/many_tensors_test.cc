// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Measures the cost of reading files with very many tensors, in allocations rather than seconds:
// allocations are most of the work of reading a header, and their number is the same on every
// machine.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>

#include "formats/npy/npy.h"
#include "formats/registry.h"
#include "formats/zip/zip.h"
#include "tests/support/temp_dir.h"

namespace {

std::atomic<uint64_t> allocations{0};

}  // namespace

void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace kv::many_tensors_test {
namespace {

// Makes `tensors` arrays of one f16 value each, alternately K and V, named by `name`.
Source ManyTensors(size_t tensors, std::string (*name)(size_t)) {
  std::string header = "{";
  for (size_t i = 0; i < tensors; ++i) {
    header += (i == 0 ? "\"" : ",\"") + name(i) + "\":{\"dtype\":\"F16\",\"shape\":[1,1,1]," +
              "\"data_offsets\":[" + std::to_string(2 * i) + "," + std::to_string(2 * i + 2) + "]}";
  }
  header += "}";
  ByteWriter out;
  out.U64(header.size());
  out.Append(header);
  out.Pad(2 * tensors);
  Source source;
  source.path = "many.safetensors";
  source.files.push_back({source.path, FileSource::FromBytes(out.Release(), source.path)});
  return source;
}

std::string ShortName(size_t i) { return (i % 2 == 0 ? "k_" : "v_") + std::to_string(i / 2); }
std::string LongName(size_t i) {
  return "model.layers." + std::to_string(i / 2) + ".self_attn." + (i % 2 == 0 ? "k" : "v");
}

// Makes the same arrays as members of an npz file, uncompressed.
Source ManyMembers(size_t tensors, std::string (*name)(size_t)) {
  Bytes npy = MakeNpyHeader(DType::kF16, {1, 1, 1});
  npy.resize(npy.size() + 2);
  const test::TempDir folder;
  AtomicFile file(folder / "many.npz", Overwrite::kRefuse);
  ZipWriter zip(file);
  for (size_t i = 0; i < tensors; ++i) zip.Add(name(i) + ".npy", npy);
  zip.Finish();
  file.Commit();
  return Source::Open((folder / "many.npz").string());
}

void Text(ByteWriter& out, std::string_view text) {
  out.U8('X');
  out.U32(static_cast<uint32_t>(text.size()));
  out.Append(text);
}

// Writes one value at the memo's position, as torch writes what many tensors share.
void Shared(ByteWriter& out, uint8_t place) {
  out.U8('h');
  out.U8(place);
}

// Returns torch.save's dict of tensors. In the zip form each has a storage of its own; a plain
// pickle has none, so they share one inside it.
Bytes ManyRebuilt(size_t tensors, std::string (*name)(size_t), bool plain) {
  ByteWriter out;
  out.Append("\x80\x02");
  out.Append("ctorch._utils\n_rebuild_tensor_v2\nq");
  out.U8(0);
  out.Append("0ctorch\nHalfStorage\nq\x01");
  out.Append("0ccollections\nOrderedDict\nq\x02");
  out.U8('0');
  if (plain) {
    ByteWriter storage;
    storage.Append("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.");
    storage.Append("\x80\x02}U\x0dlittle_endian\x88s.\x80\x02(U\x07storagectorch\nHalfStorage\n");
    storage.Append(
        "U\x01"
        "0U\x03"
        "cpuK\x01NtQ.\x80\x02]U\x01"
        "0a.");
    storage.U64(1);
    storage.Pad(2);
    out.Append("ctorch.storage\n_load_from_bytes\nB");
    out.U32(static_cast<uint32_t>(storage.size()));
    out.Append(storage.bytes());
    out.Append("\x85Rq\x03");
    out.U8('0');
  }
  out.Append("}(");
  for (size_t i = 0; i < tensors; ++i) {
    Text(out, name(i));
    Shared(out, 0);
    out.U8('(');
    if (plain) {
      Shared(out, 3);
    } else {
      out.U8('(');
      Text(out, "storage");
      Shared(out, 1);
      Text(out, std::to_string(i));
      Text(out, "cpu");
      out.Append("K\x01tQ");
    }
    out.U8('K');
    out.U8(0);
    out.Append("K\x01K\x01K\x01\x87K\x01K\x01K\x01\x87\x89");
    Shared(out, 2);
    out.Append(")RtR");
  }
  out.Append("u.");
  return out.Release();
}

Source ManyPickled(size_t tensors, std::string (*name)(size_t)) {
  Source source;
  source.path = "many.pkl";
  source.files.push_back(
      {source.path, FileSource::FromBytes(ManyRebuilt(tensors, name, true), source.path)});
  return source;
}

Source ManyStorages(size_t tensors, std::string (*name)(size_t)) {
  const test::TempDir folder;
  AtomicFile file(folder / "many.pt", Overwrite::kRefuse);
  ZipWriter zip(file);
  zip.Add("a/data.pkl", ManyRebuilt(tensors, name, false));
  for (size_t i = 0; i < tensors; ++i) zip.Add("a/data/" + std::to_string(i), Bytes(2));
  zip.Finish();
  file.Commit();
  return Source::Open((folder / "many.pt").string());
}

uint64_t CostOf(Source (*make)(size_t, std::string (*)(size_t)), size_t tensors,
                std::string (*name)(size_t)) {
  const Source source = make(tensors, name);
  OpenOptions options;
  options.metadata_only = true;
  options.layout = "thd";  // values of size 1 do not show their order
  const uint64_t before = allocations.load();
  const Snapshot snapshot = OpenSnapshot(source, options);
  const uint64_t cost = allocations.load() - before;
  CHECK(snapshot.layers.size() == tensors / 2);
  return cost;
}

void CheckFew(Source (*make)(size_t, std::string (*)(size_t)), uint64_t few) {
  for (const auto name : {ShortName, LongName}) {
    const uint64_t ten = CostOf(make, 10'000, name), forty = CostOf(make, 40'000, name);
    CAPTURE(ten, forty);
    CHECK(ten < few * 10'000);
    CHECK(forty < few * 40'000);
    CHECK(forty < 5 * ten);  // the cost grows linearly with the tensors
  }
}

TEST_CASE("every tensor of a file costs a few allocations, however many there are", "[figures]") {
  // Each tensor allocates its shape, its strides, their places in the tables, and what a layer
  // needs of both; a name too long for its string's own buffer adds one per copy.
  CheckFew(ManyTensors, 12);
  CheckFew(ManyMembers, 12);
  // The fifteen values of its pickle and the record of its storage need no further allocations.
  CheckFew(ManyPickled, 12);
  CheckFew(ManyStorages, 12);
}

}  // namespace
}  // namespace kv::many_tensors_test
