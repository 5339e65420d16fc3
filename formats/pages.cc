// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Puts files of pages into the order of --order, and joins their snapshots to one.
#include "formats/pages.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>

#include "formats/format.h"
#include "formats/raw/raw.h"

namespace kv {

namespace {

constexpr uint64_t kLargestOrder = 64 << 20;

bool IsPattern(std::string_view text) { return text.find('*') != text.npos; }

// Returns the name without its extension; ".kvcache.safetensors" is one extension. Names of models
// may contain dots.
std::string_view Stem(std::string_view name) {
  std::string_view stem = LastPart(name);
  stem = stem.substr(0, stem.rfind('.'));
  if (stem.ends_with(".kvcache")) stem.remove_suffix(std::string_view(".kvcache").size());
  return stem;
}

bool Fits(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0 ||
         ::fnmatch(pattern.c_str(), std::string(LastPart(name)).c_str(), 0) == 0;
}

class PageList {
 public:
  // The file of --order may lie in the folder itself and is no page.
  PageList(const Source& folder, const std::string& order) : folder_(folder) {
    std::error_code ignored;
    for (const SourceFile& file : folder.files) {
      if (!std::filesystem::equivalent(order, std::filesystem::path(folder.path) / file.name,
                                       ignored)) {
        files_.push_back(&file);
        by_last_part_.emplace(LastPart(file.name), &file);
        by_stem_.emplace(Stem(file.name), &file);
      }
    }
  }

  void Add(const std::string& line) {
    const size_t before = pages_.size();
    if (IsPattern(line)) {
      for (const SourceFile* file : files_) {
        if (Fits(line, file->name)) AddFile(*file);
      }
    } else {
      AddFile(Named(line));
    }
    if (pages_.size() == before) {
      throw Error(Finding::kMissingRecord, "--order: no file is named '{}'", Escaped(line, 120));
    }
  }

  std::vector<const SourceFile*> Release() { return std::move(pages_); }

 private:
  const SourceFile& Named(const std::string& line) const {
    if (const SourceFile* exact = folder_.Find(line)) return *exact;
    for (const auto* names : {&by_last_part_, &by_stem_}) {
      const auto [first, end] = names->equal_range(line);
      if (first == end) continue;
      if (std::next(first) == end) return *first->second;
      throw Error(Finding::kUsage, "--order: '{}' could be '{}' or '{}'", Escaped(line, 120),
                  Escaped(first->second->name, 120), Escaped(std::next(first)->second->name, 120));
    }
    throw Error(Finding::kMissingRecord, "--order: no file is named '{}'", Escaped(line, 120));
  }

  void AddFile(const SourceFile& file) {
    if (!seen_.insert(&file).second) {
      throw Error(Finding::kUsage, "--order names '{}' twice", Escaped(file.name, 120));
    }
    pages_.push_back(&file);
  }

  const Source& folder_;
  std::vector<const SourceFile*> files_, pages_;
  std::multimap<std::string_view, const SourceFile*> by_last_part_, by_stem_;
  std::set<const SourceFile*> seen_;
};

}  // namespace

std::vector<const SourceFile*> InOrder(const Source& folder, const std::string& order) {
  PageList pages(folder, order);
  if (IsPattern(order)) {
    pages.Add(order);
    return pages.Release();
  }
  std::error_code failed;
  if (!std::filesystem::exists(order, failed)) {
    throw Error(Finding::kOpenFailed, "--order {}: there is no such file", Printable(order))
        .Hint(
            "give a file with one page's name per line, or a pattern such as '*.kvf', which sorts "
            "by name");
  }
  const auto file = FileSource::OpenSmall(order, kLargestOrder, "an order of pages");
  std::string_view text = AsText(file->bytes());
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
    if (!line.empty()) pages.Add(std::string(line));
  }
  std::vector<const SourceFile*> list = pages.Release();
  if (list.empty()) throw Error(Finding::kUsage, "--order {}: is empty", order);
  return list;
}

namespace {

using Facts = std::vector<std::pair<std::string, std::string>>;

bool Contains(const Facts& facts, const Facts::value_type& fact) {
  return std::find(facts.begin(), facts.end(), fact) != facts.end();
}

constexpr size_t kNotesShown = 8;

std::string Shape(const KvTensor& tensor) {
  return tensor.heads_known
             ? fmt::format("{} of {} x {}", Name(tensor.dtype), tensor.heads, tensor.head_dim)
             : fmt::format("{} of {} channels", Name(tensor.dtype), tensor.channels());
}

void Append(KvTensor& into, KvTensor&& from, std::string_view which) {
  if (into.dtype != from.dtype || into.heads != from.heads || into.head_dim != from.head_dim ||
      into.heads_known != from.heads_known) {
    throw Error(Finding::kInconsistent, "{} is {}, but {} in the earlier parts", which, Shape(from),
                Shape(into));
  }
  std::move(from.pieces.begin(), from.pieces.end(), std::back_inserter(into.pieces));
}

void AppendLayers(Snapshot& whole, std::vector<LayerKv>&& layers,
                  std::map<uint32_t, size_t>& places) {
  for (LayerKv& layer : layers) {
    const auto [at, is_new] = places.try_emplace(layer.index, whole.layers.size());
    if (is_new) {
      whole.layers.push_back(std::move(layer));
      continue;
    }
    LayerKv& known = whole.layers[at->second];
    try {
      if (known.group != layer.group || known.v.has_value() != layer.v.has_value())
        throw Error(Finding::kInconsistent, "has other tensors than the earlier parts");
      Append(known.k, std::move(layer.k), "K");
      if (layer.v) Append(*known.v, std::move(*layer.v), "V");
    } catch (Error& error) {
      throw error.In("layer {}", layer.index);
    }
  }
}

// Notes of many pages are alike; each is kept once.
void AppendNotes(std::vector<Note>& notes, std::vector<Note>&& more) {
  for (Note& note : more) {
    const bool known = std::any_of(notes.begin(), notes.end(),
                                   [&](const Note& other) { return other.text == note.text; });
    if (!known && notes.size() < kNotesShown) notes.push_back(std::move(note));
  }
}

template <typename T>
void AppendAll(std::vector<T>& into, std::vector<T>&& from) {
  std::move(from.begin(), from.end(), std::back_inserter(into));
}

// Appends cells; they are kept only if every part has cells for the same caches.
void AppendCells(Snapshot& whole, std::vector<CellGroup>&& groups, bool first) {
  if (first) {
    whole.cell_groups = std::move(groups);
    return;
  }
  const bool alike =
      std::equal(whole.cell_groups.begin(), whole.cell_groups.end(), groups.begin(), groups.end(),
                 [](const CellGroup& a, const CellGroup& b) { return a.group == b.group; });
  if (!alike) whole.cell_groups.clear();
  for (size_t i = 0; i < whole.cell_groups.size(); ++i) {
    whole.cell_groups[i].streams = std::max(whole.cell_groups[i].streams, groups[i].streams);
    AppendAll(whole.cell_groups[i].cells, std::move(groups[i].cells));
  }
}

void CheckTokens(Snapshot& snapshot) {
  uint64_t least = UINT64_MAX, most = 0;
  for (const LayerKv& layer : snapshot.layers) {
    least = std::min(least, layer.k.tokens());
    most = std::max(most, layer.k.tokens());
  }
  if (least < most)
    snapshot.notes.push_back({fmt::format("layers hold {} to {} tokens", least, most)});
}

}  // namespace

Snapshot Concatenate(std::vector<Snapshot> parts, Source source) {
  KV_ASSERT(!parts.empty());
  const bool all_tokens = std::all_of(parts.begin(), parts.end(),
                                      [](const Snapshot& part) { return !part.tokens.empty(); });
  Snapshot whole;
  std::map<uint32_t, size_t> places;
  for (Snapshot& part : parts) {
    const bool first = &part == &parts.front();
    if (first) {
      whole.format = part.format;
      whole.format_version = part.format_version;
      whole.engine = part.engine;
      whole.model = part.model;
      whole.key_rotation = part.key_rotation;
      whole.storage = part.storage;
      whole.k_hadamard = part.k_hadamard;
      whole.v_hadamard = part.v_hadamard;
      whole.facts = std::move(part.facts);
    } else {
      std::erase_if(whole.facts, [&](const auto& fact) { return !Contains(part.facts, fact); });
    }
    try {
      if (part.format != whole.format || part.key_rotation != whole.key_rotation ||
          part.k_hadamard != whole.k_hadamard || part.v_hadamard != whole.v_hadamard) {
        throw Error(Finding::kInconsistent, "differs in kind from the earlier parts");
      }
      AppendLayers(whole, std::move(part.layers), places);
    } catch (Error& error) {
      throw error.In(Escaped(part.source.path, 200));
    }
    AppendAll(whole.spools, std::move(part.spools));
    AppendAll(whole.stored, std::move(part.stored));
    AppendAll(whole.checks, std::move(part.checks));
    AppendNotes(whole.notes, std::move(part.notes));
    AppendCells(whole, std::move(part.cell_groups), first);
    if (all_tokens) AppendAll(whole.tokens, std::move(part.tokens));
    whole.unpacked_bytes += part.unpacked_bytes;
  }
  std::sort(whole.layers.begin(), whole.layers.end(),
            [](const LayerKv& a, const LayerKv& b) { return a.index < b.index; });
  CheckTokens(whole);
  whole.source = std::move(source);
  return whole;
}

}  // namespace kv
