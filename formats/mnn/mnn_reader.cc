// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "formats/mnn/join.h"
#include "formats/mnn/meta.h"
#include "formats/mnn/mnn.h"

namespace kv::mnn {
namespace {

struct Dump {
  DumpMeta meta;
  const SourceFile* file = nullptr;  // the meta itself
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
};

struct LayerDumps {
  std::vector<Dump> logical, packed;
  const Dump& first() const { return logical.empty() ? packed.front() : logical.front(); }
};

// Remarks about layers; the same words about several layers become one note.
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
      notes.push_back({fmt::format("{}: {}", Named(layers), text), true});
    }
  }

 private:
  static std::string Named(const std::vector<uint32_t>& layers) {  // ascending
    std::vector<std::string> runs;
    for (size_t i = 0; i < layers.size();) {
      size_t j = i + 1;
      while (j < layers.size() && layers[j] == layers[j - 1] + 1) ++j;
      runs.push_back(j - i == 1 ? fmt::format("{}", layers[i])
                                : fmt::format("{}-{}", layers[i], layers[j - 1]));
      i = j;
    }
    return fmt::format("layer{} {}", layers.size() == 1 ? "" : "s", fmt::join(runs, ","));
  }

  std::vector<std::pair<std::string, std::vector<uint32_t>>> remarks_;
};

std::string_view FolderOf(std::string_view name) {
  const size_t slash = name.rfind('/');
  return slash == name.npos ? std::string_view() : name.substr(0, slash);
}

std::string_view BaseOf(std::string_view name) { return name.substr(name.rfind('/') + 1); }

// What the engine names its metas: a damaged file of this name is refused, not overlooked.
bool IsNamedLikeMeta(std::string_view name) {
  const std::string_view base = BaseOf(name);
  return (base.starts_with("meta_t") || base.starts_with("packed_meta_")) &&
         base.ends_with(".json");
}

bool IsMeta(const SourceFile& file) { return LooksLikeMeta(file.data->bytes()); }

// "a, b, c and 4 more"
std::string Listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  const size_t shown = std::min(names.size(), kShown);
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

void ExpectOneRun(const Source& source, const std::vector<const SourceFile*>& metas) {
  std::set<std::string> runs;
  for (const SourceFile* meta : metas) runs.emplace(FolderOf(FolderOf(meta->name)));
  if (runs.size() == 1) return;
  std::vector<std::string> names;
  for (const std::string& run : runs) names.push_back(run.empty() ? "." : Escaped(run));
  throw Error(Finding::kAmbiguousFormat,
              fmt::format("holds {} runs of dumps: {}", runs.size(), Listed(names)))
      .Hint(fmt::format("name one of them, e.g. {}", source.path + "/" + names.back()));
}

const std::byte* BytesOfPart(const Source& source, const SourceFile& meta, const char* key,
                             const std::string& name, uint64_t expected) {
  const std::string_view folder = FolderOf(meta.name);
  const SourceFile* file = source.Find(folder.empty() ? name : fmt::format("{}/{}", folder, name));
  if (file == nullptr) {
    throw Error(Finding::kMissingRecord,
                fmt::format("{} '{}' is not in the folder", key, Escaped(name)))
        .File(meta.data->name());
  }
  if (file->data->size() != expected) {
    throw Error(file->data->size() < expected ? Finding::kTruncated : Finding::kSizeMismatch,
                fmt::format("has {} bytes, {} makes it {}", file->data->size(), BaseOf(meta.name),
                            expected))
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
  dump.k = BytesOfPart(source, file, "k_file", dump.meta.k_file, dump.meta.k_bytes());
  dump.v = BytesOfPart(source, file, "v_file", dump.meta.v_file, dump.meta.v_bytes());
  return dump;
}

void ExpectSameShape(const Dump& a, const Dump& b) {
  const auto shape = [](const DumpMeta& m) {
    return fmt::format("{} heads of {} {}", m.kv_heads, m.head_dim, Name(m.dtype));
  };
  if (shape(a.meta) != shape(b.meta)) {
    throw Error(Finding::kInconsistent, fmt::format("{}, but {} says {}", shape(b.meta),
                                                    BaseOf(a.file->name), shape(a.meta)))
        .File(b.file->data->name());
  }
}

// The dumps of one run by layer. One folder is one layer, and every data file has one meta.
std::map<uint32_t, LayerDumps> ReadLayers(const Source& source,
                                          const std::vector<const SourceFile*>& metas,
                                          std::set<std::string>& used) {
  std::map<uint32_t, LayerDumps> layers;
  for (const SourceFile* file : metas) {
    Dump dump = ReadDump(source, *file);
    const std::string_view folder = FolderOf(file->name);
    for (const std::string& part : {dump.meta.k_file, dump.meta.v_file}) {
      if (!used.insert(folder.empty() ? part : fmt::format("{}/{}", folder, part)).second) {
        throw Error(Finding::kInconsistent,
                    fmt::format("'{}' belongs to another meta already", Escaped(part)))
            .File(file->data->name());
      }
    }
    used.insert(file->name);
    LayerDumps& layer = layers[dump.meta.layer];
    if (!layer.logical.empty() || !layer.packed.empty()) {
      if (FolderOf(layer.first().file->name) != folder) {
        throw Error(Finding::kInconsistent, fmt::format("layer {} is also in {}", dump.meta.layer,
                                                        FolderOf(layer.first().file->name)))
            .File(file->data->name());
      }
      ExpectSameShape(layer.first(), dump);
    }
    (dump.meta.is_packed ? layer.packed : layer.logical).push_back(std::move(dump));
  }
  std::map<std::string_view, uint32_t> folders;
  for (const auto& [index, layer] : layers) {
    const auto [at, is_new] = folders.emplace(FolderOf(layer.first().file->name), index);
    if (!is_new) {
      throw Error(Finding::kInconsistent,
                  fmt::format("layer_id {} in the folder of layer {}", index, at->second))
          .File(layer.first().file->data->name());
    }
  }
  return layers;
}

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
  for (const Dump& update : updates) {
    ranges.push_back({update.meta.begin, update.meta.end()});
    if (update.meta.added > update.meta.tokens) {
      remarks.Add(layer.index, fmt::format("an update of {} tokens was dumped up to its first {}",
                                           update.meta.added, update.meta.tokens));
    }
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
                fmt::format("tokens {} were written by more than one update and are those of the "
                            "one that begins last; the engine had cut its cache back by then, so "
                            "earlier rows are as first written, not as they were moved",
                            Described(joined.overlaps)));
  }
  if (!joined.gaps.empty()) {
    remarks.Add(layer.index, fmt::format("tokens {} are in no update", Described(joined.gaps)));
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

// "3 per layer", "1 to 3 per layer"
std::string PerLayer(size_t least, size_t most) {
  return least == most ? fmt::format("{} per layer", most)
                       : fmt::format("{} to {} per layer", least, most);
}

struct Counts {
  size_t least = SIZE_MAX, most = 0;
  void Add(size_t n) {
    least = std::min(least, n);
    most = std::max(most, n);
  }
};

// What `inspect` tells about a run beyond its tensors.
void AddFacts(const std::map<uint32_t, LayerDumps>& layers, bool any_logical_read,
              bool any_packed_read, Snapshot& snapshot) {
  Counts logical, packed;
  std::set<std::string> run_ids, stages, packs;
  bool quantised_cache = false;
  for (const auto& [index, layer] : layers) {
    logical.Add(layer.logical.size());
    packed.Add(layer.packed.size());
    for (const auto* dumps : {&layer.logical, &layer.packed}) {
      for (const Dump& dump : *dumps) {
        if (!dump.meta.run_id.empty()) run_ids.insert(Escaped(dump.meta.run_id, 60));
        if (!dump.meta.stage.empty()) stages.insert(Escaped(dump.meta.stage, 20));
        quantised_cache |= dump.meta.quantised_cache;
        const PackGeometry& p = dump.meta.pack;
        if (dump.meta.is_packed) {
          packs.insert(
              fmt::format("hP {} lP {} flash block {}", p.pack_h, p.pack_l, p.flash_block));
        }
      }
    }
  }
  auto& facts = snapshot.facts;
  facts.emplace_back("layout", any_logical_read && any_packed_read ? "logical and packed"
                               : any_packed_read                   ? "packed"
                                                                   : "logical");
  if (!run_ids.empty()) facts.emplace_back("run", fmt::format("{}", fmt::join(run_ids, ", ")));
  if (!stages.empty()) facts.emplace_back("stages", fmt::format("{}", fmt::join(stages, ", ")));
  if (logical.most > 0) {
    facts.emplace_back("logical dumps", PerLayer(logical.least, logical.most) +
                                            (any_logical_read ? ", joined by position"
                                                              : ", not read (--layout logical)"));
  }
  if (packed.most > 0) {
    facts.emplace_back("packed dumps", PerLayer(packed.least, packed.most) +
                                           (!any_packed_read   ? ", not read (--layout packed)"
                                            : packed.most == 1 ? ""
                                                               : ", the longest is read"));
    facts.emplace_back("packing", Listed({packs.begin(), packs.end()}));
  }
  if (quantised_cache) {
    facts.emplace_back("engine cache", "quantised; the dump holds its float input");
  }
}

void NoteStrangers(const Source& source, const std::set<std::string>& used, Snapshot& snapshot) {
  std::vector<std::string> strangers;
  for (const SourceFile& file : source.files) {
    if (used.count(file.name) == 0) strangers.push_back(Escaped(file.name));
  }
  if (strangers.empty()) return;
  snapshot.notes.push_back({fmt::format("{} file{} named by no meta: {}", strangers.size(),
                                        strangers.size() == 1 ? " is" : "s are", Listed(strangers)),
                            true});
}

void NoteUnequalLayers(Snapshot& snapshot) {
  Counts tokens;
  for (const LayerKv& layer : snapshot.layers) tokens.Add(layer.k.tokens());
  if (tokens.least == tokens.most) return;
  snapshot.notes.push_back(
      {fmt::format("layers hold from {} to {} tokens", tokens.least, tokens.most), true});
}

}  // namespace

Confidence ProbeDump(const Source& source) {
  const bool found = std::any_of(source.files.begin(), source.files.end(), IsMeta);
  return found ? Confidence::kCertain : Confidence::kNo;
}

Snapshot OpenDump(Source source, const OpenOptions& options) {
  if (!options.layout.empty() && options.layout != "logical" && options.layout != "packed") {
    throw Error(Finding::kUsage,
                fmt::format("--layout {}: an MNN dump is 'logical' or 'packed'", options.layout));
  }
  if (!options.as_dtype.empty() && options.as_dtype != "f16" && options.as_dtype != "bf16") {
    throw Error(Finding::kUsage, fmt::format("--as {}: two-byte elements of an MNN dump are f16 "
                                             "or bf16",
                                             options.as_dtype));
  }
  if (!source.is_folder) {
    throw Error(Finding::kUnsupportedKind, "is one file of an MNN dump, which is a folder")
        .Hint("give the layer's folder or the run's");
  }
  std::vector<const SourceFile*> metas;
  for (const SourceFile& file : source.files) {
    if (IsMeta(file) || IsNamedLikeMeta(file.name)) metas.push_back(&file);
  }
  if (metas.empty()) throw Error(Finding::kBadHeader, "no file is the meta of an MNN dump");
  ExpectOneRun(source, metas);

  std::set<std::string> used;
  const std::map<uint32_t, LayerDumps> layers = ReadLayers(source, metas, used);
  Snapshot snapshot;
  snapshot.engine = "MNN";
  snapshot.key_rotation = KeyRotation::kRotated;
  LayerRemarks remarks;
  bool any_logical = false, any_packed = false;
  for (const auto& [index, dumps] : layers) {
    const bool packed = options.layout == "packed" || dumps.logical.empty();
    if (!options.layout.empty() && (packed ? dumps.packed : dumps.logical).empty()) {
      throw Error(Finding::kMissingRecord,
                  fmt::format("layer {} has no {} dump", index, options.layout));
    }
    (packed ? any_packed : any_logical) = true;
    const DType stored = dumps.first().meta.dtype;
    const DType dtype = stored == DType::kF16 && options.as_dtype == "bf16" ? DType::kBF16 : stored;
    LayerKv& layer = snapshot.layers.emplace_back();
    layer.index = index;
    if (packed) {
      AddPacked(dumps.packed, dtype, layer);
    } else {
      AddLogical(dumps.logical, dtype, layer, remarks);
    }
  }
  AddFacts(layers, any_logical, any_packed, snapshot);
  remarks.MoveTo(snapshot.notes);
  NoteUnequalLayers(snapshot);
  NoteStrangers(source, used, snapshot);
  snapshot.format_version = snapshot.facts.front().second;
  snapshot.source = std::move(source);
  return snapshot;
}

}  // namespace kv::mnn
