// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool weights VERB`: the verbs, and what they share.
#include <fmt/format.h>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/weights/weights_commands.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "lib/core/base/number.h"

namespace kv {
namespace {

constexpr Verb kWeightsVerbs[] = {
    {"inspect", "Show header, blocks, statistics and what looks wrong", MakeWeightsInspect},
    {"convert", "Write weights as .bin, .pth or safetensors", MakeWeightsConvert},
    {"verify", "Check every rule; say what the engines' loaders would do", MakeWeightsVerify},
    {"diff", "Compare two files block by block, whatever their containers", MakeWeightsDiff},
};

uint32_t Whole(const std::string& text, std::string_view flag) {
  const auto value = ParseNumber<uint32_t>(text);
  if (!value) {
    throw Error(Finding::kUsage, fmt::format("{} '{}': expected a whole number", flag, text));
  }
  return *value;
}

}  // namespace

std::unique_ptr<Command> MakeWeights() {
  return std::make_unique<VerbCommand>(kWeightsVerbs,
                                       "a verb is missing: inspect, convert, verify or diff");
}

void CheckpointFlags::Declare(CommandLine& line) {
  line.Add("--prefix-order", prefix_order,
           "MLPs and their order, e.g. compress_tk,compress_tv (default: those found)");
  line.Add("--slot-order", slot_order,
           "Indices of the three linear layers, e.g. 0,3,6 (default: those found)");
  line.Add("--compression-factor", compression_factor,
           "Tokens per group (default: columns / head size of the first block)");
  line.Add("--min-groups|--min-seq-len", min_seq_len,
           "Fewest groups that a segment needs to be compressed (default: 2)");
  line.Add("--num-heads", num_heads, "Written to the header; nobody reads it (default: 0)");
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
  limit.Declare(line, "Limit on inflated data and on streams (default 64GiB)");
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

void WarnOf(const WeightsFile& file, Console& console) {
  const std::string& path = file.weights.source.path;
  WarnOf(file.weights.notes, path, console);
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
  if (!place.empty()) place.remove_suffix(1);  // its slash or dot
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
      {"head_dim", "Head size: rows of the first weight, unless it was given",
       [](const CompressorWeights& of) { return of.header.head_dim; }},
      {"hidden_size",
       "Columns of the first weight, head_dim x compression_factor; not the hidden size of the "
       "model",
       [](const CompressorWeights& of) { return of.header.hidden_size; }},
      {"compression_factor", "Tokens of a group, which the MLPs make one token of",
       [](const CompressorWeights& of) { return of.header.compression_factor; }},
      {"min_seq_len", "Fewest groups (not tokens) that a segment needs to be compressed",
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
      {"slots", "Indices of the three linear blocks in the checkpoint's Sequential, as 0,3,6",
       &CompressorWeights::slots},
      {"text_only", "Whether there are no MLPs for the image segment",
       &CompressorWeights::is_text_only},
      {"container",
       "Where in the checkpoint the weights were, as model_state_dict/; empty: at its top",
       &CompressorWeights::container}};
  return fields;
}

}  // namespace kv
