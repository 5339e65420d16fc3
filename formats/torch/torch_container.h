// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Inside formats/torch: the containers around pickles.
#pragma once  // implemented by torch_legacy.cc, torch_zip.cc

#include <map>
#include <memory>
#include <string>

#include "formats/torch/torch_tensor.h"
#include "formats/zip/zip_reader.h"

namespace kv {

// Reads a legacy file that is one storage. Values in the mapped file stay there; otherwise `file`
// keeps a copy.
EmbeddedStorage ReadEmbedded(ByteSpan bytes, TensorFile& file);

// Storages as members of a zip archive, or one after another behind the pickles of a legacy file.
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
  std::string root_;                // with its slash, or empty
  std::vector<uint32_t> numbered_;  // by key: the place of its entry, from 1
  ByteSpan pickle_;
  uint64_t pickle_offset_ = 0;
  bool big_endian_ = false;
  std::map<std::string, ByteSpan, std::less<>> swapped_;
};

class LegacyStorages : public StorageBytes {
 public:
  // Reads the records behind the object's pickle: the list of keys, then counts and elements.
  LegacyStorages(ByteSpan bytes, uint64_t offset, const Pickle& object, bool big_endian,
                 TensorFile& file);
  ByteSpan Find(const StorageId& id) override;
  EmbeddedStorage Embedded(ByteSpan file) override { return ReadEmbedded(file, file_); }

 private:
  TensorFile& file_;
  std::map<std::string, ByteSpan, std::less<>> records_;
};

// Elements of a host with the other byte order, swapped for this one; `file` keeps them alive.
ByteSpan SwapBytes(ByteSpan bytes, uint64_t item, const std::string& name, TensorFile& file);

bool IsLegacyTorch(ByteSpan bytes);
void ReadLegacyTorch(ByteSpan bytes, uint64_t max_bytes, TensorFile& file);
void ReadZipTorch(std::shared_ptr<const FileSource> source, uint64_t max_bytes, TensorFile& file);

}  // namespace kv
