// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/torch/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "formats/torch/pickle_machine.h"

namespace kv {
namespace {

constexpr size_t kMostValues = 50'000'000;
constexpr uint32_t kMostKnownHeight = 0xff;
constexpr size_t kMostItems = 1 << 15;  // of a page
constexpr uint32_t kMostDepth = 1000;
constexpr uint8_t kNewestProtocol = 5;
constexpr uint64_t kMostRepetition = 16, kFreeRepetition = 1 << 20;  // of the stream; bytes

constexpr uint8_t kProto = 0x80, kStop = '.', kFrame = 0x95;

// Opcodes that run code by design or need what no file has.
struct Refused {
  uint8_t opcode;
  std::string_view name;
};
constexpr Refused kRefused[] = {
    {'i', "INST"},  {'o', "OBJ"},    {0x82, "EXT1"},        {0x83, "EXT2"},
    {0x84, "EXT4"}, {'P', "PERSID"}, {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"},
};

}  // namespace

Pickle::Pickle(ByteSpan stream, uint64_t base) {
  values_.emplace_back();  // kPickleNone
  PickleMachine(stream, base, *this).Run();
}

std::string_view Pickle::ClassOf(PickleId id) const {
  const PickleValue& value = values_[id];
  if (value.kind() != PickleKind::kObject) return {};
  const PickleValue& callable = values_[value.items()[0]];
  return callable.kind() == PickleKind::kGlobal ? callable.text() : std::string_view("?");
}

PickleId Pickle::Get(PickleId dict, std::string_view key) const {
  const PickleValue& value = values_[dict];
  if (value.kind() != PickleKind::kDict) return kPickleNone;
  const std::span<const PickleId> items = value.items();
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const PickleValue& candidate = values_[items[i]];
    if (candidate.kind() == PickleKind::kText && candidate.text() == key) return items[i + 1];
  }
  return kPickleNone;
}

std::string Pickle::Describe(PickleId id) const {
  switch (values_[id].kind()) {
    case PickleKind::kNone:
      return "None";
    case PickleKind::kBool:
      return "a bool";
    case PickleKind::kInt:
    case PickleKind::kBigInt:
      return "an int";
    case PickleKind::kFloat:
      return "a float";
    case PickleKind::kText:
      return "a text";
    case PickleKind::kBytes:
      return "bytes";
    case PickleKind::kList:
      return "a list";
    case PickleKind::kTuple:
      return "a tuple";
    case PickleKind::kSet:
      return "a set";
    case PickleKind::kDict:
      return "a dict";
    case PickleKind::kGlobal:
      return fmt::format("the name {}", Escaped(values_[id].text()));
    case PickleKind::kObject:
      return fmt::format("an object of {}", Escaped(ClassOf(id)));
    case PickleKind::kStorage:
      return "a storage";
  }
  return "?";
}

PickleId* PickleItems::Take(size_t count) {
  if (count > left_) {
    if (count > page_ / 4) {  // a page of its own, so that little is left of the other
      pages_.push_back(std::make_unique_for_overwrite<PickleId[]>(count));
      return pages_.back().get();
    }
    pages_.push_back(std::make_unique_for_overwrite<PickleId[]>(page_));
    next_ = pages_.back().get();
    left_ = page_;
    page_ = std::min(2 * page_, kMostItems);
  }
  left_ -= count;
  return std::exchange(next_, next_ + count);
}

void PickleMachine::Run() {
  for (bool first = true;; first = false) {
    at_ = reader_.offset();
    const uint8_t opcode = reader_.U8("pickle opcode");
    if (opcode == kStop) break;
    if (opcode == kProto) {
      const uint8_t protocol = reader_.U8("pickle protocol");
      if (protocol > kNewestProtocol) {
        Fail(fmt::format("pickle protocol {}, at most 5 exists", protocol), Finding::kBadVersion);
      }
      continue;
    }
    if (opcode == kFrame) {
      const uint64_t size = reader_.U64("FRAME");
      if (size > reader_.remaining()) {
        Fail(fmt::format("FRAME of {} bytes, {} left", size, reader_.remaining()),
             Finding::kTruncated);
      }
      continue;
    }
    if (RunGrouped(opcode)) continue;
    for (const Refused& refused : kRefused) {
      if (refused.opcode == opcode) {
        Fail(fmt::format("opcode {} is never followed", refused.name), Finding::kForbiddenOpcode);
      }
    }
    Fail(first ? fmt::format("no pickle begins with byte {:#04x}", opcode)
               : fmt::format("unknown pickle opcode {:#04x}", opcode));
  }
  if (!marks_.empty() || stack_.size() != 1) {
    Fail(fmt::format("STOP with {} values on the stack, expected 1", stack_.size()));
  }
  out_.root_ = stack_.back();
  out_.length_ = reader_.offset() - begin_;
  CheckShape();
}

// Which group an opcode belongs to is learned when it is first met: a file of a million tensors has
// thirty million opcodes.
bool PickleMachine::RunGrouped(uint8_t opcode) {
  constexpr uint8_t kGroups = 6;
  const auto run = [&](uint8_t group) {
    switch (group) {
      case 0:
        return Memo(opcode);
      case 1:
        return Scalar(opcode);
      case 2:
        return Container(opcode);
      case 3:
        return Text(opcode);
      case 4:
        return Stack(opcode);
      default:
        return Call(opcode);
    }
  };
  uint8_t& known = group_of_[opcode];
  if (known != kUnmet) return run(known);
  for (uint8_t group = 0; group < kGroups; ++group) {
    if (!run(group)) continue;
    known = group;
    return true;
  }
  return false;
}

// Nothing contains itself and nothing is nested too deeply, from the root down: what walks the
// values later may rely on it. Shared values are visited once.
void PickleMachine::CheckShape() {
  constexpr uint16_t kNew = 0, kOpen = UINT16_MAX;
  static_assert(kMostDepth < kOpen);
  std::vector<uint16_t> height(out_.values_.size(), kNew);
  struct Step {
    PickleId id;
    size_t next;
    uint32_t tallest;
  };
  std::vector<Step> path = {{out_.root_, 0, 0}};
  height[out_.root_] = kOpen;
  while (!path.empty()) {
    Step& step = path.back();
    const PickleValue& value = out_.values_[step.id];
    at_ = value.offset();
    const std::span<const PickleId> items = value.items();
    if (step.next == items.size()) {
      const uint32_t tall = step.tallest + 1;
      height[step.id] = static_cast<uint16_t>(tall);
      path.pop_back();
      if (!path.empty()) path.back().tallest = std::max(path.back().tallest, tall);
      continue;
    }
    const PickleId item = items[step.next++];
    if (const uint32_t known = out_.values_[item].height_; known != 0) {
      step.tallest = std::max(step.tallest, known);  // most values; they need no visit of their own
    } else if (height[item] == kOpen) {
      Fail(fmt::format("{} contains itself", out_.Describe(item)), Finding::kLimit);
    } else if (height[item] == kNew) {
      height[item] = kOpen;
      path.push_back({item, 0, 0});
    } else {
      step.tallest = std::max<uint32_t>(step.tallest, height[item]);
    }
    if (path.size() + path.back().tallest > kMostDepth) {
      Fail(fmt::format("values are nested deeper than {}", kMostDepth), Finding::kLimit);
    }
  }
}

void PickleMachine::Charge(uint64_t bytes) {
  charged_ += bytes;
  const uint64_t stream = reader_.offset() - begin_ + reader_.remaining();
  if (charged_ > kMostRepetition * stream + kFreeRepetition) {
    Fail("the pickle repeats itself out of proportion to its size", Finding::kLimit);
  }
}

void PickleMachine::Fail(const std::string& message, Finding finding) const {
  Error error(finding, message);
  throw error.At(at_);
}

PickleId PickleMachine::New(PickleKind kind) {
  if (out_.values_.size() >= kMostValues) {
    Fail(fmt::format("more than {} values", kMostValues), Finding::kLimit);
  }
  PickleValue& value = out_.values_.emplace_back();
  value.kind_ = kind;
  value.offset_ = at_ & ((uint64_t{1} << 48) - 1);
  value.height_ = value.IsContainer() ? 0 : 1;
  return static_cast<PickleId>(out_.values_.size() - 1);
}

PickleId PickleMachine::Push(PickleKind kind) {
  const PickleId id = kind == PickleKind::kNone ? kPickleNone : New(kind);
  stack_.push_back(id);
  return id;
}

PickleId PickleMachine::Top(std::string_view what) {
  const size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() <= floor) Fail(fmt::format("{} finds nothing on the stack", what));
  return stack_.back();
}

PickleId PickleMachine::Pop(std::string_view what) {
  const PickleId id = Top(what);
  stack_.pop_back();
  return id;
}

std::span<const PickleId> PickleMachine::PopMark() {
  if (marks_.empty()) Fail("no MARK on the stack");
  const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  popped_.assign(from, stack_.end());
  stack_.erase(from, stack_.end());
  marks_.pop_back();
  return popped_;
}

void PickleMachine::PushInt(PickleKind kind, int64_t integer) {
  const std::span<PickleId> known =
      kind == PickleKind::kBool ? std::span<PickleId>(bools_) : std::span<PickleId>(small_ints_);
  if (integer < 0 || static_cast<uint64_t>(integer) >= known.size()) {
    out_.values_[Push(kind)].content_.integer = integer;
    return;
  }
  PickleId& id = known[static_cast<size_t>(integer)];
  if (id == kPickleNone) {
    id = New(kind);
    out_.values_[id].content_.integer = integer;
  }
  stack_.push_back(id);
}

void PickleMachine::PushItems(PickleKind kind, std::span<const PickleId> items) {
  if (kind == PickleKind::kTuple && items.empty()) {
    if (empty_tuple_ == kPickleNone) {
      empty_tuple_ = New(kind);
      out_.values_[empty_tuple_].height_ = 1;
    }
    stack_.push_back(empty_tuple_);
    return;
  }
  PickleValue& value = out_.values_[Push(kind)];
  if (kind != PickleKind::kTuple && kind != PickleKind::kStorage) return AddTo(value, items);
  value.content_.items = out_.items_.Take(items.size());  // nothing is ever added
  value.size_ = items.size();
  std::copy(items.begin(), items.end(), value.content_.items);
  uint32_t height = 1;
  for (const PickleId item : items) {
    const uint32_t below = out_.values_[item].height_;
    if (below == 0 || below >= kMostKnownHeight) return;
    height = std::max(height, below + 1);
  }
  value.height_ = height & kMostKnownHeight;
}

void PickleMachine::AddTo(PickleValue& value, std::span<const PickleId> items) {
  const uint64_t size = value.size_ + items.size();
  if (items.empty()) return;
  if (value.size_ == 0 || std::bit_ceil(value.size_) < size) {
    PickleId* const room = out_.items_.Take(std::bit_ceil(size));
    std::copy_n(value.content_.items, value.size_, room);
    value.content_.items = room;
  }
  std::copy(items.begin(), items.end(), value.content_.items + value.size_);
  value.size_ = size;
}

}  // namespace kv
