// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by gate_cases.cc, gate_init.cc, gate_report.cc

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "apps/kvtool/console/console.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/line/options.h"
#include "lib/core/base/output.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/engines/llamacpp/logs/logs.h"
#include "lib/engines/mnn/logs/logs.h"
#include "lib/study/gate/config.h"
#include "lib/study/gate/result.h"

namespace kv {

// Returns true if a word of the command line is a config rather than a snapshot or recorded run: a
// text file, which no cache is, or a file that does not exist.
bool IsGateConfig(const std::string& path);

// Returns the text of a config or summary. Throws kLimit beyond 16 MiB, and what FileSource::Open
// throws.
std::string ReadGateText(const std::string& path);

// Suggests --engine-logs if logs were given in another place.
void HintAtLogs(const std::string& path, Error& error);

// Paths in a config are relative to its folder. Errors name the file: kUsage or kFormat of
// ParseConfig and ParseBaseline, and those of ReadGateText.
gate::Config ReadGateConfig(const std::string& path);
gate::Baseline ReadGateBaseline(const std::string& path);

// Returns the three files that MNN's gate writes, together, named after the first. Beside a device
// or a pipe the other two are refused.
gate::OutputNames PlaceOutputs(gate::OutputNames names);

// All output files of a run, refused before the first case runs and finished together.
class OutputFiles {
 public:
  explicit OutputFiles(OutputRules rules) : rules_(std::move(rules)) {}

  void Open(const std::string& path) {
    if (!path.empty()) files_.emplace(path, std::make_unique<AtomicFile>(path, rules_));
  }
  void Write(const std::string& path, const std::string& text) {
    if (!path.empty()) files_.at(path)->Write(AsBytes(text));
  }
  void Commit() {
    for (auto& [path, file] : files_) file->Commit();
  }

 private:
  OutputRules rules_;
  std::map<std::string, std::unique_ptr<AtomicFile>> files_;
};

// The snapshots and traces of a gate, each pair opened once for all its cases.
class GateInputs {
 public:
  GateInputs(Console& console, SnapshotOptions options)
      : console_(console), options_(std::move(options)) {}

  struct Pair {
    Snapshot snapshot;
    std::optional<AttentionTrace> trace = {};
    const Snapshot* reference = nullptr;
    gate::Measurements of_snapshot = {};
    std::string snapshot_hash = {}, trace_hash = {};
  };
  // Returns the inputs of a case's replay or comparison. Throws kUsage for a case without a
  // snapshot, and as opening and RequireMatch.
  Pair& Open(const gate::CaseSpec& spec, ThreadPool& pool);
  // Returns every snapshot, trace and reference opened.
  const std::vector<HashedFile>& records() const { return records_; }

 private:
  SnapshotOptions OptionsFor(const gate::Reading& reading) const;
  const Snapshot& Reference(const gate::CaseSpec& spec, OpenOptions options);
  std::string Record(const Source& source);  // returns its hash

  Console& console_;
  SnapshotOptions options_;
  std::map<std::string, std::unique_ptr<Pair>> pairs_;
  std::map<std::string, std::unique_ptr<Snapshot>> references_;
  std::vector<HashedFile> records_;
};

// Adds an option to the words of a command line, unless it was not given.
void AddOption(std::string_view flag, const std::string& value, std::vector<std::string>& words);

// --engine-logs and the options of MNN's analyzer, under its names.
struct EngineLogOptions {
  std::string path, return_codes, offline, online, bench_log;
  std::vector<std::pair<std::string, std::string>> analyzer;  // name with underscores, value

  void Declare(CommandLine& line);
  void Files(CommandFiles& files) const { files.Reads({path, offline, online, bench_log}); }
  bool given() const { return !path.empty(); }
  // Throws kUsage if options of the analyzer are given without logs.
  void RequireLogs() const;
  mnn::logs::EngineLogsInput Resolve() const;
  // Adds the options as words of a command line.
  void AddWords(std::vector<std::string>& words) const;
};

// Runs the cases of a config: by replay, by comparison, or out of an engine's logs.
struct GateCases {
  const EngineLogOptions& logs;
  const std::vector<std::string>& only;  // names of cases; empty: all
  bool loses_content;                    // --inject-fault
  const std::vector<gate::Rule>& rules;  // --require

  // Appends the results in the order of the config, and prints their warnings. A config without
  // cases gets those of the logs. Throws what GateInputs::Open and the engine's readers throw.
  void Run(Context& context, gate::Config& config, GateInputs& inputs,
           gate::GateResult& result) const;

 private:
  void TakePlain(bool holds_suite, llamacpp::LogsRead& read, gate::Config& config,
                 gate::GateResult& result) const;
  mnn::logs::EngineVerdict ReadSuite(const llamacpp::LogsRead& plain) const;
  std::vector<gate::CaseResult> ReadLogs(gate::Config& config, gate::GateResult& result) const;
  void AddUnnamed(const gate::Config& config, std::vector<gate::CaseResult> of_logs,
                  gate::GateResult& result) const;
  void AddRules(gate::GateResult& result) const;
  std::optional<gate::CaseResult> FromLogs(const gate::CaseSpec& spec,
                                           std::vector<gate::CaseResult>& of_logs) const;
  gate::CaseResult Replay(const Context& context, const gate::CaseSpec& spec,
                          GateInputs::Pair& pair, ThreadPool& pool, ProgressLine& progress) const;
};

// Runs to be measured, and a config whose limits fit them.
struct GateInit {
  std::vector<std::string> runs;  // recorded runs, or snapshots
  std::string trace;              // trace of a single snapshot
  std::string output;             // the config's file; empty: standard output
  std::optional<uint64_t> prompt_tokens;
  SnapshotOptions reading;
  bool force = false;
};

// Runs `kvtool gate --init`: writes the config to its output.
ExitStatus RunGateInit(const GateInit& init, Context& context);

// Returns the config that RunGateInit would write for one run, ready to judge that same run. A
// limit that would only repeat a fault of the run is 0 instead. `name` names the cases; `inputs`
// stay open for the judgement. Throws what RunGateInit throws.
gate::Config FitConfig(const GateInit& init, const std::string& name, GateInputs& inputs,
                       Context& context);

// Prints the verdict: one line per case, then every failed rule with its place, its reason and the
// command that reproduces it. `input` names the input if there are several.
void PrintGate(Console& console, const gate::GateResult& result, const std::string& input = "");

// Prints every figure that a rule can name.
void PrintMetrics(Console& console);

// Prints lines for GitHub Actions on standard error: why a gate failed, at the cases of its config;
// or why there is no verdict, with its hint.
void PrintAnnotations(Console& console, const gate::GateResult& result, const std::string& config,
                      std::string_view config_text);
void PrintAnnotation(Console& console, const Error& error);

}  // namespace kv
