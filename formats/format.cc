// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/format.h"

#include <fmt/format.h>

#include <filesystem>

#include "lib/core/base/error.h"

namespace kv {
namespace {

constexpr uint64_t kMostViews = 1 << 20;  // of all layers and batch rows together

}  // namespace

Confidence ProbeFiles(const Source& source, bool (*fits)(ByteSpan)) {
  size_t fitting = 0, other = 0;
  for (const SourceFile& file : source.files) {
    if (fits(file.data->bytes())) {
      ++fitting;
    } else if (!source.is_folder || std::filesystem::path(file.name).extension() != ".json") {
      ++other;
    }
  }
  if (fitting == 0) return Confidence::kNo;
  return other == 0 ? Confidence::kCertain : Confidence::kMaybe;
}

ByteSpan BytesOfOnlyFile(const Source& source) {
  return source.is_folder || source.files.size() != 1 ? ByteSpan() : source.files[0].data->bytes();
}

void BatchOfFile::Add(uint64_t rows) {
  if (rows != rows_.value_or(rows)) {
    throw Error(Finding::kInconsistent, "a batch of {} rows, others have {}", rows, *rows_);
  }
  rows_ = rows;
  views_ += rows;
  if (rows == 0 || views_ > kMostViews) throw Error(Finding::kLimit, "a batch of {} rows", rows);
}

void RequireRow(const OpenOptions& options, uint64_t rows, bool has_batch_axis,
                std::string_view hint) {
  const bool wrong =
      options.batch ? !has_batch_axis || *options.batch >= rows : rows > 1 && !options.any_batch;
  if (!wrong) return;
  throw std::move(Error(Finding::kUsage,
                        options.batch
                            ? fmt::format("--batch {}: there {}", *options.batch,
                                          rows == 1 ? "is 1 row" : fmt::format("are {} rows", rows))
                            : fmt::format("holds a batch of {}", rows))
                      .Hint(std::string(hint)));
}

}  // namespace kv
