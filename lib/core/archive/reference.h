// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/core/codec/ref/ref.h"
#include "lib/core/snapshot/snapshot.h"

// Caches that the chunks of an archive refer to: access to their rows, and the plan of which rows
// of a snapshot they predict.
namespace kv {

// Length limit of a chain of archives, each coded against the next.
constexpr uint32_t kMaxReferenceChain = 8;

// Identifies a reference for the user. Whether a file is the right one is decided by its rows
// alone, whose hashes are in the chunks that need them.
struct ReferenceName {
  std::string file;                            // name without folders
  std::string format;                          // the format that read the reference
  uint64_t source_bytes = 0, source_hash = 0;  // of the reference's file, or what it restores to
  uint32_t chain = 1;  // 1 without a reference of its own, otherwise one more than that one's

  bool operator==(const ReferenceName&) const = default;
};

// Rows of a snapshot that are produced on demand. May be called from any number of threads.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // Fills `rows` with tokens [first, first + count), [token][head][unit]. Throws what the
  // reader of the rows throws.
  virtual void Read(size_t layer_position, bool is_value, uint64_t first, uint64_t count,
                    std::span<std::byte> rows) const = 0;
};

// A reference, or the reason why it is missing.
struct Reference {
  ReferenceName name;
  Snapshot snapshot;  // has no values if there is a RowSource
  std::shared_ptr<const RowSource> rows;
  std::optional<Error> missing = {};
};
using References = std::vector<std::shared_ptr<const Reference>>;

// Rows of references, by index in a list.
class RowsOfReferences : public ReferenceRows {
 public:
  explicit RowsOfReferences(const References& references) : references_(references) {}
  DType Read(const ReferenceRun& run, uint64_t elements, Bytes& rows) const override;
  void ReadEqual(const ReferenceRun& run, DType dtype, uint64_t elements,
                 std::span<std::byte> rows) const override;

 private:
  // The tensor with the run's tokens; each token has the wanted number of elements.
  struct Found {
    const Reference& reference;
    const KvTensor& tensor;
    size_t layer_position;
  };
  Found Find(const ReferenceRun& run, uint64_t elements) const;
  static void Fill(const Found& found, const ReferenceRun& run, std::span<std::byte> rows);

  const References& references_;
};

// A range of tokens that a snapshot shares with a reference.
struct TokenRun {
  uint16_t reference = 0;
  uint64_t here = 0, there = 0, tokens = 0;
  int32_t position_shift = 0;  // position here minus position in the reference
};

// Decides which rows are coded by which rows of references.
class ReferencePlan {
 public:
  ReferencePlan() = default;
  // Compares token ids if both sides have them, otherwise the first layer's values, otherwise
  // positions. Finds the keys' rotation only if some run is rotated or `rotation_wanted`.
  ReferencePlan(const Snapshot& snapshot, const References& references,
                bool rotation_wanted = false);

  bool empty() const { return groups_.empty(); }
  // Returns true if any run refers to this reference.
  bool Uses(size_t reference) const;
  // Returns the runs of tokens [begin, begin + count) of a layer's K or V, ascending.
  std::vector<ReferenceRun> ListRuns(uint32_t layer, bool is_value, uint64_t begin,
                                     uint64_t count) const;
  const Rotation& LayerRotation(uint32_t layer) const;
  // Updates indices after references without runs were removed from the list.
  void Renumber(const std::vector<uint16_t>& places);

 private:
  // Layers that share their cells.
  struct Group {
    std::vector<TokenRun> runs;
    Rotation rotation;
    // Layers of the snapshot, each with its number in each reference (nullopt: absent there).
    std::vector<std::pair<uint32_t, std::vector<std::optional<uint32_t>>>> layers;
  };
  const Group* FindGroup(uint32_t layer, size_t& place) const;

  std::vector<Group> groups_;
};

// Finds the rotation of K, common to these layers of the snapshot, in the last rows of one of them
// whose positions are consecutive. Without angles if none is found. `layers` must not be empty.
Rotation FindKeyRotation(const Snapshot& snapshot, const std::vector<const LayerKv*>& layers);

}  // namespace kv
