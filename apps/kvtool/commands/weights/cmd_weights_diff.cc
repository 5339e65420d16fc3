// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands/weights/weights_commands.h"
#include "lib/engines/infinilm/value_stats.h"

namespace kv {
namespace {

struct DiffedWeights {
  struct Params {
    double atol, rtol;
  };
  std::vector<HashedFile> inputs;
  Params params;
  const WeightsDiff& diff;
};

std::string NineDigits(const Value& value) { return fmt::format("{:.9f}", value.number()); }

std::optional<uint64_t> FirstBeyond(const ValueDiff& diff) {
  return diff.beyond > 0 ? std::optional(diff.first_beyond) : std::nullopt;
}

std::optional<std::string> ProblemOf(const BlockDiff& block) {
  return block.problem.empty() ? std::nullopt : std::optional(block.problem);
}

const Fields<ValueDiff>& ValueDiffFields() {
  static const Fields<ValueDiff> fields = {
      {"values", "Values that were compared", &ValueDiff::values, {.column = "values"}},
      {"different_count",
       "Values that are not equal; NaN equals NaN",
       &ValueDiff::different,
       {.column = "differ"}},
      {"beyond_tolerance_count",
       "Values that differ by more than the tolerance",
       &ValueDiff::beyond,
       {.column = "beyond"}},
      {"max_abs",
       "Largest |a - b| where both are finite",
       &ValueDiff::max_abs,
       {.column = "max abs", .format = format::AsNats}},
      {"max_rel",
       "Largest |a - b| / |b| where both are finite and b is not 0",
       &ValueDiff::max_rel,
       {.column = "max rel", .format = format::AsNats}},
      {"mean_abs", "Mean |a - b| where both are finite", &ValueDiff::mean_abs},
      {"cosine",
       "Cosine between both, as vectors",
       &ValueDiff::cosine,
       {.column = "cosine", .format = NineDigits}},
      {"first_beyond_index",
       "Index in C order of the first value beyond the tolerance; absent where there is none",
       FirstBeyond,
       {.absent = true}}};
  return fields;
}

const Fields<BlockDiff>& BlockDiffFields() {
  static const Fields<BlockDiff> fields = {
      {"name", "Layer, MLP and slot, as layer 0 compress_tk slot 3", &BlockDiff::name},
      {"problem",
       "Why the block could not be compared, as another shape; absent where there is nothing",
       ProblemOf,
       {.absent = true}},
      {"weight",
       "How the weight differs; absent where it could not be compared",
       &BlockDiff::weight,
       ValueDiffFields(),
       {.absent = true}},
      {"bias",
       "How the bias differs; absent where there is none or it could not be compared",
       &BlockDiff::bias,
       ValueDiffFields(),
       {.absent = true}}};
  return fields;
}

const Fields<DiffedWeights>& DiffedWeightsFields() {
  using Params = DiffedWeights::Params;
  static const Fields<Params> params = {{"atol", "Absolute tolerance", &Params::atol},
                                        {"rtol", "Relative tolerance, of |b|", &Params::rtol}};
  static const Fields<DiffedWeights> fields = {
      {"inputs", "Both files, A and B", &DiffedWeights::inputs, HashedFileFields()},
      {"params", "Tolerances: values are equal where |a - b| <= atol + rtol |b|",
       &DiffedWeights::params, params},
      {"verdict",
       "equal: nothing differs in structure or beyond the tolerance",
       [](const DiffedWeights& of) { return of.diff.equal() ? "equal" : "different"; },
       {.choices = {"equal", "different"}}},
      {"structure", "Numbers of the header and MLPs that differ, in words",
       [](const DiffedWeights& of) { return of.diff.structure; }},
      {"notes", "Differences that do not count, as of type and slot numbers",
       [](const DiffedWeights& of) { return of.diff.notes; }},
      {"blocks",
       "The blocks of MLPs that both have, in the order of A",
       [](const DiffedWeights& of) { return of.diff.blocks; },
       BlockDiffFields(),
       {.rows = true}}};
  return fields;
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
    if (!report_.json) Print(diff, context.console);
    const DiffedWeights result = {
        {HashedFile::Of(a.weights.source), HashedFile::Of(b.weights.source)}, {atol_, rtol_}, diff};
    report_.Emit(context.console, "weights-diff", DiffedWeightsFields().Object(result),
                 RulesFor(false));
    return diff.equal() ? kDone : kVerdict;
  }

 private:
  void Print(const WeightsDiff& diff, Console& console) const {
    for (const std::string& text : diff.structure) console.Line("  " + text);
    for (const std::string& text : diff.notes) console.Line("  " + text + " (does not count)");
    std::vector<std::string> head = TextHead(ValueDiffFields());
    head.insert(head.begin(), {"block", ""});
    Table table(std::move(head));
    size_t rows = 0;
    uint64_t values = 0, different = 0;
    const auto add = [&](const BlockDiff& block, const char* part,
                         const std::optional<ValueDiff>& of) {
      if (!of) return;
      values += of->values;
      different += of->different;
      if (of->different == 0) return;
      ++rows;
      std::vector<std::string> cells = TextRow(ValueDiffFields(), *of);
      cells.insert(cells.begin(), {block.name, part});
      table.Row(std::move(cells));
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

const FieldTable& WeightsDiffFields() { return DiffedWeightsFields(); }

std::unique_ptr<Command> MakeWeightsDiff() { return std::make_unique<DiffVerb>(); }

}  // namespace kv
