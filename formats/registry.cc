// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The table of formats, detection and opening, and the table of foreign formats that are recognised
// and refused.
#include "formats/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "formats/format.h"
#include "formats/gguf/gguf.h"
#include "formats/infinilm_dump/infinilm_dump.h"
#include "formats/kvcm/kvcm.h"
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
#include "lib/core/base/number.h"
#include "lib/core/snapshot/layout.h"

namespace kv {

namespace {

// Lists the parts of the snapshot that are lost even in a format of named arrays with metadata.
std::vector<std::string> BesideArrays(const Snapshot& snapshot) {
  if (snapshot.storage.count("recurrent") == 0) return {};
  return {"the state of recurrent layers"};
}

// Lists the parts of the snapshot that are lost in a format without cells and text.
std::vector<std::string> BesideTensors(const Snapshot& snapshot) {
  std::vector<std::string> lost;
  if (!snapshot.cell_groups.empty()) lost.emplace_back("positions and sequences");
  if (!snapshot.tokens.empty()) lost.emplace_back("token ids");
  for (std::string& what : BesideArrays(snapshot)) lost.push_back(std::move(what));
  if (snapshot.cell_groups.size() > 1) lost.emplace_back("which cache a layer belongs to");
  return lost;
}

// Lists also the loss of layer numbers, for formats that count layers from 0.
std::vector<std::string> BesideNumberedTensors(const Snapshot& snapshot) {
  std::vector<std::string> lost = BesideTensors(snapshot);
  AddLayerNumbers(snapshot, lost);
  return lost;
}

// One row per format; detection asks them in this order.
constexpr FormatEntry kFormats[] = {
    {kKvzFormat, "archive of any source, by kvtool compress, byte for byte", "",
     kReadsAll | kReadsProfile | kIsArchive | kIsCompressed | kStandsAlone, ProbeKvz, OpenKvz,
     nullptr},
    {"kvf", "frames of libkvtool: pages as the plug-ins of engines store them",
     "--order for a folder of pages", kReadsProfile | kIsCompressed | kStandsAlone, kvf::Probe,
     kvf::Open, nullptr},
    {"npz", "numpy archives, stored or deflated", "K/V names or --k-pattern", kReadsAll, ProbeNpz,
     OpenNpz, WriteNpz, nullptr, BesideArrays},
    {"npy", "numpy arrays: a file or a folder of them", "K/V names or --layout",
     kReadsAll | kWritesFolder, ProbeNpy, OpenNpy, WriteNpy, nullptr, BesideArrays},
    {"safetensors", "safetensors: a file or a folder of them; prompt caches of MLX",
     "K/V names or --k-pattern", kReadsAll, ProbeSafetensors, OpenSafetensors, WriteSafetensors,
     nullptr, BesideArrays},
    {"torch", "PyTorch files, zip and legacy, and pickles; written: Hugging Face's (K, V) tuples",
     "K/V names or --k-pattern; --layout 'l2(htd)' and heads for blocks of TensorRT-LLM", kReadsAll,
     ProbeTorch, OpenTorch, WriteTorchTuple, nullptr, BesideTensors, false, nullptr,
     PairsWanted::kHalves},
    {"torch-dict", "as for torch; written: a dict with kvtool's names", "K/V names or --k-pattern",
     kReadsAll, nullptr, OpenTorch, WriteTorchSnapshot, nullptr, BesideArrays},
    {"llama-state", "llama.cpp session and sequence files; writes sequence files",
     "heads: --model, --kv-heads or --head-dim", kReadsLayout | kStandsAlone | kHoldsStates,
     llama_state::Probe, llama_state::Open, llama_state::WriteSequence, nullptr,
     llama_state::NotKept, true, nullptr, PairsWanted::kOfModel},
    {"llama-session", "llama.cpp session files, written (read as llama-state)",
     "the architecture: --model", kReadsLayout | kStandsAlone, nullptr, llama_state::Open,
     llama_state::WriteSession, nullptr, llama_state::NotKept, true, nullptr,
     PairsWanted::kOfModel},
    {"llama-seq-blob", "llama_state_seq_get_data in memory", "--from; heads as llama-state",
     kReadsLayout | kStandsAlone, nullptr, llama_state::OpenSeqBlob, nullptr},
    {"llama-ctx-blob", "llama_state_get_data in memory", "--from; heads as llama-state",
     kReadsLayout | kStandsAlone, nullptr, llama_state::OpenCtxBlob, nullptr},
    {"mnn-dump", "MNN dump folders, logical and packed", "", kReadsLayout | kWritesFolder,
     mnn::ProbeDump, mnn::OpenDump, mnn::WriteDump, nullptr, BesideTensors, false,
     mnn::ReadDumpEntries},
    {"infinilm-dump", "InfiniLM compression test: input_kv.bin, output_kv.bin, meta.json", "",
     kReadsLayout | kWritesFolder, infinilm::ProbeDump, infinilm::OpenDump, infinilm::WriteDump,
     infinilm::WriteDumpPair, BesideNumberedTensors},
    {"lmcache", "LMCache chunks with their header (.data), one or more groups of layers",
     "--kv-heads or --head-dim; --order joins several chunks", kReadsBatch, lmcache::ProbeChunk,
     lmcache::OpenChunk, nullptr},
    {"lmcache-block", "LMCache raw-block files and images of such devices",
     "--kv-heads or --head-dim; --order joins several chunks", kReadsBatch, lmcache::ProbeBlocks,
     lmcache::OpenBlocks, nullptr},
    {"raw", "headerless arrays of one element type", "--raw DTYPE:ORDER:SIZES",
     kReadsBatch | kReadsRaw, nullptr, raw::OpenRaw, nullptr},
    {"opaque", "any bytes, archived as they are", "", kIsOpaque, nullptr, nullptr, nullptr},
};

// Returns a hint: if the content does not identify the format, the file name may.
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
    Error error(Finding::kUsage, "unknown format '{}'", options.from);
    for (const raw::Preset& preset : raw::Presets()) {
      if (preset.name == options.from)
        throw error.Hint("it is a preset of --raw: --raw {}:{}", preset.name, preset.needs);
    }
    throw error.Hint("'kvtool formats' lists them");
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
  if (source.is_folder && source.files.empty()) {
    throw Error(Finding::kUnknownFormat, "the folder holds no file")
        .File(source.path)
        .Hint("'kvtool formats' lists what is read");
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
// and without applying the geometry.
Snapshot OpenOneSource(Source source, const OpenOptions& options) {
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
// OpenOneSource, it leaves rows as one head if the files do not record the heads.
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
    parts.push_back(OpenOneSource(PageSource(folder, *page), each));

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
    // A file of slots is like a folder of pages, but its reader applies --order itself.
    const bool pages = !options.order.empty() && lmcache::ProbeBlocks(source) == Confidence::kNo;
    Snapshot snapshot =
        pages ? OpenPages(std::move(source), options) : OpenOneSource(std::move(source), options);
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
  // heads come from a trace, which is compared separately
  return OpenDivided(source, with_heads, false);
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
    FindRegions(*snapshot);
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
    for (const Region& region : FindRegions(snapshot)) used.insert(region.file);
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

namespace {

using std::string_view;

constexpr size_t kPickleWindow = 4096, kConfigWindow = 1 << 16;

string_view Head(const Source& source, size_t bytes) {
  return AsText(BytesOfOnlyFile(source)).substr(0, bytes);
}

template <size_t N>
bool Begins(const Source& source, const char (&magic)[N]) {
  const string_view word(magic, N - 1);
  return Head(source, word.size()) == word;
}

bool IsGguf(const Source& source) { return Begins(source, "GGUF") || Begins(source, "FUGG"); }

bool IsWeights(const Source& source) { return LooksLikeKvcm(BytesOfOnlyFile(source)); }

// Recognises a pickled dataclass of LMCache by its name near the beginning.
bool IsCacheGen(const Source& source) {
  const string_view head = Head(source, kPickleWindow);
  return head.starts_with('\x80') && (head.find("CacheGenGPUEncoderOutput") != head.npos ||
                                      head.find("CacheGenEncoderOutput") != head.npos);
}

// Recognises the first header of a tar archive: its checksum counts its own field as blanks.
bool IsTar(const Source& source) {
  constexpr size_t kHeader = 512, kChecksum = 148, kChecksumBytes = 8, kMagic = 257;
  const string_view head = Head(source, kHeader);
  if (head.size() < kHeader || head.substr(kMagic, 5) != "ustar") return false;
  unsigned sum = 0;
  for (size_t i = 0; i < kHeader; ++i) {
    const bool own = i >= kChecksum && i < kChecksum + kChecksumBytes;
    sum += own ? ' ' : static_cast<unsigned char>(head[i]);
  }
  string_view digits = head.substr(kChecksum, kChecksumBytes);
  digits.remove_prefix(std::min(digits.find_first_not_of(' '), digits.size()));
  return TakeNumber<unsigned>(digits, 8) == sum;
}

// Recognises tar files that torch wrote before 0.1.10, by the fixed names of their members.
bool IsTorchTar(const Source& source) {
  if (!IsTar(source)) return false;
  const string_view name = Head(source, 100);
  return name.starts_with("sys_info") || name.starts_with("pickle") ||
         name.starts_with("storages") || name.starts_with("tensors");
}

bool IsCompressed(const Source& source) {
  return Begins(source, "\x1f\x8b") || Begins(source, "\x28\xb5\x2f\xfd") ||
         Begins(source, "\xfd\x37zXZ") || Begins(source, "\x04\x22\x4d\x18") ||
         Begins(source, "BZh");
}

string_view Text(const SourceFile& file, size_t bytes) {
  return AsText(file.data->bytes()).substr(0, bytes);
}

// Returns true if one of the files is of a kind, as models are folders as often as files.
template <typename Kind>
bool AnyIs(const Source& source, const Kind& kind) {
  return std::any_of(source.files.begin(), source.files.end(),
                     [&](const SourceFile& file) { return kind(LastPart(file.name), file); });
}

// Recognises a serialised plan of TensorRT.
bool IsEngine(const Source& source) {
  return AnyIs(source, [](string_view, const SourceFile& file) { return Text(file, 4) == "ftrt"; });
}

// Recognises CTranslate2's model.bin: a version, then the name of its specification with its length
// and end.
bool IsCTranslate2(const Source& source) {
  constexpr size_t kNameAt = 6, kLongest = 64, kNewest = 32;
  return AnyIs(source, [](string_view, const SourceFile& file) {
    const ByteSpan bytes = file.data->bytes();
    if (bytes.size() < kNameAt) return false;
    const auto version = LoadLE<uint32_t>(bytes.data());
    const size_t length = LoadLE<uint16_t>(bytes.data() + 4);
    if (version == 0 || version > kNewest || length > kLongest || bytes.size() - kNameAt < length)
      return false;
    return AsText(bytes.subspan(kNameAt, length)).ends_with(string_view("Spec\0", 5));
  });
}

// Recognises a model in ONNX format: its version, then its producer as text; or the settings of its
// runtime.
bool IsOnnx(const Source& source) {
  return AnyIs(source, [](string_view name, const SourceFile& file) {
    if (name == "genai_config.json") return true;
    const string_view head = Text(file, 64);
    if (head.size() < 8 || head[0] != 0x08 || head[1] < 3 || head[1] > 32 || head[2] != 0x12)
      return false;
    const auto length = static_cast<size_t>(head[3]);
    const string_view maker = head.substr(4, length);
    return length > 0 && maker.size() == length && length + 4 < head.size() &&
           std::all_of(maker.begin(), maker.end(), [](char c) { return c >= ' ' && c <= '~'; });
  });
}

// Recognises Ollama: blobs are named by their hash, and manifests have media types of their own.
bool IsOllama(const Source& source) {
  return AnyIs(source, [&](string_view name, const SourceFile& file) {
    const string_view head = Text(file, kPickleWindow);
    const string_view path = source.is_folder ? name : string_view(source.path);
    return (LastPart(path).starts_with("sha256-") && head.starts_with("GGUF")) ||
           (head.starts_with('{') && head.find("application/vnd.ollama.") != head.npos);
  });
}

// Recognises weights of ExLlama's converter by the config beside them.
bool IsExLlama(const Source& source) {
  return AnyIs(source, [](string_view name, const SourceFile& file) {
    if (name != "config.json" && name != "quantization_config.json") return false;
    const string_view head = Text(file, kConfigWindow);
    return head.find("\"exl2\"") != head.npos || head.find("\"exl3\"") != head.npos;
  });
}

// Recognises models of whisper.cpp and of llama.cpp before GGUF.
bool IsGgml(const Source& source) {
  return Begins(source, "lmgg") || Begins(source, "fmgg") || Begins(source, "tjgg");
}

bool IsHdf5(const Source& source) { return Begins(source, "\x89HDF\r\n\x1a\n"); }

bool IsTable(const Source& source) { return Begins(source, "PAR1") || Begins(source, "ARROW1"); }

bool IsDynamoArena(const Source& source) {
  return source.path.find("dynamo-kvbm-disk-cache-") != std::string::npos;
}

constexpr ForeignFormat kForeign[] = {
    {"cachegen", "LMCache chunks of the CacheGen serde",
     "symbols of an arithmetic coder whose tables only its GPU decoder knows",
     "set remote_serde to naive, or take the chunks of the local disk", IsCacheGen},
    {"mooncake", "Mooncake store",
     "objects of a distributed store; no file that a user can name holds a cache",
     "store through LMCache's disk or vLLM's example connector", nullptr},
    {"lmcache-remote", "LMCache on Redis, Valkey, S3, NIXL and other servers",
     "kept by servers, not in files", "store to LMCache's disk, fs or GDS backend", nullptr},
    {"dynamo-kvbm", "NVIDIA Dynamo KVBM, dynamo-kvbm-disk-cache-*",
     "one raw arena for all blocks, deleted while in use; only the process knows where each block "
     "is",
     "", IsDynamoArena},
    {"torch-tar", "torch files before 0.1.10",
     "tar archives of a layout that later versions of torch do not write",
     "load and save them with a version of torch that still can", IsTorchTar},
    {"torch-quantised", "torch tensors that are quantised, sparse, nested or of wrapping classes",
     "their values are not rows in a storage", "save them dequantised", nullptr},
    {"transformers-quantised", "QuantizedCache of transformers (quanto, HQQ)",
     "values are packed by the quantiser's own classes", "save the dequantised tensors", nullptr},
    {"npy-object", "numpy arrays of Python objects", "they are pickles that run code when loaded",
     "save plain arrays", nullptr},
    {"mnn-quantised", "MNN caches with quant_key or quant_value, packed",
     "the engine does not dump them; the logical dump holds their float input",
     "dump with MNN_KV_DUMP_PACKED=0", nullptr},
    {"exllama", "ExLlamaV2 and V3",
     "their caches live in GPU memory, whole or quantised; neither writes them to a file",
     "torch.save the cache's key and value tensors, one pair per layer ([batch, token, head, dim]: "
     "--layout bthd)",
     IsExLlama},
    {"tensorrt-llm", "TensorRT-LLM engines (.engine, .plan)",
     "compiled weights and kernels; the cache is a pool in GPU memory",
     "its KV cache connector example saves blocks as .pt: --layout 'l2(htd)' with --kv-heads and "
     "--head-dim reads them",
     IsEngine},
    {"ctranslate2", "CTranslate2 (model.bin)",
     "weights; the decoder's state stays in the process and has no file",
     "run the model in transformers and torch.save its past_key_values", IsCTranslate2},
    {"whisper.cpp", "whisper.cpp, and ggml models before GGUF",
     "weights; whisper_state has no function that saves its caches",
     "run the model in transformers and save past_key_values (self and cross attention separately)",
     IsGgml},
    {"onnx-genai", "ONNX Runtime GenAI",
     "the cache is bound to the session's present and past buffers; nothing saves them",
     "np.savez the outputs present.{i}.key and present.{i}.value", IsOnnx},
    {"ollama", "Ollama",
     "its blobs are GGUF models and JSON; the runner keeps caches in memory only",
     "serve the same blob with llama-server --slot-save-path DIR and read the slot it saves",
     IsOllama},
    {"gguf", "GGUF model files", "weights of a model, not a cache",
     "--model FILE takes layers and heads from it", IsGguf},
    {"weights-bin", "KV-compressor weights", "weights, not a cache", "kvtool weights inspect",
     IsWeights},
    {"hdf5", "HDF5 files", "every writer has its own names and axes, and no engine writes them",
     "save the arrays as npz or safetensors", IsHdf5},
    {"columns", "Parquet and Arrow files", "tables, not arrays of a cache",
     "save the arrays as npz or safetensors", IsTable},
    {"compressed", "files compressed with gzip, zstd, xz, bzip2 or lz4",
     "their contents cannot be mapped", "unpack it first, or archive it with --from opaque",
     IsCompressed},
};

}  // namespace

std::span<const ForeignFormat> ForeignFormats() { return kForeign; }

void RefuseForeign(const Source& source) {
  for (const ForeignFormat& format : kForeign) {
    if (format.recognise == nullptr || !format.recognise(source)) continue;
    Error error(Finding::kUnsupportedKind, "not read as a cache ({}): {}", format.what,
                format.reason);
    if (!format.hint.empty()) error.Hint(std::string(format.hint));
    throw error;
  }
}

}  // namespace kv
