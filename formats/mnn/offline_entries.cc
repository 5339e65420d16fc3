// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "formats/format.h"
#include "formats/json_fields.h"
#include "formats/mnn/mnn.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/json.h"
#include "lib/core/base/number.h"
#include "lib/core/snapshot/layout.h"

namespace kv::mnn {
namespace {

using Json = nlohmann::json;

// Compares paths component by component, as Python orders them: '/' sorts before every other byte.
bool PathLess(std::string_view a, std::string_view b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    const auto rank = [](char c) { return c == '/' ? -1 : int{static_cast<unsigned char>(c)}; };
    return rank(x) < rank(y);
  });
}

// Returns meta files sorted by name, in the order of MNN's script.
std::vector<const SourceFile*> FindMetas(const Source& source, std::string_view prefix) {
  std::vector<const SourceFile*> metas;
  for (const SourceFile& file : source.files) {
    const std::string_view base = LastPart(file.name);
    if (base.starts_with(prefix) && base.ends_with(".json")) metas.push_back(&file);
  }
  std::sort(metas.begin(), metas.end(),
            [](const SourceFile* a, const SourceFile* b) { return PathLess(a->name, b->name); });
  return metas;
}

// Converts a JSON value as Python's int() does; nothing if that fails.
std::optional<int64_t> AsInt(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX) return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (!(std::abs(number) < 0x1p63)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (!value.is_string()) return std::nullopt;
  return ParseNumber<int64_t>(value.get_ref<const std::string&>());
}

std::optional<int64_t> IntOr(const Json& meta, const char* key, int64_t otherwise) {
  const auto at = meta.find(key);
  return at == meta.end() ? std::optional(otherwise) : AsInt(*at);
}

std::string TextOr(const Json& meta, const char* key, const std::string& otherwise) {
  const auto at = meta.find(key);
  if (at == meta.end()) return otherwise;
  return at->is_string() ? at->get<std::string>() : at->dump();
}

DumpDefect ReadNumbers(const Json& meta, DumpEntry& entry) {
  const auto read = [&](const char* key, int64_t otherwise, int64_t& to) {
    const auto number = IntOr(meta, key, otherwise);
    if (number) to = *number;
    return number.has_value();
  };
  const bool ok = read("layer_id", -1, entry.layer) && read("seq_start", 0, entry.seq_start) &&
                  read("seq_len", 0, entry.tokens) && read("kv_heads", 0, entry.heads) &&
                  read("head_dim", 0, entry.head_dim) &&
                  read("bytes_per_elem", 0, entry.element_bytes);
  return ok ? DumpDefect::kNone : DumpDefect::kMetaNumbers;
}

// Finds a file's bytes beside its metadata: kNoFiles if it is missing, kUnreadable for a folder.
DumpDefect FindPart(const Source& source, std::string_view folder, const std::string& name,
                    ByteSpan& bytes) {
  const std::string path =
      (std::filesystem::path(folder) / name).lexically_normal().generic_string();
  if (const SourceFile* file = source.Find(path)) {
    bytes = file->data->bytes();
    return DumpDefect::kNone;
  }
  // Files are sorted, so those of a folder follow its name and a slash.
  const std::string within = path + "/";
  const auto first = std::lower_bound(
      source.files.begin(), source.files.end(), within,
      [](const SourceFile& file, const std::string& name) { return file.name < name; });
  const bool is_folder = first != source.files.end() && first->name.starts_with(within);
  return is_folder ? DumpDefect::kUnreadable : DumpDefect::kNoFiles;
}

// Returns the size that K and V must have; nothing if no file can have it.
std::optional<uint64_t> ExpectedBytes(const DumpEntry& entry) {
  if (entry.tokens <= 0 || entry.heads <= 0 || entry.head_dim <= 0) return std::nullopt;
  if (entry.heads > UINT32_MAX || entry.head_dim > UINT32_MAX) return std::nullopt;
  try {
    return CheckedMul(
        CheckedProduct({static_cast<uint64_t>(entry.tokens), static_cast<uint64_t>(entry.heads),
                        static_cast<uint64_t>(entry.head_dim)},
                       "values"),
        static_cast<uint64_t>(entry.element_bytes), "bytes");
  } catch (const Error&) {
    return std::nullopt;
  }
}

DumpDefect ReadTensors(const Source& source, std::string_view folder, const Json& meta,
                       DumpEntry& entry) {
  const std::string k_file = WordField(meta, "k_file");
  const std::string v_file = WordField(meta, "v_file");
  if (k_file.empty() || v_file.empty()) return DumpDefect::kNoFileNames;
  ByteSpan k, v;
  const DumpDefect k_defect = FindPart(source, folder, k_file, k);
  const DumpDefect v_defect = FindPart(source, folder, v_file, v);
  if (k_defect != DumpDefect::kNone || v_defect != DumpDefect::kNone) {
    const bool missing = k_defect == DumpDefect::kNoFiles || v_defect == DumpDefect::kNoFiles;
    return missing ? DumpDefect::kNoFiles : DumpDefect::kUnreadable;
  }
  // The simulator refuses other sizes, naming them.
  if (entry.element_bytes != 2 && entry.element_bytes != 4) return DumpDefect::kNone;
  const auto expected = ExpectedBytes(entry);
  if (!expected || k.size() != *expected || v.size() != *expected) return DumpDefect::kWrongSize;
  const DType dtype = entry.element_bytes == 2 ? DType::kF16 : DType::kF32;
  const auto tensor = [&](ByteSpan bytes) {
    return ContiguousTensor(bytes.data(), dtype, static_cast<uint64_t>(entry.tokens),
                            static_cast<uint32_t>(entry.heads),
                            static_cast<uint32_t>(entry.head_dim), Order::kTokenHeadDim);
  };
  entry.k = tensor(k);
  entry.v = tensor(v);
  return DumpDefect::kNone;
}

Json ParseMetaText(const SourceFile& file) {
  try {
    return ReadJson(AsText(file.data->bytes()));
  } catch (const Error&) {
    return Json(Json::value_t::discarded);  // too deeply nested, which counts as not JSON
  }
}

DumpEntry ReadEntry(const Source& source, const SourceFile& file) {
  DumpEntry entry;
  const std::string_view folder = FolderPart(file.name);
  entry.place = folder;
  const Json meta = ParseMetaText(file);
  if (!meta.is_object()) {
    entry.defect = DumpDefect::kMetaParse;
    return entry;
  }
  entry.stage = TextOr(meta, "stage", "unknown");
  entry.run = WordField(meta, "run_id");
  entry.defect = ReadNumbers(meta, entry);
  if (entry.defect == DumpDefect::kNone) entry.defect = ReadTensors(source, folder, meta, entry);
  return entry;
}

}  // namespace

std::vector<DumpEntry> ReadOfflineEntries(const Source& source) {
  std::vector<DumpEntry> entries;
  for (const SourceFile* meta : FindMetas(source, "meta_")) {
    entries.push_back(ReadEntry(source, *meta));
  }
  return entries;
}

std::vector<PackedEntry> ReadPackedEntries(const Source& source) {
  std::vector<PackedEntry> entries;
  for (const SourceFile* file : FindMetas(source, "packed_meta_")) {
    const Json meta = ParseMetaText(*file);
    if (!meta.is_object()) continue;
    const auto number = [&](const char* key) { return IntOr(meta, key, 0).value_or(0); };
    PackedEntry entry{.layer = number("layer_id"),
                      .stage = TextOr(meta, "stage", ""),
                      .used_tokens = number("used_seq_len"),
                      .max_tokens = number("max_seq_len"),
                      .heads = number("kv_heads"),
                      .head_dim = number("head_dim"),
                      .element_bytes = number("bytes_per_elem"),
                      .pack_h = number("pack_h"),
                      .pack_l = number("pack_l"),
                      .flash_block = number("flash_upper_kv"),
                      .key_used_bytes = number("key_used_bytes"),
                      .value_used_bytes = number("value_used_bytes"),
                      .k = {},
                      .v = {}};
    const std::string_view folder = FolderPart(file->name);
    const auto found = [&](const char* key, ByteSpan& bytes) {
      const std::string name = WordField(meta, key);
      return !name.empty() && FindPart(source, folder, name, bytes) == DumpDefect::kNone;
    };
    if (found("k_file", entry.k) && found("v_file", entry.v)) entries.push_back(entry);
  }
  return entries;
}

}  // namespace kv::mnn
