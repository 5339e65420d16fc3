// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Inside formats/torch: the stack machine that turns a pickle stream into values.
#pragma once  // implemented by pickle.cc, pickle_calls.cc, pickle_opcodes.cc

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/torch/pickle.h"

namespace kv {

// What PUT and MEMOIZE kept, by index. Pickles count theirs from 0; what is out of that order
// stands apart, since the index may be anything.
class PickleMemo {
 public:
  void Put(uint64_t index, PickleId id) {
    if (index < counted_.size()) {
      counted_[index] = id;
    } else if (index == counted_.size()) {
      others_.erase(index);
      counted_.push_back(id);
    } else {
      others_[index] = id;
    }
  }
  std::optional<PickleId> Get(uint64_t index) const {
    if (index < counted_.size()) return counted_[index];
    const auto at = others_.find(index);
    return at == others_.end() ? std::nullopt : std::optional(at->second);
  }
  uint64_t size() const { return counted_.size() + others_.size(); }

 private:
  std::vector<PickleId> counted_;
  std::unordered_map<uint64_t, PickleId> others_;
};

class PickleMachine {
 public:
  PickleMachine(ByteSpan stream, uint64_t base, Pickle& out)
      : reader_(stream, base), begin_(base), out_(out) {}

  void Run();

 private:
  // These run one opcode, by kind; each returns false if the opcode is not of its kind.
  bool Scalar(uint8_t opcode);
  bool Text(uint8_t opcode);
  bool Container(uint8_t opcode);
  bool Stack(uint8_t opcode);
  bool Memo(uint8_t opcode);
  bool Call(uint8_t opcode);

  PickleId New(PickleKind kind);
  PickleId Push(PickleKind kind);
  void PushText(PickleKind kind, std::string_view text);
  void PushUnicode(std::string_view text);  // throws kBadPickle unless it is UTF-8
  void PushOwned(PickleKind kind, std::string text);
  PickleId Pop(std::string_view what);
  PickleId Top(std::string_view what);
  std::vector<PickleId> PopMark();
  std::string_view Line(std::string_view what);
  std::string_view Counted(uint64_t size, std::string_view what);

  void ScalarLine(uint8_t opcode);
  void PushInteger(std::string_view bytes);
  void PushGlobal(std::string_view module, std::string_view name);
  void Append(PickleId target, const std::vector<PickleId>& items);
  void SetItems(PickleId target, const std::vector<PickleId>& items);
  void AddItems(PickleId target, const std::vector<PickleId>& items);
  // The list or dict that an object of a subclass carries along.
  PickleId Content(PickleId object, PickleKind kind);
  void Reduce(PickleId callable, PickleId arguments);
  bool ReduceKnown(std::string_view global, PickleId arguments);
  void Build(PickleId target, PickleId state);
  void CheckShape();
  // Counts work beyond reading the stream once: copies and hashes of what the memo lets a short
  // stream repeat. Throws kLimit if it is out of proportion.
  void Charge(uint64_t bytes);

  [[noreturn]] void Fail(const std::string& message, Finding finding = Finding::kBadPickle) const;

  // The place of a key in a dict, so that a repeated key replaces its value as in Python.
  struct Key {
    PickleId dict;
    PickleKind kind;
    int64_t integer;
    std::string_view text;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };

  ByteReader reader_;
  uint64_t begin_;
  Pickle& out_;
  uint64_t charged_ = 0;
  uint64_t at_ = 0;  // offset of the running opcode
  std::vector<PickleId> stack_;
  std::vector<size_t> marks_;  // stack heights
  PickleMemo memo_;
  std::unordered_map<Key, size_t, KeyHash> keys_;
};

}  // namespace kv
