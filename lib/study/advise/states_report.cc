// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The sentences, tables and commands of the advice on saved states.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "lib/core/base/utf8.h"
#include "lib/study/advise/states.h"

namespace kv::advise {
namespace {

using StateKind = StatesAdvice::Kind;

std::string_view KinshipName(Kinship kinship) {
  constexpr std::string_view kNames[] = {"alone",     "branches", "grows",
                                         "contained", "same",     "alike"};
  return kNames[static_cast<size_t>(kinship)];
}

std::string_view KindName(StateKind kind) {
  return kind == StateKind::kStore ? "store" : kind == StateKind::kCompress ? "compress" : "keep";
}

std::string AsSpeed(const Value& value) {
  return fmt::format("{:.0f} MiB/s", value.number() * 1e6 / (1 << 20));
}
std::string AsName(const Value& value) { return Printable(format::Plain(value), true); }
// Returns the day of a time.
std::string AsDay(const Value& value) { return format::Plain(value).substr(0, 10); }

std::optional<std::string> TimeText(std::optional<int64_t> seconds) {
  return seconds ? std::optional(format::Time(*seconds)) : std::nullopt;
}

std::string SharesText(const SavedState& of) {
  switch (of.kinship) {
    case Kinship::kAlone:
      return of.is_archive ? "(archive)" : "-";
    case Kinship::kBranches:
      return fmt::format("first {} token{} of {}", of.shared_tokens, PluralEnding(of.shared_tokens),
                         Printable(of.kin, true));
    case Kinship::kGrows:
      return fmt::format("first {} token{}: all of {}", of.shared_tokens,
                         PluralEnding(of.shared_tokens), Printable(of.kin, true));
    case Kinship::kContained:
      return fmt::format("all, in {}", Printable(of.kin, true));
    case Kinship::kSame:
      return fmt::format("all, same as {}", Printable(of.kin, true));
    case Kinship::kAlike:
      return fmt::format("{} tokens as {}, but other bytes", of.shared_tokens,
                         Printable(of.kin, true));
  }
  return {};
}

const Fields<StatesLevel>& StatesLevelFields() {
  using L = StatesLevel;
  static const Fields<L> fields = {
      {"level", "Level of compression", &L::level, Heading("level")},
      {"ratio", "Bytes of the sample / bytes that the level makes of it", &L::ratio,
       AtLeast(0, Heading("ratio", format::AsFactor))},
      {"encode_mb_per_s",
       "Encoding speed of the codec on one thread, in MB (1e6 bytes); null: a deterministic run",
       &L::encode_mb_per_s, AtLeast(0, Heading("compresses", AsSpeed))},
      {"decode_mb_per_s", "Decoding speed of the codec, as encode_mb_per_s", &L::decode_mb_per_s,
       AtLeast(0, Heading("restores", AsSpeed))},
      {"alone_bytes", "Estimated bytes of all states, each compressed alone", &L::alone_bytes,
       Heading("each alone", format::AsBytes)},
      {"store_bytes", "Estimated bytes of all states in one store, which keeps common rows once",
       &L::store_bytes, Heading("in one store", format::AsBytes)}};
  return fields;
}

const Fields<LeftOut>& LeftOutFields() {
  static const Fields<LeftOut> fields = {
      {"name", "Name of the skipped file or folder", &LeftOut::name},
      {"why", "Reason for leaving the file out", &LeftOut::why}};
  return fields;
}

const Fields<StatesAdvice>& SampleFields() {
  using A = StatesAdvice;
  static const Fields<A> fields = {
      {"states", "Number of states that chunks were taken from", &A::sampled_states},
      {"chunks", "Number of chunks, from the middle of a first, middle and last layer",
       &A::sampled_chunks},
      {"bytes", "Bytes of the chunks in the sample", &A::sampled_bytes}};
  return fields;
}

const Fields<StatesAdvice>& RecommendationFields() {
  using A = StatesAdvice;
  static const Fields<A> fields = {
      {"kind", "store: in one store; compress: each as an archive; keep: as they are",
       [](const A& of) { return KindName(of.kind); }, OneOf("store", "compress", "keep")},
      {"bytes", "Estimated bytes of the states after the action", &A::result_bytes},
      {"command",
       "Command for the action; null: nothing to do, or no single command can name the states",
       IfAny(&A::command)},
      {"verify_command",
       "Command that verifies the results of `command`, before the originals are deleted; null: no "
       "such command",
       IfAny(&A::verify_command)},
      {"delete_command",
       "Command that deletes the originals, once the other two ended without an error; null: too "
       "many to name",
       IfAny(&A::delete_command)},
      {"free_bytes", "Bytes free where the command writes; null: unknown, or a deterministic run",
       &A::free_bytes}};
  return fields;
}

const StatesAdvice& WholeAdvice(const StatesAdvice& of) { return of; }

std::string LeftOutText(const std::vector<LeftOut>& left_out, size_t most) {
  std::string text = fmt::format("left out {}: ", format::Plural(left_out.size(), "file"));
  for (size_t i = 0; i < std::min(left_out.size(), most); ++i)
    text += fmt::format("{}{} ({})", i == 0 ? "" : ", ", Printable(left_out[i].name, true),
                        left_out[i].why);
  if (left_out.size() > most)
    text += fmt::format(" and {} more, which -v lists", left_out.size() - most);
  return text;
}

template <typename Is>
std::string NamesText(const std::vector<SavedState>& states, const Is& is) {
  constexpr size_t kMostNamed = 2;
  std::string text;
  size_t named = 0, all = 0;
  for (const SavedState& state : states) {
    if (!std::invoke(is, state) || ++all > kMostNamed) continue;
    text += (named++ == 0 ? "" : ", ") + Printable(state.name, true);
  }
  return all > kMostNamed ? text + ", ..." : text;
}

std::vector<std::string> StatesFacts(const StatesAdvice& of, size_t most_left_out) {
  std::vector<std::string> facts;
  const uint64_t all = of.bytes(), shared = of.shared_bytes();
  if (of.states.size() > 1)
    facts.push_back(fmt::format(
        "shared: {} ({}) of K and V, in common beginnings of states (one head of a late layer was "
        "compared)",
        format::Bytes(shared),
        format::Percent(all == 0 ? 0 : static_cast<double>(shared) / static_cast<double>(all))));
  if (of.contained_states() > 0) {
    facts.push_back(fmt::format(
        "contained in others: {} ({}): {}", format::Plural(of.contained_states(), "state"),
        format::Bytes(of.contained_bytes()), NamesText(of.states, &SavedState::contained)));
  }
  if (of.alike_states() > 0) {
    facts.push_back(fmt::format(
        "not the same: {}, equal to another in the one head that was compared, but with other "
        "bytes ('kvtool diff'): {}",
        format::Plural(of.alike_states(), "state"),
        NamesText(of.states, [](const SavedState& a) { return a.kinship == Kinship::kAlike; })));
  }
  if (of.near_states() > 0) {
    facts.push_back(fmt::format("near duplicates (nine of ten tokens in common): {}",
                                format::Plural(of.near_states(), "state")));
  }
  if (of.recomputed_states() > 0) {
    facts.push_back(
        fmt::format("computed again: {} begin with the tokens of another, but with other values",
                    format::Plural(of.recomputed_states(), "state")));
  }
  if (of.knows_time) {
    facts.push_back(fmt::format(
        "untouched for {} ({}): {} ({}){}", format::Plural(of.idle_days, "day"), of.access_times,
        format::Plural(of.idle_states(), "state"), format::Bytes(of.idle_bytes()),
        of.idle_states() > 0 ? ": " + NamesText(of.states, &SavedState::idle) : std::string()));
  }
  if (!of.left_out.empty()) facts.push_back(LeftOutText(of.left_out, most_left_out));
  return facts;
}

// The originals stay until the result is verified, so the result needs space beside them.
std::string RoomText(const StatesAdvice& of) {
  if (!of.free_bytes) return "which must fit beside the originals";
  return fmt::format("which must fit beside the originals; {}{} free there",
                     *of.free_bytes < of.result_bytes ? "only " : "",
                     format::Bytes(*of.free_bytes));
}

std::string StatesAnswer(const StatesAdvice& of) {
  const std::string bytes = fmt::format("{} to about {}, {}", format::Bytes(of.bytes()),
                                        format::Bytes(of.result_bytes), RoomText(of));
  switch (of.kind) {
    case StateKind::kKeep:
      if (of.archive_bytes() == of.bytes())
        return "answer: decompress the archives first, to see what their states share";
      return "answer: keep the files: neither sharing nor lossless levels gain 3 %";
    case StateKind::kCompress:
      return fmt::format("answer: compress each, {}:", bytes);
    case StateKind::kStore:
      if (of.command.empty()) {
        return fmt::format("answer: put all into one store, each with its own --name, {}", bytes);
      }
      return fmt::format("answer: put all into one store, {}:", bytes);
  }
  return {};
}

std::string StatesHead(const StatesAdvice& of) {
  std::set<std::string> geometries;
  for (const SavedState& state : of.states) {
    if (!state.geometry.empty()) geometries.insert(state.geometry);
  }
  std::string head =
      fmt::format("{}, {}", format::Plural(of.states.size(), "state"), format::Bytes(of.bytes()));
  if (geometries.size() == 1) head += ", all of " + *geometries.begin();
  if (geometries.size() > 1)
    head += fmt::format(", of {} geometries, between which nothing is shared", geometries.size());
  if (of.archive_bytes() > 0)
    head +=
        fmt::format("; {} in archives, which are not examined", format::Bytes(of.archive_bytes()));
  return head;
}

const Fields<SavedState>& SavedStateFields() {
  using S = SavedState;
  static const Fields<S> fields = {
      {"name", "Name of the file or folder", &S::name, Heading("state", AsName)},
      {"bytes", "Bytes on the disk", &S::bytes, Heading("size", format::AsBytes)},
      {"tokens", "Tokens with a K and V", &S::tokens, Heading("tokens")},
      {"written", "Time of the last write, in UTC; null: unknown",
       [](const S& of) { return TimeText(of.written_s); }, Heading("written", AsDay)},
      {"read", "Time of the last read, if the file system records it, in UTC",
       [](const S& of) { return TimeText(of.read_s); }, Heading("read", AsDay)},
      {"format", "Format of the file", &S::format},
      {"model", "Model that the state names, or empty", &S::model},
      {"geometry", "Layers, channels and type of K, and that of V where it differs", &S::geometry},
      {"kv_bytes", "Bytes of K and V", &S::kv_bytes},
      {"kinship",
       "How its rows relate to those of the nearest state: alone: none in common; branches: a "
       "common beginning; grows: begins with all of it; contained: the nearest begins with all of "
       "it; same: equal byte for byte; alike: equal in one head, but not in all bytes",
       [](const S& of) { return KinshipName(of.kinship); },
       OneOf("alone", "branches", "grows", "contained", "same", "alike")},
      {"kin", "Name of the nearest state; null: none", IfAny(&S::kin)},
      {"shared_tokens", "Tokens of the common prefix with the nearest state", &S::shared_tokens},
      {"shared_bytes", "Bytes that a store need not hold again, because another state has them",
       [](const S& of) { return of.TokenBytes(of.stored_tokens); }},
      {"same_ids", "Most token ids shared with one other state, whatever the values; 0: unknown",
       &S::same_ids},
      {"contained",
       "Whether another state begins with all of its K, V and token ids, compared whole",
       &S::contained},
      {"idle", "Whether the state was neither written nor read for idle_days", &S::idle},
      {"relation", "How the state relates to the others, in words", SharesText, Heading("shares")}};
  return fields;
}

}  // namespace

const Fields<StatesAdvice>& StatesFields() {
  using A = StatesAdvice;
  static const Fields<A> params = {
      {"idle_days", "Days without a write or read after which a state is idle", &A::idle_days}};
  static const Fields<A> fields = {
      {"params", "Parameters of the run", WholeAdvice, params},
      {"bytes", "Bytes of all states", &A::bytes},
      {"states", "The states, the largest first", &A::states, SavedStateFields(), CsvRows()},
      {"left_out", "Files that are not states or cannot be read", &A::left_out, LeftOutFields()},
      {"shared_bytes", "Bytes of K and V that a store would hold once instead of again",
       &A::shared_bytes},
      {"contained_states", "States whose rows are all in another state", &A::contained_states},
      {"contained_bytes", "Bytes of the contained states", &A::contained_bytes},
      {"alike_states", "States that equal another in one head, but not in all bytes",
       &A::alike_states},
      {"near_states",
       "States that have nine tenths of their tokens in common with another and then differ",
       &A::near_states},
      {"recomputed_states",
       "States that begin with the tokens of another, but whose values differ earlier",
       &A::recomputed_states},
      {"idle_states",
       "States that were neither written nor read for idle_days; 0 if no time is known",
       &A::idle_states},
      {"idle_bytes", "Bytes of the idle states", &A::idle_bytes},
      {"access_times",
       "How the file system records reads: noatime: not; relatime: once a day at most; strict: "
       "each; unknown",
       &A::access_times, OneOf("noatime", "relatime", "strict", "unknown")},
      {"sample", "Sample on which levels were measured", WholeAdvice, SampleFields()},
      {"levels", "Result of each level on the sample, and its estimate for all states", &A::levels,
       StatesLevelFields()},
      {"recommendation", "Recommended action", WholeAdvice, RecommendationFields()}};
  return fields;
}

StatesText DescribeStates(const StatesAdvice& advice, size_t most_states, size_t most_left_out) {
  StatesText text;
  text.head = StatesHead(advice);
  const size_t shown = std::min(advice.states.size(), most_states);
  text.states = MakeTextTable(SavedStateFields(), std::span(advice.states).first(shown));
  if (shown < advice.states.size())
    text.facts.push_back(
        fmt::format("and {} more, which --json and --csv list", advice.states.size() - shown));
  for (std::string& fact : StatesFacts(advice, most_left_out))
    text.facts.push_back(std::move(fact));
  if (!advice.levels.empty()) {
    text.sample = fmt::format(
        "levels on a sample of {} ({} of {}), and about what all take{}:",
        format::Bytes(advice.sampled_bytes), format::Plural(advice.sampled_chunks, "chunk"),
        format::Plural(advice.sampled_states, "state"),
        advice.levels.front().encode_mb_per_s ? "; codec alone, 1 thread" : "");
  }
  text.levels = MakeTextTable(StatesLevelFields(), advice.levels);
  text.answer = StatesAnswer(advice);
  if (!advice.command.empty()) {
    // The deletion is a comment, so that pasting the block deletes nothing.
    text.commands = {
        advice.command, advice.verify_command,
        advice.delete_command.empty()
            ? "# delete the originals only once both ended without an error"
            : "# " + advice.delete_command + "  (only once both ended without an error)"};
  }
  return text;
}

report::Page StatesPage(const StatesAdvice& advice) {
  const StatesText text = DescribeStates(advice, advice.states.size(), advice.left_out.size());
  report::Page page("What to keep", text.head);
  page.Paragraph(text.answer);
  for (const std::string& command : text.commands) page.Command(command);
  page.Heading("Levels");
  page.Paragraph(text.sample);
  page.Table(text.levels);
  page.Notes("Findings", text.facts);
  page.Heading("States");
  page.Table(text.states);
  return page;
}

}  // namespace kv::advise
