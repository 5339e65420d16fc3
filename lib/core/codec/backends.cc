// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/backends.h"

#define ZSTD_STATIC_LINKING_ONLY  // for parameters that go by name only there
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <new>

#include "lib/core/base/checked.h"

namespace kv {

std::string_view Name(Backend backend) { return backend == Backend::kRle ? "rle" : "zstd"; }

namespace {

constexpr uint64_t kZstdBlock = 128 << 10;

}  // namespace

uint64_t MaxDecodedBytes(Backend backend, ByteSpan payload) {
  if (backend == Backend::kRle) return payload.size() / 2 * 131;
  // Frames are small against what they may stand for, so the sum stays far from 64 bits.
  uint64_t sum = 0;
  while (!payload.empty()) {
    const size_t frame = ZSTD_findFrameCompressedSize(payload.data(), payload.size());
    const uint64_t content = ZSTD_getFrameContentSize(payload.data(), payload.size());
    if (ZSTD_isError(frame) || content == ZSTD_CONTENTSIZE_ERROR) return 0;
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

// 0 where the output did not fit. Want of memory is no property of the data: were it taken for
// that, the same input would be stored in other bytes.
static size_t SizeOrNothing(size_t size) {
  if (ZSTD_getErrorCode(size) == ZSTD_error_memory_allocation) throw std::bad_alloc();
  return ZSTD_isError(size) ? 0 : size;
}

size_t Zstd::Floor(size_t size) {
  // Magic, descriptor and one byte of content size; three bytes of header per block; one of
  // content.
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
    // The lowest level skips ahead so fast that next to everything is a literal; on its own it
    // would then leave literals uncompressed.
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
  head[4] = std::byte{0xa0};  // one segment, content size in four bytes
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

// The first bytes are compared too: the library also reads frames of versions before 0.8.
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
  if (payload.capacity() < room_) payload = Bytes();  // nothing of it needs to be copied
  payload.reserve(room_);
  return payload;
}

void CodecScratch::Expect(size_t raw_bytes) {
  constexpr size_t kHeaders = 1 << 10;  // of what does not shrink
  room_ = std::max(room_, raw_bytes + raw_bytes / 64 + kHeaders);
}

void CodecScratch::Recycle(Bytes&& payload) {
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
