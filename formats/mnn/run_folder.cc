// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/mnn/run_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "formats/words.h"

namespace kv::mnn {
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
  std::vector<size_t> open;  // updates that reach past the cursor, the latest begun on top
  uint64_t cursor = 0;
  uint64_t furthest = 0;  // end of what any update so far holds
  // Gives the positions up to `limit` to the updates that are open.
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
    if (furthest != 0) {  // not the first
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

// What the engine names its metas: a damaged file of this name is refused, not overlooked.
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
  throw Error(Finding::kAmbiguousFormat,
              fmt::format("holds {} runs of dumps: {}", runs.size(), Listed(names)))
      .Hint(fmt::format("name one of them, e.g. {}", source.path + "/" + names.back()));
}

const std::byte* BytesOfPart(const Source& source, const SourceFile& meta, const char* key,
                             const std::string& name, uint64_t expected) {
  const SourceFile* file = source.Find(InFolder(FolderPart(meta.name), name));
  if (file == nullptr) {
    throw Error(Finding::kMissingRecord,
                fmt::format("{} '{}' is not in the folder", key, Escaped(name)))
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
                                                    LastPart(a.file->name), shape(a.meta)))
        .File(b.file->data->name());
  }
}

// Marks a meta's files as used; every data file has one meta.
void Use(const Dump& dump, std::set<std::string>& used) {
  const std::string_view folder = FolderPart(dump.file->name);
  used.insert(dump.file->name);
  for (const std::string& part : {dump.meta.k_file, dump.meta.v_file}) {
    if (!used.insert(InFolder(folder, part)).second) {
      throw Error(Finding::kInconsistent,
                  fmt::format("'{}' belongs to another meta already", Escaped(part)))
          .File(dump.file->data->name());
    }
  }
}

void AddToLayer(Dump dump, LayerDumps& layer) {
  if (!layer.logical.empty() || !layer.packed.empty()) {
    const std::string_view known = FolderPart(layer.first().file->name);
    if (known != FolderPart(dump.file->name)) {
      throw Error(Finding::kInconsistent,
                  fmt::format("layer {} is also in {}", dump.meta.layer, known))
          .File(dump.file->data->name());
    }
    ExpectSameShape(layer.first(), dump);
  }
  (dump.meta.is_packed ? layer.packed : layer.logical).push_back(std::move(dump));
}

// A folder is one layer.
void ExpectOneLayerPerFolder(const std::map<uint32_t, LayerDumps>& layers) {
  std::map<std::string_view, uint32_t> folders;
  for (const auto& [index, layer] : layers) {
    const auto [at, is_new] = folders.emplace(FolderPart(layer.first().file->name), index);
    if (!is_new) {
      throw Error(Finding::kInconsistent,
                  fmt::format("layer_id {} in the folder of layer {}", index, at->second))
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
