// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/line/help_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/kvtool/console/text_width.h"

namespace kv {
namespace {

// Texts stand beside the names of options where there is room for both.
constexpr size_t kNames = 28, kRoomForBoth = 76;

std::string NamesOf(const OptionDescription& option) {
  if (option.positional()) return option.names.front() + (option.many ? "..." : "");
  const std::string value = ValueText(option);
  // Long names are aligned whether there is a short one or not.
  const std::string indent = option.names.front().starts_with("--") ? "    " : "";
  return fmt::format("{}{}{}{}", indent, fmt::join(option.names, ", "), value.empty() ? "" : " ",
                     value);
}

void AddEntry(const std::string& names, const std::string& text, size_t width, std::string& out) {
  const std::string head = "  " + names;
  if (width < kRoomForBoth) {
    out += Wrapped(head, width, 6) + "\n" + Wrapped("        " + text, width, 0) + "\n";
    return;
  }
  const size_t at = kNames + 4;
  const bool fits = ColumnsIn(head) + 2 <= at;
  std::string entry = fits ? head : head + "\n";
  const std::string body = Wrapped(std::string(at, ' ') + text, width, 0);
  out += fits ? entry + body.substr(ColumnsIn(head)) + "\n" : entry + body + "\n";
}

std::string UsageOf(const std::string& program, const LineDescription& line) {
  std::string text =
      fmt::format("Usage: {}{} [OPTIONS]", program, line.verbs.empty() ? "" : " VERB");
  for (const OptionDescription& option : line.options) {
    if (option.positional()) {
      const std::string place = NamesOf(option);
      text += option.required ? " " + place : fmt::format(" [{}]", place);
    } else if (option.required) {
      text += fmt::format(" {} {}", option.names.back(), ValueText(option));
    }
  }
  return text;
}

}  // namespace

std::string ValueText(const OptionDescription& option) {
  if (option.value.empty()) return {};
  constexpr size_t kMost = 26;
  const std::string words = fmt::format("{}", fmt::join(option.words, "|"));
  if (option.closed && words.size() <= kMost) return words + (option.many ? ",..." : "");
  if (option.many && !option.positional()) return option.value + ",...";
  return option.value;
}

std::string FullText(const OptionDescription& option) {
  std::string text = option.text;
  const auto is_named = [&](const std::string& word) { return text.find(word) != text.npos; };
  const bool tells_words = ValueText(option).find('|') != std::string::npos ||
                           std::all_of(option.words.begin(), option.words.end(), is_named);
  if (option.closed && !tells_words) {
    text += fmt::format("; one of {}", fmt::join(option.words, ", "));
  }
  if (!option.standard.empty()) text += fmt::format(" (default: {})", option.standard);
  if (!option.environment.empty()) text += fmt::format(" (also: {})", option.environment);
  if (option.required && !option.positional()) text += " (required)";
  return text;
}

std::string OptionsHelp(const std::string& program, const LineDescription& line, size_t width,
                        const std::vector<std::string_view>& left_out) {
  std::string out = Wrapped(UsageOf(program, line), width, 2) + "\n";
  if (!line.verbs.empty()) out += "\nVerbs:\n";
  for (const LineDescription& verb : line.verbs) AddEntry(verb.name, verb.summary, width, out);
  bool any = false;
  std::vector<std::string> groups;
  for (const OptionDescription& option : line.options) {
    if (option.positional()) {
      if (!any) out += "\nArguments:\n";
      any = true;
      AddEntry(NamesOf(option), FullText(option), width, out);
    } else if (std::find(groups.begin(), groups.end(), option.group) == groups.end()) {
      groups.push_back(option.group);
    }
  }
  for (const std::string& group : groups) {
    if (std::find(left_out.begin(), left_out.end(), group) != left_out.end()) continue;
    out += "\n" + Wrapped(group + ":", width, 2) + "\n";
    for (const OptionDescription& option : line.options) {
      if (option.positional() || option.group != group) continue;
      AddEntry(NamesOf(option), FullText(option), width, out);
    }
  }
  return out;
}

}  // namespace kv
