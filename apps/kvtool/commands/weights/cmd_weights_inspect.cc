// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The verbs that read one file of weights.
#include <fmt/format.h>

#include <set>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/weights/weights_commands.h"
#include "lib/engines/infinilm/value_stats.h"

namespace kv {
namespace {

uint64_t BlockBytes(const LinearBlock& block) {
  return block.weight.bytes() + (block.has_bias() ? block.bias.bytes() : 0);
}

struct WeightsBlock {
  uint32_t layer;
  std::string prefix;
  uint32_t slot;
  const LinearBlock& values;
  std::optional<ValueStats> weight_stats, bias_stats;
};

struct InspectedWeights {
  const WeightsFile& file;
  std::vector<WeightsBlock> blocks;
  const std::vector<std::string>& warnings;
};

void Append(const std::vector<std::string>& more, std::vector<std::string>& cells) {
  cells.insert(cells.end(), more.begin(), more.end());
}

const Fields<ValueStats>& ValueStatsFields() {
  static const Fields<ValueStats> fields = {
      Fields<ValueStats>::Inline([](const ValueStats& of) -> const ValueSummary& { return of; },
                                 ValueSummaryFields()),
      {"f16_overflow_count", "Finite values that would become infinite in f16",
       &ValueStats::f16_overflows, Heading("over f16")},
      {"f16_flush_count", "Values that would become zero in f16", &ValueStats::f16_flushes},
      {"bf16_overflow_count", "Finite values that would become infinite in bf16",
       &ValueStats::bf16_overflows}};
  return fields;
}

const Fields<WeightsBlock>& WeightsBlockFields() {
  static const Fields<WeightsBlock> fields = {
      {"layer", "Number of the layer", &WeightsBlock::layer},
      {"prefix", "Name of the block's MLP; - if the block has no MLP", &WeightsBlock::prefix},
      {"slot", "Index of the block in the checkpoint's Sequential", &WeightsBlock::slot},
      {"offset", "Offset of the block's header in a .bin, in bytes; null for other files",
       [](const WeightsBlock& of) {
         return of.values.offset == 0 ? std::nullopt : std::optional(of.values.offset);
       }},
      {"rows", "Rows of the weight: output values",
       [](const WeightsBlock& of) { return of.values.rows(); }},
      {"cols", "Columns of the weight: input values",
       [](const WeightsBlock& of) { return of.values.cols(); }},
      {"bias", "Whether the block has a bias",
       [](const WeightsBlock& of) { return of.values.has_bias(); }},
      {"dtype", "Type of the weight",
       [](const WeightsBlock& of) { return Name(of.values.weight.dtype); }},
      {"bytes", "Bytes of the block", [](const WeightsBlock& of) { return BlockBytes(of.values); }},
      {"weight_stats", "Figures of the weight; with --stats", &WeightsBlock::weight_stats,
       ValueStatsFields(), Absent()},
      {"bias_stats", "Figures of the bias, where there is one; with --stats",
       &WeightsBlock::bias_stats, ValueStatsFields(), Absent()}};
  return fields;
}

const Fields<InspectedWeights>& InspectedWeightsFields() {
  using Result = InspectedWeights;
  using Shares = CheckpointShares;
  static const Fields<Shares> shares_fields = {
      {"weight_bytes", "Bytes of the compressor's weights", &Shares::weight_bytes},
      {"optimizer_bytes", "Bytes of the optimizer's state", &Shares::optimizer_bytes},
      {"other_bytes", "Bytes of anything else", &Shares::other_bytes},
      {"ignored_keys", "Number of unused keys in the dict of the weights", &Shares::ignored_keys},
      {"untrained_prefixes", "MLPs for which the optimizer kept no state: they were never trained",
       &Shares::untrained}};
  static const Fields<Result> fields = {
      {"inputs", "The file",
       [](const Result& of) { return std::vector{HashedFile::Of(of.file.weights.source)}; },
       HashedFileFields()},
      {"format", "Format of the file: kvcm (.bin), torch or safetensors",
       [](const Result& of) { return of.file.weights.format; }},
      {"header", "Header of the file; for a checkpoint, that of a .bin made from it",
       [](const Result& of) -> const CompressorWeights& { return of.file.weights; },
       WeightsHeaderFields()},
      {"shares", "Contents of a checkpoint, in bytes; absent for a .bin",
       [](const Result& of) { return of.file.shares; }, shares_fields, Absent()},
      {"blocks", "Every linear block, by layer and in the order of the file", &Result::blocks,
       WeightsBlockFields(), CsvRows()},
      {"warnings", "Warnings of the run", [](const Result& of) { return of.warnings; }}};
  return fields;
}

class InspectVerb : public WeightsCommand {
 public:
  void Declare(CommandLine& line) override {
    line.Add("FILE", input_, "A .bin, a torch checkpoint or a safetensors file").Required();
    line.AddFlag("--stats", with_stats_,
                 "Read every value: range, NaN, infinities, overflow on a dtype change");
    line.AddFlag("--blocks", every_block_, "One line per block even when layers are alike");
    checkpoint_.Declare(line);
    limit_.Declare(line);
    report_.Declare(line);
  }

  ExitStatus Run(Context& context) override {
    const WeightsFile file = limit_.Open(input_, {checkpoint_.Resolve(), KvcmReading::kCompat});
    const CompressorWeights& weights = file.weights;
    std::vector<WeightsBlock> blocks = Blocks(weights);
    if (!report_.json) Print(file, blocks, context.console);
    if (with_stats_) WarnOfUntrained(weights, blocks, context.console);
    WarnAboutNotes(file, context.console);
    WarnOfFaults(file, context.console);
    const InspectedWeights result = {file, std::move(blocks), context.console.warning_texts()};
    report_.Emit(context.console, "weights-inspect", InspectedWeightsFields, result);
    return kDone;
  }

 private:
  std::string HeaderText(const WeightsFile& file) const {
    const CompressorWeights& weights = file.weights;
    const WeightsHeader& header = weights.header;
    const uint64_t bytes = weights.source.total_bytes();
    std::string text = fmt::format("{}: compressor weights ({}), {}\n", Printable(input_),
                                   weights.format, HumanBytes(bytes));
    const auto line = [&](std::string_view name, const std::string& value) {
      text += fmt::format("  {:<14} {}\n", name, value);
    };
    line("MLPs", ChoiceText(weights));
    line("layers", fmt::format("{} x {} blocks", header.num_layers, header.blocks_per_layer));
    line("dtype", std::string(Name(weights.dtype)));
    line("head size", fmt::format("{}, factor {} (first block has {} inputs)", header.head_dim,
                                  header.compression_factor, header.hidden_size));
    line("min_seq_len", fmt::format("{} groups, {} tokens of a segment", header.min_seq_len,
                                    uint64_t{header.min_seq_len} * header.compression_factor));
    if (header.num_heads != 0) line("num_heads", std::to_string(header.num_heads));
    if (!weights.metadata.empty()) {
      line("metadata", fmt::format("{} bytes", weights.metadata.size()));
    }
    return text;
  }

  void Print(const WeightsFile& file, const std::vector<WeightsBlock>& blocks,
             Console& console) const {
    console.Data(HeaderText(file));
    if (file.shares) PrintShares(*file.shares, console);
    // If all layers are alike and no value was requested, layer 0 represents all.
    const bool short_table = !every_block_ && !with_stats_ && file.weights.header.num_layers > 1 &&
                             CheckWeights(file.weights).empty();
    std::vector<std::string> head = {"layer", "MLP", "slot", "offset", "shape", "bias", "bytes"};
    if (with_stats_) Append(TextHead(ValueStatsFields()), head);
    Table table(std::move(head));
    for (const WeightsBlock& block : blocks) {
      if (block.layer > 0 && short_table) break;
      std::vector<std::string> cells = Cells(block);
      if (short_table) cells.front() = "each";
      table.Row(std::move(cells));
    }
    console.Data("\n" + table.Text("  "));
  }

  void PrintShares(const CheckpointShares& shares, Console& console) const {
    const uint64_t total = shares.weight_bytes + shares.optimizer_bytes + shares.other_bytes;
    if (total == 0) return;
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

  std::vector<WeightsBlock> Blocks(const CompressorWeights& weights) const {
    std::vector<WeightsBlock> blocks;
    for (uint32_t layer = 0; layer < weights.header.num_layers; ++layer) {
      for (uint32_t i = 0; i < weights.header.blocks_per_layer; ++i) {
        const uint32_t mlp = i / kSlotsPerMlp;
        WeightsBlock block = {layer,
                              mlp < weights.prefixes.size() ? weights.prefixes[mlp] : "-",
                              weights.slots[i % kSlotsPerMlp],
                              weights.Block(layer, i),
                              {},
                              {}};
        if (with_stats_) {
          block.weight_stats = StatsOfValues(block.values.weight);
          if (block.values.has_bias()) block.bias_stats = StatsOfValues(block.values.bias);
        }
        blocks.push_back(std::move(block));
      }
    }
    return blocks;
  }

  static std::vector<std::string> Cells(const WeightsBlock& block) {
    const LinearBlock& values = block.values;
    std::vector<std::string> cells = {
        std::to_string(block.layer),
        block.prefix,
        std::to_string(block.slot),
        values.offset == 0 ? "-" : fmt::format("{:#x}", values.offset),
        fmt::format("{} x {}", values.rows(), values.cols()),
        values.has_bias() ? "yes" : "no",
        std::to_string(BlockBytes(values))};
    if (block.weight_stats) Append(TextRow(ValueStatsFields(), *block.weight_stats), cells);
    return cells;
  }

  // Warns of untrained MLPs. An MLP counts as trained if a block has left the initial range.
  void WarnOfUntrained(const CompressorWeights& weights, const std::vector<WeightsBlock>& blocks,
                       Console& console) const {
    std::set<std::string> trained;
    for (const WeightsBlock& block : blocks) {
      if (!LooksUntrained(*block.weight_stats, block.values.cols())) trained.insert(block.prefix);
    }
    std::vector<std::string> untrained;
    for (const std::string& prefix : weights.prefixes) {
      if (trained.count(prefix) == 0) untrained.push_back(prefix);
    }
    if (untrained.empty()) return;
    console.Warn(input_, fmt::format("{}: values still fill the range that training starts from",
                                     fmt::join(untrained, ", ")));
  }

  void WarnOfFaults(const WeightsFile& file, Console& console) {
    const CompressorWeights& weights = file.weights;
    if (file.container != WeightsContainer::kBin) {  // a .bin has them as notes of its reader
      for (const WeightsFault& fault : CheckWeights(weights)) {
        console.Warn(input_, fault.ToError().what());
      }
    }
    if (weights.is_text_only()) {
      console.Warn(input_,
                   "no image MLPs: with an image length above 0 the image prefix stays raw");
    }
  }

  bool with_stats_ = false, every_block_ = false;
};

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
      {"offset", "Offset in the file, in bytes; null if the error has no place",
       &WeightsFault::offset, Heading("offset", HexOffset)},
      {"field", "The field or block, such as layer 0 compress_tk slot 3 cols", &WeightsFault::field,
       Heading("field")},
      {"found", "Value in the file", &WeightsFault::found, Heading("found")},
      {"expected", "Expected value", &WeightsFault::expected, Heading("expected")},
      {"finding",
       "Number of the finding; 'kvtool explain KV1001' documents KV1001",
       [](const WeightsFault& of) { return FindingId(of.finding); },
       {.pattern = kFindingPattern, .column = "finding"}},
      {"effect", "What an engine would do with the file; absent if not known",
       [](const WeightsFault& of) {
         return of.effect.empty() ? std::nullopt : std::optional(of.effect);
       },
       Absent()}};
  return fields;
}

const Fields<LoaderVerdict>& LoaderVerdictFields() {
  static const Fields<LoaderVerdict> fields = {
      {"loads", "Whether the engine's loader accepts the file", &LoaderVerdict::loads},
      {"message", "The loader's own message if it refuses the file; otherwise empty",
       &LoaderVerdict::message},
      {"offset", "Offset at which the loader stops, in bytes; null if there is no such place",
       &LoaderVerdict::offset}};
  return fields;
}

const Fields<VerifiedWeights>& VerifiedWeightsFields() {
  static const Fields<VerifiedWeights> params = {
      {"reading",
       "Rules that decide: strict, all rules of the format; csrc or legacy, only those that this "
       "loader enforces",
       &VerifiedWeights::reading, OneOf("strict", "csrc", "legacy")}};
  static const Fields<WeightsVerdict> loaders = {
      {"csrc", "InfiniLM's current loader", &WeightsVerdict::csrc, LoaderVerdictFields()},
      {"legacy", "InfiniLM's older loader", &WeightsVerdict::legacy, LoaderVerdictFields()}};
  static const Fields<VerifiedWeights> fields = {
      {"inputs", "The file", &VerifiedWeights::inputs, HashedFileFields()},
      {"params", "Parameters of the run", std::identity(), params},
      {"verdict",
       "pass: no rule that counts is broken; fail: such a rule is broken, or the weights do not "
       "fit the model",
       [](const VerifiedWeights& of) { return of.passes ? "pass" : "fail"; },
       OneOf("pass", "fail")},
      {"container",
       "What the file is",
       [](const VerifiedWeights& of) { return Name(of.found.container); },
       {.choices = ContainerChoices()}},
      {"header", "Header of the file; absent if it could not be read",
       [](const VerifiedWeights& of) { return of.found.weights ? &*of.found.weights : nullptr; },
       WeightsHeaderFields(), Absent()},
      {"faults", "Rules of the format that are broken",
       [](const VerifiedWeights& of) { return of.found.faults; }, WeightsFaultFields()},
      {"misfits", "Errors against the model that flags describe",
       [](const VerifiedWeights& of) { return of.misfits; }, WeightsFaultFields()},
      {"loaders", "What the loaders of engines would do with the file",
       [](const VerifiedWeights& of) -> const WeightsVerdict& { return of.found; }, loaders}};
  return fields;
}

class VerifyVerb : public WeightsCommand {
 public:
  void Declare(CommandLine& line) override {
    line.Add("FILE", input_, "Weights: a .bin, or a checkpoint to be converted").Required();
    // An option that states the default.
    const Option strict =
        line.AddFlag("--strict", strict_, "Every rule of the format must hold").Hide();
    line.Add("--compat", compat_, "Count only errors that this loader would refuse: csrc, legacy")
        .OneOf({"csrc", "legacy"})
        .Excludes(strict);
    line.Add("--layer-count|--layers", expected_.layers, "Layers of the weights' model");
    line.Add("--head-dim", expected_.head_dim, "Head size of the model");
    line.Add("--compression-factor|--factor", expected_.factor,
             "Compression factor that the caller will ask for");
    limit_.Declare(line);
    report_.Declare(line);
  }

  ExitStatus Run(Context& context) override {
    const Source source = limit_.OpenSource(input_);
    const WeightsVerdict verdict = limit_.Verify(source);
    std::vector<WeightsFault> misfits;
    if (verdict.weights) misfits = CheckExpectation(*verdict.weights, expected_);

    const ExitStatus status = JudgeStatus(verdict, misfits);
    if (!report_.json) Print(verdict, misfits, status, context.console);
    const VerifiedWeights result = {{HashedFile::Of(source)},
                                    compat_.empty() ? "strict" : compat_,
                                    status == kDone,
                                    verdict,
                                    misfits};
    report_.Emit(context.console, "weights-verify", VerifiedWeightsFields, result);
    return status;
  }

 private:
  ExitStatus JudgeStatus(const WeightsVerdict& verdict,
                         const std::vector<WeightsFault>& misfits) const {
    if (!compat_.empty()) {
      const LoaderVerdict& loader = compat_ == "csrc" ? verdict.csrc : verdict.legacy;
      return loader.loads ? kDone : kVerdict;
    }
    if (!verdict.faults.empty()) return kInvalid;
    return misfits.empty() ? kDone : kVerdict;
  }

  std::string Summarise(const WeightsVerdict& verdict, ExitStatus status) const {
    const bool strict = compat_.empty();
    if (status == kInvalid) return Plural(verdict.faults.size(), "fault");
    if (status == kVerdict)
      return strict ? "well-formed, but not for this model" : fmt::format("{} refuses it", compat_);
    if (!strict) return fmt::format("{} loads it", compat_);
    if (verdict.csrc.loads || verdict.legacy.loads) return "follows every rule";
    return fmt::format(
        "follows every rule, but no engine loads it: 'kvtool weights convert {} -o FILE.bin' "
        "writes what they load",
        ShellQuoted(input_));
  }

  void Print(const WeightsVerdict& verdict, const std::vector<WeightsFault>& misfits,
             ExitStatus status, Console& console) const {
    console.Line(fmt::format("{}: {}, {}", Printable(input_),
                             console.Verdict(status == kDone, status == kDone ? "ok" : "FAIL"),
                             Summarise(verdict, status)));
    std::vector<WeightsFault> faults = verdict.faults;
    faults.insert(faults.end(), misfits.begin(), misfits.end());
    if (!faults.empty()) {
      Table table(TextHead(WeightsFaultFields()));
      for (const WeightsFault& fault : faults) table.Row(TextRow(WeightsFaultFields(), fault));
      console.Data("\n" + table.Text("  "));
    }
    for (const WeightsFault& fault : faults) {
      if (!fault.effect.empty()) console.Data(fmt::format("  {}: {}\n", fault.field, fault.effect));
    }
    Table loaders({"loader", "loads", "says"});
    for (const LoaderVerdict* loader : {&verdict.csrc, &verdict.legacy}) {
      loaders.Row({std::string(loader->loader), loader->loads ? "yes" : "no",
                   loader->message.empty() ? "-" : loader->message});
    }
    console.Data("\n" + loaders.Text("  "));
  }

  std::string compat_;
  bool strict_ = false;
  WeightsExpectation expected_;
};

}  // namespace

const FieldTable& WeightsInspectFields() { return InspectedWeightsFields(); }
const FieldTable& WeightsVerifyFields() { return VerifiedWeightsFields(); }

std::unique_ptr<Command> MakeWeightsInspect() { return std::make_unique<InspectVerb>(); }
std::unique_ptr<Command> MakeWeightsVerify() { return std::make_unique<VerifyVerb>(); }

}  // namespace kv
