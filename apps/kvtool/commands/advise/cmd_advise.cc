// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

#include <algorithm>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/advise/advise_report.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/inputs/run_input.h"
#include "apps/kvtool/line/numbers.h"
#include "apps/kvtool/line/options.h"
#include "formats/run/run.h"
#include "formats/trace/trace.h"
#include "lib/engines/mnn/h2o/mnn_replay.h"
#include "lib/study/advise/report.h"

namespace kv {
namespace {

using advise::Advice;
using advise::LossKind;

constexpr double kUsualKl = 0.02, kUsualError = 0.05;  // limits if none is given

// The result of a run; its document has these fields.
struct Advised {
  std::vector<HashedFile> inputs;
  advise::Report report;
  std::vector<EngineSettings> engines;
  std::optional<advise::SavingsReport> savings;
  std::optional<advise::Answer> answer;
  std::optional<advise::Confirmation> confirmation;
};

const Fields<Advised>& AdvisedFields() {
  static const Fields<Advised> fields = {
      {"inputs", "The snapshots that were read, one for each run", &Advised::inputs,
       HashedFileFields(), Items(1)},
      Fields<Advised>::Inline(&Advised::report, advise::ReportFields()),
      {"engines", "Engine settings that keep the same tokens as a candidate within the limits",
       &Advised::engines, EngineSettingsFields()},
      {"savings",
       "Eviction, smaller types, both, lossless levels and offload on one frontier; null if types "
       "were not tried",
       &Advised::savings, advise::SavingsFields()},
      {"answer",
       "The plan to follow: best or savings.chosen, whichever saves more within the limits; null: "
       "no plan is within the limits",
       &Advised::answer, advise::AnswerFields()},
      {"confirmation", "Losses in the model itself; absent without --confirm",
       &Advised::confirmation, advise::ConfirmationFields(), Absent()}};
  return fields;
}

// The result without a run; its document has these fields.
const Fields<advise::StatesAdvice>& AdvisedStatesFields() {
  static const Fields<advise::StatesAdvice> fields = {
      NoInputs<advise::StatesAdvice>(),
      Fields<advise::StatesAdvice>::Inline(advise::StatesFields())};
  return fields;
}

// A cache and its trace, as files.
struct RunFiles {
  Snapshot snapshot;
  AttentionTrace trace;
};

class AdviseCommand : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("RUN", inputs_,
             "Recorded runs of one model, or snapshots, each with its --trace; or folders of saved "
             "states")
        .Required();
    line.Add("--trace", traces_, "Trace of each snapshot, in order (default: the run's)").KeepAll();
    line.Add("--max-kl", max_kl_,
             "Largest loss of the worst prompt, in nats per next token; needs gradients or "
             "--sensitivity (default: 0.02)")
        .NonNegative();
    line.Add("--max-error", max_error_,
             "Largest relative error of attention outputs for the worst prompt (default: 5%, if no "
             "loss in nats is known)");
    line.Add("--min-ratio", min_ratio_,
             "Least ratio at the end; alone, it asks for the plan of least loss")
        .Check(CheckedBy([](const std::string& text) { ParseRatios(text, "--min-ratio"); }));
    line.Add("--bytes-per-token", bytes_per_token_,
             "Largest number of bytes per token at the end, over all layers; alone, it asks for "
             "the plan of least loss")
        .Positive();
    savings_.Declare(line);
    DeclareCandidates(line);
    line.Add("--granularity", granularity_, "Unit of the plan: layer or kv-head (default: layer)")
        .OneOf({"layer", "kv-head"});
    line.Add("--sensitivity", sensitivity_,
             "Predict nats by these layer weights (kvtool.sensitivity/1), not by gradients "
             "(default: the run's own weights, if its trace has no gradients)");
    line.Add("--context", context_,
             "The model's full context, to say what a plan saves there (default: that of the run)")
        .Positive();
    line.Add("--prompt-tokens", prompt_, "Where prefill ends, if a trace does not say")
        .Between(int64_t{0}, int64_t{UINT32_MAX});
    line.Add("--sample-rows|--rows", rows_,
             "Decode rows of a run to measure, drawn by --seed; 0: all (default: 256)");
    line.Add("--seed", seed_, "Seed of the sampled rows and of policy random (default: 0)");
    line.Add("--idle-days", idle_days_,
             "Days without a write or read after which a saved state is idle (default: 30)");
    line.Add("--plan-out", plan_, "Write the plan of one run (kvtool.h2o-plan/1)").Essential();
    line.Add("--chosen-plan-out", chosen_plan_,
             "Write which tokens are kept by the plan chosen among all (kvtool.h2o-plan/1)");
    line.Add("--quant-plan-out", quant_plan_,
             "Write the types of each layer in that plan (kvtool.quant-plan/1)");
    confirm_.Declare(line);
    page_.Declare(line);
    line.AddFlag("-f,--force", force_, "Overwrite outputs");
    snapshot_.Declare(line);
    report_.Declare(line);
  }

  void TakeRuns() override {
    names_ = inputs_;
    std::vector<std::string> given = traces_;
    traces_.clear();
    if (confirm_.is_wanted) std::swap(confirm_.model, snapshot_.gguf);  // runs tell their heads
    for (std::string& input : inputs_) {
      const std::optional<RecordedRun> run = TakeRun(input, snapshot_);
      std::string trace;
      if (run) {
        trace = run->trace;
        if (run_sensitivity_.empty()) run_sensitivity_ = run->sensitivity;
        if (context_ == 0) context_ = run->context_length;
        if (model_.empty()) model_ = run->model;
        prompts_.push_back(run->prompt_tokens);
      } else {
        prompts_.push_back(std::nullopt);
      }
      if (trace.empty() && !given.empty()) {
        trace = given.front();
        given.erase(given.begin());
      }
      traces_.push_back(trace);
    }
    left_traces_ = given.size();
  }

  void Files(CommandFiles& files) const override {
    files.Reads(inputs_);
    files.Reads(traces_);
    files.Reads(sensitivity_);
    snapshot_.Files(files);
    files.Writes({{plan_, "--plan-out"},
                  {chosen_plan_, "--chosen-plan-out"},
                  {quant_plan_, "--quant-plan-out"}});
    page_.Files(files);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    if (AsksForStates()) return RunStates(context);
    ThreadPool pool(context.global.thread_count());
    std::vector<RunFiles> files = OpenRuns(context.console);
    advise::Runs runs;
    for (size_t i = 0; i < files.size(); ++i) {
      runs.push_back(
          std::make_unique<advise::AdviseRun>(names_[i], files[i].snapshot, files[i].trace,
                                              CountPromptTokens(i, files[i].trace), pool));
    }
    if (runs.size() > 1 && !(plan_.empty() && chosen_plan_.empty())) {
      throw Error(Finding::kUsage, "{}: a plan names the tokens of one prompt; give one run",
                  plan_.empty() ? "--chosen-plan-out" : "--plan-out");
    }
    const advise::AdviceRequest request = RequestFor(runs);
    RequireConfirmable(request);
    Advice advice;
    FoundSavings savings;
    std::vector<EngineSettings> settings;
    {
      ProgressLine progress(context.console, context.global.progress_when(), "measure", true);
      advice = advise::Advise(runs, request, pool, &progress);
      settings = SuggestEngineSettings(runs, request, advice, pool);
      savings = savings_.Find(runs, request, advice, nullptr, pool, &progress);
    }
    if (!savings.savings && !(chosen_plan_.empty() && quant_plan_.empty())) {
      throw Error(Finding::kUsage, "{}: only eviction was tried: {}",
                  quant_plan_.empty() ? "--chosen-plan-out" : "--quant-plan-out", savings.why_not);
    }
    if (savings.savings) {
      const std::vector<std::string>& more = savings.savings->warnings;
      advice.warnings.insert(advice.warnings.end(), more.begin(), more.end());
    }
    const std::optional<advise::Answer> answer =
        advise::FindAnswer(runs, request, advice, savings.savings ? &*savings.savings : nullptr);
    for (const std::string& warning : advice.warnings) context.console.Warn("", warning);
    std::optional<Error> failed;
    const auto confirmation =
        Confirm(context.console, runs, request, savings, answer, pool, advice, failed);
    if (!report_.json) {
      PrintAdvice(context.console, runs, request, advice);
      PrintSettings(context.console, request.measure.kind, settings);
      savings.Print(context.console, runs, request, advice, answer);
      PrintAnswer(context.console, answer,
                  CommandFor(answer, runs.size(), context.console.command_line));
      if (confirmation) PrintConfirmation(context.console, *confirmation, *answer);
    }
    WriteOutputs(context, {runs, request, advice}, settings, savings, answer, confirmation);
    if (failed) throw *failed;
    return answer ? kDone : kVerdict;
  }

 private:
  void DeclareCandidates(CommandLine& line) {
    line.Add("--policy|--policies", policies_,
             "Policies to choose from, a comma list (default: all that an engine could follow)")
        .Suggest(PolicyWords());
    line.Add("--budget|--budgets", budgets_,
             "Budgets of a part: shares or tokens (default: 0.75,0.5,0.35,0.25,0.18,0.125)");
    line.Add("--streaming-sink|--sinks", sinks_,
             "First tokens that streaming keeps (default: 4,16)")
        .Separator(',');
    line.Add("--recent-share|--recent", recent_,
             "Shares of a budget for recent tokens, for block and h2o (default: 0.25,0.5)");
    line.Add("--snapkv-window|--windows", windows_,
             "Observation windows of snapkv: numbers of last query rows (default: 16,64)")
        .Separator(',');
  }

  // Returns true without traces, if no option needs them.
  bool AsksForStates() const {
    const auto is_run = [](const auto& text) { return !text.empty(); };
    return left_traces_ == 0 && std::none_of(traces_.begin(), traces_.end(), is_run) && !max_kl_ &&
           max_error_.empty() && min_ratio_.empty() && bytes_per_token_ == 0 && plan_.empty() &&
           chosen_plan_.empty() && quant_plan_.empty() && sensitivity_.empty() &&
           !confirm_.is_wanted && AreStates(inputs_);
  }

  ExitStatus RunStates(Context& context) const {
    const advise::StatesAdvice advice =
        AdviseStates({inputs_, snapshot_.Resolve(FlagsFor::kSeveral), idle_days_}, context);
    if (!report_.json) PrintStates(context.console, advice);
    report_.Emit(context.console, "advise-states", AdvisedStatesFields, advice, RulesFor(force_));
    if (page_.wanted())
      page_.Write(advise::StatesPage(advice), *this, context.console, RulesFor(force_));
    return kDone;
  }

  std::vector<RunFiles> OpenRuns(Console& console) const {
    for (size_t i = 0; i < inputs_.size(); ++i) RequireTrace(traces_[i], names_[i]);
    if (left_traces_ > 0) {
      throw Error(Finding::kUsage, "--trace: {} not needed by any snapshot", left_traces_);
    }
    const OpenOptions options =
        snapshot_.Resolve(inputs_.size() > 1 ? FlagsFor::kSeveral : FlagsFor::kOne);
    std::vector<RunFiles> files;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      AttentionTrace trace = OpenTrace(traces_[i], options);
      Snapshot snapshot = OpenSnapshot(snapshot_.Open(inputs_[i]), options, FindGeometry(trace));
      if (snapshot.layers.empty()) {
        throw Error(Finding::kUnsupportedKind, "the snapshot has no attention layers")
            .File(inputs_[i]);
      }
      RequireHeads(snapshot, "advice");
      RequireMatch(trace, snapshot);
      if (trace.block_scores) {
        throw Error(Finding::kUsage, "a stream of block scores holds no attention to measure")
            .File(traces_[i]);
      }
      WarnAboutNotes(snapshot.notes, inputs_[i], console);
      for (const Note& note : trace.notes) console.Warn(traces_[i], note.text);
      files.push_back({std::move(snapshot), std::move(trace)});
    }
    return files;
  }

  uint64_t CountPromptTokens(size_t run, const AttentionTrace& trace) const {
    eviction::ReplayRequest request;
    if (prompt_ >= 0) {
      request.prompt_tokens = static_cast<uint64_t>(prompt_);
    } else if (!trace.prompt_tokens) {
      request.prompt_tokens = prompts_[run];
    }
    return eviction::PromptTokens(trace, request);
  }

  // Returns nats if they are known and no error was requested.
  LossKind KindFor(const advise::Runs& runs) const {
    if (!max_error_.empty() && max_kl_) {
      throw Error(Finding::kUsage, "--max-kl and --max-error: give one of them");
    }
    if (!max_error_.empty()) return LossKind::kOutput;
    if (!sensitivity_.empty()) return LossKind::kSensitivity;
    for (const auto& run : runs) {
      if (run->trace().gradients) continue;
      if (!run_sensitivity_.empty()) return LossKind::kSensitivity;
      if (max_kl_ || confirm_.is_wanted) {
        throw Error(Finding::kUsage, "{}: the trace has no gradients, so no loss in nats is known",
                    max_kl_ ? "--max-kl" : "--confirm")
            .File(run->name())
            .Hint(
                "capture them (python -m kvtool.capture MODEL --fisher 4 ...), give --sensitivity "
                "FILE, or limit the error of attention outputs by --max-error");
      }
      return LossKind::kOutput;
    }
    if (const std::optional<LossKind> kind = advise::FindFisherKind(runs)) return *kind;
    throw Error(Finding::kUsage,
                "the runs' gradients are of different states: of the recorded one, and of evicted "
                "ones")
        .Hint("capture all runs with the same --fisher and --fisher-evicted");
  }

  advise::AdviceRequest RequestFor(const advise::Runs& runs) const {
    advise::AdviceRequest request;
    request.measure.kind = KindFor(runs);
    request.measure.units =
        granularity_ == "layer" ? eviction::Granularity::kLayer : eviction::Granularity::kKvHead;
    request.measure.rows = rows_;
    request.measure.seed = request.candidates.seed = seed_;
    if (request.measure.kind == LossKind::kSensitivity) {
      const std::string& file = sensitivity_.empty() ? run_sensitivity_ : sensitivity_;
      request.measure.weights = ReadSensitivity(file).Weights();
    }
    ResolveLimits(request);
    if (bytes_per_token_ != 0) {
      const auto full = static_cast<double>(runs.front()->bytes_per_token());
      request.limits.share =
          std::min(request.limits.share, static_cast<double>(bytes_per_token_) / full);
    }
    ResolveCandidates(request.candidates);
    if (context_ > 0) request.context = context_;
    request.model = snapshot_.ModelName(model_.empty() ? runs.front()->trace().model : model_);
    return request;
  }

  // Throws before anything is measured, which takes minutes.
  void RequireConfirmable(const advise::AdviceRequest& request) const {
    if (!confirm_.is_wanted) return;
    if (confirm_.model.empty()) {
      throw Error(Finding::kUsage, "--confirm: --model is missing")
          .Hint("give the model that the run was captured from: a folder, a GGUF file or a name");
    }
    if (request.measure.kind == LossKind::kOutput) {
      throw Error(Finding::kUsage,
                  "--confirm: measures nats, which an error of attention outputs does not predict");
    }
    for (size_t i = 0; i < names_.size(); ++i) {
      if (prompts_[i]) continue;
      throw Error(Finding::kUsage, "--confirm: only a recorded run has the tokens to read again")
          .File(names_[i])
          .Hint("record one: python -m kvtool.capture MODEL ... -o run/");
    }
  }

  // Returns nothing if there is no plan to confirm, or if it failed: the advice is complete
  // without.
  std::optional<advise::Confirmation> Confirm(Console& console, const advise::Runs& runs,
                                              const advise::AdviceRequest& request,
                                              const FoundSavings& savings,
                                              const std::optional<advise::Answer>& answer,
                                              ThreadPool& pool, Advice& advice,
                                              std::optional<Error>& failed) const {
    if (!confirm_.is_wanted) return std::nullopt;
    if (!answer || answer->kind == "none") {
      console.Warn("", "--confirm: no plan was chosen that changes the cache");
      return std::nullopt;
    }
    try {
      advise::Confirmation confirmation =
          confirm_.Confirm(console, runs, request, advice,
                           savings.savings ? &*savings.savings : nullptr, *answer, pool);
      advice.scale = confirmation.scale;
      return confirmation;
    } catch (const Error& error) {
      failed = error;
      return std::nullopt;
    }
  }

  void ResolveLimits(advise::AdviceRequest& request) const {
    const LossKind kind = request.measure.kind;
    if (!min_ratio_.empty())
      request.limits.share = 1 / ParseRatios(min_ratio_, "--min-ratio").front();
    if (max_kl_) {
      request.limits.loss = advise::LossShownAs(kind, *max_kl_);
    } else if (!max_error_.empty()) {
      request.limits.loss = advise::LossShownAs(kind, ParseShare(max_error_, "--max-error", 0, 10));
    } else if (min_ratio_.empty() && bytes_per_token_ == 0) {
      request.limits.loss =
          advise::LossShownAs(kind, kind == LossKind::kOutput ? kUsualError : kUsualKl);
    }
  }

  void ResolveCandidates(advise::CandidateRequest& candidates) const {
    if (!policies_.empty()) candidates.policies = ParsePolicies(policies_, "--policy");
    const bool all = !policies_.empty() && candidates.policies == ParsePolicies("all");
    std::erase_if(candidates.policies, [&](const std::string& name) {
      const eviction::PolicyInfo& policy = *eviction::FindPolicy(name);
      if (policy.is_bound && !all) {
        throw Error(Finding::kUsage, "--policy {}: it uses later rows, which no engine knows",
                    name);
      }
      // A plan that evicts nothing keeps all tokens from the start.
      return policy.is_bound || policy.spending == eviction::Spending::kNone;
    });
    candidates.budgets =
        budgets_.empty() ? advise::UsualBudgets() : ParseBudgets(budgets_, "--budget");
    if (!sinks_.empty()) candidates.sinks = sinks_;
    if (!windows_.empty()) candidates.windows = windows_;
    if (!recent_.empty()) candidates.recent = ParseShares(recent_, "--recent-share", 0, 1);
  }

  void WriteOutputs(Context& context, const advise::Report& report,
                    const std::vector<EngineSettings>& settings, const FoundSavings& savings,
                    const std::optional<advise::Answer>& answer,
                    const std::optional<advise::Confirmation>& confirmation) const {
    const auto& [runs, request, advice] = report;
    Advised advised{{}, report, settings, {}, answer, confirmation};
    for (const auto& run : runs) advised.inputs.push_back(HashedFile::Of(run->snapshot().source));
    if (savings.savings) {
      advised.savings.emplace(
          advise::SavingsReport{runs, request, *savings.savings, savings.rows, advice.scale});
      WriteChosen(runs, advice, savings);
    }
    if (!plan_.empty()) WritePlan(*runs.front(), advice);
    if (page_.wanted()) {
      report::Page page =
          advise::AdvicePage(runs, request, advice, answer,
                             CommandFor(answer, runs.size(), context.console.command_line));
      if (confirmation) advise::AddConfirmation(*confirmation, *answer, page);
      if (advised.savings) advise::AddSavings(*advised.savings, page);
      page_.Write(page, *this, context.console, RulesFor(force_));
    }
    report_.Emit(context.console, "advise", AdvisedFields, advised, RulesFor(force_));
  }

  void WritePlan(const advise::AdviseRun& run, const Advice& advice) const {
    if (!advice.found.best) return;
    const advise::Point& best = *advice.found.best;
    WriteEvictions(plan_, RulesFor(force_), run,
                   best.uniform ? advice.candidates[*best.uniform].policy : "mixed",
                   advise::ListChoices(advice, best.choice), advice.plans.front());
  }

  // Describes what the chosen point keeps, and in which types.
  void WriteChosen(const advise::Runs& runs, const Advice& advice,
                   const FoundSavings& savings) const {
    if (!savings.savings->searched.found.best) return;
    const OutputRules rules = RulesFor(force_);
    if (!chosen_plan_.empty()) {
      WriteEvictions(chosen_plan_, rules, *runs.front(), "mixed",
                     advise::ChosenChoices(advice, *savings.savings),
                     savings.savings->plans.front());
    }
    if (!quant_plan_.empty())
      WriteTypes(quant_plan_, rules, runs, *savings.savings, savings.savings->types_of_layers);
  }

  std::vector<std::string> names_, inputs_, traces_;  // given names, and files they stand for
  std::vector<std::optional<uint64_t>> prompts_;      // prompt lengths of recorded runs
  std::string run_sensitivity_, model_;               // properties of recorded runs
  size_t left_traces_ = 0;
  std::optional<double> max_kl_;
  std::string max_error_, min_ratio_, policies_, budgets_, recent_, sensitivity_, plan_;
  std::string chosen_plan_, quant_plan_;
  SavingsOptions savings_;
  ConfirmOptions confirm_;
  std::string granularity_ = "layer";
  std::vector<uint64_t> sinks_, windows_;
  uint64_t context_ = 0, bytes_per_token_ = 0, rows_ = 256, seed_ = 0, idle_days_ = 30;
  int64_t prompt_ = -1;
  bool force_ = false;
};

}  // namespace

const FieldTable& AdviseFields() { return AdvisedFields(); }
const FieldTable& AdviseStatesFields() { return AdvisedStatesFields(); }

std::unique_ptr<Command> MakeAdvise() { return std::make_unique<AdviseCommand>(); }

}  // namespace kv
