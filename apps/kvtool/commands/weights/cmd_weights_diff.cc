// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands/weights/weights_commands.h"
#include "lib/engines/infinilm/value_stats.h"

namespace kv {
namespace {

nlohmann::ordered_json DiffJson(const ValueDiff& diff) {
  nlohmann::ordered_json json = {{"values", diff.values},
                                 {"different_count", diff.different},
                                 {"beyond_tolerance_count", diff.beyond},
                                 {"max_abs", diff.max_abs},
                                 {"max_rel", diff.max_rel},
                                 {"mean_abs", diff.mean_abs},
                                 {"cosine", diff.cosine}};
  if (diff.beyond > 0) json["first_beyond_index"] = diff.first_beyond;
  return json;
}

class DiffVerb : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("A", a_, "Weights in any container").Required();
    line.Add("B", b_, "Weights in any container").Required();
    line.Add("--atol", atol_, "Absolute tolerance (default: 0)").NonNegative();
    line.Add("--rtol", rtol_, "Relative tolerance, of |B| (default: 0)").NonNegative();
    limit_.Declare(line);
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    files.Reads({a_, b_});
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    const WeightsOpenOptions compat{{}, KvcmReading::kCompat};
    const WeightsFile a = limit_.Open(a_, compat);
    const WeightsFile b = limit_.Open(b_, compat);
    WarnOf(a, context.console);
    WarnOf(b, context.console);
    const WeightsDiff diff = DiffWeights(a.weights, b.weights, atol_, rtol_);

    nlohmann::ordered_json document = ReportHeader("weights-diff");
    document["inputs"] = InputRecords(a.weights.source, b.weights.source);
    document["params"] = {{"atol", atol_}, {"rtol", rtol_}};
    document["verdict"] = diff.equal() ? "equal" : "different";
    document["structure"] = diff.structure;
    document["notes"] = diff.notes;
    document["blocks"] = nlohmann::ordered_json::array();
    for (const BlockDiff& block : diff.blocks) {
      nlohmann::ordered_json json = {{"name", block.name}};
      if (!block.problem.empty()) json["problem"] = block.problem;
      if (block.weight) json["weight"] = DiffJson(*block.weight);
      if (block.bias) json["bias"] = DiffJson(*block.bias);
      document["blocks"].push_back(std::move(json));
    }
    if (!report_.json) Print(diff, context.console);
    report_.Emit(context.console, document, RulesFor(false));
    return diff.equal() ? kDone : kVerdict;
  }

 private:
  void Print(const WeightsDiff& diff, Console& console) const {
    for (const std::string& text : diff.structure) console.Line("  " + text);
    for (const std::string& text : diff.notes) console.Line("  " + text + " (does not count)");
    Table table({"block", "", "values", "differ", "beyond", "max abs", "max rel", "cosine"});
    size_t rows = 0;
    uint64_t values = 0, different = 0;
    const auto add = [&](const BlockDiff& block, const char* part,
                         const std::optional<ValueDiff>& of) {
      if (!of) return;
      values += of->values;
      different += of->different;
      if (of->different == 0) return;
      ++rows;
      table.Row({block.name, part, std::to_string(of->values), std::to_string(of->different),
                 std::to_string(of->beyond), fmt::format("{:.3g}", of->max_abs),
                 fmt::format("{:.3g}", of->max_rel), fmt::format("{:.9f}", of->cosine)});
    };
    for (const BlockDiff& block : diff.blocks) {
      if (!block.problem.empty()) console.Line(fmt::format("  {}: {}", block.name, block.problem));
      add(block, "weight", block.weight);
      add(block, "bias", block.bias);
    }
    if (rows > 0) console.Data(table.Text("  "));
    std::string verdict = diff.equal() ? "equal" : "DIFFERENT";
    if (diff.equal() && different > 0) verdict += " within the tolerance";
    console.Line(fmt::format("{} and {}: {}, {} of {} values differ", Printable(a_), Printable(b_),
                             console.Verdict(diff.equal(), verdict), different, values));
  }

  std::string a_, b_;
  double atol_ = 0, rtol_ = 0;
  WeightsLimit limit_;
  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeWeightsDiff() { return std::make_unique<DiffVerb>(); }

}  // namespace kv
