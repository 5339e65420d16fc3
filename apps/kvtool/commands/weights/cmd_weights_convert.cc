// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <filesystem>

#include "apps/kvtool/commands/weights/weights_commands.h"

namespace kv {
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
      {"values", "Values that were written", &RoundingCounts::values},
      {"changed_count", "Values that are another number now", &RoundingCounts::changed},
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
      {"header", "What the header says; for a checkpoint, what a .bin of it would say",
       [](const Result& of) -> const CompressorWeights& { return of.weights; },
       WeightsHeaderFields()},
      {"rounding", "What the change of type did to the values",
       [](const Result& of) { return of.rounding; }, RoundingFields()},
      {"warnings", "Everything that the run warned of",
       [](const Result& of) { return of.warnings; }}};
  return fields;
}

class ConvertVerb : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("IN", input_, "A .bin, a torch checkpoint or a safetensors file").Required();
    line.Add("-o,--output", output_, "File to write").Required();
    line.Add("--to", to_, "bin, pth or safetensors (default: by the ending of the output)");
    line.Add("--dtype", dtype_,
             "fp16, bf16 or fp32 (default: fp16 from a checkpoint to .bin, else as it is)");
    line.AddFlag("-f,--force", force_, "Overwrite the output");
    checkpoint_.Declare(line);
    limit_.Declare(line);
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    files.Reads(input_);
    files.Writes(output_, "-o");
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    Console& console = context.console;
    const WeightsContainer to = Target();
    const WeightsFile file = limit_.Open(input_, {checkpoint_.Resolve(), KvcmReading::kStrict});
    const CompressorWeights& weights = file.weights;
    const DType dtype = TargetDType(file, to);
    console.Say(fmt::format("{}: {}", Printable(input_), ChoiceText(weights)));
    WarnOf(file, console);
    for (const WeightsFault& fault : CheckWeights(weights)) {
      console.Warn(input_, fault.ToError().what());
    }

    std::vector<std::string> losses;
    const RoundingCounts counts =
        WriteWeights(weights, to, dtype, output_, RulesFor(force_, input_), losses);
    for (const std::string& loss : losses) console.Warn(output_, loss);
    if (counts.overflowed > 0) {
      console.Warn(output_, fmt::format("{} finite values became infinite in {}", counts.overflowed,
                                        Name(dtype)));
    }
    Report(weights, to, dtype, counts, console);
    return kDone;
  }

 private:
  WeightsContainer Target() const {
    if (!to_.empty()) {
      const auto to = ParseWeightsContainer(to_);
      if (to) return *to;
      throw Error(Finding::kUsage, fmt::format("--to '{}': expected bin, pth or safetensors", to_));
    }
    std::string ending = std::filesystem::path(output_).extension().string();
    if (!ending.empty()) ending.erase(0, 1);
    return ParseWeightsContainer(ending).value_or(WeightsContainer::kBin);
  }

  DType TargetDType(const WeightsFile& file, WeightsContainer to) const {
    if (!dtype_.empty()) {
      const auto dtype = ParseDType(dtype_);
      if (dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32) return *dtype;
      throw Error(Finding::kUsage,
                  fmt::format("--dtype '{}': expected fp16, bf16 or fp32", dtype_));
    }
    const bool from_bin = file.container == WeightsContainer::kBin;
    if (!from_bin && to == WeightsContainer::kBin) return DType::kF16;  // as the original converter
    const DType own = file.weights.dtype;
    return own == DType::kF16 || own == DType::kBF16 ? own : DType::kF32;
  }

  void Report(const CompressorWeights& weights, WeightsContainer to, DType dtype,
              const RoundingCounts& counts, Console& console) const {
    const ConvertedWeights result = {weights, to, dtype, output_, counts, console.warning_texts()};
    report_.Emit(console, "weights-convert", ConvertedWeightsFields().Object(result),
                 RulesFor(force_));
    if (report_.json || console.verbosity < 0) return;
    const WeightsHeader& header = weights.header;
    // In the words of the original converter, so that logs compare.
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

  std::string input_, output_, to_, dtype_;
  bool force_ = false;
  CheckpointFlags checkpoint_;
  WeightsLimit limit_;
  ReportOptions report_;
};

}  // namespace

const FieldTable& WeightsConvertFields() { return ConvertedWeightsFields(); }

std::unique_ptr<Command> MakeWeightsConvert() { return std::make_unique<ConvertVerb>(); }

}  // namespace kv
