// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Files of the safetensors format.
namespace kv::capture {

// A file that is written in order or at offsets. Throws Failure(kIo).
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept
      : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  OutputFile& operator=(OutputFile&&) = delete;

  void WriteAt(uint64_t offset, std::span<const std::byte> bytes);
  void EndAt(uint64_t size);  // bytes that were not written read as zeros
  void Close();               // returns once the whole file is on the disk

 private:
  std::string path_;
  int descriptor_;
};

// Writes a new file.
void WriteFile(const std::string& path, const std::string& text);

// One tensor whose first dimension grows: rows are written as they come. The header is written into
// the space reserved for it when their number is known; until then the file is not a safetensors
// file.
class RowFile {
 public:
  RowFile(const std::string& path, std::string name, std::string dtype, size_t value_bytes,
          std::vector<uint64_t> row_shape);

  uint64_t rows() const { return rows_; }
  const std::vector<uint64_t>& row_shape() const { return row_shape_; }
  void Append(std::span<const std::byte> rows);  // whole rows
  void Complete();

 private:
  OutputFile file_;
  std::string name_, dtype_;
  std::vector<uint64_t> row_shape_;
  uint64_t row_bytes_, rows_ = 0;
};

// One tensor of known shape that is written at offsets; the rest is zeros.
class PlacedTensor {
 public:
  PlacedTensor(const std::string& path, const std::string& name, const std::string& dtype,
               size_t value_bytes, const std::vector<uint64_t>& shape);
  void WriteAt(uint64_t offset, std::span<const std::byte> bytes);
  void Complete() { file_.Close(); }

 private:
  OutputFile file_;
  uint64_t data_;
};

struct Tensor {
  std::string name, dtype;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;
};
using Metadata = std::vector<std::pair<std::string, std::string>>;

void WriteTensors(const std::string& path, const std::vector<Tensor>& tensors,
                  const Metadata& metadata);

// Reads the tensor `name` of type I32 and one dimension. Throws Failure(kInvalid) for a file that
// is not well-formed, kIo for one that cannot be read.
std::vector<int32_t> ReadIntegers(const std::string& path, const std::string& name);
// Reads a whole file. Throws kIo, and kInvalid for more than `most` bytes.
std::string ReadFile(const std::string& path, uint64_t most);

}  // namespace kv::capture
