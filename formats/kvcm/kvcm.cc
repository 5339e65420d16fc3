// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads KV-compressor weights: finds all faults of a file, and predicts what the two real loaders
// would do with it.
#include "formats/kvcm/kvcm.h"

#include <fmt/format.h>

#include <array>

namespace kv {
namespace {

struct HeaderField {
  std::string_view name;
  uint64_t offset;
};
constexpr HeaderField kFields[] = {
    {"magic", 0},
    {"version", 4},
    {"dtype_code", 8},
    {"reserved", 10},
    {"num_layers", 12},
    {"num_heads", 16},
    {"head_dim", 20},
    {"hidden_size", 24},
    {"compression_factor", 28},
    {"compression_factor x head_dim", 28},
    {"min_seq_len", 32},
    {"weight_count_per_layer", 36},
    {"metadata_size_bytes", 40},
};
constexpr std::array<DType, 3> kCodes = {DType::kF16, DType::kBF16, DType::kF32};

std::optional<uint64_t> FieldOffset(std::string_view field) {
  for (const HeaderField& known : kFields) {
    if (known.name == field) return known.offset;
  }
  return std::nullopt;
}

// Thrown only inside the examiner: the rest of the file cannot be read.
struct Stop {};

class Examiner {
 public:
  explicit Examiner(Source source) : reader_(source.files.front().data->bytes()) {
    weights_.source = std::move(source);
    weights_.format = "kvcm";
  }

  KvcmExamination Run() {
    try {
      ReadHeader();
      ReadBlocks();
    } catch (const Stop&) {
      return {std::nullopt, std::move(faults_)};
    }
    if (!reader_.at_end()) {
      Fault({.finding = Finding::kTrailingBytes,
             .field = "file size",
             .offset = reader_.offset(),
             .found = fmt::to_string(reader_.offset() + reader_.remaining()),
             .expected = fmt::format("{} (end of the last block)", reader_.offset()),
             .effect = "both loaders ignore trailing bytes"});
    }
    for (WeightsFault& fault : CheckWeights(weights_)) {
      if (!fault.offset) fault.offset = FieldOffset(fault.field);
      faults_.push_back(std::move(fault));
    }
    return {std::move(weights_), std::move(faults_)};
  }

 private:
  void Fault(WeightsFault fault) {
    if (!fault.offset) fault.offset = FieldOffset(fault.field);
    const bool fatal = fault.fatal;
    if (fatal || faults_.size() < kMostFaults) faults_.push_back(std::move(fault));
    if (fatal) throw Stop{};
  }

  void Fatal(Finding finding, std::string_view field, std::string found, std::string expected,
             std::optional<uint64_t> offset = std::nullopt) {
    Fault({.finding = finding,
           .field = std::string(field),
           .offset = offset,
           .found = std::move(found),
           .expected = std::move(expected),
           .fatal = true});
  }

  void ReadHeader() {
    if (reader_.remaining() < kKvcmHeaderBytes) {
      Fatal(Finding::kTruncated, "file size", fmt::to_string(reader_.remaining()),
            "at least 44 (the header)", reader_.remaining());
    }
    const uint32_t magic = reader_.U32("magic");
    if (magic != kKvcmMagic) {
      Fatal(Finding::kBadMagic, "magic", fmt::format("{:#010x}", magic), "0x4b56434d (MCVK)");
    }
    const uint32_t version = reader_.U32("version");
    if (version != kKvcmVersion) {
      Fatal(Finding::kBadVersion, "version", fmt::to_string(version), "1");
    }
    ReadDtype();
    WeightsHeader& header = weights_.header;
    header.num_layers = reader_.U32("num_layers");
    header.num_heads = reader_.U32("num_heads");
    header.head_dim = reader_.U32("head_dim");
    header.hidden_size = reader_.U32("hidden_size");
    header.compression_factor = reader_.U32("compression_factor");
    header.min_seq_len = reader_.U32("min_seq_len");
    header.blocks_per_layer = reader_.U32("weight_count_per_layer");
    const uint32_t metadata_bytes = reader_.U32("metadata_size_bytes");
    if (header.num_layers == 0) {
      Fatal(Finding::kBadField, "num_layers", "0", "at least 1");
    }
    if (header.blocks_per_layer == 0) {
      Fatal(Finding::kBadField, "weight_count_per_layer", "0", "at least 1");
    }
    CheckFactor();
    if (metadata_bytes > reader_.remaining()) {
      Fatal(Finding::kTruncated, "metadata_size_bytes", fmt::to_string(metadata_bytes),
            fmt::format("at most {} (bytes left)", reader_.remaining()));
    }
    const ByteSpan metadata = reader_.Take(metadata_bytes, "metadata");
    weights_.metadata.assign(metadata.begin(), metadata.end());
    CheckBlockCount();
  }

  void ReadDtype() {
    const uint16_t code = reader_.U16("dtype_code");
    weights_.dtype = code < kCodes.size() ? kCodes[code] : DType::kF16;
    if (code >= kCodes.size()) {
      Fault({.finding = Finding::kUnknownDtype,
             .field = "dtype_code",
             .found = fmt::to_string(code),
             .expected = "0 (fp16), 1 (bf16) or 2 (fp32)",
             .effect = "csrc reads it as fp16, legacy refuses the file"});
    }
    const uint16_t reserved = reader_.U16("reserved");
    if (reserved != 0) {
      Fault({.finding = Finding::kBadField,
             .field = "reserved",
             .found = fmt::format("{:#x}", reserved),
             .expected = "0",
             .effect = "both loaders ignore it"});
    }
  }

  void CheckFactor() {
    const uint32_t factor = weights_.header.compression_factor;
    if (factor > 1) return;
    Fault({.finding = Finding::kBadField,
           .field = "compression_factor",
           .found = fmt::to_string(factor),
           .expected = "at least 2",
           .effect =
               "unless the caller gives a factor, nothing is compressed and no message says so"});
  }

  // Checks before any allocation that the counts fit the remaining bytes.
  void CheckBlockCount() {
    const WeightsHeader& header = weights_.header;
    const uint64_t count = uint64_t{header.num_layers} * header.blocks_per_layer;
    const uint64_t most = reader_.remaining() / kKvcmBlockHeaderBytes;
    if (count > most) {
      // The larger of the two factors is more likely the wrong one.
      const bool layers = header.num_layers > header.blocks_per_layer;
      Fatal(Finding::kTruncated, layers ? "num_layers" : "weight_count_per_layer",
            fmt::to_string(layers ? header.num_layers : header.blocks_per_layer),
            fmt::format("{} layers x {} blocks to fit in the {} bytes left", header.num_layers,
                        header.blocks_per_layer, reader_.remaining()));
    }
    weights_.blocks.reserve(count);
    const uint32_t mlps = header.blocks_per_layer / kSlotsPerMlp;
    for (uint32_t i = 0; i < mlps && i < kMlpRoles; ++i) {
      weights_.prefixes.emplace_back(kMlpPrefixes[i]);
    }
    weights_.names_assumed = true;
    weights_.slots = {0, 3, 6};
  }

  void ReadBlocks() {
    const WeightsHeader& header = weights_.header;
    for (uint32_t layer = 0; layer < header.num_layers; ++layer) {
      for (uint32_t i = 0; i < header.blocks_per_layer; ++i) ReadBlock(layer, i);
    }
  }

  void ReadBlock(uint32_t layer, uint32_t index) {
    const auto name = [&](std::string_view field) {
      return fmt::format("{} {}", weights_.BlockName(layer, index), field);
    };
    const uint64_t at = reader_.offset();
    if (reader_.remaining() < kKvcmBlockHeaderBytes) TooShort(name("header"), 12);
    const uint32_t rows = reader_.U32("rows");
    const uint32_t cols = reader_.U32("cols");
    LinearBlock block;
    block.offset = at;
    block.bias_flag = reader_.U32("has_bias");
    if (rows == 0) Fatal(Finding::kBadField, name("rows"), "0", "at least 1", at);
    if (cols == 0) Fatal(Finding::kBadField, name("cols"), "0", "at least 1", at + 4);
    if (block.bias_flag > 1) {
      Fault({.finding = Finding::kBadField,
             .field = name("has_bias"),
             .offset = at + 8,
             .found = fmt::to_string(block.bias_flag),
             .expected = "0 or 1",
             .effect = "both loaders take any non-zero value as 1"});
    }
    const uint64_t item = Info(weights_.dtype).block_bytes;
    uint64_t weight_bytes;  // rows * cols fits in 64 bits; times the item size it may not
    if (__builtin_mul_overflow(uint64_t{rows} * cols, item, &weight_bytes)) {
      Fatal(Finding::kOverflow, name("rows x cols"), fmt::format("{} x {}", rows, cols),
            fmt::format("at most {} bytes (bytes left)", reader_.remaining()), at);
    }
    if (weight_bytes > reader_.remaining()) {
      TooShort(name(fmt::format("weight ({} x {})", rows, cols)), weight_bytes);
    }
    block.weight =
        ContiguousView(weights_.dtype, {rows, cols}, reader_.Take(weight_bytes, "weight").data());
    if (block.bias_flag != 0) {
      if (rows * item > reader_.remaining()) TooShort(name("bias"), rows * item);
      block.bias = ContiguousView(weights_.dtype, {rows}, reader_.Take(rows * item, "bias").data());
    }
    weights_.blocks.push_back(std::move(block));
  }

  void TooShort(const std::string& what, uint64_t bytes) {
    Fatal(Finding::kTruncated, what, fmt::format("{} bytes", bytes),
          fmt::format("at most {} (bytes left)", reader_.remaining()), reader_.offset());
  }

  ByteReader reader_;
  CompressorWeights weights_;
  std::vector<WeightsFault> faults_;
};

}  // namespace

bool LooksLikeKvcm(ByteSpan bytes) {
  return bytes.size() >= 4 && LoadLE<uint32_t>(bytes.data()) == kKvcmMagic;
}

KvcmExamination ExamineKvcm(Source source) { return Examiner(std::move(source)).Run(); }

CompressorWeights ReadKvcm(Source source, KvcmReading reading) {
  KvcmExamination examined = ExamineKvcm(std::move(source));
  for (const WeightsFault& fault : examined.faults) {
    if (fault.fatal || reading == KvcmReading::kStrict) throw fault.ToError();
    const Error error = fault.ToError();
    std::string note = error.what();
    if (!fault.effect.empty()) note += "; " + fault.effect;
    examined.weights->notes.push_back({std::move(note), true});
  }
  return std::move(*examined.weights);
}

namespace {

uint16_t ToKvcmCode(DType dtype) {
  const auto at = std::find(kCodes.begin(), kCodes.end(), dtype);
  if (at != kCodes.end()) return static_cast<uint16_t>(at - kCodes.begin());
  throw Error(Finding::kUnsupportedDtype, "a .bin holds fp16, bf16 or fp32, not {}", Name(dtype));
}

}  // namespace

RoundingCounts WriteKvcm(const CompressorWeights& weights, DType dtype, Sink& sink) {
  const WeightsHeader& header = weights.header;
  KV_ASSERT(weights.blocks.size() == uint64_t{header.num_layers} * header.blocks_per_layer);
  ByteWriter head;
  head.U32(kKvcmMagic);
  head.U32(kKvcmVersion);
  head.U16(ToKvcmCode(dtype));
  head.U16(0);
  head.U32(header.num_layers);
  head.U32(header.num_heads);
  head.U32(header.head_dim);
  head.U32(header.hidden_size);
  head.U32(header.compression_factor);
  head.U32(header.min_seq_len);
  head.U32(header.blocks_per_layer);
  head.U32(static_cast<uint32_t>(weights.metadata.size()));
  sink.Write(head.bytes());
  sink.Write(weights.metadata);

  RoundingCounts counts;
  for (const LinearBlock& block : weights.blocks) {
    ByteWriter shape;
    shape.U32(static_cast<uint32_t>(block.rows()));
    shape.U32(static_cast<uint32_t>(block.cols()));
    shape.U32(block.has_bias() ? 1 : 0);
    sink.Write(shape.bytes());
    sink.Write(RoundValues(block.weight, dtype, &counts));
    if (block.has_bias()) sink.Write(RoundValues(block.bias, dtype, &counts));
  }
  return counts;
}

namespace {

// Models of the two programs that load a .bin: their checks in their order, with their messages.
// Nothing is allocated here; where a loader would allocate, only the outcome counts.

// Memory of the modelled machine; a loader gets std::bad_alloc beyond it.
constexpr uint64_t kLoaderMemory = uint64_t{6} << 30;
constexpr uint64_t kLargestVector = INT64_MAX;  // std::vector<std::byte>::max_size()
// approximate bytes that csrc reserves per block and per layer
constexpr uint64_t kBlockObjectBytes = 40;
constexpr uint64_t kLegacyMostElements = 100'000'000;

struct Refusal {
  std::string message;
  uint64_t offset;
};

[[noreturn]] void Refuse(std::string message, uint64_t offset) {
  throw Refusal{std::move(message), offset};
}

class Loader {
 public:
  Loader(ByteSpan bytes, bool legacy) : bytes_(bytes), legacy_(legacy) {}

  void Load() {
    if (bytes_.size() < kKvcmHeaderBytes) {
      Refuse("Failed to read compression weight header", bytes_.size());
    }
    const bool magic = At<uint32_t>(0) == kKvcmMagic;
    if (!magic || At<uint32_t>(4) != kKvcmVersion) {
      Refuse("Invalid compression weight header", magic ? 4 : 0);
    }
    const uint16_t code = At<uint16_t>(8);
    const uint32_t layers = At<uint32_t>(12), count = At<uint32_t>(36);
    if (layers == 0 || count == 0 || (legacy_ && (layers > 10000 || count > 4096))) {
      Refuse("Invalid header values (num_layers/weight_count_per_layer)",
             layers == 0 || (legacy_ && layers > 10000) ? 12 : 36);
    }
    if (code > 2 && legacy_) Refuse("Unsupported dtype in compression weight file", 8);
    item_ = code == 2 ? 4 : 2;
    Reserve(layers, 12);
    Reserve(count, 36);
    // Models a relative seek: past the end it succeeds, and the next read fails.
    position_ = kKvcmHeaderBytes + At<uint32_t>(40);
    for (uint32_t layer = 0; layer < layers; ++layer) {
      for (uint32_t i = 0; i < count; ++i) LoadBlock();
    }
  }

 private:
  template <typename T>
  T At(uint64_t offset) const {
    return LoadLE<T>(bytes_.data() + offset);
  }

  void Reserve(uint64_t count, uint64_t field) const {
    if (count * kBlockObjectBytes > kLoaderMemory) Refuse("std::bad_alloc", field);
  }

  bool Skip(uint64_t count) {
    if (position_ > bytes_.size() || count > bytes_.size() - position_) return false;
    position_ += count;
    return true;
  }

  void LoadBlock() {
    const uint64_t at = position_;
    if (!Skip(kKvcmBlockHeaderBytes)) Refuse("Unexpected EOF while reading weight meta", at);
    const uint64_t rows = At<uint32_t>(at), cols = At<uint32_t>(at + 4);
    const uint64_t elements = rows * cols;  // cannot overflow
    const std::string unreasonable =
        fmt::format("Unreasonable weight shape: rows={} cols={}", rows, cols);
    if (elements == 0) Refuse(legacy_ ? unreasonable : "Invalid weight shape", at);
    if (legacy_ && elements > kLegacyMostElements) Refuse(unreasonable, at);
    const uint64_t bytes = elements * item_;  // may wrap around, as it does in csrc
    if (bytes > kLargestVector) Refuse("cannot create std::vector larger than max_size()", at);
    if (bytes > kLoaderMemory) Refuse("std::bad_alloc", at);
    if (!Skip(bytes)) Refuse("Unexpected EOF while reading weight data", position_);
    // If the byte count wrapped, the read succeeds and the tensor's own allocation fails.
    if (bytes / item_ != elements) Refuse("std::bad_alloc", at);
    if (At<uint32_t>(at + 8) == 0) return;
    if (!Skip(rows * item_)) Refuse("Unexpected EOF while reading bias", position_);
  }

  ByteSpan bytes_;
  bool legacy_;
  uint64_t item_ = 2;
  uint64_t position_ = 0;
};

LoaderVerdict Try(std::string_view name, ByteSpan bytes, std::string_view path, bool legacy) {
  LoaderVerdict verdict{name, false, "", std::nullopt};
  if (path.ends_with(".pth")) {
    verdict.message = fmt::format(
        "Unsupported weight format (.pth) in {}; convert to binary format described in "
        "docs/KVCacheCompressionWeightFormat.md",
        path);
    return verdict;
  }
  try {
    Loader(bytes, legacy).Load();
    verdict.loads = true;
  } catch (Refusal& refusal) {
    verdict.message = std::move(refusal.message);
    verdict.offset = refusal.offset;
  }
  return verdict;
}

}  // namespace

LoaderVerdict CsrcLoader(ByteSpan bytes, std::string_view path) {
  return Try("csrc", bytes, path, false);
}

LoaderVerdict LegacyLoader(ByteSpan bytes, std::string_view path) {
  return Try("legacy", bytes, path, true);
}

}  // namespace kv
