// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/npy/npy.h"

#include <catch2/catch.hpp>

#include "formats/tensors/kvtool_arrays.h"
#include "formats/zip/zip.h"
#include "tests/support/temp_dir.h"

namespace kv::npy_test {
namespace {

Source InMemory(Bytes bytes) {
  return {.path = "a",
          .is_folder = false,
          .files = {{"a", FileSource::FromBytes(std::move(bytes), "a")}}};
}

Bytes Npy(const std::string& header, ByteSpan values, uint8_t major = 1) {
  ByteWriter out;
  out.Append(kNpyMagic);
  out.U8(major);
  out.U8(0);
  if (major == 1) {
    out.Write(static_cast<uint16_t>(header.size()));
  } else {
    out.U32(static_cast<uint32_t>(header.size()));
  }
  out.Append(header);
  out.Append(values);
  return out.Release();
}

Bytes Counting(size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

Finding Refusal(const std::string& header, size_t bytes = 64, OpenOptions options = {},
                uint8_t major = 1) {
  try {
    ReadNpy(InMemory(Npy(header, Counting(bytes), major)), options);
  } catch (const Error& error) {
    return error.finding();
  }
  return Finding{0};
}

TensorView Only(const TensorFile& file) {
  REQUIRE(file.tensors.size() == 1);
  return file.tensors[0].view;
}

TEST_CASE("npy headers of every version and spelling say the same") {
  for (const std::string header :
       {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n",
        "{\"shape\":(2,3),\"descr\":\"<f4\",\"fortran_order\":False}\n",
        "{'fortran_order': False, 'shape': (2L, 3L,), 'descr': '=f4'}\n"}) {
    for (const uint8_t major : {1, 2, 3}) {
      const NpyHeader parsed = ParseNpyHeader(Npy(header, {}, major));
      CHECK(parsed.shape == std::vector<uint64_t>{2, 3});
      CHECK_FALSE(parsed.fortran_order);
      CHECK(ParseNpyType(parsed.descr).dtype == DType::kF32);
      CHECK(parsed.data_offset == (major == 1 ? 10 : 12) + header.size());
    }
  }
  CHECK(ParseNpyHeader(Npy("{'descr': '|u1', 'fortran_order': True, 'shape': (5,)}\n", {})).shape ==
        std::vector<uint64_t>{5});
  CHECK(ParseNpyHeader(Npy("{'descr': '|u1', 'fortran_order': True, 'shape': ()}\n", {}))
            .shape.empty());
}

TEST_CASE("npy headers that are no such dict are refused") {
  const auto shaped = [](const std::string& shape) {
    return Refusal("{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + "}\n");
  };
  CHECK(shaped("(2, 3)") == Finding{0});
  for (const std::string shape :
       {"(2, -3)", "(2)", "[2, 3]", "(2, 3", "2", "(2.0,)", "(2, 3) + (1,)", "(,)", "(1,,2)",
        "((2,),)", "('2',)", "(True,)"}) {
    INFO(shape);
    CHECK(shaped(shape) == Finding::kBadHeader);
  }
  CHECK(shaped("(18446744073709551616,)") == Finding::kOverflow);
  CHECK(shaped("(4294967296, 4294967296, 4)") == Finding::kOverflow);
  CHECK(shaped("(4611686018427387904,)") == Finding::kOverflow);
  CHECK(shaped("(17,)") == Finding::kSizeMismatch);
  std::string tuple = "(";
  for (int i = 0; i < 65; ++i) tuple += "1,";
  CHECK(shaped(tuple + ")") == Finding::kBadHeader);

  CHECK(Refusal("{'descr': '<f4', 'fortran_order': False}\n") == Finding::kBadHeader);
  CHECK(Refusal("{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}\n") == Finding::kBadHeader);
  CHECK(Refusal("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}\n") ==
        Finding::kBadHeader);
  CHECK(Refusal("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}\n") ==
        Finding::kBadHeader);
  CHECK(Refusal("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x\n") ==
        Finding::kBadHeader);
  CHECK(Refusal("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}") == Finding::kBadHeader);
  CHECK(Refusal("{'descr': '<\\x664', 'fortran_order': False, 'shape': (2,)}\n") ==
        Finding::kBadHeader);
  CHECK(Refusal("") == Finding::kBadHeader);
  CHECK(Refusal("{}\n", 64, {}, 4) == Finding::kBadVersion);
  CHECK(Refusal(std::string(70000, ' ') + "\n", 0, {}, 2) == Finding::kLimit);
}

TEST_CASE("npy types are numbers of known meaning or refused by kind") {
  const auto typed = [](const std::string& descr, OpenOptions options = {}) {
    return Refusal("{'descr': " + descr + ", 'fortran_order': False, 'shape': (2,)}\n", 64,
                   options);
  };
  for (const char* good : {"'<f2'", "'<f8'", "'|b1'", "'|i1'", "'>u4'", "'=i8'", "'<u1'"})
    CHECK(typed(good) == Finding{0});
  CHECK(typed("'|O'") == Finding::kUnsupportedKind);
  CHECK(typed("[('a', '<f4')]") == Finding::kUnsupportedDtype);
  for (const char* known : {"'<U5'", "'|S3'", "'<c8'", "'<M8[ns]'", "'|V16'", "'<f16'", "'|V2'"})
    CHECK(typed(known) == Finding::kUnsupportedDtype);
  for (const char* unknown : {"'<f3'", "'f4'", "'|f4'", "'<x4'", "''", "'<'"})
    CHECK(typed(unknown) == Finding::kUnknownDtype);
  OpenOptions as;
  as.as_dtype = "bf16";
  CHECK(typed("'|V2'", as) == Finding{0});
  CHECK(typed("'<V2'", as) == Finding{0});
  CHECK(typed("'|V1'", as) == Finding::kUnsupportedDtype);
  as.as_dtype = "f8_e4m3";
  CHECK(typed("'|V1'", as) == Finding{0});
  as.as_dtype = "q8_0";
  CHECK(typed("'|V1'", as) == Finding::kUsage);
}

TEST_CASE("Fortran order is a matter of strides") {
  const TensorFile file = ReadNpy(
      InMemory(Npy("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3)}\n", Counting(6))), {});
  const TensorView view = Only(file);
  CHECK(view.strides == std::vector<uint64_t>{1, 2});
  CHECK(CopyContiguous(view) ==
        Bytes{std::byte{0}, std::byte{2}, std::byte{4}, std::byte{1}, std::byte{3}, std::byte{5}});
}

TEST_CASE("big-endian values are swapped into a spool within the limit") {
  const std::string head = "', 'fortran_order': True, 'shape': (2, 2)}\n";
  for (const auto& [descr, width] : {std::pair(">i2", 2), {">u4", 4}, {">f8", 8}}) {
    const Bytes values = Counting(static_cast<size_t>(4 * width));
    const TensorFile file =
        ReadNpy(InMemory(Npy(std::string("{'descr': '") + descr + head, values)), {});
    Bytes swapped = CopyContiguous(Only(file));
    REQUIRE(swapped.size() == values.size());
    // In Fortran order, element (0, 1) is the third in the file.
    for (size_t i = 0; i < static_cast<size_t>(width); ++i)
      CHECK(swapped[width + i] == values[3 * static_cast<size_t>(width) - 1 - i]);
  }
  OpenOptions options;
  options.max_bytes = 15;
  CHECK(Refusal("{'descr': '>f4" + head, 16, options) == Finding::kLimit);
}

TEST_CASE("trailing bytes of an npy file are noted") {
  const TensorFile file = ReadNpy(
      InMemory(Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2,)}\n", Counting(6))), {});
  REQUIRE(file.notes.size() == 1);
  CHECK(file.notes[0] == "4 bytes follow the values");
}

TEST_CASE("npy headers written are read, with aligned values") {
  for (const std::vector<uint64_t>& shape :
       {std::vector<uint64_t>{}, {7}, {2, 3}, {1, 0, 9}, std::vector<uint64_t>(32, 1)}) {
    for (const DTypeInfo& info : AllDTypes()) {
      if (info.block_elements > 1) continue;
      const Bytes header = MakeNpyHeader(info.dtype, shape);
      CHECK(header.size() % 64 == 0);
      const NpyHeader parsed = ParseNpyHeader(header);
      CHECK(parsed.shape == shape);
      CHECK(parsed.data_offset == header.size());
      const NpyType type = ParseNpyType(parsed.descr);
      CHECK(Info(type.dtype).block_bytes == info.block_bytes);
      CHECK((type.raw || type.dtype == info.dtype));
    }
  }
}

Bytes NpzOf(const std::vector<std::pair<std::string, Bytes>>& members) {
  const test::TempDir folder;
  AtomicFile file(folder / "a.npz", Overwrite::kRefuse);
  ZipWriter zip(file);
  for (const auto& [name, bytes] : members) zip.Add(name, bytes);
  zip.Finish();
  file.Commit();
  const auto source = FileSource::Open(folder / "a.npz");
  return {source->bytes().begin(), source->bytes().end()};
}

TEST_CASE("an npz gives its arrays, names what it leaves out, and refuses pickled ones") {
  const Bytes numbers =
      Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (3,)}\n", Counting(3));
  const Bytes text = Npy("{'descr': '<U2', 'fortran_order': False, 'shape': ()}\n", Counting(8));
  const TensorFile file = ReadNpz(
      InMemory(NpzOf({{"a.npy", numbers}, {"model.npy", text}, {"notes.txt", Counting(3)}})), {});
  CHECK(Only(file).shape == std::vector<uint64_t>{3});
  CHECK(file.tensors[0].name == "a");
  CHECK(file.notes.size() == 2);
  CHECK(file.checks.size() == 1);
  for (const auto& check : file.checks) CHECK_NOTHROW(check());

  const Bytes object = Npy("{'descr': '|O', 'fortran_order': False, 'shape': ()}\n", Counting(8));
  CHECK_THROWS_AS(ReadNpz(InMemory(NpzOf({{"a.npy", numbers}, {"o.npy", object}})), {}), Error);
}

TEST_CASE("damage in a stored member shows when content is checked, not at open") {
  const Bytes numbers =
      Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (3,)}\n", Counting(3));
  Bytes bytes = NpzOf({{"a.npy", numbers}});
  bytes[64 + numbers.size() - 1] ^= std::byte{4};
  const TensorFile file = ReadNpz(InMemory(bytes), {});
  REQUIRE(file.checks.size() == 1);
  CHECK_THROWS_AS(file.checks[0](), Error);
}

}  // namespace
}  // namespace kv::npy_test
