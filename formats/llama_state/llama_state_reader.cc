// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads llama.cpp's session files, sequence files and blobs: containers, the choice of a layout,
// and the snapshot's views and facts.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "formats/format.h"
#include "formats/key_pairs.h"
#include "formats/llama_state/llama_state.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv::llama_state {
namespace {

// The last part of a file, which all containers have.
struct Body {
  ByteReader in;
  Scope scope;
  std::span<const Layout> layouts;
  std::string architecture;
};

constexpr uint32_t kDeepSeek4Magic = 0x34565344;  // "DSV4"

// Models without attention. Their SEQ files and pre-2025 sessions have the grammar of layout A.
constexpr std::string_view kRecurrentArchitectures[] = {"mamba",      "mamba2", "rwkv6",
                                                        "rwkv6qwen2", "rwkv7",  "arwkv7"};

[[noreturn]] void RefuseRecurrent(const RecurrentState& state, const std::string& architecture) {
  throw Error(Finding::kUnsupportedKind,
              "holds a recurrent state{} ({} of {} layers, {} cells), as Mamba and RWKV keep one, "
              "not a KV cache",
              architecture.empty() ? "" : fmt::format(" of architecture {}", Escaped(architecture)),
              state.states, state.layers, state.cells)
      .Hint("--from opaque archives the bytes as they are");
}

// Skips what SESSION files of layouts A to C have between the architecture and the caches.
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
      throw Error(Finding::kBadField, "{} {} for {} outputs", count, field, outputs).At(count_at);
    }
    in.TakeArray(count, 4, field);
  }
}

// Returns true if the rows may be a recurrent state, which has the grammar of f32 rows in layout A.
// Its second part (S), read as V, is wider than its first (R), read as K. Real V is never wider.
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

// Throws if the body, under one of its layouts, is only a recurrent state.
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

// Returns the interpretations that --layout names, completely or by the letter of a layout.
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

// Returns the one interpretation that fits the body, or the one that `layout` (--layout, may be
// empty) names. Throws the error of the best attempt, kAmbiguousFormat if several interpretations
// fit, and kUnsupportedKind for recurrent, hybrid and DeepSeek V4 states.
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
  if (readings.empty() || Contains(kRecurrentArchitectures, body.architecture)) {
    RefuseIfRecurrent(body);
    if (readings.empty()) readings = std::move(search.hybrids);
    if (readings.empty()) throw *search.furthest;
  }
  if (!layout.empty()) {
    std::vector<Reading> chosen = Chosen(readings, layout);
    if (chosen.empty()) {
      throw Error(Finding::kBadHeader, "the bytes do not fit layout {}, only {}", Escaped(layout),
                  Words(readings));
    }
    readings = std::move(chosen);
  } else if (readings.size() == 1 && MayBeRecurrent(readings[0])) {
    throw Error(Finding::kAmbiguousFormat, "fits layout {} and a recurrent state (Mamba, RWKV)",
                readings[0].Word())
        .Hint("give --layout {} if it is an attention cache", readings[0].Word());
  }
  if (readings.size() > 1) {
    throw Error(Finding::kAmbiguousFormat, "the bytes fit layouts {}", Words(readings))
        .Hint("choose with --layout");
  }
  return readings[0];
}

// Returns the name of a cache. Files do not record it; it follows from the order of the caches and
// from which of them have V.
std::string_view GroupName(const Reading& reading, size_t i) {
  const std::vector<Cache>& caches = reading.caches;
  if (caches.size() == 1) return "";
  if (caches.size() == 2) return i == 0 ? "full" : caches[1].has_v ? "swa" : "index";
  return i == 0 ? "full" : i == 1 ? "index" : "swa";
}

CellGroup ReadCells(const FileSource& file, const Cache& cache, const Layout& layout, Scope scope,
                    std::string_view name) {
  CellGroup group{.group = std::string(name),
                  .streams = static_cast<uint32_t>(cache.streams.size()),
                  .cells = {}};
  uint64_t total = 0;
  for (const Stream& stream : cache.streams) total += stream.cells;
  group.cells.reserve(total);
  group.extension_words = layout.extension / sizeof(int32_t);
  group.extensions.reserve(total * group.extension_words);
  std::vector<int32_t> ids;
  for (uint32_t s = 0; s < cache.streams.size(); ++s) {
    const Stream& stream = cache.streams[s];
    ByteReader in(file.bytes().subspan(stream.cells_offset), stream.cells_offset);
    for (uint32_t i = 0; i < stream.cells; ++i) {
      const CellRecord record = ReadCell(in, layout, scope);
      Cell& cell = group.cells.emplace_back();
      cell.position = record.position;
      cell.stream = s;
      ids.resize(record.ids.size() / 4);
      if (!ids.empty()) std::memcpy(ids.data(), record.ids.data(), record.ids.size());
      cell.sequences = SequenceIds(ids);
      for (uint32_t w = 0; w < group.extension_words; ++w)
        group.extensions.push_back(LoadLE<int32_t>(record.extension.data() + 4 * w));
    }
    // Unmaps the cell records, which dominate the file of a small model with many tokens.
    file.Drop(stream.cells_offset, in.offset() - stream.cells_offset);
  }
  return group;
}

// Returns one piece per stream with cells. The row counts as one head until the heads are known.
KvTensor Rows(const FileSource& file, const Cache& cache, const RowShape& shape, uint32_t layer,
              bool is_value) {
  const Order order = is_value && cache.v_transposed ? Order::kHeadDimToken : Order::kTokenHeadDim;
  KvTensor tensor{.dtype = shape.dtype,
                  .heads = 1,
                  .head_dim = shape.channels,
                  .heads_known = false,
                  .pieces = {}};
  for (const Stream& stream : cache.streams) {
    if (stream.cells == 0) continue;
    const uint64_t offset = (is_value ? stream.v_offsets : stream.k_offsets)[layer];
    const KvTensor piece = ContiguousTensor(file.bytes().data() + offset, shape.dtype, stream.cells,
                                            1, shape.channels, order);
    tensor.pieces.push_back(piece.pieces[0]);
  }
  return tensor;
}

// Returns "rows", "transposed" or "none", one per cache if they differ.
std::string ValueStorage(const Reading& reading) {
  std::vector<std::string> words;
  for (const Cache& cache : reading.caches) {
    if (cache.k.empty()) continue;
    words.push_back(!cache.has_v ? "none" : cache.v_transposed ? "transposed" : "rows");
  }
  if (std::adjacent_find(words.begin(), words.end(), std::not_equal_to<>()) == words.end())
    words.resize(std::min<size_t>(words.size(), 1));
  return fmt::format("{}", fmt::join(words, ", "));
}

void AddFactsAndNotes(const Reading& reading, Snapshot& snapshot) {
  if (!snapshot.layers.empty()) {
    const std::string order = ValueStorage(reading);
    if (order.find("transposed") != std::string::npos) snapshot.storage["v_order"] = order;
    snapshot.facts.emplace_back("v storage", order);
  }
  if (reading.layout->extension != 0) {
    snapshot.facts.emplace_back("extension",
                                fmt::format("{} bytes per cell", reading.layout->extension));
    snapshot.storage["extension_words"] = std::to_string(reading.layout->extension / 4);
  }
  if (const auto& state = reading.recurrent) {
    const std::string what =
        fmt::format("{} of {} layers, {} cell{}, {} bytes at {:#x}", state->states, state->layers,
                    state->cells, PluralEnding(state->cells), state->bytes, state->offset);
    snapshot.facts.emplace_back("recurrent", what + ": kept as it is, not read");
    snapshot.storage["recurrent"] = what;
    snapshot.notes.push_back(
        {"a hybrid model: the state of its recurrent layers is not K and V; archives keep it byte "
         "for byte, other outputs do not",
         false});
  }
  if (snapshot.layers.empty()) snapshot.notes.push_back({"the cache is empty", true});
  const bool none_has_v = std::none_of(snapshot.layers.begin(), snapshot.layers.end(),
                                       [](const LayerKv& layer) { return layer.v.has_value(); });
  if (none_has_v && !snapshot.layers.empty()) {
    snapshot.notes.push_back(
        {"no layer has V: a latent-attention (MLA) model, or a file cut off just before its V",
         true});
  }
}

// The facts that decide the rotation of K or of V, over all layers.
struct Side {
  bool is_quantised = false, heads_known = true, can_transform = false;
};

Side Summarise(const Snapshot& snapshot, bool is_value) {
  Side side;
  for (const LayerKv& layer : snapshot.layers) {
    if (is_value && !layer.v) continue;
    const KvTensor& tensor = is_value ? *layer.v : layer.k;
    if (!IsBlockQuantised(tensor.dtype)) continue;
    side.is_quantised = true;
    side.heads_known &= tensor.heads_known;
    side.can_transform |= HadamardSize(is_value, tensor.head_dim) != 0;
  }
  return side;
}

// Makes the views, cells and facts of a chosen interpretation without reading tensor bytes.
Snapshot Build(Source source, const Reading& reading, Scope scope) {
  Snapshot snapshot;
  const FileSource& file = *source.files[0].data;
  snapshot.source = std::move(source);
  snapshot.key_rotation = KeyRotation::kRotated;
  for (size_t i = 0; i < reading.caches.size(); ++i) {
    const Cache& cache = reading.caches[i];
    const std::string_view name = GroupName(reading, i);
    snapshot.cell_groups.push_back(ReadCells(file, cache, *reading.layout, scope, name));
    for (uint32_t layer = 0; layer < cache.k.size(); ++layer) {
      LayerKv& kv = snapshot.layers.emplace_back();
      kv.index = static_cast<uint32_t>(snapshot.layers.size() - 1);
      kv.group = name;
      kv.k = Rows(file, cache, cache.k[layer], layer, false);
      if (cache.has_v) kv.v = Rows(file, cache, cache.v[layer], layer, true);
    }
  }
  AddFactsAndNotes(reading, snapshot);
  return snapshot;
}

// Decides if quantised K and V are stored Hadamard-rotated, by the rule of FORMAT.md and `rotated`
// (auto, yes, no). What the file does not record stays unknown or gets a note. Throws kUsage.
void SettleHadamard(Snapshot& snapshot, const Layout& layout, const std::string& rotated) {
  if (rotated != "auto" && rotated != "yes" && rotated != "no") {
    throw Error(Finding::kUsage, "--rotated {}: expected auto, yes or no", rotated);
  }
  // llama.cpp rotates since 2026-04, between builds b8352 and b9842, which both have layout D.
  const bool is_older = !layout.has_streams || layout.has_outputs;
  const bool is_newer = layout.letters == "E";
  bool is_open = false, is_assumed = false;
  const auto settle = [&](bool is_value) {
    const Side side = Summarise(snapshot, is_value);
    if (!side.is_quantised || rotated == "no") return HadamardState::kNo;
    if (rotated == "yes" && side.can_transform) return HadamardState::kYes;
    if (!side.can_transform || is_older) return HadamardState::kNo;
    if (!side.heads_known || !is_newer) {
      is_open = true;
      return HadamardState::kUnknown;
    }
    is_assumed = true;
    return HadamardState::kYes;
  };
  snapshot.k_hadamard = settle(false);
  snapshot.v_hadamard = settle(true);
  if (rotated == "yes" && snapshot.k_hadamard == HadamardState::kNo &&
      snapshot.v_hadamard == HadamardState::kNo) {
    throw Error(
        Finding::kUsage,
        "--rotated yes: neither K nor V is quantised with a head size that is a multiple of 64");
  }
  if (is_open) {
    snapshot.notes.push_back(
        {"the file does not say whether its quantised values are Hadamard-rotated: --rotated yes "
         "or no decides",
         false});
  }
  if (is_assumed) {
    snapshot.notes.push_back(
        {"quantised values are assumed to be Hadamard-rotated, as this version writes them unless "
         "LLAMA_ATTN_ROT_DISABLE=1; if that was set, give --rotated no",
         false});
  }
}

constexpr uint32_t kBlobMagic = 0xaf143cd8;  // at the start of newer in-memory sequence blobs

// The layouts by the versions in which they occur; FORMAT.md says which builds wrote them. Version
// 9 / 2 covers several, which can only be distinguished by their consistency with the whole file.
constexpr std::string_view kBuildsE = "v0.4.0 and later";
constexpr Layout kSessionLayouts9[] = {
    {"AB", false, true, 0, 1, "2024-09 to 2025-07 (b3889 to b5640 seen)"},
    {"C", true, true, 0, 1, "2025-07 to 2026-01 (b6122 to b7698 seen)"},
    {"D", true, false, 0, 1, "2026-02 to 2026-08 (b8179 to b10361 seen)"},
    {"D", true, false, 8, 1, "2026-03 to 2026-08 (b8352 to b10361 seen), M-RoPE model"},
};
constexpr Layout kSequenceLayouts2[] = {
    {"A", false, false, 0, 0, "2024-08 to 2025-06 (b3543 to b4753 seen)"},
    {"B", false, false, 0, 1, "mid-2025 (b5640 seen)"},
    {"CD", true, false, 0, 1, "2025-07 to 2026-08 (b6122 to b10361 seen)"},
    {"D", true, false, 8, 1, "2026-03 to 2026-08 (b8352 to b10361 seen), M-RoPE model"},
};
constexpr Layout kLayoutsE[] = {
    {"E", true, false, 0, 1, kBuildsE},
    {"E", true, false, 12, 1, "v0.4.0 and later, M-RoPE or per-layer-embedding model"},
};
// Blobs have no version, so every layout is possible.
constexpr Layout kContextBlobLayouts[] = {
    kSessionLayouts9[0], kSessionLayouts9[1], {"DE", true, false, 0, 1, "2026-02 and later"},
    kSessionLayouts9[3], kLayoutsE[1],
};
constexpr Layout kSequenceBlobLayouts[] = {
    kSequenceLayouts2[0], kSequenceLayouts2[1], {"CDE", true, false, 0, 1, "2025-07 and later"},
    kSequenceLayouts2[3], kLayoutsE[1],
};

const FileSource& OnlyFile(const Source& source) {
  if (source.is_folder || source.files.size() != 1) {
    throw Error(Finding::kUnsupportedKind, "is a folder; a llama.cpp state is one file");
  }
  return *source.files[0].data;
}

std::string ReadArchitecture(ByteReader& in) {
  const uint64_t at = in.offset();
  const uint32_t length = in.U32("architecture name length");
  if (length == 0 || length > kMaxArchitecture) {
    throw Error(Finding::kBadField, "architecture name of {} bytes, expected 1 to {}", length,
                kMaxArchitecture)
        .At(at);
  }
  const std::string name(in.Text(length, "architecture name"));
  if (std::any_of(name.begin(), name.end(), [](char c) { return c <= ' ' || c > '~'; })) {
    throw Error(Finding::kBadText, "architecture name '{}'", Escaped(name)).At(at);
  }
  return name;
}

[[noreturn]] void RefuseVersion(bool is_session, uint32_t version) {
  // Session versions 0 to 8; sequence files came with session version 5.
  constexpr std::string_view kEras[] = {
      "2023",
      "2023",
      "2023-11",
      "2023-12",
      "2024-01 to 2024-03",
      "2024-04",
      "2024-06 to 2024-07",
      "2024-07",
      "2024-08 to 2024-09",
  };
  const std::string kind = is_session ? "SESSION" : "SEQ";
  if (!is_session && version == 0) {
    throw Error(Finding::kBadVersion, "SEQ version 0 never existed").At(4);
  }
  std::string era = "newer than this program supports";
  if (is_session && version < std::size(kEras))
    era = fmt::format("llama.cpp of {}", kEras[version]);
  if (!is_session && version == 1) era = "llama.cpp of 2024-04 to 2024-07";
  throw Error(Finding::kUnsupportedVersion, "llama.cpp {} version {} ({}); supported: {}", kind,
              version, era, is_session ? "9 and 10" : "2 and 3")
      .At(4)
      .Hint("--from opaque archives the bytes as they are");
}

// Applies heads from flags or a model file, whose architecture must be the one that a SESSION
// names.
void ApplyModel(const ModelGeometry& geometry, Snapshot& snapshot) {
  const std::string& wanted = geometry.architecture;
  if (snapshot.model.empty()) snapshot.model = wanted;
  if (!wanted.empty() && snapshot.model != wanted) {
    throw Error(Finding::kInconsistent, "a state of architecture {}, but {} is {}", snapshot.model,
                geometry.source, Escaped(wanted));
  }
  ApplyGeometry(geometry, snapshot);
}

Snapshot Finish(Source source, const OpenOptions& options, Body body, std::string container,
                TokenList list) {
  const Reading reading = ChooseReading(body, options.layout);
  Snapshot snapshot = Build(std::move(source), reading, body.scope);
  snapshot.model = body.architecture;
  snapshot.tokens = std::move(list.tokens);
  snapshot.format_version = fmt::format("{}, layout {}", container, reading.Word());
  snapshot.engine = "llama.cpp";
  snapshot.facts.emplace_back("builds", reading.layout->written_by);
  if (reading.layout->has_outputs) snapshot.storage["outputs"] = "logits, embeddings";
  if (list.media_count) {
    snapshot.facts.emplace_back("tokens",
                                fmt::format("server record, {} media", *list.media_count));
    snapshot.storage["tokens"] = *list.media_count == 0 ? "record" : "record with media";
  }
  if (options.geometry) ApplyModel(*options.geometry, snapshot);
  if (const auto order = FindRopeOrder(snapshot.model); order && order->llama == KeyPairs::kNone)
    snapshot.key_rotation = KeyRotation::kUnknown;  // GPT-2, MPT ...: the model has no RoPE
  SettleHadamard(snapshot, *reading.layout, options.rotated);
  return snapshot;
}

}  // namespace

Confidence Probe(const Source& source) {
  const ByteSpan bytes = BytesOfOnlyFile(source);
  if (bytes.size() < 4) return Confidence::kNo;
  const auto magic = LoadLE<uint32_t>(bytes.data());
  return magic == kSessionMagic || magic == kSequenceMagic ? Confidence::kCertain : Confidence::kNo;
}

Snapshot Open(Source source, const OpenOptions& options) {
  ByteReader in(OnlyFile(source).bytes());
  const uint32_t magic = in.U32("magic");
  if (magic != kSessionMagic && magic != kSequenceMagic) {
    throw Error(Finding::kBadMagic, "magic {:#010x}, expected {:#x} (SESSION) or {:#x} (SEQ)",
                magic, kSessionMagic, kSequenceMagic)
        .At(0);
  }
  const bool is_session = magic == kSessionMagic;
  const uint32_t version = in.U32("version");
  const uint32_t newest = is_session ? 10 : 3;
  if (version != newest && version != newest - 1) RefuseVersion(is_session, version);
  TokenList list = ReadTokenList(in);
  std::string architecture = is_session ? ReadArchitecture(in) : "";
  std::span<const Layout> layouts = kLayoutsE;
  if (version != newest) {
    layouts = is_session ? std::span<const Layout>(kSessionLayouts9) : kSequenceLayouts2;
  }
  Body body{in, is_session ? Scope::kContext : Scope::kSequence, layouts, std::move(architecture)};
  return Finish(std::move(source), options, std::move(body),
                fmt::format("{} {}", is_session ? "SESSION" : "SEQ", version), std::move(list));
}

Snapshot OpenSeqBlob(Source source, const OpenOptions& options) {
  ByteReader in(OnlyFile(source).bytes());
  ByteReader prefix = in;
  if (prefix.remaining() >= 8 && prefix.U32("magic") == kBlobMagic) {
    prefix.I32("source sequence");
    in = prefix;
  }
  return Finish(std::move(source), options, {in, Scope::kSequence, kSequenceBlobLayouts, ""},
                "sequence blob", {});
}

Snapshot OpenCtxBlob(Source source, const OpenOptions& options) {
  ByteReader in(OnlyFile(source).bytes());
  std::string architecture = ReadArchitecture(in);
  return Finish(std::move(source), options,
                {in, Scope::kContext, kContextBlobLayouts, std::move(architecture)}, "context blob",
                {});
}

}  // namespace kv::llama_state
