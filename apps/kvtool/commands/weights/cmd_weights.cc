// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool weights VERB`: the common part of the verbs, and those of two files.
#include <fmt/format.h>

#include <filesystem>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/weights/weights_commands.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "lib/core/base/number.h"
#include "lib/engines/infinilm/value_stats.h"

namespace kv {
namespace {

uint32_t Whole(const std::string& text, std::string_view flag) {
  const auto value = ParseNumber<uint32_t>(text);
  if (!value) {
    throw Error(Finding::kUsage, "{} '{}': expected a whole number", flag, text);
  }
  return *value;
}

}  // namespace

void CheckpointFlags::Declare(CommandLine& line) {
  line.Add("--prefix-order", prefix_order,
           "MLPs and their order, e.g. compress_tk,compress_tv (default: those found)");
  line.Add("--slot-order", slot_order,
           "Indices of the three linear layers, e.g. 0,3,6 (default: those found)");
  line.Add("--compression-factor", compression_factor,
           "Tokens per group (default: columns / head size of the first block)");
  line.Add("--min-groups|--min-seq-len", min_seq_len,
           "Least number of groups of a segment that is compressed (default: 2)");
  line.Add("--num-heads", num_heads,
           "Number of heads in the header; no loader reads this number (default: 0)");
  line.Add("--head-dim", head_dim, "Head size (default: rows of the first block)");
  line.AddFlag("--text-only", text_only, "Leave the image MLPs out");
}

CheckpointOptions CheckpointFlags::Resolve() const {
  CheckpointOptions options;
  options.prefix_order = ParsePrefixOrder(prefix_order);
  options.slot_order = ParseSlotOrder(slot_order);
  if (!slot_order.empty() && options.slot_order.size() != kSlotsPerMlp) {
    throw Error(Finding::kUsage, "--slot-order must have exactly 3 entries (e.g. 0,3,6)");
  }
  options.compression_factor = compression_factor;
  if (!min_seq_len.empty()) options.min_seq_len = Whole(min_seq_len, "--min-groups");
  options.num_heads = num_heads;
  options.head_dim = head_dim;
  options.text_only = text_only;
  return options;
}

void WeightsLimit::Declare(CommandLine& line) {
  limit.Declare(line, "Limit on inflated data and on streams (default: 64GiB)");
}

Source WeightsLimit::OpenSource(const std::string& path) const {
  return SizeLimit::WithHint([&] { return Source::Open(path, limit.most()); });
}

WeightsFile WeightsLimit::Open(const std::string& path, WeightsOpenOptions options) const {
  options.max_bytes = limit.most().value_or(options.max_bytes);
  return OpenWeights(OpenSource(path), options);
}

WeightsVerdict WeightsLimit::Verify(const Source& source) const {
  WeightsOpenOptions options;
  options.max_bytes = limit.most().value_or(options.max_bytes);
  return VerifyWeights(source, options);
}

void WarnAboutNotes(const WeightsFile& file, Console& console) {
  const std::string& path = file.weights.source.path;
  WarnAboutNotes(file.weights.notes, path, console);
  if (!file.shares || file.shares->untrained.empty()) return;
  console.Warn(path, fmt::format("the optimizer kept no state for {}: these were never trained",
                                 fmt::join(file.shares->untrained, ", ")));
}

std::string ChoiceText(const CompressorWeights& weights) {
  std::string text =
      fmt::format("{}{}, slots {}", fmt::join(weights.prefixes, ", "),
                  weights.is_text_only() ? " (text only)" : "", fmt::join(weights.slots, ","));
  if (weights.names_assumed) text += ", names assumed: a .bin holds none";
  std::string_view place = weights.container;
  if (!place.empty()) place.remove_suffix(1);  // removes the slash or dot at its end
  if (!place.empty()) text += fmt::format(", in {}", Escaped(place));
  return text;
}

Value::List ContainerChoices() {
  Value::List names;
  for (const WeightsForm& form : WeightsForms()) names.push_back(form.name);
  return names;
}

const Fields<CompressorWeights>& WeightsHeaderFields() {
  static const Fields<CompressorWeights> fields = {
      {"dtype", "Type of the values: of all blocks of a .bin, of the first weight of a checkpoint",
       [](const CompressorWeights& of) { return Name(of.dtype); }},
      {"num_layers", "Layers", [](const CompressorWeights& of) { return of.header.num_layers; }},
      {"num_heads", "The header's number of heads; no loader reads it, and the converter writes 0",
       [](const CompressorWeights& of) { return of.header.num_heads; }},
      {"head_dim", "Head size: rows of the first weight, unless --head-dim gives it",
       [](const CompressorWeights& of) { return of.header.head_dim; }},
      {"hidden_size",
       "Columns of the first weight, head_dim x compression_factor; not the hidden size of the "
       "model",
       [](const CompressorWeights& of) { return of.header.hidden_size; }},
      {"compression_factor", "Tokens of a group, which the MLPs turn into one token",
       [](const CompressorWeights& of) { return of.header.compression_factor; }},
      {"min_seq_len", "Least number of groups (not tokens) of a segment that is compressed",
       [](const CompressorWeights& of) { return of.header.min_seq_len; }},
      {"weight_count_per_layer", "Linear blocks of a layer: three for each MLP",
       [](const CompressorWeights& of) { return of.header.blocks_per_layer; }},
      {"metadata_bytes", "Bytes of the opaque metadata of a .bin",
       [](const CompressorWeights& of) { return of.metadata.size(); }},
      {"prefixes", "Names of the MLPs of a layer, in the order of the file",
       &CompressorWeights::prefixes},
      {"prefix_names_assumed",
       "Whether these names are the loaders' fixed order, because a .bin holds none",
       &CompressorWeights::names_assumed},
      {"slots", "Indices of the three linear blocks in the checkpoint's Sequential, such as 0,3,6",
       &CompressorWeights::slots},
      {"text_only", "Whether there are no MLPs for the image segment",
       &CompressorWeights::is_text_only},
      {"container",
       "Path of the weights within the checkpoint, such as model_state_dict/; empty: at the top",
       &CompressorWeights::container}};
  return fields;
}

namespace {

struct ConvertedWeights {
  const CompressorWeights& weights;
  WeightsContainer to;
  DType dtype;
  const std::string& output;
  const RoundingCounts& rounding;
  const std::vector<std::string>& warnings;
};

const Fields<RoundingCounts>& RoundingFields() {
  static const Fields<RoundingCounts> fields = {
      {"values", "Number of values that were written", &RoundingCounts::values},
      {"changed_count", "Number of values that have changed", &RoundingCounts::changed},
      {"overflowed_count", "Values that were finite and are infinite now",
       &RoundingCounts::overflowed},
      {"flushed_count", "Values that were not zero and are zero now", &RoundingCounts::flushed},
      {"nan_count", "Values that are NaN", &RoundingCounts::nan},
      {"infinite_count", "Values that were infinite before and are so now",
       &RoundingCounts::infinite}};
  return fields;
}

const Fields<ConvertedWeights>& ConvertedWeightsFields() {
  using Result = ConvertedWeights;
  static const Fields<Result> params = {
      {"to",
       "The container",
       [](const Result& of) { return Name(of.to); },
       {.choices = ContainerChoices()}},
      {"dtype", "Type of the values", [](const Result& of) { return Name(of.dtype); }}};
  static const Fields<Result> fields = {
      {"inputs", "What was read",
       [](const Result& of) { return std::vector{HashedFile::Of(of.weights.source)}; },
       HashedFileFields()},
      {"params", "What was written", std::identity(), params},
      {"output", "Name of the file that was written", [](const Result& of) { return of.output; }},
      {"header", "Header of the file; for a checkpoint, that of a .bin made from it",
       [](const Result& of) -> const CompressorWeights& { return of.weights; },
       WeightsHeaderFields()},
      {"rounding", "Effect of the change of type on the values",
       [](const Result& of) { return of.rounding; }, RoundingFields()},
      {"warnings", "Warnings of the run", [](const Result& of) { return of.warnings; }}};
  return fields;
}

class ConvertVerb : public WeightsCommand {
 public:
  void Declare(CommandLine& line) override {
    line.Add("IN", input_, "A .bin, a torch checkpoint or a safetensors file").Required();
    line.Add("-o,--output", output_, "File to write").Required();
    line.Add(
        "--to", to_,
        "bin, pth or safetensors (default: by the ending of the output; without an ending bin)");
    line.Add("--dtype", dtype_,
             "fp16, bf16 or fp32 (default: fp16 from a checkpoint to .bin, else as it is)");
    line.AddFlag("-f,--force", force_, "Overwrite the output");
    checkpoint_.Declare(line);
    limit_.Declare(line);
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    files.Writes(output_, "-o");
    Command::Files(files);
  }

  ExitStatus Run(Context& context) override {
    Console& console = context.console;
    const WeightsContainer to = Target();
    const WeightsFile file = limit_.Open(input_, {checkpoint_.Resolve(), KvcmReading::kStrict});
    const CompressorWeights& weights = file.weights;
    const DType dtype = TargetDType(file, to);
    console.Say(fmt::format("{}: {}", Printable(input_), ChoiceText(weights)));
    WarnAboutNotes(file, console);
    for (const WeightsFault& fault : CheckWeights(weights)) {
      console.Warn(input_, fault.ToError().what());
    }

    std::vector<std::string> losses;
    const RoundingCounts counts =
        WriteWeights(weights, to, dtype, output_, RulesFor(force_, input_), losses);
    for (const std::string& loss : losses) console.Warn(output_, loss);
    if (counts.overflowed > 0) {
      console.Warn(output_,
                   fmt::format("{} finite values became infinite in {}; --dtype {} keeps them",
                               counts.overflowed, Name(dtype),
                               dtype == DType::kF16 ? "bf16 or fp32" : "fp32"));
    }
    Report(weights, to, dtype, counts, console);
    return kDone;
  }

 private:
  WeightsContainer Target() const {
    if (!to_.empty()) {
      const auto to = ParseWeightsContainer(to_);
      if (to) return *to;
      throw Error(Finding::kUsage, "--to '{}': expected bin, pth or safetensors", to_);
    }
    const std::string ending = std::filesystem::path(output_).extension().string();
    if (ending.empty()) return WeightsContainer::kBin;
    if (const auto to = ParseWeightsContainer(ending.substr(1))) return *to;
    throw Error(Finding::kUsage, "-o {}: no form of weights has the ending {}", Printable(output_),
                Printable(ending))
        .Hint("give a name that ends in .bin, .pth or .safetensors, or give --to");
  }

  DType TargetDType(const WeightsFile& file, WeightsContainer to) const {
    if (!dtype_.empty()) {
      const auto dtype = ParseDType(dtype_);
      if (dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32) return *dtype;
      throw Error(Finding::kUsage, "--dtype '{}': expected fp16, bf16 or fp32", dtype_);
    }
    const bool from_bin = file.container == WeightsContainer::kBin;
    // the default of InfiniLM's converter
    if (!from_bin && to == WeightsContainer::kBin) return DType::kF16;
    const DType own = file.weights.dtype;
    return own == DType::kF16 || own == DType::kBF16 ? own : DType::kF32;
  }

  void Report(const CompressorWeights& weights, WeightsContainer to, DType dtype,
              const RoundingCounts& counts, Console& console) const {
    const ConvertedWeights result = {weights, to, dtype, output_, counts, console.warning_texts()};
    report_.Emit(console, "weights-convert", ConvertedWeightsFields, result, RulesFor(force_));
    if (report_.json || console.verbosity < 0) return;
    const WeightsHeader& header = weights.header;
    // The words are those of InfiniLM's converter, so that logs can be compared.
    console.Line(fmt::format(
        "Wrote {} (layers={}, weights/layer={}, dtype={}, factor={}, hidden_size={}, head_dim={})",
        Printable(output_), header.num_layers, header.blocks_per_layer,
        dtype == DType::kF16   ? "fp16"
        : dtype == DType::kF32 ? "fp32"
                               : "bf16",
        header.compression_factor, header.hidden_size, header.head_dim));
    if (counts.changed > 0) {
      console.Say(fmt::format("{} of {} values were rounded, {} of them to zero", counts.changed,
                              counts.values, counts.flushed));
    }
  }

  std::string output_, to_, dtype_;
  bool force_ = false;
};

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

const Fields<ValueDiff>& ValueDiffFields() {
  static const Fields<ValueDiff> fields = {
      {"values", "Values that were compared", &ValueDiff::values, Heading("values")},
      {"different_count", "Values that are not equal; NaN equals NaN", &ValueDiff::different,
       Heading("differ")},
      {"beyond_tolerance_count", "Values that differ by more than the tolerance",
       &ValueDiff::beyond, Heading("beyond")},
      {"max_abs", "Largest |a - b| where both are finite", &ValueDiff::max_abs,
       Heading("max abs", format::AsNats)},
      {"max_rel", "Largest |a - b| / |b| where both are finite and b is not 0", &ValueDiff::max_rel,
       Heading("max rel", format::AsNats)},
      {"mean_abs", "Mean |a - b| where both are finite", &ValueDiff::mean_abs},
      {"cosine", "Cosine of A and B as vectors", &ValueDiff::cosine, Heading("cosine", NineDigits)},
      {"first_beyond_index",
       "Index in C order of the first value beyond the tolerance; absent if there is no such value",
       FirstBeyond, Absent()}};
  return fields;
}

const Fields<BlockDiff>& BlockDiffFields() {
  static const Fields<BlockDiff> fields = {
      {"name", "Layer, MLP and slot, such as layer 0 compress_tk slot 3", &BlockDiff::name},
      {"problem", "Why the block could not be compared, such as different shapes; absent if it was",
       IfAny(&BlockDiff::problem), Absent()},
      {"weight", "How the weight differs; absent where it could not be compared",
       &BlockDiff::weight, ValueDiffFields(), Absent()},
      {"bias", "How the bias differs; absent where there is none or it could not be compared",
       &BlockDiff::bias, ValueDiffFields(), Absent()}};
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
      {"verdict", "equal: nothing differs in structure or beyond the tolerance",
       [](const DiffedWeights& of) { return of.diff.equal() ? "equal" : "different"; },
       OneOf("equal", "different")},
      {"structure", "Differences of header numbers and of MLPs, in words",
       [](const DiffedWeights& of) { return of.diff.structure; }},
      {"notes", "Differences that do not affect the verdict, such as type and slot numbers",
       [](const DiffedWeights& of) { return of.diff.notes; }},
      {"blocks", "The blocks of MLPs that A and B both have, in the order of A",
       [](const DiffedWeights& of) { return of.diff.blocks; }, BlockDiffFields(), CsvRows()}};
  return fields;
}

class DiffVerb : public WeightsCommand {
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
    Command::Files(files);
  }

  ExitStatus Run(Context& context) override {
    const WeightsOpenOptions compat{{}, KvcmReading::kCompat};
    const WeightsFile a = limit_.Open(a_, compat);
    const WeightsFile b = limit_.Open(b_, compat);
    WarnAboutNotes(a, context.console);
    WarnAboutNotes(b, context.console);
    const WeightsDiff diff = DiffWeights(a.weights, b.weights, atol_, rtol_);
    if (!report_.json) Print(diff, context.console);
    const DiffedWeights result = {
        {HashedFile::Of(a.weights.source), HashedFile::Of(b.weights.source)}, {atol_, rtol_}, diff};
    report_.Emit(context.console, "weights-diff", DiffedWeightsFields, result);
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
    const std::string count = values == 0
                                  ? "no block could be compared"
                                  : fmt::format("{} of {} values differ", different, values);
    console.Line(fmt::format("{} and {}: {}, {}", Printable(a_), Printable(b_),
                             console.Verdict(diff.equal(), verdict), count));
  }

  std::string a_, b_;
  double atol_ = 0, rtol_ = 0;
};

constexpr Verb kWeightsVerbs[] = {
    {"inspect", "Show header, blocks, statistics and what looks wrong", MakeWeightsInspect},
    {"convert", "Write weights as .bin, .pth or safetensors", MakeVerb<ConvertVerb>},
    {"verify", "Check every rule; say what the engines' loaders would do", MakeWeightsVerify},
    {"diff", "Compare two files block by block, whatever their containers", MakeVerb<DiffVerb>},
};

}  // namespace

const FieldTable& WeightsConvertFields() { return ConvertedWeightsFields(); }
const FieldTable& WeightsDiffFields() { return DiffedWeightsFields(); }

std::unique_ptr<Command> MakeWeights() {
  return std::make_unique<VerbCommand>(kWeightsVerbs,
                                       "a verb is missing: inspect, convert, verify or diff");
}

}  // namespace kv
