// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/archive_output.h"
#include "apps/kvtool/commands.h"
#include "apps/kvtool/each_command.h"
#include "apps/kvtool/progress.h"
#include "apps/kvtool/run_input.h"
#include "apps/kvtool/verify.h"
#include "formats/kvz/kvz.h"
#include "formats/registry.h"
#include "lib/core/base/hash.h"

namespace kv {
namespace {

// Restored bytes are hashed by Restore and needed no further.
class NoTarget : public RestoreTarget, private Sink {
 public:
  Sink& Begin(size_t) override { return *this; }
  void End(size_t) override {}

 private:
  void Write(ByteSpan) override {}
};

struct Findings {
  RestoreReport restored;
  std::vector<ChunkHead> missing;
  std::vector<SourceComparer::Difference> differences;

  bool good() const { return restored.intact() && differences.empty(); }
};

Findings Look(const Archive& archive, const std::string& against, const SizeLimit& limit,
              ThreadPool& pool, Progress& progress) {
  Findings findings;
  RestoreOptions options;
  options.keep_going = true;
  options.progress = &progress;
  if (against.empty()) {
    NoTarget nowhere;
    findings.restored = Restore(archive, options, pool, nowhere);
  } else {
    const Source source = SizeLimit::WithHint([&] { return Source::Open(against, limit.most()); });
    SourceComparer comparer(archive, source);
    findings.restored = Restore(archive, options, pool, comparer);
    findings.differences = comparer.differences();
  }
  findings.missing = archive.MissingTokens();
  return findings;
}

std::string DifferenceText(const SourceComparer::Difference& difference,
                           const std::string& against) {
  std::string text = Printable(against);
  if (!difference.file.empty()) text += "/" + Printable(difference.file);
  if (difference.chunk) text += ": " + Describe(*difference.chunk);
  return text + ": " + difference.text;
}

void Print(const Findings& findings, const Archive& archive, const std::string& path,
           const std::string& against, Console& console) {
  const std::string input = Printable(path);
  for (const Damage& damage : findings.restored.damage) {
    console.Line(fmt::format("{}: {}: {} (offset {:#x}) [{}]", input, Place(damage), damage.text,
                             damage.offset, FindingId(damage.finding)));
  }
  for (const LostRange& lost : findings.restored.lost) {
    console.Line(fmt::format("{}: {}", input, LostText(archive, lost)));
  }
  for (const ChunkHead& head : findings.missing) {
    console.Line(fmt::format("{}: lost: {}", input, Describe(head)));
  }
  for (const SourceComparer::Difference& difference : findings.differences) {
    console.Line(fmt::format("{}: {}", input, DifferenceText(difference, against)));
  }
  const RestoreReport& restored = findings.restored;
  std::string verdict;
  if (findings.good()) {
    const size_t chunks = archive.chunks().size();
    verdict = against.empty() ? console.Verdict(true, "intact")
                              : console.Verdict(true, "identical") + " to " + Printable(against);
    verdict += fmt::format(": {} bytes in {} chunk{}, {}", restored.bytes, chunks,
                           chunks == 1 ? "" : "s", HashText(*restored.source_hash));
  } else if (!restored.intact()) {
    verdict = fmt::format("{}: {} of {} bytes lost", console.Verdict(false, "damaged"),
                          restored.lost_bytes, restored.bytes);
  } else {
    verdict = fmt::format("{} from {}", console.Verdict(false, "different"), Printable(against));
  }
  console.Line(fmt::format("{}: {}", input, verdict));
}

nlohmann::ordered_json Document(const Findings& findings, const Archive& archive,
                                const std::string& input, const std::string& against) {
  const RestoreReport& restored = findings.restored;
  nlohmann::ordered_json document = ReportHeader("verify");
  document["inputs"] = {{{"file", input}, {"bytes", archive.data().size()}}};
  document["params"] = {
      {"against", against.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(against)}};
  document["verdict"] = findings.good()      ? (against.empty() ? "intact" : "identical")
                        : !restored.intact() ? "damaged"
                                             : "different";
  document["chunks"] = archive.chunks().size();
  document["source_bytes"] = restored.bytes;
  document["lost_bytes"] = restored.lost_bytes;
  document["xxh3"] = HashJson(restored);
  document["damage"] = nlohmann::ordered_json::array();
  for (const Damage& damage : restored.damage) document["damage"].push_back(DamageJson(damage));
  document["lost"] = nlohmann::ordered_json::array();
  for (const LostRange& lost : restored.lost) document["lost"].push_back(LostJson(archive, lost));
  document["missing"] = nlohmann::ordered_json::array();
  for (const ChunkHead& head : findings.missing) document["missing"].push_back(ChunkJson(head));
  document["differences"] = nlohmann::ordered_json::array();
  for (const SourceComparer::Difference& difference : findings.differences) {
    nlohmann::ordered_json entry = {
        {"file", difference.file}, {"offset", difference.offset}, {"text", difference.text}};
    if (difference.chunk) entry["chunk"] = ChunkJson(*difference.chunk);
    document["differences"].push_back(std::move(entry));
  }
  return document;
}

void RequireOneAgainst(const InputOptions& inputs, const std::string& against) {
  if (against.empty() || inputs.given.size() < 2) return;
  throw Error(Finding::kUsage,
              fmt::format("--against takes one archive, {} were given", inputs.given.size()));
}

class Verify : public EachOf<Verify> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(line, "FILE", "Archives, '-' for stdin");
    line.Add("--against", against_, "File or folder that the archive must restore to");
    limit_.Declare(line);
    report_.Declare(line);
  }

  bool Takes(std::string_view format, bool) const override { return HasTrait(format, kIsArchive); }

  void TakeRuns() override {
    RequireOneAgainst(inputs_, against_);
    SnapshotOptions unused;
    TakeRun(against_, unused);
  }

  void Files(CommandFiles& files) const override {
    files.Reads(input_);
    files.Reads(against_);
    limit_.Files(files);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    return VerifyArchive(input_, against_, limit_, report_, context);
  }

 private:
  std::string against_;
  ArchiveLimit limit_;
};

}  // namespace

ExitStatus VerifyArchive(const std::string& input, const std::string& against,
                         const ArchiveLimit& limit, const ReportOptions& report, Context& context) {
  ThreadPool pool(context.global.thread_count());
  const Archive archive = limit.Open(input);
  RequireReferences(archive);
  Findings findings;
  {
    ProgressLine progress(context.console, context.global.progress_when(), input);
    findings = Look(archive, against, limit.limit, pool, progress);
  }
  if (!report.json && context.console.verbosity > -1) {
    Print(findings, archive, input, against, context.console);
  }
  report.Emit(context.console, Document(findings, archive, input, against), RulesFor(false));
  // A chunk of a codec from the future is whole, only not for this program.
  const bool unsupported = std::any_of(
      findings.restored.damage.begin(), findings.restored.damage.end(),
      [](const Damage& damage) { return InfoOf(damage.finding).code == ErrorCode::kUnsupported; });
  return unsupported ? kUnsupported : findings.good() ? kDone : kVerdict;
}

std::unique_ptr<Command> MakeVerify() { return std::make_unique<Verify>(); }

}  // namespace kv
