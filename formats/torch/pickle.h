// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by pickle.cc, pickle_machine.cc, pickle_opcodes.cc

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/core/base/bytes.h"

namespace kv {

// Pickles as data. Nothing is imported, looked up or called: a global is its name, and a call is a
// node with the callable and its arguments. FORMAT.md has the opcodes and the names refused.

using PickleId = uint32_t;  // number of a value; equal ids are the same Python object
inline constexpr PickleId kPickleNone = 0;

enum class PickleKind : uint8_t {
  kNone,
  kBool,     // integer
  kInt,      // integer
  kBigInt,   // text: an integer in two's complement, little-endian
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

// One value. A file of a million tensors has some fifteen million values, so they are small;
// getters of fields that a value does not have return empty results.
class PickleValue {
 public:
  PickleKind kind() const { return kind_; }
  uint64_t offset() const { return offset_; }  // offset of its opcode
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
  uint64_t height_ : 8;  // nesting height of a value that can no longer change; otherwise 0
  PickleKind kind_ : 8;
  union {
    int64_t integer;
    double real;
    const char* text;
    PickleId* items;  // capacity is the next power of two above size
  } content_;
  uint64_t size_;  // bytes of the text, or number of items
};
static_assert(sizeof(PickleValue) == 24);

// Sizes of pages, which grow, because small files have many small pickles.
inline constexpr size_t kFirstPickleValues = 32, kMostPickleValues = 8192;  // values of a page

// Values by id, which are never moved.
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
    const Place place = FindPlace(i);
    return pages_[place.page][place.at];
  }
  const PickleValue& operator[](size_t i) const {
    const Place place = FindPlace(i);
    return pages_[place.page][place.at];
  }
  size_t size() const { return size_; }

 private:
  struct Place {
    size_t page, at;
  };
  static Place FindPlace(size_t i) {
    constexpr size_t kDoubled = std::bit_width(kMostPickleValues / kFirstPickleValues) - 1;
    const size_t at = i + kFirstPickleValues;
    if (at < kMostPickleValues)
      return {static_cast<size_t>(std::bit_width(at / kFirstPickleValues)) - 1,
              at - std::bit_floor(at)};
    return {kDoubled + at / kMostPickleValues - 1, at % kMostPickleValues};
  }

  std::vector<std::unique_ptr<PickleValue[]>> pages_;
  PickleValue *next_ = nullptr, *end_ = nullptr;  // the unused rest of the last page
  size_t size_ = 0;
};

// Memory for the items of tuples, lists and dicts, which is freed as a whole.
class PickleItems {
 public:
  PickleId* Take(size_t count);

 private:
  std::vector<std::unique_ptr<PickleId[]>> pages_;
  PickleId* next_ = nullptr;
  size_t left_ = 0, page_ = 32;  // unused items of the newest page, and its size
};

// The values that a pickle stream built. Texts point into the stream, which must outlive the
// object.
class Pickle {
 public:
  const PickleValue& operator[](PickleId id) const { return values_[id]; }
  PickleId root() const { return root_; }
  size_t size() const { return values_.size(); }  // number of values; all ids are below it
  uint64_t length() const { return length_; }     // length of the stream with STOP

  // Returns the class "module.name" of a node: the callable of an object, or "".
  std::string_view FindClass(PickleId id) const;
  // Returns the value under a text key of a dict, or kPickleNone.
  PickleId Get(PickleId dict, std::string_view key) const;
  // Returns "a list", "an object of torch.Size": for messages.
  std::string Describe(PickleId id) const;

 private:
  friend class PickleMachine;
  friend Pickle ReadPickle(ByteSpan stream, uint64_t base);
  Pickle() { values_.emplace_back(); }  // kPickleNone

  PickleValues values_;
  PickleItems items_;
  // unescaped or concatenated texts, which the stream does not contain
  std::deque<std::string> texts_;
  PickleId root_ = kPickleNone;
  uint64_t length_ = 0;
};

// Returns true if a global is forbidden in a file even if nothing uses it.
bool IsForbiddenGlobal(std::string_view module, std::string_view name);
// Returns true if instances of a class are plain data, whose state may be read as such.
bool IsDataClass(std::string_view global);

// Internals of formats/torch: the stack machine that turns a pickle stream into values.

// The values that PUT and MEMOIZE stored, by index. Pickles count indices from 0; indices far out
// of that order are kept in a map, since a file may contain any.
class PickleMemo {
 public:
  void Put(uint64_t index, PickleId id) {
    if (index >= near_.size() && index <= 2 * near_.size() + kReach)
      near_.resize(index + 1, kUnset);
    if (index >= near_.size()) {
      far_[index] = id;
      return;
    }
    if (near_[index] == kUnset) {
      ++set_;
      if (!far_.empty()) far_.erase(index);
    }
    near_[index] = id;
  }
  std::optional<PickleId> Get(uint64_t index) const {
    if (index < near_.size() && near_[index] != kUnset) return near_[index];
    const auto at = far_.find(index);
    return at == far_.end() ? std::nullopt : std::optional(at->second);
  }
  uint64_t size() const { return set_ + far_.size(); }

 private:
  static constexpr PickleId kUnset = UINT32_MAX;
  static constexpr uint64_t kReach = 8;
  std::vector<PickleId> near_;
  uint64_t set_ = 0;  // how many entries of near_ are set
  std::unordered_map<uint64_t, PickleId> far_;
};

// The indices of keys in dicts, so that a repeated key replaces its value as in Python. An open
// hash table, at most half full.
class PickleKeys {
 public:
  struct Slot {
    uint32_t hash;
    PickleId dict;  // kPickleNone: free
    uint32_t place;
  };
  // Returns the slot of a key, or the free one that it would take. `same(slot)` returns true if a
  // slot with this hash has this key.
  template <typename Same>
  Slot& Find(uint32_t hash, const Same& same) {
    if (2 * (used_ + 1) > slots_.size()) Grow();
    const size_t mask = slots_.size() - 1;
    size_t at = hash & mask;
    while (slots_[at].dict != kPickleNone && (slots_[at].hash != hash || !same(slots_[at])))
      at = (at + 1) & mask;
    return slots_[at];
  }
  // Prefetches the slot of a key that will be looked up. Always inlined, because GCC 12 treats a
  // function with only a prefetch as without effect, and drops its calls.
  [[gnu::always_inline]] void Ask(uint32_t hash) const {
    if (!slots_.empty()) __builtin_prefetch(&slots_[hash & (slots_.size() - 1)], 1);
  }
  void Fill(Slot& slot, const Slot& with) {
    slot = with;
    ++used_;
  }

 private:
  void Grow() {
    const std::vector<Slot> before = std::exchange(slots_, {});
    const size_t times = before.size() < kLarge ? 4 : 2;
    slots_.resize(std::max<size_t>(16, times * before.size()), Slot{0, kPickleNone, 0});
    const size_t mask = slots_.size() - 1;
    for (const Slot& slot : before) {
      if (slot.dict == kPickleNone) continue;
      size_t at = slot.hash & mask;
      while (slots_[at].dict != kPickleNone) at = (at + 1) & mask;
      slots_[at] = slot;
    }
  }

  // A table with this many slots or more only doubles when it grows: clearing its pages costs more
  // than filling it.
  static constexpr size_t kLarge = 1 << 20;
  std::vector<Slot> slots_;
  size_t used_ = 0;
};

class PickleMachine {
 public:
  PickleMachine(ByteSpan stream, uint64_t base, Pickle& out)
      : reader_(stream, base), begin_(base), out_(out) {}

  void Run();

 private:
  // Run one opcode, by group; each returns false if the opcode is not in its group.
  bool RunGrouped(uint8_t opcode);  // handles opcodes of any group
  bool Scalar(uint8_t opcode);
  bool Text(uint8_t opcode);
  bool Make(uint8_t opcode);  // a container
  bool Fill(uint8_t opcode);  // a container
  bool Stack(uint8_t opcode);
  bool Memo(uint8_t opcode);
  bool Call(uint8_t opcode);

  PickleId New(PickleKind kind);
  void PushInt(PickleKind kind, int64_t integer);
  void PushItems(PickleKind kind, std::span<const PickleId> items);
  void AddTo(PickleValue& value, std::span<const PickleId> items);
  PickleId Push(PickleKind kind);
  void PushText(PickleKind kind, std::string_view text);
  void PushUnicode(std::string_view text);  // throws kBadPickle unless it is UTF-8
  void PushOwned(PickleKind kind, std::string text);
  PickleId Pop(std::string_view what);
  PickleId Top(std::string_view what);
  std::span<const PickleId> PopMark();  // the items above the mark; valid until the next call
  std::string_view Line(std::string_view what);
  std::string_view Counted(uint64_t size, std::string_view what);

  void ScalarLine(uint8_t opcode);
  void PushInteger(std::string_view bytes);
  void PushGlobal(std::string_view module, std::string_view name);
  void Append(PickleId target, std::span<const PickleId> items);
  void SetItems(PickleId target, std::span<const PickleId> items);
  // Returns the hash of a key in a dict; nothing unless it is a text or an integer.
  std::optional<uint32_t> HashOfKey(PickleId dict, PickleId key) const;
  // Replaces the value of a key that a dict has. Otherwise returns false, and the caller adds a
  // plain key.
  bool Replace(PickleId dict, PickleId key, PickleId value);
  void AddItems(PickleId target, std::span<const PickleId> items);
  // Returns the list or dict inside an object of a subclass.
  PickleId Content(PickleId object, PickleKind kind);
  void Reduce(PickleId callable, PickleId arguments);
  void PushDict(std::string_view global, std::span<const PickleId> given);
  bool ReduceKnown(std::string_view global, PickleId arguments);
  void Build(PickleId target, PickleId state);
  void CheckShape();
  // Counts work beyond reading the stream once: copies and hashes that the memo lets a short stream
  // repeat. Throws kLimit if it is out of proportion.
  void Charge(uint64_t bytes);

  // Throws kBadPickle, or another finding, at the current opcode.
  template <typename... Values>
  [[noreturn]] void Fail(fmt::format_string<Values...> text, Values&&... values) const {
    FailAs(Finding::kBadPickle, text, std::forward<Values>(values)...);
  }
  template <typename... Values>
  [[noreturn]] void FailAs(Finding finding, fmt::format_string<Values...> text,
                           Values&&... values) const {
    throw Error(finding, fmt::format(text, std::forward<Values>(values)...)).At(at_);
  }

  ByteReader reader_;
  uint64_t begin_;
  Pickle& out_;
  uint64_t charged_ = 0;
  uint64_t at_ = 0;  // offset of the current opcode
  using Group = bool (PickleMachine::*)(uint8_t opcode);
  std::array<Group, 256> group_of_{};  // by opcode; nullptr if the opcode did not occur
  std::vector<PickleId> stack_;
  std::vector<size_t> marks_;  // stack heights
  std::vector<PickleId> popped_;
  PickleMemo memo_;
  PickleKeys keys_;
  // Small integers that were already made, by value. They are one object in Python too, and sizes,
  // strides and flags would otherwise be half of the values in a file of many tensors.
  std::array<PickleId, 256> small_ints_{};
  std::array<PickleId, 2> bools_{};
  PickleId empty_tuple_ = kPickleNone;
};

// Runs one stream up to STOP. The stream must outlive the result. Offsets in it and in errors count
// from `base`. Throws kBadPickle, kBadVersion, kForbiddenOpcode, kForbiddenGlobal, kTruncated,
// kLimit.
Pickle ReadPickle(ByteSpan stream, uint64_t base = 0);

}  // namespace kv
