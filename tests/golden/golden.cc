// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "tests/golden/golden.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

namespace kv::golden {
namespace fs = std::filesystem;

bool IsOwnSet() {
  const char* given = std::getenv("KVTOOL_GOLDEN_DIR");
  return given == nullptr || *given == '\0';
}

fs::path Root() {
  return IsOwnSet() ? fs::path(KVTOOL_TESTDATA) / "golden"
                    : fs::path(std::getenv("KVTOOL_GOLDEN_DIR"));
}

std::optional<fs::path> Run::File(const std::string& name) {
  fs::path path = Root() / name;
  if (fs::exists(path)) return path;
  ++absent_;
  return std::nullopt;
}

std::optional<fs::path> Run::Trace(const std::string& trace, uint32_t layer, char side) {
  const std::string name = fmt::format("{}-L{}-{}.npy", trace, layer, side);
  std::vector<fs::path> folders = {fs::weakly_canonical(Root()).parent_path() / "data",
                                   fs::path("../shared/data"), fs::path(KVTOOL_TESTDATA)};
  const char* shared = std::getenv("KVTOOL_SHARED_DATA");
  if (shared != nullptr) folders.insert(folders.begin(), shared);
  for (const fs::path& folder : folders) {
    for (const char* below : {"llamacpp/trace", "trace"}) {
      if (fs::exists(folder / below / name)) return folder / below / name;
    }
  }
  ++absent_;
  return std::nullopt;
}

nlohmann::json Run::Json(const std::string& name) {
  const auto path = File(name);
  if (!path) return nlohmann::json::object();
  return nlohmann::json::parse(std::ifstream(*path));
}

Bytes Run::Load(const std::string& name) {
  const auto source = FileSource::Open(Root() / name);
  return {source->bytes().begin(), source->bytes().end()};
}

bool Matches(std::string_view patterns, std::string_view name) {
  std::istringstream words{std::string(patterns)};
  for (std::string pattern; words >> pattern;) {
    if (::fnmatch(pattern.c_str(), std::string(name).c_str(), 0) == 0) return true;
  }
  return false;
}

Bytes FromHex(std::string_view hex) {
  Bytes bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

std::string ToHex(ByteSpan bytes) {
  std::string hex;
  for (std::byte b : bytes) hex += fmt::format("{:02x}", static_cast<unsigned>(b));
  return hex;
}

namespace {

// Searches manifests with several kinds in one array: "MANIFEST#SECTION=KIND" for each item found.
std::set<std::string> KindsInManifests() {
  std::set<std::string> kinds;
  const fs::path blend = Root() / "blend/manifest.json";
  if (fs::exists(blend)) {
    const auto manifest = nlohmann::json::parse(std::ifstream(blend));
    const std::set<std::string> prose = {"schema", "made_with", "how_to_read", "bad_rules",
                                         "inventory"};
    for (const auto& [section, value] : manifest.items()) {
      if (prose.count(section) != 0) continue;
      if (section == "files") {
        for (const auto& item : value)
          kinds.insert("blend#files=" + item.at("format").get<std::string>());
      } else if (section == "bad") {
        for (const auto& item : value)
          kinds.insert("blend#bad=" + item.at("file").get<std::string>());
      } else {
        kinds.insert("blend#" + section);
      }
    }
  }
  const fs::path quant = Root() / "quant/manifest.json";
  if (fs::exists(quant)) {
    const auto manifest = nlohmann::json::parse(std::ifstream(quant));
    for (const auto& vector : manifest.at("vectors"))
      kinds.insert("quant#" + vector.at("kind").get<std::string>());
  }
  const fs::path infinilm = Root() / "infinilm/manifest.json";
  if (fs::exists(infinilm)) {
    const auto manifest = nlohmann::json::parse(std::ifstream(infinilm));
    for (const auto& [section, value] : manifest.items()) {
      if (value.is_array() || value.is_object()) kinds.insert("infinilm#" + section);
    }
  }
  return kinds;
}

int FilesOf(const Row& row) {
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(Root()))
    files += entry.is_regular_file() &&
             Matches(row.files, fs::relative(entry.path(), Root()).generic_string());
  return files;
}

}  // namespace

TEST_CASE("every file and kind of the goldens is in the table") {
  REQUIRE(fs::exists(Root()));
  bool any = false;
  for (const auto& entry : fs::recursive_directory_iterator(Root())) {
    if (!entry.is_regular_file()) continue;
    const std::string name = fs::relative(entry.path(), Root()).generic_string();
    bool found = false;
    for (const Row& row : Table()) {
      found |= Matches(row.files, name);
      any |= row.check != nullptr && Matches(row.files, name);
    }
    INFO("no row of tests/golden/table.cc covers " << name);
    CHECK(found);
  }
  INFO("nothing in " << Root() << " is compared with anything");
  CHECK(any);
  for (const std::string& kind : KindsInManifests()) {
    bool found = false;
    for (const Row& row : Table()) found |= Matches(row.kinds, kind);
    INFO("no row of tests/golden/table.cc covers the kind " << kind);
    CHECK(found);
  }
}

TEST_CASE("golden vectors agree") {
  for (const Row& row : Table()) {
    DYNAMIC_SECTION(row.area) {
      if (row.check == nullptr) {
        const int files = row.later.empty() ? 0 : FilesOf(row);
        if (files > 0)
          fmt::print("golden {:<34} {:5} files not compared: {}\n", row.area, files, row.later);
        continue;
      }
      Run run;
      row.check(run);
      fmt::print("golden {:<34} {:5} checked, {} absent\n", row.area, run.checked(), run.absent());
      if (IsOwnSet()) CHECK(run.checked() >= row.least);
      INFO(FilesOf(row) << " files of " << row.files << ", and nothing was compared with them");
      CHECK((run.checked() > 0 || FilesOf(row) == 0));
    }
  }
}

}  // namespace kv::golden
