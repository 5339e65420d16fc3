// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Torch files of the blend set: tensors by key path and hash, and files that must be refused.
#include <catch2/catch.hpp>
#include <cctype>
#include <filesystem>

#include "formats/torch/torch.h"
#include "tests/golden/checks.h"
#include "tests/support/peak_memory.h"
#include "tests/support/sha256.h"

namespace kv::golden {
namespace {

bool IsTorch(const std::string& format) {
  return format.starts_with("torch") || format.starts_with("pickle");
}

// The manifest names dtypes as safetensors does, such as F16 and BOOL.
std::optional<DType> FindDType(std::string name) {
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return ParseDType(name);
}

}  // namespace

void CheckTorchFiles(Run& run) {
  const auto manifest = run.Json("blend/manifest.json");
  for (const auto& item : manifest.value("files", nlohmann::json::array())) {
    if (!IsTorch(item.at("format"))) continue;
    const auto path = run.File("blend/" + item.at("file").get<std::string>());
    if (!path) continue;
    INFO(item.at("file"));
    const TensorFile file = ReadTorch(Source::Open(*path));
    CHECK((file.format == "pickle" || LooksLikeTorch(file.source)));
    CHECK(file.tensors.size() == item.at("tensors").size());
    for (const auto& [name, expected] : item.at("tensors").items()) {
      INFO(name);
      const NamedTensor* tensor = file.Find(name);
      REQUIRE(tensor != nullptr);
      CHECK(tensor->view.dtype == FindDType(expected.at("dtype")));
      CHECK(tensor->view.shape == expected.at("shape").get<std::vector<uint64_t>>());
      CHECK(expected.at("sha256") == test::Sha256(CopyContiguous(tensor->view)));
    }
    for (const auto& check : file.checks) CHECK_NOTHROW(check());
    if (item.contains("object")) CHECK(item.at("object") == file.metadata.at("__class__"));
    run.Checked();
  }
}

void CheckTorchBad(Run& run) {
  const auto manifest = run.Json("blend/manifest.json");
  for (const auto& item : manifest.value("bad", nlohmann::json::array())) {
    const std::string name = item.at("file");
    if (!Matches("bad/pt_* bad/pickle_*", name)) continue;
    const auto path = run.File("blend/" + name);
    if (!path) continue;
    INFO(name);
    const std::string expect = item.value("expect", "reject");
    const test::PeakMemory memory;
    try {
      const TensorFile file = ReadTorch(Source::Open(*path));
      for (const auto& check : file.checks) check();
      for (const NamedTensor& tensor : file.tensors) CopyContiguous(tensor.view);
      CHECK((expect.find("accept") != std::string::npos ||
             (expect.find("warn") != std::string::npos && !file.notes.empty())));
    } catch (const Error& error) {
      CHECK(expect.find("reject") != std::string::npos);
      CHECK((error.code() == ErrorCode::kInvalidData || error.code() == ErrorCode::kUnsupported));
      CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
    }
    CHECK(memory.growth_bytes() < kMostMemory);
    CHECK_FALSE(std::filesystem::exists("KVTOOL_PWNED"));
    CHECK_FALSE(std::filesystem::exists("/tmp/KVTOOL_PWNED"));
    run.Checked();
  }
}

}  // namespace kv::golden
