// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/catalogue.h"

#include "formats/raw/raw.h"
#include "formats/registry.h"
#include "formats/tensors/tensor_names.h"
#include "formats/trace/trace.h"
#include "formats/weights_file.h"

namespace kv {

std::string_view Name(FormatKind kind) {
  constexpr std::string_view kNames[] = {"snapshot", "names",   "preset",
                                         "trace",    "weights", "model"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<FormatListing> ListFormats() {
  std::vector<FormatListing> list;
  for (const FormatEntry& format : Formats()) {
    list.push_back({format.id, FormatKind::kSnapshot, format.probe != nullptr,
                    format.open != nullptr, format.write != nullptr, format.summary, format.needs});
  }
  for (const NamePattern& pattern : NamePatterns()) {
    list.push_back({pattern.text, FormatKind::kNames, true, true, false, pattern.whose, ""});
  }
  list.push_back({kOnlyArray.text, FormatKind::kNames, true, true, false, kOnlyArray.whose, ""});
  for (const raw::Preset& preset : raw::Presets()) {
    list.push_back(
        {preset.name, FormatKind::kPreset, false, true, false, preset.summary, preset.needs});
  }
  for (const TraceCarrier& carrier : TraceCarriers()) {
    list.push_back({carrier.id, FormatKind::kTrace, true, true, false, carrier.summary, ""});
  }
  for (const WeightsForm& form : WeightsForms()) {
    list.push_back({form.name, FormatKind::kWeights, true, true, true, form.summary, ""});
  }
  list.push_back({"gguf", FormatKind::kModel, true, true, false,
                  "a model file: layers, heads and RoPE for --model", ""});
  list.push_back({"config.json", FormatKind::kModel, true, true, false,
                  "of a Hugging Face model: layers, heads and RoPE, also for --model", ""});
  return list;
}

}  // namespace kv
