// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// What a file with very many tensors costs, in allocations rather than seconds: they are most of
// the work of reading a header, and their number is the same on every machine.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <new>

#include "formats/npy/npy_header.h"
#include "formats/registry.h"
#include "formats/zip/zip_writer.h"
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

// `tensors` arrays of one f16 value each, K and V in turn, names as `name` has them.
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

// The same as members of an npz file, stored.
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

uint64_t CostOf(Source (*make)(size_t, std::string (*)(size_t)), size_t tensors,
                std::string (*name)(size_t)) {
  const Source source = make(tensors, name);
  OpenOptions options;
  options.metadata_only = true;
  options.layout = "thd";  // single values, which tell no order
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
    CHECK(forty < 5 * ten);  // and grows as they do
  }
}

TEST_CASE("every tensor of a file costs a few allocations, however many there are") {
  // Its own shape and strides and their places in the tables, and what a layer needs of both; a
  // name too long to lie in its string costs one more each time that it is kept.
  CheckFew(ManyTensors, 12);
  CheckFew(ManyMembers, 12);
}

}  // namespace
}  // namespace kv::many_tensors_test
