// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <cmath>

#include "formats/gguf/rope.h"
#include "formats/model_config/config_json.h"
#include "formats/model_config/model_config.h"
#include "formats/npy/npy.h"
#include "lib/core/base/number.h"

namespace kv {
namespace {

constexpr uint64_t kLargestList = 16 << 20;
constexpr size_t kMostPairs = 1 << 16;

std::vector<double> NumbersOfText(std::string_view text) {
  std::vector<double> numbers;
  constexpr std::string_view kBetween = " \t\r\n,[]";
  for (size_t at = text.find_first_not_of(kBetween); at != text.npos;
       at = text.find_first_not_of(kBetween, at)) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    const auto value = ParseNumber<double>(text.substr(at, end - at));
    if (!value || !std::isfinite(*value)) {
      throw Error(Finding::kBadText,
                  fmt::format("'{}' is not a number", Escaped(text.substr(at, end - at), 40)));
    }
    numbers.push_back(*value);
    at = end;
  }
  return numbers;
}

std::vector<double> NumbersOfArray(std::shared_ptr<const FileSource> data) {
  Source source;
  source.files.push_back({data->name(), std::move(data)});
  const TensorFile file = ReadNpy(std::move(source), {});
  const TensorView& view = file.tensors.at(0).view;
  if (view.rank() != 1 || (view.dtype != DType::kF32 && view.dtype != DType::kF64)) {
    throw Error(Finding::kUnsupportedKind, "holds no list of f32 or f64 numbers");
  }
  std::vector<double> numbers(view.elements());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const std::byte* at = view.data + i * view.strides[0];
    numbers[i] = view.dtype == DType::kF32 ? LoadLE<float>(at) : LoadLE<double>(at);
  }
  return numbers;
}

}  // namespace

std::optional<ModelRope> ReadModelRope(const FileSource& file) {
  try {
    if (LooksLikeConfig(file.bytes()))
      return model_config::RopeOf(model_config::Config(file.bytes()));
    return ReadGgufRope(file);
  } catch (Error& error) {
    throw error.File(file.name());
  }
}

std::vector<double> ReadFrequencies(const std::string& path) {
  try {
    const auto file = FileSource::OpenSmall(path, kLargestList, "a list of frequencies");
    const std::string_view text = AsText(file->bytes());
    std::vector<double> numbers =
        text.starts_with("\x93NUMPY") ? NumbersOfArray(file) : NumbersOfText(text);
    if (numbers.empty() || numbers.size() > kMostPairs)
      throw Error(Finding::kBadField, fmt::format("holds {} frequencies", numbers.size()));
    for (const double number : numbers) {
      // 0 turns nothing; above pi nothing is left to tell positions apart.
      if (!(number >= 0) || number > 4)
        throw Error(
            Finding::kBadField,
            fmt::format(
                "{} is not a frequency; expected radians per position, as in a model's inv_freq",
                number));
    }
    return numbers;
  } catch (Error& error) {
    throw error.File(path);
  }
}

}  // namespace kv
