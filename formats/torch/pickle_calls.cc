// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
//
// What a pickle would import, call and set up, kept as data.
#include <fmt/format.h>

#include <algorithm>

#include "formats/torch/pickle_machine.h"
#include "formats/torch/pickle_text.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/utf8.h"

namespace kv {
namespace {

constexpr size_t kContent = 2;  // of an object's items: its own list or dict
constexpr size_t kAhead = 32;   // keys and values between asking for a key's slot and using it

}  // namespace

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
    case 0x92: {  // NEWOBJ_EX: keyword arguments are kept as a state
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
        Fail(fmt::format("persistent id is {}, expected a tuple", out_.Describe(id)));
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
    Fail(fmt::format("the pickle refers to {}.{}, which no data needs", Escaped(module),
                     Escaped(name)),
         Finding::kForbiddenGlobal);
  }
  PushOwned(PickleKind::kGlobal, fmt::format("{}.{}", module, name));
}

void PickleMachine::Reduce(PickleId callable, PickleId arguments) {
  const PickleKind kind = out_.values_[callable].kind();
  if (kind != PickleKind::kGlobal && kind != PickleKind::kObject) {
    Fail(fmt::format("{} is called", out_.Describe(callable)));
  }
  if (out_.values_[arguments].kind() != PickleKind::kTuple) {
    Fail(fmt::format("arguments are {}, expected a tuple", out_.Describe(arguments)));
  }
  if (kind == PickleKind::kGlobal && ReduceKnown(out_.values_[callable].text(), arguments)) return;
  const PickleId items[] = {callable, arguments, kPickleNone};
  PushItems(PickleKind::kObject, items);
}

// Calls whose meaning is plain data. False leaves the call to be kept as a node.
bool PickleMachine::ReduceKnown(std::string_view global, PickleId arguments) {
  const PickleValue& tuple = out_.values_[arguments];
  const std::span<const PickleId> given = tuple.items();
  if (global == "collections.OrderedDict" || global == "collections.defaultdict" ||
      global == "collections.Counter" || global == "builtins.dict" ||
      global == "__builtin__.dict") {
    // defaultdict has a factory first; a list of pairs or a dict may follow.
    const size_t first = global == "collections.defaultdict" ? 1 : 0;
    const PickleId dict = Push(PickleKind::kDict);
    if (given.size() <= first) return true;
    const PickleValue& source = out_.values_[given[first]];
    Charge(source.items().size() * sizeof(PickleId));
    std::vector<PickleId> items(source.items().begin(), source.items().end());
    if (source.kind() == PickleKind::kList || source.kind() == PickleKind::kTuple) {
      items.clear();
      for (const PickleId pair : source.items()) {
        const std::span<const PickleId> halves = out_.values_[pair].items();
        if (halves.size() != 2) Fail(fmt::format("{} is given no pairs", global));
        items.insert(items.end(), halves.begin(), halves.end());
      }
    } else if (source.kind() != PickleKind::kDict) {
      Fail(fmt::format("{} is given {}", global, out_.Describe(given[first])));
    }
    SetItems(dict, items);
    return true;
  }
  if (global == "builtins.set" || global == "__builtin__.set" || global == "builtins.frozenset" ||
      global == "__builtin__.frozenset") {
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
  if (value.kind() == PickleKind::kDict) return;  // attributes of an OrderedDict: _metadata
  if (value.kind() != PickleKind::kObject) {
    Fail(fmt::format("BUILD gives a state to {}", out_.Describe(target)));
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
    Fail(fmt::format("items are appended to {}", out_.Describe(target)));
  }
  AddTo(value, items);
}

void PickleMachine::AddItems(PickleId target, std::span<const PickleId> items) {
  PickleValue& value = out_.values_[target];
  if (value.kind() != PickleKind::kSet) {
    Fail(fmt::format("items are added to {}", out_.Describe(target)));
  }
  AddTo(value, items);
}

void PickleMachine::SetItems(PickleId target, std::span<const PickleId> items) {
  if (items.size() % 2 != 0) Fail("a dict is given a key without a value");
  if (out_.values_[target].kind() == PickleKind::kObject)
    target = Content(target, PickleKind::kDict);
  PickleValue& into = out_.values_[target];
  if (into.kind() != PickleKind::kDict) {
    Fail(fmt::format("keys are set in {}", out_.Describe(target)));
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
  if (into.size_ >= UINT32_MAX) Fail("a dict has too many keys", Finding::kLimit);
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
