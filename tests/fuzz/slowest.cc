// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "tests/fuzz/slowest.h"

#include <algorithm>
#include <iterator>
#include <random>

#include "tests/fuzz/fuzz_repair.h"

namespace kv::fuzz {
namespace {

constexpr size_t kMostBytes = 1 << 16;
// Number of inputs kept for each measure: climbing from only one would end at the nearest local
// maximum.
constexpr size_t kKept = 24;

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  Input Mutate(Input input, const Input& other) {
    const size_t changes = 1 + Below(4);
    for (size_t i = 0; i < changes; ++i) ChangeOnce(input, other);
    if (input.size() > kMostBytes) input.resize(kMostBytes);
    if (FuzzRepair == nullptr || Below(8) == 0) return input;
    const Bytes repaired =
        FuzzRepair(std::as_bytes(std::span(input)), static_cast<unsigned>(Below(256)));
    if (repaired.empty() || repaired.size() > kMostBytes) return input;
    const auto* bytes = reinterpret_cast<const uint8_t*>(repaired.data());
    return {bytes, bytes + repaired.size()};
  }

  size_t Below(size_t limit) { return limit == 0 ? 0 : random_() % limit; }

 private:
  void ChangeOnce(Input& input, const Input& other) {
    const size_t at = Below(input.size() + 1);
    const size_t length = std::min(Below(size_t{1} << Below(12)) + 1, input.size() - at);
    const auto begin = input.begin() + static_cast<std::ptrdiff_t>(at);
    switch (Below(6)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<uint8_t>(random_());
        break;
      case 1:
        if (at < input.size()) input[at] ^= static_cast<uint8_t>(1 << Below(8));
        break;
      case 2:
        WriteNumber(input, at);
        break;
      case 3:
        input.erase(begin, begin + static_cast<std::ptrdiff_t>(length));
        break;
      case 4: {  // again
        const Input range(begin, begin + static_cast<std::ptrdiff_t>(length));
        for (size_t i = Below(8) + 1; i > 0 && input.size() < kMostBytes; --i) {
          input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), range.begin(), range.end());
        }
        break;
      }
      default: {  // copies a range of the other input into this one
        const size_t from = Below(other.size());
        const size_t take = std::min(Below(4096) + 1, other.size() - from);
        const auto first = other.begin() + static_cast<std::ptrdiff_t>(from);
        input.insert(begin, first, first + static_cast<std::ptrdiff_t>(take));
      }
    }
  }

  // Large numbers in the place of sizes and counts lead to expensive paths.
  void WriteNumber(Input& input, size_t at) {
    const size_t bytes = std::min(size_t{1} << Below(4), input.size() - at);
    uint64_t value = uint64_t{1} << Below(64);
    if (Below(2) == 0) --value;
    for (size_t i = 0; i < bytes; ++i) input[at + i] = static_cast<uint8_t>(value >> (8 * i));
  }

  std::mt19937_64 random_;
};

struct Ranked {
  double ratio;
  Input input;
};

// Keeps the most expensive inputs, one for each ratio.
bool Keep(std::vector<Ranked>& kept, double ratio, const Input& input) {
  const auto place = std::find_if(kept.begin(), kept.end(),
                                  [&](const Ranked& other) { return other.ratio <= ratio; });
  if (place != kept.end() && place->ratio == ratio) return false;
  if (place == kept.end() && kept.size() == kKept) return false;
  kept.insert(place, {ratio, input});
  if (kept.size() > kKept) kept.pop_back();
  return true;
}

}  // namespace

Slowest SearchSlowest(const std::vector<Input>& corpus, std::chrono::seconds duration,
                      uint64_t seed, const std::function<Cost(const Input&)>& run) {
  Slowest found;
  std::vector<Ranked> by_steps, by_memory;
  const auto attempt = [&](const Input& input) {
    const Cost cost = run(input);
    Keep(by_steps, StepRatio(cost, input.size()), input);
    Keep(by_memory, MemoryRatio(cost, input.size()), input);
    ++found.tried;
  };
  attempt({});
  for (const Input& input : corpus) attempt(input);

  Mutator mutator(seed);
  const auto end = std::chrono::steady_clock::now() + duration;
  while (std::chrono::steady_clock::now() < end) {
    const std::vector<Ranked>& from = mutator.Below(3) == 0 ? by_memory : by_steps;
    const Input parent = from[mutator.Below(from.size())].input;
    const Input& other = corpus.empty() ? parent : corpus[mutator.Below(corpus.size())];
    attempt(mutator.Mutate(parent, other));
  }
  found.by_steps = by_steps.front().input;
  found.steps = by_steps.front().ratio;
  found.by_memory = by_memory.front().input;
  found.memory = by_memory.front().ratio;
  return found;
}

}  // namespace kv::fuzz
