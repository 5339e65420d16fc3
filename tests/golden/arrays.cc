// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// safetensors, npy and npz: every tensor of the valid files, every bad file refused in little
// memory.
#include <catch2/catch.hpp>
#include <cmath>

#include "formats/npy/npy.h"
#include "formats/safetensors/safetensors.h"
#include "lib/core/kernels/dequantise.h"
#include "tests/golden/checks.h"
#include "tests/support/peak_memory.h"
#include "tests/support/sha256.h"

namespace kv::golden {
namespace {

using Reader = TensorFile (*)(Source, const OpenOptions&);

Reader ReaderFor(const std::string& file) {
  if (Matches("*.safetensors", file)) return ReadSafetensors;
  return Matches("*.npz", file) ? ReadNpz : ReadNpy;
}

// Manifests name dtypes as safetensors does.
std::string ManifestWord(DType dtype) {
  std::string word(Name(dtype));
  for (char& c : word) c = static_cast<char>(std::toupper(c));
  return word;
}

// Reads a value as JSON writes it; NaN and infinities are texts.
double NumberOf(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string word = value.get<std::string>();
  REQUIRE((word == "NaN" || word == "Infinity" || word == "-Infinity"));
  return word == "NaN" ? NAN : word == "Infinity" ? INFINITY : -INFINITY;
}

// Checks files for which the manifest gives the bytes and meaning of each tensor instead of a hash.
void CheckDecoded(const nlohmann::json& item, const TensorFile& file, Run& run) {
  CHECK(file.tensors.size() == item.at("raw").size());
  for (const auto& [name, bytes] : item.at("raw").items()) {
    INFO("tensor '" << name << "'");
    const NamedTensor* found = file.Find(name);
    REQUIRE(found != nullptr);
    const Bytes raw = CopyContiguous(found->view);
    REQUIRE(raw.size() == bytes.size());
    for (size_t i = 0; i < raw.size(); ++i) CHECK(raw[i] == static_cast<std::byte>(bytes[i]));
    const auto& decoded = item.at("decoded").at(name);
    REQUIRE(found->view.elements() == decoded.size());
    std::vector<float> values(decoded.size());
    ToFloats(found->view.dtype, raw, values);
    for (size_t i = 0; i < values.size(); ++i) {
      const double expected = NumberOf(decoded[i]);
      INFO("byte " << bytes[i * raw.size() / values.size()] << " is " << expected);
      CHECK((std::isnan(expected) ? std::isnan(values[i]) : double{values[i]} == expected));
      CHECK(std::signbit(values[i]) ==
            (std::isnan(expected) ? std::signbit(values[i]) : std::signbit(expected)));
    }
    run.Checked();
  }
}

void CheckTensors(const nlohmann::json& item, const TensorFile& file, Run& run) {
  for (const auto& check : file.checks) CHECK_NOTHROW(check());
  if (item.contains("raw")) CheckDecoded(item, file, run);
  if (!item.contains("tensors")) return;
  const auto& expected = item.at("tensors");
  CHECK(file.tensors.size() == expected.size());
  for (const auto& [name, tensor] : expected.items()) {
    INFO("tensor '" << name << "'");
    const NamedTensor* found = file.Find(name);
    REQUIRE(found != nullptr);
    CHECK(ManifestWord(found->view.dtype) == tensor.at("dtype").get<std::string>());
    CHECK(found->view.shape == tensor.at("shape").get<std::vector<uint64_t>>());
    CHECK(test::Sha256(CopyContiguous(found->view)) == tensor.at("sha256").get<std::string>());
    run.Checked();
  }
  if (item.contains("metadata")) {
    CHECK(file.metadata == item.at("metadata").get<std::map<std::string, std::string>>());
    run.Checked();
  }
}

void CheckFiles(Run& run, std::string_view formats) {
  const nlohmann::json manifest = run.Json("blend/manifest.json");
  for (const auto& item : manifest.value("files", nlohmann::json::array())) {
    const std::string name = item.at("file");
    if (!Matches(formats, item.at("format").get<std::string>())) continue;
    const auto path = run.File("blend/" + name);
    if (!path) continue;
    INFO(name);
    CheckTensors(item, ReaderFor(name)(Source::Open(*path), {}), run);
  }
}

// Performs everything that a reader does before a value is used: parsing, inflating, checking.
bool Accepts(const std::filesystem::path& path, Reader read) {
  try {
    const TensorFile file = read(Source::Open(path), {});
    for (const auto& check : file.checks) check();
    for (const NamedTensor& tensor : file.tensors) CopyContiguous(tensor.view);
    return true;
  } catch (const Error& error) {
    INFO(error.what());
    CHECK(error.code() != ErrorCode::kInternal);
    CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
    return false;
  }
}

void CheckBad(Run& run, std::string_view files) {
  const nlohmann::json manifest = run.Json("blend/manifest.json");
  for (const auto& item : manifest.value("bad", nlohmann::json::array())) {
    const std::string name = item.at("file");
    if (!Matches(files, name)) continue;
    const auto path = run.File("blend/" + name);
    if (!path) continue;
    const std::string expect = item.value("expect", "reject");
    INFO(name << ": " << expect);
    const test::PeakMemory memory;
    const bool accepted = Accepts(*path, ReaderFor(name));
    CHECK(memory.growth_bytes() < kMostMemory);
    const bool may_accept = expect.find("accept") != expect.npos;
    const bool may_reject =
        expect.find("reject") != expect.npos || expect.find("limit") != expect.npos;
    CHECK((accepted ? may_accept : may_reject));
    run.Checked();
  }
}

}  // namespace

void CheckSafetensorsFiles(Run& run) { CheckFiles(run, "safetensors"); }
void CheckSafetensorsBad(Run& run) { CheckBad(run, "bad/st_*"); }
void CheckNpyFiles(Run& run) { CheckFiles(run, "npy npz"); }
void CheckNpyBad(Run& run) { CheckBad(run, "bad/np*"); }

}  // namespace kv::golden
