// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
//
// Models of the two programs that load a .bin, as far as what they accept: their checks in their
// order, in their words. Nothing is allocated here; where a loader would, only the outcome counts.
#include <fmt/format.h>

#include "formats/kvcm/kvcm.h"

namespace kv {
namespace {

// A loader on a machine with this much memory gets std::bad_alloc beyond it.
constexpr uint64_t kLoaderMemory = uint64_t{6} << 30;
constexpr uint64_t kLargestVector = INT64_MAX;  // std::vector<std::byte>::max_size()
constexpr uint64_t kBlockObjectBytes = 40;  // what csrc reserves per block and per layer, roughly
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
    // A relative seek: past the end it succeeds, and the next read fails.
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
    const uint64_t bytes = elements * item_;  // wraps, as in csrc
    if (bytes > kLargestVector) Refuse("cannot create std::vector larger than max_size()", at);
    if (bytes > kLoaderMemory) Refuse("std::bad_alloc", at);
    if (!Skip(bytes)) Refuse("Unexpected EOF while reading weight data", position_);
    // The byte count wrapped: the read succeeds and the tensor's own allocation fails.
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
