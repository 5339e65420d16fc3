// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Writes and reads safetensors files with one tensor, as a stream or at places.
#include "apps/capture-llama/tensor_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "apps/capture-llama/failure.h"
#include "apps/capture-llama/json.h"

namespace kv::capture {
namespace {

// Bytes reserved for the header of a file with one tensor of three or four dimensions.
constexpr uint64_t kRoom = 512;

[[noreturn]] void Fail(const std::string& path) {
  throw Failure(kIo, path + ": " + std::strerror(errno));
}

uint64_t Product(const std::vector<uint64_t>& shape) {
  uint64_t product = 1;
  for (const uint64_t extent : shape) product *= extent;
  return product;
}

std::string Description(const std::string& dtype, const std::vector<uint64_t>& shape,
                        uint64_t begin, uint64_t bytes) {
  std::string extents;
  for (const uint64_t extent : shape) {
    extents += (extents.empty() ? "" : ",") + std::to_string(extent);
  }
  JsonObject tensor;
  tensor.Add("dtype", dtype).Raw("shape", "[" + extents + "]");
  tensor.Raw("data_offsets",
             "[" + std::to_string(begin) + "," + std::to_string(begin + bytes) + "]");
  return tensor.Line();
}

// Returns the length field and the header, padded to `size` bytes or, for 0, to a multiple of 8.
std::string Header(const JsonObject& members, uint64_t size) {
  std::string text = members.Line();
  text.resize(size == 0 ? (text.size() + 7) / 8 * 8 : std::max(text.size(), size - 8), ' ');
  const uint64_t length = text.size();
  char front[8];
  for (int i = 0; i < 8; ++i) front[i] = static_cast<char>(length >> (8 * i));
  return std::string(front, 8) + text;
}

std::span<const std::byte> AsBytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

OutputFile::OutputFile(const std::string& path)
    : path_(path),
      descriptor_(open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0666)) {
  if (descriptor_ < 0) Fail(path_);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void OutputFile::WriteAt(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) Fail(path_);
    offset += static_cast<uint64_t>(written);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void OutputFile::EndAt(uint64_t size) {
  if (ftruncate(descriptor_, static_cast<off_t>(size)) != 0) Fail(path_);
}

void OutputFile::Close() {
  const bool synced = fsync(descriptor_) == 0;
  if (close(std::exchange(descriptor_, -1)) != 0 || !synced) Fail(path_);
}

void WriteFile(const std::string& path, const std::string& text) {
  OutputFile file(path);
  file.WriteAt(0, AsBytes(text));
  file.Close();
}

RowFile::RowFile(const std::string& path, std::string name, std::string dtype, size_t value_bytes,
                 std::vector<uint64_t> row_shape)
    : file_(path),
      name_(std::move(name)),
      dtype_(std::move(dtype)),
      row_shape_(std::move(row_shape)),
      row_bytes_(Product(row_shape_) * value_bytes) {}

void RowFile::Append(std::span<const std::byte> rows) {
  if (row_bytes_ == 0 || rows.size() % row_bytes_ != 0)
    throw Failure(kBug, name_ + ": incomplete row");
  file_.WriteAt(kRoom + rows_ * row_bytes_, rows);
  rows_ += rows.size() / row_bytes_;
}

void RowFile::Complete() {
  std::vector<uint64_t> shape = row_shape_;
  shape.insert(shape.begin(), rows_);
  JsonObject members;
  members.Raw(name_, Description(dtype_, shape, 0, rows_ * row_bytes_));
  const std::string header = Header(members, kRoom);
  if (header.size() != kRoom) throw Failure(kBug, name_ + ": no room for the header");
  file_.WriteAt(0, AsBytes(header));
  file_.Close();
}

PlacedTensor::PlacedTensor(const std::string& path, const std::string& name,
                           const std::string& dtype, size_t value_bytes,
                           const std::vector<uint64_t>& shape)
    : file_(path) {
  const uint64_t bytes = Product(shape) * value_bytes;
  JsonObject members;
  members.Raw(name, Description(dtype, shape, 0, bytes));
  const std::string header = Header(members, 0);
  data_ = header.size();
  file_.WriteAt(0, AsBytes(header));
  file_.EndAt(data_ + bytes);
}

void PlacedTensor::WriteAt(uint64_t offset, std::span<const std::byte> bytes) {
  file_.WriteAt(data_ + offset, bytes);
}

void WriteTensors(const std::string& path, const std::vector<Tensor>& tensors,
                  const Metadata& metadata) {
  JsonObject members;
  if (!metadata.empty()) {
    JsonObject strings;
    for (const auto& [key, value] : metadata) strings.Add(key, value);
    members.Add("__metadata__", strings);
  }
  uint64_t at = 0;
  for (const Tensor& tensor : tensors) {
    members.Raw(tensor.name, Description(tensor.dtype, tensor.shape, at, tensor.bytes.size()));
    at += tensor.bytes.size();
  }
  const std::string header = Header(members, 0);
  OutputFile file(path);
  file.WriteAt(0, AsBytes(header));
  at = header.size();
  for (const Tensor& tensor : tensors) {
    file.WriteAt(at, tensor.bytes);
    at += tensor.bytes.size();
  }
  file.Close();
}

namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 32;
constexpr int64_t kMostValues = int64_t{1} << 30;

struct Place {
  std::string dtype;
  std::vector<int64_t> shape, offsets;
};

Place ReadPlace(JsonReader& json) {
  Place place;
  json.Object([&](std::string_view key) {
    const auto numbers = [&](std::vector<int64_t>& out) {
      json.Array([&] {
        if (out.size() == 8) json.Refuse("too many numbers");
        out.push_back(json.Integer(0, int64_t{kMostBytes}));
      });
    };
    if (key == "dtype") {
      place.dtype = json.String();
    } else if (key == "shape") {
      numbers(place.shape);
    } else if (key == "data_offsets") {
      numbers(place.offsets);
    } else {
      json.Skip();
    }
  });
  return place;
}

}  // namespace

std::string ReadFile(const std::string& path, uint64_t most) {
  std::error_code failed;
  if (std::filesystem::is_directory(path, failed)) throw Failure(kIo, path + ": is a folder");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Failure(kIo, path + ": " + std::strerror(errno));
  std::string text;
  char buffer[1 << 16];
  while (file.read(buffer, sizeof buffer) || file.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(file.gcount()));
    if (text.size() > most)
      throw Failure(kInvalid, path + ": has more than " + std::to_string(most) + " bytes");
  }
  if (file.bad()) throw Failure(kIo, path + ": cannot be read");
  return text;
}

std::vector<int32_t> ReadIntegers(const std::string& path, const std::string& name) {
  const std::string file = ReadFile(path, kMostBytes);
  uint64_t length = 0;
  for (size_t i = 0; i < 8 && i < file.size(); ++i) {
    length |= uint64_t{static_cast<unsigned char>(file[i])} << (8 * i);
  }
  if (file.size() < 8 || length > file.size() - 8) {
    throw Failure(kInvalid, path + ": is not a safetensors file");
  }
  JsonReader json(std::string_view(file).substr(8, length), path);
  Place place;
  bool found = false;
  json.Object([&](std::string_view key) {
    if (key != name) return json.Skip();
    place = ReadPlace(json);
    found = true;
  });
  json.End();
  if (!found) throw Failure(kInvalid, path + ": has no tensor '" + name + "'");
  const std::string_view data = std::string_view(file).substr(8 + length);
  if (place.dtype != "I32" || place.shape.size() != 1 || place.offsets.size() != 2 ||
      place.shape[0] > kMostValues || place.offsets[1] > static_cast<int64_t>(data.size()) ||
      place.offsets[1] - place.offsets[0] != 4 * place.shape[0]) {
    throw Failure(kInvalid, path + ": '" + name + "' is not a list of 32-bit integers");
  }
  std::vector<int32_t> values(static_cast<size_t>(place.shape[0]));
  if (!values.empty())
    std::memcpy(values.data(), data.data() + place.offsets[0], values.size() * 4);
  return values;
}

}  // namespace kv::capture
