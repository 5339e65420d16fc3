// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any bytes through kvtool.h, as a frame, as a ticket of a queue, as coded pages of an engine's
// table and as an archive: no status may report a bug in the library, and no byte is written beyond
// the buffers.
#include <algorithm>
#include <array>
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

// Coders holds a context, and a queue with one thread.
struct Coders {
  kvt_ctx* ctx = nullptr;
  kvt_queue* queue = nullptr;
};

bool Ended(kvt_status status) {
  if (status > 0 || kvt_fault(status) == KVT_FAULT_INTERNAL) std::abort();
  if (kvt_explain(status, 1) == nullptr) std::abort();
  return status == 0;
}

// A ticket must end like the call that it replaces, with the same bytes.
void AsTicket(kvt_queue* queue, const Input& input, kvt_status expected,
              const std::vector<uint8_t>& raw) {
  std::vector<uint8_t> room(raw.size());
  const kvt_piece piece = {sizeof piece, 0, room.data(), room.size()};
  kvt_item item = {};
  item.struct_size = sizeof item;
  item.pieces = &piece;
  item.piece_count = 1;
  item.frame = const_cast<uint8_t*>(input.data);  // decoding does not change it
  item.frame_bytes = input.size;
  kvt_batch batch = {};
  batch.struct_size = sizeof batch;
  batch.operation = KVT_DECODE_ITEMS;
  batch.items = &item;
  batch.count = 1;
  uint64_t ticket = 0;
  if (!Ended(kvt_queue_submit(queue, &batch, &ticket))) std::abort();
  kvt_completion done = {};
  done.struct_size = sizeof done;
  if (!Ended(kvt_queue_wait(queue, ticket, UINT64_MAX, &done))) std::abort();
  Ended(done.status);
  if (item.status != expected || (expected == 0 && room != raw)) std::abort();
}

// The first bytes describe a table of up to four pages, the others are their contents.
void AsTable(kvt_ctx* ctx, const Input& input) {
  constexpr size_t kHead = 16, kPages = 4, kPageBytes = 4096;
  if (input.size <= kHead) return;
  const uint8_t* head = input.data;
  kvt_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.dtype = head[0];
  desc.tokens = 1 + head[1] % 64;
  desc.heads = 1 + head[2] % 8;
  desc.head_dim = 1 + head[3];
  std::array<kvt_entry, kPages> entries = {};
  std::array<uint32_t, kPages> index;
  for (size_t i = 0; i < kPages; ++i) {
    entries[i].struct_size = sizeof(kvt_entry);
    entries[i].bytes = static_cast<uint32_t>(head[4 + i]) << (head[8 + i] % 8);
    entries[i].codec = head[8 + i] / 8;
    index[i] = head[12 + i] % (kPages + 1);  // an index may be kPages, one past the last page
  }
  const size_t room = (input.size - kHead) / kPages;
  std::vector<uint8_t> coded(input.data + kHead, input.data + input.size),
      pages(kPages * kPageBytes);
  kvt_table table = {};
  table.struct_size = sizeof table;
  table.desc = &desc;
  table.pages = pages.data();
  table.page_count = kPages;
  table.stride = table.page_bytes = kPageBytes;
  table.index = index.data();
  table.count = kPages;
  table.data = coded.data();
  table.room = room;
  table.entries = entries.data();
  Ended(kvt_decode_table(ctx, &table));
  for (const kvt_entry& entry : entries) Ended(entry.status);
}

void AsFrame(const Coders& coders, const Input& input) {
  kvt_ctx* ctx = coders.ctx;
  kvt_info info = {};
  info.struct_size = sizeof info;
  if (!Ended(kvt_frame_info(input.data, input.size, &info))) return;
  if (info.raw_bytes > kMostBytes) return;
  std::vector<uint8_t> raw(info.raw_bytes);
  const kvt_status status =
      kvt_decode(ctx, input.data, input.size, nullptr, raw.data(), raw.size());
  const bool decoded = Ended(status);
  AsTicket(coders.queue, input, status, raw);
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

// Repairs the hashes of archives; other inputs stay as they are.
kv::Bytes FuzzRepair(kv::ByteSpan input, unsigned choice) {
  return kv::fuzz::RepairKvz(input, {choice % 4 != 0, choice % 8 < 6});
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Coders coders = [] {
    Coders made;
    if (kvt_ctx_create(nullptr, &made.ctx) != 0) std::abort();
    kvt_queue_params params = {};
    params.struct_size = sizeof params;
    params.threads = 1;
    params.depth = 1;
    if (kvt_queue_create(made.ctx, &params, &made.queue) != 0) std::abort();
    return made;
  }();
  Input input{data, size};
  AsFrame(coders, input);
  AsTable(coders.ctx, input);
  AsArchive(coders.ctx, input);
  return 0;
}
