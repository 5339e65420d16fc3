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

// Caches that the chunks of an archive refer to: their rows, and which of them stand for which rows
// of a snapshot.
namespace kv {

// A chain of archives, each coded against the next, has at most this many references in a row.
constexpr uint32_t kMaxReferenceChain = 8;

// How an archive names a reference. Only rows decide whether a file is the one: their hashes are in
// the chunks that need them.
struct ReferenceName {
  std::string file;                            // its name, without folders
  std::string format;                          // as it was read then
  uint64_t source_bytes = 0, source_hash = 0;  // of what it was, or restored to
  uint32_t chain = 1;  // 1 if it stands on its own, otherwise one more than its own reference

  bool operator==(const ReferenceName&) const = default;
};

// Rows of a snapshot that are made when somebody asks for them. Any number of threads may do so.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // Fills `rows` with tokens [first, first + count), [token][head][unit]. Throws whatever reading
  // them throws.
  virtual void Read(size_t layer_position, bool is_value, uint64_t first, uint64_t count,
                    std::span<std::byte> rows) const = 0;
};

// A reference that was found, or why it was not.
struct Reference {
  ReferenceName name;
  Snapshot snapshot;  // has no values if there is a source of rows
  std::shared_ptr<const RowSource> rows;
  std::optional<Error> missing = {};
};
using References = std::vector<std::shared_ptr<const Reference>>;

// Rows of references, by their places in a list.
class RowsOfReferences : public ReferenceRows {
 public:
  explicit RowsOfReferences(const References& references) : references_(references) {}
  DType Read(const ReferenceRun& run, uint64_t elements, Bytes& rows) const override;
  void ReadEqual(const ReferenceRun& run, DType dtype, uint64_t elements,
                 std::span<std::byte> rows) const override;

 private:
  // The tensor that has the run's tokens, which have so many elements.
  struct Found {
    const Reference& reference;
    const KvTensor& tensor;
    size_t layer_position;
  };
  Found Find(const ReferenceRun& run, uint64_t elements) const;
  static void Fill(const Found& found, const ReferenceRun& run, std::span<std::byte> rows);

  const References& references_;
};

// Tokens of a snapshot that are also those of a reference.
struct TokenRun {
  uint16_t reference = 0;
  uint64_t here = 0, there = 0, tokens = 0;
  int32_t turn = 0;  // by how many positions they are further on here
};

// What is to be coded by what.
class ReferencePlan {
 public:
  ReferencePlan() = default;
  // Compares token ids where both sides have them, else the first layer's values, else positions.
  // Finds how keys turn only if they are turned, or if that is wanted.
  ReferencePlan(const Snapshot& snapshot, const References& references,
                bool rotation_wanted = false);

  bool empty() const { return groups_.empty(); }
  // Whether some run is of this reference.
  bool Uses(size_t reference) const;
  // The runs of tokens [begin, begin + count) of a layer's K or V, ascending.
  std::vector<ReferenceRun> RunsOf(uint32_t layer, bool is_value, uint64_t begin,
                                   uint64_t count) const;
  const Rotation& RotationOf(uint32_t layer) const;
  // After references without runs left the list.
  void Renumber(const std::vector<uint16_t>& places);

 private:
  // Layers that have their cells in common.
  struct Group {
    std::vector<TokenRun> runs;
    Rotation rotation;
    // Per layer here: its number there, for each reference; nothing if it has none.
    std::vector<std::pair<uint32_t, std::vector<std::optional<uint32_t>>>> layers;
  };
  const Group* GroupOf(uint32_t layer, size_t& place) const;

  std::vector<Group> groups_;
};

}  // namespace kv
