// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands/weights/weights_commands.h"

namespace kv {
namespace {

nlohmann::ordered_json LoaderJson(const LoaderVerdict& verdict) {
  nlohmann::ordered_json json = {
      {"loads", verdict.loads}, {"message", verdict.message}, {"offset", nullptr}};
  if (verdict.offset) json["offset"] = *verdict.offset;
  return json;
}

class VerifyVerb : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("FILE", file_, "Weights: a .bin, or a checkpoint to be converted").Required();
    const Option strict =
        line.AddFlag("--strict", strict_, "Every rule of the format must hold (the default)");
    line.Add("--compat", compat_, "Count only what this loader would refuse: csrc, legacy")
        .OneOf({"csrc", "legacy"})
        .Excludes(strict);
    line.Add("--layer-count|--layers", expected_.layers, "Layers of the model the weights are for");
    line.Add("--head-dim", expected_.head_dim, "Head size of the model");
    line.Add("--compression-factor|--factor", expected_.factor,
             "Compression factor the caller will ask for");
    limit_.Declare(line);
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    files.Reads(file_);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    const Source source = limit_.OpenSource(file_);
    const WeightsVerdict verdict = limit_.Verify(source);
    std::vector<WeightsFault> misfits;
    if (verdict.weights) misfits = CheckExpectation(*verdict.weights, expected_);

    const ExitStatus status = StatusOf(verdict, misfits);
    nlohmann::ordered_json document = ReportHeader("weights-verify");
    document["inputs"] = InputRecords(source);
    document["params"] = {{"reading", compat_.empty() ? "strict" : compat_}};
    document["verdict"] = status == kDone ? "pass" : "fail";
    document["container"] = Name(verdict.container);
    if (verdict.weights) document["header"] = HeaderJson(*verdict.weights);
    document["faults"] = nlohmann::ordered_json::array();
    for (const WeightsFault& fault : verdict.faults) document["faults"].push_back(FaultJson(fault));
    document["misfits"] = nlohmann::ordered_json::array();
    for (const WeightsFault& fault : misfits) document["misfits"].push_back(FaultJson(fault));
    document["loaders"] = {{"csrc", LoaderJson(verdict.csrc)},
                           {"legacy", LoaderJson(verdict.legacy)}};
    if (!report_.json) Print(verdict, misfits, status, context.console);
    report_.Emit(context.console, document, RulesFor(false));
    return status;
  }

 private:
  ExitStatus StatusOf(const WeightsVerdict& verdict,
                      const std::vector<WeightsFault>& misfits) const {
    if (!compat_.empty()) {
      const LoaderVerdict& loader = compat_ == "csrc" ? verdict.csrc : verdict.legacy;
      return loader.loads ? kDone : kVerdict;
    }
    if (!verdict.faults.empty()) return kInvalid;
    return misfits.empty() ? kDone : kVerdict;
  }

  void Print(const WeightsVerdict& verdict, const std::vector<WeightsFault>& misfits,
             ExitStatus status, Console& console) const {
    const bool strict = compat_.empty();
    std::string summary = strict ? "follows every rule" : fmt::format("{} loads it", compat_);
    if (status == kVerdict && strict) summary = "well-formed, but not for this model";
    if (status == kVerdict && !strict) summary = fmt::format("{} refuses it", compat_);
    if (status == kInvalid) {
      summary =
          fmt::format("{} fault{}", verdict.faults.size(), verdict.faults.size() == 1 ? "" : "s");
    }
    console.Line(fmt::format("{}: {}, {}", Printable(file_),
                             console.Verdict(status == kDone, status == kDone ? "ok" : "FAIL"),
                             summary));
    if (!verdict.faults.empty() || !misfits.empty()) {
      Table table({"offset", "field", "found", "expected", "finding"});
      for (const auto* list : {&verdict.faults, &misfits}) {
        for (const WeightsFault& fault : *list) {
          table.Row({fault.offset ? fmt::format("{:#x}", *fault.offset) : "-", fault.field,
                     fault.found, fault.expected, FindingId(fault.finding)});
        }
      }
      console.Data("\n" + table.Text("  "));
      for (const auto* list : {&verdict.faults, &misfits}) {
        for (const WeightsFault& fault : *list) {
          if (!fault.effect.empty())
            console.Data(fmt::format("  {}: {}\n", fault.field, fault.effect));
        }
      }
    }
    Table loaders({"loader", "loads", "says"});
    for (const LoaderVerdict* loader : {&verdict.csrc, &verdict.legacy}) {
      loaders.Row({std::string(loader->loader), loader->loads ? "yes" : "no",
                   loader->message.empty() ? "-" : loader->message});
    }
    console.Data("\n" + loaders.Text("  "));
  }

  std::string file_, compat_;
  bool strict_ = false;
  WeightsExpectation expected_;
  WeightsLimit limit_;
  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeWeightsVerify() { return std::make_unique<VerifyVerb>(); }

}  // namespace kv
