// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/kernels/rans.h"

namespace kv {

// What turns a predicted plane into a payload; the numbers are the `codec` byte of a gear frame,
// by the engine's choice.
enum class Backend : uint8_t { kRle = 0, kZstd = 1 };
std::string_view Name(Backend backend);

// The most bytes a payload can decode to, from its size and its own headers: a bound on what
// somebody else's header may make us allocate. A repeat token of two bytes stands for 131, a zstd
// block of four for 128 KiB.
uint64_t MaxDecodedBytes(Backend backend, ByteSpan payload);

// The engine's level; part of the format, since the choice between backends depends on it.
constexpr int kGearZstdLevel = 3;

// zstd with contexts that are kept from call to call. One object per thread.
class Zstd {
 public:
  Zstd();
  ~Zstd();
  Zstd(Zstd&&) noexcept;
  Zstd& operator=(Zstd&&) noexcept;

  static size_t Bound(size_t size);
  // No frame of `size` > 0 bytes is shorter than this, whatever the content and the library.
  static size_t Floor(size_t size);

  // Bit for bit what one-shot ZSTD_compress writes. `to` has room for Bound(from.size()). 0 on
  // failure.
  size_t Compress(ByteSpan from, std::span<std::byte> to, int level = kGearZstdLevel);
  // An ordinary frame whose encoder hardly looks for matches: what byte statistics give, fast.
  size_t CompressLiterals(ByteSpan from, std::span<std::byte> to);
  // Appends an ordinary frame of StoredSize(from.size()) bytes that holds the bytes as they are.
  static void Store(ByteSpan from, Bytes& out);
  static size_t StoredSize(size_t size);
  // Whether the payload decodes to exactly `to.size()` bytes. Allocates nothing that depends on the
  // payload.
  bool Decompress(ByteSpan payload, std::span<std::byte> to);

 private:
  struct Contexts;
  std::unique_ptr<Contexts> contexts_;
};

// Bytes without a value, aligned for any vector; grows and never shrinks.
class ScratchBuffer {
 public:
  // At least `size` bytes; what was in the buffer is lost if it must grow.
  std::span<std::byte> Get(size_t size);

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte[], Free> data_;
  size_t capacity_ = 0;
};

// Buffers of the context coder (prev/prev.h).
struct ContextScratch {
  std::vector<uint8_t> symbols, tables;
  std::vector<uint16_t> words, contexts;
  std::vector<RansSlot> slots;
  std::vector<RansEncoderSymbol> encoder_symbols;
};

// What encoding and decoding reuse from chunk to chunk. One object per thread.
struct CodecScratch {
  Zstd zstd;
  ScratchBuffer planes, predicted, best, candidate, rows, halves;
  ContextScratch context;
};

}  // namespace kv
