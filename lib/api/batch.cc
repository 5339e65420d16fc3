// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/api/batch.h"

#include <algorithm>
#include <ranges>

namespace kv::api {
namespace {

// Sets the status of each item: KV0010 if one of its buffers overlaps a buffer that the batch
// writes, else 0. The batch also writes its items, and reads their descriptions and lists of
// pieces. Ranges are sorted by address and compared with their neighbours, so that n buffers cost n
// log n.
void RefuseOverlaps(std::vector<kvt_ctx::BatchRange>& ranges, const Elements<kvt_item>& items,
                    bool writes_frames) {
  ranges.clear();
  const auto add = [&](const void* data, size_t bytes, size_t item, bool is_written) {
    if (data == nullptr || bytes == 0) return;
    const auto begin = reinterpret_cast<uintptr_t>(data);
    const uintptr_t end = begin + std::min<size_t>(bytes, UINTPTR_MAX - begin);
    ranges.push_back({begin, end, item, is_written});
  };
  constexpr size_t kNoItem = SIZE_MAX;
  add(items.At(0), items.bytes(), kNoItem, true);
  for (size_t i = 0; i < items.size(); ++i) {
    const kvt_item item = items[i];
    items.At(i)->status = 0;
    if (item.desc != nullptr) add(item.desc, kFirstSize<kvt_desc>, i, false);
    add(item.frame, item.frame_bytes, i, writes_frames);
    if (!Elements<const kvt_piece>::Holds(item.pieces, item.piece_count))
      continue;  // each item reports its own errors
    const Elements<const kvt_piece> pieces(item.pieces, item.piece_count, "item->pieces");
    add(item.pieces, pieces.bytes(), i, false);
    for (size_t p = 0; p < pieces.size(); ++p)
      add(pieces[p].data, pieces[p].bytes, i, !writes_frames);
  }
  std::ranges::sort(ranges, {}, &kvt_ctx::BatchRange::begin);
  const auto refuse = [&](size_t item) {
    if (item != kNoItem) items.At(item)->status = ExitStatusFor(Finding::kBadArgument);
  };
  // The first loop tracks where the preceding ranges end, the second where the following ones
  // begin.
  uintptr_t any = 0, written = 0;
  for (const kvt_ctx::BatchRange& range : ranges) {
    if (range.begin < (range.is_written ? any : written)) refuse(range.item);
    any = std::max(any, range.end);
    if (range.is_written) written = std::max(written, range.end);
  }
  any = written = UINTPTR_MAX;
  for (const kvt_ctx::BatchRange& range : std::views::reverse(ranges)) {
    if ((range.is_written ? any : written) < range.end) refuse(range.item);
    any = range.begin;
    if (range.is_written) written = range.begin;
  }
}

// Returns the raw object of an item: its only piece, or `memory`, resized to hold all pieces.
std::span<std::byte> GetRaw(const kvt_item& item, Bytes& memory) {
  const auto pieces = GivenElements(item.pieces, item.piece_count, "item->pieces");
  if (pieces.size() == 1) return Span(pieces[0].data, pieces[0].bytes);
  size_t bytes = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    Require(!__builtin_add_overflow(bytes, pieces[i].bytes, &bytes), "item->pieces");
  }
  memory.resize(bytes);
  return memory;
}

// Copies between the raw object and its pieces, unless it is its only piece.
template <typename F>
void ForEachPiece(const kvt_item& item, std::span<std::byte> raw, F&& copy) {
  if (item.piece_count == 1) return;
  const Elements<const kvt_piece> pieces(item.pieces, item.piece_count, "item->pieces");
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::span<std::byte> piece = Span(pieces[i].data, pieces[i].bytes);
    copy(piece, raw.first(piece.size()));
    raw = raw.subspan(piece.size());
  }
}

void Gather(const kvt_item& item, std::span<std::byte> raw) {
  ForEachPiece(item, raw, [](auto piece, auto part) { std::ranges::copy(piece, part.begin()); });
}

void Scatter(std::span<std::byte> raw, const kvt_item& item) {
  ForEachPiece(item, raw, [](auto piece, auto part) { std::ranges::copy(part, piece.begin()); });
}

// Throws kBadArgument if two entries of a table name the same page.
void RequireDistinct(const kvt_table& table, std::vector<kvt_ctx::BatchRange>& ranges) {
  ranges.clear();
  for (size_t i = 0; i < table.count; ++i) ranges.push_back({table.index[i], 0, i, true});
  std::ranges::sort(ranges, {}, &kvt_ctx::BatchRange::begin);
  const auto same = std::ranges::adjacent_find(ranges, {}, &kvt_ctx::BatchRange::begin);
  Require(same == ranges.end(), "table->index names a page twice");
}

ByteSpan CoverElements(const void* begin, size_t count, size_t step, std::string_view what) {
  return Span(begin, CheckedProduct(count, step, what));
}

}  // namespace

void EncodeFrame(kvt_ctx* ctx, FrameCoder& coder, const kvt_desc* desc, ByteSpan raw,
                 std::span<std::byte> out, size_t* written) {
  uint64_t needed = 0;
  const struct Report {
    uint64_t& needed;
    size_t* written;
    ~Report() {
      if (written != nullptr) *written = needed;
    }
  } report{needed, written};
  RequireWithinLimit(ctx, raw.size());
  const Clock::time_point start = Clock::now();
  const uint64_t size = coder.Encode(MakeDescription(desc), raw, out, &needed);
  CountEncoded(ctx, start, raw.size(), size, size == FrameBound(raw.size()));
}

void DecodeFrame(kvt_ctx* ctx, FrameCoder& coder, ByteSpan frame, const Hash128Bytes* context,
                 std::span<std::byte> raw) {
  RequireWithinLimit(ctx, raw.size());
  Counted(ctx, [&] { return coder.Decode(frame, context, raw); });
}

Batch::Batch(const kvt_ctx* ctx, const kvt_batch& batch, kvt_ctx::BatchWorker& memory)
    : encodes_(batch.operation == KVT_ENCODE_ITEMS || batch.operation == KVT_ENCODE_TABLE),
      is_table_(batch.operation == KVT_ENCODE_TABLE || batch.operation == KVT_DECODE_TABLE),
      table_(is_table_ ? Whole(batch.table, "table->struct_size") : kvt_table{}),
      items_(batch.items, is_table_ ? 0 : batch.count, "items"),
      entries_(table_.entries, table_.count, "table->entries->struct_size") {
  if (is_table_) {
    CheckTable(ctx, memory.ranges);
    if (count() > 0) page_ = MakeDescription(table_.desc);
  } else {
    items_.RequireEqualSizes("items->struct_size");
    if (count() > 0) RefuseOverlaps(memory.ranges, items_, encodes_);
  }
}

void Batch::CheckTable(const kvt_ctx* ctx, std::vector<kvt_ctx::BatchRange>& ranges) const {
  entries_.RequireEqualSizes("table->entries->struct_size");
  Require(table_.reserved == 0, "table->reserved");
  Require(table_.count == 0 || table_.desc != nullptr, "table->desc");
  Require(table_.stride >= table_.page_bytes, "table->stride");
  const ByteSpan pages =
      CoverElements(table_.pages, table_.page_count, table_.stride, "table->pages");
  const ByteSpan data = CoverElements(table_.data, table_.count, table_.room, "table->data");
  const ByteSpan entries = Span(static_cast<const void*>(table_.entries), entries_.bytes());
  const ByteSpan index = CoverElements(table_.index, table_.index == nullptr ? 0 : table_.count,
                                       sizeof *table_.index, "table->index");
  RequireApart(pages, data, "the pages and the data overlap");
  RequireApart(entries, data, "the entries and the data overlap");
  RequireApart(entries, pages, "the entries and the pages overlap");
  RequireApart(index, encodes_ ? data : pages, "the index overlaps what the call writes");
  RequireApart(index, entries, "the index and the entries overlap");
  RequireWithinLimit(ctx, table_.page_bytes);
  if (table_.index == nullptr) return Require(table_.count <= table_.page_count, "table->count");
  for (size_t i = 0; i < table_.count; ++i)
    Require(table_.index[i] < table_.page_count, "table->index");
  if (!encodes_) RequireDistinct(table_, ranges);
}

void Batch::CodeItem(kvt_ctx* ctx, kvt_item& item, FrameCoder& coder, Bytes& memory) const {
  Require(item.status == 0, "a buffer of the item overlaps one that the batch writes");
  const std::span<std::byte> raw = GetRaw(item, memory);
  const std::span<std::byte> frame = Span(item.frame, item.frame_bytes);
  if (encodes_) {
    Gather(item, raw);
    EncodeFrame(ctx, coder, item.desc, raw, frame, &item.written);
  } else {
    const Hash128Bytes wanted = MakeDescription(item.desc).context;
    DecodeFrame(ctx, coder, frame, item.desc == nullptr ? nullptr : &wanted, raw);
    Scatter(raw, item);
    item.written = raw.size();
  }
}

void Batch::CodePage(kvt_ctx* ctx, size_t index, FrameCoder& coder) const {
  kvt_entry& entry = *entries_.At(index);
  const size_t place = table_.index == nullptr ? index : table_.index[index];
  const std::span page(static_cast<std::byte*>(table_.pages) + place * table_.stride,
                       table_.page_bytes);
  const std::span data(static_cast<std::byte*>(table_.data) + index * table_.room, table_.room);
  if (!encodes_) {
    Require(entry.codec <= 0xff, "table->entries: codec");
    const PageEntry in = {entry.bytes, static_cast<CodecId>(entry.codec), entry.raw_hash};
    return Counted(ctx, [&] { coder.DecodePage(page_, in, data, page); });
  }
  PageEntry out;
  const Clock::time_point start = Clock::now();
  const bool fits = coder.EncodePage(page_, page, data, out);
  entry.bytes = out.bytes;
  entry.codec = static_cast<uint32_t>(out.codec);
  entry.raw_hash = out.raw_hash;
  if (!fits) {
    throw Error(Finding::kOutputTooSmall, "page {} takes {} bytes, its buffer has {}", index,
                out.bytes, table_.room);
  }
  CountEncoded(ctx, start, table_.page_bytes, out.bytes, out.codec == CodecId::kRaw);
}

void Batch::Run(kvt_ctx* ctx, const CallState& state, size_t index, FrameCoder& coder,
                kvt_ctx::BatchWorker& memory, FirstFailure& first) const {
  kvt_ctx::LastError error;
  kvt_item item = {};
  if (!is_table_) item = items_[index];
  item.written = 0;
  const kvt_status status = Caught(&error, [&] {
    state.StopIfCancelled();
    is_table_ ? CodePage(ctx, index, coder) : CodeItem(ctx, item, coder, memory.raw);
  });
  if (is_table_) {
    entries_.At(index)->status = status;
  } else {
    item.status = status;
    items_.Put(index, item);
  }
  if (status != 0) first.Note(index, error);
}

kvt_status CallBatch(kvt_ctx* ctx, const kvt_batch& given) {
  return Call(ctx, [&] {
    const Reuse<kvt_ctx::BatchWorker>::Lease own(ctx->batch_workers);
    const Batch batch(ctx, given, *own);
    FirstFailure first;
    ThreadPool* pool = FindPool(ctx);
    const auto threads = pool == nullptr ? size_t{1} : static_cast<size_t>(pool->threads());
    // Fewer frames than threads are coded one after another, each on all threads.
    if (pool != nullptr && batch.count() >= (batch.has_frames() ? threads : 2)) {
      pool->ParallelFor(batch.count(), [&](uint64_t index) {
        const Reuse<kvt_ctx::BatchWorker>::Lease worker(ctx->batch_workers);
        batch.Run(ctx, ctx->state, static_cast<size_t>(index),
                  PrepareCoder(ctx, ctx->state, *worker), *worker, first);
      });
    } else {
      ctx->coder.UsePool(pool);
      for (size_t index = 0; index < batch.count(); ++index)
        batch.Run(ctx, ctx->state, index, ctx->coder, *own, first);
    }
    first.ThrowIfAny();
  });
}

}  // namespace kv::api
