// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/format.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "lib/core/base/error.h"
#include "lib/core/snapshot/layout.h"

namespace kv {

namespace {

constexpr uint64_t kMostViews = 1 << 20;  // views of all layers and batch rows together

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
  if (rows == 0 || views_ > kMostViews)
    throw Error(Finding::kLimit, "a batch of {} rows; layers together may have 1 to 2^20", rows);
}

void RequireRow(const OpenOptions& options, uint64_t rows, bool has_batch_axis,
                std::string_view hint) {
  const bool wrong =
      options.batch ? !has_batch_axis || *options.batch >= rows : rows > 1 && !options.any_batch;
  if (!wrong) return;
  throw Error(Finding::kUsage,
              options.batch ? fmt::format("--batch {}: there {}", *options.batch,
                                          rows == 1 ? "is 1 row" : fmt::format("are {} rows", rows))
                            : fmt::format("holds a batch of {}", rows))
      .Hint(std::string(hint));
}

void WriteRows(const Snapshot& snapshot, const KvTensor& tensor, uint64_t begin, uint64_t count,
               Sink& sink) {
  // Buffer size when gathering a transposed tensor: large enough that whole pages of each row are
  // touched.
  constexpr uint64_t kGatherBytes = 8 << 20;
  const uint64_t step = std::max<uint64_t>(1, kGatherBytes / tensor.row_bytes());
  for (uint64_t at = begin; at < begin + count; at += step) {
    const uint64_t part = std::min(step, begin + count - at);
    sink.Write(Gather(tensor, at, part, Order::kTokenHeadDim));
    DropTokens(snapshot, tensor, at, part);
  }
  DropTensor(snapshot, tensor);
}

void RequireLayerNumbers(const Snapshot& snapshot) {
  std::set<uint32_t> indices;
  for (const LayerKv& layer : snapshot.layers) {
    if (indices.insert(layer.index).second) continue;
    throw Error(Finding::kUnsupportedLayout, "two layers have the index {}", layer.index);
  }
}

void AddLayerNumbers(const Snapshot& snapshot, std::vector<std::string>& lost) {
  for (size_t i = 0; i < snapshot.layers.size(); ++i) {
    if (snapshot.layers[i].index == i) continue;
    lost.emplace_back("layer numbers: stored layers are counted from 0");
    return;
  }
}

}  // namespace kv
