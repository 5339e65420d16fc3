// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "formats/foreign.h"
#include "formats/format.h"
#include "formats/gguf/gguf.h"
#include "formats/infinilm_dump/infinilm_dump.h"
#include "formats/kvf/kvf.h"
#include "formats/kvz/kvz.h"
#include "formats/llama_state/llama_state.h"
#include "formats/lmcache/block_store.h"
#include "formats/lmcache/lmcache.h"
#include "formats/mnn/mnn.h"
#include "formats/model_config/model_config.h"
#include "formats/npy/npy.h"
#include "formats/pages.h"
#include "formats/raw/raw.h"
#include "formats/safetensors/safetensors.h"
#include "formats/stated.h"
#include "formats/tensors/tensor_names.h"
#include "formats/torch/torch.h"
#include "formats/trace/trace.h"
#include "formats/weights_file.h"
#include "formats/words.h"
#include "lib/core/snapshot/layout.h"

namespace kv {

namespace {

// What even named arrays and their metadata lose.
std::vector<std::string> BesideArrays(const Snapshot& snapshot) {
  if (snapshot.storage.count("recurrent") == 0) return {};
  return {"the state of recurrent layers"};
}

// What formats without cells and text lose.
std::vector<std::string> BesideTensors(const Snapshot& snapshot) {
  std::vector<std::string> lost;
  if (!snapshot.cell_groups.empty()) lost.emplace_back("positions and sequences");
  if (!snapshot.tokens.empty()) lost.emplace_back("token ids");
  for (std::string& what : BesideArrays(snapshot)) lost.push_back(std::move(what));
  if (snapshot.cell_groups.size() > 1) lost.emplace_back("which cache a layer belongs to");
  return lost;
}

// The same, of formats that count layers from 0.
std::vector<std::string> BesideNumberedTensors(const Snapshot& snapshot) {
  std::vector<std::string> lost = BesideTensors(snapshot);
  AddLayerNumbers(snapshot, lost);
  return lost;
}

// One line per format; detection asks them in this order.
constexpr FormatEntry kFormats[] = {
    {kKvzFormat, "archive of any of these, by kvtool compress, byte for byte", "",
     kReadsAll | kIsArchive | kStandsAlone, ProbeKvz, OpenKvz, nullptr},
    {"kvf", "frames of libkvtool: pages as the plug-ins of engines store them",
     "--order for a folder of pages", kStandsAlone, kvf::Probe, kvf::Open, nullptr},
    {"npz", "numpy archives, stored or deflated", "K/V names or --k-pattern", kReadsAll, ProbeNpz,
     OpenNpz, WriteNpz, nullptr, BesideArrays},
    {"npy", "numpy arrays: a file or a folder of them", "K/V names or --layout", kReadsAll,
     ProbeNpy, OpenNpy, WriteNpy, nullptr, BesideArrays},
    {"safetensors", "safetensors: a file or a folder of them; prompt caches of MLX",
     "K/V names or --k-pattern", kReadsAll, ProbeSafetensors, OpenSafetensors, WriteSafetensors,
     nullptr, BesideArrays},
    {"torch", "PyTorch files, zip and legacy, and pickles; written: Hugging Face's (K, V) tuples",
     "K/V names or --k-pattern; --layout 'l2(htd)' and heads for blocks of TensorRT-LLM", kReadsAll,
     ProbeTorch, OpenTorch, WriteTorchTuple, nullptr, BesideTensors, false, nullptr,
     PairsWanted::kHalves},
    {"torch-dict", "the same; written: a dict with kvtool's names", "K/V names or --k-pattern",
     kReadsAll, nullptr, OpenTorch, WriteTorchSnapshot, nullptr, BesideArrays},
    {"llama-state", "llama.cpp session and sequence files; writes sequence files",
     "heads: --model, --kv-heads or --head-dim", kReadsLayout | kStandsAlone, llama_state::Probe,
     llama_state::Open, llama_state::WriteSequence, nullptr, llama_state::NotKept, true, nullptr,
     PairsWanted::kOfModel},
    {"llama-session", "llama.cpp session files, written (read as llama-state)",
     "the architecture: --model", kReadsLayout | kStandsAlone, nullptr, llama_state::Open,
     llama_state::WriteSession, nullptr, llama_state::NotKept, true, nullptr,
     PairsWanted::kOfModel},
    {"llama-seq-blob", "llama_state_seq_get_data in memory", "--from; heads as llama-state",
     kReadsLayout | kStandsAlone, nullptr, llama_state::OpenSeqBlob, nullptr},
    {"llama-ctx-blob", "llama_state_get_data in memory", "--from; heads as llama-state",
     kReadsLayout | kStandsAlone, nullptr, llama_state::OpenCtxBlob, nullptr},
    {"mnn-dump", "MNN dump folders, logical and packed", "", kReadsLayout, mnn::ProbeDump,
     mnn::OpenDump, mnn::WriteDump, nullptr, BesideTensors, false, mnn::ReadDumpEntries},
    {"infinilm-dump", "InfiniLM compression test: input_kv.bin, output_kv.bin, meta.json", "",
     kReadsLayout, infinilm::ProbeDump, infinilm::OpenDump, infinilm::WriteDump,
     infinilm::WriteDumpPair, BesideNumberedTensors},
    {"lmcache", "LMCache chunks with their header (.data), one or more groups of layers",
     "heads: --kv-heads or --head-dim; --order for several", kReadsBatch, lmcache::ProbeChunk,
     lmcache::OpenChunk, nullptr},
    {"lmcache-block", "LMCache raw-block files and images of such devices",
     "heads: --kv-heads or --head-dim; --order for several", kReadsBatch, lmcache::ProbeBlocks,
     lmcache::OpenBlocks, nullptr},
    {"raw", "headerless arrays of one element type", "--raw DTYPE:ORDER:SIZES",
     kReadsBatch | kReadsRaw, nullptr, raw::OpenRaw, nullptr},
    {"opaque", "any bytes, archived as they are", "", kIsOpaque, nullptr, nullptr, nullptr},
};

// For what no bytes say what it is, the name may.
std::string WhatToTry(const Source& source) {
  for (const SourceFile& file : source.files) {
    const raw::Preset* preset = raw::PresetForName(file.name);
    if (preset == nullptr) continue;
    return fmt::format("by its name it may be of {}, which has no header: --raw {}:{}{}",
                       preset->engine, preset->name, preset->needs,
                       source.files.size() > 1 ? ", and --order for several files" : "");
  }
  return fmt::format(
      "give --raw DTYPE:ORDER:SIZES for headerless data, {}or --from opaque to archive the bytes "
      "as they are",
      source.is_folder ? "--order for pages of one cache, " : "");
}

}  // namespace

std::span<const FormatEntry> Formats() { return kFormats; }

const FormatEntry* FindFormat(std::string_view id) {
  for (const FormatEntry& format : kFormats) {
    if (format.id == id) return &format;
  }
  return nullptr;
}

bool HasTrait(std::string_view id, FormatTraits trait) {
  const FormatEntry* format = FindFormat(id);
  return format != nullptr && (format->traits & trait) != 0;
}

const FormatEntry& WritableFormat(std::string_view id) {
  const FormatEntry* format = FindFormat(id);
  if (format != nullptr && format->write != nullptr) return *format;
  std::string known;
  for (const FormatEntry& entry : kFormats) {
    if (entry.write != nullptr) known += fmt::format("{}{}", known.empty() ? "" : ", ", entry.id);
  }
  throw Error(Finding::kUsage, "--to '{}': expected one of {}", id, known);
}

const FormatEntry& DetectFormat(const Source& source, const OpenOptions& options) {
  if (options.from.empty() && !options.raw.empty()) {
    return *std::ranges::find_if(
        kFormats, [](const FormatEntry& format) { return (format.traits & kReadsRaw) != 0; });
  }
  if (!options.from.empty()) {
    if (const FormatEntry* format = FindFormat(options.from)) return *format;
    throw Error(Finding::kUsage, "unknown format '{}'", options.from)
        .Hint("'kvtool formats' lists them");
  }
  RefuseForeign(source);
  Confidence best = Confidence::kNo;
  std::vector<const FormatEntry*> found;
  for (const FormatEntry& format : kFormats) {
    const Confidence confidence = format.probe == nullptr ? Confidence::kNo : format.probe(source);
    if (confidence == Confidence::kNo || confidence < best) continue;
    if (confidence > best) found.clear();
    best = confidence;
    found.push_back(&format);
  }
  if (found.empty()) {
    Error error(Finding::kUnknownFormat, "no known format matches the content");
    throw error.File(source.path).Hint(WhatToTry(source));
  }
  if (found.size() > 1) {
    throw Error(Finding::kAmbiguousFormat, "fits both {} and {}", found[0]->id, found[1]->id)
        .File(source.path)
        .Hint("choose with --from");
  }
  return *found[0];
}

namespace {

// Opens one source in its own format or the one that the options name: OpenSnapshot without --order
// and without the geometry.
Snapshot OpenUndivided(Source source, const OpenOptions& options) {
  const std::string path = source.path;
  try {
    const FormatEntry& format = DetectFormat(source, options);
    if (format.open == nullptr) {
      throw Error(Finding::kUnsupportedKind, "{} cannot be read as a snapshot", format.id);
    }
    OpenOptions all = options;
    all.open = OpenSnapshot;
    Snapshot snapshot = format.open(std::move(source), all);
    snapshot.format = format.id;
    return snapshot;
  } catch (Error& error) {
    throw error.File(path);
  }
}

Source PageSource(const Source& folder, const SourceFile& page) {
  Source source;
  source.path = folder.path + "/" + page.name;
  source.files.push_back({std::string(LastPart(page.name)), page.data});
  source.by_address = {0};
  return source;
}

// Reads the files of a folder one by one and joins them in the order of --order. Like
// OpenUndivided, it leaves rows whole if the files do not tell the heads.
Snapshot OpenPages(Source folder, const OpenOptions& options) {
  if (!folder.is_folder)
    throw Error(Finding::kUsage, "--order: is one file, not a folder of pages");
  const std::vector<const SourceFile*> pages = InOrder(folder, options.order);
  OpenOptions each = options;
  each.order.clear();
  std::optional<raw::TierConfig> told;
  if (auto preset = raw::ParsePreset(options.raw)) {
    told = raw::FillInFromTier(folder, *preset);
    each.raw = raw::Described(*preset);
  }
  std::vector<Snapshot> parts;
  for (const SourceFile* page : pages)
    parts.push_back(OpenUndivided(PageSource(folder, *page), each));

  size_t others = 0;
  for (const SourceFile& file : folder.files) others += !file.name.ends_with(".json");
  others -= std::min(others, pages.size());
  Snapshot snapshot = Concatenate(std::move(parts), std::move(folder));
  snapshot.facts.emplace_back(
      "pages", fmt::format("{}, in the order that --order {} gives, which the files cannot confirm",
                           pages.size(), options.order));
  if (others > 0) {
    snapshot.notes.push_back({fmt::format("{} file{} of the folder {} not in --order", others,
                                          PluralEnding(others), others == 1 ? "is" : "are"),
                              false});
  }
  if (told) {
    snapshot.model = told->model;
    snapshot.facts.insert(snapshot.facts.end(), told->facts.begin(), told->facts.end());
  }
  return snapshot;
}

Snapshot OpenDivided(Source source, const OpenOptions& options, bool is_told) {
  const std::string path = source.path;
  try {
    // A file of slots is a folder of pages in all but name, and chooses them itself.
    const bool pages = !options.order.empty() && lmcache::ProbeBlocks(source) == Confidence::kNo;
    Snapshot snapshot =
        pages ? OpenPages(std::move(source), options) : OpenUndivided(std::move(source), options);
    if (options.geometry) ApplyGeometry(*options.geometry, snapshot);
    if (is_told) RequireAgreement(options, snapshot);
    if (is_told && !options.is_shared) RequireUse(options, *FindFormat(snapshot.format), snapshot);
    return snapshot;
  } catch (Error& error) {
    throw error.File(path);
  }
}

}  // namespace

Snapshot OpenSnapshot(Source source, const OpenOptions& options) {
  return OpenDivided(std::move(source), options, true);
}

Snapshot OpenSnapshot(const Source& source, const OpenOptions& options,
                      const std::optional<ModelGeometry>& otherwise) {
  try {
    Snapshot snapshot = OpenSnapshot(source, options);
    if (snapshot.heads_known() || !otherwise || options.geometry) return snapshot;
  } catch (const Error& error) {
    const bool may_tell = otherwise && !options.geometry;
    if (error.finding() != Finding::kAmbiguousFormat || !may_tell) throw;
  }
  OpenOptions with_heads = options;
  with_heads.geometry = otherwise;
  return OpenDivided(source, with_heads, false);  // by a trace, which is compared by itself
}

std::optional<Snapshot> OpenToKeep(const Source& source, const OpenOptions& options,
                                   std::string& why) {
  if (HasTrait(options.from, kIsOpaque)) return std::nullopt;
  std::optional<Snapshot> snapshot;
  try {
    snapshot = OpenSnapshot(source, options);
  } catch (const Error& error) {
    if (error.finding() != Finding::kUnsupportedKind) throw;
    why = error.message();
    return std::nullopt;
  }
  try {
    RegionsOf(*snapshot);
  } catch (const Error& error) {
    why = error.message();
    return std::nullopt;
  }
  return snapshot;
}

bool HoldsOnlyADump(const std::string& folder) {
  try {
    OpenOptions options;
    options.metadata_only = true;
    const Snapshot snapshot = OpenSnapshot(Source::Open(folder), options);
    const Source& source = snapshot.source;
    std::set<size_t> used;
    for (const Region& region : RegionsOf(snapshot)) used.insert(region.file);
    for (size_t i = 0; i < source.files.size(); ++i) {
      const std::string_view last = LastPart(source.files[i].name);
      const bool describes = last.starts_with("meta") && last.ends_with(".json");
      if (used.count(i) == 0 && !describes) return false;
    }
    return source.empty_folders.empty() && !used.empty();
  } catch (const Error&) {
    return false;
  }
}

ModelGeometry ReadModelGeometry(std::shared_ptr<const FileSource> file) {
  try {
    ModelGeometry geometry =
        LooksLikeConfig(file->bytes()) ? ReadConfigGeometry(*file) : ReadGgufGeometry(*file);
    geometry.file = std::move(file);
    return geometry;
  } catch (Error& error) {
    throw error.File(file->name());
  }
}

std::string_view Name(FormatKind kind) {
  constexpr std::string_view kNames[] = {"snapshot", "names",   "preset",
                                         "trace",    "weights", "model"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<FormatListing> ListFormats() {
  std::vector<FormatListing> list;
  for (const FormatEntry& format : Formats()) {
    list.push_back({format.id, FormatKind::kSnapshot, format.probe != nullptr,
                    format.open != nullptr, format.write != nullptr, format.summary, format.needs});
  }
  for (const NamePattern& pattern : NamePatterns()) {
    list.push_back({pattern.text, FormatKind::kNames, true, true, false, pattern.whose, ""});
  }
  list.push_back({kOnlyArray.text, FormatKind::kNames, true, true, false, kOnlyArray.whose, ""});
  for (const raw::Preset& preset : raw::Presets()) {
    list.push_back(
        {preset.name, FormatKind::kPreset, false, true, false, preset.summary, preset.needs});
  }
  for (const TraceCarrier& carrier : TraceCarriers()) {
    list.push_back({carrier.id, FormatKind::kTrace, true, true, false, carrier.summary, ""});
  }
  for (const WeightsForm& form : WeightsForms()) {
    list.push_back({form.name, FormatKind::kWeights, true, true, true, form.summary, ""});
  }
  list.push_back({"gguf", FormatKind::kModel, true, true, false,
                  "a model file: layers, heads and RoPE for --model", ""});
  list.push_back({"config.json", FormatKind::kModel, true, true, false,
                  "of a Hugging Face model: layers, heads and RoPE, also for --model", ""});
  return list;
}

}  // namespace kv
