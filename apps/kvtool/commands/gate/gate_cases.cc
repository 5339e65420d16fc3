// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/gate/gate_cases.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/inputs/run_input.h"
#include "apps/kvtool/line/numbers.h"
#include "formats/registry.h"
#include "formats/trace/trace.h"
#include "lib/core/base/file.h"
#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"
#include "lib/engines/mnn/gate/engine.h"
#include "lib/engines/mnn/gate/replay_case.h"
#include "lib/remote/url.h"
#include "lib/study/gate/judge.h"

namespace kv {
namespace {

constexpr uint64_t kMostConfigBytes = uint64_t{16} << 20;

std::string NameFlag(std::string_view name) {
  std::string flag = "--" + std::string(name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

// Parses "runtime_full=1" into `codes`.
void AddReturnCode(const std::string& item, std::map<std::string, int64_t>& codes) {
  const size_t equals = item.find('=');
  const bool has_both = equals != item.npos && equals != 0;
  const auto code =
      has_both ? ParseNumber<int64_t>(std::string_view(item).substr(equals + 1)) : std::nullopt;
  if (!code) {
    throw Error(Finding::kUsage, "--return-codes '{}': expected CASE=N,CASE=N", Escaped(item));
  }
  if (!codes.emplace(item.substr(0, equals), *code).second) {
    throw Error(Finding::kUsage, "--return-codes: two codes for case '{}'",
                Escaped(item.substr(0, equals)));
  }
}

// Returns true if a file or folder has logs that --engine-logs takes. Never throws.
bool HoldsLogs(const std::string& path) {
  try {
    if (llamacpp::ReadLogs(path).cases.empty()) mnn::ReadLogs({.path = path});
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void AddOption(std::string_view flag, const std::string& value, std::vector<std::string>& words) {
  if (value.empty()) return;
  words.emplace_back(flag);
  words.push_back(value);
}

bool IsGateConfig(const std::string& path) {
  std::error_code failed;
  if (path == "-") return true;
  if (std::filesystem::is_directory(path, failed)) return false;
  if (!std::filesystem::is_regular_file(path, failed)) {
    return path.find_first_of("*?[") == path.npos && !remote::IsUrl(path);
  }
  std::ifstream file(path, std::ios::binary);
  std::array<char, 512> head;
  file.read(head.data(), head.size());
  return std::find(head.begin(), head.begin() + file.gcount(), '\0') ==
         head.begin() + file.gcount();
}

std::string ReadGateText(const std::string& path) {
  const auto file = FileSource::OpenSmall(path, kMostConfigBytes, "a configuration or summary");
  const ByteSpan bytes = file->bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void HintAtLogs(const std::string& path, Error& error) {
  if (!HoldsLogs(path)) return;
  error.Hint("an engine's logs are judged by 'kvtool gate --engine-logs " + ShellQuoted(path) +
             "'");
}

gate::Config ReadGateConfig(const std::string& path) {
  try {
    return gate::ParseConfig(ReadGateText(path),
                             std::filesystem::path(path == "-" ? "" : path).parent_path(),
                             mnn::Engine());
  } catch (Error& error) {
    if (error.finding() == Finding::kOpenFailed)
      error.Hint("'kvtool gate --init RUN -o {}' writes a config for a recorded run",
                 ShellQuoted(path));
    HintAtLogs(path, error);
    throw error.File(path);
  }
}

gate::Baseline ReadGateBaseline(const std::string& path) {
  try {
    return gate::ParseBaseline(ReadGateText(path), path, mnn::Engine());
  } catch (Error& error) {
    if (HoldsLogs(path)) {
      error.Hint(
          fmt::format("a baseline is the summary of a run: 'kvtool gate --engine-logs {} -o "
                      "base.json' writes one",
                      ShellQuoted(path)));
    } else if (error.finding() == Finding::kOpenFailed) {
      error.Hint(
          "a baseline is the summary of an earlier run, which -o FILE wrote; the first run has "
          "none");
    }
    throw error.File(path);
  }
}

gate::OutputNames PlaceOutputs(gate::OutputNames names) {
  std::error_code ignored;
  const auto type = std::filesystem::status(names.summary_json, ignored).type();
  if (names.summary_json.empty() || type == std::filesystem::file_type::character ||
      type == std::filesystem::file_type::fifo) {
    return names;
  }
  // If two summaries are written to one folder, each has its own files.
  const std::filesystem::path json(names.summary_json), folder = json.parent_path();
  const std::string name = (json.extension() == ".json" ? json.stem() : json.filename()).string();
  const std::string before = name == "summary" ? "" : name + ".";
  if (names.summary_md.empty())
    names.summary_md = (folder / (before.empty() ? "summary.md" : before + "md")).string();
  if (names.cases_jsonl.empty()) names.cases_jsonl = (folder / (before + "cases.jsonl")).string();
  return names;
}

SnapshotOptions GateInputs::OptionsFor(const gate::Reading& reading) const {
  SnapshotOptions options = options_;
  if (!reading.from.empty()) options.open.from = reading.from;
  if (!reading.gguf.empty()) options.gguf = reading.gguf;
  if (reading.kv_heads != 0) options.kv_heads = reading.kv_heads;
  if (reading.head_dim != 0) options.head_dim = reading.head_dim;
  return options;
}

GateInputs::Pair& GateInputs::Open(const gate::CaseSpec& spec, ThreadPool& pool) {
  if (spec.snapshot.empty()) {
    throw Error(Finding::kUsage, "case '{}' has no snapshot", Escaped(spec.name))
        .Hint("give 'snapshot' in the case, or --snapshot for all cases");
  }
  const gate::Reading& reading = spec.reading;
  const bool replays = !gate::OnlyCompares(spec);
  if (!replays && spec.reference.empty()) {
    throw Error(Finding::kUsage, "case '{}' has no reference", Escaped(spec.name))
        .Hint("give 'reference' in the case, or --reference for all cases");
  }
  const std::string key = fmt::format(
      "{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", spec.snapshot, spec.trace, reading.from, reading.gguf,
      reading.kv_heads, reading.head_dim, spec.reference, spec.reference_from, replays);
  std::unique_ptr<Pair>& pair = pairs_[key];
  if (pair != nullptr) return *pair;

  SnapshotOptions how = OptionsFor(reading);
  std::string snapshot_path = spec.snapshot, trace_path = spec.trace;
  TakeTrace(TakeRun(snapshot_path, how), trace_path);
  const OpenOptions options = how.Resolve(FlagsFor::kSeveral);
  std::optional<AttentionTrace> trace;
  Source trace_files;
  if (replays && !trace_path.empty()) {
    trace_files = OpenTraceFiles(trace_path, options);
    trace = OpenTrace(trace_files, options);
    for (const Note& note : trace->notes) console_.Warn(trace_path, note.text);
  }
  const std::string beside = replays && trace_path.empty() ? TraceBeside(snapshot_path) : "";
  if (!beside.empty()) {
    console_.Say(fmt::format("{}: no trace is given; --trace {} names one in the same folder",
                             Printable(snapshot_path), Printable(beside)));
  }
  auto opened = std::make_unique<Pair>(Pair{
      OpenSnapshot(how.Open(snapshot_path), options, trace ? FindGeometry(*trace) : std::nullopt),
      std::move(trace)});
  const Snapshot& snapshot = opened->snapshot;
  if (snapshot.layers.empty()) {
    throw Error(Finding::kUnsupportedKind, "the snapshot has no attention layers")
        .File(snapshot_path);
  }
  if (replays) RequireHeads(snapshot, "a replay");
  if (opened->trace) {
    RequireMatch(*opened->trace, snapshot);
    const std::string undefined = Remark(CheckTraceRows(*opened->trace, pool));
    if (!undefined.empty()) console_.Warn(trace_path, undefined);
  }
  WarnAboutNotes(snapshot.notes, snapshot_path, console_);
  opened->snapshot_hash = Record(snapshot.source);
  if (opened->trace) opened->trace_hash = Record(trace_files);
  if (!spec.reference.empty()) opened->reference = &Reference(spec, options);
  pair = std::move(opened);
  return *pair;
}

// The reference's format is detected by content, whatever the snapshot's is.
const Snapshot& GateInputs::Reference(const gate::CaseSpec& spec, OpenOptions options) {
  options.from = spec.reference_from;
  options.layout.clear();
  if (!HasTrait(spec.reference_from, kReadsRaw)) options.raw.clear();
  const gate::Reading& reading = spec.reading;
  auto& reference =
      references_[fmt::format("{}\n{}\n{}\n{}\n{}", spec.reference, spec.reference_from,
                              reading.gguf, reading.kv_heads, reading.head_dim)];
  if (reference == nullptr) {
    std::string path = spec.reference;
    SnapshotOptions unused;
    TakeRun(path, unused);
    reference = std::make_unique<Snapshot>(OpenSnapshot(options_.Open(path), options));
    WarnAboutNotes(reference->notes, spec.reference, console_);
    Record(reference->source);
  }
  return *reference;
}

std::string GateInputs::Record(const Source& source) {
  HashedFile record = HashedFile::Of(source);
  const std::string hash = record.xxh3;
  const bool is_known = std::any_of(records_.begin(), records_.end(), [&](const HashedFile& known) {
    return known.file == record.file && known.xxh3 == hash && known.bytes == record.bytes;
  });
  if (!is_known) records_.push_back(std::move(record));
  return hash;
}

void EngineLogOptions::Declare(CommandLine& line) {
  const char* group =
      "Engine logs (each rule of the engine's analyzer is off unless given or set by the suite)";
  line.Add("--engine-logs", path,
           "Judge the real engine's own output: MNN's suite, a folder of logs, or one log or "
           "report of MNN's or llama.cpp's (llama-server, llama-perplexity, llama-bench -o json)")
      .Once()
      .Group(group);
  line.Add("--return-codes", return_codes,
           "Return codes of its cases: runtime_full=1,... (those of the suite's summary)")
      .Group(group);
  line.Add("--offline-lossless-json", offline, "Offline report with the upper bound").Group(group);
  line.Add("--offline-lossless-online-json", online, "Offline report of the simulated online mode")
      .Group(group);
  line.Add("--bench-stdout-log", bench_log, "Console output of the bench").Group(group);
  for (const std::string_view name : mnn::logs::AnalyzerOptionNames()) {
    const std::string key(name);
    const ParameterText& told = AnalyzerOptionText(name);
    const std::string text(told.text);
    if (told.value.empty()) {
      line.OnFlag(
              NameFlag(name), [this, key] { analyzer.emplace_back(key, ""); }, text)
          .Group(group);
    } else {
      line.OnText(
              NameFlag(name),
              [this, key](const std::string& value) { analyzer.emplace_back(key, value); }, text)
          .ValueName(std::string(told.value))
          .Group(group);
    }
  }
}

void EngineLogOptions::RequireLogs() const {
  if (given() || (analyzer.empty() && return_codes.empty() && offline.empty() && online.empty() &&
                  bench_log.empty())) {
    return;
  }
  throw Error(Finding::kUsage, "options of MNN's analyzer go with --engine-logs");
}

mnn::logs::EngineLogsInput EngineLogOptions::Resolve() const {
  mnn::logs::EngineLogsInput input{.path = path,
                                   .options = analyzer,
                                   .offline_lossless_json = offline,
                                   .offline_lossless_online_json = online,
                                   .bench_stdout_log = bench_log};
  for (size_t begin = 0; begin < return_codes.size();) {
    const size_t end = std::min(return_codes.find(',', begin), return_codes.size());
    AddReturnCode(return_codes.substr(begin, end - begin), input.return_codes);
    begin = end + 1;
  }
  return input;
}

void EngineLogOptions::AddWords(std::vector<std::string>& words) const {
  AddOption("--engine-logs", path, words);
  AddOption("--return-codes", return_codes, words);
  AddOption("--offline-lossless-json", offline, words);
  AddOption("--offline-lossless-online-json", online, words);
  AddOption("--bench-stdout-log", bench_log, words);
  for (const auto& [name, value] : analyzer) {
    words.push_back(NameFlag(name));
    if (!value.empty()) words.push_back(value);
  }
}

// Logs of engines without a suite have no rules: the command line, a config or a baseline supplies
// them. Without a config, cases without any rule are only shown, unless the log has no end.
void GateCases::TakePlain(bool holds_suite, llamacpp::LogsRead& read, gate::Config& config,
                          gate::GateResult& result) const {
  if (read.cases.empty()) return;
  for (gate::CaseResult& item : read.cases) {
    item.spec.suite = mnn::Engine().NewCase().suite;
    const bool has_config = !config.cases.empty() || config.expected.any();
    item.spec.on_not_run = has_config              ? config.on_not_run
                           : llamacpp::IsCut(item) ? gate::OnNotRun::kFail
                                                   : gate::OnNotRun::kWarn;
  }
  if (!holds_suite && !read.left_out.empty()) {
    result.warnings.push_back(fmt::format("{}: not judged, without figures of llama.cpp: {}",
                                          Escaped(logs.path), fmt::join(read.left_out, ", ")));
  }
  const bool asked = std::any_of(config.baseline_rules.begin(), config.baseline_rules.end(),
                                 [](const gate::DeltaRule& rule) { return rule.is_asked; });
  const auto rules = llamacpp::BaselineRules();
  if (!asked) config.baseline_rules.insert(config.baseline_rules.end(), rules.begin(), rules.end());
}

// Reads MNN's logs if llama.cpp's reader found none or a suite is beside its logs.
mnn::logs::EngineVerdict GateCases::ReadSuite(const llamacpp::LogsRead& plain) const {
  try {
    return mnn::ReadLogs(logs.Resolve());
  } catch (const Error& error) {
    std::error_code failed;
    const bool is_folder = std::filesystem::is_directory(logs.path, failed);
    if (error.finding() != Finding::kMissingRecord || !is_folder) throw;
    throw Error(Finding::kMissingRecord, "no log of llama.cpp or of MNN {}",
                plain.left_out.empty() ? "in this folder"
                                       : fmt::format("among {}", fmt::join(plain.left_out, ", ")))
        .File(logs.path)
        .Hint("names of llama.cpp's logs end in .log, .txt, .out, .err, .json or .jsonl");
  }
}

// Reads the logs' cases, also if other logs are beside a suite. A config without cases gets them.
std::vector<gate::CaseResult> GateCases::ReadLogs(gate::Config& config,
                                                  gate::GateResult& result) const {
  if (!logs.given()) return {};
  const bool holds_suite = mnn::logs::HoldsSuite(logs.path);
  llamacpp::LogsRead plain = llamacpp::ReadLogs(logs.path);
  TakePlain(holds_suite, plain, config, result);
  std::vector<gate::CaseResult> all = std::move(plain.cases);
  mnn::logs::EngineVerdict read;
  if (holds_suite || all.empty()) {
    read = ReadSuite(plain);
    result.engine_logs = mnn::LogsFields().Object(read);
  }
  for (gate::CaseResult& item : read.cases) {
    if (config.cases.empty()) item.spec.on_not_run = config.on_not_run;
    all.push_back(std::move(item));
  }
  if (!config.cases.empty()) return all;
  for (const gate::CaseResult& item : all) config.cases.push_back(item.spec);
  // An incomplete suite passes only if the user says so: by expected_cases, on_not_run or --case.
  for (const std::string& name : read.absent_cases) {
    auto spec = mnn::Engine().FindSuiteCase(name);
    if (!spec) continue;
    spec->on_not_run = config.expected.any() ? gate::OnNotRun::kWarn : config.on_not_run;
    config.cases.push_back(std::move(*spec));
  }
  gate::KeepCases(only, config);
  return all;
}

// Returns the result, from the logs, of the engine's own cases and of cases without a snapshot.
std::optional<gate::CaseResult> GateCases::FromLogs(const gate::CaseSpec& spec,
                                                    std::vector<gate::CaseResult>& of_logs) const {
  if (!logs.given() || (!spec.only_engine && !spec.snapshot.empty())) {
    return std::nullopt;
  }
  std::optional<gate::CaseResult> taken = gate::TakeCase(spec, of_logs);
  if (taken) return taken;
  return gate::NotRun(spec,
                      "the engine logs have no such case: name the part of the suite that was run, "
                      "by expected_cases or --case");
}

gate::CaseResult GateCases::Replay(const Context& context, const gate::CaseSpec& spec,
                                   GateInputs::Pair& pair, ThreadPool& pool,
                                   ProgressLine& progress) const {
  const gate::Subject subject{pair.snapshot,
                              pair.trace ? &*pair.trace : nullptr,
                              context.global.deterministic,
                              pool,
                              &pair.of_snapshot,
                              pair.reference,
                              loses_content};
  const bool replays = !gate::OnlyCompares(spec) && spec.mode != gate::kQuant;
  gate::CaseResult result =
      replays ? mnn::ReplayCase(spec, subject, &progress) : gate::CompareCase(spec, subject);
  if (spec.quant) gate::MeasureQuant(subject, result);
  result.snapshot_hash = pair.snapshot_hash;
  result.trace_hash = pair.trace_hash;
  return result;
}

// A rule for all cases judges those that could have its figure.
void GateCases::AddRules(gate::GateResult& result) const {
  for (const gate::Rule& rule : rules) {
    bool is_known = false;
    for (gate::CaseResult& item : result.cases) {
      if (item.measured.Find(rule.metric) == nullptr) continue;
      item.spec.rules.push_back(rule);
      is_known = true;
    }
    if (is_known) continue;
    result.reasons.push_back(fmt::format("--require: no case has the figure {}", rule.shown()));
  }
}

// A config of replays names its own cases, and all other cases of the logs count too. A config of
// logs says which of them it judges.
void GateCases::AddUnnamed(const gate::Config& config, std::vector<gate::CaseResult> of_logs,
                           gate::GateResult& result) const {
  const bool replays = std::any_of(config.cases.begin(), config.cases.end(),
                                   [](const auto& spec) { return !spec.snapshot.empty(); });
  if (replays) {
    std::move(of_logs.begin(), of_logs.end(), std::back_inserter(result.cases));
    return;
  }
  std::vector<std::string> names;
  for (const gate::CaseResult& item : of_logs) names.push_back(Escaped(item.spec.name));
  if (names.empty()) return;
  result.warnings.push_back(fmt::format("{}: not judged, because the config does not name them: {}",
                                        Escaped(logs.path), fmt::join(names, ", ")));
}

void GateCases::Run(Context& context, gate::Config& config, GateInputs& inputs,
                    gate::GateResult& result) const {
  std::vector<gate::CaseResult> of_logs = ReadLogs(config, result);
  ThreadPool pool(context.global.thread_count());
  ProgressLine progress(context.console, context.global.progress_when(), "gate");
  for (const gate::CaseSpec& spec : config.cases) {
    if (std::optional<gate::CaseResult> taken = FromLogs(spec, of_logs)) {
      result.cases.push_back(std::move(*taken));
      continue;
    }
    if (spec.only_engine) {
      result.cases.push_back(gate::NotRun(spec,
                                          "a replay cannot replace the engine's own run of "
                                          "prompts: give its logs with --engine-logs"));
      continue;
    }
    result.cases.push_back(Replay(context, spec, inputs.Open(spec, pool), pool, progress));
    gate::AddFromLogs(spec, logs.path, of_logs, result.cases.back());
  }
  if (only.empty()) AddUnnamed(config, std::move(of_logs), result);
  AddRules(result);
  for (const gate::CaseResult& item : result.cases) {
    if (item.logs) continue;
    for (const std::string& warning : item.warnings) {
      context.console.Warn(item.spec.name, warning);
    }
  }
}

}  // namespace kv
