// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any bytes through kvtool.h, as a frame and as an archive: whatever they are, a status that is not
// a bug of the library's, and never a byte beyond the buffers.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "lib/api/kvtool.h"
#include "tests/fuzz/accepted.h"
#include "tests/fuzz/fuzz_repair.h"
#include "tests/fuzz/repair.h"

namespace {

constexpr uint64_t kMostBytes = 8 << 20;

struct Input {
  const uint8_t* data;
  size_t size;
};

bool Ended(kvt_status status) {
  if (status > 0 || kvt_fault(status) == KVT_FAULT_INTERNAL) std::abort();
  if (kvt_explain(status, 1) == nullptr) std::abort();
  return status == 0;
}

void AsFrame(kvt_ctx* ctx, const Input& input) {
  kvt_info info = {};
  info.struct_size = sizeof info;
  if (!Ended(kvt_frame_info(input.data, input.size, &info))) return;
  if (info.raw_bytes > kMostBytes) return;
  std::vector<uint8_t> raw(info.raw_bytes);
  const bool decoded =
      Ended(kvt_decode(ctx, input.data, input.size, nullptr, raw.data(), raw.size()));
  const bool verified = Ended(kvt_verify(ctx, input.data, input.size, nullptr));
  if (decoded != verified) std::abort();
  size_t written = 0;
  Ended(kvt_decode_tokens(ctx, input.data, input.size, nullptr, info.tokens / 2, 1, raw.data(),
                          raw.size(), &written));
  if (written > raw.size()) std::abort();
  size_t count = 0;
  if (Ended(kvt_frame_segments(input.data, input.size, nullptr, 0, &count))) {
    if (count != info.segments) std::abort();
    kvt_segment first = {};
    first.struct_size = sizeof first;
    std::vector<kvt_segment> segments(count, first);
    Ended(kvt_frame_segments(input.data, input.size, segments.data(), count, &count));
    uint64_t raw_end = 0;
    for (const kvt_segment& segment : segments) {
      if (segment.raw_offset != raw_end || segment.offset + segment.bytes > input.size)
        std::abort();
      raw_end += segment.raw_bytes;
    }
    if (raw_end != info.raw_bytes) std::abort();
  } else if (decoded) {
    std::abort();
  }
  if (decoded) ++kv::fuzz::accepted;
}

void AsArchive(kvt_ctx* ctx, Input& input) {
  const kvt_source source = {sizeof source, 0, input.size, &input,
                             [](void* user, uint64_t offset, void* dst, size_t n) {
                               const auto& from = *static_cast<const Input*>(user);
                               if (offset > from.size || n > from.size - offset) std::abort();
                               std::copy_n(from.data + offset, n, static_cast<uint8_t*>(dst));
                               return kvt_status{0};
                             }};
  kvt_reader* reader = nullptr;
  uint64_t parts = 0;
  if (!Ended(kvt_reader_open(ctx, &source, &reader, &parts))) return;
  constexpr uint64_t kMostParts = 16;
  for (uint64_t i = 0; i < std::min(parts, kMostParts); ++i) {
    kvt_desc desc = {};
    desc.struct_size = sizeof desc;
    kvt_part part = {sizeof part, 0, nullptr, 0, 0, nullptr};
    if (!Ended(kvt_reader_part(reader, i, &part, &desc))) std::abort();
    if (part.raw_bytes > kMostBytes) continue;
    std::vector<uint8_t> rows(part.raw_bytes);
    if (Ended(kvt_reader_read(reader, i, 0, desc.tokens, rows.data(), rows.size(), nullptr))) {
      ++kv::fuzz::accepted;
    }
  }
  kvt_reader_free(reader);
}

}  // namespace

// Archives under right hashes; other bytes stay.
kv::Bytes FuzzRepair(kv::ByteSpan input, unsigned choice) {
  return kv::fuzz::RepairKvz(input, {choice % 4 != 0, choice % 8 < 6});
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static kvt_ctx* const ctx = [] {
    kvt_ctx* made = nullptr;
    if (kvt_ctx_create(nullptr, &made) != 0) std::abort();
    return made;
  }();
  Input input{data, size};
  AsFrame(ctx, input);
  AsArchive(ctx, input);
  return 0;
}
