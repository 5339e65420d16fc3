// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "formats/torch/torch_container.h"
#include "lib/core/base/number.h"

namespace kv {
namespace {

constexpr std::string_view kPickleName = "data.pkl";

// The folder of "a/data.pkl" or "data.pkl", with its slash; nothing for other names.
std::optional<std::string_view> RootOf(std::string_view name) {
  if (!name.ends_with(kPickleName)) return std::nullopt;
  const std::string_view root = name.substr(0, name.size() - kPickleName.size());
  if (root.empty()) return root;
  // At most one folder, or "x.data.pkl" would do.
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

// Of the keys that torch gives, counted from 0; nothing for "007" or other names.
std::optional<uint32_t> NumberOf(std::string_view key) {
  if (key.size() > 1 && key.front() == '0') return std::nullopt;
  return ParseNumber<uint32_t>(key);
}

std::string_view Trimmed(std::string_view text) {
  const size_t end = text.find_last_not_of(" \r\n");
  return end == std::string_view::npos ? std::string_view() : text.substr(0, end + 1);
}

}  // namespace

ZipStorages::ZipStorages(ZipArchive& archive, TensorFile& file) : archive_(archive), file_(file) {
  const ZipEntry* found = nullptr;
  for (const ZipEntry& entry : archive.entries()) {
    const auto root = RootOf(entry.name);
    if (!root) continue;
    if (found != nullptr) {
      throw Error(Finding::kBadZip, fmt::format("both '{}' and '{}' could be the object",
                                                Escaped(found->name), Escaped(entry.name)));
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
      throw Error(Finding::kBadField,
                  fmt::format("byteorder is '{}', expected little or big", Escaped(text, 20)))
          .At(order->data_offset);
    }
  }
  // A table of its own: names of a million members are found slowly in any order but their own.
  const std::string folder = root_ + "data/";
  numbered_.resize(archive.entries().size());
  for (size_t i = 0; i < archive.entries().size(); ++i) {
    const std::string_view name = archive.entries()[i].name;
    const auto number =
        name.starts_with(folder) ? NumberOf(name.substr(folder.size())) : std::optional<uint32_t>();
    if (number && *number < numbered_.size()) numbered_[*number] = static_cast<uint32_t>(i + 1);
  }

  if (archive.Find(root_ + "constants.pkl") != nullptr) {
    file.notes.emplace_back("a TorchScript archive: its code is ignored, its data read");
  }
}

const ZipEntry* ZipStorages::FindRecord(std::string_view key) {
  const std::optional<uint32_t> number = NumberOf(key);
  if (number && *number < numbered_.size() && numbered_[*number] != 0)
    return &archive_.entries()[numbered_[*number] - 1];
  return archive_.Find(fmt::format("{}data/{}", root_, key));
}

ByteSpan ZipStorages::Record(const StorageId& id) {
  if (!IsPlainKey(id.key)) {
    throw Error(Finding::kBadName, fmt::format("storage key '{}'", Escaped(id.key, 50)));
  }
  const ZipEntry* entry = FindRecord(id.key);
  if (entry == nullptr) {
    throw Error(Finding::kMissingRecord,
                fmt::format("record '{}data/{}' is missing", root_, id.key));
  }
  const std::string_view name = entry->name;
  const uint64_t wanted = id.bytes();
  if (entry->size < wanted) {
    throw Error(Finding::kSizeMismatch,
                fmt::format("record '{}' has {} bytes, {} expected", name, entry->size, wanted))
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

ByteSpan SwapBytes(ByteSpan bytes, uint64_t item, const std::string& name, TensorFile& file) {
  Bytes out(bytes.begin(), bytes.end());
  for (uint64_t at = 0; at + item <= out.size(); at += item) {
    std::reverse(out.begin() + static_cast<std::ptrdiff_t>(at),
                 out.begin() + static_cast<std::ptrdiff_t>(at + item));
  }
  file.spools.push_back(FileSource::FromBytes(std::move(out), name));
  return file.spools.back()->bytes();
}

void ReadZipTorch(std::shared_ptr<const FileSource> source, uint64_t max_bytes, TensorFile& file) {
  const auto archive = std::make_shared<ZipArchive>(std::move(source));
  archive->Inflate(max_bytes);
  if (archive->spool() != nullptr) file.spools.push_back(archive->spool());
  file.checks.emplace_back([archive] { archive->CheckStored(); });
  ZipStorages storages(*archive, file);
  const Pickle pickle(storages.pickle(), storages.pickle_offset());
  TensorBuilder builder(pickle, storages, max_bytes, file);
  WalkPickle(pickle, builder, file);
}

}  // namespace kv
