// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads MNN's dumps: finds the runs and layers of a folder, joins updates by position, and writes
// logical dumps.
#include "formats/mnn/mnn.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "formats/format.h"
#include "lib/core/snapshot/rope.h"

namespace kv::mnn {

namespace {

// Remarks about layers; the same text for several layers becomes one note.
class LayerRemarks {
 public:
  void Add(uint32_t layer, std::string text) {
    for (auto& [known, layers] : remarks_) {
      if (known == text) {
        layers.push_back(layer);
        return;
      }
    }
    remarks_.push_back({std::move(text), {layer}});
  }
  void MoveTo(std::vector<Note>& notes) const {
    for (const auto& [text, layers] : remarks_) {
      notes.push_back(
          {fmt::format("layer{} {}: {}", PluralEnding(layers.size()), RangesText(layers), text),
           true});
    }
  }

 private:
  std::vector<std::pair<std::string, std::vector<uint32_t>>> remarks_;
};

std::string Described(const std::vector<TokenRange>& ranges) {
  std::vector<std::string> texts;
  texts.reserve(ranges.size());
  for (const TokenRange& range : ranges) {
    texts.push_back(fmt::format("{}:{}", range.begin, range.end));
  }
  return Listed(texts);
}

void AddLogical(const std::vector<Dump>& updates, DType dtype, LayerKv& layer,
                LayerRemarks& remarks) {
  std::vector<TokenRange> ranges;
  const Dump* capped = nullptr;
  for (const Dump& update : updates) {
    ranges.push_back({update.meta.begin, update.meta.end()});
    if (update.meta.added > update.meta.tokens && capped == nullptr) capped = &update;
  }
  if (capped != nullptr) {
    remarks.Add(layer.index,
                fmt::format("dumps were capped: {} holds the first {} of its update's {} tokens",
                            Escaped(capped->meta.k_file), capped->meta.tokens, capped->meta.added));
  }
  const Joined joined = JoinByPosition(ranges);
  const DumpMeta& shape = updates.front().meta;
  layer.k = {.dtype = dtype, .heads = shape.kv_heads, .head_dim = shape.head_dim, .pieces = {}};
  layer.v = layer.k;
  const uint64_t unit = layer.k.unit_bytes(), head = shape.head_dim * unit;
  const uint64_t row = layer.k.row_bytes();
  for (const JoinedRange& range : joined.ranges) {
    const Dump& update = updates[range.update];
    const uint64_t skip = (range.begin - update.meta.begin) * row;
    const uint64_t tokens = range.end - range.begin;
    layer.k.pieces.push_back({update.k + skip, tokens, {row}, {head}, {unit}});
    layer.v->pieces.push_back({update.v + skip, tokens, {row}, {head}, {unit}});
  }
  if (!joined.overlaps.empty()) {
    remarks.Add(layer.index,
                fmt::format("several updates wrote tokens {}: the one that begins last is read; as "
                            "the engine had shortened its cache before, earlier rows are read as "
                            "first written, not as the engine moved them",
                            Described(joined.overlaps)));
  }
  if (!joined.gaps.empty()) {
    remarks.Add(layer.index, fmt::format("no update holds tokens {}", Described(joined.gaps)));
  }
  if (joined.ranges.front().begin > 0) {
    remarks.Add(layer.index, fmt::format("the first token is {}", joined.ranges.front().begin));
  }
}

void AddPacked(const std::vector<Dump>& dumps, DType dtype, LayerKv& layer) {
  const Dump& longest =
      *std::max_element(dumps.begin(), dumps.end(),
                        [](const Dump& a, const Dump& b) { return a.meta.tokens < b.meta.tokens; });
  const DumpMeta& meta = longest.meta;
  layer.k = PackedKeys(longest.k, dtype, meta.pack, meta.kv_heads, meta.key_head_bytes);
  layer.v = PackedValues(longest.v, dtype, meta.pack, meta.kv_heads, meta.value_head_bytes);
}

// Every data file consists of elements, whether or not it is read as the snapshot.
void AddStored(const LayerDumps& layer, DType dtype, std::vector<StoredRange>& stored) {
  for (const auto* dumps : {&layer.logical, &layer.packed}) {
    for (const Dump& dump : *dumps) {
      stored.push_back({dump.k, dump.meta.k_bytes(), dtype});
      stored.push_back({dump.v, dump.meta.v_bytes(), dtype});
    }
  }
}

struct Counts {
  uint64_t least = UINT64_MAX, most = 0;
  void Add(uint64_t n) {
    least = std::min(least, n);
    most = std::max(most, n);
  }
  std::string Text() const {
    return least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
  }
};

// Adds what `inspect` shows of a run beside its tensors.
void AddFacts(const std::map<uint32_t, LayerDumps>& layers, bool any_logical_read,
              bool any_packed_read, Snapshot& snapshot) {
  Counts logical, packed;
  std::set<std::string> run_ids, stages, packs, pairs;
  bool quantised_cache = false;
  for (const auto& [index, layer] : layers) {
    logical.Add(layer.logical.size());
    packed.Add(layer.packed.size());
    for (const auto* dumps : {&layer.logical, &layer.packed}) {
      for (const Dump& dump : *dumps) {
        if (!dump.meta.run_id.empty()) run_ids.insert(Escaped(dump.meta.run_id, 60));
        if (!dump.meta.stage.empty()) stages.insert(Escaped(dump.meta.stage, 20));
        quantised_cache |= dump.meta.quantised_cache;
        pairs.insert(dump.meta.rope_pairs);
        const PackGeometry& p = dump.meta.pack;
        if (dump.meta.is_packed) {
          packs.insert(
              fmt::format("hP {} lP {} flash block {}", p.pack_h, p.pack_l, p.flash_block));
        }
      }
    }
  }
  auto& facts = snapshot.facts;
  if (!run_ids.empty()) facts.emplace_back("run", fmt::format("{}", fmt::join(run_ids, ", ")));
  if (!stages.empty()) facts.emplace_back("stages", fmt::format("{}", fmt::join(stages, ", ")));
  std::vector<std::string> dumps;
  if (logical.most > 0) {
    dumps.push_back(
        fmt::format("{} logical per layer, {}", logical.Text(),
                    any_logical_read ? "joined by position" : "not read (--layout logical)"));
  }
  if (packed.most > 0) {
    dumps.push_back(
        fmt::format("{} packed per layer, {}", packed.Text(),
                    any_packed_read ? "the longest is read" : "not read (--layout packed)"));
  }
  facts.emplace_back("dumps", fmt::format("{}", fmt::join(dumps, "; ")));
  if (!packs.empty()) facts.emplace_back("packing", Listed({packs.begin(), packs.end()}));
  if (pairs.size() > 1)
    throw Error(Finding::kInconsistent, "the metas record different rope_pairs");
  if (!pairs.empty()) TakeRecordedPairs(*pairs.begin(), snapshot);
  if (quantised_cache) {
    facts.emplace_back("engine cache", "quantised; the dump holds its float input");
  }
}

void CheckOptions(const OpenOptions& options) {
  if (!options.layout.empty() && options.layout != "logical" && options.layout != "packed") {
    throw Error(Finding::kUsage, "--layout {}: an MNN dump is 'logical' or 'packed'",
                options.layout);
  }
  if (options.as_dtype.empty() || options.as_dtype == "f16" || options.as_dtype == "bf16") return;
  throw Error(Finding::kUsage, "--input-dtype {}: two-byte elements of an MNN dump are f16 or bf16",
              options.as_dtype);
}

void NoteUnequalLayers(Snapshot& snapshot) {
  Counts tokens;
  for (const LayerKv& layer : snapshot.layers) tokens.Add(layer.k.tokens());
  if (tokens.least == tokens.most) return;
  snapshot.notes.push_back({fmt::format("layers hold {} tokens", tokens.Text()), true});
}

}  // namespace

Confidence ProbeDump(const Source& source) {
  return HoldsDumps(source) ? Confidence::kCertain : Confidence::kNo;
}

Snapshot OpenDump(Source source, const OpenOptions& options) {
  CheckOptions(options);
  if (!source.is_folder) {
    throw Error(Finding::kUnsupportedKind, "is one file of an MNN dump, which is a folder")
        .Hint("give the layer's folder or the run's");
  }
  const RunDumps run = ReadRun(source);
  Snapshot snapshot;
  snapshot.engine = "MNN";
  AssumeRotated(snapshot,
                "MNN caches keys as attention gets them, after RoPE in models that have it");
  LayerRemarks remarks;
  bool any_logical = false, any_packed = false;
  for (const auto& [index, dumps] : run.layers) {
    const bool packed = options.layout.empty() ? dumps.logical.empty() : options.layout == "packed";
    if ((packed ? dumps.packed : dumps.logical).empty()) {
      throw Error(Finding::kMissingRecord, "layer {} has no {} dump", index, options.layout);
    }
    (packed ? any_packed : any_logical) = true;
    const DType stored = dumps.first().meta.dtype;
    const DType dtype = stored == DType::kF16 && options.as_dtype == "bf16" ? DType::kBF16 : stored;
    LayerKv& layer = snapshot.layers.emplace_back();
    layer.index = index;
    AddStored(dumps, dtype, snapshot.stored);
    if (packed) {
      AddPacked(dumps.packed, dtype, layer);
    } else {
      AddLogical(dumps.logical, dtype, layer, remarks);
    }
  }
  AddFacts(run.layers, any_logical, any_packed, snapshot);
  remarks.MoveTo(snapshot.notes);
  NoteUnequalLayers(snapshot);
  if (!run.strangers.empty()) {
    const char* verb = run.strangers.size() == 1 ? " is" : "s are";
    snapshot.notes.push_back({fmt::format("{} file{} named by no meta: {}", run.strangers.size(),
                                          verb, Listed(run.strangers))});
  }
  snapshot.format_version = any_logical && any_packed ? "logical and packed"
                            : any_packed              ? "packed"
                                                      : "logical";
  snapshot.source = std::move(source);
  return snapshot;
}

namespace {

void CheckLayer(const LayerKv& layer) {
  const auto fail = [&](Finding finding, std::string message) {
    return Error(finding, std::move(message)).In("layer {}", layer.index);
  };
  if (!layer.v) throw fail(Finding::kUnsupportedLayout, "has no V, an MNN dump needs both");
  const KvTensor& k = layer.k;
  const KvTensor& v = *layer.v;
  for (const KvTensor* tensor : {&k, &v}) {
    if (tensor->dtype != DType::kF16 && tensor->dtype != DType::kF32) {
      throw fail(Finding::kUnsupportedDtype,
                 fmt::format("an MNN dump cannot hold {}, only f16 or f32", Name(tensor->dtype)))
          .Hint("--to safetensors keeps every element type");
    }
  }
  const bool same = k.dtype == v.dtype && k.heads == v.heads && k.head_dim == v.head_dim &&
                    k.tokens() == v.tokens();
  if (!same) {
    throw fail(Finding::kUnsupportedLayout,
               fmt::format("K is {} tokens of {} x {} {}, V {} of {} x {} {}; an MNN dump has one "
                           "shape for both",
                           k.tokens(), k.heads, k.head_dim, Name(k.dtype), v.tokens(), v.heads,
                           v.head_dim, Name(v.dtype)));
  }
  if (k.tokens() == 0) throw fail(Finding::kUnsupportedLayout, "has no tokens");
}

void WriteTensor(const Snapshot& snapshot, const KvTensor& tensor, const std::string& name,
                 AtomicFolder& folder) {
  const auto file = folder.Create(name);
  WriteRows(snapshot, tensor, 0, tensor.tokens(), *file);
  file->Close();
}

}  // namespace

void WriteDump(const Snapshot& snapshot, const std::string& path, const OutputRules& rules) {
  RequireHeads(snapshot, "an MNN dump");
  RequireRotatedKeys(snapshot, "an MNN dump");
  snapshot.CheckContent();
  for (const LayerKv& layer : snapshot.layers) CheckLayer(layer);
  RequireLayerNumbers(snapshot);
  AtomicFolder folder(path, rules);
  std::filesystem::path name = std::filesystem::path(path).lexically_normal();
  if (!name.has_filename()) name = name.parent_path();  // "out/" loses its slash
  for (const LayerKv& layer : snapshot.layers) {
    DumpMeta meta;
    meta.layer = layer.index;
    meta.tokens = meta.added = layer.k.tokens();
    meta.kv_heads = layer.k.heads;
    meta.head_dim = layer.k.head_dim;
    meta.dtype = layer.k.dtype;
    meta.stage = meta.tokens == 1 ? "decode" : "prefill";
    meta.run_id = name.filename().string();
    meta.rope_pairs = PairsToRecord(snapshot);
    meta.k_file = fmt::format("k_t0_{}.bin", meta.tokens);
    meta.v_file = fmt::format("v_t0_{}.bin", meta.tokens);
    const std::string where = fmt::format("layer_{}/", layer.index);
    WriteTensor(snapshot, layer.k, where + meta.k_file, folder);
    WriteTensor(snapshot, *layer.v, where + meta.v_file, folder);
    const auto text = folder.Create(where + fmt::format("meta_t0_{}.json", meta.tokens));
    text->Write(AsBytes(LogicalMetaText(meta)));
    text->Close();
  }
  folder.Commit();
}

namespace {

void Append(std::vector<TokenRange>& ranges, uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  if (!ranges.empty() && ranges.back().end >= begin) {
    ranges.back().end = std::max(ranges.back().end, end);
  } else {
    ranges.push_back({begin, end});
  }
}

}  // namespace

Joined JoinByPosition(std::span<const TokenRange> updates) {
  std::vector<size_t> order(updates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return updates[a].begin != updates[b].begin ? updates[a].begin < updates[b].begin
                                                : updates[a].end < updates[b].end;
  });

  Joined joined;
  // updates that reach past the cursor; the one that began last is on top
  std::vector<size_t> open;
  uint64_t cursor = 0;
  uint64_t furthest = 0;  // the largest end of an update so far
  // Assigns the positions up to `limit` to the open updates.
  const auto emit_until = [&](uint64_t limit) {
    while (!open.empty() && cursor < limit) {
      const size_t top = open.back();
      const uint64_t end = std::min(updates[top].end, limit);
      if (end > cursor) {
        joined.ranges.push_back({top, cursor, end});
        cursor = end;
      }
      if (updates[top].end <= cursor) open.pop_back();
    }
  };
  for (const size_t i : order) {
    const TokenRange& update = updates[i];
    emit_until(update.begin);
    if (furthest != 0) {  // the first update was before this one
      if (update.begin > furthest) Append(joined.gaps, furthest, update.begin);
      Append(joined.overlaps, update.begin, std::min(update.end, furthest));
    }
    cursor = update.begin;
    furthest = std::max(furthest, update.end);
    open.push_back(i);
  }
  emit_until(furthest);
  return joined;
}

namespace {

std::string InFolder(std::string_view folder, const std::string& name) {
  return folder.empty() ? name : fmt::format("{}/{}", folder, name);
}

// Returns true for the engine's names of meta files: a damaged file with such a name is refused,
// not ignored.
bool IsNamedLikeMeta(std::string_view name) {
  const std::string_view base = LastPart(name);
  return (base.starts_with("meta_t") || base.starts_with("packed_meta_")) &&
         base.ends_with(".json");
}

bool IsMeta(const SourceFile& file) { return LooksLikeMeta(file.data->bytes()); }

void ExpectOneRun(const Source& source, const std::vector<const SourceFile*>& metas) {
  std::set<std::string> runs;
  for (const SourceFile* meta : metas) runs.emplace(FolderPart(FolderPart(meta->name)));
  if (runs.size() == 1) return;
  std::vector<std::string> names;
  for (const std::string& run : runs) names.push_back(run.empty() ? "." : Escaped(run));
  throw Error(Finding::kAmbiguousFormat, "holds {} runs of dumps: {}", runs.size(), Listed(names))
      .Hint("name one of them, e.g. {}", source.path + "/" + names.back());
}

const std::byte* GetPartBytes(const Source& source, const SourceFile& meta, const char* key,
                              const std::string& name, uint64_t expected) {
  const SourceFile* file = source.Find(InFolder(FolderPart(meta.name), name));
  if (file == nullptr) {
    throw Error(Finding::kMissingRecord, "{} '{}' is not in the folder", key, Escaped(name))
        .File(meta.data->name());
  }
  if (file->data->size() != expected) {
    throw Error(file->data->size() < expected ? Finding::kTruncated : Finding::kSizeMismatch,
                fmt::format("has {} bytes, but {} gives it {}", file->data->size(),
                            LastPart(meta.name), expected))
        .File(file->data->name());
  }
  return file->data->bytes().data();
}

Dump ReadDump(const Source& source, const SourceFile& file) {
  Dump dump;
  dump.file = &file;
  try {
    dump.meta = ParseMeta(file.data->bytes());
  } catch (Error& error) {
    throw error.File(file.data->name());
  }
  dump.k = GetPartBytes(source, file, "k_file", dump.meta.k_file, dump.meta.k_bytes());
  dump.v = GetPartBytes(source, file, "v_file", dump.meta.v_file, dump.meta.v_bytes());
  return dump;
}

void ExpectSameShape(const Dump& a, const Dump& b) {
  const auto shape = [](const DumpMeta& m) {
    return fmt::format("{} heads of {} {}", m.kv_heads, m.head_dim, Name(m.dtype));
  };
  if (shape(a.meta) != shape(b.meta)) {
    throw Error(Finding::kInconsistent, "{}, but {} says {}", shape(b.meta), LastPart(a.file->name),
                shape(a.meta))
        .File(b.file->data->name());
  }
}

// Marks a meta's files as used; every data file must belong to one meta.
void Use(const Dump& dump, std::set<std::string>& used) {
  const std::string_view folder = FolderPart(dump.file->name);
  used.insert(dump.file->name);
  for (const std::string& part : {dump.meta.k_file, dump.meta.v_file}) {
    if (!used.insert(InFolder(folder, part)).second) {
      throw Error(Finding::kInconsistent, "'{}' belongs to another meta already", Escaped(part))
          .File(dump.file->data->name());
    }
  }
}

void AddToLayer(Dump dump, LayerDumps& layer) {
  if (!layer.logical.empty() || !layer.packed.empty()) {
    const std::string_view known = FolderPart(layer.first().file->name);
    if (known != FolderPart(dump.file->name)) {
      throw Error(Finding::kInconsistent, "layer {} is also in {}", dump.meta.layer, known)
          .File(dump.file->data->name());
    }
    ExpectSameShape(layer.first(), dump);
  }
  (dump.meta.is_packed ? layer.packed : layer.logical).push_back(std::move(dump));
}

// Checks that a folder holds one layer only.
void ExpectOneLayerPerFolder(const std::map<uint32_t, LayerDumps>& layers) {
  std::map<std::string_view, uint32_t> folders;
  for (const auto& [index, layer] : layers) {
    const auto [at, is_new] = folders.emplace(FolderPart(layer.first().file->name), index);
    if (!is_new) {
      throw Error(Finding::kInconsistent, "layer_id {} in the folder of layer {}", index,
                  at->second)
          .File(layer.first().file->data->name());
    }
  }
}

}  // namespace

bool HoldsDumps(const Source& source) {
  return std::any_of(source.files.begin(), source.files.end(), IsMeta);
}

RunDumps ReadRun(const Source& source) {
  std::vector<const SourceFile*> metas;
  for (const SourceFile& file : source.files) {
    if (IsMeta(file) || IsNamedLikeMeta(file.name)) metas.push_back(&file);
  }
  if (metas.empty()) throw Error(Finding::kBadHeader, "no file in it is the meta of an MNN dump");
  ExpectOneRun(source, metas);
  RunDumps run;
  std::set<std::string> used;
  for (const SourceFile* file : metas) {
    Dump dump = ReadDump(source, *file);
    Use(dump, used);
    LayerDumps& layer = run.layers[dump.meta.layer];
    AddToLayer(std::move(dump), layer);
  }
  ExpectOneLayerPerFolder(run.layers);
  for (const SourceFile& file : source.files) {
    if (used.count(file.name) == 0) run.strangers.push_back(Escaped(file.name));
  }
  return run;
}

}  // namespace kv::mnn
