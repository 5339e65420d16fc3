// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/foreign.h"

#include <algorithm>
#include <optional>

#include "formats/format.h"
#include "formats/kvcm/kvcm.h"
#include "formats/words.h"
#include "lib/core/base/number.h"

namespace kv {
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

// A pickled dataclass of LMCache, named near its beginning.
bool IsCacheGen(const Source& source) {
  const string_view head = Head(source, kPickleWindow);
  return head.starts_with('\x80') && (head.find("CacheGenGPUEncoderOutput") != head.npos ||
                                      head.find("CacheGenEncoderOutput") != head.npos);
}

// The first header of a tar archive: its checksum counts itself as blanks.
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

// Torch before 0.1.10 wrote tar files whose members have fixed names.
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

// Models are folders as often as files: whether one of the files, or the only one, is of a kind.
template <typename Kind>
bool AnyIs(const Source& source, const Kind& kind) {
  return std::any_of(source.files.begin(), source.files.end(),
                     [&](const SourceFile& file) { return kind(LastPart(file.name), file); });
}

// A serialised plan of TensorRT.
bool IsEngine(const Source& source) {
  return AnyIs(source, [](string_view, const SourceFile& file) { return Text(file, 4) == "ftrt"; });
}

// CTranslate2's model.bin: a version, then the name of its specification with its length and end.
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

// A model in ONNX's form: its version, then who made it, as text; or the settings of its runtime.
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

// Ollama names blobs by their hash, and its manifests by media types of its own.
bool IsOllama(const Source& source) {
  return AnyIs(source, [&](string_view name, const SourceFile& file) {
    const string_view head = Text(file, kPickleWindow);
    const string_view path = source.is_folder ? name : string_view(source.path);
    return (LastPart(path).starts_with("sha256-") && head.starts_with("GGUF")) ||
           (head.starts_with('{') && head.find("application/vnd.ollama.") != head.npos);
  });
}

// Weights that ExLlama's converter made: the config beside them says so.
bool IsExLlama(const Source& source) {
  return AnyIs(source, [](string_view name, const SourceFile& file) {
    if (name != "config.json" && name != "quantization_config.json") return false;
    const string_view head = Text(file, kConfigWindow);
    return head.find("\"exl2\"") != head.npos || head.find("\"exl3\"") != head.npos;
  });
}

// Models of whisper.cpp and of llama.cpp before GGUF.
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
     "one raw arena for all blocks, deleted while in use; only the process knows where a block "
     "lies",
     "", IsDynamoArena},
    {"torch-tar", "torch files before 0.1.10",
     "tar archives of a layout that no torch since writes",
     "load and save them with a torch that still can", IsTorchTar},
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
     "run the model in transformers and save past_key_values (self and cross attention apart)",
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
