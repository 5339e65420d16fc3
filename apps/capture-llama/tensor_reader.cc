// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <cstring>
#include <filesystem>
#include <fstream>

#include "apps/capture-llama/failure.h"
#include "apps/capture-llama/json.h"
#include "apps/capture-llama/tensor_file.h"

namespace kv::capture {
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
