// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <filesystem>

#include "apps/kvtool/commands/weights/weights_commands.h"

namespace kv {
namespace {

nlohmann::ordered_json CountsJson(const RoundingCounts& counts) {
  return {{"values", counts.values},
          {"changed_count", counts.changed},
          {"overflowed_count", counts.overflowed},
          {"flushed_count", counts.flushed},
          {"nan_count", counts.nan},
          {"infinite_count", counts.infinite}};
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
    nlohmann::ordered_json document = ReportHeader("weights-convert");
    document["inputs"] = InputRecords(weights.source);
    document["params"] = {{"to", Name(to)}, {"dtype", Name(dtype)}};
    document["output"] = output_;
    document["header"] = HeaderJson(weights);
    document["rounding"] = CountsJson(counts);
    document["warnings"] = console.warning_texts();
    report_.Emit(console, document, RulesFor(force_));
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

std::unique_ptr<Command> MakeWeightsConvert() { return std::make_unique<ConvertVerb>(); }

}  // namespace kv
