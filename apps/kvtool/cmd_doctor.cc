// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/doctor.h"

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

void Print(const Diagnosis& found, Console& console) {
  console.Line(console.Bold(Printable(found.file)));
  const auto line = [&](std::string_view name, const std::string& text) {
    if (!text.empty()) console.Line(fmt::format("  {:<8} {}", name, text));
  };
  line("what", found.what);
  line("sound", SoundLine(found, console));
  for (size_t i = 1; i < found.findings.size(); ++i) line("", "and " + found.findings[i]);
  line("shrinks", found.shrinks_text);
  size_t width = 0;
  constexpr size_t kWidest = 60;
  for (const Diagnosis::Step& step : found.next) {
    if (step.command.size() <= kWidest) width = std::max(width, step.command.size());
  }
  for (size_t i = 0; i < found.next.size(); ++i) {
    const Diagnosis::Step& step = found.next[i];
    line(i == 0 ? "next" : "", fmt::format("{:<{}}  # {}{}{}", step.command, width, step.effect,
                                           step.needs.empty() ? "" : "; ", step.needs));
  }
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

class Doctor : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("FILE", files_, "Anything: caches, archives, runs, traces, weights, models, folders")
        .Required();
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    files.Reads(files_);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    ThreadPool pool(context.global.thread_count());
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    ExitStatus status = kDone;
    for (const std::string& file : files_) {
      const Diagnosis found = Diagnose(file, pool);
      if (!report_.json) Print(found, context.console);
      if (found.error) context.console.Report(*found.error);
      all.push_back(Document(found));
      status = Worse(status, found.status);
    }
    report_.Emit(context.console, all, RulesFor(false));
    return status;
  }

 private:
  std::vector<std::string> files_;
  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeDoctor() { return std::make_unique<Doctor>(); }

}  // namespace kv
