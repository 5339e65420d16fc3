// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The gear codec against vectors made by the engine's own code.
#include <zstd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>

#include "lib/core/codec/planes/gear.h"
#include "lib/core/kernels/planes.h"
#include "lib/core/kernels/predict.h"
#include "lib/core/kernels/rle.h"
#include "lib/engines/mnn/runtime/runtime.h"
#include "tests/golden/checks.h"

namespace kv::golden {
namespace {

using mnn::runtime::Fnv1a64;
using nlohmann::json;

const std::string kFolder = "mnn/codec/";

Bytes Hex(const json& vector, const char* key) {
  return FromHex(vector.at(key).get<std::string>());
}
uint64_t HexNumber(const json& value) { return std::stoull(value.get<std::string>(), nullptr, 16); }

// zstd's output may differ between versions, so payloads are compared only with the same version.
bool SameZstd(Run& run) {
  const json manifest = run.Json("mnn/manifest.json");
  const auto made_with =
      manifest.value(nlohmann::json::json_pointer("/toolchain/zstd"), std::string());
  return made_with.rfind(std::string(ZSTD_versionString()) + " ", 0) == 0;
}

Bytes Predict(Predictor predictor, ByteSpan plane) {
  Bytes predicted(plane.begin(), plane.end());
  if (predictor == Predictor::kDeltaSeq) DeltaEncode(plane.data(), plane.size(), predicted.data());
  if (predictor == Predictor::kXorSeq) XorEncode(plane.data(), plane.size(), predicted.data());
  return predicted;
}

Predictor PredictorNamed(const std::string& name) {
  for (Predictor predictor : {Predictor::kRaw, Predictor::kDeltaSeq, Predictor::kXorSeq}) {
    if (Name(predictor) == name) return predictor;
  }
  FAIL("no predictor is called " << name);
  return Predictor::kRaw;
}

std::vector<Bytes> Planes(GearKind kind, ByteSpan raw) {
  const size_t words = raw.size() / CountPlanes(kind);
  std::vector<Bytes> planes(CountPlanes(kind), Bytes(words));
  if (kind == GearKind::kTwoPlanes) {
    SplitPlanes2(raw.data(), words, planes[0].data(), planes[1].data());
  } else {
    std::byte* const pointers[] = {planes[0].data(), planes[1].data(), planes[2].data(),
                                   planes[3].data()};
    SplitPlanes4(raw.data(), words, pointers);
  }
  return planes;
}

void CheckRle(Run& run) {
  for (const json& vector : run.Json(kFolder + "rle_vectors.json")) {
    INFO("rle " << vector.at("name"));
    const Bytes in = Hex(vector, "in"), expected = Hex(vector, "out");
    Bytes out(RleBound(in.size()));
    out.resize(RleEncode(in.data(), in.size(), out.data()));
    CHECK(RleEncodedSize(in.data(), in.size()) == out.size());
    CHECK(vector.at("ok").get<bool>() == !in.empty());
    CHECK(out == expected);
    if (!in.empty()) {
      Bytes back(in.size());
      CHECK(RleDecode(out.data(), out.size(), back.data(), back.size()));
      CHECK(back == in);
    }
    run.Checked();
  }
  for (const json& vector : run.Json(kFolder + "rle_decode_vectors.json")) {
    INFO("rle decode " << vector.at("name"));
    const Bytes in = Hex(vector, "in");
    Bytes out(vector.at("expected_bytes").get<size_t>());
    const bool ok = RleDecode(in.data(), in.size(), out.data(), out.size());
    CHECK(ok == vector.at("ok").get<bool>());
    if (ok) CHECK(out == Hex(vector, "out"));
    run.Checked();
  }
}

void CheckPredictors(Run& run) {
  for (const json& vector : run.Json(kFolder + "predictor_vectors.json")) {
    const Bytes in = Hex(vector, "in");
    INFO("predictors of " << vector.at("in"));
    for (const auto& [key, expected] : vector.items()) {
      if (key == "in") continue;
      const Predictor predictor = PredictorNamed(key);
      Bytes predicted = Predict(predictor, in);
      CHECK(ToHex(predicted) == expected.get<std::string>());
      const auto decode = predictor == Predictor::kXorSeq ? XorDecode : DeltaDecode;
      decode(predicted.data(), predicted.size(), predicted.data());
      CHECK(predicted == in);
      run.Checked();
    }
  }
  for (const json& vector : run.Json(kFolder + "predictor_spec_vectors.json")) {
    std::string spec = vector.at("spec");
    for (size_t at; (at = spec.find("\\t")) != spec.npos;) spec.replace(at, 2, 1, '\t');
    INFO("predictor list " << vector.at("spec"));
    const PredictorSet set = ParsePredictors(spec);
    CHECK(set.raw == vector.at("raw").get<bool>());
    CHECK(set.delta_seq == vector.at("delta_seq").get<bool>());
    CHECK(set.xor_seq == vector.at("xor_seq").get<bool>());
    CHECK(ParsePredictors(ToText(set)) == set);
    run.Checked();
  }
}

void CheckFnv(Run& run) {
  for (const json& vector : run.Json(kFolder + "fnv1a64_vectors.json")) {
    CHECK(Fnv1a64(Hex(vector, "in"), HexNumber(vector.at("seed"))) == HexNumber(vector.at("hash")));
    run.Checked();
  }
}

void CheckStreamFrames(Run& run, bool same_zstd) {
  CodecScratch scratch;
  for (const json& vector : run.Json(kFolder + "stream_frames.json")) {
    INFO("stream frame " << vector.at("name") << " of " << vector.at("predictors"));
    const Bytes in = Hex(vector, "in"), expected = Hex(vector, "frame");
    const bool zstd = vector.at("zstd_available");
    Bytes out;
    const PlaneChoice choice = EncodePlane(
        in, ParsePredictors(vector.at("predictors").get<std::string>()), zstd, scratch, out);
    REQUIRE(vector.at("ok").get<bool>());
    if (same_zstd || !zstd) CHECK(out == expected);
    CHECK(choice.payload_bytes + kPlaneHeaderBytes == out.size());

    ByteReader reader(expected);
    const PlaneFrame frame = ReadPlaneFrame(reader);
    REQUIRE(frame.raw_bytes == in.size());
    Bytes back(in.size());
    DecodePlane(frame, back, scratch);
    CHECK(back == in);
    CHECK(reader.at_end());
    run.Checked();
  }
}

GearKind KindOf(const json& vector) {
  const std::string kind = vector.at("kind");
  REQUIRE((kind == "fp16" || kind == "fp32"));
  return kind == "fp16" ? GearKind::kTwoPlanes : GearKind::kFourPlanes;
}

void CheckRejects(Run& run) {
  CodecScratch scratch;
  for (const json& vector : run.Json(kFolder + "reject_vectors.json")) {
    INFO(vector.at("op") << " " << vector.at("name"));
    const Bytes in = Hex(vector, "in");
    const GearKind kind = KindOf(vector);
    Bytes out;
    bool ok = true;
    try {
      if (vector.at("op") == "encode") {
        EncodeGear(kind, in, {}, scratch, out);
      } else {
        out = DecodeGear(kind, in, scratch);
      }
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kInvalidData);
      ok = false;
    }
    CHECK(ok == vector.at("ok").get<bool>());
    if (ok && vector.contains("out")) CHECK(out == Hex(vector, "out"));
    run.Checked();
  }
}

// Compares the table of candidates of one plane, and checks that EncodePlane chooses as the engine
// does.
void CheckLane(const json& lane, ByteSpan plane, const PredictorSet& set, bool same_zstd) {
  CodecScratch scratch;
  PlaneChoice best{.payload_bytes = UINT64_MAX}, best_rle = best;
  for (const json& candidate : lane) {
    const Predictor predictor = PredictorNamed(candidate.at("mode"));
    const Bytes predicted = Predict(predictor, plane);
    CHECK(Fnv1a64(predicted) == HexNumber(candidate.at("transformed_fnv")));
    const uint64_t rle = RleEncodedSize(predicted.data(), predicted.size());
    CHECK(rle == candidate.at("rle_bytes").get<uint64_t>());
    Bytes payload(ZSTD_compressBound(predicted.size()));
    const uint64_t zstd = ZSTD_compress(payload.data(), payload.size(), predicted.data(),
                                        predicted.size(), kGearZstdLevel);
    if (same_zstd) CHECK(zstd == candidate.at("zstd_bytes").get<uint64_t>());
    if ((predictor == Predictor::kRaw && !set.raw) ||
        (predictor == Predictor::kDeltaSeq && !set.delta_seq) ||
        (predictor == Predictor::kXorSeq && !set.xor_seq))
      continue;
    const PlaneChoice as_rle{predictor, Backend::kRle, plane.size(), rle};
    if (rle < best.payload_bytes) best = as_rle;
    if (rle < best_rle.payload_bytes) best_rle = as_rle;
    if (zstd < best.payload_bytes) best = {predictor, Backend::kZstd, plane.size(), zstd};
  }
  for (const bool zstd : {true, false}) {
    Bytes out;
    const PlaneChoice choice = EncodePlane(plane, set, zstd, scratch, out);
    const PlaneChoice& expected = zstd ? best : best_rle;
    CHECK(choice.predictor == expected.predictor);
    CHECK(choice.backend == expected.backend);
    CHECK(choice.payload_bytes == expected.payload_bytes);
  }
}

void CheckStreams(const json& streams, const GearLayout& layout) {
  REQUIRE(streams.size() == layout.planes.size());
  for (size_t i = 0; i < streams.size(); ++i) {
    const PlaneFrame& frame = layout.planes[i];
    CHECK(frame.offset == streams[i].at("offset").get<uint64_t>());
    CHECK(Name(static_cast<Predictor>(frame.mode)) == streams[i].at("mode").get<std::string>());
    CHECK(Name(static_cast<Backend>(frame.codec)) == streams[i].at("codec").get<std::string>());
    CHECK(frame.raw_bytes == streams[i].at("raw_len").get<uint32_t>());
    CHECK(frame.payload.size() == streams[i].at("payload_len").get<uint64_t>());
  }
}

void CheckFrames(Run& run, bool same_zstd) {
  CodecScratch scratch;
  for (const json& vector : run.Json(kFolder + "frames.json")) {
    INFO("container " << vector.at("name"));
    const GearKind kind = KindOf(vector);
    const std::string input = kFolder + vector.at("input").get<std::string>();
    if (!run.File(input)) continue;
    const Bytes raw = run.Load(input);
    REQUIRE(raw.size() == vector.at("input_bytes").get<size_t>());
    CHECK(Fnv1a64(raw) == HexNumber(vector.at("input_fnv1a64")));
    const PredictorSet set = ParsePredictors(vector.at("predictors").get<std::string>());
    const std::vector<Bytes> planes = Planes(kind, raw);
    REQUIRE(vector.at("lanes").size() == planes.size());
    for (size_t i = 0; i < planes.size(); ++i) {
      CheckLane(vector.at("lanes")[i], planes[i], set, same_zstd);
      run.Checked();
    }
    for (const bool zstd : {true, false}) {
      const json& expected = vector.at(zstd ? "with_zstd" : "no_zstd");
      REQUIRE(expected.at("ok").get<bool>());
      const std::string name = kFolder + expected.at("frame").get<std::string>();
      if (!run.File(name)) continue;
      const Bytes frame = run.Load(name);
      CHECK(frame.size() == expected.at("frame_bytes").get<size_t>());
      CHECK(Fnv1a64(frame) == HexNumber(expected.at("frame_fnv1a64")));
      CHECK(static_cast<double>(raw.size()) / static_cast<double>(frame.size()) ==
            Approx(expected.at("ratio").get<double>()).margin(1e-6));
      CHECK(DecodeGear(kind, frame, scratch) == raw);
      CheckStreams(expected.at("streams"), ReadGear(frame));
      Bytes out;
      EncodeGear(kind, raw, {.predictors = {set, set, set, set}, .zstd = zstd}, scratch, out);
      if (same_zstd || !zstd) CHECK((out == frame));
      CHECK(DecodeGear(kind, out, scratch) == raw);
      run.Checked();
    }
  }
}

}  // namespace

void CheckMnnCodec(Run& run) {
  const bool same_zstd = SameZstd(run);
  CheckRle(run);
  CheckPredictors(run);
  CheckFnv(run);
  CheckStreamFrames(run, same_zstd);
  CheckRejects(run);
  CheckFrames(run, same_zstd);
}

}  // namespace kv::golden
