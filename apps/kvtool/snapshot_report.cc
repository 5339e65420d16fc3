// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/snapshot_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "apps/kvtool/options.h"
#include "lib/core/base/word.h"
#include "lib/core/snapshot/batch.h"
#include "lib/core/snapshot/key_rotation.h"

namespace kv {
namespace {

constexpr uint64_t kRowsShown = 16;

std::string Shape(const KvTensor& tensor, uint64_t rows) {
  const std::string tokens =
      fmt::format("{} {}{}", Name(tensor.dtype), rows > 1 ? fmt::format("{} rows of ", rows) : "",
                  tensor.tokens() / rows);
  if (!tensor.heads_known) return fmt::format("{} x {} channels", tokens, tensor.channels());
  return fmt::format("{} x {} x {}", tokens, tensor.heads, tensor.head_dim);
}

std::string ShapeOf(const LayerKv& layer, uint64_t rows) {
  return "K " + Shape(layer.k, rows) + (layer.v ? ", V " + Shape(*layer.v, rows) : ", no V") +
         (layer.group.empty() ? "" : ", " + layer.group);
}

bool LooksAs(const KvTensor& a, const KvTensor& b) {
  return a.dtype == b.dtype && a.tokens() == b.tokens() && a.heads_known == b.heads_known &&
         (a.heads_known ? a.heads == b.heads && a.head_dim == b.head_dim
                        : a.channels() == b.channels());
}

// Whether both have the same ShapeOf. Of a million layers the texts would cost more than reading.
bool LooksAs(const LayerKv& a, const LayerKv& b) {
  return LooksAs(a.k, b.k) && a.v.has_value() == b.v.has_value() && (!a.v || LooksAs(*a.v, *b.v)) &&
         a.group == b.group;
}

uint64_t LongestTokens(const Snapshot& snapshot) {
  uint64_t most = 0;
  for (const LayerKv& layer : snapshot.layers) most = std::max(most, layer.k.tokens());
  return most;
}

// Only what the file itself proves is claimed.
std::string_view RotationWord(const Snapshot& snapshot) {
  switch (snapshot.key_rotation) {
    case KeyRotation::kUnknown:
      return "unknown";
    case KeyRotation::kUnrotated:
      return "unrotated";
    case KeyRotation::kRotated:
      break;
  }
  return "rotated";
}

// Why the keys are taken for rotated where the file does not say, as far as it is shown.
std::string AssumptionText(const Snapshot& snapshot) {
  return Escaped(RotationAssumption(snapshot), 200);
}

std::string RotationText(const Snapshot& snapshot) {
  const std::string_view word = RotationWord(snapshot);
  if (snapshot.key_rotation != KeyRotation::kRotated) return std::string(word);
  const std::string assumption = AssumptionText(snapshot);
  return assumption.empty() ? fmt::format("{} (RoPE applied)", word)
                            : fmt::format("{} (assumed: {})", word, assumption);
}

std::string_view SourceWord(const Snapshot& snapshot) {
  if (snapshot.key_rotation == KeyRotation::kUnknown) return "unknown";
  return RotationAssumption(snapshot).empty() ? "file" : "assumed";
}

std::string_view Word(HadamardState rotation) {
  return rotation == HadamardState::kYes  ? "yes"
         : rotation == HadamardState::kNo ? "no"
                                          : "unknown";
}

struct CellSummary {
  int64_t first = 0, last = 0;
  uint64_t inversions =
      0;  // positions that step back within a stream: the only trace of fragmentation
  std::set<int32_t> sequences;
};

CellSummary Summarise(const CellGroup& group) {
  CellSummary summary;
  for (size_t i = 0; i < group.cells.size(); ++i) {
    const Cell& cell = group.cells[i];
    if (i == 0) summary.first = summary.last = cell.position;
    summary.first = std::min(summary.first, cell.position);
    summary.last = std::max(summary.last, cell.position);
    if (i > 0 && group.cells[i - 1].stream == cell.stream &&
        cell.position < group.cells[i - 1].position) {
      ++summary.inversions;
    }
    summary.sequences.insert(cell.sequences.begin(), cell.sequences.end());
  }
  return summary;
}

uint64_t BytesOf(const Snapshot& snapshot, bool values) {
  uint64_t total = 0;
  for (const LayerKv& layer : snapshot.layers) {
    total += values ? (layer.v ? layer.v->bytes() : 0) : layer.k.bytes();
  }
  return total;
}

nlohmann::ordered_json TensorJson(const KvTensor& tensor, uint64_t rows) {
  nlohmann::ordered_json json = {{"dtype", Name(tensor.dtype)}, {"tokens", tensor.tokens() / rows}};
  json["kv_heads"] =
      tensor.heads_known ? nlohmann::ordered_json(tensor.heads) : nlohmann::ordered_json();
  json["head_dim"] =
      tensor.heads_known ? nlohmann::ordered_json(tensor.head_dim) : nlohmann::ordered_json();
  json["channels"] = tensor.channels();
  json["bytes"] = tensor.bytes();
  return json;
}

std::string PrintableRow(std::string_view name, std::string_view value) {
  return fmt::format("  {:<12} {}\n", Printable(name), Printable(value));
}

// The rows of a batch, each a sequence of its own.
std::string BatchText(const Snapshot& snapshot, uint64_t rows, bool every_row) {
  std::string text = PrintableRow("batch", fmt::format("{} rows; --batch N reads one", rows));
  const uint64_t shown = every_row ? rows : std::min(rows, kRowsShown);
  for (uint64_t row = 0; row < shown; ++row) {
    text += PrintableRow(fmt::format("row {}", row),
                         fmt::format("{} tokens, K {} + V {}", LongestTokens(snapshot) / rows,
                                     HumanBytes(BytesOf(snapshot, false) / rows),
                                     HumanBytes(BytesOf(snapshot, true) / rows)));
  }
  if (shown < rows)
    text += PrintableRow("", fmt::format("and {} more (--tensors lists all)", rows - shown));
  return text;
}

nlohmann::ordered_json BatchJson(const Snapshot& snapshot, uint64_t rows) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (uint64_t row = 0; row < rows; ++row) {
    json.push_back({{"row", row},
                    {"tokens", LongestTokens(snapshot) / rows},
                    {"k_bytes", BytesOf(snapshot, false) / rows},
                    {"v_bytes", BytesOf(snapshot, true) / rows}});
  }
  return json;
}

}  // namespace

std::string DescribeText(const Snapshot& snapshot, const Console& console, bool every_layer) {
  std::string text = console.Bold(snapshot.source.path) + "\n";
  text += PrintableRow(
      "format",
      snapshot.format + (snapshot.format_version.empty() ? "" : ", " + snapshot.format_version));
  if (!snapshot.engine.empty()) text += PrintableRow("engine", snapshot.engine);
  if (!snapshot.model.empty()) text += PrintableRow("model", snapshot.model);

  const uint64_t rows = BatchRows(snapshot);
  if (rows > 1) text += BatchText(snapshot, rows, every_layer);

  // Runs of layers that look alike share a line.
  for (size_t begin = 0; begin < snapshot.layers.size();) {
    const std::string shape = ShapeOf(snapshot.layers[begin], rows);
    size_t end = begin + 1;
    while (!every_layer && end < snapshot.layers.size() &&
           LooksAs(snapshot.layers[end], snapshot.layers[begin]))
      ++end;
    const std::string label = end - begin == 1
                                  ? fmt::format("layer {}", snapshot.layers[begin].index)
                                  : fmt::format("layers {}-{}", snapshot.layers[begin].index,
                                                snapshot.layers[end - 1].index);
    text += PrintableRow(label, shape);
    begin = end;
  }
  if (!snapshot.layers.empty() && !snapshot.heads_known()) {
    text += PrintableRow("kv heads",
                         "not in the file: give --model MODEL, --kv-heads H or --head-dim D");
  }
  for (const CellGroup& group : snapshot.cell_groups) {
    const CellSummary summary = Summarise(group);
    text += PrintableRow(
        group.group.empty() ? "cells" : "cells " + group.group,
        fmt::format("{}, positions {}..{}, {} stream{}, {} sequence{}{}", group.cells.size(),
                    summary.first, summary.last, group.streams, group.streams == 1 ? "" : "s",
                    summary.sequences.size(), summary.sequences.size() == 1 ? "" : "s",
                    summary.inversions > 0
                        ? fmt::format(", {} order inversions", summary.inversions)
                        : ""));
  }
  if (!snapshot.tokens.empty())
    text += PrintableRow("token ids", std::to_string(snapshot.tokens.size()));
  if (snapshot.key_rotation != KeyRotation::kUnknown)
    text += PrintableRow("keys", RotationText(snapshot));
  if (snapshot.k_hadamard != HadamardState::kNo || snapshot.v_hadamard != HadamardState::kNo) {
    const bool quantised =
        std::any_of(snapshot.layers.begin(), snapshot.layers.end(), [](const LayerKv& layer) {
          return IsBlockQuantised(layer.k.dtype) || (layer.v && IsBlockQuantised(layer.v->dtype));
        });
    if (quantised) {
      text += PrintableRow("hadamard", fmt::format("K {}, V {}", Word(snapshot.k_hadamard),
                                                   Word(snapshot.v_hadamard)));
    }
  }
  for (const auto& [name, value] : snapshot.facts) text += PrintableRow(name, value);
  const uint64_t stored = snapshot.source.total_bytes(),
                 total = snapshot.unpacked_bytes > 0 ? snapshot.unpacked_bytes : stored,
                 k = BytesOf(snapshot, false), v = BytesOf(snapshot, true);
  std::string size = snapshot.unpacked_bytes > 0 ? HumanBytes(stored) + ", unpacked " : "";
  size += fmt::format("{} = K {} + V {}", HumanBytes(total), HumanBytes(k), HumanBytes(v));
  if (total > k + v) size += fmt::format(" + {} other", HumanBytes(total - k - v));
  text += PrintableRow("size", size);
  for (const Note& note : snapshot.notes) {
    if (!note.is_warning) text += PrintableRow("note", note.text);
  }
  return text;
}

std::string CellsText(const Snapshot& snapshot) {
  Table table({"cells", "cell", "position", "stream", "sequences"});
  for (const CellGroup& group : snapshot.cell_groups) {
    for (size_t begin = 0, end; begin < group.cells.size(); begin = end) {
      const Cell& first = group.cells[begin];
      for (end = begin + 1; end < group.cells.size(); ++end) {
        const Cell& next = group.cells[end];
        if (next.stream != first.stream || !(next.sequences == first.sequences) ||
            next.position != first.position + static_cast<int64_t>(end - begin))
          break;
      }
      const auto range = [&](int64_t from) {
        const auto more = static_cast<int64_t>(end - begin) - 1;
        return more == 0 ? fmt::format("{}", from) : fmt::format("{}-{}", from, from + more);
      };
      table.Row({group.group.empty() ? "-" : group.group, range(static_cast<int64_t>(begin)),
                 range(first.position), std::to_string(first.stream),
                 first.sequences.empty()
                     ? "none"
                     : fmt::format("{}", fmt::join(first.sequences.ids(), ", "))});
    }
  }
  return snapshot.cell_groups.empty() ? "  the file records no cells\n" : table.Text("  ");
}

nlohmann::ordered_json DescribeJson(const Snapshot& snapshot, bool every_cell) {
  nlohmann::ordered_json json;
  json["inputs"] = {{{"file", snapshot.source.path}, {"bytes", snapshot.source.total_bytes()}}};
  json["format"] = snapshot.format;
  json["format_version"] = snapshot.format_version;
  json["engine"] = snapshot.engine;
  json["model"] = snapshot.model;
  if (snapshot.unpacked_bytes > 0) json["unpacked_bytes"] = snapshot.unpacked_bytes;
  json["k_bytes"] = BytesOf(snapshot, false);
  json["v_bytes"] = BytesOf(snapshot, true);
  const uint64_t rows = BatchRows(snapshot);
  json["batch_rows"] = rows;
  json["rows"] = BatchJson(snapshot, rows);
  json["heads_known"] = snapshot.heads_known();
  json["key_rotation"] = RotationWord(snapshot);
  const bool is_assumed = snapshot.key_rotation == KeyRotation::kRotated;
  const std::string assumption = is_assumed ? AssumptionText(snapshot) : std::string();
  if (!assumption.empty()) json["key_rotation_assumed"] = assumption;
  json["key_rotation_from"] = SourceWord(snapshot);
  json["hadamard"] = {{"k", Word(snapshot.k_hadamard)}, {"v", Word(snapshot.v_hadamard)}};
  json["token_ids"] = snapshot.tokens.size();
  json["cells"] = nlohmann::ordered_json::array();
  for (const CellGroup& group : snapshot.cell_groups) {
    const CellSummary summary = Summarise(group);
    json["cells"].push_back({{"group", group.group},
                             {"count", group.cells.size()},
                             {"streams", group.streams},
                             {"first_position", summary.first},
                             {"last_position", summary.last},
                             {"sequences", summary.sequences},
                             {"order_inversions", summary.inversions}});
    if (!every_cell) continue;
    nlohmann::ordered_json& records = json["cells"].back()["records"];
    records = nlohmann::ordered_json::array();
    for (const Cell& cell : group.cells) {
      records.push_back(
          {{"position", cell.position},
           {"stream", cell.stream},
           {"sequences", std::vector<int32_t>(cell.sequences.begin(), cell.sequences.end())}});
    }
  }
  json["facts"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : snapshot.facts) json["facts"][WithUnderscores(name)] = value;
  json["layers"] = nlohmann::ordered_json::array();
  for (const LayerKv& layer : snapshot.layers) {
    nlohmann::ordered_json entry = {{"layer", layer.index}};
    if (!layer.label.empty()) entry["label"] = layer.label;
    if (!layer.group.empty()) entry["group"] = layer.group;
    entry["k"] = TensorJson(layer.k, rows);
    entry["v"] = layer.v ? TensorJson(*layer.v, rows) : nlohmann::ordered_json();
    json["layers"].push_back(std::move(entry));
  }
  json["notes"] = nlohmann::ordered_json::array();
  json["warnings"] = nlohmann::ordered_json::array();
  for (const Note& note : snapshot.notes)
    json[note.is_warning ? "warnings" : "notes"].push_back(note.text);
  return json;
}

void WarnOf(std::span<const Note> notes, const std::string& path, Console& console) {
  for (const Note& note : notes) {
    if (note.is_warning) console.Warn(path, note.text);
  }
}

}  // namespace kv
