// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// numpy arrays inside pickles, as numpy of both core names and all protocols writes them.
#include <catch2/catch.hpp>
#include <cstring>

#include "formats/torch/torch.h"
#include "tests/support/pickle_builder.h"
#include "tests/support/refusal.h"

namespace kv::torch_numpy_test {
namespace {

using test::Cat;
using test::PickleInts;
using test::PickleStorage;
using test::PickleTensor;
using test::PickleText;
using test::RawBytes;
using test::TorchArchive;
using std::string_literals::operator""s;

std::string PickleBytes(std::string_view bytes) {
  const auto size = static_cast<uint32_t>(bytes.size());
  return Cat({"B", {reinterpret_cast<const char*>(&size), 4}, bytes});
}

std::string NumpyType(std::string_view code, std::string_view order) {
  return Cat({"cnumpy\ndtype\n(", PickleText(code), "\x89\x88tR(K\x03", PickleText(order),
              "NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"s});
}

std::string NumpyArray(const std::vector<int64_t>& shape, std::string_view type,
                       std::string_view values, bool fortran = false,
                       std::string_view core = "numpy.core") {
  return Cat({"c", core, ".multiarray\n_reconstruct\n(cnumpy\nndarray\nK\0\x85"s, PickleBytes("b"),
              "tR(K\x01", PickleInts(shape), type, fortran ? "\x88" : "\x89", values, "tb"});
}

TensorFile ReadPickle(const std::string& root, uint64_t max_bytes = kTorchMaxBytes) {
  const std::string stream = Cat({"\x80\x04", root, "."});
  Source source;
  const ByteSpan bytes = AsBytes(stream);
  source.files.push_back({"made", FileSource::FromBytes({bytes.begin(), bytes.end()}, "made")});
  return ReadTorch(std::move(source), max_bytes);
}

Finding Refusal(const std::string& root, uint64_t max_bytes = kTorchMaxBytes) {
  return test::FindingOf([&] { ReadPickle(root, max_bytes); });
}

template <typename T>
std::vector<T> ValuesOf(const TensorFile& file, size_t place = 0) {
  const Bytes bytes = CopyContiguous(file.tensors.at(place).view);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

const std::string kSix = RawBytes<float>({0, 1, 2, 3, 4, 5});

}  // namespace

TEST_CASE("arrays in a pickle are views of it, in either order of axes") {
  for (const char* core : {"numpy.core", "numpy._core"}) {
    const TensorFile file = ReadPickle(Cat(
        {"}(", PickleText("k"),
         NumpyArray({2, 3}, NumpyType("f4", "<"), PickleBytes(kSix), false, core), PickleText("v"),
         NumpyArray({2, 3}, NumpyType("f4", "<"), PickleBytes(kSix), true, core), "u"}));
    REQUIRE(file.tensors.size() == 2);
    CHECK(file.tensors[0].name == "k");
    CHECK(file.tensors[0].view.dtype == DType::kF32);
    CHECK(file.tensors[1].view.shape == std::vector<uint64_t>{2, 3});
    CHECK(ValuesOf<float>(file) == std::vector<float>{0, 1, 2, 3, 4, 5});
    CHECK(ValuesOf<float>(file, 1) == std::vector<float>{0, 2, 4, 1, 3, 5});
    for (const NamedTensor& tensor : file.tensors) {
      CHECK(file.source.FindFile(tensor.view.data) != nullptr);
    }
    CHECK(file.opaque.empty());
  }
}

TEST_CASE("arrays of other hosts, of Python 2's bytes and of protocol 5 have the same values") {
  const TensorFile swapped =
      ReadPickle(NumpyArray({3}, NumpyType("i2", ">"), PickleBytes("\0\1\0\2\xff\xff"s)));
  CHECK(ValuesOf<int16_t>(swapped) == std::vector<int16_t>{1, 2, -1});
  // Protocol 2 writes bytes as text with the same code points.
  const std::string encoded =
      Cat({"c_codecs\nencode\n", PickleText("a\xc3\xbf"), PickleText("latin1"), "\x86R"});
  const TensorFile latin = ReadPickle(NumpyArray({2}, NumpyType("u1", "|"), encoded));
  CHECK(ValuesOf<uint8_t>(latin) == std::vector<uint8_t>{0x61, 0xff});
  // A str of Python 2: the first is not valid as text, the second is so by chance.
  const TensorFile old = ReadPickle(NumpyArray({2}, NumpyType("u1", "|"), "U\x02\xff\xfe"));
  CHECK(ValuesOf<uint8_t>(old) == std::vector<uint8_t>{0xff, 0xfe});
  const TensorFile ascii = ReadPickle(NumpyArray({2}, NumpyType("u1", "|"),
                                                 "U\x02"
                                                 "ab"));
  CHECK(ValuesOf<uint8_t>(ascii) == std::vector<uint8_t>{0x61, 0x62});
  const TensorFile fifth =
      ReadPickle(Cat({"cnumpy.core.numeric\n_frombuffer\n(", PickleBytes(kSix),
                      NumpyType("f4", "<"), PickleInts({3, 2}), PickleText("F"), "tR"}));
  CHECK(ValuesOf<float>(fifth) == std::vector<float>{0, 3, 1, 4, 2, 5});
  const std::string brain = Cat({"cnumpy\ndtype\n(cml_dtypes\nbfloat16\n\x89\x88tR"});
  const TensorFile half = ReadPickle(NumpyArray({2}, brain, PickleBytes("\x80\x3f\x00\x40"s)));
  CHECK(half.tensors.at(0).view.dtype == DType::kBF16);
}

TEST_CASE("an array that appears often is copied once") {
  const std::string array = NumpyArray({3}, NumpyType("f8", ">"), PickleBytes(std::string(24, 1)));
  const TensorFile file = ReadPickle(Cat({"](", array, "q\0h\0h\0e"s}));
  REQUIRE(file.tensors.size() == 3);
  CHECK(file.tensors[0].view.data == file.tensors[2].view.data);
  CHECK(file.spools.size() == 1);
}

TEST_CASE("arrays stand beside tensors in torch files") {
  TorchArchive archive;
  archive.Add("a/data.pkl",
              Cat({"\x80\x02}(", PickleText("a"),
                   NumpyArray({6}, NumpyType("f4", "<"), PickleBytes(kSix)), PickleText("t"),
                   PickleTensor(PickleStorage("FloatStorage", "0", 6), 0, {6}, {1}), "u."}));
  archive.Add("a/data/0", kSix);
  const TensorFile file = ReadTorch(archive.Open());
  REQUIRE(file.tensors.size() == 2);
  CHECK(ValuesOf<float>(file, 0) == ValuesOf<float>(file, 1));
}

TEST_CASE("an array has as many bytes as its shape says") {
  const std::string type = NumpyType("f4", "<");
  CHECK(Refusal(NumpyArray({7}, type, PickleBytes(kSix))) == Finding::kSizeMismatch);
  CHECK(Refusal(NumpyArray({5}, type, PickleBytes(kSix))) == Finding::kSizeMismatch);
  CHECK(Refusal(NumpyArray({-6}, type, PickleBytes(kSix))) == Finding::kBadOffsets);
  CHECK(Refusal(NumpyArray({INT64_MAX, 8}, type, PickleBytes(kSix))) == Finding::kOverflow);
  CHECK(Refusal(NumpyArray({6}, type, PickleBytes(kSix)), 23) == Finding::kLimit);
  CHECK(Refusal(NumpyArray({6}, NumpyType("f4", "!"), PickleBytes(kSix))) ==
        Finding::kUnknownDtype);
  CHECK(Refusal(NumpyArray({6}, NumpyType("q4", "<"), PickleBytes(kSix))) ==
        Finding::kUnknownDtype);
  CHECK(ReadPickle(NumpyArray({0, INT64_MAX}, type, PickleBytes(""))).tensors.size() == 1);
}

TEST_CASE("arrays of other things are left out, and refused where they are all there is") {
  const std::string objects = NumpyArray({1}, NumpyType("O8", "|"),
                                         "]K\x07"
                                         "a");
  const std::string words = NumpyArray({1}, NumpyType("U1", "<"), PickleBytes("a\0\0\0"s));
  const std::string complex = NumpyArray({1}, NumpyType("c8", "<"), PickleBytes("12345678"));
  const std::string bits = NumpyArray({1}, NumpyType("V2", "|"), PickleBytes("12"));
  const std::string good = NumpyArray({6}, NumpyType("f4", "<"), PickleBytes(kSix));
  for (const std::string& array : {objects, words, complex, bits}) {
    CHECK(Refusal(array) == Finding::kUnsupportedKind);
    const TensorFile file = ReadPickle(Cat({"](", array, good, "e"}));
    CHECK(file.tensors.size() == 1);
    REQUIRE(file.opaque.size() == 1);
    CHECK(file.opaque[0].is_tensor);
  }
}

TEST_CASE("a torch file of unread tensors only is refused, one of no tensors is not") {
  const auto finding = [](std::string_view tensor) {
    TorchArchive archive;
    archive.Add("a/data.pkl", Cat({"\x80\x02", tensor, "."})).Add("a/data/0", kSix);
    try {
      ReadTorch(archive.Open());
    } catch (const Error& error) {
      return error.finding();
    }
    return Finding{0};
  };
  CHECK(finding(PickleTensor(PickleStorage("ComplexFloatStorage", "0", 3), 0, {3}, {1})) ==
        Finding::kUnsupportedKind);
  CHECK(finding(PickleTensor(PickleStorage("EvilStorage", "0", 6), 0, {6}, {1})) ==
        Finding::kUnknownDtype);
  const std::string untyped = Cat({"(", PickleText("storage"), "ctorch.storage\nUntypedStorage\n",
                                   PickleText("0"), PickleText("cpu"), "K\x18tQ"});
  const auto third = [&](std::string_view type) {
    return Cat({"ctorch._utils\n_rebuild_tensor_v3\n(", untyped, "K\0"s, PickleInts({6}),
                PickleInts({1}), "\x89}", type, "tR"});
  };
  CHECK(finding(third("ctorch\nfloat5\n")) == Finding::kUnknownDtype);
  CHECK(finding(third("K\x01")) == Finding::kBadPickle);
  CHECK(finding(third("ctorch\ncomplex64\n")) == Finding::kUnsupportedKind);
  CHECK(finding(third("ctorch\nint32\n")) == Finding{0});
  CHECK(finding(Cat({"}(", PickleText("epoch"), "K\x07u"})) == Finding{0});
}

}  // namespace kv::torch_numpy_test
