// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/llama_state/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kv::llama_state {
namespace {

constexpr uint32_t kDeepSeek4Magic = 0x34565344;  // "DSV4"

// Models without attention. Their SEQ files and pre-2025 sessions have the grammar of layout A.
constexpr std::string_view kRecurrentArchitectures[] = {"mamba",      "mamba2", "rwkv6",
                                                        "rwkv6qwen2", "rwkv7",  "arwkv7"};

[[noreturn]] void RefuseRecurrent(const RecurrentState& state, const std::string& architecture) {
  throw Error(
      Finding::kUnsupportedKind,
      fmt::format(
          "holds a recurrent state{} ({} of {} layers, {} cells), as Mamba and RWKV keep one, not "
          "a KV cache",
          architecture.empty() ? "" : fmt::format(" of architecture {}", Escaped(architecture)),
          state.states, state.layers, state.cells))
      .Hint("--from opaque archives the bytes as they are");
}

// SESSION: what stands between the architecture and the caches in layouts A to C.
void SkipOutputs(ByteReader& in) {
  const uint64_t at = in.offset();
  const uint32_t outputs = in.U32("output count");
  const ByteSpan rows = in.TakeArray(outputs, 4, "output rows");
  for (uint32_t i = 0; i < outputs; ++i) {
    if (LoadLE<int32_t>(rows.data() + 4 * uint64_t{i}) >= 0) continue;
    throw Error(Finding::kBadField, "an output row is negative").At(at);
  }
  for (const std::string_view field : {"logits", "embeddings"}) {
    const uint64_t count_at = in.offset();
    const uint64_t count = in.U64(field);
    if (outputs == 0 ? count != 0 : count % outputs != 0) {
      throw Error(Finding::kBadField, fmt::format("{} {} for {} outputs", count, field, outputs))
          .At(count_at);
    }
    in.TakeArray(count, 4, field);
  }
}

bool IsRecurrentArchitecture(const std::string& name) {
  return std::find(std::begin(kRecurrentArchitectures), std::end(kRecurrentArchitectures), name) !=
         std::end(kRecurrentArchitectures);
}

// The grammar of layout A's f32 rows is also that of a recurrent state, whose second part (S) is
// wider than its first (R); V is never wider than K.
bool MayBeRecurrent(const Reading& reading) {
  if (reading.layout->has_streams || reading.caches.size() != 1) return false;
  const Cache& cache = reading.caches[0];
  if (cache.v_transposed) return false;
  for (size_t i = 0; i < cache.k.size(); ++i) {
    if (cache.k[i].dtype != DType::kF32 || cache.v[i].dtype != DType::kF32 ||
        cache.v[i].channels <= cache.k[i].channels)
      return false;
  }
  return true;
}

// Throws when the body, under one of its layouts, is nothing but a recurrent state.
void RefuseIfRecurrent(const Body& body) {
  for (const Layout& candidate : body.layouts) {
    ByteReader in = body.in;
    try {
      if (candidate.has_outputs) SkipOutputs(in);
    } catch (const Error&) {
      continue;
    }
    if (const auto state = FindRecurrent(in, body.scope))
      RefuseRecurrent(*state, body.architecture);
  }
}

std::string Words(const std::vector<Reading>& readings) {
  std::string words;
  for (const Reading& reading : readings) {
    words += words.empty() ? "" : " and ";
    words += reading.Word();
  }
  return words;
}

// --layout names a reading in full, or loosely by one letter of its layout.
std::vector<Reading> Chosen(const std::vector<Reading>& readings, const std::string& word) {
  std::vector<Reading> exact, loose;
  for (const Reading& reading : readings) {
    if (word == reading.Word()) exact.push_back(reading);
    const bool has_letter =
        word.size() == 1 && reading.layout->letters.find(word[0]) != std::string_view::npos;
    if (has_letter || word == reading.layout->Word()) loose.push_back(reading);
  }
  return exact.empty() ? loose : exact;
}

}  // namespace

Reading ChooseReading(const Body& body, const std::string& layout) {
  if (body.in.remaining() >= 4) {
    ByteReader in = body.in;
    if (in.U32("magic") == kDeepSeek4Magic) {
      throw Error(Finding::kUnsupportedKind, "holds a DeepSeek V4 cache, whose layout is unknown")
          .At(body.in.offset())
          .Hint("--from opaque archives the bytes as they are");
    }
  }
  Search search;
  for (const Layout& candidate : body.layouts) {
    ByteReader in = body.in;
    try {
      if (candidate.has_outputs) SkipOutputs(in);
    } catch (Error& error) {
      search.Failed(error, candidate, {0, error.offset().value_or(0)});
      continue;
    }
    search.Try(in, candidate, body.scope);
  }
  std::vector<Reading> readings = std::move(search.readings);
  if (readings.empty() || IsRecurrentArchitecture(body.architecture)) {
    RefuseIfRecurrent(body);
    if (readings.empty()) readings = std::move(search.hybrids);
    if (readings.empty()) throw *search.furthest;
  }
  if (!layout.empty()) {
    std::vector<Reading> chosen = Chosen(readings, layout);
    if (chosen.empty()) {
      throw Error(Finding::kBadHeader, fmt::format("the bytes do not fit layout {}, but {}",
                                                   Escaped(layout), Words(readings)));
    }
    readings = std::move(chosen);
  } else if (readings.size() == 1 && MayBeRecurrent(readings[0])) {
    throw Error(
        Finding::kAmbiguousFormat,
        fmt::format("fits layout {} and a recurrent state (Mamba, RWKV)", readings[0].Word()))
        .Hint(fmt::format("give --layout {} if it is an attention cache", readings[0].Word()));
  }
  if (readings.size() > 1) {
    throw Error(Finding::kAmbiguousFormat, fmt::format("the bytes fit layouts {}", Words(readings)))
        .Hint("choose with --layout");
  }
  return readings[0];
}

}  // namespace kv::llama_state
