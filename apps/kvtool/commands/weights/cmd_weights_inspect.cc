// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <set>

#include "apps/kvtool/commands/weights/weights_commands.h"
#include "lib/engines/infinilm/value_stats.h"

namespace kv {
namespace {

uint64_t BlockBytes(const LinearBlock& block) {
  return block.weight.bytes() + (block.has_bias() ? block.bias.bytes() : 0);
}

nlohmann::ordered_json StatsJson(const ValueStats& stats) {
  nlohmann::ordered_json json = SummaryJson(stats);
  json["f16_overflow_count"] = stats.f16_overflows;
  json["f16_flush_count"] = stats.f16_flushes;
  json["bf16_overflow_count"] = stats.bf16_overflows;
  return json;
}

class InspectVerb : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("FILE", file_, "A .bin, a torch checkpoint or a safetensors file").Required();
    line.AddFlag("--stats", with_stats_,
                 "Read every value: range, NaN, infinities, overflow on a dtype change");
    line.AddFlag("--blocks", every_block_, "One line per block even when layers are alike");
    checkpoint_.Declare(line);
    limit_.Declare(line);
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    files.Reads(file_);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    const WeightsFile file = limit_.Open(file_, {checkpoint_.Resolve(), KvcmReading::kCompat});
    const CompressorWeights& weights = file.weights;
    document_ = ReportHeader("weights-inspect");
    document_["inputs"] = InputRecords(weights.source);
    document_["format"] = weights.format;
    document_["header"] = HeaderJson(weights);
    if (!report_.json) context.console.Data(HeaderText(file));
    AddShares(file, context.console);
    AddBlocks(weights, context.console);
    WarnOf(file, context.console);
    AddFaults(file, context.console);
    document_["warnings"] = context.console.warning_texts();
    report_.Emit(context.console, document_, RulesFor(false));
    return kDone;
  }

 private:
  std::string HeaderText(const WeightsFile& file) const {
    const CompressorWeights& weights = file.weights;
    const WeightsHeader& header = weights.header;
    const uint64_t bytes = weights.source.total_bytes();
    std::string text = fmt::format("{}: compressor weights ({}), {}\n", Printable(file_),
                                   weights.format, HumanBytes(bytes));
    const auto line = [&](std::string_view name, const std::string& value) {
      text += fmt::format("  {:<14} {}\n", name, value);
    };
    line("MLPs", ChoiceText(weights));
    line("layers", fmt::format("{} x {} blocks", header.num_layers, header.blocks_per_layer));
    line("dtype", std::string(Name(weights.dtype)));
    line("head size", fmt::format("{}, factor {} (first block takes {})", header.head_dim,
                                  header.compression_factor, header.hidden_size));
    line("min_seq_len", fmt::format("{} groups, {} tokens of a segment", header.min_seq_len,
                                    uint64_t{header.min_seq_len} * header.compression_factor));
    if (header.num_heads != 0) line("num_heads", std::to_string(header.num_heads));
    if (!weights.metadata.empty()) {
      line("metadata", fmt::format("{} bytes", weights.metadata.size()));
    }
    return text;
  }

  void AddShares(const WeightsFile& file, Console& console) {
    if (!file.shares) return;
    const CheckpointShares& shares = *file.shares;
    const uint64_t total = shares.weight_bytes + shares.optimizer_bytes + shares.other_bytes;
    document_["shares"] = {{"weight_bytes", shares.weight_bytes},
                           {"optimizer_bytes", shares.optimizer_bytes},
                           {"other_bytes", shares.other_bytes},
                           {"ignored_keys", shares.ignored_keys},
                           {"untrained_prefixes", shares.untrained}};
    if (report_.json || total == 0) return;
    const auto percent = [&](uint64_t bytes) {
      return fmt::format("{} ({:.1f}%)", HumanBytes(bytes),
                         100.0 * static_cast<double>(bytes) / static_cast<double>(total));
    };
    console.Data(fmt::format("  {:<14} weights {}, optimizer {}, other {}\n", "of the values",
                             percent(shares.weight_bytes), percent(shares.optimizer_bytes),
                             percent(shares.other_bytes)));
    if (shares.ignored_keys > 0) {
      console.Data(fmt::format("  {:<14} {} keys, as {}\n", "not used", shares.ignored_keys,
                               Escaped(shares.ignored.front())));
    }
  }

  // The table of blocks. Where all layers are alike and no value is asked for, layer 0 stands for
  // all.
  void AddBlocks(const CompressorWeights& weights, Console& console) {
    const WeightsHeader& header = weights.header;
    const bool alike = CheckWeights(weights).empty();
    const bool short_table = alike && !every_block_ && !with_stats_ && header.num_layers > 1;
    std::vector<std::string> columns = {"layer", "MLP", "slot", "offset", "shape", "bias", "bytes"};
    if (with_stats_) {
      columns.insert(columns.end(), {"min", "max", "mean", "sd", "NaN", "Inf", "over f16"});
    }
    Table table(columns);
    nlohmann::ordered_json blocks = nlohmann::ordered_json::array();
    for (uint32_t layer = 0; layer < header.num_layers; ++layer) {
      for (uint32_t i = 0; i < header.blocks_per_layer; ++i) {
        nlohmann::ordered_json block;
        std::vector<std::string> cells = Describe(weights, layer, i, short_table, block);
        if (layer == 0 || !short_table) table.Row(std::move(cells));
        blocks.push_back(std::move(block));
      }
    }
    document_["blocks"] = std::move(blocks);
    if (!report_.json) console.Data("\n" + table.Text("  "));
    if (with_stats_) WarnOfUntrained(weights, console);
  }

  std::vector<std::string> Describe(const CompressorWeights& weights, uint32_t layer,
                                    uint32_t index, bool short_table,
                                    nlohmann::ordered_json& json) {
    const LinearBlock& block = weights.Block(layer, index);
    const uint32_t mlp = index / kSlotsPerMlp;
    const std::string prefix = mlp < weights.prefixes.size() ? weights.prefixes[mlp] : "-";
    const uint32_t slot = weights.slots[index % kSlotsPerMlp];
    json = {{"layer", layer},
            {"prefix", prefix},
            {"slot", slot},
            {"offset", nullptr},
            {"rows", block.rows()},
            {"cols", block.cols()},
            {"bias", block.has_bias()},
            {"dtype", Name(block.weight.dtype)},
            {"bytes", BlockBytes(block)}};
    if (block.offset != 0) json["offset"] = block.offset;
    std::vector<std::string> cells = {short_table ? "each" : std::to_string(layer),
                                      prefix,
                                      std::to_string(slot),
                                      block.offset == 0 ? "-" : fmt::format("{:#x}", block.offset),
                                      fmt::format("{} x {}", block.rows(), block.cols()),
                                      block.has_bias() ? "yes" : "no",
                                      std::to_string(BlockBytes(block))};
    if (!with_stats_) return cells;
    const ValueStats stats = StatsOfValues(block.weight);
    json["weight_stats"] = StatsJson(stats);
    if (block.has_bias()) json["bias_stats"] = StatsJson(StatsOfValues(block.bias));
    if (!LooksUntrained(stats, block.cols())) trained_.insert(prefix);
    const std::string numbers[] = {
        fmt::format("{:.4g}", stats.min),   fmt::format("{:.4g}", stats.max),
        fmt::format("{:.3g}", stats.mean),  fmt::format("{:.3g}", stats.standard_deviation),
        std::to_string(stats.nan_count),    std::to_string(stats.infinite_count),
        std::to_string(stats.f16_overflows)};
    cells.insert(cells.end(), std::begin(numbers), std::end(numbers));
    return cells;
  }

  void WarnOfUntrained(const CompressorWeights& weights, Console& console) const {
    std::vector<std::string> untrained;
    for (const std::string& prefix : weights.prefixes) {
      if (trained_.count(prefix) == 0) untrained.push_back(prefix);
    }
    if (untrained.empty()) return;
    console.Warn(file_, fmt::format("{}: values still fill the range that training starts from",
                                    fmt::join(untrained, ", ")));
  }

  void AddFaults(const WeightsFile& file, Console& console) {
    const CompressorWeights& weights = file.weights;
    if (file.container != WeightsContainer::kBin) {  // of a .bin they are notes of the reader
      for (const WeightsFault& fault : CheckWeights(weights)) {
        console.Warn(file_, fault.ToError().what());
      }
    }
    if (weights.is_text_only()) {
      console.Warn(file_, "no image MLPs: with an image length above 0 the image prefix stays raw");
    }
  }

  std::string file_;
  bool with_stats_ = false, every_block_ = false;
  CheckpointFlags checkpoint_;
  WeightsLimit limit_;
  ReportOptions report_;
  nlohmann::ordered_json document_;
  std::set<std::string> trained_;  // prefixes of which some block left the range of the start
};

}  // namespace

std::unique_ptr<Command> MakeWeightsInspect() { return std::make_unique<InspectVerb>(); }

}  // namespace kv
