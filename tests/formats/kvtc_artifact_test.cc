// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cmath>

#include "formats/kvx/kvx.h"
#include "tests/support/pickle_builder.h"
#include "tests/support/refusal.h"

namespace kv {
namespace {

using test::Cat;
using test::PickleInt;
using test::PickleText;

std::string DictOf(std::initializer_list<std::string_view> items) {
  std::string out = "}(";
  for (const std::string_view item : items) out += item;
  return out += 'u';
}

std::string Tensor(std::string_view key, const std::vector<int64_t>& shape) {
  const int64_t width = shape.size() == 2 ? shape[1] : 1;
  const std::string storage = test::PickleStorage("FloatStorage", key, shape[0] * width);
  return shape.size() == 2 ? test::PickleTensor(storage, 0, shape, {width, 1})
                           : test::PickleTensor(storage, 0, shape, {1});
}

// Reads an artifact of 4 features and 2 components for K and V, with a schema of this size.
KvtcArtifact Read(std::string_view version, std::string_view size,
                  std::string_view worker = "tp_0_pp_0", float mean = 0.5f) {
  const std::string group = Cat({"(", size, PickleText("int8"), "t"});
  const std::string quant = DictOf({PickleText("8"), "](", group, "e"});
  const std::string of_worker = DictOf({PickleText("mu"), Tensor("0", {4}), PickleText("basis"),
                                        Tensor("1", {4, 2}), PickleText("quant"), quant});
  const std::string side = DictOf({PickleText("tp_0_pp_0"), of_worker});
  const std::string pickle = Cat({"\x80\x02",
                                  DictOf({PickleText("version"), PickleText(version),
                                          PickleText("keys"), side, PickleText("values"), side}),
                                  "."});
  test::TorchArchive archive;
  archive.Add("kvtc/data.pkl", pickle)
      .Add("kvtc/data/0", test::RawBytes(std::vector<float>{1, 2, 3, mean}))
      .Add("kvtc/data/1", test::RawBytes(std::vector<float>{1, 0, 0, 1, 0, 0, 0, 0}));
  return ReadKvtcArtifact(archive.Open(), worker);
}

}  // namespace

TEST_CASE("kvtc.pt: mean, basis and schemas of a worker") {
  const KvtcArtifact artifact = Read("v3-worker-quant", PickleInt(2));
  CHECK(artifact.k.mean == std::vector<float>{1, 2, 3, 0.5f});
  CHECK(artifact.v.basis.features == 4);
  CHECK(artifact.v.basis.rank() == 2);
  CHECK(artifact.v.basis.vectors == std::vector<float>{1, 0, 0, 0, 0, 1, 0, 0});
  REQUIRE(artifact.k.schemas.contains(8));
  REQUIRE(artifact.k.schemas.at(8).size() == 1);
  CHECK(artifact.k.schemas.at(8)[0].size == 2);
  CHECK(artifact.k.schemas.at(8)[0].type == "int8");
  CHECK(Read("v1-noquant", PickleInt(2)).k.schemas.empty());
}

TEST_CASE("kvtc.pt: what no artifact is is refused") {
  CHECK(test::FindingOf([] { Read("v2", PickleInt(2)); }) == Finding::kUnsupportedVersion);
  CHECK(test::FindingOf([] { Read("v3-worker-quant", PickleInt(2), "tp_1_pp_0"); }) ==
        Finding::kMissingRecord);
  CHECK(test::FindingOf([] { Read("v3-worker-quant", PickleInt(2), "tp_0_pp_0", NAN); }) ==
        Finding::kBadField);
  // True is an int in Python, so the reader accepts it as a size.
  CHECK(!Read("v3-worker-quant", "\x88").k.schemas.at(8)[0].size);
}

}  // namespace kv
