// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/console/text_width.h"
#include "apps/kvtool/doctor/doctor.h"
#include "apps/kvtool/inputs/each_command.h"

namespace kv {
namespace {

std::string_view Word(Diagnosis::Sound sound) {
  return sound == Diagnosis::Sound::kYes  ? "yes"
         : sound == Diagnosis::Sound::kNo ? "no"
                                          : "unknown";
}

std::string SoundLine(const Diagnosis& found, const Console& console) {
  switch (found.sound) {
    case Diagnosis::Sound::kYes:
      return console.Verdict(true, "yes") + ": " + found.sound_text;
    case Diagnosis::Sound::kNo:
      return console.Verdict(false, "no") + ": " +
             (found.findings.empty() ? found.sound_text : found.findings.front());
    case Diagnosis::Sound::kUnknown:
      break;
  }
  return found.sound_text;
}

// The words of a command, quoted as they are.
std::vector<std::string> WordsOf(const std::string& command) {
  std::vector<std::string> words(1);
  bool quoted = false, escapes = false;
  for (size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (c == ' ' && !quoted) {
      words.emplace_back();
      continue;
    }
    words.back() += c;
    if (c == '\\' && (escapes || !quoted) && i + 1 < command.size()) {
      words.back() += command[++i];
    } else if (c == '\'') {
      quoted = !quoted;
      escapes = quoted && i > 0 && command[i - 1] == '$';
    }
  }
  return words;
}

// The command on lines that a shell takes for one, where it is wider than `width`.
std::string Broken(const std::string& command, size_t width) {
  if (ColumnsIn(command) <= width) return command;
  constexpr std::string_view kMore = " \\";
  std::string text, line;
  for (const std::string& word : WordsOf(command)) {
    if (!line.empty() && ColumnsIn(line) + 1 + ColumnsIn(word) + kMore.size() > width) {
      text += line + std::string(kMore) + "\n";
      line = "   ";
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return text + line;
}

// So that the whole block can be pasted, on a narrow terminal, too.
void PrintSteps(const std::vector<Diagnosis::Step>& steps, Console& console) {
  constexpr size_t kIndent = 11, kWidestCommand = 60;
  const size_t columns = ColumnsOf(STDOUT_FILENO);
  const size_t width = columns == kAnyWidth ? kAnyWidth : std::max(columns, 2 * kIndent) - kIndent;
  size_t aligned = 0;
  for (const Diagnosis::Step& step : steps) {
    if (step.command.size() <= kWidestCommand) aligned = std::max(aligned, step.command.size());
  }
  std::string block;
  for (const Diagnosis::Step& step : steps) {
    const std::string effect = step.effect + (step.needs.empty() ? "" : "; " + step.needs);
    const std::string one = fmt::format("{:<{}}  # {}", step.command, aligned, effect);
    if (ColumnsIn(one) <= width) {
      block += one + "\n";
      continue;
    }
    std::string comment = "# " + Wrapped(effect, width - 2, 0);
    for (size_t at = 0; (at = comment.find('\n', at)) != comment.npos; at += 3) {
      comment.insert(at + 1, "# ");
    }
    block += comment + "\n" + Broken(step.command, width) + "\n";
  }
  std::string text;
  for (size_t begin = 0; begin < block.size();) {
    const size_t end = block.find('\n', begin);
    text += fmt::format("  {:<8} {}\n", begin == 0 ? "next" : "", block.substr(begin, end - begin));
    begin = end + 1;
  }
  // A name that is wider than the terminal stays whole.
  if (console.verbosity >= 0) console.Product(text);
}

void Print(const Diagnosis& found, Console& console) {
  console.Line(console.Bold(Printable(found.file)));
  const auto line = [&](std::string_view name, const std::string& text) {
    if (!text.empty()) console.Line(fmt::format("  {:<8} {}", name, text));
  };
  line("what", found.what);
  line("sound", SoundLine(found, console));
  for (size_t i = 1; i < found.findings.size(); ++i) line("", "and " + found.findings[i]);
  line("shrinks", found.shrinks_text);
  PrintSteps(found.next, console);
}

nlohmann::ordered_json Document(const Diagnosis& found) {
  nlohmann::ordered_json document = ReportHeader("doctor");
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
  };
  document["inputs"] = {{{"file", found.file}, {"bytes", found.bytes}}};
  document["kind"] = found.kind;
  document["format"] = or_null(found.format);
  document["what"] = found.what;
  document["sound"] = {{"verdict", Word(found.sound)},
                       {"text", or_null(found.sound_text)},
                       {"findings", found.findings}};
  document["shrinks"] = nullptr;
  if (found.ratio) {
    document["shrinks"] = {{"ratio", *found.ratio},
                           {"level", "default"},
                           {"judged_bytes", found.judged_bytes},
                           {"of_bytes", found.judged_of_bytes}};
  }
  document["next"] = nlohmann::ordered_json::array();
  for (const Diagnosis::Step& step : found.next) {
    document["next"].push_back(
        {{"command", step.command}, {"effect", step.effect}, {"needs", or_null(step.needs)}});
  }
  document["exit_code"] = static_cast<int>(found.status);
  return document;
}

class Doctor : public EachOf<Doctor> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(line, "FILE",
                  "Anything: caches, archives, runs, traces, weights, models, folders");
    limit_.Declare(line, "Limit on inflated or derived data (default 4GiB) and on streams");
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    files.Reads(input_);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    ThreadPool pool(context.global.thread_count());
    const Diagnosis found = Diagnose(input_, limit_.most(), pool);
    if (!report_.json) Print(found, context.console);
    if (found.error) context.console.Report(*found.error);
    report_.Emit(context.console, Document(found), RulesFor(false));
    return found.status;
  }

  OpenOptions Reading() const override {
    OpenOptions options;
    if (const auto most = limit_.most()) options.max_bytes = *most;
    return options;
  }
  bool GoesOn() const override { return true; }
  bool Takes(std::string_view, bool) const override { return true; }

 private:
  SizeLimit limit_;
};

}  // namespace

std::unique_ptr<Command> MakeDoctor() { return std::make_unique<Doctor>(); }

}  // namespace kv
