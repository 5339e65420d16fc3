// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// What is wrong with an archive, and what it lacks, without decoding anything.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lib/core/archive/archive.h"
#include "lib/core/archive/records.h"

namespace kv {

using namespace kvz;

std::vector<Damage> Archive::CheckRecords() const {
  std::vector<Damage> damage;
  if (!index_offset_) return damage;  // walking has seen every record
  data_->NeedAll();
  const ByteSpan bytes = data_->bytes();
  const auto check = [&](std::string part, uint64_t offset, std::optional<ChunkHead> head,
                         const auto& body) {
    try {
      body();
    } catch (const Error& error) {
      damage.push_back({std::move(part), error.message(), error.finding(),
                        error.offset().value_or(offset), head});
    }
  };
  uint64_t expected = kHeaderBytes;
  check("source record", expected, std::nullopt, [&] {
    const Record record = ReadRecord(bytes, kHeaderBytes);
    expected = std::max(record.end(), expected);
    Payload(bytes, record.payload_offset, record.payload_bytes, record.payload_hash);
  });
  std::vector<const ArchivedChunk*> order;
  for (const ArchivedChunk& chunk : chunks_) order.push_back(&chunk);
  std::sort(order.begin(), order.end(), [](const ArchivedChunk* a, const ArchivedChunk* b) {
    return a->record_offset < b->record_offset;
  });
  bool sure = damage.empty();  // whether `expected` is where the next record must start
  const auto expect = [&](uint64_t offset) {
    if (sure && offset != expected) {
      damage.push_back({"record",
                        fmt::format("{} bytes belong to no record",
                                    static_cast<int64_t>(offset) - static_cast<int64_t>(expected)),
                        Finding::kTrailingBytes, expected, std::nullopt});
    }
    sure = true;
  };
  for (const ArchivedChunk* chunk : order) {
    expect(chunk->record_offset);
    check("chunk", chunk->record_offset, chunk->head, [&] {
      const Record record = ReadRecord(bytes, chunk->record_offset);
      ByteReader in(record.head, record.offset + kPrefixBytes);
      const bool same = record.type == static_cast<uint32_t>(RecordType::kChunk) &&
                        ReadHead(in) == chunk->head &&
                        record.payload_offset == chunk->payload_offset &&
                        record.payload_bytes == chunk->payload_bytes &&
                        record.payload_hash == chunk->payload_hash;
      if (!same) throw Error(Finding::kInconsistent, "the record contradicts the index");
    });
    data_->Drop(chunk->record_offset, kFaultWindow);
    expected = chunk->record_end();
  }
  expect(*index_offset_);
  return damage;
}

std::vector<Damage> Archive::CheckStored(ThreadPool& pool) const {
  std::vector<Damage> damage = CheckRecords();
  std::vector<std::optional<Error>> failures(chunks_.size());
  pool.ParallelFor(chunks_.size(), [&](uint64_t i) {
    const ArchivedChunk& chunk = chunks_[i];
    try {
      Payload(data_->bytes(), chunk.payload_offset, chunk.payload_bytes, chunk.payload_hash);
    } catch (const Error& error) {
      failures[i] = error;
    }
    data_->Drop(chunk.record_offset, chunk.record_end() - chunk.record_offset);
  });
  for (size_t i = 0; i < failures.size(); ++i) {
    if (!failures[i]) continue;
    damage.push_back({"chunk", failures[i]->message(), failures[i]->finding(),
                      failures[i]->offset().value_or(0), chunks_[i].head});
  }
  return damage;
}

std::vector<ChunkHead> Archive::MissingTokens() const {
  std::vector<ChunkHead> missing;
  if (!description_ || has_index()) return missing;
  // Per tensor: token ranges and how many bytes of each row are there. A token is missing if some
  // of its row is.
  std::map<std::pair<uint32_t, bool>, std::map<uint64_t, std::pair<uint64_t, uint64_t>>> held;
  for (const ArchivedChunk& chunk : chunks_) {
    const ChunkHead& head = chunk.head;
    if (head.kind == ChunkKind::kOpaque || chunk.record_end() > data_->size()) continue;
    auto& range = held[{head.layer, head.kind == ChunkKind::kValue}][head.token_begin];
    range.first = std::max(range.first, head.tokens);
    range.second += head.raw_bytes;
  }
  const auto look = [&](const LayerKv& layer, const KvTensor& tensor, bool is_value) {
    const auto add = [&](uint64_t begin, uint64_t end) {
      if (begin >= end) return;
      ChunkHead& head = missing.emplace_back();
      head.kind = is_value ? ChunkKind::kValue : ChunkKind::kKey;
      head.layer = layer.index;
      head.token_begin = begin;
      head.tokens = end - begin;
    };
    uint64_t next = 0;
    for (const auto& [begin, range] : held[{layer.index, is_value}]) {
      if (range.second < range.first * tensor.row_bytes()) continue;
      add(next, begin);
      next = std::max(next, begin + range.first);
    }
    add(next, tensor.tokens());
  };
  for (size_t i = 0; i < description_->layers.size(); ++i) {
    const LayerKv& layer = description_->layers[i];
    if (holds_tensor_[i][0]) look(layer, layer.k, false);
    if (layer.v && holds_tensor_[i][1]) look(layer, *layer.v, true);
  }
  return missing;
}

}  // namespace kv
