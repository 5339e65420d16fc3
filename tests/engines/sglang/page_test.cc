// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cmath>

#include "lib/engines/sglang/ascend.h"
#include "tests/support/refusal.h"
#include "tests/support/sglang_pages.h"

namespace kv::sglang {
namespace {

const std::vector<StaticCode> kCodes = {{0.5f, 8}, {1, 2}, {0.25f, 4}, {1, 0}, {2, 4}, {1, 2}};

}  // namespace

TEST_CASE("sglang: a constant group comes back as its bfloat16 value") {
  const std::vector<float> values(16, 500.3f);
  CHECK(StoreAscend(CodeType::kInt4, values).values == std::vector<float>(16, 500.0f));
}

TEST_CASE("sglang: far groups are counted") {
  std::vector<float> values(16, 500.0f), out(16);
  values[3] = 500.5f;
  values[5] = 504;
  transform::Faults faults;
  kAscendForm.store(CodeType::kInt8, values, out, faults);
  CHECK(faults.far_offsets == 1);
  CHECK(std::fabs(out[5] - 504) < 8);
}

TEST_CASE("sglang: a page of other sizes than its schema is refused") {
  const CodeSchema schema = {{2, CodeType::kFloat32}, {8, CodeType::kInt4}};
  const std::vector<float> rows(2 * 10, 1.5f);
  Page page = WritePage(schema, {rows, 2, 10});
  CHECK(ReadPage(schema, page, 2).size() == 20);
  page.int4.pop_back();
  CHECK(test::FindingOf([&] { ReadPage(schema, page, 2); }) == Finding::kSizeMismatch);
}

TEST_CASE("sglang: a budget below every group is refused") {
  const std::vector<float> rows(4 * 16, 1.5f);
  CHECK(test::FindingOf([&] { Allocate({rows, 4, 16}, 15); }) == Finding::kUnsupportedKind);
}

TEST_CASE("sglang: streams of a page are as their calibration says, or refused") {
  const Bytes sound = WriteStream(std::vector<float>{3, -5, 1, 9, -4, 1}, kCodes);
  CHECK(ReadStream(sound, kCodes) == std::vector<float>{3, -2, 1, 0, -4, 1});
  const auto refusal = [&](const Bytes& stream) {
    return test::FindingOf([&] { ReadStream(stream, kCodes); });
  };
  Bytes other = sound;
  other[12] = std::byte{2};  // the mask
  CHECK(refusal(other) == Finding::kBadField);
  other = sound;
  StoreLE<uint32_t>(other.data(), UINT32_MAX);
  CHECK(refusal(other) == Finding::kTruncated);
  other = sound;
  other.push_back(std::byte{0});
  CHECK(refusal(other) == Finding::kTrailingBytes);
  StoreLE<uint32_t>(other.data() + 8, LoadLE<uint32_t>(other.data() + 8) + 1);
  CHECK(refusal(other) == Finding::kSizeMismatch);
}

TEST_CASE("sglang: pages of other versions and flags are refused") {
  ByteWriter page;
  page.Append("KVTC");
  page.U8(4);
  page.U8(3);
  page.U32(1);
  page.U32(0);
  page.U8(7);
  CHECK(ReadPageStreams(page.bytes()).k.size() == 1);
  const auto refusal = [&](size_t at, uint8_t value) {
    Bytes changed(page.bytes().begin(), page.bytes().end());
    changed[at] = std::byte{value};
    return test::FindingOf([&] { ReadPageStreams(changed); });
  };
  CHECK(refusal(0, 'X') == Finding::kBadMagic);
  CHECK(refusal(4, 2) == Finding::kUnsupportedVersion);
  CHECK(refusal(5, 8) == Finding::kBadField);
  CHECK(refusal(6, 0) == Finding::kTrailingBytes);
  CHECK(refusal(6, 2) == Finding::kTruncated);
}

}  // namespace kv::sglang
