// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads LMCache's raw-block stores: the newer of two checkpoints, and the slots that its index
// names.
#include "formats/lmcache/block_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/format.h"
#include "formats/json_fields.h"
#include "formats/lmcache/lmcache.h"
#include "formats/pages.h"
#include "formats/zip/zip.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/json.h"
#include "lib/core/base/number.h"

namespace kv::lmcache {
namespace {

using nlohmann::json;
using std::string_view;

constexpr string_view kIndexMagic = "LMCIDX01", kSlotMagic = "LMCBLK01";
constexpr uint32_t kIndexVersion = 1;
constexpr uint64_t kIndexHeader = 32, kSlotHeader = 24;
constexpr uint64_t kLargestIndex = 256 << 20;
// Limits of the device's alignment, a power of two. A checkpoint's values begin one alignment after
// its header, and only the values record it, so every alignment is tried.
constexpr uint64_t kLeastAlign = 32, kMostAlign = 1 << 20;

// A checkpoint with a valid checksum.
struct Checkpoint {
  uint64_t sequence = 0, align = 0;
  string_view text;
};

// Reads a checkpoint. `budget` is the number of bytes that may still be hashed: a file of nothing
// but headers must not cost more than reading it a few times.
std::optional<Checkpoint> ReadCheckpoint(ByteSpan file, uint64_t at, uint64_t& budget) {
  if (at > file.size() || file.size() - at < kIndexHeader) return std::nullopt;
  ByteReader reader(file.subspan(at), at);
  if (reader.Text(kIndexMagic.size(), "magic") != kIndexMagic) return std::nullopt;
  if (reader.U32("version") != kIndexVersion) return std::nullopt;
  const uint64_t sequence = reader.U64("sequence"), bytes = reader.U64("payload");
  const uint32_t crc = reader.U32("crc");
  if (bytes == 0) return std::nullopt;
  if (bytes > kLargestIndex) {
    throw Error(Finding::kLimit, "index of {} bytes", bytes).At(at + 20);
  }
  const string_view all = AsText(file);
  for (uint64_t align = kLeastAlign; align <= kMostAlign; align *= 2) {
    if (at + align > all.size() || bytes > all.size() - at - align) return std::nullopt;
    const string_view text = all.substr(at + align, bytes);
    if (text.front() != '{' || budget < bytes) continue;
    budget -= bytes;
    if (Crc32(AsBytes(text)) == crc) return Checkpoint{sequence, align, text};
  }
  return std::nullopt;
}

uint64_t Count(const json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number_unsigned())
    throw Error(Finding::kBadField, "index: {} is not a count", key);
  return at->get<uint64_t>();
}

json Parsed(const Checkpoint& checkpoint) {
  json index = ReadJson(checkpoint.text, {.bytes = kLargestIndex, .keys = kLargestIndex});
  if (!index.is_object()) throw Error(Finding::kBadText, "index: is not a JSON object");
  return index;
}

// Returns the newer of the two copies. The first copy has the offset of the second; if the first is
// torn, the second is searched for.
json NewestIndex(ByteSpan file) {
  // Search for a second checkpoint whose offset is lost with the first: reach and alignment.
  constexpr uint64_t kFarthest = 1 << 30, kStep = 512;
  uint64_t budget = 4 * file.size();
  std::optional<Checkpoint> first = ReadCheckpoint(file, 0, budget), second;
  if (first) {
    json index = Parsed(*first);
    const uint64_t half = Count(index, "meta_total_bytes") / 2 / first->align * first->align;
    if (half != 0) second = ReadCheckpoint(file, half, budget);
    if (!second || second->sequence <= first->sequence) return index;
    return Parsed(*second);
  }
  for (uint64_t at = kStep; !second && at < std::min<uint64_t>(file.size(), kFarthest); at += kStep)
    second = ReadCheckpoint(file, at, budget);
  if (!second) {
    throw Error(Finding::kChecksum, "neither copy of the index is intact").At(0);
  }
  return Parsed(*second);
}

// Returns the identity that a slot's header must have if it holds the values of this key.
std::optional<uint64_t> ParseIdentity(const std::string& key) {
  const auto name = ParseKeyName(key);
  if (!name) return std::nullopt;
  if (name->multiprocess) return Blake2b64(AsBytes(key));
  string_view digits = name->hash;
  const bool negative = digits.starts_with('-');
  if (negative) digits.remove_prefix(1);
  if (digits.size() > 16) digits.remove_prefix(digits.size() - 16);
  const uint64_t hash = ParseNumber<uint64_t>(digits, 16).value_or(0);
  return negative ? 0 - hash : hash;
}

struct Slots {
  uint64_t base, header_bytes, slot_bytes;
};

bool HoldsStill(ByteSpan file, uint64_t offset, uint64_t size, const std::string& key) {
  ByteReader reader(file.subspan(offset, kSlotHeader), offset);
  if (reader.Text(kSlotMagic.size(), "slot magic") != kSlotMagic) return false;
  const std::optional<uint64_t> identity = ParseIdentity(key);
  const uint64_t found = reader.U64("identity");
  return reader.U64("length") == size && (!identity || *identity == found);
}

BlockStore::Entry ParseEntry(const json& object, const Slots& slots, ByteSpan file) {
  if (!object.is_object()) throw Error(Finding::kBadField, "is not an object");
  BlockStore::Entry entry;
  const uint64_t offset = Count(object, "offset");
  entry.size = Count(object, "size");
  if (offset < slots.base || (offset - slots.base) % slots.slot_bytes != 0)
    throw Error(Finding::kBadOffsets, "no slot begins at offset {}", offset);
  if (entry.size == 0 || entry.size > slots.slot_bytes - slots.header_bytes)
    throw Error(Finding::kBadField, "no slot holds {} bytes", entry.size);
  if (offset > file.size() || slots.header_bytes > file.size() - offset ||
      entry.size > file.size() - offset - slots.header_bytes) {
    throw Error(Finding::kTruncated, "its slot at {} ends past the file", offset);
  }
  entry.offset = offset + slots.header_bytes;
  entry.format = WordField(object, "fmt");
  entry.dtype = WordField(object, "dtype");
  const auto shape = object.find("shape");
  if (shape == object.end() || !shape->is_array()) return entry;
  for (const json& extent : *shape) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > INT64_MAX ||
        entry.shape.size() > 8)
      throw Error(Finding::kBadField, "its shape is not a list of sizes");
    entry.shape.push_back(extent.get<int64_t>());
  }
  return entry;
}

}  // namespace

BlockStore::BlockStore(Source source) : source_(std::move(source)) {
  if (source_.files.size() != 1) {
    throw Error(Finding::kUnsupportedKind, "LMCache's raw blocks are one file, not a folder");
  }
  const ByteSpan file = source_.files[0].data->bytes();
  const json index = NewestIndex(file);
  const Slots slots = {Count(index, "data_base_offset"), Count(index, "header_bytes"),
                       Count(index, "slot_bytes")};
  if (slots.header_bytes < kSlotHeader || slots.slot_bytes <= slots.header_bytes)
    throw Error(Finding::kBadField, "index: its slots have no space for values");
  const auto entries = index.find("entries");
  if (entries == index.end() || !entries->is_object())
    throw Error(Finding::kBadField, "index: has no entries");
  for (const auto& [key, object] : entries->items()) {
    try {
      Entry entry = ParseEntry(object, slots, file);
      if (HoldsStill(file, entry.offset - slots.header_bytes, entry.size, key)) {
        entries_.emplace(key, std::move(entry));
      } else {
        ++stale_;
      }
    } catch (Error& error) {
      throw error.In("entry '{}'", Escaped(key, 120));
    }
  }
}

Source BlockStore::Names() const {
  Source folder;
  folder.path = source_.path;
  folder.is_folder = true;
  for (const auto& [key, entry] : entries_) {
    folder.files.push_back(
        {key, FileSource::Slice(source_.files[0].data, entry.offset, entry.size, key)});
  }
  return folder;
}

Snapshot BlockStore::Open(const std::string& key, std::optional<uint64_t> batch) const {
  const Entry& entry = entries_.at(key);
  try {
    const auto name = ParseKeyName(key);
    std::optional<DType> dtype =
        ParseDType(entry.dtype.starts_with("torch.") ? entry.dtype.substr(6) : entry.dtype);
    if (!dtype && name) dtype = name->dtype;
    const MemoryFormat* format = FindMemoryFormat(entry.format);
    if (entry.shape.empty() || !dtype || format == nullptr) {
      throw Error(Finding::kUnsupportedKind, "the index lacks its {}",
                  entry.shape.empty() ? "shape"
                  : !dtype            ? "type"
                                      : "layout");
    }
    const auto array = DescribeArray(CacheFormat(*format), *dtype, entry.shape);
    if (!array || array->bytes != entry.size) {
      throw Error(Finding::kSizeMismatch,
                  "shape [{}] of {} does not give its {} bytes: the index has the "
                  "shape of only one group of layers",
                  fmt::join(entry.shape, ", "), Name(*dtype), entry.size);
    }
    const ByteSpan payload = source_.files[0].data->bytes().subspan(entry.offset, entry.size);
    Snapshot snapshot = SnapshotOfArrays({&*array, 1}, payload, batch);
    snapshot.format_version = entry.format;
    if (name) {
      snapshot.model = name->model;
      snapshot.facts.insert(snapshot.facts.end(), name->facts.begin(), name->facts.end());
    }
    if (name && name->layer && snapshot.layers.size() == 1)
      snapshot.layers.front().index = *name->layer;
    return snapshot;
  } catch (Error& error) {
    throw error.In("slot '{}'", Escaped(key, 120));
  }
}

Confidence ProbeBlocks(const Source& source) {
  return AsText(BytesOfOnlyFile(source)).starts_with(kIndexMagic) ? Confidence::kCertain
                                                                  : Confidence::kNo;
}

namespace {

constexpr size_t kKeysShown = 3;

Error NoOrder(const BlockStore& store) {
  std::string keys;
  for (const auto& [key, entry] : store.entries()) {
    static_cast<void>(entry);
    if (std::count(keys.begin(), keys.end(), '\'') == 2 * kKeysShown) {
      keys += " ...";
      break;
    }
    keys += fmt::format("{}'{}'", keys.empty() ? "" : ", ", Escaped(key, 120));
  }
  Error error(Finding::kUsage, "holds {} chunks and does not say which follows which: {}",
              store.entries().size(), keys);
  error.Hint("give --order FILE, a file with one of these keys per line, or --order 'PATTERN'");
  return error;
}

}  // namespace

Snapshot OpenBlocks(Source source, const OpenOptions& options) {
  BlockStore store(std::move(source));
  const size_t stored = store.entries().size();
  if (stored == 0) {
    throw Error(Finding::kMissingRecord, "all {} chunks of its index have been overwritten",
                store.stale());
  }
  if (options.order.empty() && stored > 1) throw NoOrder(store);
  Snapshot snapshot;
  if (options.order.empty()) {
    snapshot = store.Open(store.entries().begin()->first, options.batch);
    snapshot.source = store.Release();
  } else {
    const Source names = store.Names();
    std::vector<Snapshot> parts;
    for (const SourceFile* file : InOrder(names, options.order))
      parts.push_back(store.Open(file->name, options.batch));
    const size_t used = parts.size();
    snapshot = Concatenate(std::move(parts), store.Release());
    snapshot.facts.emplace_back(
        "chunks",
        fmt::format("{} of {}, in the order that --order {} gives, which the file cannot confirm",
                    used, stored, options.order));
  }
  if (store.stale() > 0) {
    snapshot.notes.push_back(
        {fmt::format("{} slot{} of the index hold{} newer data", store.stale(),
                     PluralEnding(store.stale()), store.stale() == 1 ? "s" : ""),
         false});
  }
  return snapshot;
}

}  // namespace kv::lmcache
