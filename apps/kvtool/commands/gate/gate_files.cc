// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/gate/gate_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "apps/kvtool/engines.h"
#include "lib/core/base/file.h"
#include "lib/remote/url.h"

namespace kv {
namespace {

constexpr uint64_t kMostConfigBytes = uint64_t{16} << 20;

}  // namespace

bool IsGateConfig(const std::string& path) {
  std::error_code failed;
  if (path == "-") return true;
  if (std::filesystem::is_directory(path, failed)) return false;
  if (!std::filesystem::is_regular_file(path, failed)) {
    return path.find_first_of("*?[") == path.npos && !remote::IsUrl(path);
  }
  std::ifstream file(path, std::ios::binary);
  std::array<char, 512> head;
  file.read(head.data(), head.size());
  return std::find(head.begin(), head.begin() + file.gcount(), '\0') ==
         head.begin() + file.gcount();
}

std::string ReadGateText(const std::string& path) {
  const auto file = FileSource::OpenSmall(path, kMostConfigBytes, "a configuration or summary");
  const ByteSpan bytes = file->bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

gate::Config ReadGateConfig(const std::string& path) {
  try {
    return gate::ParseConfig(ReadGateText(path),
                             std::filesystem::path(path == "-" ? "" : path).parent_path(),
                             Engines());
  } catch (Error& error) {
    throw error.File(path);
  }
}

gate::Baseline ReadGateBaseline(const std::string& path) {
  try {
    return gate::ParseBaseline(ReadGateText(path), path, Engines());
  } catch (Error& error) {
    throw error.File(path);
  }
}

gate::OutputNames PlaceOutputs(gate::OutputNames names) {
  std::error_code ignored;
  const auto type = std::filesystem::status(names.summary_json, ignored).type();
  if (names.summary_json.empty() || type == std::filesystem::file_type::character ||
      type == std::filesystem::file_type::fifo) {
    return names;
  }
  const std::filesystem::path folder = std::filesystem::path(names.summary_json).parent_path();
  if (names.summary_md.empty()) names.summary_md = (folder / "summary.md").string();
  if (names.cases_jsonl.empty()) names.cases_jsonl = (folder / "cases.jsonl").string();
  return names;
}

}  // namespace kv
