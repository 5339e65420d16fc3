// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool plan`: checks eviction plans, alone or against the cache that they are for.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "formats/plan/plan.h"

namespace kv {
namespace {

// Checking a plan ends after this many findings.
constexpr size_t kMostFindings = 20;

struct PlanFinding {
  std::string place, text;
};

struct CheckedPlan {
  PlanHeader header;
  uint64_t events = 0, wrong = 0;
  uint64_t first_token = 0, last_token = 0;
  std::vector<PlanFinding> findings;  // the first ones

  void Add(std::string place, std::string text) {
    if (++wrong <= kMostFindings) findings.push_back({std::move(place), std::move(text)});
  }
};

std::string DescribePlace(uint64_t number, const PlanEvent& event) {
  return fmt::format("event {} (token {}, layer {}{})", number, event.token, event.layer,
                     event.kv_head ? fmt::format(", kv head {}", *event.kv_head) : "");
}

double ComputeKept(const EvictionPlanWalk::Layer& layer) {
  const auto sum = std::accumulate(layer.kept.begin(), layer.kept.end(), uint64_t{0});
  return static_cast<double>(sum) / static_cast<double>(layer.kept.size());
}

double ComputeRatio(const EvictionPlanWalk& walk) {
  return static_cast<double>(walk.full_bytes()) / walk.kept_bytes();
}

// Reads a plan and checks it, with `walk` also against a snapshot.
CheckedPlan Read(const std::string& path, EvictionPlanWalk* walk) {
  CheckedPlan plan;
  plan.header =
      ReadPlan(*FileSource::Open(path, kMostOfList), [&](uint64_t number, const PlanEvent& event) {
        if (plan.events++ == 0) plan.first_token = event.token;
        plan.last_token = event.token;
        if (walk == nullptr) return;
        if (auto wrong = walk->Apply(event))
          plan.Add(DescribePlace(number, event), std::move(*wrong));
      });
  return plan;
}

CheckedPlan Check(const std::string& path, const Snapshot& snapshot, EvictionPlanWalk& walk) {
  CheckedPlan plan = Read(path, &walk);
  const HashedFile source = HashedFile::Of(snapshot.source);
  if (source.xxh3 != plan.header.source_xxh3 || source.bytes != plan.header.source_bytes) {
    plan.Add("source",
             fmt::format("the plan is for {} bytes with XXH3 {}, the snapshot has {} with {}",
                         plan.header.source_bytes, Escaped(plan.header.source_xxh3, 40),
                         source.bytes, source.xxh3));
  }
  return plan;
}

// The result of a run; its document has these fields.
struct PlanVerdict {
  std::string plan, snapshot;
  const CheckedPlan& checked;
  const EvictionPlanWalk* walk = nullptr;  // null if no snapshot was given

  std::vector<NamedFile> inputs() const {
    if (walk == nullptr) return {{"plan", plan}};
    return {{"plan", plan}, {"snapshot", snapshot}};
  }
  // Returns a field for a figure that needs the snapshot.
  template <typename Get>
  auto IfWalked(const Get& get) const {
    return walk == nullptr ? std::nullopt : std::optional(get(*walk));
  }
  std::optional<uint64_t> IfEvents(uint64_t token) const {
    return checked.events == 0 ? std::nullopt : std::optional(token);
  }
};

const Fields<PlanFinding>& PlanFindingFields() {
  static const Fields<PlanFinding> fields = {
      {"place", "Place of the error: the event with its token and layer, or source",
       &PlanFinding::place},
      {"text", "What is wrong with the plan", &PlanFinding::text}};
  return fields;
}

const Fields<PlanVerdict>& PlanVerdictFields() {
  using Of = PlanVerdict;
  using Layer = EvictionPlanWalk::Layer;
  static const Fields<Layer> plan_layer = {
      {"layer", "Number of the layer", &Layer::layer},
      {"by_kv_head", "Whether events name kv heads; if not, an event covers the whole layer",
       &Layer::by_head},
      {"events", "Number of events of the kv head that has the most", &Layer::events},
      {"kept_tokens", "Tokens held at the snapshot's end, by kv head", &Layer::kept}};
  static const Fields<Of> fields = {
      {"inputs", "What was read", &Of::inputs, NamedFileFields()},
      {"plan", "Name of the plan's file as it was given", &Of::plan},
      {"policy", "Policy that chose the tokens, according to the plan",
       [](const Of& of) { return of.checked.header.policy; }},
      {"engine", "Engine whose decisions these are, according to the plan",
       [](const Of& of) { return of.checked.header.engine; }},
      {"schedule", "When tokens are evicted, according to the plan",
       [](const Of& of) { return of.checked.header.schedule; }},
      {"events", "Events of the plan", [](const Of& of) { return of.checked.events; }},
      {"first_token", "Token after which the first event comes; null without events",
       [](const Of& of) { return of.IfEvents(of.checked.first_token); }},
      {"last_token", "Token after which the last event comes; null without events",
       [](const Of& of) { return of.IfEvents(of.checked.last_token); }},
      {"layers", "Tokens that the plan keeps in each layer",
       [](const Of& of) { return of.walk == nullptr ? std::vector<Layer>() : of.walk->Layers(); },
       plan_layer, CsvRows()},
      {"full_bytes", "Bytes of K and V of the whole snapshot; null without a snapshot",
       [](const Of& of) {
         return of.IfWalked([](const auto& walk) { return walk.full_bytes(); });
       }},
      {"kept_bytes", "Bytes of K and V that are held at the end; null without a snapshot",
       [](const Of& of) { return of.IfWalked([](const auto& walk) { return walk.kept_bytes(); }); },
       AtLeast(0)},
      {"ratio", "full_bytes / kept_bytes; null if nothing is kept, and without a snapshot",
       [](const Of& of) {
         return of.IfWalked([](const auto& walk) { return ComputeRatio(walk); });
       },
       Nullable()},
      {"common",
       "Whether all layers and kv heads always hold the same tokens; null without a snapshot",
       [](const Of& of) { return of.IfWalked([](const auto& walk) { return walk.is_common(); }); }},
      {"findings", "The first twenty errors in the plan",
       [](const Of& of) { return of.checked.findings; }, PlanFindingFields()},
      {"findings_count", "Number of errors, including those after the first twenty",
       [](const Of& of) { return of.checked.wrong; }},
      {"verdict",
       "sound: the plan can be applied to the snapshot; wrong: it cannot; read: there is no "
       "snapshot, and every event is valid",
       [](const Of& of) {
         return of.checked.wrong != 0 ? "wrong" : of.walk == nullptr ? "read" : "sound";
       },
       OneOf("sound", "wrong", "read")}};
  return fields;
}

class Plan : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.RequireVerb();
    CommandLine* check = &line.AddVerb("check", "Say whether a plan can be applied to a cache");
    check->Add("PLAN", plan_, "Plan of replay evict --plan-out or of your own").Required();
    check
        ->Add("--snapshot", input_,
              "The plan's cache, or a recorded run; without this option only the plan is read")
        .Essential();
    snapshot_.Declare(*check);
    report_.Declare(*check);
  }

  void TakeRuns() override {
    if (!input_.empty()) TakeRun(input_, snapshot_);
  }

  void Files(CommandFiles& files) const override {
    files.Reads(plan_);
    Command::Files(files);
  }

  ExitStatus Run(Context& context) override {
    if (input_.empty()) {
      const CheckedPlan plan = Read(plan_, nullptr);
      if (!report_.json) {
        PrintHead(context.console, plan);
        context.console.Line(
            "  every event is valid; --snapshot CACHE checks whether the plan fits a cache");
      }
      report_.Emit(context.console, "plan-check", PlanVerdictFields().Object({plan_, "", plan}));
      return kDone;
    }
    OpenOptions options = snapshot_.Resolve();
    options.metadata_only = true;
    const Snapshot snapshot = OpenSnapshot(snapshot_.Open(input_), options);
    if (snapshot.layers.empty()) {
      throw Error(Finding::kUnsupportedKind, "the snapshot has no attention layers").File(input_);
    }
    RequireHeads(snapshot, "a plan");
    WarnAboutNotes(snapshot.notes, input_, context.console);
    EvictionPlanWalk walk(snapshot);
    const CheckedPlan plan = Check(plan_, snapshot, walk);
    if (!report_.json) Print(context.console, plan, walk);
    const PlanVerdict result = {plan_, input_, plan, &walk};
    report_.Emit(context.console, "plan-check", PlanVerdictFields, result);
    return plan.wrong == 0 ? kDone : kVerdict;
  }

 private:
  void PrintHead(Console& console, const CheckedPlan& plan) const {
    const PlanHeader& header = plan.header;
    console.Line(fmt::format("{}: policy {}, engine {}, schedule {}; made for {}", Printable(plan_),
                             Printable(header.policy), Printable(header.engine),
                             Printable(header.schedule), Printable(header.source_file)));
    console.Line(plan.events == 0 ? std::string("  no events: everything stays")
                                  : fmt::format("  {} events, after tokens {} to {}", plan.events,
                                                plan.first_token, plan.last_token));
  }

  void Print(Console& console, const CheckedPlan& plan, const EvictionPlanWalk& walk) const {
    PrintHead(console, plan);
    Table table({"layer", "events", "plans", "kept tokens", "of"});
    for (const EvictionPlanWalk::Layer& layer : walk.Layers()) {
      table.Row({std::to_string(layer.layer), std::to_string(layer.events),
                 layer.by_head ? fmt::format("{} kv heads", layer.kept.size()) : "layer",
                 fmt::format("{:g}", ComputeKept(layer)),
                 std::to_string(walk.tokens(layer.layer))});
    }
    console.Data(table.Text("  "));
    console.Line(fmt::format("  ratio at the end {:.3f}x; {}", ComputeRatio(walk),
                             walk.is_common()
                                 ? "all layers and heads hold the same tokens"
                                 : "layers or heads differ: an engine needs a mask for each"));
    for (const PlanFinding& finding : plan.findings) {
      console.Line(fmt::format("  {}: {}", finding.place, finding.text));
    }
    if (plan.wrong > plan.findings.size()) {
      console.Line(fmt::format("  and {} more", plan.wrong - plan.findings.size()));
    }
    console.Line(plan.wrong == 0
                     ? console.Verdict(true, "sound")
                     : fmt::format("{}: {} findings", console.Verdict(false, "wrong"), plan.wrong));
  }

  std::string plan_;
};

}  // namespace

const FieldTable& PlanCheckFields() { return PlanVerdictFields(); }

std::unique_ptr<Command> MakePlan() { return std::make_unique<Plan>(); }

}  // namespace kv
