// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Feeds a fuzz target every file below the folders given, and each file's prefixes and single-byte
// flips at a few places, so that plain CI without a fuzzing engine still walks the error paths.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/accepted.h"
#include "tests/fuzz/fuzz_repair.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

void RunOne(const std::vector<uint8_t>& input) {
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

size_t Replay(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<uint8_t> input{std::istreambuf_iterator<char>(file),
                                   std::istreambuf_iterator<char>()};
  RunOne(input);
  size_t runs = 1;
  const size_t step = input.size() / 48 + 1;
  for (size_t at = 0; at < input.size(); at += step, runs += 2) {
    RunOne({input.begin(), input.begin() + static_cast<std::ptrdiff_t>(at)});
    std::vector<uint8_t> flipped = input;
    flipped[at] ^= static_cast<uint8_t>(0xff >> (at % 8));
    RunOne(flipped);
    if (FuzzRepair != nullptr) {
      const kv::Bytes repaired =
          FuzzRepair(std::as_bytes(std::span(flipped)), static_cast<unsigned>(at / step));
      const auto* bytes = reinterpret_cast<const uint8_t*>(repaired.data());
      RunOne({bytes, bytes + repaired.size()});
      ++runs;
    }
  }
  return runs;
}

}  // namespace

int main(int argc, char** argv) {
  size_t files = 0, runs = 0;
  RunOne({});
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      std::fprintf(stderr, "no corpus at %s\n", argv[i]);
      return 1;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      runs += Replay(entry.path());
      ++files;
    }
  }
  const auto accepted = static_cast<size_t>(kv::fuzz::accepted);
  std::printf("%zu corpus files, %zu inputs, %zu accepted\n", files, runs, accepted);
  if (accepted == 0) std::fprintf(stderr, "every input was refused: nothing is tested\n");
  return files == 0 || accepted == 0;
}
