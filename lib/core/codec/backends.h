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

// Coders that turn a predicted plane into a payload. The numbers are the `codec` byte of a gear
// frame, as the engine chose them.
enum class Backend : uint8_t { kRle = 0, kZstd = 1 };
std::string_view Name(Backend backend);

// Returns the most bytes that a payload can decode to, judging by its size and its own headers.
// This bounds what a foreign header can make us allocate: an RLE token of two bytes stands for at
// most 131 bytes, a zstd block of four for at most 128 KiB.
uint64_t MaxDecodedBytes(Backend backend, ByteSpan payload);

// The engine's zstd level. It is part of the format, because the choice between backends depends on
// it.
constexpr int kGearZstdLevel = 3;

// zstd with contexts that are kept from call to call. Each thread needs an object of its own.
class Zstd {
 public:
  Zstd();
  ~Zstd();
  Zstd(Zstd&&) noexcept;
  Zstd& operator=(Zstd&&) noexcept;

  static size_t Bound(size_t size);
  // Returns a size that no frame of `size` > 0 bytes falls below, whatever the content and the
  // version of the library.
  static size_t Floor(size_t size);

  // Writes the same bytes as one-shot ZSTD_compress. `to` must have room for Bound(from.size()).
  // Returns the size, or 0 if it failed.
  size_t Compress(ByteSpan from, std::span<std::byte> to, int level = kGearZstdLevel);
  // Writes an ordinary frame, but hardly looks for matches: fast, and as small as byte statistics
  // alone allow.
  size_t CompressLiterals(ByteSpan from, std::span<std::byte> to);
  // Appends an ordinary frame of StoredSize(from.size()) bytes that holds the bytes uncompressed.
  static void Store(ByteSpan from, Bytes& out);
  static size_t StoredSize(size_t size);
  // Returns whether the payload decoded to exactly `to.size()` bytes. Allocates nothing whose size
  // depends on the payload.
  bool Decompress(ByteSpan payload, std::span<std::byte> to);
  // Returns whether the payload is one frame and nothing else, whose header says `size` bytes and
  // names no dictionary.
  static bool IsOneFrame(ByteSpan payload, size_t size);

 private:
  struct Contexts;
  std::unique_ptr<Contexts> contexts_;
};

// An uninitialised buffer, aligned for every vector type. It grows and never shrinks.
class ScratchBuffer {
 public:
  // Returns at least `size` bytes. The buffer loses its content when it must grow.
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
  Arena arena;  // for the temporaries of one chunk
  std::vector<uint8_t> symbols, tables;
  std::vector<uint16_t> words, contexts;
  std::vector<RansSlot> slots;
  std::vector<RansEncoderSymbol> encoder_symbols;
};

// Memory that encoding and decoding reuse from chunk to chunk. Each thread needs an object of its
// own.
struct CodecScratch {
  Zstd zstd;
  ScratchBuffer planes, predicted, best, candidate, rows, halves, sides;
  ScratchBuffer ordered;  // for users of codecs: units in another order than the chunk's
  ContextScratch context;

  // An empty payload, in the largest memory that was given back, with room for any chunk so far.
  Bytes NewPayload();
  // Says how many bytes are going to be encoded. A payload that grew as it was written would be
  // copied, and leave its memory behind.
  void Expect(size_t raw_bytes);
  // Takes the memory of a payload that is no longer needed.
  void Recycle(Bytes&& payload);

 private:
  std::vector<Bytes> spares_;  // by ascending capacity
  size_t room_ = 0;
};

}  // namespace kv
