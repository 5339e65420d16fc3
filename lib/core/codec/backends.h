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

#include "lib/core/base/arena.h"
#include "lib/core/base/bytes.h"
#include "lib/core/kernels/rans.h"

namespace kv {

// Entropy coders of a predicted plane. The numbers are the `codec` byte of a gear frame, which the
// engine defines.
enum class Backend : uint8_t { kRle = 0, kZstd = 1 };
std::string_view Name(Backend backend);

// Returns an upper bound of the bytes that a payload decodes to, from its size and its own headers.
// It limits what a foreign header can make us allocate: an RLE token of two bytes yields at most
// 131 bytes, a zstd block of four at most 128 KiB.
uint64_t MaxDecodedBytes(Backend backend, ByteSpan payload);

// The engine's zstd level. It is part of the format: the engine's choice between backends, which
// kCompat reproduces, depends on the sizes at this level.
constexpr int kGearZstdLevel = 3;

// Wraps zstd and keeps its contexts from call to call. Each thread needs its own object.
class Zstd {
 public:
  Zstd();
  ~Zstd();
  Zstd(Zstd&&) noexcept;
  Zstd& operator=(Zstd&&) noexcept;

  static size_t Bound(size_t size);
  // Returns a lower bound of the size of any frame of `size` > 0 bytes, for every content and every
  // version of the library.
  static size_t Floor(size_t size);

  // Writes the same bytes as one-shot ZSTD_compress. `to` must have room for Bound(from.size()).
  // Returns the size, or 0 if the output did not fit.
  size_t Compress(ByteSpan from, std::span<std::byte> to, int level = kGearZstdLevel);
  // Writes an ordinary frame almost without searching for matches: fast, and as small as Huffman
  // coding of single bytes gets.
  size_t CompressLiterals(ByteSpan from, std::span<std::byte> to);
  // Appends an ordinary frame of StoredSize(from.size()) bytes that holds the bytes uncompressed.
  static void Store(ByteSpan from, Bytes& out);
  static size_t StoredSize(size_t size);
  // Returns true if the payload decoded to exactly `to.size()` bytes. Allocates nothing whose size
  // depends on the payload.
  bool Decompress(ByteSpan payload, std::span<std::byte> to);
  // Returns true if the payload is a single frame whose header states `size` bytes and no
  // dictionary.
  static bool IsOneFrame(ByteSpan payload, size_t size);

 private:
  struct Contexts;
  std::unique_ptr<Contexts> contexts_;
};

// An uninitialised buffer, aligned to 64 bytes for every vector type. It grows and never shrinks.
class ScratchBuffer {
 public:
  // Returns a buffer of `size` bytes. Its content is lost whenever it has to grow.
  std::span<std::byte> Get(size_t size);

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte[], Free> data_;
  size_t capacity_ = 0;
};

// Buffers of the context coder (context/prev.h).
struct ContextScratch {
  Arena arena;  // temporaries of one chunk
  std::vector<uint8_t> symbols, tables;
  std::vector<uint16_t> words, contexts;
  std::vector<RansSlot> slots;
  std::vector<RansEncoderSymbol> encoder_symbols;
};

// Memory that encoding and decoding reuse from chunk to chunk. Each thread needs its own object.
struct CodecScratch {
  Zstd zstd;
  ScratchBuffer planes, predicted, best, candidate, rows, halves, sides;
  ScratchBuffer ordered;  // callers of codecs bring units into another order in it
  ContextScratch context;

  // Returns an empty payload: the largest recycled buffer, with room for the largest expected
  // chunk.
  Bytes NewPayload();
  // Announces the size of a chunk to be encoded. A payload that had to grow while it is written
  // would be copied, and its old memory would be lost to Recycle.
  void Expect(size_t raw_bytes);
  // Takes back the memory of a payload that is no longer needed.
  void Recycle(Bytes&& payload);

 private:
  std::vector<Bytes> spares_;  // by ascending capacity
  size_t room_ = 0;
};

}  // namespace kv
