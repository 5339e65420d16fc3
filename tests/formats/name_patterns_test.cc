// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <random>

#include "formats/tensors/tensor_names.h"

namespace kv::name_patterns_test {
namespace {

// Names like those of files, and near misses: pieces of the patterns, numbers of every kind, and
// characters with a meaning in patterns.
class Names {
 public:
  std::string Next() {
    static const std::vector<std::string> kPieces = {"key",
                                                     "keys",
                                                     "k",
                                                     "K",
                                                     "value",
                                                     "values",
                                                     "v",
                                                     "cache",
                                                     "layer",
                                                     "layers",
                                                     "model",
                                                     "self_attn",
                                                     "past_key_values",
                                                     "present",
                                                     "kv_cache",
                                                     "kvcache",
                                                     "kv_chunk",
                                                     "x-l",
                                                     "-l",
                                                     "-",
                                                     "_",
                                                     ".",
                                                     "/",
                                                     "{i}",
                                                     "*",
                                                     "0",
                                                     "1",
                                                     "2",
                                                     "7",
                                                     "00",
                                                     "01",
                                                     "10",
                                                     "999999",
                                                     "0000001",
                                                     "1234567",
                                                     "",
                                                     "\x01",
                                                     "\xc3\xa9",
                                                     " "};
    std::string name;
    if (Below(2) == 0) {  // half of the names fit a pattern
      for (std::string_view rest = NamePatterns()[Below(NamePatterns().size())].text;
           !rest.empty();) {
        if (rest.starts_with("{i}")) {
          name += std::to_string(Below(3) == 0 ? Below(2) : Below(12'000'000));
          rest.remove_prefix(3);
        } else if (rest.starts_with("{x}")) {
          name += kPieces[Below(8)];
          rest.remove_prefix(3);
        } else if (rest.starts_with("{01}")) {
          name += std::to_string(Below(3));
          rest.remove_prefix(4);
        } else {
          name +=
              rest.front() == '*' ? kPieces[Below(kPieces.size())] : std::string(1, rest.front());
          rest.remove_prefix(1);
        }
      }
    }
    for (size_t pieces = Below(name.empty() ? 8 : 3); pieces > 0; --pieces) {
      const std::string& piece = kPieces[Below(kPieces.size())];
      name = Below(2) == 0 ? name + piece : piece + (Below(2) == 0 ? "." : "") + name;
    }
    // Pads the name to about the longest that is allowed.
    if (Below(500) == 0) name.insert(0, 995, 'a');
    return name;
  }

 private:
  size_t Below(size_t count) { return random_() % count; }
  std::mt19937 random_{20261123};
};

TEST_CASE("a name that is known by its shape fits what it fits when every pattern is tried") {
  Names names;
  PatternMemo memo;
  size_t fitting = 0, below = 0;
  for (int i = 0; i < 60'000; ++i) {
    const std::string name = names.Next();
    const NameFit told = memo.Of(name), true_fit = FitName(name);
    if (told.patterns != true_fit.patterns || told.parts_below != true_fit.parts_below) FAIL(name);
    fitting += told.patterns != 0;
    below += told.parts_below != 0;
  }
  CHECK(fitting > 5'000);
  CHECK(below > 2'000);
  CHECK(memo.matched() < 50'000);
}

TEST_CASE("of a million layers a few names are tried on every pattern") {
  PatternMemo memo;
  for (int i = 0; i < 100'000; ++i) {
    for (const char* part : {".keys", ".values"}) {
      const std::string name = "past_key_values.layers." + std::to_string(i) + part;
      REQUIRE(memo.Of(name).FindPrefix(name) == "past_key_values");
    }
  }
  CHECK(memo.matched() <= 6);  // for K and V: number 0, number 1, other numbers
}

TEST_CASE("what stands before a pattern of layers is cut off at its last part") {
  const auto prefix = [](std::string_view name) { return FitName(name).FindPrefix(name); };
  CHECK(prefix("past/key_cache/3") == "past");
  CHECK(prefix("a.b.layers.3.keys") == "a.b");
  CHECK(prefix("k_3").empty());
  CHECK(prefix(".k_3").empty());
  CHECK(prefix("a.weight").empty());
}

}  // namespace
}  // namespace kv::name_patterns_test
