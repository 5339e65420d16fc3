// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// KV-compressor weights: files of the real converter and what the two real loaders did with
// damaged ones.
#include <catch2/catch.hpp>
#include <string>

#include "formats/kvcm/kvcm.h"
#include "tests/golden/checks.h"

namespace kv::golden {
namespace {

std::string In(const nlohmann::json& name) { return "infinilm/" + name.get<std::string>(); }

void CheckHeader(const CompressorWeights& weights, const nlohmann::json& header) {
  CHECK(weights.header.num_layers == header.at("num_layers"));
  CHECK(weights.header.num_heads == header.at("num_heads"));
  CHECK(weights.header.head_dim == header.at("head_dim"));
  CHECK(weights.header.hidden_size == header.at("hidden_size"));
  CHECK(weights.header.compression_factor == header.at("compression_factor"));
  CHECK(weights.header.min_seq_len == header.at("min_seq_len"));
  CHECK(weights.header.blocks_per_layer == header.at("weight_count_per_layer"));
  CHECK(weights.metadata.size() == header.at("metadata_size_bytes"));
}

}  // namespace

// Every .bin the converter wrote: the header reads as it says, and writing gives the bytes back.
void CheckWeightFiles(Run& run) {
  const auto manifest = run.Json("infinilm/manifest.json");
  for (const auto& conversion : manifest.value("conversions", nlohmann::json::array())) {
    if (!conversion.contains("output")) continue;
    const std::string name = In(conversion.at("output"));
    const auto path = run.File(name);
    if (!path) continue;
    INFO(name);
    const CompressorWeights weights = ReadKvcm(Source::Open(*path), KvcmReading::kCompat);
    CheckHeader(weights, conversion.at("header"));
    MemorySink sink;
    WriteKvcm(weights, weights.dtype, sink);
    CHECK(sink.bytes() == run.Load(name));
    run.Checked();
  }
}

// Damaged files: both loaders modelled to the word, our readings as strict as promised.
void CheckWeightCases(Run& run) {
  const auto manifest = run.Json("infinilm/manifest.json");
  if (!manifest.contains("bin_cases")) return;
  for (const auto& item : manifest.at("bin_cases").at("cases")) {
    const std::string name = In(item.at("file"));
    const auto path = run.File(name);
    if (!path) continue;
    INFO(item.at("name"));
    const Source source = Source::Open(*path);
    const ByteSpan bytes = source.files.front().data->bytes();

    const LoaderVerdict csrc = CsrcLoader(bytes, name);
    CHECK(csrc.loads == (item.at("csrc").at("status") == "ok"));
    CHECK(csrc.message == item.at("csrc").at("what"));
    const LoaderVerdict legacy = LegacyLoader(bytes, name);
    CHECK(legacy.loads == (item.at("legacy_src_loader").at("result") == "ok"));
    CHECK(legacy.message == item.at("legacy_src_loader").at("message"));

    const KvcmExamination examined = ExamineKvcm(source);
    CHECK(examined.weights.has_value() == csrc.loads);
    if (!csrc.loads) CHECK_THROWS_AS(ReadKvcm(source, KvcmReading::kStrict), Error);
    run.Checked();
  }
}

}  // namespace kv::golden
