// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cctype>

#include "formats/registry.h"
#include "lib/core/snapshot/layout.h"
#include "tests/golden/checks.h"
#include "tests/support/sha256.h"

namespace kv::golden {
namespace {

nlohmann::json Section(Run& run, const char* name) {
  const nlohmann::json manifest = run.Json("blend/manifest.json");
  return manifest.contains(name) ? manifest.at(name) : nlohmann::json::array();
}

// Returns a tensor such as "k.3" of a snapshot whose heads are one row each, or null.
const KvTensor* Tensor(const Snapshot& snapshot, const std::string& name) {
  const LayerKv* layer = snapshot.Find(static_cast<uint32_t>(std::stoul(name.substr(2))));
  if (layer == nullptr) return nullptr;
  return name[0] == 'k' ? &layer->k : layer->v ? &*layer->v : nullptr;
}

}  // namespace

void CheckLlamaFiles(Run& run) {
  for (const auto& item : Section(run, "files")) {
    if (!item.at("format").get<std::string>().starts_with("llama.cpp")) continue;
    const auto path = run.File("blend/" + item.at("file").get<std::string>());
    if (!path) continue;
    INFO(*path);
    const Snapshot snapshot = OpenSnapshot(Source::Open(*path), {});
    CHECK(snapshot.format == "llama-state");
    if (item.contains("tokens")) {
      CHECK(nlohmann::json(snapshot.tokens) == item.at("tokens"));
      run.Checked();
    }
    CHECK(2 * snapshot.layers.size() == item.at("tensors").size());
    for (const auto& [name, expected] : item.at("tensors").items()) {
      INFO(name);
      const KvTensor* tensor = Tensor(snapshot, name);
      REQUIRE(tensor != nullptr);
      CHECK(expected.at("shape") == nlohmann::json({tensor->tokens(), tensor->channels()}));
      std::string dtype = expected.at("dtype");
      for (char& c : dtype) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      CHECK(ParseDType(dtype) == tensor->dtype);
      const Bytes values = Gather(*tensor, 0, tensor->tokens(), Order::kTokenHeadDim);
      CHECK(expected.at("sha256") == test::Sha256(values));
      run.Checked();
    }
  }
}

void CheckLlamaBad(Run& run) {
  for (const auto& item : Section(run, "bad")) {
    const auto name = item.at("file").get<std::string>();
    if (!Matches("bad/llama_*", name)) continue;
    const auto path = run.File("blend/" + name);
    if (!path) continue;
    INFO(name);
    OpenOptions asked;
    asked.from = std::string("llama-state");
    CHECK_THROWS_AS(OpenSnapshot(Source::Open(*path), {}), Error);
    CHECK_THROWS_AS(OpenSnapshot(Source::Open(*path), asked), Error);
    run.Checked();
  }
}

}  // namespace kv::golden
