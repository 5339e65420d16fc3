// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads plans event by event with a streaming parser, and checks them against a cache.
#include "formats/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "formats/json_fields.h"
#include "lib/core/base/error.h"
#include "lib/core/base/json.h"
#include "lib/core/base/number.h"

namespace kv {

namespace {

using nlohmann::json;
using Kind = json::parse_event_t;

constexpr uint64_t kMostPositions = uint64_t{1} << 31, kMostLayers = 65536, kMostHeads = 65536;

uint64_t Count(const json& object, const char* key, uint64_t below) {
  const auto found = object.find(key);
  if (found == object.end()) throw Error(Finding::kBadField, "'{}' is missing", key);
  if (found->is_number_unsigned() && found->get<uint64_t>() < below) return found->get<uint64_t>();
  throw Error(Finding::kBadField, "'{}' is {}, expected a count below {}", key, ShowJson(*found),
              below);
}

KeepPlan Ranges(const json& event) {
  const auto kept = event.find("kept");
  if (kept == event.end() || !kept->is_array()) {
    throw Error(Finding::kBadField, "'kept' is not a list of ranges");
  }
  KeepPlan ranges;
  for (const json& range : *kept) {
    const bool is_pair =
        range.is_array() && range.size() == 2 &&
        std::all_of(range.begin(), range.end(), [](const json& number) {
          return number.is_number_unsigned() && number.get<uint64_t>() < kMostPositions;
        });
    if (!is_pair) {
      throw Error(Finding::kBadField, "'kept' has {}, expected [begin, count]", ShowJson(range));
    }
    ranges.push_back({range[0].get<uint32_t>(), range[1].get<uint32_t>()});
  }
  return ranges;
}

PlanEvent ParseEvent(const json& object) {
  PlanEvent event;
  event.token = Count(object, "token", kMostPositions);
  event.layer = static_cast<uint32_t>(Count(object, "layer", kMostLayers));
  const auto head = object.find("kv_head");
  if (head == object.end()) throw Error(Finding::kBadField, "'kv_head' is missing");
  if (!head->is_null()) event.kv_head = static_cast<uint32_t>(Count(object, "kv_head", kMostHeads));
  event.kept = Ranges(object);
  if (object.contains("length_before")) {
    event.length_before = Count(object, "length_before", kMostPositions);
  }
  return event;
}

void RequireWord(const json& document, const char* key, std::string_view word, Finding finding) {
  const auto found = document.find(key);
  if (found != document.end() && *found == word) return;
  throw Error(finding, fmt::format("\"{}\" is {}, expected \"{}\"", key,
                                   found == document.end() ? "missing" : ShowJson(*found), word));
}

PlanHeader ParsePlanHeader(const json& document) {
  RequireWord(document, "schema", "kvtool.h2o-plan/1", Finding::kBadVersion);
  RequireWord(document, "unit", "position", Finding::kBadField);
  RequireWord(document, "applied", "before the next token", Finding::kBadField);
  PlanHeader header{WordField(document, "engine"),
                    WordField(document, "schedule"),
                    WordField(document, "policy"),
                    {},
                    {},
                    0};
  const auto source = document.find("source");
  if (source == document.end() || !source->is_object()) {
    throw Error(Finding::kMissingRecord, "\"source\" is missing");
  }
  header.source_file = WordField(*source, "file");
  header.source_xxh3 = WordField(*source, "xxh3");
  header.source_bytes = Count(*source, "bytes", UINT64_MAX);
  return header;
}

constexpr std::string_view kHeaderWords[] = {"schema", "unit",     "applied",
                                             "engine", "schedule", "policy"};
constexpr std::string_view kSourceWords[] = {"file", "xxh3", "bytes"};
constexpr std::string_view kEventFields[] = {"token", "layer", "kv_head", "kept", "length_before"};

bool IsAmong(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Passes each event on when it ends and keeps none. Objects that are not part of a plan are not
// built, because the parser walks all children of a parent whenever an object in it ends.
class EventReader {
 public:
  explicit EventReader(const std::function<void(uint64_t, const PlanEvent&)>& on_event)
      : on_event_(on_event) {}

  bool found() const { return found_; }

  bool operator()(int depth, Kind kind, json& value) {
    if (static_cast<size_t>(depth) > kDeepestJson) {
      throw Error(Finding::kLimit, "JSON nests deeper than {} levels", kDeepestJson);
    }
    switch (kind) {
      case Kind::key:
        return TakesKey(depth, value.get_ref<const std::string&>());
      case Kind::object_start:
      case Kind::array_start:
        return Takes(depth, kind == Kind::object_start);
      case Kind::value:
        if (depth == kElement && section_ == Section::kEvents) Refuse("is not an object");
        return true;
      case Kind::array_end:
        if (depth == kTop && section_ == Section::kEvents) found_ = true;
        return true;
      case Kind::object_end:
        if (depth != kElement || section_ != Section::kEvents) return true;
        HandOn(value);
        return false;
    }
    return true;
  }

 private:
  enum class Section { kUnknown, kWord, kSource, kEvents };
  // Depths in the document: its fields, its list elements, fields of an event, ranges.
  static constexpr int kTop = 1, kElement = 2, kField = 3, kRange = 4;

  [[noreturn]] void Refuse(std::string message) const {
    throw Error(Finding::kBadField, std::move(message)).In("event {}", number_);
  }

  bool TakesKey(int depth, const std::string& key) {
    if (depth == kTop) {
      section_ = key == "events"              ? Section::kEvents
                 : key == "source"            ? Section::kSource
                 : IsAmong(kHeaderWords, key) ? Section::kWord
                                              : Section::kUnknown;
      return section_ != Section::kUnknown;
    }
    if (depth == kField && section_ == Section::kEvents) {
      field_ = key;
      is_field_ = IsAmong(kEventFields, key);
      return is_field_;
    }
    return depth == kElement && section_ == Section::kSource && IsAmong(kSourceWords, key);
  }

  // Returns true if an object or a list that begins is part of a plan.
  bool Takes(int depth, bool is_object) const {
    if (depth == 0) return is_object;
    if (section_ == Section::kSource) return depth == kTop && is_object;
    if (section_ != Section::kEvents) return false;
    if (depth == kTop) return !is_object;
    if (depth == kElement) {
      if (!is_object) Refuse("is not an object");
      return true;
    }
    if (!is_field_) return false;
    if (field_ != "kept") Refuse(fmt::format("'{}' is not a number", field_));
    if (is_object || depth > kRange) Refuse("'kept' is not a list of ranges [begin, count]");
    return true;
  }

  void HandOn(const json& object) {
    try {
      on_event_(number_, ParseEvent(object));
    } catch (Error& error) {
      throw error.In("event {}", number_);
    }
    ++number_;
  }

  const std::function<void(uint64_t, const PlanEvent&)>& on_event_;
  Section section_ = Section::kUnknown;
  std::string field_;
  bool is_field_ = false, found_ = false;
  uint64_t number_ = 0;
};

}  // namespace

PlanHeader ReadPlan(const FileSource& file,
                    const std::function<void(uint64_t number, const PlanEvent& event)>& on_event) {
  try {
    EventReader reader(on_event);
    const std::string_view text = AsText(file.bytes());
    const CLocale locale;  // as in ReadJson
    const json document = json::parse(text.begin(), text.end(), std::ref(reader));
    if (!document.is_object()) throw Error(Finding::kBadText, "is not a JSON object");
    const PlanHeader header = ParsePlanHeader(document);
    if (!reader.found()) throw Error(Finding::kMissingRecord, "\"events\" is not a list of events");
    return header;
  } catch (const json::parse_error& error) {
    throw Error(Finding::kBadText, "is not JSON").At(error.byte).File(file.name());
  } catch (const json::exception&) {
    throw Error(Finding::kBadText, "holds a number that JSON readers do not accept")
        .File(file.name());
  } catch (Error& error) {
    throw error.File(file.name());
  }
}

namespace {

// Returns the first position of `kept` that is not in `held`. Ranges of both ascend; positions from
// `next` on are held.
std::optional<uint64_t> FirstNotHeld(const KeepPlan& kept, const KeepPlan& held, uint64_t next) {
  auto at = held.begin();
  for (const KeepRange& range : kept) {
    uint64_t position = range.begin;
    while (position < std::min<uint64_t>(range.end(), next)) {
      while (at != held.end() && at->end() <= position) ++at;
      if (at == held.end() || at->begin > position) return position;
      position = at->end();
    }
  }
  return std::nullopt;
}

std::optional<std::string> WrongRanges(const KeepPlan& kept, uint64_t token) {
  uint64_t end = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    const KeepRange& range = kept[i];
    const std::string name =
        fmt::format("range {} of 'kept', [{}, {}],", i, range.begin, range.count);
    if (range.count == 0) return name + " is empty";
    if (range.begin < end) return name + " does not come after the one before";
    end = uint64_t{range.begin} + range.count;
    if (end > token + 1) {
      return name + fmt::format(" keeps position {}, after the event's token {}", end - 1, token);
    }
  }
  return std::nullopt;
}

uint64_t LayerBytes(const LayerKv& layer) { return layer.row_bytes() * layer.k.tokens(); }

}  // namespace

EvictionPlanWalk::EvictionPlanWalk(const Snapshot& snapshot) {
  for (const LayerKv& layer : snapshot.layers) {
    KV_ASSERT(layer.k.heads_known);
    State& state = layers_[layer.index];
    state.layer = &layer;
    state.units.resize(layer.k.heads);
    full_bytes_ += LayerBytes(layer);
  }
}

std::optional<std::string> EvictionPlanWalk::Apply(const PlanEvent& event) {
  const auto found = layers_.find(event.layer);
  if (found == layers_.end()) return "the snapshot has no such layer";
  State& state = found->second;
  if (auto wrong = WrongWith(event, state)) return wrong;
  state.by_head = event.kv_head.has_value();
  last_token_ = event.token;
  for (uint32_t head = 0; head < state.units.size(); ++head) {
    if (event.kv_head && *event.kv_head != head) continue;
    Unit& unit = state.units[head];
    unit.held.clear();
    for (const KeepRange& range : event.kept) Append(unit.held, range);
    unit.next = event.token + 1;
    ++unit.events;
    const uint64_t words[] = {event.token, unit.held.size()};
    unit.history.Update(std::as_bytes(std::span(words)));
    unit.history.Update(std::as_bytes(std::span(unit.held)));
  }
  return std::nullopt;
}

std::optional<std::string> EvictionPlanWalk::WrongWith(const PlanEvent& event,
                                                       const State& state) const {
  if (event.kv_head && *event.kv_head >= state.units.size()) {
    return fmt::format("the layer has {} kv heads", state.units.size());
  }
  if (state.by_head && *state.by_head != event.kv_head.has_value()) {
    return "some events of the layer name kv heads and others do not";
  }
  const uint64_t tokens = state.layer->k.tokens();
  if (event.token >= tokens) return fmt::format("the layer has {} tokens", tokens);
  if (event.token < last_token_) {
    return fmt::format("comes after an event at token {}: not in order of time", last_token_);
  }
  const Unit& unit = state.units[event.kv_head.value_or(0)];
  if (unit.events > 0 && event.token + 1 == unit.next) {
    return "is the second event of this layer and head at this token";
  }
  if (auto wrong = WrongRanges(event.kept, event.token)) return wrong;
  if (const auto gone = FirstNotHeld(event.kept, unit.held, unit.next)) {
    return fmt::format("keeps position {}, which was evicted before", *gone);
  }
  const uint64_t length = KeptTokens(unit.held) + event.token + 1 - unit.next;
  if (event.length_before && *event.length_before != length) {
    return fmt::format("'length_before' is {}, but {} tokens are held", *event.length_before,
                       length);
  }
  return std::nullopt;
}

std::vector<EvictionPlanWalk::Layer> EvictionPlanWalk::Layers() const {
  std::vector<Layer> layers;
  for (const auto& [index, state] : layers_) {
    Layer layer{index, state.by_head.value_or(false), 0, {}};
    for (const Unit& unit : state.units) {
      layer.events = std::max(layer.events, unit.events);
      layer.kept.push_back(state.layer->k.tokens() - unit.next + KeptTokens(unit.held));
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

double EvictionPlanWalk::kept_bytes() const {
  double bytes = 0;
  for (const Layer& layer : Layers()) {
    const State& state = layers_.at(layer.layer);
    uint64_t held = 0;
    for (const uint64_t tokens : layer.kept) held += tokens;
    const auto all = static_cast<double>(state.layer->k.tokens() * layer.kept.size());
    bytes += static_cast<double>(LayerBytes(*state.layer)) * static_cast<double>(held) / all;
  }
  return bytes;
}

bool EvictionPlanWalk::is_common() const {
  std::optional<std::pair<uint64_t, uint64_t>> first;
  for (const auto& [index, state] : layers_) {
    for (const Unit& unit : state.units) {
      const std::pair<uint64_t, uint64_t> history = {unit.events, unit.history.Digest()};
      if (!first) first = history;
      if (history != *first) return false;
    }
  }
  return true;
}

}  // namespace kv
