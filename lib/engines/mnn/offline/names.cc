// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lib/engines/mnn/offline/offline.h"

namespace kv::mnn::offline {
namespace {

constexpr std::string_view kEntryModes[] = {"per_meta", "aggregate", "chunked", "chunked_grouped"};
constexpr std::string_view kCodecModes[] = {"legacy", "adaptive_v22"};
constexpr std::string_view kScopes[] = {"front_n", "layer_range", "layer_ids"};
constexpr std::string_view kStages[] = {"both", "prefill", "decode"};
constexpr std::string_view kPredictors[] = {"raw", "delta_seq", "xor_seq", "pair_delta",
                                            "pair_delta_delta_seq"};
constexpr std::string_view kStreamNames[] = {"k_hi", "k_lo", "v_hi", "v_lo"};

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

}  // namespace

std::string_view Name(EntryMode mode) { return kEntryModes[static_cast<size_t>(mode)]; }
std::string_view Name(CodecMode mode) { return kCodecModes[static_cast<size_t>(mode)]; }
std::string_view Name(Scope scope) { return kScopes[static_cast<size_t>(scope)]; }
std::string_view Name(Stage stage) { return kStages[static_cast<size_t>(stage)]; }
std::string_view Name(Predictor predictor) { return kPredictors[static_cast<size_t>(predictor)]; }
std::string_view Name(Stream stream) { return kStreamNames[stream]; }

std::vector<Predictor> ParsePredictorList(std::string_view list, std::string_view flag) {
  std::vector<Predictor> predictors;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view word = Trimmed(list.substr(begin, end - begin));
    begin = end + 1;
    if (word.empty()) continue;
    const auto* known = std::find(std::begin(kPredictors), std::end(kPredictors), word);
    if (known == std::end(kPredictors)) {
      throw Error(Finding::kUsage, fmt::format("{} '{}': expected one of {}", flag,
                                               Escaped(word, 40), fmt::join(kPredictors, ", ")));
    }
    const auto predictor = static_cast<Predictor>(known - std::begin(kPredictors));
    if (std::find(predictors.begin(), predictors.end(), predictor) == predictors.end()) {
      predictors.push_back(predictor);
    }
  }
  if (predictors.empty()) throw Error(Finding::kUsage, fmt::format("{}: the list is empty", flag));
  return predictors;
}

std::array<std::vector<Predictor>, kStreams> Options::DefaultPredictors() {
  const std::vector<Predictor> along = {Predictor::kRaw, Predictor::kDeltaSeq, Predictor::kXorSeq};
  std::vector<Predictor> all = along;
  all.insert(all.end(), {Predictor::kPairDelta, Predictor::kPairDeltaDeltaSeq});
  return {all, all, along, along};
}

Options OnlineSimOptions() {
  Options options;
  options.entry_mode = EntryMode::kChunkedGrouped;
  options.chunk_tokens = 192;
  options.framing_bytes = 8;
  return options;
}

}  // namespace kv::mnn::offline
