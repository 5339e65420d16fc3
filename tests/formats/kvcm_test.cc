// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/kvcm/kvcm.h"

#include <catch2/catch.hpp>
#include <functional>

#include "tests/support/memory_sink.h"
#include "tests/support/sample_weights.h"

namespace kv::kvcm_test {
namespace {

using test::MakeSource;
using test::SampleWeights;

Bytes SampleFile(DType dtype = DType::kF32) {
  MemorySink sink;
  WriteKvcm(SampleWeights(), dtype, sink);
  return sink.bytes();
}

template <typename T>
Bytes With(Bytes bytes, uint64_t offset, T value) {
  StoreLE(bytes.data() + offset, value);
  return bytes;
}

// Returns the first fault that a strict reading finds.
Error Refusal(Bytes bytes) {
  try {
    ReadKvcm(MakeSource(std::move(bytes)), KvcmReading::kStrict);
  } catch (const Error& error) {
    return error;
  }
  FAIL("the file was accepted");
  return Error(Finding::kInternal, "");
}

}  // namespace

TEST_CASE("weights survive a way through a .bin") {
  const CompressorWeights before = SampleWeights();
  const CompressorWeights after = ReadKvcm(MakeSource(SampleFile()), KvcmReading::kStrict);
  CHECK(after.dtype == DType::kF32);
  REQUIRE(after.blocks.size() == before.blocks.size());
  for (size_t i = 0; i < before.blocks.size(); ++i) {
    CHECK(CopyContiguous(after.blocks[i].weight) == CopyContiguous(before.blocks[i].weight));
    CHECK(CopyContiguous(after.blocks[i].bias) == CopyContiguous(before.blocks[i].bias));
  }
  CHECK(after.names_assumed);
  CHECK(after.BlockName(1, 7) == "layer 1 compress_ik slot 3");
  REQUIRE(after.Mlp(1, MlpRole::kImageK) != nullptr);
  CHECK(after.Mlp(1, MlpRole::kImageK) == &after.Block(1, 6));
  CHECK(after.Mlp(2, MlpRole::kTextK) == nullptr);
}

TEST_CASE("metadata is kept and blocks without bias have none") {
  CompressorWeights weights = SampleWeights(1, 2);
  weights.blocks[1].bias = {};
  weights.metadata = {std::byte{'h'}, std::byte{'i'}, std::byte{0}};
  MemorySink sink;
  WriteKvcm(weights, DType::kBF16, sink);
  const CompressorWeights back = ReadKvcm(MakeSource(sink.bytes()), KvcmReading::kStrict);
  CHECK(back.metadata == weights.metadata);
  CHECK(back.blocks[0].has_bias());
  CHECK_FALSE(back.blocks[1].has_bias());
  CHECK(back.is_text_only());
}

TEST_CASE("each fault of a header is named with its field and offset") {
  const Bytes good = SampleFile();
  struct Case {
    Bytes bytes;
    Finding finding;
    uint64_t offset;
    std::string field;
  };
  const Case cases[] = {
      {With(good, 0, uint32_t{0x4D43564B}), Finding::kBadMagic, 0, "magic is 0x4d43564b"},
      {With(good, 4, uint32_t{2}), Finding::kBadVersion, 4, "version is 2, expected 1"},
      {With(good, 8, uint16_t{3}), Finding::kUnknownDtype, 8, "dtype_code is 3"},
      {With(good, 10, uint16_t{1}), Finding::kBadField, 10, "reserved is 0x1, expected 0"},
      {With(good, 12, uint32_t{0}), Finding::kBadField, 12, "num_layers is 0"},
      {With(good, 12, ~uint32_t{0}), Finding::kTruncated, 12, "num_layers is 4294967295"},
      {With(good, 20, uint32_t{5}), Finding::kInconsistent, 20, "head_dim is 5, expected 4"},
      {With(good, 24, uint32_t{9}), Finding::kInconsistent, 24, "hidden_size is 9, expected 8"},
      {With(good, 28, uint32_t{1}), Finding::kBadField, 28, "compression_factor is 1"},
      {With(good, 28, uint32_t{3}), Finding::kInconsistent, 28, "x head_dim is 12, expected 8"},
      {With(good, 36, uint32_t{0}), Finding::kBadField, 36, "weight_count_per_layer is 0"},
      {With(good, 36, ~uint32_t{0}), Finding::kTruncated, 36,
       "weight_count_per_layer is 4294967295"},
      {With(good, 40, uint32_t{1} << 31), Finding::kTruncated, 40, "metadata_size_bytes"},
      {With(good, 44, uint32_t{0}), Finding::kBadField, 44, "slot 0 rows is 0"},
      {With(good, 48, uint32_t{0}), Finding::kBadField, 48, "slot 0 cols is 0"},
      {With(good, 44, ~uint64_t{0}), Finding::kOverflow, 44, "4294967295 x 4294967295"},
      {With(good, 52, uint32_t{2}), Finding::kBadField, 52, "has_bias is 2, expected 0 or 1"},
  };
  for (const Case& item : cases) {
    INFO(item.field);
    const Error error = Refusal(item.bytes);
    CHECK(error.finding() == item.finding);
    CHECK(error.offset() == item.offset);
    CHECK(error.message().find(item.field) != std::string::npos);
  }
}

TEST_CASE("every proper prefix of a .bin is refused, by csrc and legacy too") {
  const Bytes good = SampleFile(DType::kF16);
  for (size_t size = 0; size < good.size(); ++size) {
    const Bytes cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    CHECK(Refusal(cut).finding() == Finding::kTruncated);
    CHECK_FALSE(CsrcLoader(cut, "w.bin").loads);
    CHECK_FALSE(LegacyLoader(cut, "w.bin").loads);
  }
}

TEST_CASE("compat reads what csrc loads and warns of each oddity") {
  Bytes odd = With(SampleFile(DType::kF16), 8, uint16_t{7});
  StoreLE(odd.data() + 10, uint16_t{0xffff});
  StoreLE(odd.data() + 52, uint32_t{2});
  odd.push_back(std::byte{1});
  CHECK(CsrcLoader(odd, "w.bin").loads);
  CHECK(LegacyLoader(odd, "w.bin").message == "Unsupported dtype in compression weight file");
  const CompressorWeights weights = ReadKvcm(MakeSource(odd), KvcmReading::kCompat);
  CHECK(weights.dtype == DType::kF16);
  CHECK(weights.blocks[0].has_bias());
  CHECK(weights.notes.size() == 4);
}

TEST_CASE("slots that do not chain and layers that differ are faults, in order of the file") {
  CompressorWeights weights = SampleWeights();
  weights.blocks[1].weight.shape = {2, 2};  // layer 0, text K, slot 3; the right shape is 4 x 4
  weights.blocks[1].bias.shape = {2};
  const std::vector<WeightsFault> faults = CheckWeights(weights);
  REQUIRE(faults.size() == 4);
  CHECK(faults[0].field == "layer 0 compress_tk slot 3 cols");
  CHECK(faults[1].field == "layer 0 compress_tk slot 6 cols");
  CHECK(faults[2].field == "layer 1 compress_tk slot 3 rows");
  CHECK(faults[3].field == "layer 1 compress_tk slot 3 cols");
}

TEST_CASE("weights are held against the model they are meant for") {
  const CompressorWeights weights = SampleWeights();
  CHECK(CheckExpectation(weights, {}).empty());
  CHECK(CheckExpectation(weights, {2, 4, 2}).empty());
  CHECK(CheckExpectation(weights, {3, 8, 5}).size() == 3);
}

TEST_CASE("the loader models allocate nothing and fail as the real ones do") {
  const Bytes good = SampleFile();
  CHECK(CsrcLoader(With(good, 12, ~uint32_t{0}), "w.bin").message == "std::bad_alloc");
  CHECK(CsrcLoader(With(good, 36, ~uint32_t{0}), "w.bin").message == "std::bad_alloc");
  CHECK(CsrcLoader(With(good, 44, ~uint64_t{0}), "w.bin").message ==
        "cannot create std::vector larger than max_size()");
  // 2^31 x 2^31 values of 4 bytes would be 2^64 bytes, which overflows to 0.
  CHECK(CsrcLoader(With(good, 44, uint64_t{0x8000000080000000}), "w.bin").message ==
        "std::bad_alloc");
  CHECK(LegacyLoader(With(good, 12, uint32_t{10001}), "w.bin").offset == 12);
  CHECK(CsrcLoader(good, "a.pth").message.substr(0, 32) == "Unsupported weight format (.pth)");
}

}  // namespace kv::kvcm_test
