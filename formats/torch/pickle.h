// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by pickle.cc, globals.cc

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/bytes.h"

namespace kv {

// Pickles as data. Nothing is imported, looked up or called: a global is its name, a call is a node
// that says what would have been called with what. FORMAT.md has the opcodes and names refused.

using PickleId = uint32_t;  // of a value; equal ids are the same Python object
inline constexpr PickleId kPickleNone = 0;

enum class PickleKind : uint8_t {
  kNone,
  kBool,     // integer
  kInt,      // integer
  kBigInt,   // text: two's complement, little-endian
  kFloat,    // real
  kText,     // text, UTF-8
  kBytes,    // text
  kList,     // items
  kTuple,    // items
  kSet,      // items
  kDict,     // items: key, value, key, value ... each key once
  kGlobal,   // text: "module.name"
  kObject,   // items: callable, arguments, own list or dict (or none), states from BUILD ...
  kStorage,  // items: the persistent id, a tuple
};

struct PickleValue {
  PickleKind kind = PickleKind::kNone;
  uint64_t offset = 0;  // of its opcode
  union {
    int64_t integer = 0;
    double real;
  };
  std::string_view text;
  std::vector<PickleId> items;
};

// Values by id. They are never moved: a file of a million tensors has some twenty million.
class PickleValues {
 public:
  PickleValue& emplace_back() {
    if (size_ % kPage == 0) pages_.push_back(std::make_unique<PickleValue[]>(kPage));
    return (*this)[size_++];
  }
  PickleValue& operator[](size_t i) { return pages_[i / kPage][i % kPage]; }
  const PickleValue& operator[](size_t i) const { return pages_[i / kPage][i % kPage]; }
  size_t size() const { return size_; }

 private:
  static constexpr size_t kPage = 32;  // small files have many small pickles
  std::vector<std::unique_ptr<PickleValue[]>> pages_;
  size_t size_ = 0;
};

// What a pickle stream built. Texts point into the stream; it must outlive the object.
class Pickle {
 public:
  // Runs one stream up to STOP. Offsets in errors and values count from `base`. Throws kBadPickle,
  // kBadVersion, kForbiddenOpcode, kForbiddenGlobal, kTruncated, kLimit.
  explicit Pickle(ByteSpan stream, uint64_t base = 0);

  const PickleValue& operator[](PickleId id) const { return values_[id]; }
  PickleId root() const { return root_; }
  size_t size() const { return values_.size(); }  // ids are below it
  uint64_t length() const { return length_; }     // of the stream, STOP included

  // "module.name" of what a node is an instance of: the callable of an object, or empty.
  std::string_view ClassOf(PickleId id) const;
  // The value under a text key of a dict, or kPickleNone.
  PickleId Get(PickleId dict, std::string_view key) const;
  // "a list", "an object of torch.Size": for messages.
  std::string Describe(PickleId id) const;

 private:
  friend class PickleMachine;
  PickleValues values_;
  std::deque<std::string> texts_;  // unescaped or concatenated, where the stream has no such bytes
  PickleId root_ = kPickleNone;
  uint64_t length_ = 0;
};

// Whether a global is forbidden in a file even if nothing uses it.
bool IsForbiddenGlobal(std::string_view module, std::string_view name);
// Whether instances of a class are plain data whose state may be read as such.
bool IsDataClass(std::string_view global);

}  // namespace kv
