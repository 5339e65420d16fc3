// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
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

// One value. A file of a million tensors has some fifteen million, so they are small: what a value
// does not have reads as empty.
class PickleValue {
 public:
  PickleKind kind() const { return kind_; }
  uint64_t offset() const { return offset_; }  // of its opcode
  int64_t integer() const { return IsInteger() ? content_.integer : 0; }
  double real() const { return kind_ == PickleKind::kFloat ? content_.real : 0; }
  std::string_view text() const {
    return IsText() ? std::string_view(content_.text, size_) : std::string_view();
  }
  std::span<const PickleId> items() const {
    return IsContainer() ? std::span<const PickleId>(content_.items, size_)
                         : std::span<const PickleId>();
  }

 private:
  friend class PickleMachine;
  friend class PickleValues;
  bool IsInteger() const { return kind_ == PickleKind::kBool || kind_ == PickleKind::kInt; }
  bool IsText() const {
    return kind_ == PickleKind::kText || kind_ == PickleKind::kBytes ||
           kind_ == PickleKind::kBigInt || kind_ == PickleKind::kGlobal;
  }
  bool IsContainer() const {
    return (kind_ >= PickleKind::kList && kind_ <= PickleKind::kDict) ||
           kind_ == PickleKind::kObject || kind_ == PickleKind::kStorage;
  }

  uint64_t offset_ : 48;
  uint64_t height_ : 8;  // with what it holds, if that cannot change any more; else 0
  PickleKind kind_ : 8;
  union {
    int64_t integer;
    double real;
    const char* text;
    PickleId* items;  // with room for the next power of two above size_
  } content_;
  uint64_t size_;  // of the text, or items
};
static_assert(sizeof(PickleValue) == 24);

// Pages that grow from few elements, since small files have many small pickles, to many.
inline constexpr size_t kFirstPickleValues = 32, kMostPickleValues = 8192;  // of a page

// Values by id. They are never moved.
class PickleValues {
 public:
  PickleValue& emplace_back() {
    if (next_ == end_) {
      const size_t room = std::min(size_ + kFirstPickleValues, kMostPickleValues);
      pages_.push_back(std::make_unique_for_overwrite<PickleValue[]>(room));
      next_ = pages_.back().get();
      end_ = next_ + room;
    }
    ++size_;
    PickleValue& value = *next_++;
    value.offset_ = 0;
    value.height_ = 1;
    value.kind_ = PickleKind::kNone;
    value.content_.integer = 0;
    value.size_ = 0;
    return value;
  }
  PickleValue& operator[](size_t i) {
    const Place place = PlaceOf(i);
    return pages_[place.page][place.at];
  }
  const PickleValue& operator[](size_t i) const {
    const Place place = PlaceOf(i);
    return pages_[place.page][place.at];
  }
  size_t size() const { return size_; }

 private:
  struct Place {
    size_t page, at;
  };
  static Place PlaceOf(size_t i) {
    constexpr size_t kDoubled = std::bit_width(kMostPickleValues / kFirstPickleValues) - 1;
    const size_t at = i + kFirstPickleValues;
    if (at < kMostPickleValues)
      return {static_cast<size_t>(std::bit_width(at / kFirstPickleValues)) - 1,
              at - std::bit_floor(at)};
    return {kDoubled + at / kMostPickleValues - 1, at % kMostPickleValues};
  }

  std::vector<std::unique_ptr<PickleValue[]>> pages_;
  PickleValue *next_ = nullptr, *end_ = nullptr;  // of the last page
  size_t size_ = 0;
};

// Memory for the items of tuples, lists and dicts, which goes away as a whole.
class PickleItems {
 public:
  PickleId* Take(size_t count);

 private:
  std::vector<std::unique_ptr<PickleId[]>> pages_;
  PickleId* next_ = nullptr;
  size_t left_ = 0, page_ = 32;  // of the newest page
};

// What a pickle stream built. Texts point into the stream; it must outlive the object.
class Pickle {
 public:
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
  friend Pickle ReadPickle(ByteSpan stream, uint64_t base);
  Pickle() { values_.emplace_back(); }  // kPickleNone

  PickleValues values_;
  PickleItems items_;
  std::deque<std::string> texts_;  // unescaped or concatenated, where the stream has no such bytes
  PickleId root_ = kPickleNone;
  uint64_t length_ = 0;
};

// Whether a global is forbidden in a file even if nothing uses it.
bool IsForbiddenGlobal(std::string_view module, std::string_view name);
// Whether instances of a class are plain data whose state may be read as such.
bool IsDataClass(std::string_view global);

}  // namespace kv
