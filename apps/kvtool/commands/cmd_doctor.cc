// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool doctor`: what a file is, what is wrong with it, and which commands to run next.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/console/console.h"
#include "apps/kvtool/doctor/doctor.h"
#include "lib/core/codec/chunk.h"

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

// Prints the steps so that the whole block can be pasted, even on a narrow terminal.
void PrintSteps(const std::vector<Diagnosis::Step>& steps, Console& console) {
  constexpr size_t kIndent = 11, kWidestCommand = 60;
  const size_t columns = TerminalColumns(STDOUT_FILENO);
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
    block += comment + "\n" + BrokenCommand(step.command, width) + "\n";
  }
  std::string text;
  for (size_t begin = 0; begin < block.size();) {
    const size_t end = block.find('\n', begin);
    text += fmt::format("  {:<8} {}\n", begin == 0 ? "next" : "", block.substr(begin, end - begin));
    begin = end + 1;
  }
  // Product, unlike Line, does not wrap: a name wider than the terminal must stay on one line.
  if (console.verbosity >= 0 && !console.only_products) console.Product(text);
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

const Fields<Diagnosis>& ShrinksFields() {
  static const Fields<Diagnosis> fields = {
      {"ratio",
       "Bytes of K and V / bytes after compression",
       [](const Diagnosis& of) { return *of.ratio; },
       {.above = 0}},
      {"level", "The level of 'kvtool compress'",
       [](const Diagnosis&) { return Name(Effort::kDefault); }},
      {"judged_bytes", "Bytes that were compressed for the estimate", &Diagnosis::judged_bytes},
      {"of_bytes", "Bytes of K and V", &Diagnosis::judged_of_bytes}};
  return fields;
}

const Fields<Diagnosis::Step>& StepFields() {
  using Step = Diagnosis::Step;
  static const Fields<Step> fields = {
      {"command", "A complete command for a shell, with quoted names", &Step::command},
      {"effect", "What the command does", &Step::effect},
      {"needs", "What to put in place of the words in capitals; null: the command runs as it is",
       [](const Step& step) { return IfAny(step.needs); }}};
  return fields;
}

const Fields<SizedFile>& DiagnosedFileFields() {
  static const Fields<SizedFile> fields = {
      {"file", "Name of the file as it was given", &SizedFile::file},
      {"bytes", "Size of the file; 0 if it is missing, a recorded run or a set of files",
       &SizedFile::bytes}};
  return fields;
}

const Fields<Diagnosis>& DiagnosisFields() {
  static const Fields<Diagnosis> sound_fields = {
      {"verdict", "yes: sound as far as it was checked; text says how far",
       [](const Diagnosis& of) { return Word(of.sound); }, OneOf("yes", "no", "unknown")},
      {"text", "What was checked, or why it cannot be read",
       [](const Diagnosis& of) { return IfAny(of.sound_text); }},
      {"findings", "What is wrong: NaN, layers of zeros, equal layers, damage",
       &Diagnosis::findings}};
  static const Fields<Diagnosis> fields = {
      {"inputs", "The file, also if it could not be read",
       [](const Diagnosis& of) {
         return std::vector<SizedFile>{{of.file, of.bytes}};
       },
       DiagnosedFileFields()},
      {"kind",
       "Kind of the file; foreign: known, but kvtool does not read it; broken: of a known format, "
       "but unreadable",
       &Diagnosis::kind,
       OneOf("snapshot", "archive", "run", "trace", "weights", "model", "plan", "document", "frame",
             "store", "profile", "transform", "log", "foreign", "broken", "unknown", "missing")},
      {"format", "The format's name, as 'kvtool formats' lists it or as the document says",
       [](const Diagnosis& of) { return IfAny(of.format); }},
      {"what", "Name of the format in words", &Diagnosis::what},
      {"sound", "Verdict on the file", [](const Diagnosis& of) -> const Diagnosis& { return of; },
       sound_fields},
      {"shrinks", "Estimate from a sample of what compression would gain; null: not measured",
       [](const Diagnosis& of) { return of.ratio ? &of : nullptr; }, ShrinksFields()},
      {"next", "Commands that make sense now, the most useful first", &Diagnosis::next,
       StepFields()},
      {"exit_code", "The exit status that this file alone would give",
       [](const Diagnosis& of) { return static_cast<int>(of.status); }}};
  return fields;
}

class Doctor : public ForEachInput<Doctor> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(line, "FILE",
                  "Anything: caches, archives, runs, traces, weights, models, folders");
    limit_.Declare(line, "Limit on inflated or derived data (default: 4GiB) and on streams");
    report_.Declare(line);
  }

  ExitStatus Run(Context& context) override {
    ThreadPool pool(context.global.thread_count());
    const Diagnosis found = Diagnose(input_, limit_.most(), pool);
    if (!report_.json) Print(found, context.console);
    if (found.error) context.console.Report(*found.error);
    report_.Emit(context.console, "doctor", DiagnosisFields, found);
    return found.status;
  }

  OpenOptions Reading() const override {
    OpenOptions options;
    if (const auto most = limit_.most()) options.max_bytes = *most;
    return options;
  }
  bool ContinuesAfterFailure() const override { return true; }
  // Without --recursive, a folder represents the caches in it, and other files are ignored.
  bool Takes(std::string_view format, bool is_run) const override {
    return inputs_.recursive || is_run || !format.empty();
  }
  bool TakesFolder(const Source& folder) const override {
    Diagnosis other;
    if (const auto most = limit_.most()) other.max_bytes = *most;
    return DiagnoseOther(folder, other);
  }

 private:
  SizeLimit limit_;
};

}  // namespace

const FieldTable& DoctorFields() { return DiagnosisFields(); }

std::unique_ptr<Command> MakeDoctor() { return std::make_unique<Doctor>(); }

}  // namespace kv
