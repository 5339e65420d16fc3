// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Numbers that existing files contain. A changed number would make those files unreadable or,
// worse, misread: add new numbers after the last one, and leave these unchanged.
#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>

#include "lib/core/archive/archive.h"
#include "lib/core/archive/records.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/codec/planes/gear.h"
#include "lib/core/weights/weights.h"

namespace kv::wire_values_test {
namespace {

template <typename Enum>
constexpr bool Are(std::initializer_list<Enum> enums, int first = 0) {
  for (const Enum value : enums) {
    if (static_cast<int>(value) != first++) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("values of types that are stored never change") {
  using enum DType;
  STATIC_REQUIRE(
      Are({kF32, kF16,  kBF16,   kF64,    kI8,   kU8,   kI16,  kU16,  kI32,  kU32,   kI64,
           kU64, kBool, kF8E4M3, kF8E5M2, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kIQ4_NL}));
  STATIC_REQUIRE(
      Are({Order::kTokenHeadDim, Order::kHeadTokenDim, Order::kHeadDimToken, Order::kStorage}));
  STATIC_REQUIRE(Are({ChunkKind::kOpaque, ChunkKind::kKey, ChunkKind::kValue}));
  STATIC_REQUIRE(
      Are({kvz::RecordType::kSource, kvz::RecordType::kChunk, kvz::RecordType::kIndex}, 1));
  STATIC_REQUIRE(Are({KeyRotation::kUnknown, KeyRotation::kUnrotated, KeyRotation::kRotated}));
  STATIC_REQUIRE(Are({HadamardState::kUnknown, HadamardState::kNo, HadamardState::kYes}));
  STATIC_REQUIRE(Are({Predictor::kRaw, Predictor::kDeltaSeq, Predictor::kXorSeq}));
  STATIC_REQUIRE(Are({Backend::kRle, Backend::kZstd}));
  STATIC_REQUIRE(Are({MlpRole::kTextK, MlpRole::kTextV, MlpRole::kImageK, MlpRole::kImageV}));
}

TEST_CASE("ids of codecs never change, and each has its name") {
  const std::pair<CodecId, std::string_view> known[] = {{CodecId{0}, "raw"},
                                                        {CodecId{1}, "gear-f16"},
                                                        {CodecId{2}, "gear-f32"},
                                                        {CodecId{3}, "zstd-planes"},
                                                        {CodecId{4}, "zstd"},
                                                        {CodecId{16}, "prev"},
                                                        {CodecId{17}, "rotated"},
                                                        {CodecId{18}, "rows"},
                                                        {CodecId{19}, "lms"},
                                                        {CodecId{20}, "window4"},
                                                        {CodecId{21}, "widened"},
                                                        {CodecId{22}, "cdf"},
                                                        {CodecId{23}, "like"},
                                                        {CodecId{24}, "split"},
                                                        {CodecId{25}, "ref"},
                                                        {CodecId{26}, "ref-cdf"},
                                                        {CodecId{27}, "layers"},
                                                        {CodecId{28}, "profiled"},
                                                        {CodecId{29}, "ref-layers"},
                                                        {CodecId{30}, "ref-sparse"},
                                                        {CodecId{31}, "blocks"},
                                                        {CodecId{32}, "transformed"},
                                                        {CodecId{33}, "profiled-layers"}};
  for (const auto& [id, name] : known) CHECK(Name(id) == name);
  STATIC_REQUIRE(Are(
      {CodecId::kRaw, CodecId::kGear16, CodecId::kGear32, CodecId::kZstdPlanes, CodecId::kZstd}));
  STATIC_REQUIRE(Are({CodecId::kPrev, CodecId::kRotated16, CodecId::kRows, CodecId::kLms,
                      CodecId::kWindow4, CodecId::kWidened, CodecId::kCdf, CodecId::kLike},
                     16));
}

TEST_CASE("the table of codecs is that of the archive's FORMAT.md") {
  std::ifstream page("lib/core/archive/FORMAT.md");
  std::map<int, std::string> written, known;
  bool in_table = false;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("## ", 0) == 0) in_table = line == "## Codecs";
    int id = 0;
    char name[32] = {};
    if (in_table && std::sscanf(line.c_str(), "| %d | %31[a-z0-9-] |", &id, name) == 2) {
      written[id] = name;
    }
  }
  for (const CodecRow& codec : Codecs()) known[static_cast<int>(codec.id)] = codec.name;
  CHECK(written == known);
}

TEST_CASE("every element type stands in the table at its own number") {
  size_t place = 0;
  for (const DTypeInfo& info : AllDTypes()) CHECK(static_cast<size_t>(info.dtype) == place++);
}

}  // namespace kv::wire_values_test
