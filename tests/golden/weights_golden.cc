// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// KV-compressor weights: files of the real converter and what the two real loaders did with
// damaged ones.
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "formats/weights_file.h"
#include "tests/golden/checks.h"
#include "tests/support/memory_sink.h"
#include "tests/support/sha256.h"

namespace kv::golden {
namespace {

void CheckHeader(const CompressorWeights& weights, const nlohmann::json& header) {
  constexpr DType kCodes[] = {DType::kF16, DType::kBF16, DType::kF32};
  CHECK(weights.dtype == kCodes[header.at("dtype_code").get<size_t>()]);
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

// Checks every .bin that the converter wrote: the header is read as stated, and writing it again
// gives the same bytes.
void CheckWeightFiles(Run& run) {
  const auto manifest = run.Json("infinilm/manifest.json");
  for (const auto& conversion : manifest.value("conversions", nlohmann::json::array())) {
    if (!conversion.contains("output")) continue;
    const std::string name = InInfinilm(conversion.at("output"));
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

bool ThrewInStep(const nlohmann::json& item) {
  const nlohmann::json& csrc = item.at("csrc");
  if (csrc.at("status") == "ok" || item.at("legacy_src_loader").at("result") != "ok") return false;
  const std::string what = csrc.at("what");
  for (const char* loader : {"Unsupported weight format", "Failed to ", "Invalid ",
                             "Unexpected EOF", "std::bad_alloc", "cannot create std::vector"}) {
    if (what.starts_with(loader)) return false;
  }
  return true;
}

// Checks damaged files: the models of both loaders agree word for word, and kvtool's readings are
// as strict as documented.
void CheckWeightCases(Run& run) {
  const auto manifest = run.Json("infinilm/manifest.json");
  if (!manifest.contains("bin_cases")) return;
  for (const auto& item : manifest.at("bin_cases").at("cases")) {
    const auto path = run.File(InInfinilm(item.at("file")));
    if (!path) continue;
    INFO(item.at("name"));
    const Source source = Source::Open(*path);
    const ByteSpan bytes = source.files.front().data->bytes();

    const std::string as_given = item.at("file");  // the path as it was given to both loaders
    const LoaderVerdict csrc = CsrcLoader(bytes, as_given);
    if (!ThrewInStep(item)) {
      CHECK(csrc.loads == (item.at("csrc").at("status") == "ok"));
      CHECK(item.at("csrc").at("what") == csrc.message);
    } else {
      CHECK(csrc.loads);
    }
    const LoaderVerdict legacy = LegacyLoader(bytes, as_given);
    CHECK(legacy.loads == (item.at("legacy_src_loader").at("result") == "ok"));
    CHECK(item.at("legacy_src_loader").at("message") == legacy.message);

    const KvcmExamination examined = ExamineKvcm(source);
    CHECK(examined.weights.has_value() == csrc.loads);
    if (!csrc.loads) CHECK_THROWS_AS(ReadKvcm(source, KvcmReading::kStrict), Error);
    run.Checked();
  }
}

namespace {

struct Conversion {
  CheckpointOptions options;
  DType dtype = DType::kF16;
};

// Parses the converter's command line; returns nothing for arguments that its parser or its header
// refuses.
std::optional<Conversion> ParseArgs(const nlohmann::json& args) {
  Conversion conversion;
  for (size_t i = 0; i + 1 < args.size(); i += 2) {
    const std::string flag = args[i], value = args[i + 1];
    CheckpointOptions& options = conversion.options;
    if (flag == "--dtype") {
      if (value != "fp16" && value != "bf16" && value != "fp32") return std::nullopt;
      conversion.dtype = *ParseDType(value);
    } else if (flag == "--prefix-order") {
      options.prefix_order = ParsePrefixOrder(value);
    } else if (flag == "--slot-order") {
      options.slot_order = ParseSlotOrder(value);
    } else {
      const long long given = std::stoll(value);
      const auto number = static_cast<uint32_t>(std::max(given, 0LL));  // 0 and below: infer
      if (flag == "--compression-factor") {
        options.compression_factor = number;
      } else if (flag == "--head-dim") {
        options.head_dim = number;
      } else if (given < 0 || given > UINT32_MAX) {
        return std::nullopt;
      } else if (flag == "--min-seq-len") {
        options.min_seq_len = number;
      } else if (flag == "--num-heads") {
        options.num_heads = number;
      } else {
        FAIL("unknown converter option " << flag);
      }
    }
  }
  return conversion;
}

// Returns the bytes that kvtool's conversion writes, or nothing if it refuses.
std::optional<Bytes> Convert(const std::filesystem::path& path, const Conversion& conversion) {
  try {
    const WeightsFile file =
        OpenWeights(Source::Open(path), {conversion.options, KvcmReading::kStrict});
    MemorySink sink;
    WriteKvcm(file.weights, conversion.dtype, sink);
    return sink.bytes();
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

// Checks every run of the real converter: the same bytes, or a refusal where it failed, unless the
// manifest permits a better result. Text-only checkpoints are detected instead of failing half-way.
void CheckWeightConversions(Run& run) {
  const auto manifest = run.Json("infinilm/manifest.json");
  for (const auto& item : manifest.value("conversions", nlohmann::json::array())) {
    const std::string name = InInfinilm(item.at("input"));
    const auto path = run.File(name);
    const auto conversion = ParseArgs(item.at("args"));
    if (!path || !conversion) continue;
    INFO(name << " " << item.at("args").dump());
    const std::optional<Bytes> bytes = Convert(*path, *conversion);
    const std::string expects = item.value("product_expects", "");
    INFO("product_expects '" << expects << "'");
    if (expects.starts_with("refuse") || expects.starts_with("error: ")) {
      CHECK_FALSE(bytes.has_value());
    } else if (!expects.empty()) {
      // A file of weights, or of a checkpoint whose conversion gives the same bytes.
      const size_t weights = expects.find("bin/"), checkpoint = expects.find("pth/");
      REQUIRE((weights != expects.npos || checkpoint != expects.npos));
      REQUIRE(bytes.has_value());
      if (weights != expects.npos) {
        CHECK(*bytes == run.Load("infinilm/" + expects.substr(weights)));
      } else if (const auto other = run.File("infinilm/" + expects.substr(checkpoint))) {
        CHECK(bytes == Convert(*other, *conversion));
        CHECK(item.at("sha256") == test::Sha256(*bytes));
      }
    } else if (item.at("exit") == 0) {
      REQUIRE(bytes.has_value());
      CHECK(item.at("sha256") == test::Sha256(*bytes));
    } else if (!item.contains("product_may") && item.at("error").get<std::string>().find(
                                                    "weight: compress_i") == std::string::npos) {
      CHECK_FALSE(bytes.has_value());
    }
    run.Checked();
  }
  CHECK_FALSE(std::filesystem::exists("KVTOOL_PWNED"));
}

}  // namespace kv::golden
