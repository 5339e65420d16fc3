// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The compression step: results of the torch reference and of csrc, InfiniLM's own dump, and what
// csrc did with weights that do not fit.
#include <catch2/catch.hpp>
#include <cctype>
#include <cmath>
#include <regex>

#include "formats/infinilm_dump/infinilm_dump.h"
#include "formats/kvcm/kvcm.h"
#include "formats/registry.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"
#include "lib/engines/infinilm/compressor.h"
#include "tests/golden/checks.h"
#include "tests/support/temp_dir.h"

namespace kv::golden {

namespace {

using nlohmann::json;

// Reads a little-endian float array in C order, the only kind in these vectors.
struct FloatArray {
  std::shared_ptr<const FileSource> file;
  const float* data = nullptr;
  std::vector<uint64_t> shape;

  explicit FloatArray(const std::filesystem::path& path) : file(FileSource::Open(path)) {
    const ByteSpan bytes = file->bytes();
    REQUIRE(bytes.size() >= 10);
    const uint64_t header = LoadLE<uint16_t>(bytes.data() + 8);
    REQUIRE(bytes.size() >= 10 + header);
    const std::string text(AsText(bytes.subspan(10, header)));
    std::smatch match;
    REQUIRE(text.find("'<f4'") != std::string::npos);
    REQUIRE(text.find("'fortran_order': False") != std::string::npos);
    REQUIRE(std::regex_search(text, match, std::regex("\\(([0-9, ]*)\\)")));
    const std::string list = match[1];
    const std::regex number("[0-9]+");
    for (std::sregex_iterator it(list.begin(), list.end(), number), end; it != end; ++it) {
      shape.push_back(std::stoull(it->str()));
    }
    REQUIRE(shape.size() == 5);
    // Elements that remain after division by each extent.
    uint64_t left = (bytes.size() - 10 - header) / sizeof(float);
    for (const uint64_t extent : shape) {
      REQUIRE(extent > 0);
      REQUIRE(left % extent == 0);
      left /= extent;
    }
    REQUIRE(left == 1);
    data = reinterpret_cast<const float*>(bytes.data() + 10 + header);
  }
};

// Returns one batch row of [layers][batch][heads][capacity][head_dim] arrays as a cache.
Snapshot CacheOf(const FloatArray& k, const FloatArray& v, uint64_t batch, uint64_t tokens) {
  REQUIRE(k.shape[0] == v.shape[0]);
  REQUIRE(batch < std::min(k.shape[1], v.shape[1]));
  Snapshot snapshot;
  const auto tensor = [&](const FloatArray& array, uint64_t layer) {
    const uint64_t heads = array.shape[2], capacity = array.shape[3], dim = array.shape[4];
    KvTensor made{DType::kF32, static_cast<uint32_t>(heads), static_cast<uint32_t>(dim), true, {}};
    const float* data = array.data + (layer * array.shape[1] + batch) * heads * capacity * dim;
    made.pieces.push_back({reinterpret_cast<const std::byte*>(data),
                           std::min(tokens, capacity),
                           {dim * sizeof(float)},
                           {capacity * dim * sizeof(float)},
                           {sizeof(float)}});
    return made;
  };
  for (uint32_t layer = 0; layer < k.shape[0]; ++layer) {
    snapshot.layers.push_back({layer, {}, {}, tensor(k, layer), tensor(v, layer)});
  }
  return snapshot;
}

// Returns the largest difference from one batch row of an expected
// [layers][batch][heads][tokens][dim] array.
double MaxDifference(const Snapshot& got, const FloatArray& expected, uint64_t batch,
                     bool is_value) {
  double worst = 0;
  REQUIRE(got.layers.size() == expected.shape[0]);
  REQUIRE(batch < expected.shape[1]);
  const uint64_t row = expected.shape[2] * expected.shape[3] * expected.shape[4];
  for (size_t layer = 0; layer < got.layers.size(); ++layer) {
    const KvTensor& tensor = is_value ? *got.layers[layer].v : got.layers[layer].k;
    const std::vector<float> values =
        GatherFloats(tensor, 0, tensor.tokens(), Order::kHeadTokenDim);
    REQUIRE(values.size() == row);
    const float* wanted = expected.data + (layer * expected.shape[1] + batch) * row;
    for (size_t i = 0; i < values.size(); ++i) {
      const double difference = std::abs(double{values[i]} - double{wanted[i]});
      worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    }
  }
  return worst;
}

struct Case {
  CompressorWeights weights;
  StepSettings settings;
  FloatArray k, v, expected_k, expected_v;
};

// Returns the inputs of a case; nullopt if one of its files is missing from this data set.
std::optional<Case> LoadCase(Run& run, const json& manifest, const json& item) {
  const auto weights = run.File(InInfinilm(item.at("weights")));
  const auto k = run.File(InInfinilm(manifest.at("compress_inputs").at("k")));
  const auto v = run.File(InInfinilm(manifest.at("compress_inputs").at("v")));
  const auto expected_k = run.File(InInfinilm(item.at("expected_k")));
  const auto expected_v = run.File(InInfinilm(item.at("expected_v")));
  if (!weights || !k || !v || !expected_k || !expected_v) return std::nullopt;
  Case loaded{ReadKvcm(Source::Open(*weights), KvcmReading::kStrict),
              {},
              FloatArray(*k),
              FloatArray(*v),
              FloatArray(*expected_k),
              FloatArray(*expected_v)};
  loaded.settings.factor = item.value("config_compression_factor", 0u);
  loaded.settings.min_seq_len = item.value("config_min_seq_len", 0u);
  loaded.settings.image_len = item.at("image_len");
  return loaded;
}

void CheckFloatCase(const json& item, const Case& loaded) {
  ThreadPool pool(2);
  for (uint64_t batch = 0; batch < item.at("batch"); ++batch) {
    const Snapshot cache = CacheOf(loaded.k, loaded.v, batch, item.at("seq_len"));
    const StepPlan plan = PlanStep(cache, loaded.weights, loaded.settings);
    CHECK(plan.new_length == item.at("new_len_csrc"));
    CHECK(plan.factor == item.at("effective_factor"));
    CHECK(plan.min_seq_len == item.at("effective_min_seq_len"));
    const Snapshot result = CompressCache(cache, loaded.weights, plan, WeightsCast::kNearest, pool);
    CHECK(MaxDifference(result, loaded.expected_k, batch, false) <= 1e-5);
    CHECK(MaxDifference(result, loaded.expected_v, batch, true) <= 1e-5);
    const CsrcOutcome csrc = SimulateCsrc(loaded.weights, cache, loaded.settings);
    CHECK(csrc.effect == CsrcEffect::kCompresses);
    CHECK(csrc.returned_length == item.at("new_len_csrc"));
  }
}

// Weights of one type on a cache of another: with csrc's cast, sums and single rounding.
void CheckDtypeCase(const json& item, const Case& loaded) {
  ThreadPool pool(2);
  std::string name = item.at("cache_dtype");
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const std::optional<DType> dtype = ParseDType(name);
  REQUIRE(dtype);
  const Snapshot cache =
      CastSnapshot(CacheOf(loaded.k, loaded.v, 0, item.at("seq_len")), *dtype, pool);
  const StepPlan plan = PlanStep(cache, loaded.weights, loaded.settings);
  CHECK(plan.new_length == item.at("new_len"));
  const Snapshot result = CompressCache(cache, loaded.weights, plan, WeightsCast::kTruncate, pool);
  const double tolerance = *dtype == DType::kF32 ? 1e-5 : 0;
  CHECK(MaxDifference(result, loaded.expected_k, 0, false) <= tolerance);
  CHECK(MaxDifference(result, loaded.expected_v, 0, true) <= tolerance);
}

// Checks the effect of csrc on a cache with a file that it loads: the returned length and the
// changed layers.
void CheckCsrcCase(const json& item, const std::filesystem::path& file) {
  const json& ran = item.at("run");
  const CompressorWeights weights = ReadKvcm(Source::Open(file), KvcmReading::kCompat);
  StepSettings settings;
  settings.factor = ran.at("config_compression_factor");
  settings.min_seq_len = ran.at("config_min_seq_len");
  settings.image_len = ran.at("image_len");
  settings.seq_len = ran.at("seq_len");
  const std::vector<CsrcLayer> layers(
      ran.at("layers"), {ran.at("head_dim").get<uint32_t>(), ran.at("head_dim").get<uint32_t>()});
  const CsrcOutcome outcome = SimulateCsrc(weights, layers, ran.at("capacity"), settings);
  if (ThrewInStep(item)) {
    CHECK(outcome.effect == CsrcEffect::kThrows);
    return;
  }
  CHECK(outcome.returned_length == item.at("csrc").at("new_len"));
  CHECK(outcome.layers_overwritten ==
        item.at("csrc").at("layers_modified").get<std::vector<bool>>());
}

}  // namespace

void CheckMlpStep(Run& run) {
  const json manifest = run.Json("infinilm/manifest.json");
  if (manifest.empty()) return;
  for (const json& item : manifest.value("compress_cases", json::array())) {
    const std::optional<Case> loaded = LoadCase(run, manifest, item);
    if (!loaded) continue;
    INFO(item.at("id"));
    CheckFloatCase(item, *loaded);
    run.Checked();
  }
  const json dtypes = manifest.value("compress_dtype_cases", json::object());
  for (const json& item : dtypes.value("cases", json::array())) {
    const std::optional<Case> loaded = LoadCase(run, manifest, item);
    if (!loaded) continue;
    INFO(item.at("expected_k"));
    CheckDtypeCase(item, *loaded);
    run.Checked();
  }
  const json damaged = manifest.value("bin_cases", json::object());
  for (const json& item : damaged.value("cases", json::array())) {
    if (item.at("csrc").at("status") != "ok" && !ThrewInStep(item)) continue;
    const auto file = run.File(InInfinilm(item.at("file")));
    if (!file) continue;
    INFO(item.at("name"));
    CheckCsrcCase(item, *file);
    run.Checked();
  }
}

// Reads the generator's own dump, compresses it again and writes it: all three files are equal byte
// for byte.
void CheckMlpDump(Run& run) {
  const json manifest = run.Json("infinilm/manifest.json");
  if (!manifest.contains("dump_kv")) return;
  std::smatch name;
  const std::string said = manifest.at("dump_kv").at("weights");
  REQUIRE(std::regex_search(said, name, std::regex("bin/[^ ]+\\.bin")));
  const auto weights_file = run.File("infinilm/" + name.str());
  if (!weights_file) return;
  for (const json& file : manifest.at("dump_kv").at("files")) {
    if (!run.File(InInfinilm(file))) return;
  }
  const std::string folder = (Root() / "infinilm/dump_kv").string();
  const Snapshot cache = OpenSnapshot(Source::Open(folder), {});
  CHECK(cache.format == "infinilm-dump");
  const infinilm::DumpMeta meta = infinilm::ParseDumpMeta(run.Load("infinilm/dump_kv/meta.json"));
  const CompressorWeights weights = ReadKvcm(Source::Open(*weights_file), KvcmReading::kStrict);
  StepSettings settings;
  settings.factor = static_cast<uint32_t>(meta.compression_factor);
  settings.min_seq_len = static_cast<uint32_t>(meta.min_seq_len);
  settings.image_len = meta.image_len;
  const StepPlan plan = PlanStep(cache, weights, settings);
  CHECK(plan.new_length == meta.seq_len_out);
  ThreadPool pool(2);
  const Snapshot result = CompressCache(cache, weights, plan, WeightsCast::kNearest, pool);
  const test::TempDir folder_of_ours;
  const std::filesystem::path made = folder_of_ours / "dump";
  infinilm::WriteDumpPair(cache, result, plan, made.string(), Overwrite::kRefuse);
  for (const json& file : manifest.at("dump_kv").at("files")) {
    const std::string base = std::filesystem::path(file.get<std::string>()).filename().string();
    INFO(base);
    const auto written = FileSource::Open(made / base);
    CHECK(AsText(written->bytes()) == AsText(run.Load(InInfinilm(file))));
    run.Checked();
  }

  OpenOptions output;
  output.layout = "output";
  const Snapshot expected = OpenSnapshot(Source::Open(folder), output);
  for (size_t i = 0; i < expected.layers.size(); ++i) {
    CHECK(Gather(expected.layers[i].k, 0, meta.seq_len_out, Order::kHeadTokenDim) ==
          Gather(result.layers[i].k, 0, meta.seq_len_out, Order::kHeadTokenDim));
  }
  run.Checked();
}

}  // namespace kv::golden
