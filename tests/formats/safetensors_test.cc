// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/safetensors/safetensors.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <random>

#include "tests/support/memory_sink.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tensor_to_write.h"

namespace kv::safetensors_test {
namespace {

Source InMemory(Bytes bytes) {
  return {.path = "a",
          .is_folder = false,
          .files = {{"a", FileSource::FromBytes(std::move(bytes), "a")}}};
}

Bytes File(std::string_view header, size_t data = 0) {
  ByteWriter out;
  out.U64(header.size());
  out.Append(header);
  out.Pad(data);
  return out.Release();
}

Finding Refusal(std::string_view header, size_t data = 0) {
  try {
    ReadSafetensors(InMemory(File(header, data)), {});
  } catch (const Error& error) {
    return error.finding();
  }
  return Finding{0};
}

TEST_CASE("safetensors written are read back, every dtype, bit for bit") {
  std::mt19937 random(7);
  std::vector<Bytes> values;
  std::vector<TensorToWrite> tensors;
  std::vector<TensorView> views;
  for (const DTypeInfo& info : AllDTypes()) {
    if (info.block_elements > 1) continue;
    for (const std::vector<uint64_t>& shape :
         {std::vector<uint64_t>{}, {3, 5}, {2, 0}, {1, 4, 1, 2}}) {
      uint64_t count = info.block_bytes;
      for (const uint64_t extent : shape) count *= extent;
      Bytes bytes(count);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      values.push_back(std::move(bytes));
      views.push_back(ContiguousView(info.dtype, shape, nullptr));
    }
  }
  for (size_t i = 0; i < views.size(); ++i) {
    views[i].data = values[i].data();
    tensors.push_back(test::ToWrite(fmt::format("t{} \"\\\xc3\xa9", i), views[i]));
  }
  const TensorMetadata metadata = {{"a", "b\n"}, {"\xf0\x9f\x98\x80", ""}};
  MemorySink sink;
  WriteSafetensorsFile(tensors, metadata, sink);
  const TensorFile file = ReadSafetensors(InMemory(sink.bytes()), {});
  CHECK(file.metadata == metadata);
  REQUIRE(file.tensors.size() == tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const NamedTensor* found = file.Find(tensors[i].name);
    REQUIRE(found != nullptr);
    CHECK(found->view.dtype == views[i].dtype);
    CHECK(found->view.shape == views[i].shape);
    CHECK(CopyContiguous(found->view) == values[i]);
  }
}

TEST_CASE("strided tensors are written in C order") {
  Bytes bytes(6);
  for (size_t i = 0; i < 6; ++i) bytes[i] = static_cast<std::byte>(i);
  MemorySink sink;
  WriteSafetensorsFile({test::ToWrite("t", {DType::kU8, {3, 2}, {1, 3}, bytes.data()})}, {}, sink);
  const TensorFile file = ReadSafetensors(InMemory(sink.bytes()), {});
  CHECK(CopyContiguous(file.tensors[0].view) ==
        Bytes{std::byte{0}, std::byte{3}, std::byte{1}, std::byte{4}, std::byte{2}, std::byte{5}});
}

TEST_CASE("safetensors are written in the official order, header padded to 8") {
  const Bytes bytes(8);
  const auto tensor = [&](const char* name, DType dtype) {
    return test::ToWrite(name, ContiguousView(dtype, {1}, bytes.data()));
  };
  MemorySink sink;
  WriteSafetensorsFile({tensor("b", DType::kF16), tensor("d", DType::kU8), tensor("a", DType::kF16),
                        tensor("c", DType::kF32), tensor("e", DType::kBF16)},
                       {{"format", "pt"}}, sink);
  const std::string_view text = AsText(sink.bytes());
  const std::string expected = R"({"__metadata__":{"format":"pt"},)"
                               R"("c":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                               R"("e":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]},)"
                               R"("a":{"dtype":"F16","shape":[1],"data_offsets":[6,8]},)"
                               R"("b":{"dtype":"F16","shape":[1],"data_offsets":[8,10]},)"
                               R"("d":{"dtype":"U8","shape":[1],"data_offsets":[10,11]}})";
  CHECK(text.substr(8, expected.size()) == expected);
  const uint64_t length = LoadLE<uint64_t>(text.data());
  CHECK(length % 8 == 0);
  CHECK(length < expected.size() + 8);
  CHECK(text.size() == 8 + length + 11);
}

TEST_CASE("safetensors names and metadata keep their escapes and surrogates") {
  const TensorFile file = ReadSafetensors(
      InMemory(
          File(R"({"\ud83d\ude00\u0041\n":{"shape":[2],"data_offsets":[0,2],"dtype":"U8"}} )", 2)),
      {});
  CHECK(file.tensors.at(0).name ==
        "\xf0\x9f\x98\x80"
        "A\n");
}

TEST_CASE("unknown fields of a tensor are ignored, however they nest") {
  CHECK(Refusal(
            R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"fmt":{"x":[1,-2,3e9,null]}}})",
            1) == Finding{0});
  CHECK(Refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"fmt":{"x":1,"x":2}}})",
                1) == Finding::kDuplicateName);
  std::string deep = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"f":)";
  CHECK(Refusal(deep + std::string(62, '[') + std::string(62, ']') + "}}", 1) == Finding{0});
  CHECK(Refusal(deep + std::string(63, '[') + std::string(63, ']') + "}}", 1) == Finding::kBadText);
}

TEST_CASE("safetensors headers that break a rule are refused by its name") {
  const auto tensor = [](const std::string& fields, size_t data = 4) {
    return Refusal("{\"a\":{" + fields + "}}", data);
  };
  CHECK(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])") == Finding{0});
  CHECK(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])", 5) == Finding::kTrailingBytes);
  CHECK(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])", 3) == Finding::kTruncated);
  CHECK(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[1,5])", 5) == Finding::kBadOffsets);
  CHECK(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,5])", 5) == Finding::kSizeMismatch);
  CHECK(tensor(R"("dtype":"F31","shape":[1],"data_offsets":[0,4])") == Finding::kUnknownDtype);
  CHECK(tensor(R"("dtype":"F4","shape":[1],"data_offsets":[0,1])", 1) == Finding::kSizeMismatch);
  CHECK(tensor(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4])") ==
        Finding::kOverflow);
  for (const char* bad :
       {R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])",
        R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])",
        R"("dtype":"F32","shape":[1e0],"data_offsets":[0,4])",
        R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4])",
        R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])",
        R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])",
        R"("dtype":"F32","shape":1,"data_offsets":[0,4])",
        R"("dtype":1,"shape":[1],"data_offsets":[0,4])",
        R"("dtype":["F32"],"shape":[1],"data_offsets":[0,4])",
        R"("dtype":"F32","shape":[1],"data_offsets":[0])",
        R"("dtype":"F32","shape":[1],"data_offsets":[0,4,4])",
        R"("dtype":"F32","shape":[1],"data_offsets":{"0":4})", R"("dtype":"F32","shape":[1])",
        R"("dtype":"F32","data_offsets":[0,4])", R"("shape":[1],"data_offsets":[0,4])"}) {
    INFO(bad);
    CHECK(tensor(bad) == Finding::kBadText);
  }
  for (const char* bad : {"{", "{}x", "{} {}", "{'a':1}", R"({"a":1})", R"({"a":[]})",
                          R"({"__metadata__":{"a":1}})", R"({"__metadata__":{"a":{}}})",
                          R"({"__metadata__":[]})", "{\"a\xff\":{}}", R"({"\ud800":{}})"}) {
    INFO(bad);
    CHECK(Refusal(bad) == Finding::kBadText);
  }
  CHECK(Refusal(std::string_view("{}\0x", 4)) == Finding::kBadText);
  CHECK(Refusal(R"({"__metadata__":{"a":"1","a":"1"}})") == Finding::kDuplicateName);
  CHECK(Refusal(R"({"__metadata__":{},"__metadata__":{}})") == Finding::kDuplicateName);
  CHECK(Refusal(" {}") == Finding::kBadHeader);
  CHECK(Refusal("[]") == Finding::kBadHeader);
  CHECK(Refusal("{}") == Finding{0});
  CHECK(Refusal("{} \n ") == Finding{0});
}

TEST_CASE("aliases are taken with a note, types nothing computes with are kept as bytes") {
  const TensorFile file =
      ReadSafetensors(InMemory(File(R"({"a":{"dtype":"F8E4M3FN","shape":[2],"data_offsets":[0,2]},)"
                                    R"("b":{"dtype":"C64","shape":[1],"data_offsets":[2,10]},)"
                                    R"("c":{"dtype":"F4","shape":[2,3],"data_offsets":[10,13]}})",
                                    13)),
                      {});
  CHECK(file.Find("a")->view.dtype == DType::kF8E4M3);
  CHECK(file.Find("b")->view.shape == std::vector<uint64_t>{1, 8});
  CHECK(file.Find("c")->view.shape == std::vector<uint64_t>{3});
  CHECK(file.notes.size() == 3);
}

TEST_CASE("a folder of safetensors is read as one, each tensor knowing its file") {
  const test::TempDir folder;
  folder.WriteFile("b/layer_1.safetensors",
                   File(R"({"k":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1));
  folder.WriteFile("layer_0.safetensors",
                   File(R"({"k":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1));
  folder.WriteFile("config.json", AsBytes("{}"));
  const Source source = Source::Open(folder.path());
  CHECK(ProbeSafetensors(source) == Confidence::kCertain);
  const TensorFile file = ReadSafetensors(source, {});
  REQUIRE(file.tensors.size() == 2);
  CHECK(file.tensors[0].file == "b/layer_1");
  CHECK(file.tensors[1].file == "layer_0");
}

}  // namespace
}  // namespace kv::safetensors_test
