// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Feeds a fuzz target every file below the folders given, and each file's prefixes and single-byte
// flips at a few places, so that plain CI without a fuzzing engine still walks the error paths.
//   fuzz_NAME CORPUS...                          where costs are counted, holds them to bounds.txt
//   fuzz_NAME --slowest SECONDS KEEP CORPUS...   searches for expensive inputs and writes them to
//   KEEP
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "tests/fuzz/accepted.h"
#include "tests/fuzz/cost.h"
#include "tests/fuzz/fuzz_repair.h"
#include "tests/fuzz/slowest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;
using kv::fuzz::Cost;
using kv::fuzz::Input;

// The most expensive input so far, by each measure.
struct Highest {
  double steps = 0, memory = 0;
};
Highest highest;

Cost RunOne(const Input& input) {
  kv::fuzz::StartCost();
  LLVMFuzzerTestOneInput(input.data(), input.size());
  const Cost cost = kv::fuzz::StopCost();
  highest.steps = std::max(highest.steps, kv::fuzz::StepRatio(cost, input.size()));
  highest.memory = std::max(highest.memory, kv::fuzz::MemoryRatio(cost, input.size()));
  return cost;
}

size_t Replay(const Input& input) {
  RunOne(input);
  size_t runs = 1;
  const size_t step = input.size() / 48 + 1;
  for (size_t at = 0; at < input.size(); at += step, runs += 2) {
    RunOne({input.begin(), input.begin() + static_cast<std::ptrdiff_t>(at)});
    Input flipped = input;
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

// Reads the files sorted by name, so that a search begins in the same order everywhere.
bool ReadCorpus(const std::vector<std::string>& folders, std::vector<Input>& corpus) {
  std::vector<fs::path> paths;
  for (const std::string& folder : folders) {
    if (!fs::is_directory(folder)) {
      std::fprintf(stderr, "no corpus at %s\n", folder.c_str());
      return false;
    }
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return true;
}

// Compares the most expensive input with the target's line of bounds.txt: NAME STEPS MEMORY.
bool WithinBounds(const std::string& name) {
  std::ifstream file(KVTOOL_FUZZ_BOUNDS);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string target;
    Highest bound;
    if (!(words >> target >> bound.steps >> bound.memory) || target != name) continue;
    std::printf(
        "%.1f steps for each byte read or allocated, at most %.0f; %.1f bytes allocated "
        "for each byte read, at most %.0f\n",
        highest.steps, bound.steps, highest.memory, bound.memory);
    const bool within = highest.steps <= bound.steps && highest.memory <= bound.memory;
    if (!within) std::fprintf(stderr, "an input costs more than the bounds of %s\n", name.c_str());
    return within;
  }
  std::fprintf(stderr, "%s has no line for %s\n", KVTOOL_FUZZ_BOUNDS, name.c_str());
  return false;
}

int ReplayAll(const std::string& name, const std::vector<Input>& corpus) {
  size_t runs = 0;
  RunOne({});
  for (const Input& input : corpus) runs += Replay(input);
  const auto accepted = static_cast<size_t>(kv::fuzz::accepted);
  std::printf("%zu corpus files, %zu inputs, %zu accepted\n", corpus.size(), runs, accepted);
  if (accepted == 0) std::fprintf(stderr, "every input was refused: nothing is tested\n");
  const bool cheap = !kv::fuzz::CostIsCounted() || WithinBounds(name);
  return corpus.empty() || accepted == 0 || !cheap;
}

int Search(const std::string& name, const std::vector<Input>& corpus, int seconds,
           const fs::path& keep) {
  if (!kv::fuzz::CostIsCounted()) {
    std::fprintf(stderr, "costs are counted in builds with KVTOOL_COUNT_STEPS only\n");
    return 2;
  }
  const auto found = SearchSlowest(corpus, std::chrono::seconds(seconds), 1, RunOne);
  std::printf("%s %.1f steps, %.1f bytes; %zu inputs tried\n", name.c_str(), found.steps,
              found.memory, static_cast<size_t>(found.tried));
  const auto write = [&](const char* measure, const Input& input) {
    std::ofstream out(keep / ("slowest_by_" + std::string(measure)), std::ios::binary);
    out.write(reinterpret_cast<const char*>(input.data()),
              static_cast<std::streamsize>(input.size()));
    return static_cast<bool>(out);
  };
  fs::create_directories(keep);
  return !write("steps", found.by_steps) || !write("memory", found.by_memory);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = fs::path(argv[0]).filename().string().substr(sizeof("fuzz_") - 1);
  std::vector<std::string> words(argv + 1, argv + argc);
  const bool search = words.size() > 3 && words[0] == "--slowest";
  const std::vector<std::string> folders(words.begin() + (search ? 3 : 0), words.end());
  std::vector<Input> corpus;
  if (!ReadCorpus(folders, corpus)) return 1;
  if (search) return Search(name, corpus, std::stoi(words[1]), words[2]);
  return ReplayAll(name, corpus);
}
