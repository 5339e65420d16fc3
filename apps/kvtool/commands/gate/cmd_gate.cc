// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <set>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/gate/gate_cases.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/inputs/each_command.h"
#include "apps/kvtool/inputs/run_input.h"
#include "apps/kvtool/line/numbers.h"
#include "apps/kvtool/line/options.h"
#include "lib/engines/mnn/gate/engine.h"
#include "lib/study/gate/config.h"
#include "lib/study/gate/judge.h"
#include "lib/study/gate/summary.h"
#include "lib/study/gate/summary_view.h"

namespace kv {
namespace {

struct GateDocument {
  std::vector<HashedFile> inputs;
  gate::GateSummary summary;
  std::vector<std::string> warnings;
};

std::string_view ParamText(std::string_view name) {
  if (name == "h2o_enable") return "1: eviction is on";
  if (name == "h2o_lossless_runtime_mode") {
    return "probe: compress samples of the first layer of each kind; full: compress the layers in "
           "scope; neither changes the cache; store: what is compressed leaves the cache until the "
           "layer's next step";
  }
  return RuntimeParameterText(name).text;
}

const Fields<GateDocument>& DocumentFields() {
  static const Fields<GateDocument> fields = {
      {"inputs", "What was read", &GateDocument::inputs, HashedFileFields()},
      Fields<GateDocument>::Inline(&GateDocument::summary,
                                   gate::SummaryFields(mnn::Engine(), ParamText)),
      {"warnings", "Warnings of the run", &GateDocument::warnings}};
  return fields;
}

class Gate : public ForEachInput<Gate> {
 public:
  void Declare(CommandLine& line) override {
    place_ = "INPUT";
    line.Add("CONFIG", inputs_.given,
             "Cases and thresholds (JSON, // comments allowed), then snapshots or recorded runs, "
             "each judged by all cases; without a config: each judged by the config that --init "
             "would write; with --init: recorded runs or snapshots");
    inputs_.DeclareRest(line);
    line.AddFlag("--init", init_,
                 "Measure the runs, and write a config whose limits fit them (-o FILE)");
    line.Add("--suite", suite_, "Without CONFIG: the cases of this engine's own test suite instead")
        .OneOf({std::string(mnn::Engine().name)});
    line.Add("--snapshot", snapshot_path_,
             "Snapshot for cases that name no snapshot; without CONFIG: judged by the config that "
             "--init would write");
    line.Add("--trace", trace_, "Trace for cases that name no trace: file, folder, or DIR/STEM");
    line.Add("--reference", reference_,
             "Reference cache that the snapshot must equal, for cases that name no reference; "
             "without CONFIG the only check");
    line.Add("--prompt-tokens", prompts_, "Lengths of the prompt, one row each, e.g. 512,1024");
    line.Add("--decode-tokens", decode_,
             "Tokens decoded after each prompt, e.g. 128 (default: to the end)");
    line.Add("--case", only_, "Run this case only; may be repeated").KeepAll();
    line.Add("--require", required_,
             "A rule for all cases that have the figure: 'loss.mean_kl<=0.01'; may be repeated")
        .KeepAll();
    line.Add("-o,--output", outputs_.summary_json,
             "Write summary.json, with summary.md and cases.jsonl beside it (beside NAME.json: "
             "NAME.md and NAME.cases.jsonl)")
        .Essential();
    line.Add("--md-out", outputs_.summary_md, "Write summary.md here");
    line.Add("--cases-out", outputs_.cases_jsonl, "Write cases.jsonl here");
    page_.Declare(line);
    line.Add("--junit-out", junit_, "Write JUnit XML: one test per rule").Essential();
    line.Add("--annotations", annotations_,
             "Print failures on standard error as annotations that a CI system understands")
        .OneOf({"none", "github"});
    line.Add("--baseline", baseline_, "An older summary.json to compare with").Essential().Once();
    line.Add(
            "--pinned", pinned_,
            "A fixed older summary.json, so that small losses from run to run add up and are found")
        .Once();
    line.AddFlag("--baseline-lenient", lenient_,
                 "Only warn, instead of failing, if a baseline failed, lacks cases or is of "
                 "another snapshot or trace");
    line.AddFlag("--new-recordings", new_recordings_,
                 "Accept a baseline of other data, because data are recorded anew for every run");
    line.Add("--commit", commit_, "Name of the commit that is measured, for reports and baselines");
    line.AddFlag("--strict", strict_, "Count rules and cases as failed that were not decided");
    line.AddFlag("--list-metrics", list_metrics_,
                 "List the metrics that rules can name, with their meaning");
    line.AddFlag("--json", report_.json,
                 "Print the summary as a JSON document instead of the table");
    report_.DeclareVersion(line);
    line.AddFlag("-f,--force", force_, "Overwrite outputs");
    // Hidden: for tests of a gate with a runtime that loses content.
    line.Add("--inject-fault", fault_).Group("");
    logs_.Declare(line);
    reading_.Declare(line);
  }

  // `gate --from SUMMARY` shows a summary. The option also says the format of snapshots.
  std::vector<std::string> Instead(const std::vector<std::string>& arguments) const override {
    const std::vector<std::string> formats = ReadableFormats();
    const std::string& from = reading_.open.from;
    if (from.empty() || std::find(formats.begin(), formats.end(), from) != formats.end()) return {};
    constexpr std::string_view kFlag = "--from";
    std::vector<std::string> words = {"report"};
    for (const std::string& word : arguments) {
      if (word == kFlag) continue;
      words.push_back(word.starts_with("--from=") ? word.substr(kFlag.size() + 1) : word);
    }
    return words;
  }

  // The first word is the config, unless it is an input.
  EachCommand* AsEach() override {
    if (!init_ && !inputs_.given.empty() && IsGateConfig(inputs_.given.front())) {
      config_ = inputs_.given.front();
      inputs_.given.erase(inputs_.given.begin());
    }
    if (inputs_.given.empty() && !inputs_.searches()) return nullptr;
    RequireInputsAlone();
    return this;
  }
  bool JoinsInputs() const override { return init_; }
  std::vector<std::string> Words() const override {
    return config_.empty() ? std::vector<std::string>() : std::vector<std::string>{config_};
  }

  // Without a config a run is judged from the end of its own prompt.
  void TakeRuns() override {
    if (init_) return;
    if (!input_.empty()) snapshot_path_ = input_;
    given_snapshot_ = snapshot_path_;
    given_prompts_ = prompts_;
    if (is_one_of_many() && !(baseline_.empty() && pinned_.empty())) {
      throw Error(Finding::kUsage,
                  "a baseline belongs to one snapshot: it cannot be used with many inputs");
    }
    given_trace_ = trace_;
    const std::optional<RecordedRun> run = TakeRun(snapshot_path_, reading_);
    TakeTrace(run, trace_);
    if (run && prompts_.empty() && config_.empty()) prompts_ = std::to_string(run->prompt_tokens);
    if (!reference_.empty()) TakeRun(reference_, reading_);
  }

  void Files(CommandFiles& files) const override {
    if (init_) {
      files.Reads(joined_);
      files.Reads(trace_);
      files.Writes(outputs_.summary_json, "-o");
      return;
    }
    files.Reads({config_, snapshot_path_, trace_, baseline_, pinned_, reference_});
    files.Reads(of_cases_);
    reading_.Files(files);
    logs_.Files(files);
    const gate::OutputNames outputs = PlaceOutputs(outputs_);
    files.Writes(outputs.summary_json, "-o");
    files.Writes(outputs.summary_md, "--md-out");
    files.Writes(outputs.cases_jsonl, "--cases-out");
    page_.Files(files);
    files.Writes(junit_, "--junit-out");
  }

  ExitStatus Run(Context& context) override {
    try {
      return Judge(context);
    } catch (Error& error) {
      if (error.finding() == Finding::kUnknownFormat && !input_.empty()) HintAtLogs(input_, error);
      if (annotations_ == "github") PrintAnnotation(context.console, error);
      throw;
    }
  }

 private:
  // Rejects options that name other data than the inputs.
  void RequireInputsAlone() {
    if (!snapshot_path_.empty()) {
      throw Error(Finding::kUsage, "--snapshot: the inputs are snapshots already");
    }
    if (logs_.given()) {
      throw Error(Finding::kUsage, "--engine-logs: the logs of an engine have cases of their own");
    }
    if (init_ && inputs_.is_corpus()) {
      throw Error(Finding::kUsage, "--init makes one config of all inputs: it gives no results");
    }
    if (config_.empty() || init_) return;
    if (config_ == "-" && inputs_.is_corpus()) {
      throw Error(Finding::kUsage, "a config from standard input has no name for the results");
    }
    shared_config_ = std::make_shared<const gate::Config>(ReadGateConfig(config_));
    for (const gate::CaseSpec& spec : shared_config_->cases) {
      if (spec.snapshot.empty()) continue;
      throw Error(Finding::kUsage,
                  "case '{}' has a snapshot of its own, and inputs were given, too",
                  Escaped(spec.name))
          .File(config_)
          .Hint("leave 'snapshot' out of its cases and defaults: each case then judges each input");
    }
  }

  // Returns true if the input is one of several.
  bool is_one_of_many() const { return report_.collects; }

  void CheckUsage() const {
    logs_.RequireLogs();
    if (!fault_.empty() && fault_ != "content") {
      throw Error(Finding::kUsage, "--inject-fault: expected 'content'");
    }
    CheckBaselineFlags();
    if (!suite_.empty() && (!config_.empty() || !reference_.empty())) {
      throw Error(Finding::kUsage, "--suite: {}",
                  config_.empty() ? "--reference has a case of its own"
                                  : "the config has cases of its own");
    }
    if (decode_ == uint64_t{0}) {
      throw Error(Finding::kUsage, "--decode-tokens: expected at least 1");
    }
  }

  gate::GateResult BeginResult() const {
    gate::GateResult result;
    result.engine = &mnn::Engine();
    result.commit = commit_;
    if (!baseline_.empty()) result.baseline = ReadGateBaseline(baseline_);
    if (!pinned_.empty()) result.pinned = ReadGateBaseline(pinned_);
    return result;
  }

  ExitStatus Judge(Context& context) {
    if (list_metrics_) {
      PrintMetrics(context.console);
      return kDone;
    }
    if (init_) return Init(context);
    CheckUsage();
    std::vector<gate::Rule> rules;
    for (const std::string& text : required_) {
      rules.push_back(gate::ParseRule(text, mnn::Engine()));
    }
    gate::Config config = ResolveConfig();
    CheckCases(config);
    const bool fits = FitsCases();
    if (fits) RequireFitting();
    outputs_ = PlaceOutputs(outputs_);
    OutputFiles files(RulesFor(force_));
    for (const std::string& path :
         {outputs_.summary_json, outputs_.summary_md, outputs_.cases_jsonl, page_.html, junit_}) {
      files.Open(path);
    }
    if (input_.empty()) {
      WarnUnused("--snapshot", snapshot_path_, &gate::CaseSpec::snapshot, config, context.console);
      WarnUnused("--trace", given_trace_, &gate::CaseSpec::trace, config, context.console);
    }
    gate::GateResult result = BeginResult();
    if (!fault_.empty()) {
      context.console.Warn("--inject-fault",
                           "each replay flips one bit of its final cache: the gate must fail");
    }
    GateInputs inputs(context.console, reading_);
    if (fits) {
      config = FitConfig(ToFit(), given_snapshot_, inputs, context);
      gate::KeepCases(only_, config);
    }
    GateCases{logs_, only_, !fault_.empty(), rules}.Run(context, config, inputs, result);
    gate::Judge({config.baseline_rules, config.pinned_rules.value_or(config.baseline_rules),
                 strict_, lenient_, new_recordings_, ReportHeader("gate")["tool"]["version"],
                 config.pinned_commit, !only_.empty(), MayStart(), config.expected},
                result);
    gate::AddReproduction(CommandWords(context), result);
    for (const std::string& text : result.warnings) context.console.Warn(config_, text);
    WriteOutputs(context, inputs, result, files);
    if (!report_.json) {
      PrintGate(context.console, result, is_one_of_many() ? name_ : std::string());
      if (fits && !is_one_of_many()) PrintHowToKeep(context.console);
      if (result.starts_baseline && result.passed()) PrintHowToCompare(context.console);
    }
    if (annotations_ == "github") {
      const bool is_file = !config_.empty() && config_ != "-";
      PrintAnnotations(context.console, result, config_, is_file ? ReadGateText(config_) : "");
    }
    return result.failed() ? kVerdict : kDone;
  }

  ExitStatus Init(Context& context) const {
    const bool judges = !reference_.empty() || !only_.empty() || !baseline_.empty() ||
                        !pinned_.empty() || !snapshot_path_.empty() || page_.wanted() ||
                        !junit_.empty() || !outputs_.summary_md.empty() ||
                        !outputs_.cases_jsonl.empty() || !suite_.empty() || !required_.empty() ||
                        report_.json || strict_ || decode_;
    if (logs_.given()) {
      throw Error(Finding::kUsage, "--init makes a config of recorded runs: logs need none")
          .Hint(
              "with -o and without rules, 'kvtool gate --engine-logs' writes the first baseline of "
              "logs");
    }
    if (judges) {
      throw Error(Finding::kUsage,
                  "--init judges nothing: it takes runs, --trace, --prompt-tokens, -o and the "
                  "options for reading a snapshot");
    }
    const std::vector<uint64_t> prompts = Prompts();
    if (prompts.size() > 1) throw Error(Finding::kUsage, "--init: expected one --prompt-tokens");
    GateInit init{joined_, trace_, outputs_.summary_json, {}, reading_, force_};
    if (!prompts.empty()) init.prompt_tokens = prompts.front();
    return RunGateInit(init, context);
  }

  std::vector<uint64_t> Prompts() const {
    std::vector<uint64_t> prompts;
    if (prompts_.empty()) return prompts;
    for (const double value : ParseSweep(prompts_, "--prompt-tokens")) {
      if (!(value >= 1 && value == std::floor(value))) {
        throw Error(Finding::kUsage, "--prompt-tokens: expected whole numbers, at least 1");
      }
      prompts.push_back(static_cast<uint64_t>(value));
    }
    return prompts;
  }

  gate::Config ResolveConfig() const {
    gate::Config config;
    if (!config_.empty()) {
      config = shared_config_ != nullptr ? *shared_config_ : ReadGateConfig(config_);
    } else if (!snapshot_path_.empty() && !reference_.empty()) {
      config = gate::CompareConfig(snapshot_path_, reference_, mnn::Engine());
    } else if (FitsCases()) {
      // One case stands for those that are measured later, so that its files can be checked.
      gate::CaseSpec spec;
      spec.snapshot = snapshot_path_;
      spec.trace = trace_;
      return {.cases = {std::move(spec)}};
    } else if (!snapshot_path_.empty()) {
      config = gate::SuiteConfig(snapshot_path_, trace_, mnn::Engine());
    } else if (logs_.given()) {
      config.baseline_rules = gate::DefaultBaselineRules(mnn::Engine());
      return config;
    } else {
      throw Error(Finding::kUsage, "expected CONFIG, or --snapshot and --trace, or --engine-logs");
    }
    if (config.cases.empty()) {
      if (!logs_.given()) {
        throw Error(Finding::kUsage, "a config without 'cases' needs --engine-logs");
      }
      return config;
    }
    gate::KeepCases(only_, config);
    const std::vector<uint64_t> prompts = Prompts();
    for (gate::CaseSpec& spec : config.cases) {
      if (spec.snapshot.empty()) spec.snapshot = snapshot_path_;
      if (spec.trace.empty()) spec.trace = trace_;
      if (spec.reference.empty() && !spec.only_engine) {
        spec.reference = reference_;
        gate::RequireReference(spec);
      }
      if (!prompts.empty()) spec.prompt_tokens = prompts;
      if (decode_) spec.decode_tokens = decode_;
    }
    return config;
  }

  // An option for cases without a file of their own is unused if every case names one.
  void WarnUnused(const char* option, const std::string& path, std::string gate::CaseSpec::*file,
                  const gate::Config& config, Console& console) const {
    const auto uses = [&](const gate::CaseSpec& spec) { return spec.*file == path; };
    if (path.empty() || config_.empty() || config.cases.empty() ||
        std::ranges::any_of(config.cases, uses))
      return;
    console.Warn(config_, fmt::format("{} {} is not used: every case names its own", option,
                                      Printable(path)));
  }

  // Without a config, a cache is judged by cases that fit it, unless those of the suite are named.
  bool FitsCases() const {
    const auto names_suite = [](const std::string& name) {
      return mnn::Engine().FindSuiteCase(name).has_value();
    };
    return config_.empty() && suite_.empty() && reference_.empty() && !snapshot_path_.empty() &&
           !logs_.given() && std::none_of(only_.begin(), only_.end(), names_suite);
  }

  void RequireFitting() const {
    if (Prompts().size() <= 1 && !decode_) return;
    throw Error(Finding::kUsage,
                "{}: without a config, cases decode the whole cache after one prompt",
                decode_ ? "--decode-tokens" : "--prompt-tokens")
        .Hint(
            fmt::format("--suite {}, or a config, has cases of other lengths", mnn::Engine().name));
  }

  GateInit ToFit() const {
    GateInit init{{snapshot_path_}, trace_, {}, {}, reading_};
    const std::vector<uint64_t> prompts = Prompts();
    if (!prompts.empty()) init.prompt_tokens = prompts.front();
    return init;
  }

  void PrintHowToKeep(Console& console) const {
    std::vector<std::string> words = {"kvtool", "gate", "--init", given_snapshot_};
    AddOption("--trace", given_trace_, words);
    AddOption("--prompt-tokens", given_prompts_, words);
    AddReading(words);
    AddOption("-o", "gate.json", words);
    console.Line("limits: the figures of this cache, less a margin; to keep them: " +
                 gate::ShellLine(words));
  }

  // Returns true if these logs are the first baseline, because no rule judges them.
  bool MayStart() const {
    return logs_.given() && config_.empty() && required_.empty() && baseline_.empty() &&
           pinned_.empty() && !outputs_.summary_json.empty();
  }

  void PrintHowToCompare(Console& console) const {
    std::vector<std::string> words = {"kvtool", "gate"};
    logs_.AddWords(words);
    AddOption("--baseline", outputs_.summary_json, words);
    console.Line("no rule judges these logs: their figures are the first baseline; later: " +
                 gate::ShellLine(words));
  }

  void AddReading(std::vector<std::string>& words) const {
    const auto number = [](uint32_t n) { return n == 0 ? std::string() : std::to_string(n); };
    AddOption("--from", reading_.open.from, words);
    AddOption("--model", reading_.gguf, words);
    AddOption("--kv-heads", number(reading_.kv_heads), words);
    AddOption("--head-dim", number(reading_.head_dim), words);
  }

  void CheckBaselineFlags() const {
    if (baseline_.empty() && pinned_.empty() && (lenient_ || new_recordings_)) {
      throw Error(Finding::kUsage, "{} goes with --baseline or --pinned",
                  lenient_ ? "--baseline-lenient" : "--new-recordings");
    }
    constexpr size_t kLongest = 200;
    if (commit_.size() > kLongest || Escaped(commit_) != commit_) {
      throw Error(Finding::kUsage, "--commit: expected at most 200 printable bytes");
    }
  }

  // Adds the files that the cases name, each once and none of those given as options, and checks
  // that no output would be written over any of them.
  void CheckCases(const gate::Config& config) {
    std::set<std::string> known = {"", snapshot_path_, trace_, reading_.gguf, reference_};
    for (const gate::CaseSpec& spec : config.cases) {
      for (const std::string& path :
           {spec.snapshot, spec.trace, spec.reading.gguf, spec.reference}) {
        if (known.insert(path).second) of_cases_.push_back(path);
      }
    }
    CommandFiles files;
    Files(files);
    files.Check();
  }

  std::vector<std::string> CommandWords(const Context& context) const {
    std::vector<std::string> words = {"kvtool", "gate"};
    const auto add = [&](std::string_view flag, const std::string& value) {
      AddOption(flag, value, words);
    };
    if (!config_.empty()) words.push_back(config_);
    if (!input_.empty()) words.push_back(input_);
    if (input_.empty()) add("--snapshot", snapshot_path_);
    add("--trace", input_.empty() ? trace_ : given_trace_);
    add("--reference", reference_);
    add("--prompt-tokens", prompts_);
    if (decode_) add("--decode-tokens", std::to_string(*decode_));
    AddReading(words);
    add("--suite", suite_);
    for (const std::string& rule : required_) add("--require", rule);
    logs_.AddWords(words);
    add("--inject-fault", fault_);
    add("--baseline", baseline_);
    add("--pinned", pinned_);
    if (new_recordings_) words.emplace_back("--new-recordings");
    if (lenient_) words.emplace_back("--baseline-lenient");
    if (strict_) words.emplace_back("--strict");
    if (context.global.deterministic) words.emplace_back("--deterministic");
    return words;
  }

  void WriteOutputs(Context& context, const GateInputs& inputs, const gate::GateResult& result,
                    OutputFiles& files) const {
    const std::string now =
        context.global.deterministic
            ? std::string()
            : fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
    nlohmann::ordered_json document = ReportHeader("gate");
    document.update(ToJson(DocumentFields().Object(
        {inputs.records(), {result, now, outputs_}, context.console.warning_texts()})));
    std::string cases;
    for (const nlohmann::ordered_json& row : document["rows"]) {
      cases += JsonText(row, -1, true) + "\n";
    }
    files.Write(outputs_.cases_jsonl, cases);
    files.Write(outputs_.summary_md, gate::SummaryMarkdown(result, outputs_));
    files.Write(outputs_.summary_json, JsonText(document, 2, true) + "\n");
    const gate::Summary summary{outputs_.summary_json, document};
    std::optional<report::Page> page;
    if (page_.wanted()) {
      page = gate::SummaryPage({&summary, 1}, mnn::Engine());
      page_.CheckPictures(*page, *this);
      files.Write(page_.html, page->Text(DescribeOrigin(*this, context.console)));
    }
    if (!junit_.empty()) files.Write(junit_, gate::SummaryJunit(summary, mnn::Engine()));
    files.Commit();
    if (page) page_.WritePictures(*page, *this, context.console, RulesFor(force_));
    report_.Emit(context.console, document, RulesFor(false));
  }

  std::string config_, suite_, snapshot_path_, trace_, reference_, prompts_, baseline_, pinned_,
      commit_, annotations_, junit_, fault_;
  std::string given_snapshot_, given_trace_, given_prompts_;  // as given, before a run sets its own
  std::shared_ptr<const gate::Config> shared_config_;         // the same config for every input
  std::vector<std::string> only_, required_;
  std::vector<std::string> of_cases_;  // files that the config of a case names
  gate::OutputNames outputs_;
  std::optional<uint64_t> decode_;
  bool force_ = false, list_metrics_ = false, strict_ = false, lenient_ = false,
       new_recordings_ = false, init_ = false;
  EngineLogOptions logs_;
  SnapshotOptions reading_;
};

}  // namespace

const FieldTable& GateFields() { return DocumentFields(); }
std::unique_ptr<Command> MakeGate() { return std::make_unique<Gate>(); }

}  // namespace kv
