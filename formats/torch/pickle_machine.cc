// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The stack machine: its loop and its stack, and the imports, calls and states of a pickle, kept as
// data.
#include <fmt/format.h>

#include <bit>
#include <cstdint>

#include "formats/format.h"
#include "formats/torch/pickle.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"

namespace kv {
namespace {

constexpr size_t kMostValues = 50'000'000;
constexpr uint32_t kMostKnownHeight = 0xff;  // largest height that a value stores
constexpr uint32_t kMostDepth = 1000;
constexpr uint8_t kNewestProtocol = 5;
// limit of repeated work: bytes per byte of the stream, and bytes that are free
constexpr uint64_t kMostRepetition = 16, kFreeRepetition = 1 << 20;

constexpr uint8_t kProto = 0x80, kStop = '.', kFrame = 0x95;

// Opcodes that run code by design or need data that no file has.
struct Refused {
  uint8_t opcode;
  std::string_view name;
};
constexpr Refused kRefused[] = {
    {'i', "INST"},  {'o', "OBJ"},    {0x82, "EXT1"},        {0x83, "EXT2"},
    {0x84, "EXT4"}, {'P', "PERSID"}, {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"},
};

constexpr std::string_view kDicts[] = {"collections.OrderedDict", "collections.defaultdict",
                                       "collections.Counter", "builtins.dict", "__builtin__.dict"};
constexpr std::string_view kSets[] = {"builtins.set", "__builtin__.set", "builtins.frozenset",
                                      "__builtin__.frozenset"};

constexpr size_t kContent = 2;  // the contained list or dict has this index in an object's items
// number of keys and values between prefetching a key's slot and using it
constexpr size_t kAhead = 32;

// Converts UTF-8 to Latin-1; nothing if a character is outside it or the text is not UTF-8.
std::optional<std::string> Latin1FromUtf8(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      out += text[i];
      continue;
    }
    // Two bytes reach up to U+00FF: 1100001x 10xxxxxx.
    if ((byte != 0xc2 && byte != 0xc3) || i + 1 == text.size()) return std::nullopt;
    const auto next = static_cast<unsigned char>(text[++i]);
    if ((next & 0xc0) != 0x80) return std::nullopt;
    out += static_cast<char>((byte & 3) << 6 | (next & 0x3f));
  }
  return out;
}

}  // namespace

Pickle ReadPickle(ByteSpan stream, uint64_t base) {
  Pickle pickle;
  PickleMachine(stream, base, pickle).Run();
  return pickle;
}

void PickleMachine::Run() {
  for (bool first = true;; first = false) {
    at_ = reader_.offset();
    const uint8_t opcode = reader_.U8("pickle opcode");
    if (opcode == kStop) break;
    if (opcode == kProto) {
      const uint8_t protocol = reader_.U8("pickle protocol");
      if (protocol > kNewestProtocol) {
        FailAs(Finding::kBadVersion, "pickle protocol {}, at most 5 exists", protocol);
      }
      continue;
    }
    if (opcode == kFrame) {
      const uint64_t size = reader_.U64("FRAME");
      if (size > reader_.remaining()) {
        FailAs(Finding::kTruncated, "FRAME of {} bytes, {} left", size, reader_.remaining());
      }
      continue;
    }
    if (RunGrouped(opcode)) continue;
    for (const Refused& refused : kRefused) {
      if (refused.opcode == opcode) {
        FailAs(Finding::kForbiddenOpcode, "opcode {} is refused: it can run code", refused.name);
      }
    }
    if (first) Fail("no pickle begins with byte {:#04x}", opcode);
    Fail("unknown pickle opcode {:#04x}", opcode);
  }
  if (!marks_.empty() || stack_.size() != 1) {
    Fail("STOP with {} values on the stack, expected 1", stack_.size());
  }
  out_.root_ = stack_.back();
  out_.length_ = reader_.offset() - begin_;
  CheckShape();
}

// Runs an opcode in its group, which is learned when the opcode first occurs: a file of a million
// tensors has thirty million opcodes.
bool PickleMachine::RunGrouped(uint8_t opcode) {
  constexpr Group kGroups[] = {&PickleMachine::Memo, &PickleMachine::Scalar, &PickleMachine::Make,
                               &PickleMachine::Fill, &PickleMachine::Text,   &PickleMachine::Stack,
                               &PickleMachine::Call};
  Group& known = group_of_[opcode];
  if (known != nullptr) return (this->*known)(opcode);
  for (const Group group : kGroups) {
    if (!(this->*group)(opcode)) continue;
    known = group;
    return true;
  }
  return false;
}

// Checks that no value contains itself and that none is nested too deeply; code that walks the
// values later relies on it. Shared values are visited once.
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
      step.tallest = std::max(step.tallest, known);  // most values store their height
    } else if (height[item] == kOpen) {
      FailAs(Finding::kLimit, "{} contains itself", out_.Describe(item));
    } else if (height[item] == kNew) {
      height[item] = kOpen;
      path.push_back({item, 0, 0});
    } else {
      step.tallest = std::max<uint32_t>(step.tallest, height[item]);
    }
    if (path.size() + path.back().tallest > kMostDepth) {
      FailAs(Finding::kLimit, "values are nested deeper than {}", kMostDepth);
    }
  }
}

void PickleMachine::Charge(uint64_t bytes) {
  charged_ += bytes;
  const uint64_t stream = reader_.offset() - begin_ + reader_.remaining();
  if (charged_ > kMostRepetition * stream + kFreeRepetition) {
    FailAs(Finding::kLimit, "the pickle repeats itself out of proportion to its size");
  }
}

PickleId PickleMachine::New(PickleKind kind) {
  if (out_.values_.size() >= kMostValues) {
    FailAs(Finding::kLimit, "more than {} values", kMostValues);
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
  if (stack_.size() <= floor) Fail("{} finds nothing on the stack", what);
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
  value.content_.items = out_.items_.Take(items.size());  // the value is complete
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

bool PickleMachine::Call(uint8_t opcode) {
  switch (opcode) {
    case 'c': {  // GLOBAL
      const std::string_view module = Line("GLOBAL module");
      PushGlobal(module, Line("GLOBAL name"));
      return true;
    }
    case 0x93: {  // STACK_GLOBAL
      const PickleValue& name = out_.values_[Pop("STACK_GLOBAL")];
      const PickleValue& module = out_.values_[Pop("STACK_GLOBAL")];
      if (name.kind() != PickleKind::kText || module.kind() != PickleKind::kText) {
        Fail("STACK_GLOBAL without two texts");
      }
      PushGlobal(module.text(), name.text());
      return true;
    }
    case 'R':     // REDUCE
    case 0x81: {  // NEWOBJ
      const PickleId arguments = Pop("arguments");
      Reduce(Pop("callable"), arguments);
      return true;
    }
    case 0x92: {  // NEWOBJ_EX: its keyword arguments are kept as a state
      const PickleId keywords = Pop("keyword arguments");
      const PickleId arguments = Pop("arguments");
      Reduce(Pop("callable"), arguments);
      PickleValue& made = out_.values_[stack_.back()];
      if (made.kind() == PickleKind::kObject) AddTo(made, {&keywords, 1});
      return true;
    }
    case 'b': {  // BUILD
      const PickleId state = Pop("BUILD");
      Build(Top("BUILD"), state);
      return true;
    }
    case 'Q': {  // BINPERSID
      const PickleId id = Pop("BINPERSID");
      if (out_.values_[id].kind() != PickleKind::kTuple) {
        Fail("persistent id is {}, expected a tuple", out_.Describe(id));
      }
      PushItems(PickleKind::kStorage, {&id, 1});
      return true;
    }
    default:
      return false;
  }
}

void PickleMachine::PushGlobal(std::string_view module, std::string_view name) {
  if (module.empty() || name.empty()) Fail("GLOBAL without a name");
  if (!IsUtf8(module) || !IsUtf8(name)) Fail("the name of a GLOBAL is not UTF-8");
  Charge(module.size() + name.size());
  if (IsForbiddenGlobal(module, name)) {
    FailAs(Finding::kForbiddenGlobal, "the pickle refers to {}.{}, which data does not need",
           Escaped(module), Escaped(name));
  }
  PushOwned(PickleKind::kGlobal, fmt::format("{}.{}", module, name));
}

void PickleMachine::Reduce(PickleId callable, PickleId arguments) {
  const PickleKind kind = out_.values_[callable].kind();
  if (kind != PickleKind::kGlobal && kind != PickleKind::kObject) {
    Fail("{} is called, but is not a function", out_.Describe(callable));
  }
  if (out_.values_[arguments].kind() != PickleKind::kTuple) {
    Fail("arguments are {}, expected a tuple", out_.Describe(arguments));
  }
  if (kind == PickleKind::kGlobal && ReduceKnown(out_.values_[callable].text(), arguments)) return;
  const PickleId items[] = {callable, arguments, kPickleNone};
  PushItems(PickleKind::kObject, items);
}

// Makes a dict of another dict or of a list of pairs, which may follow the factory of a
// defaultdict.
void PickleMachine::PushDict(std::string_view global, std::span<const PickleId> given) {
  const size_t first = global == "collections.defaultdict" ? 1 : 0;
  const PickleId dict = Push(PickleKind::kDict);
  if (given.size() <= first) return;
  const PickleValue& source = out_.values_[given[first]];
  Charge(source.items().size() * sizeof(PickleId));
  std::vector<PickleId> items(source.items().begin(), source.items().end());
  if (source.kind() == PickleKind::kList || source.kind() == PickleKind::kTuple) {
    items.clear();
    for (const PickleId pair : source.items()) {
      const std::span<const PickleId> halves = out_.values_[pair].items();
      if (halves.size() != 2) Fail("the argument of {} is not a list of pairs", global);
      items.insert(items.end(), halves.begin(), halves.end());
    }
  } else if (source.kind() != PickleKind::kDict) {
    Fail("{} is given {}", global, out_.Describe(given[first]));
  }
  SetItems(dict, items);
}

// Executes calls whose meaning is plain data. Returns false if the call must be kept as a node.
bool PickleMachine::ReduceKnown(std::string_view global, PickleId arguments) {
  const std::span<const PickleId> given = out_.values_[arguments].items();
  if (Contains(kDicts, global)) {
    PushDict(global, given);
    return true;
  }
  if (Contains(kSets, global)) {
    const PickleId set = Push(PickleKind::kSet);
    if (given.empty()) return true;
    const std::span<const PickleId> items = out_.values_[given[0]].items();
    Charge(items.size() * sizeof(PickleId));
    AddTo(out_.values_[set], items);
    return true;
  }
  if (global == "_codecs.encode" && given.size() >= 2 &&
      out_.values_[given[0]].kind() == PickleKind::kText &&
      out_.values_[given[1]].text() == "latin1") {
    Charge(out_.values_[given[0]].text().size());
    std::optional<std::string> bytes = Latin1FromUtf8(out_.values_[given[0]].text());
    if (!bytes) Fail("_codecs.encode is given text outside latin1");
    PushOwned(PickleKind::kBytes, std::move(*bytes));
    return true;
  }
  return false;
}

void PickleMachine::Build(PickleId target, PickleId state) {
  PickleValue& value = out_.values_[target];
  if (value.kind() == PickleKind::kDict) return;  // the state of an OrderedDict, such as _metadata
  if (value.kind() != PickleKind::kObject) {
    Fail("BUILD gives a state to {}", out_.Describe(target));
  }
  AddTo(value, {&state, 1});
}

PickleId PickleMachine::Content(PickleId object, PickleKind kind) {
  PickleId content = out_.values_[object].items()[kContent];
  if (content == kPickleNone) {
    content = New(kind);
    out_.values_[object].content_.items[kContent] = content;
  }
  if (out_.values_[content].kind() != kind) Fail("an object is both a list and a dict");
  return content;
}

void PickleMachine::Append(PickleId target, std::span<const PickleId> items) {
  if (out_.values_[target].kind() == PickleKind::kObject)
    target = Content(target, PickleKind::kList);
  PickleValue& value = out_.values_[target];
  if (value.kind() != PickleKind::kList) {
    Fail("items are appended to {}", out_.Describe(target));
  }
  AddTo(value, items);
}

void PickleMachine::AddItems(PickleId target, std::span<const PickleId> items) {
  PickleValue& value = out_.values_[target];
  if (value.kind() != PickleKind::kSet) {
    Fail("items are added to {}", out_.Describe(target));
  }
  AddTo(value, items);
}

void PickleMachine::SetItems(PickleId target, std::span<const PickleId> items) {
  if (items.size() % 2 != 0) Fail("a dict is given a key without a value");
  if (out_.values_[target].kind() == PickleKind::kObject)
    target = Content(target, PickleKind::kDict);
  PickleValue& into = out_.values_[target];
  if (into.kind() != PickleKind::kDict) {
    Fail("keys are set in {}", out_.Describe(target));
  }
  for (size_t i = 0; i < items.size(); i += 2) {
    if (i + kAhead < items.size()) {
      if (const auto hash = HashOfKey(target, items[i + kAhead])) keys_.Ask(*hash);
    }
    if (!Replace(target, items[i], items[i + 1])) AddTo(into, items.subspan(i, 2));
  }
}

std::optional<uint32_t> PickleMachine::HashOfKey(PickleId dict, PickleId key) const {
  const PickleValue& wanted = out_.values_[key];
  if (wanted.kind() != PickleKind::kText && !wanted.IsInteger()) return std::nullopt;
  const uint64_t number = (uint64_t{dict} << 32) ^ static_cast<uint64_t>(wanted.integer());
  const uint64_t hash = Hash64(AsBytes(wanted.text())) ^ (number * 0x9e3779b97f4a7c15ull) >> 32;
  return static_cast<uint32_t>(hash & UINT32_MAX);
}

bool PickleMachine::Replace(PickleId dict, PickleId key, PickleId value) {
  const std::optional<uint32_t> hash = HashOfKey(dict, key);
  if (!hash) return false;
  const PickleValue &into = out_.values_[dict], &wanted = out_.values_[key];
  Charge(wanted.text().size());
  if (into.size_ >= UINT32_MAX) FailAs(Finding::kLimit, "a dict has too many keys");
  const auto same = [&](const PickleKeys::Slot& slot) {
    if (slot.dict != dict) return false;
    const PickleValue& other = out_.values_[into.items()[slot.place]];
    return other.IsText() == wanted.IsText() && other.integer() == wanted.integer() &&
           other.text() == wanted.text();
  };
  PickleKeys::Slot& slot = keys_.Find(*hash, same);
  if (slot.dict == kPickleNone) {
    keys_.Fill(slot, {*hash, dict, static_cast<uint32_t>(into.size_)});
    return false;
  }
  into.content_.items[slot.place + 1] = value;
  return true;
}

}  // namespace kv
