// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
//
// Before torch 1.6: five pickles (magic, protocol, system, object, keys), then the storages.
#include <fmt/format.h>

#include <algorithm>

#include "formats/torch/torch_container.h"
#include "lib/core/base/checked.h"

namespace kv {
namespace {

// 0x1950a86a20f9469cfc6c as LONG1 writes it.
constexpr std::string_view kMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr int64_t kProtocol = 1001;
constexpr size_t kMagicWindow = 32;  // protocol 4 puts a frame before it

uint64_t Swapped(uint64_t value, bool swap) { return swap ? __builtin_bswap64(value) : value; }

struct Declared {
  uint64_t item, numel;
};
using DeclaredStorages = std::map<std::string_view, Declared>;

// What the object says of the storages it refers to.
DeclaredStorages CollectStorages(const Pickle& object) {
  DeclaredStorages storages;
  for (PickleId i = 0; i < object.size(); ++i) {
    if (object[i].kind() != PickleKind::kStorage) continue;
    const StorageId id = ParseStorageId(object, i);
    if (id.is_module) continue;
    if (!id.dtype) {
      throw Error(Finding::kUnsupportedDtype,
                  fmt::format("storage '{}' is a {}, so it is unknown where the next one begins",
                              Escaped(id.key), Escaped(id.type)))
          .At(object[i].offset());
    }
    const Declared declared{Info(*id.dtype).block_bytes, id.numel};
    const auto [found, added] = storages.emplace(id.key, declared);
    if (!added && (found->second.item != declared.item || found->second.numel != declared.numel)) {
      throw Error(
          Finding::kInconsistent,
          fmt::format("storage '{}' has {} elements of {} bytes here and {} of {} elsewhere",
                      Escaped(id.key), declared.numel, declared.item, found->second.numel,
                      found->second.item))
          .At(object[i].offset());
    }
  }
  return storages;
}

}  // namespace

bool IsLegacyTorch(ByteSpan bytes) {
  const std::string_view head = AsText(bytes.first(std::min(bytes.size(), kMagicWindow)));
  return head.starts_with('\x80') && head.find(kMagic) != std::string_view::npos;
}

LegacyStorages::LegacyStorages(ByteSpan bytes, uint64_t offset, const Pickle& object,
                               bool big_endian, TensorFile& file)
    : file_(file) {
  const DeclaredStorages declared = CollectStorages(object);
  const Pickle keys(bytes.subspan(offset), offset);
  if (keys[keys.root()].kind() != PickleKind::kList) {
    throw Error(Finding::kBadPickle,
                fmt::format("the storage keys are {}, expected a list", keys.Describe(keys.root())))
        .At(offset);
  }
  offset += keys.length();
  ByteReader reader(bytes.subspan(offset), offset);
  for (const PickleId item : keys[keys.root()].items()) {
    if (keys[item].kind() != PickleKind::kText) {
      throw Error(Finding::kBadPickle, "a storage key is not a text").At(keys[item].offset());
    }
    const std::string key(keys[item].text());
    const auto known = declared.find(key);
    if (known == declared.end()) {
      throw Error(
          Finding::kInconsistent,
          fmt::format("storage '{}' is listed but the object does not use it", Escaped(key)))
          .At(keys[item].offset());
    }
    const uint64_t at = reader.offset();
    const uint64_t numel = Swapped(reader.U64("element count"), big_endian);
    if (numel != known->second.numel) {
      throw Error(Finding::kSizeMismatch,
                  fmt::format("storage '{}' has {} elements, the object says {}", Escaped(key),
                              numel, known->second.numel))
          .At(at);
    }
    const uint64_t width = known->second.item;
    ByteSpan data = reader.TakeArray(numel, width, fmt::format("storage '{}'", Escaped(key)));
    if (big_endian && width > 1) data = SwapBytes(data, width, key, file);
    if (!records_.emplace(key, data).second) {
      throw Error(Finding::kDuplicateName,
                  fmt::format("storage '{}' is listed twice", Escaped(key)))
          .At(at);
    }
  }
  if (!reader.at_end()) {
    file.notes.push_back(fmt::format("{} bytes follow the last storage", reader.remaining()));
  }
}

ByteSpan LegacyStorages::Find(const StorageId& id) {
  const auto found = records_.find(id.key);
  if (found == records_.end()) {
    throw Error(Finding::kMissingRecord, fmt::format("storage '{}' is missing", Escaped(id.key)));
  }
  if (!id.part) return found->second;
  const uint64_t width = Info(*id.dtype).block_bytes;
  return found->second.subspan(id.part->first * width, id.part->second * width);
}

namespace {

// The pickles before the list of keys.
struct LegacyHead {
  std::unique_ptr<Pickle> object;
  bool big_endian = false;
  uint64_t length = 0;
};

LegacyHead ReadHead(ByteSpan bytes) {
  LegacyHead head;
  uint64_t& offset = head.length;
  const auto next = [&] {
    auto pickle = std::make_unique<Pickle>(bytes.subspan(offset), offset);
    offset += pickle->length();
    return pickle;
  };
  const auto magic = next();
  if ((*magic)[magic->root()].kind() != PickleKind::kBigInt ||
      (*magic)[magic->root()].text() != kMagic) {
    throw std::move(
        Error(Finding::kBadMagic, "the first pickle is not the magic number of torch").At(0));
  }
  const uint64_t protocol_at = offset;
  const auto protocol = next();
  const int64_t version = (*protocol)[protocol->root()].integer();
  if (version != kProtocol) {
    throw std::move(Error(Finding::kBadVersion,
                          fmt::format("protocol version is {}, expected {}", version, kProtocol))
                        .At(protocol_at));
  }
  const auto system = next();
  const PickleValue& little = (*system)[system->Get(system->root(), "little_endian")];
  head.big_endian = little.kind() == PickleKind::kBool && little.integer() == 0;
  head.object = next();
  return head;
}

}  // namespace

void ReadLegacyTorch(ByteSpan bytes, uint64_t max_bytes, TensorFile& file) {
  const LegacyHead head = ReadHead(bytes);
  LegacyStorages storages(bytes, head.length, *head.object, head.big_endian, file);
  TensorBuilder builder(*head.object, storages, max_bytes, file);
  WalkPickle(*head.object, builder, file);
}

EmbeddedStorage ReadEmbedded(ByteSpan bytes, TensorFile& file) {
  // Protocol 2 spells bytes as text: they were put together in memory and go away with the pickle.
  const bool mapped = !bytes.empty() && file.source.FileOf(bytes.data()) != nullptr;
  if (!mapped) {
    file.spools.push_back(FileSource::FromBytes({bytes.begin(), bytes.end()}, "storage"));
    bytes = file.spools.back()->bytes();
  }
  if (!IsLegacyTorch(bytes)) {
    throw Error(Finding::kUnsupportedKind, "a storage in the pickle is not a legacy torch file");
  }
  const LegacyHead head = ReadHead(bytes);
  const Pickle& object = *head.object;
  if (object[object.root()].kind() != PickleKind::kStorage) {
    throw Error(Finding::kBadPickle,
                fmt::format("a storage in the pickle is {}", object.Describe(object.root())));
  }
  LegacyStorages storages(bytes, head.length, object, head.big_endian, file);
  const StorageId id = ParseStorageId(object, object.root());
  if (id.is_module) throw Error(Finding::kBadPickle, "a storage in the pickle is a module");
  return {id.dtype, storages.Find(id)};
}

}  // namespace kv
