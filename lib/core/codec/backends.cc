// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Three forms of zstd frames (as the engine writes them, literals only, and stored) and the buffers
// that codecs reuse. Sizes that bound allocations are computed here from the headers of a payload,
// never from what a foreign file claims.

#include "lib/core/codec/backends.h"

// ZSTD_c_literalCompressionMode and ZSTD_findFrameCompressedSize are declared there only
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <new>

#include "lib/core/base/bytes.h"

namespace kv {

std::string_view Name(Backend backend) { return backend == Backend::kRle ? "rle" : "zstd"; }

namespace {

// zstd splits content into blocks of at most 128 KiB, so the number of blocks bounds the size.
constexpr uint64_t kZstdBlock = 128 << 10;

}  // namespace

uint64_t MaxDecodedBytes(Backend backend, ByteSpan payload) {
  if (backend == Backend::kRle) return payload.size() / 2 * 131;
  // A frame adds at most 2^15 times its size (`most`), so the sum cannot overflow 64 bits.
  uint64_t sum = 0;
  while (!payload.empty()) {
    const size_t frame = ZSTD_findFrameCompressedSize(payload.data(), payload.size());
    const uint64_t content = ZSTD_getFrameContentSize(payload.data(), payload.size());
    if (ZSTD_isError(frame) || content == ZSTD_CONTENTSIZE_ERROR) return 0;
    // A block takes at least four bytes: three of header and one of content.
    const uint64_t most = frame / 4 * kZstdBlock;
    sum += content == ZSTD_CONTENTSIZE_UNKNOWN ? most : std::min(content, most);
    payload = payload.subspan(frame);
  }
  return sum;
}

struct Zstd::Contexts {
  struct FreeCCtx {
    void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  };
  struct FreeDCtx {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  std::unique_ptr<ZSTD_CCtx, FreeCCtx> compress, literals;
  std::unique_ptr<ZSTD_DCtx, FreeDCtx> decompress;
};

Zstd::Zstd() : contexts_(std::make_unique<Contexts>()) {}
Zstd::~Zstd() = default;
Zstd::Zstd(Zstd&&) noexcept = default;
Zstd& Zstd::operator=(Zstd&&) noexcept = default;

size_t Zstd::Bound(size_t size) { return ZSTD_compressBound(size); }

// Returns 0 if the output did not fit. Running out of memory is not a property of the data and
// throws: treated as "did not fit", it would store the same input as different bytes.
static size_t SizeOrNothing(size_t size) {
  if (ZSTD_getErrorCode(size) == ZSTD_error_memory_allocation) throw std::bad_alloc();
  return ZSTD_isError(size) ? 0 : size;
}

size_t Zstd::Floor(size_t size) {
  // A frame has a magic number, a descriptor and a content size of at least one byte; each block
  // has a header of three bytes, and one block at least one byte of content.
  return 6 + 3 * CeilDiv(size, kZstdBlock) + 1;
}

size_t Zstd::Compress(ByteSpan from, std::span<std::byte> to, int level) {
  if (!contexts_->compress) {
    contexts_->compress.reset(ZSTD_createCCtx());
    if (!contexts_->compress) throw std::bad_alloc();
  }
  const size_t size = ZSTD_compressCCtx(contexts_->compress.get(), to.data(), to.size(),
                                        from.data(), from.size(), level);
  return SizeOrNothing(size);
}

size_t Zstd::CompressLiterals(ByteSpan from, std::span<std::byte> to) {
  if (!contexts_->literals) {
    contexts_->literals.reset(ZSTD_createCCtx());
    ZSTD_CCtx* context = contexts_->literals.get();
    if (context == nullptr) throw std::bad_alloc();
    // The lowest level skips ahead so fast that nearly every byte becomes a literal. By default
    // that level leaves literals uncompressed, so their Huffman coding is switched on explicitly.
    const bool set =
        !ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, ZSTD_minCLevel())) &&
        !ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_literalCompressionMode, 1));
    KV_ASSERT(set);
  }
  const size_t size =
      ZSTD_compress2(contexts_->literals.get(), to.data(), to.size(), from.data(), from.size());
  return SizeOrNothing(size);
}

size_t Zstd::StoredSize(size_t size) {
  return 9 + 3 * std::max<size_t>(1, CeilDiv(size, kZstdBlock)) + size;
}

void Zstd::Store(ByteSpan from, Bytes& out) {
  KV_ASSERT(from.size() <= UINT32_MAX);
  std::byte head[9];
  StoreLE(head, uint32_t{ZSTD_MAGICNUMBER});
  head[4] = std::byte{0xa0};  // one segment, with the content size in four bytes
  StoreLE(head + 5, static_cast<uint32_t>(from.size()));
  out.insert(out.end(), head, head + sizeof(head));
  do {
    const size_t size = std::min<size_t>(from.size(), kZstdBlock);
    const bool last = size == from.size();
    const auto header = static_cast<uint32_t>(size << 3 | (last ? 1 : 0));  // type 0: raw
    for (int byte = 0; byte < 3; ++byte)
      out.push_back(static_cast<std::byte>(header >> (8 * byte)));
    out.insert(out.end(), from.begin(), from.begin() + static_cast<std::ptrdiff_t>(size));
    from = from.subspan(size);
  } while (!from.empty());
}

bool Zstd::Decompress(ByteSpan payload, std::span<std::byte> to) {
  if (!contexts_->decompress) {
    contexts_->decompress.reset(ZSTD_createDCtx());
    if (!contexts_->decompress) throw std::bad_alloc();
  }
  return ZSTD_decompressDCtx(contexts_->decompress.get(), to.data(), to.size(), payload.data(),
                             payload.size()) == to.size();
}

// The magic number is checked too, because the library also decodes legacy frames (before 0.8).
bool Zstd::IsOneFrame(ByteSpan payload, size_t size) {
  return payload.size() >= 4 && LoadLE<uint32_t>(payload.data()) == ZSTD_MAGICNUMBER &&
         ZSTD_findFrameCompressedSize(payload.data(), payload.size()) == payload.size() &&
         ZSTD_getFrameContentSize(payload.data(), payload.size()) == size &&
         ZSTD_getDictID_fromFrame(payload.data(), payload.size()) == 0;
}

std::span<std::byte> ScratchBuffer::Get(size_t size) {
  if (size > capacity_) {
    data_.reset();
    capacity_ = 0;
    data_.reset(static_cast<std::byte*>(::operator new[](size, std::align_val_t{64})));
    capacity_ = size;
  }
  return {data_.get(), size};
}

Bytes CodecScratch::NewPayload() {
  Bytes payload;
  if (!spares_.empty()) {
    payload = std::move(spares_.back());
    spares_.pop_back();
  }
  payload.clear();
  // freed first, because reserve would copy the old content
  if (payload.capacity() < room_) payload = Bytes();
  payload.reserve(room_);
  return payload;
}

void CodecScratch::Expect(size_t raw_bytes) {
  constexpr size_t kHeaders = 1 << 10;  // headers of chunks that do not shrink
  room_ = std::max(room_, raw_bytes + raw_bytes / 64 + kHeaders);
}

void CodecScratch::Recycle(Bytes&& payload) {
  // Number of spare buffers; beyond it the smallest one is freed.
  constexpr size_t kMostSpares = 6;
  if (payload.capacity() == 0) return;
  const auto at = std::upper_bound(
      spares_.begin(), spares_.end(), payload.capacity(),
      [](size_t capacity, const Bytes& spare) { return capacity < spare.capacity(); });
  spares_.insert(at, std::move(payload));
  payload = {};
  if (spares_.size() > kMostSpares) spares_.erase(spares_.begin());
}

}  // namespace kv
