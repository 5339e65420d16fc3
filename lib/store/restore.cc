// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/hash.h"
#include "lib/core/base/reuse.h"
#include "lib/store/cut.h"
#include "lib/store/store.h"

namespace kv::store {
namespace {

// What of a file comes next: a literal, or one object.
struct Step {
  const Extent* extent = nullptr;
  const Piece* piece = nullptr;  // null: the literal
  uint64_t begin = 0;
  bool is_last = false;  // of its extent
};

struct Loaded {
  Step step;
  Bytes raw;
};

std::vector<Step> StepsOf(const StoredFile& file) {
  std::vector<Step> steps;
  for (const Extent& extent : file.extents) {
    if (extent.kind == Extent::Kind::kLiteral) steps.push_back({&extent, nullptr, 0, true});
    uint64_t begin = 0;
    for (const Piece& piece : extent.pieces) {
      steps.push_back({&extent, &piece, begin, &piece == &extent.pieces.back()});
      begin += piece.count;
    }
  }
  return steps;
}

// Bytes of the largest object; at least 1.
uint64_t FindLargest(const std::vector<Step>& steps) {
  uint64_t largest = 1;
  for (const Step& step : steps) {
    if (step.piece != nullptr) largest = std::max(largest, step.extent->BytesOf(*step.piece));
  }
  return largest;
}

// Writes what was loaded, in order. Tensors that are not stored token by token are put together
// first.
class FileWriter {
 public:
  explicit FileWriter(Sink& sink) : sink_(sink) {}

  void Take(const Loaded& loaded) {
    const Step& step = loaded.step;
    const Extent& extent = *step.extent;
    if (step.piece == nullptr) return Write(extent.literal);
    if (extent.in_order()) return Write(loaded.raw);
    tensor_.resize(extent.size());
    ScatterRows(extent, loaded.raw, step.begin, step.piece->count, tensor_);
    if (!step.is_last) return;
    Write(tensor_);
    tensor_ = Bytes();
  }
  uint64_t hash() const { return hash_.Digest(); }

 private:
  void Write(ByteSpan bytes) {
    hash_.Update(bytes);
    sink_.Write(bytes);
  }

  Sink& sink_;
  StreamingHash64 hash_;
  Bytes tensor_;
};

}  // namespace

void Store::Restore(const StateRecord& record, RestoreTarget& target, ThreadPool& pool,
                    Progress* progress) {
  if (progress != nullptr) progress->Begin(record.source_bytes);
  Reuse<CodecScratch> scratches;
  constexpr uint64_t kWindowPerThread = 4, kWindowBytes = uint64_t{256} << 20;
  const auto threads = static_cast<uint64_t>(pool.threads());
  for (size_t i = 0; i < record.files.size(); ++i) {
    const StoredFile& file = record.files[i];
    const std::vector<Step> steps = StepsOf(file);
    size_t next = 0;
    // Objects may be of 16 MiB each, and a few bytes on the disk.
    const uint64_t window =
        std::max(threads, std::min(kWindowPerThread * threads, kWindowBytes / FindLargest(steps)));
    FileWriter writer(target.Begin(i));
    pool.RunOrdered<Step, Loaded>(
        window,
        [&]() -> std::optional<Step> {
          if (next == steps.size()) return std::nullopt;
          return steps[next++];
        },
        [&](Step& step) {
          Loaded loaded{step, {}};
          if (step.piece == nullptr) return loaded;
          const Reuse<CodecScratch>::Lease scratch(scratches);
          LoadObject(step.piece->id, step.extent->BytesOf(*step.piece), *scratch, loaded.raw);
          return loaded;
        },
        [&](Loaded& loaded) {
          writer.Take(loaded);
          if (progress != nullptr) progress->Advance(loaded.raw.size());
        });
    if (writer.hash() != file.hash) {
      throw Error(Finding::kContentDiffers, "the restored bytes are not those that were added")
          .File(file.name.empty() ? record.name : file.name);
    }
    target.End(i);
  }
}

}  // namespace kv::store
