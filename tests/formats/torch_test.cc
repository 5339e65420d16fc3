// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/torch/torch.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "formats/registry.h"
#include "lib/core/snapshot/layout.h"
#include "tests/support/pickle_builder.h"
#include "tests/support/refusal.h"
#include "tests/support/sample_weights.h"
#include "tests/support/tensor_to_write.h"

namespace kv::torch_test {
namespace {

using test::Cat;
using test::PickleInt;
using test::PickleInts;
using test::PickleStorage;
using test::PickleTensor;
using test::PickleText;
using test::RawBytes;
using test::TorchArchive;
using std::string_literals::operator""s;

// Reads an archive whose root is one tensor over storage 0 of six floats.
TensorFile ReadTensor(const std::string& tensor, uint64_t max_bytes = kTorchMaxBytes) {
  TorchArchive archive;
  archive.Add("a/data.pkl", Cat({"\x80\x02", tensor, "."}))
      .Add("a/data/0", RawBytes<float>({0, 1, 2, 3, 4, 5}));
  return ReadTorch(archive.Open(), max_bytes);
}

Finding Refusal(const std::string& tensor, uint64_t max_bytes = kTorchMaxBytes) {
  return test::FindingOf([&] { ReadTensor(tensor, max_bytes); });
}

const std::string kSix = PickleStorage("FloatStorage", "0", 6);

}  // namespace

TEST_CASE("a tensor is a view of the mapped file, however it strides") {
  const TensorFile file = ReadTensor(PickleTensor(kSix, 1, {2, 2}, {1, 3}));
  REQUIRE(file.tensors.size() == 1);
  const TensorView& view = file.tensors[0].view;
  CHECK(file.tensors[0].name.empty());
  CHECK(view.strides == std::vector<uint64_t>{4, 12});
  CHECK(file.source.files.front().data->Contains(view.data));
  const float expected[] = {1, 4, 2, 5};
  CHECK(std::memcmp(CopyContiguous(view).data(), expected, sizeof(expected)) == 0);
}

TEST_CASE("a tensor may not leave its storage, whatever its numbers") {
  CHECK(Refusal(PickleTensor(kSix, 0, {7}, {1})) == Finding::kBadOffsets);
  CHECK(Refusal(PickleTensor(kSix, 6, {1}, {1})) == Finding::kBadOffsets);
  CHECK(Refusal(PickleTensor(kSix, 6, {}, {})) == Finding::kBadOffsets);
  CHECK(Refusal(PickleTensor(kSix, -1, {1}, {1})) == Finding::kBadOffsets);
  CHECK(Refusal(PickleTensor(kSix, 0, {-1}, {1})) == Finding::kBadOffsets);
  CHECK(Refusal(PickleTensor(kSix, 0, {2}, {-1})) == Finding::kBadOffsets);
  CHECK(Refusal(PickleTensor(kSix, INT64_MAX, {2}, {INT64_MAX})) == Finding::kBadOffsets);
  CHECK(Refusal(PickleTensor(kSix, 0, {3}, {INT64_MAX})) == Finding::kBadOffsets);
  CHECK(Refusal(PickleTensor(kSix, 0, {2, 2}, {1})) == Finding::kBadField);
  CHECK(Refusal(PickleTensor(kSix, 0, {INT64_MAX, INT64_MAX}, {0, 0})) == Finding::kLimit);
  CHECK(Refusal(PickleTensor(kSix, 0, {1 << 20}, {0}), 1 << 20) == Finding::kLimit);
  const std::string wide = "\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff"s + "\x01";
  CHECK(Refusal(Cat({"ctorch._utils\n_rebuild_tensor\n(", kSix, "K"s, "\0"s, "(", wide,
                     "t(K\x01ttR"})) == Finding::kLimit);
  CHECK(ReadTensor(PickleTensor(kSix, 0, {1 << 10}, {0}), 1 << 20).tensors.size() == 1);
}

TEST_CASE("an empty tensor and an axis of one ignore their strides") {
  const TensorFile empty = ReadTensor(PickleTensor(kSix, 0, {0, 5}, {INT64_MAX, 1}));
  CHECK(empty.tensors[0].view.elements() == 0);
  CHECK(CopyContiguous(empty.tensors[0].view).empty());
  const TensorFile single = ReadTensor(PickleTensor(kSix, 5, {1}, {INT64_MAX}));
  CHECK(CopyContiguous(single.tensors[0].view).size() == 4);
}

TEST_CASE("storages must be there and as long as they say") {
  CHECK(Refusal(PickleTensor(PickleStorage("FloatStorage", "1", 6), 0, {1}, {1})) ==
        Finding::kMissingRecord);
  CHECK(Refusal(PickleTensor(PickleStorage("FloatStorage", "0", 7), 0, {1}, {1})) ==
        Finding::kSizeMismatch);
  CHECK(Refusal(PickleTensor(PickleStorage("FloatStorage", "0", -1), 0, {1}, {1})) ==
        Finding::kBadField);
  CHECK(Refusal(PickleTensor(PickleStorage("DoubleStorage", "0", INT64_MAX), 0, {1}, {1})) ==
        Finding::kOverflow);
  CHECK(Refusal(PickleTensor(PickleStorage("FloatStorage", "../0", 6), 0, {1}, {1})) ==
        Finding::kBadName);
  const TensorFile shorter =
      ReadTensor(PickleTensor(PickleStorage("FloatStorage", "0", 5), 0, {5}, {1}));
  CHECK(shorter.notes.size() == 1);
}

TEST_CASE("parameters, subclasses and version 3 tensors are tensors") {
  const std::string tensor = PickleTensor(kSix, 0, {6}, {1});
  const std::string parameter = Cat(
      {"ctorch._utils\n_rebuild_parameter\n(", tensor, "\x88", "ccollections\nOrderedDict\n)RtR"});
  CHECK(ReadTensor(parameter).tensors.size() == 1);
  const std::string subclass = Cat(
      {"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\n",
       "cmine\nTensor\n(", kSix, PickleInt(0), PickleInts({6}), PickleInts({1}), "\x89", "}t}tR"});
  CHECK(ReadTensor(subclass).tensors.size() == 1);
  const std::string untyped = Cat({"(", PickleText("storage"), "ctorch.storage\nUntypedStorage\n",
                                   PickleText("0"), PickleText("cuda:0"), PickleInt(24), "tQ"});
  const TensorFile third =
      ReadTensor(Cat({"ctorch._utils\n_rebuild_tensor_v3\n(", untyped, PickleInt(2),
                      PickleInts({4}), PickleInts({1}), "\x89", "}ctorch\nuint16\ntR"}));
  CHECK(third.tensors[0].view.dtype == DType::kU16);
}

TEST_CASE("what has no dtype here or is no data is left alone and listed") {
  TorchArchive archive;
  archive.Add("a/data.pkl",
              Cat({"\x80\x02}(", PickleText("c"),
                   PickleTensor(PickleStorage("ComplexFloatStorage", "0", 3), 0, {3}, {1}),
                   PickleText("o"), "cmine\nThing\n)R", PickleText("t"),
                   PickleTensor(kSix, 0, {6}, {1}), PickleText("epoch"), "K\x07u."}));
  archive.Add("a/data/0", RawBytes<float>({0, 1, 2, 3, 4, 5}));
  const TensorFile file = ReadTorch(archive.Open());
  CHECK(file.tensors.size() == 1);
  REQUIRE(file.opaque.size() == 2);
  CHECK_FALSE(file.opaque[0].is_foreign);
  CHECK(file.opaque[1].is_foreign);
  CHECK(file.opaque[1].kind == "an object of mine.Thing");
  CHECK(file.metadata.at("epoch") == "7");
}

TEST_CASE("a file of nothing but unknown objects is refused by their class") {
  CHECK(Refusal("cmine\nThing\n)R") == Finding::kForbiddenGlobal);
}

TEST_CASE("sharing names a tensor under each path, within limits") {
  const std::string tensor = PickleTensor(kSix, 0, {6}, {1});
  const TensorFile twice = ReadTensor(Cat({"](", tensor, "q\x00h\x00"s, "e"}));
  REQUIRE(twice.tensors.size() == 2);
  CHECK(twice.tensors[1].name == "1");
  CHECK(twice.tensors[0].view.data == twice.tensors[1].view.data);
  std::string shared = tensor;
  for (int i = 0; i < 40; ++i) {
    const char slot = static_cast<char>(i);
    shared = shared + "q" + slot + "0](h" + slot + "h" + slot + "e";
  }
  CHECK(Refusal(shared) == Finding::kLimit);
}

TEST_CASE("without tensors no sharing makes the walk long") {
  // N lists of the same N lists of the same N Nones.
  std::string shared = "N";
  for (int level = 0; level < 3; ++level) {
    const char slot = static_cast<char>(level);
    shared = shared + "q" + slot + "0](";
    for (int i = 0; i < 20000; ++i) shared = shared + "h" + slot;
    shared += "e";
  }
  CHECK(ReadTensor(shared).tensors.empty());
}

TEST_CASE("an archive needs one object and a known byte order") {
  const std::string pickle = Cat({"\x80\x02", PickleTensor(kSix, 0, {6}, {1}), "."});
  const auto finding = [](const TorchArchive& archive) {
    try {
      ReadTorch(archive.Open());
    } catch (const Error& error) {
      return error.finding();
    }
    return Finding::kInternal;
  };
  CHECK(finding(TorchArchive().Add("a/data/0", "x")) == Finding::kMissingRecord);
  CHECK(finding(TorchArchive().Add("a/b/data.pkl", pickle)) == Finding::kMissingRecord);
  CHECK(finding(TorchArchive().Add("a/data.pkl", pickle).Add("b/data.pkl", pickle)) ==
        Finding::kBadZip);
  CHECK(finding(TorchArchive().Add("a/data.pkl", pickle).Add("a/byteorder", "middle")) ==
        Finding::kBadField);
  std::string swapped = RawBytes<float>({0, 1, 2, 3, 4, 5});
  for (size_t i = 0; i < swapped.size(); i += 4) std::reverse(&swapped[i], &swapped[i] + 4);
  const TensorFile big = ReadTorch(
      TorchArchive().Add("data.pkl", pickle).Add("byteorder", "big").Add("data/0", swapped).Open());
  const float expected[] = {0, 1, 2, 3, 4, 5};
  CHECK(std::memcmp(big.tensors[0].view.data, expected, sizeof(expected)) == 0);
}

TEST_CASE("what is written is read again, aligned and under the same names") {
  const CompressorWeights weights = test::SampleWeights();
  const std::byte* data = weights.blocks[0].weight.data;
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < weights.blocks.size(); ++i) {
    tensors.push_back({"w." + std::to_string(i), weights.blocks[i].weight, ""});
  }
  tensors.push_back({"scalar", ContiguousView(DType::kF32, {}, data), ""});
  tensors.push_back({"empty", ContiguousView(DType::kI64, {0, 3}, data), ""});
  std::vector<TensorToWrite> writes;
  for (const NamedTensor& tensor : tensors)
    writes.push_back(test::ToWrite(tensor.name, tensor.view));
  const test::TempDir folder;
  AtomicFile out(folder / "w.pth", Overwrite::kRefuse);
  WriteTorch(writes, "w", out, {{"kvtool.engine", "none"}});
  out.Commit();
  const TensorFile back = ReadTorch(Source::Open(folder / "w.pth"));
  CHECK(LooksLikeTorch(back.source));
  CHECK(back.metadata.at("kvtool.engine") == "none");
  REQUIRE(back.tensors.size() == tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    CHECK(back.tensors[i].name == tensors[i].name);
    CHECK(back.tensors[i].view.shape == tensors[i].view.shape);
    CHECK(back.tensors[i].view.dtype == tensors[i].view.dtype);
    CHECK(CopyContiguous(back.tensors[i].view) == CopyContiguous(tensors[i].view));
    CHECK(back.source.files.front().data->OffsetOf(back.tensors[i].view.data) % 64 == 0);
  }
  for (const auto& check : back.checks) CHECK_NOTHROW(check());
}

namespace {

// Returns what torch.save(storage, _use_new_zipfile_serialization=False) writes: the argument of
// _load_from_bytes in a plain pickle.
std::string LegacyStorage(std::string_view type, const std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size());
  return Cat({"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.",
              "\x80\x02M\xe9\x03.",
              "\x80\x02}(",
              PickleText("little_endian"),
              "\x88u.",
              "\x80\x02",
              PickleStorage(type, "94", count),
              ".",
              "\x80\x02](",
              PickleText("94"),
              "e.",
              {reinterpret_cast<const char*>(&count), 8},
              RawBytes<float>(values)});
}

std::string PickleBytes(std::string_view bytes) {
  const auto size = static_cast<uint32_t>(bytes.size());
  return Cat({"B", {reinterpret_cast<const char*>(&size), 4}, bytes});
}

TensorFile ReadPickle(const std::string& root) {
  const test::TempDir temp;
  return ReadTorch(Source::Open(temp.WriteFile("a.pkl", AsBytes(Cat({"\x80\x04", root, "."})))));
}

}  // namespace

TEST_CASE("pickle.dump of tensors is read where its storages lie") {
  const std::string storage =
      Cat({"ctorch.storage\n_load_from_bytes\n",
           PickleBytes(LegacyStorage("FloatStorage", {0, 1, 2, 3, 4, 5})), "\x85R"});
  const TensorFile file = ReadPickle(PickleTensor(storage, 1, {2, 2}, {1, 3}));
  REQUIRE(file.tensors.size() == 1);
  const float expected[] = {1, 4, 2, 5};
  CHECK(std::memcmp(CopyContiguous(file.tensors[0].view).data(), expected, sizeof(expected)) == 0);
  CHECK(file.source.FindFile(file.tensors[0].view.data) != nullptr);
  CHECK_THROWS_AS(ReadPickle(PickleTensor(storage, 3, {2, 2}, {1, 3})), Error);
  const auto refused = [](std::string_view argument) {
    const std::string made = Cat({"ctorch.storage\n_load_from_bytes\n", argument, "\x85R"});
    CHECK_THROWS_AS(ReadPickle(PickleTensor(made, 0, {1}, {1})), Error);
  };
  refused("K\x01");
  refused(PickleBytes("PK\x03\x04"));
  refused(PickleBytes(LegacyStorage("FloatStorage", {1, 2}).substr(0, 90)));
  refused(PickleBytes(Cat({"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."})));
}

TEST_CASE("what a model returns has its cache once, by its name") {
  // A subclass of OrderedDict, called with its fields: they are its items and also its attributes.
  TorchArchive archive;
  const std::string k =
      PickleTensor(PickleStorage("FloatStorage", "0", 6), 0, {1, 1, 3, 2}, {6, 6, 2, 1});
  archive
      .Add("a/data.pkl",
           Cat({"\x80\x02", "ctransformers.modeling_outputs\nCausalLMOutputWithPast\n(", "N", "((",
                k, "q\x01h\x01tt", "q\x02t", "R(", PickleText("past_key_values"), "h\x02u}(",
                PickleText("past_key_values"), "h\x02", PickleText("loss"), "Nub."}))
      .Add("a/data/0", RawBytes<float>({0, 1, 2, 3, 4, 5}));
  const TensorFile file = ReadTorch(archive.Open());
  REQUIRE(file.tensors.size() == 2);
  CHECK(file.tensors[0].name == "past_key_values/0/0");
  CHECK(file.tensors[1].name == "past_key_values/0/1");
}

TEST_CASE("a tensor reached twice by one name is one, two of one name are refused") {
  const std::string first = PickleTensor(PickleStorage("FloatStorage", "0", 2), 0, {2}, {1});
  const auto read = [&](const std::string& second) {
    TorchArchive archive;
    archive
        .Add("a/data.pkl", Cat({"\x80\x02}(", PickleText("a"), "}", PickleText("b"), first,
                                "q\x01s", PickleText("c"), "h\x01", PickleText("a/b"), second,
                                PickleText("d"), first, "u."}))
        .Add("a/data/0", RawBytes<float>({0, 1}));
    return ReadTorch(archive.Open());
  };
  const TensorFile file = read("h\x01");
  REQUIRE(file.tensors.size() == 3);
  CHECK(file.tensors[0].name == "a/b");
  CHECK(file.tensors[1].name == "c");
  CHECK(file.tensors[2].name == "d");
  try {
    read(first);
    FAIL("two tensors 'a/b' were accepted");
  } catch (const Error& error) {
    CHECK(error.finding() == Finding::kDuplicateName);
    CHECK_THAT(error.what(), Catch::Contains("tensor 'a/b'"));
  }
}

TEST_CASE("quantised tensors and caches are refused by their kind") {
  const auto finding = [](const std::string& root) {
    TorchArchive archive;
    archive.Add("a/data.pkl", Cat({"\x80\x02", root, "."}))
        .Add("a/data/0", RawBytes<float>({0, 1}));
    try {
      OpenTorch(archive.Open(), {});
    } catch (const Error& error) {
      return error.finding();
    }
    return Finding{0};
  };
  const std::string good = PickleTensor(PickleStorage("FloatStorage", "0", 2), 0, {1, 2}, {2, 1});
  const std::string quantised =
      Cat({"ctorch._utils\n_rebuild_qtensor\n(", PickleStorage("QInt8Storage", "0", 8), "tR"});
  CHECK(finding(Cat({"}(", PickleText("k"), quantised, PickleText("v"), good, "u"})) ==
        Finding::kUnsupportedKind);
  const std::string cache =
      Cat({"ctransformers.cache_utils\nQuantoQuantizedCache\n)\x81}(", PickleText("key_cache"), "]",
           good, "a", PickleText("value_cache"), "]", good, "aub"});
  CHECK(finding(cache) == Finding::kUnsupportedKind);
}

TEST_CASE("a snapshot is written as Hugging Face's tuple and comes back") {
  const test::TempDir temp;
  const Bytes values = [] {
    ByteWriter out;
    for (uint16_t i = 0; i < 2 * 3 * 4; ++i) out.U16(i);
    return out.Release();
  }();
  Snapshot snapshot;
  snapshot.layers.resize(2);
  for (uint32_t i = 0; i < 2; ++i) {
    snapshot.layers[i].index = i;
    snapshot.layers[i].k =
        ContiguousTensor(values.data(), DType::kBF16, 2, 3, 4, Order::kTokenHeadDim);
    snapshot.layers[i].v =
        ContiguousTensor(values.data(), DType::kBF16, 3, 2, 4, Order::kHeadTokenDim);
    if (i == 1) snapshot.layers[i].v = snapshot.layers[i].k;
    if (i == 0) snapshot.layers[i].k = *snapshot.layers[i].v;
  }
  const std::string path = (temp / "cache.pt").string();
  WriteTorchTuple(snapshot, path, Overwrite::kRefuse);
  const Snapshot back = OpenSnapshot(Source::Open(path), {});
  REQUIRE(back.layers.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    const KvTensor &ours = snapshot.layers[i].k, &theirs = back.layers[i].k;
    CHECK(theirs.heads == ours.heads);
    CHECK(Gather(theirs, 0, theirs.tokens(), Order::kTokenHeadDim) ==
          Gather(ours, 0, ours.tokens(), Order::kTokenHeadDim));
  }
  CHECK(back.key_rotation == KeyRotation::kRotated);
  const auto refused = [&](auto change) {
    Snapshot other = snapshot;
    change(other);
    CHECK_THROWS_AS(WriteTorchTuple(other, (temp / "no.pt").string(), Overwrite::kRefuse), Error);
    CHECK_FALSE(std::filesystem::exists(temp / "no.pt"));
  };
  refused([](Snapshot& s) { s.layers[1].index = 5; });
  refused([](Snapshot& s) { s.layers[1].v.reset(); });
  refused([](Snapshot& s) { s.key_rotation = KeyRotation::kUnrotated; });
  refused([](Snapshot& s) { s.layers[0].k.heads_known = false; });
}

}  // namespace kv::torch_test
