// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands/weights/weights_commands.h"

namespace kv {
namespace {

struct VerifiedWeights {
  std::vector<HashedFile> inputs;
  std::string reading;
  bool passes;
  const WeightsVerdict& found;
  const std::vector<WeightsFault>& misfits;
};

std::string HexOffset(const Value& value) {
  return fmt::format("{:#x}", *value.get_if<uint64_t>());
}

const Fields<WeightsFault>& WeightsFaultFields() {
  static const Fields<WeightsFault> fields = {
      {"offset",
       "Where in the file, in bytes from its beginning; null where it has no place",
       &WeightsFault::offset,
       {.column = "offset", .format = HexOffset}},
      {"field",
       "The field or block, as layer 0 compress_tk slot 3 cols",
       &WeightsFault::field,
       {.column = "field"}},
      {"found", "What the file has", &WeightsFault::found, {.column = "found"}},
      {"expected", "What it should have", &WeightsFault::expected, {.column = "expected"}},
      {"finding",
       "Its number; 'kvtool explain KV1001' documents it",
       [](const WeightsFault& of) { return FindingId(of.finding); },
       {.pattern = kFindingPattern, .column = "finding"}},
      {"effect",
       "What an engine would do about it; absent where that is not known",
       [](const WeightsFault& of) {
         return of.effect.empty() ? std::nullopt : std::optional(of.effect);
       },
       {.absent = true}}};
  return fields;
}

const Fields<LoaderVerdict>& LoaderVerdictFields() {
  static const Fields<LoaderVerdict> fields = {
      {"loads", "Whether it loads the file", &LoaderVerdict::loads},
      {"message", "Its own words where it refuses; empty where it does not",
       &LoaderVerdict::message},
      {"offset",
       "Where in the file it stops, in bytes from its beginning; null where that has no place",
       &LoaderVerdict::offset}};
  return fields;
}

const Fields<VerifiedWeights>& VerifiedWeightsFields() {
  static const Fields<VerifiedWeights> params = {
      {"reading",
       "Whose rules decide: strict, all of the format; csrc or legacy, only what that loader "
       "refuses",
       &VerifiedWeights::reading,
       {.choices = {"strict", "csrc", "legacy"}}}};
  static const Fields<WeightsVerdict> loaders = {
      {"csrc", "InfiniLM's present one", &WeightsVerdict::csrc, LoaderVerdictFields()},
      {"legacy", "The older one of the same engine", &WeightsVerdict::legacy,
       LoaderVerdictFields()}};
  static const Fields<VerifiedWeights> fields = {
      {"inputs", "The file", &VerifiedWeights::inputs, HashedFileFields()},
      {"params", "What was asked for", std::identity(), params},
      {"verdict",
       "pass: no rule that counts is broken; fail: one is, or the weights do not fit the model",
       [](const VerifiedWeights& of) { return of.passes ? "pass" : "fail"; },
       {.choices = {"pass", "fail"}}},
      {"container",
       "What the file is",
       [](const VerifiedWeights& of) { return Name(of.found.container); },
       {.choices = ContainerChoices()}},
      {"header", "What the header says; absent where it could not be read",
       [](const VerifiedWeights& of) -> const auto& {return of.found.weights;
}
, WeightsHeaderFields(), { .absent = true }
}  // namespace
,
    {"faults", "Rules of the format that are broken",
     [](const VerifiedWeights& of) { return of.found.faults; }, WeightsFaultFields()},
    {"misfits", "What does not fit the model that was described by flags",
     [](const VerifiedWeights& of) { return of.misfits; }, WeightsFaultFields()},
{
  "loaders", "What the loaders of engines would do with the file",
      [](const VerifiedWeights& of) -> const auto& {
    return of.found;
  }
  , loaders
}
};  // namespace kv
return fields;
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
    if (!report_.json) Print(verdict, misfits, status, context.console);
    const VerifiedWeights result = {{HashedFile::Of(source)},
                                    compat_.empty() ? "strict" : compat_,
                                    status == kDone,
                                    verdict,
                                    misfits};
    report_.Emit(context.console, "weights-verify", VerifiedWeightsFields().Object(result),
                 RulesFor(false));
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
      Table table(TextHead(WeightsFaultFields()));
      for (const auto* list : {&verdict.faults, &misfits}) {
        for (const WeightsFault& fault : *list) table.Row(TextRow(WeightsFaultFields(), fault));
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

const FieldTable& WeightsVerifyFields() { return VerifiedWeightsFields(); }

std::unique_ptr<Command> MakeWeightsVerify() { return std::make_unique<VerifyVerb>(); }

}  // namespace kv
