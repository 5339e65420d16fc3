// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads the three containers of torch: zip archives, legacy files and plain pickles, each of which
// stores the values in its own place.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "formats/tensors/tensor_snapshot.h"
#include "formats/torch/pickle.h"
#include "formats/torch/torch.h"
#include "formats/torch/torch_tensor.h"
#include "formats/zip/zip.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/number.h"

namespace kv {
namespace {

EmbeddedStorage ReadEmbedded(ByteSpan bytes, TensorFile& file);

// Storages in a zip archive, one member each.
class ZipStorages : public StorageBytes {
 public:
  // Finds the one data.pkl, the byte order and the other members. Throws kMissingRecord, kBadZip.
  ZipStorages(ZipArchive& archive, TensorFile& file);

  ByteSpan pickle() const { return pickle_; }
  uint64_t pickle_offset() const { return pickle_offset_; }
  ByteSpan Find(const StorageId& id) override;
  EmbeddedStorage Embedded(ByteSpan file) override { return ReadEmbedded(file, file_); }

 private:
  ByteSpan Record(const StorageId& id);
  const ZipEntry* FindRecord(std::string_view key);

  ZipArchive& archive_;
  TensorFile& file_;
  std::string root_;                // prefix of all names, with its slash; may be empty
  std::vector<uint32_t> numbered_;  // by key: the index of its entry, from 1
  ByteSpan pickle_;
  uint64_t pickle_offset_ = 0;
  bool big_endian_ = false;
  std::map<std::string, ByteSpan, std::less<>> swapped_;
};

class LegacyStorages : public StorageBytes {
 public:
  // Reads the records after the object's pickle: the list of keys, then counts and elements.
  LegacyStorages(ByteSpan bytes, uint64_t offset, const Pickle& object, bool big_endian,
                 TensorFile& file);
  ByteSpan Find(const StorageId& id) override;
  EmbeddedStorage Embedded(ByteSpan file) override { return ReadEmbedded(file, file_); }

 private:
  TensorFile& file_;
  std::map<std::string, ByteSpan, std::less<>> records_;
};

// Files before torch 1.6: five pickles (magic, protocol, system, object, keys), then the storages.

// 0x1950a86a20f9469cfc6c as LONG1 writes it.
constexpr std::string_view kMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr int64_t kProtocol = 1001;
constexpr size_t kMagicWindow = 32;  // protocol 4 begins with a frame, which precedes the number

uint64_t Swapped(uint64_t value, bool swap) { return swap ? __builtin_bswap64(value) : value; }

struct Declared {
  uint64_t item, numel;
};
using DeclaredStorages = std::map<std::string_view, Declared>;

// Returns what the object declares about the storages it refers to.
DeclaredStorages CollectStorages(const Pickle& object) {
  DeclaredStorages storages;
  for (PickleId i = 0; i < object.size(); ++i) {
    if (object[i].kind() != PickleKind::kStorage) continue;
    const StorageId id = ParseStorageId(object, i);
    if (id.is_module) continue;
    if (!id.dtype) {
      throw Error(Finding::kUnsupportedDtype,
                  "storage '{}' is a {}, so it is unknown where the next one begins",
                  Escaped(id.key), Escaped(id.type))
          .At(object[i].offset());
    }
    const Declared declared{Info(*id.dtype).block_bytes, id.numel};
    const auto [found, added] = storages.emplace(id.key, declared);
    if (!added && (found->second.item != declared.item || found->second.numel != declared.numel)) {
      throw Error(Finding::kInconsistent,
                  "storage '{}' has {} elements of {} bytes here and {} of {} elsewhere",
                  Escaped(id.key), declared.numel, declared.item, found->second.numel,
                  found->second.item)
          .At(object[i].offset());
    }
  }
  return storages;
}

bool IsLegacyTorch(ByteSpan bytes) {
  const std::string_view head = AsText(bytes.first(std::min(bytes.size(), kMagicWindow)));
  return head.starts_with('\x80') && head.find(kMagic) != std::string_view::npos;
}

LegacyStorages::LegacyStorages(ByteSpan bytes, uint64_t offset, const Pickle& object,
                               bool big_endian, TensorFile& file)
    : file_(file) {
  const DeclaredStorages declared = CollectStorages(object);
  const Pickle keys = ReadPickle(bytes.subspan(offset), offset);
  if (keys[keys.root()].kind() != PickleKind::kList) {
    throw Error(Finding::kBadPickle, "the storage keys are {}, expected a list",
                keys.Describe(keys.root()))
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
      throw Error(Finding::kInconsistent, "storage '{}' is listed but the object does not use it",
                  Escaped(key))
          .At(keys[item].offset());
    }
    const uint64_t at = reader.offset();
    const uint64_t numel = Swapped(reader.U64("element count"), big_endian);
    if (numel != known->second.numel) {
      throw Error(Finding::kSizeMismatch, "storage '{}' has {} elements, the object says {}",
                  Escaped(key), numel, known->second.numel)
          .At(at);
    }
    const uint64_t width = known->second.item;
    ByteSpan data = reader.TakeArray(numel, width, fmt::format("storage '{}'", Escaped(key)));
    if (big_endian && width > 1) data = SwapBytes(data, width, key, file);
    if (!records_.emplace(key, data).second) {
      throw Error(Finding::kDuplicateName, "storage '{}' is listed twice", Escaped(key)).At(at);
    }
  }
  if (!reader.at_end()) {
    file.notes.push_back(fmt::format("{} bytes follow the last storage", reader.remaining()));
  }
}

ByteSpan LegacyStorages::Find(const StorageId& id) {
  const auto found = records_.find(id.key);
  if (found == records_.end()) {
    throw Error(Finding::kMissingRecord, "storage '{}' is missing", Escaped(id.key));
  }
  if (!id.part) return found->second;
  const uint64_t width = Info(*id.dtype).block_bytes;
  return found->second.subspan(id.part->first * width, id.part->second * width);
}

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
    auto pickle = std::make_unique<Pickle>(ReadPickle(bytes.subspan(offset), offset));
    offset += pickle->length();
    return pickle;
  };
  const auto magic = next();
  if ((*magic)[magic->root()].kind() != PickleKind::kBigInt ||
      (*magic)[magic->root()].text() != kMagic) {
    throw Error(Finding::kBadMagic, "the first pickle is not the magic number of torch").At(0);
  }
  const uint64_t protocol_at = offset;
  const auto protocol = next();
  const int64_t version = (*protocol)[protocol->root()].integer();
  if (version != kProtocol) {
    throw Error(Finding::kBadVersion, "protocol version is {}, expected {}", version, kProtocol)
        .At(protocol_at);
  }
  const auto system = next();
  const PickleValue& little = (*system)[system->Get(system->root(), "little_endian")];
  head.big_endian = little.kind() == PickleKind::kBool && little.integer() == 0;
  head.object = next();
  return head;
}

void ReadLegacyTorch(ByteSpan bytes, uint64_t max_bytes, TensorFile& file) {
  const LegacyHead head = ReadHead(bytes);
  LegacyStorages storages(bytes, head.length, *head.object, head.big_endian, file);
  TensorBuilder builder(*head.object, storages, max_bytes, file);
  WalkPickle(*head.object, builder, file);
}

// Reads a legacy file that is one storage. Values in the mapped file stay there; otherwise `file`
// keeps a copy.
EmbeddedStorage ReadEmbedded(ByteSpan bytes, TensorFile& file) {
  // Protocol 2 writes bytes as text, which was decoded in memory and would be freed with the
  // pickle.
  const bool mapped = !bytes.empty() && file.source.FindFile(bytes.data()) != nullptr;
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
    throw Error(Finding::kBadPickle, "a storage in the pickle is {}",
                object.Describe(object.root()));
  }
  LegacyStorages storages(bytes, head.length, object, head.big_endian, file);
  const StorageId id = ParseStorageId(object, object.root());
  if (id.is_module) throw Error(Finding::kBadPickle, "a storage in the pickle is a module");
  return {id.dtype, storages.Find(id)};
}

constexpr std::string_view kPickleName = "data.pkl";

// Returns the folder of "a/data.pkl" or "data.pkl", with its slash; nothing for other names.
std::optional<std::string_view> FindRoot(std::string_view name) {
  if (!name.ends_with(kPickleName)) return std::nullopt;
  const std::string_view root = name.substr(0, name.size() - kPickleName.size());
  if (root.empty()) return root;
  // The name has at most one folder; otherwise "x.data.pkl" would match too.
  if (root.find('/') != root.size() - 1 || root == "/") return std::nullopt;
  return root;
}

bool IsPlainKey(std::string_view key) {
  const auto plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           c == '.' || c == '-';
  };
  return !key.empty() && key.find("..") == std::string_view::npos &&
         std::all_of(key.begin(), key.end(), plain);
}

// Parses keys as torch writes them, counted from 0; nothing for "007" or other names.
std::optional<uint32_t> ParseIndex(std::string_view key) {
  if (key.size() > 1 && key.front() == '0') return std::nullopt;
  return ParseNumber<uint32_t>(key);
}

std::string_view Trimmed(std::string_view text) {
  const size_t end = text.find_last_not_of(" \r\n");
  return end == std::string_view::npos ? std::string_view() : text.substr(0, end + 1);
}

ZipStorages::ZipStorages(ZipArchive& archive, TensorFile& file) : archive_(archive), file_(file) {
  const ZipEntry* found = nullptr;
  for (const ZipEntry& entry : archive.entries()) {
    const auto root = FindRoot(entry.name);
    if (!root) continue;
    if (found != nullptr) {
      throw Error(Finding::kBadZip, "both '{}' and '{}' could be the object", Escaped(found->name),
                  Escaped(entry.name));
    }
    found = &entry;
    root_ = *root;
  }
  if (found == nullptr) {
    throw Error(Finding::kMissingRecord, "the zip file has no data.pkl, so torch did not write it");
  }
  if (!found->deflated) archive.CheckStored(*found);
  pickle_ = archive.Data(*found);
  pickle_offset_ = found->deflated ? 0 : found->data_offset;

  if (const ZipEntry* order = archive.Find(root_ + "byteorder")) {
    const std::string_view text = Trimmed(AsText(archive.Data(*order)));
    big_endian_ = text == "big";
    if (text != "big" && text != "little") {
      throw Error(Finding::kBadField, "byteorder is '{}', expected little or big",
                  Escaped(text, 20))
          .At(order->data_offset);
    }
  }
  // Keys are indexed in a table, because looking up the names of a million members is slow unless
  // they are in order.
  const std::string folder = root_ + "data/";
  numbered_.resize(archive.entries().size());
  for (size_t i = 0; i < archive.entries().size(); ++i) {
    const std::string_view name = archive.entries()[i].name;
    const auto number = name.starts_with(folder) ? ParseIndex(name.substr(folder.size()))
                                                 : std::optional<uint32_t>();
    if (number && *number < numbered_.size()) numbered_[*number] = static_cast<uint32_t>(i + 1);
  }

  if (archive.Find(root_ + "constants.pkl") != nullptr) {
    file.notes.emplace_back("a TorchScript archive: its code is ignored, its data read");
  }
}

const ZipEntry* ZipStorages::FindRecord(std::string_view key) {
  const std::optional<uint32_t> number = ParseIndex(key);
  if (number && *number < numbered_.size() && numbered_[*number] != 0)
    return &archive_.entries()[numbered_[*number] - 1];
  return archive_.Find(fmt::format("{}data/{}", root_, key));
}

ByteSpan ZipStorages::Record(const StorageId& id) {
  if (!IsPlainKey(id.key)) {
    throw Error(Finding::kBadName, "storage key '{}'", Escaped(id.key, 50));
  }
  const ZipEntry* entry = FindRecord(id.key);
  if (entry == nullptr) {
    throw Error(Finding::kMissingRecord, "record '{}data/{}' is missing", root_, id.key);
  }
  const std::string_view name = entry->name;
  const uint64_t wanted = id.bytes();
  if (entry->size < wanted) {
    throw Error(Finding::kSizeMismatch, "record '{}' has {} bytes, {} expected", name, entry->size,
                wanted)
        .At(entry->data_offset);
  }
  if (entry->size > wanted) {
    file_.notes.push_back(fmt::format("record '{}' has {} bytes, only the first {} belong to it",
                                      name, entry->size, wanted));
  }
  return archive_.Data(*entry).first(wanted);
}

ByteSpan ZipStorages::Find(const StorageId& id) {
  const uint64_t item = id.dtype ? Info(*id.dtype).block_bytes : 1;
  if (!big_endian_ || item == 1) {
    if (big_endian_ && id.untyped) {
      throw Error(Finding::kUnsupportedLayout, "an untyped storage of a big-endian file");
    }
    return Record(id);
  }
  const std::string key = fmt::format("{} {}", id.key, id.type);
  const auto found = swapped_.find(key);
  if (found != swapped_.end()) return found->second;
  return swapped_[key] = SwapBytes(Record(id), item, key, file_);
}

void ReadZipTorch(std::shared_ptr<const FileSource> source, uint64_t max_bytes, TensorFile& file) {
  const auto archive = std::make_shared<ZipArchive>(std::move(source));
  archive->Inflate(max_bytes);
  if (archive->spool() != nullptr) file.spools.push_back(archive->spool());
  file.checks.emplace_back([archive] { archive->CheckStored(); });
  ZipStorages storages(*archive, file);
  const Pickle pickle = ReadPickle(storages.pickle(), storages.pickle_offset());
  TensorBuilder builder(pickle, storages, max_bytes, file);
  WalkPickle(pickle, builder, file);
}

constexpr std::string_view kZipForm = "torch", kLegacyForm = "torch-legacy", kPickleForm = "pickle";
constexpr std::string_view kZipMagic = "PK\x03\x04";
constexpr uint64_t kTarMagicAt = 257;

bool IsZip(ByteSpan bytes) { return AsText(bytes).starts_with(kZipMagic); }

// Returns true for a protocol mark and an opcode; all opcodes are from '(' on. Without the opcode,
// safetensors headers of 640, 896, 1152 or 1408 bytes would look like pickles too.
bool IsBinaryPickle(ByteSpan bytes) {
  return bytes.size() > 2 && bytes[0] == std::byte{0x80} && bytes[1] >= std::byte{2} &&
         bytes[1] <= std::byte{5} && bytes[2] >= std::byte{'('};
}

bool IsTar(ByteSpan bytes) {
  return bytes.size() > kTarMagicAt + 5 && AsText(bytes.subspan(kTarMagicAt, 5)) == "ustar";
}

// A plain pickle contains its storages; one that refers to others was taken out of a torch file.
class PlainStorages : public StorageBytes {
 public:
  explicit PlainStorages(TensorFile& file) : file_(file) {}
  ByteSpan Find(const StorageId& id) override {
    throw Error(Finding::kMissingRecord, "a plain pickle holds no storage '{}'", Escaped(id.key));
  }
  EmbeddedStorage Embedded(ByteSpan bytes) override { return ReadEmbedded(bytes, file_); }

 private:
  TensorFile& file_;
};

void ReadPlainPickle(ByteSpan bytes, uint64_t max_bytes, TensorFile& file) {
  const Pickle pickle = ReadPickle(bytes);
  const PickleKind root = pickle[pickle.root()].kind();
  // An integer before more pickles: this is a legacy file with another magic number.
  if (pickle.length() < bytes.size() && (root == PickleKind::kInt || root == PickleKind::kBigInt)) {
    throw Error(Finding::kBadMagic, "the first pickle is an integer, but not torch's magic number")
        .At(0);
  }
  if (pickle.length() < bytes.size()) {
    file.notes.push_back(fmt::format("{} bytes follow the pickle", bytes.size() - pickle.length()));
  }
  PlainStorages storages(file);
  TensorBuilder builder(pickle, storages, max_bytes, file);
  WalkPickle(pickle, builder, file);
}

// Refuses quantised caches, whose key_cache holds only the part that is not quantised yet.
void RefuseQuantisedCache(const TensorFile& file) {
  const std::string name = Lookup(file.metadata, "__class__");
  if (name.starts_with("transformers.") && name.find("Quant") != std::string::npos) {
    throw Error(Finding::kUnsupportedKind,
                "a {} keeps its values packed by its own quantiser (quanto, HQQ)",
                Escaped(name, 120));
  }
}

// Refuses a file in which every tensor was skipped, because an empty result would hide that.
void RefuseUnread(const TensorFile& file) {
  if (!file.tensors.empty()) return;
  for (const OpaqueValue& value : file.opaque) {
    if (!value.is_foreign) continue;
    if (value.kind.find("CacheGen") != std::string::npos) {
      throw Error(Finding::kUnsupportedKind,
                  "LMCache's CacheGen serde: symbols of an arithmetic coder whose tables only its "
                  "GPU decoder knows");
    }
    throw Error(Finding::kForbiddenGlobal, "'{}' is {}, which is not known to be plain data",
                Escaped(value.name), value.kind);
  }
  for (const OpaqueValue& value : file.opaque) {
    if (!value.is_tensor) continue;
    throw Error(Finding::kUnsupportedKind,
                "'{}' is {} of a kind or element type that is not read, and there is "
                "no other tensor",
                Escaped(value.name, 80), value.kind);
  }
}

}  // namespace

bool LooksLikeTorch(const Source& source) {
  const ByteSpan bytes = BytesOfOnlyFile(source);
  if (IsBinaryPickle(bytes)) return true;
  if (!IsZip(bytes)) return false;
  try {
    return HoldsMember(bytes, "data.pkl");
  } catch (const Error&) {
    return false;
  }
}

bool IsTorchForm(std::string_view format) {
  return format == kZipForm || format == kLegacyForm || format == kPickleForm;
}

TensorFile ReadTorch(Source source, uint64_t max_bytes) {
  if (source.files.size() != 1) {
    throw Error(Finding::kUnsupportedKind, "a torch file is one file, not a folder");
  }
  TensorFile file;
  const std::shared_ptr<const FileSource> data = source.files.front().data;
  file.source = std::move(source);
  if (IsZip(data->bytes())) {
    file.format = kZipForm;
    ReadZipTorch(data, max_bytes, file);
  } else if (IsLegacyTorch(data->bytes())) {
    file.format = kLegacyForm;
    ReadLegacyTorch(data->bytes(), max_bytes, file);
  } else if (IsTar(data->bytes())) {
    throw Error(Finding::kUnsupportedKind, "a tar file of torch before 0.1.10");
  } else {
    file.format = kPickleForm;
    ReadPlainPickle(data->bytes(), max_bytes, file);
  }
  RefuseQuantisedCache(file);
  RefuseUnread(file);
  return file;
}

Confidence ProbeTorch(const Source& source) {
  return LooksLikeTorch(source) ? Confidence::kCertain : Confidence::kNo;
}

Snapshot OpenTorch(Source source, const OpenOptions& options) {
  return BuildSnapshot(ReadTorch(std::move(source), options.max_bytes), options);
}

}  // namespace kv
