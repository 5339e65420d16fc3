// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/safetensors/dtypes.h"
#include "formats/safetensors/header.h"
#include "formats/safetensors/safetensors.h"
#include "formats/tensors/tensor_snapshot.h"
#include "lib/core/base/checked.h"

namespace kv {
namespace {

using safetensors::HeaderTensor;
using safetensors::Standing;
using safetensors::TypeWord;

constexpr std::string_view kFileEnding = ".safetensors";

// Numbers that happen to begin so are as long as they say, too; the first name tells them apart.
bool BeginsWithName(std::string_view header) {
  const size_t first = header.find_first_not_of(" \t\r\n", 1);
  return first != header.npos && header[first] == '"';
}

// A header above the cap is one, too: the reader says what is wrong with it.
bool LooksRight(ByteSpan bytes) {
  if (bytes.size() <= safetensors::kLengthBytes) return false;
  const uint64_t length = LoadLE<uint64_t>(bytes.data());
  const std::string_view text = AsText(bytes.subspan(safetensors::kLengthBytes));
  if (length > text.size() || text.front() != '{') return false;
  return length <= safetensors::kHeaderCap || BeginsWithName(text.substr(0, 4096));
}

std::string Stem(std::string_view name) {
  if (name.size() > kFileEnding.size() &&
      name.substr(name.size() - kFileEnding.size()) == kFileEnding) {
    name.remove_suffix(kFileEnding.size());
  }
  return std::string(name);
}

const TypeWord& WordOf(std::string_view name) {
  for (const TypeWord& word : safetensors::kTypeWords) {
    if (word.name == name) return word;
  }
  throw Error(Finding::kUnknownDtype, fmt::format("unknown dtype '{}'", Escaped(name, 40)));
}

uint64_t BytesOfTensor(const HeaderTensor& tensor, const TypeWord& word) {
  uint64_t bits = word.bits;
  for (const uint64_t extent : tensor.shape) bits = CheckedMul(bits, extent, "size in bits");
  if (bits % 8 != 0) {
    throw Error(Finding::kSizeMismatch, fmt::format("{} bits are not whole bytes", bits));
  }
  return bits / 8;
}

// Opaque types become rows of bytes.
std::vector<uint64_t> ShapeAsStored(std::vector<uint64_t> shape, const TypeWord& word,
                                    uint64_t bytes) {
  if (word.standing != Standing::kOpaque || word.bits == 8) return shape;
  if (word.bits < 8) return {bytes};
  shape.push_back(word.bits / 8);
  return shape;
}

// LMCache's GDS backend keeps a copy of each header beside its file.
bool IsHeaderCopy(const Source& source, std::string_view name) {
  constexpr std::string_view kCopy = ".metadata";
  return source.is_folder && name.ends_with(kCopy) &&
         source.Find(name.substr(0, name.size() - kCopy.size())) != nullptr;
}

void AddTensors(ByteSpan bytes, const std::string& stem, TensorFile& file) {
  safetensors::Header header = safetensors::ParseHeader(bytes);
  const ByteSpan data = bytes.subspan(header.data_offset);
  const auto before = [](const HeaderTensor& a, const HeaderTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  };
  if (!std::is_sorted(header.tensors.begin(), header.tensors.end(), before))
    std::stable_sort(header.tensors.begin(), header.tensors.end(), before);
  file.tensors.reserve(file.tensors.size() + header.tensors.size());
  uint64_t position = 0;
  for (HeaderTensor& tensor : header.tensors) {
    try {
      if (tensor.begin != position || tensor.end < tensor.begin) {
        throw Error(Finding::kBadOffsets,
                    fmt::format("data_offsets [{}, {}], but the data so far ends at {}",
                                tensor.begin, tensor.end, position));
      }
      const TypeWord& word = WordOf(tensor.dtype);
      const uint64_t size = BytesOfTensor(tensor, word);
      if (tensor.end - tensor.begin != size) {
        throw Error(Finding::kSizeMismatch,
                    fmt::format("shape [{}] of {} needs {} bytes, data_offsets give {}",
                                fmt::join(tensor.shape, ", "), tensor.dtype, size,
                                tensor.end - tensor.begin));
      }
      if (tensor.end > data.size()) {
        throw Error(Finding::kTruncated,
                    fmt::format("ends at {}, the data has {} bytes", tensor.end, data.size()))
            .At(header.data_offset + tensor.begin);
      }
      position = tensor.end;
      if (word.standing != Standing::kOfficial) {
        file.notes.push_back(word.standing == Standing::kAlias
                                 ? fmt::format("'{}': dtype {} is taken as {}",
                                               Escaped(tensor.name), word.name, Name(word.dtype))
                                 : fmt::format("'{}': values of type {} are kept as bytes",
                                               Escaped(tensor.name), word.name));
      }
      if (tensor.memory_format) {
        file.metadata.emplace(kMemoryFormatPrefix + tensor.name,
                              std::to_string(*tensor.memory_format));
      }
      TensorView view =
          ContiguousView(word.dtype, ShapeAsStored(std::move(tensor.shape), word, size),
                         data.data() + tensor.begin);
      file.tensors.push_back({std::move(tensor.name), std::move(view), stem});
    } catch (Error& error) {
      throw error.In(fmt::format("tensor '{}'", Escaped(tensor.name)));
    }
  }
  if (position != data.size()) {
    throw Error(Finding::kTrailingBytes,
                fmt::format("{} bytes follow the last tensor", data.size() - position))
        .At(header.data_offset + position);
  }
  for (auto& [key, value] : header.metadata) {
    const auto [at, is_new] = file.metadata.emplace(key, value);
    if (!is_new && at->second != value) {
      file.notes.push_back(
          fmt::format("{} contradicts an earlier file about '{}'", Escaped(stem), Escaped(key)));
    }
  }
}

}  // namespace

TensorFile ReadSafetensors(Source source, const OpenOptions&) {
  TensorFile file;
  file.source = std::move(source);
  file.format = "safetensors";
  for (const SourceFile& member : file.source.files) {
    if (IsHeaderCopy(file.source, member.name)) continue;
    if (file.source.is_folder && !LooksRight(member.data->bytes())) {
      file.notes.push_back(Escaped(member.name) + " is left out: no safetensors");
      continue;
    }
    try {
      AddTensors(member.data->bytes(), Stem(member.name), file);
    } catch (Error& error) {
      if (file.source.is_folder) error.In(Escaped(member.name));
      throw;
    }
  }
  return file;
}

Confidence ProbeSafetensors(const Source& source) {
  return ProbeFiles(source, [](ByteSpan bytes) { return LooksRight(bytes); });
}

Snapshot OpenSafetensors(Source source, const OpenOptions& options) {
  return SnapshotOf(ReadSafetensors(std::move(source), options), options);
}

}  // namespace kv
