// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/archive_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

namespace kv {
namespace {

const LayerKv& GetLayer(const Archive& archive, const ArchivePart& part) {
  return archive.description()->layers.at(part.layer);
}

bool BelongsTo(const ChunkHead& head, uint32_t layer, bool is_value) {
  return head.layer == layer && head.kind == (is_value ? ChunkKind::kValue : ChunkKind::kKey);
}

bool FitsTensor(const ChunkHead& head, const KvTensor& tensor) {
  return head.dtype == tensor.dtype && head.token_begin <= tensor.tokens() &&
         head.tokens <= tensor.tokens() - head.token_begin &&
         uint64_t{head.head_begin} + head.heads <= tensor.heads &&
         uint64_t{head.unit_begin} + head.units <= tensor.units_per_head();
}

}  // namespace

std::vector<ArchivePart> ListParts(const Archive& archive) {
  std::vector<ArchivePart> parts;
  if (!archive.description()) return parts;
  std::set<uint32_t> numbers;
  const std::vector<LayerKv>& layers = archive.description()->layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!numbers.insert(layers[i].index).second) {
      throw Error(Finding::kDuplicateName, "two layers have the same number");
    }
    if (archive.HoldsTensor(i, false)) parts.push_back({i, false});
    if (layers[i].v && archive.HoldsTensor(i, true)) parts.push_back({i, true});
  }
  return parts;
}

const KvTensor& FindTensor(const Archive& archive, const ArchivePart& part) {
  const LayerKv& layer = GetLayer(archive, part);
  return part.is_value ? *layer.v : layer.k;
}

std::vector<uint64_t> StoredBytes(const Archive& archive, std::span<const ArchivePart> parts) {
  // Sums all tensors in one pass over the chunks, because there may be very many of both.
  std::map<std::pair<uint32_t, bool>, uint64_t> of_tensor;
  for (const ArchivedChunk& chunk : archive.chunks()) {
    if (chunk.head.kind == ChunkKind::kOpaque) continue;
    of_tensor[{chunk.head.layer, chunk.head.kind == ChunkKind::kValue}] += chunk.payload_bytes;
  }
  std::vector<uint64_t> bytes;
  for (const ArchivePart& part : parts) {
    bytes.push_back(of_tensor[{GetLayer(archive, part).index, part.is_value}]);
  }
  return bytes;
}

std::vector<const ArchivedChunk*> FindChunks(const Archive& archive, const ArchivePart& part,
                                             uint64_t begin, uint64_t count) {
  const KvTensor& tensor = FindTensor(archive, part);
  const LayerKv& layer = GetLayer(archive, part);
  std::vector<const ArchivedChunk*> chunks;
  uint64_t covered = 0;
  for (const ArchivedChunk& chunk : archive.chunks()) {
    const ChunkHead& head = chunk.head;
    if (!BelongsTo(head, layer.index, part.is_value)) continue;
    if (!FitsTensor(head, tensor)) {
      throw Error(Finding::kInconsistent, "the chunk does not fit the layer as described")
          .In(Describe(head));
    }
    const uint64_t from = std::max(begin, head.token_begin),
                   to = std::min(begin + count, head.token_begin + head.tokens);
    if (from >= to) continue;
    covered += (to - from) * head.heads * head.units * head.unit_bytes;
    chunks.push_back(&chunk);
  }
  if (covered != count * tensor.row_bytes()) {
    throw Error(Finding::kLostChunk, "chunks of these tokens are lost")
        .In(fmt::format("layer {} {}", layer.index, part.is_value ? 'V' : 'K'));
  }
  return chunks;
}

void CopyTokens(const ChunkHead& head, ByteSpan raw, const KvTensor& tensor, uint64_t begin,
                uint64_t count, std::span<std::byte> out) {
  const uint64_t from = std::max(begin, head.token_begin),
                 to = std::min(begin + count, head.token_begin + head.tokens);
  const uint64_t piece = uint64_t{head.units} * head.unit_bytes;  // bytes of one head of one token
  const uint64_t head_bytes = tensor.units_per_head() * tensor.unit_bytes();
  const bool by_head = head.order == Order::kHeadTokenDim;
  for (uint64_t token = from; token < to; ++token) {
    const uint64_t at = token - head.token_begin;
    std::byte* row = out.data() + (token - begin) * tensor.row_bytes() +
                     uint64_t{head.unit_begin} * head.unit_bytes;
    for (uint64_t h = 0; h < head.heads; ++h) {
      const uint64_t place = by_head ? h * head.tokens + at : at * head.heads + h;
      std::copy_n(raw.data() + place * piece, piece, row + (head.head_begin + h) * head_bytes);
    }
  }
}

namespace {

// Limit of the cache of decoded chunks. Consecutive chunks of an archive that refers to this one
// need the same chunks here.
constexpr uint64_t kMostDecodedBytes = 16 << 20;

// Returns true if each row of the chunk is a whole row of the tensor.
bool HasWholeRows(const ChunkHead& head, const KvTensor& tensor) {
  return head.order == Order::kTokenHeadDim &&
         uint64_t{head.heads} * head.units * head.unit_bytes == tensor.row_bytes() &&
         head.raw_bytes == head.tokens * tensor.row_bytes();
}

}  // namespace

ArchiveRows::ArchiveRows(Archive archive)
    : archive_(std::move(archive)), scratches_(ShareScratches(archive_.references())) {}

std::shared_ptr<Reuse<CodecScratch>> ArchiveRows::ShareScratches(const References& references) {
  for (const auto& reference : references) {
    if (reference == nullptr) continue;
    if (const auto* rows = dynamic_cast<const ArchiveRows*>(reference->rows.get()))
      return rows->scratches_;
  }
  return std::make_shared<Reuse<CodecScratch>>();
}

void ArchiveRows::Read(size_t layer_position, bool is_value, uint64_t first, uint64_t count,
                       std::span<std::byte> rows) const {
  const ArchivePart part{layer_position, is_value};
  const KvTensor& tensor = FindTensor(archive_, part);
  for (const std::shared_ptr<Chunk>& chunk : ChunksOfPart(part)) {
    const ChunkHead& head = chunk->chunk->head;
    const uint64_t from = std::max(first, head.token_begin),
                   to = std::min(first + count, head.token_begin + head.tokens);
    if (from >= to) continue;
    if (!HasWholeRows(head, tensor)) {
      const std::lock_guard lock(chunk->mutex);
      if (chunk->whole.empty()) {
        const Reuse<CodecScratch>::Lease scratch(*scratches_);
        Bytes whole;
        archive_.Decode(*chunk->chunk, *scratch, whole);
        chunk->whole = std::move(whole);
        Keep(chunk, head.raw_bytes);
      }
      CopyTokens(head, chunk->whole, tensor, first, count, rows);
      continue;
    }
    ReadChunk(chunk, tensor, from - head.token_begin, to - from,
              rows.subspan((from - first) * tensor.row_bytes(), (to - from) * tensor.row_bytes()));
  }
}

const ArchiveRows::Chunks& ArchiveRows::ChunksOfPart(const ArchivePart& part) const {
  const std::lock_guard lock(mutex_);
  const auto [at, is_new] = parts_.try_emplace({part.layer, part.is_value});
  if (!is_new) return at->second;
  try {
    for (const ArchivedChunk* chunk :
         FindChunks(archive_, part, 0, FindTensor(archive_, part).tokens())) {
      at->second.push_back(std::make_shared<Chunk>());
      at->second.back()->chunk = chunk;
    }
  } catch (...) {
    parts_.erase(at);
    throw;
  }
  return at->second;
}

void ArchiveRows::ReadChunk(const std::shared_ptr<Chunk>& chunk, const KvTensor& tensor,
                            uint64_t begin, uint64_t count, std::span<std::byte> rows) const {
  const std::lock_guard lock(chunk->mutex);
  if (chunk->whole.empty() && ReadByRuns(*chunk, begin, count, rows)) {
    if (!chunk->own.empty()) Keep(chunk, chunk->own.size());
    return;
  }
  if (chunk->whole.empty()) {
    const Reuse<CodecScratch>::Lease scratch(*scratches_);
    if (count == chunk->chunk->head.tokens) return archive_.Decode(*chunk->chunk, *scratch, rows);
    Bytes whole;
    archive_.Decode(*chunk->chunk, *scratch, whole);
    chunk->whole = std::move(whole);
    Keep(chunk, chunk->whole.size());
  }
  std::memcpy(rows.data(), chunk->whole.data() + begin * tensor.row_bytes(), rows.size());
}

// Reads rows that repeat a reference from there, and decodes only the remaining rows, which are
// coded by themselves. The caller's hash checks the result. Returns false if the whole chunk is
// needed.
bool ArchiveRows::ReadByRuns(Chunk& chunk, uint64_t begin, uint64_t count,
                             std::span<std::byte> rows) const {
  const ChunkHead& head = chunk.chunk->head;
  if (!HasReferences(static_cast<CodecId>(head.codec))) return false;
  if (!chunk.runs) chunk.runs = archive_.ReadRunsUnchecked(*chunk.chunk);
  const std::vector<ReferenceRun>& runs = *chunk.runs;
  const bool all_equal =
      std::all_of(runs.begin(), runs.end(), [](const ReferenceRun& run) { return run.equal; });
  if (!all_equal) return false;
  const uint64_t row_bytes = rows.size() / count, end = begin + count;
  const uint64_t elements = uint64_t{head.heads} * head.units * Info(head.dtype).block_elements;
  const RowsOfReferences references(archive_.references());
  uint64_t all_own = head.tokens;
  for (const ReferenceRun& run : runs) all_own -= run.rows;
  uint64_t next = 0, own = 0;  // rows visited, and how many of them are in no run
  const auto take_own = [&](uint64_t to) {
    const uint64_t from = std::max(next, begin), until = std::min(to, end);
    if (from < until) {
      TakeOwn(chunk, all_own, own + from - next,
              rows.subspan((from - begin) * row_bytes, (until - from) * row_bytes), row_bytes);
    }
    own += to - next;
  };
  for (const ReferenceRun& run : runs) {
    take_own(run.first_row);
    next = uint64_t{run.first_row} + run.rows;
    const uint64_t from = std::max<uint64_t>(run.first_row, begin), until = std::min(next, end);
    if (from >= until) continue;
    ReferenceRun part = run;
    part.first_token += from - run.first_row;
    part.rows = static_cast<uint32_t>(until - from);
    references.ReadEqual(part, head.dtype, elements,
                         rows.subspan((from - begin) * row_bytes, (until - from) * row_bytes));
  }
  take_own(head.tokens);
  return true;
}

// Copies rows outside all runs. The chunk has `all` of these; copying begins with number `first`.
void ArchiveRows::TakeOwn(Chunk& chunk, uint64_t all, uint64_t first, std::span<std::byte> rows,
                          uint64_t row_bytes) const {
  if (chunk.own.empty()) {
    const Reuse<CodecScratch>::Lease scratch(*scratches_);
    if (rows.size() == all * row_bytes) return archive_.DecodeOwnRows(*chunk.chunk, *scratch, rows);
    Bytes own(all * row_bytes);
    archive_.DecodeOwnRows(*chunk.chunk, *scratch, own);
    chunk.own = std::move(own);
  }
  std::memcpy(rows.data(), chunk.own.data() + first * row_bytes, rows.size());
}

void ArchiveRows::Keep(const std::shared_ptr<Chunk>& chunk, uint64_t bytes) const {
  std::vector<std::shared_ptr<Chunk>> old;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [kept, size] : decoded_) {
      if (kept == chunk && size == bytes) return;
    }
    decoded_.emplace_back(chunk, bytes);
    decoded_bytes_ += bytes;
    while (decoded_bytes_ > kMostDecodedBytes && decoded_.size() > 1) {
      decoded_bytes_ -= decoded_.front().second;
      old.push_back(std::move(decoded_.front().first));
      decoded_.pop_front();
    }
  }
  for (const std::shared_ptr<Chunk>& one : old) {
    // A chunk in use stays until the next request for it.
    if (one == chunk || !one->mutex.try_lock()) continue;
    one->whole = Bytes();
    one->own = Bytes();
    one->mutex.unlock();
  }
}

}  // namespace kv
