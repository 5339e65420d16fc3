// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Shows snapshots: the text of inspect, and the fields of its document.
#include "apps/kvtool/documents/snapshot_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/transform_report.h"
#include "apps/kvtool/inputs/run_input.h"
#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"
#include "lib/core/snapshot/rope.h"

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

std::string DescribeShape(const LayerKv& layer, uint64_t rows) {
  return "K " + Shape(layer.k, rows) + (layer.v ? ", V " + Shape(*layer.v, rows) : ", no V") +
         (layer.group.empty() ? "" : ", " + layer.group);
}

bool LooksAs(const KvTensor& a, const KvTensor& b) {
  return a.dtype == b.dtype && a.tokens() == b.tokens() && a.heads_known == b.heads_known &&
         (a.heads_known ? a.heads == b.heads && a.head_dim == b.head_dim
                        : a.channels() == b.channels());
}

// Returns true if both have the same DescribeShape. Comparing fields is faster than making texts,
// which matters for a million layers.
bool LooksAs(const LayerKv& a, const LayerKv& b) {
  return LooksAs(a.k, b.k) && a.v.has_value() == b.v.has_value() && (!a.v || LooksAs(*a.v, *b.v)) &&
         a.group == b.group;
}

uint64_t LongestTokens(const Snapshot& snapshot) {
  uint64_t most = 0;
  for (const LayerKv& layer : snapshot.layers) most = std::max(most, layer.k.tokens());
  return most;
}

// Returns only what the file itself proves.
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

// Returns why the keys are assumed to be rotated if the file does not say.
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
      0;  // positions that step back within a stream, the only sign of fragmentation
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

uint64_t CountBytes(const Snapshot& snapshot, bool values) {
  uint64_t total = 0;
  for (const LayerKv& layer : snapshot.layers) {
    total += values ? (layer.v ? layer.v->bytes() : 0) : layer.k.bytes();
  }
  return total;
}

std::string PrintableRow(std::string_view name, std::string_view value) {
  return fmt::format("  {:<12} {}\n", Printable(name), Printable(value));
}

// Describes the rows of a batch, which are one sequence each.
std::string BatchText(const Snapshot& snapshot, uint64_t rows, bool every_row) {
  std::string text = PrintableRow("batch", fmt::format("{} rows; --batch N reads one", rows));
  const uint64_t shown = every_row ? rows : std::min(rows, kRowsShown);
  for (uint64_t row = 0; row < shown; ++row) {
    text += PrintableRow(fmt::format("row {}", row),
                         fmt::format("{} tokens, K {} + V {}", LongestTokens(snapshot) / rows,
                                     HumanBytes(CountBytes(snapshot, false) / rows),
                                     HumanBytes(CountBytes(snapshot, true) / rows)));
  }
  if (shown < rows)
    text += PrintableRow("", fmt::format("and {} more (--tensors lists all)", rows - shown));
  return text;
}

// Describes the layers. Consecutive ones that look alike share a line.
std::string LayersText(const Snapshot& snapshot, uint64_t rows, bool every_layer) {
  std::string text;
  const std::vector<LayerKv>& layers = snapshot.layers;
  for (size_t begin = 0, end = 0; begin < layers.size(); begin = end) {
    std::vector<uint32_t> alike;
    do {
      alike.push_back(layers[end++].index);
    } while (!every_layer && end < layers.size() && LooksAs(layers[end], layers[begin]));
    text +=
        PrintableRow(fmt::format("layer{} {}", PluralEnding(alike.size()), RangesText(alike, ", ")),
                     DescribeShape(layers[begin], rows));
  }
  return text;
}

std::string GroupText(const CellGroup& group) {
  const CellSummary summary = Summarise(group);
  const std::string inversions =
      summary.inversions > 0 ? fmt::format(", {} order inversions", summary.inversions) : "";
  return fmt::format("{}, positions {}..{}, {}, {}{}", group.cells.size(), summary.first,
                     summary.last, Plural(group.streams, "stream"),
                     Plural(summary.sequences.size(), "sequence"), inversions);
}

// Returns true if quantised tensors are, or may be, rotated by a Hadamard transform.
bool MayBeHadamard(const Snapshot& snapshot) {
  if (snapshot.k_hadamard == HadamardState::kNo && snapshot.v_hadamard == HadamardState::kNo)
    return false;
  return std::ranges::any_of(snapshot.layers, [](const LayerKv& layer) {
    return IsBlockQuantised(layer.k.dtype) || (layer.v && IsBlockQuantised(layer.v->dtype));
  });
}

std::string SizeText(const Snapshot& snapshot) {
  const uint64_t stored = snapshot.source.total_bytes(),
                 total = snapshot.unpacked_bytes > 0 ? snapshot.unpacked_bytes : stored,
                 k = CountBytes(snapshot, false), v = CountBytes(snapshot, true);
  std::string size = snapshot.unpacked_bytes > 0 ? HumanBytes(stored) + ", unpacked " : "";
  size += fmt::format("{} = K {} + V {}", HumanBytes(total), HumanBytes(k), HumanBytes(v));
  if (total > k + v) size += fmt::format(" + {} other", HumanBytes(total - k - v));
  return size;
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
  text += LayersText(snapshot, rows, every_layer);
  if (!snapshot.layers.empty() && !snapshot.heads_known()) {
    text += PrintableRow("kv heads",
                         "not in the file: give --model MODEL, --kv-heads H or --head-dim D");
  }
  for (const CellGroup& group : snapshot.cell_groups)
    text += PrintableRow(group.group.empty() ? "cells" : "cells " + group.group, GroupText(group));
  if (!snapshot.tokens.empty())
    text += PrintableRow("token ids", std::to_string(snapshot.tokens.size()));
  if (snapshot.key_rotation != KeyRotation::kUnknown)
    text += PrintableRow("keys", RotationText(snapshot));
  if (MayBeHadamard(snapshot)) {
    text += PrintableRow("hadamard", fmt::format("K {}, V {}", Word(snapshot.k_hadamard),
                                                 Word(snapshot.v_hadamard)));
  }
  for (const auto& [name, value] : snapshot.facts) text += PrintableRow(name, value);
  text += PrintableRow("size", SizeText(snapshot));
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

namespace {

struct DescribedTensor {
  const KvTensor& tensor;
  uint64_t rows;  // rows of the batch
  const std::optional<TensorStats>* stats;

  // Returns the number if channels are known to divide into heads; otherwise nothing.
  std::optional<uint64_t> OfHeads(uint64_t number) const {
    return tensor.heads_known ? std::optional(number) : std::nullopt;
  }
};

struct DescribedLayer {
  const LayerKv& layer;
  uint64_t rows;
  const LayerStats* stats;
};

struct BatchRow {
  uint64_t row, tokens, k_bytes, v_bytes;
};

struct DescribedCells {
  const CellGroup& group;
  CellSummary summary;
  bool with_records;
};

const Fields<DescribedTensor>& DescribedTensorFields() {
  using Tensor = DescribedTensor;
  static const Fields<Tensor> fields = {
      {"dtype", "Element type", [](const Tensor& of) { return Name(of.tensor.dtype); }},
      {"tokens", "Tokens of one row of the batch",
       [](const Tensor& of) { return of.tensor.tokens() / of.rows; }},
      {"kv_heads", "KV heads; null if not known",
       [](const Tensor& of) { return of.OfHeads(of.tensor.heads); }},
      {"head_dim", "Values per head; null if not known",
       [](const Tensor& of) { return of.OfHeads(of.tensor.head_dim); }},
      {"channels", "Values per token, all heads",
       [](const Tensor& of) { return of.tensor.channels(); }},
      {"bytes", "Bytes as stored, all rows of the batch",
       [](const Tensor& of) { return of.tensor.bytes(); }},
      {"stats", "Statistics of the values, with --stats",
       [](const Tensor& of) { return of.stats != nullptr && *of.stats ? &**of.stats : nullptr; },
       TensorStatsFields(), Absent()}};
  return fields;
}

const Fields<BatchRow>& BatchRowFields() {
  static const Fields<BatchRow> fields = {
      {"row", "Number of the row, as --batch takes it", &BatchRow::row},
      {"tokens", "Tokens of the row, in the longest layer", &BatchRow::tokens},
      {"k_bytes", "Bytes of the row's K", &BatchRow::k_bytes},
      {"v_bytes", "Bytes of the row's V", &BatchRow::v_bytes}};
  return fields;
}

const Fields<DescribedCells>& DescribedCellsFields() {
  using Cells = DescribedCells;
  static const Fields<Cell> records = {
      {"position", "Position of the cell's token", &Cell::position},
      {"stream", "Stream of the cell", &Cell::stream},
      {"sequences", "Sequences that the cell belongs to", [](const Cell& of) {
         return std::vector<int32_t>(of.sequences.begin(), of.sequences.end());
       }}};
  static const Fields<Cells> fields = {
      {"group", "Cache that the cells belong to, if there are several caches; otherwise empty",
       [](const Cells& of) { return of.group.group; }},
      {"count", "Number of cells", [](const Cells& of) { return of.group.cells.size(); }},
      {"streams", "Streams of the cells", [](const Cells& of) { return of.group.streams; }},
      {"first_position", "Smallest position", [](const Cells& of) { return of.summary.first; }},
      {"last_position", "Largest position", [](const Cells& of) { return of.summary.last; }},
      {"sequences", "Sequence ids of the cells, ascending",
       [](const Cells& of) {
         return std::vector<int32_t>(of.summary.sequences.begin(), of.summary.sequences.end());
       }},
      {"order_inversions",
       "Cells whose position is lower than that of the previous cell of the stream, a sign of "
       "fragmentation",
       [](const Cells& of) { return of.summary.inversions; }},
      {"records", "With --cells: every cell, in the order of the rows",
       [](const Cells& of) { return of.with_records ? &of.group.cells : nullptr; }, records,
       Absent()}};
  return fields;
}

std::vector<BatchRow> DescribeRows(const SnapshotDescription& of) {
  std::vector<BatchRow> rows;
  const uint64_t count = BatchRows(of.snapshot);
  for (uint64_t row = 0; row < count; ++row) {
    rows.push_back({row, LongestTokens(of.snapshot) / count, CountBytes(of.snapshot, false) / count,
                    CountBytes(of.snapshot, true) / count});
  }
  return rows;
}

std::vector<DescribedCells> DescribeCells(const SnapshotDescription& of) {
  std::vector<DescribedCells> cells;
  for (const CellGroup& group : of.snapshot.cell_groups) {
    cells.push_back({group, Summarise(group), of.every_cell});
  }
  return cells;
}

std::vector<DescribedLayer> DescribeLayers(const SnapshotDescription& of) {
  std::vector<DescribedLayer> layers;
  const uint64_t rows = BatchRows(of.snapshot);
  for (const LayerKv& layer : of.snapshot.layers) {
    const LayerStats* stats = of.stats.empty() ? nullptr : &of.stats[layers.size()];
    layers.push_back({layer, rows, stats});
  }
  return layers;
}

std::map<std::string, std::string> DescribeFacts(const SnapshotDescription& of) {
  std::map<std::string, std::string> facts;
  for (const auto& [name, value] : of.snapshot.facts) facts[WithUnderscores(name)] = value;
  return facts;
}

auto DescribeNotes(bool warnings) {
  return [warnings](const SnapshotDescription& of) {
    std::vector<std::string> texts;
    for (const Note& note : of.snapshot.notes) {
      if (note.is_warning == warnings) texts.push_back(note.text);
    }
    return texts;
  };
}

std::optional<std::string> AssumedRotation(const SnapshotDescription& of) {
  if (of.snapshot.key_rotation != KeyRotation::kRotated) return std::nullopt;
  return IfAny(AssumptionText(of.snapshot));
}

const Fields<Snapshot>& SnapshotFields() {
  static const Value::List answers = {"yes", "no", "unknown"};
  static const Fields<Snapshot> hadamard = {{"k",
                                             "Whether K is rotated: yes, no or unknown",
                                             [](const Snapshot& of) { return Word(of.k_hadamard); },
                                             {.choices = answers}},
                                            {"v",
                                             "Whether V is rotated: yes, no or unknown",
                                             [](const Snapshot& of) { return Word(of.v_hadamard); },
                                             {.choices = answers}}};
  static const Fields<Snapshot> fields = {
      {"inputs", "What was read",
       [](const Snapshot& of) {
         return std::vector{SizedFile{of.source.path, of.source.total_bytes()}};
       },
       SizedFileFields()},
      {"format", "Format of the snapshot, as kvtool formats names it", &Snapshot::format},
      {"format_version", "Version or variant of the format; empty if it has none",
       &Snapshot::format_version},
      {"engine", "Engine that wrote the snapshot; empty if not known", &Snapshot::engine},
      {"model", "Model of the snapshot; empty if not known", &Snapshot::model},
      {"unpacked_bytes", "Bytes of an archive's original files; absent for other files",
       [](const Snapshot& of) {
         return of.unpacked_bytes > 0 ? std::optional(of.unpacked_bytes) : std::nullopt;
       },
       Absent()},
      {"k_bytes", "Bytes of K, all layers",
       [](const Snapshot& of) { return CountBytes(of, false); }},
      {"v_bytes", "Bytes of V, all layers",
       [](const Snapshot& of) { return CountBytes(of, true); }},
      {"batch_rows", "Sequences of the batch; 1 if there is no batch", BatchRows},
      {"heads_known", "Whether file or flags say how channels divide into heads",
       &Snapshot::heads_known},
      {"key_rotation", "Whether RoPE has been applied to the keys", RotationWord,
       OneOf("rotated", "unrotated", "unknown")},
      {"key_rotation_from", "Source of key_rotation: the file, or kvtool's assumption", SourceWord,
       OneOf("file", "assumed", "unknown")},
      {"hadamard",
       "Whether the engine rotated K or V by a Hadamard matrix before it quantised them",
       std::identity(), hadamard},
      {"token_ids", "Number of token ids in the file",
       [](const Snapshot& of) { return of.tokens.size(); }}};
  return fields;
}

}  // namespace

const Fields<SnapshotDescription>& SnapshotDescriptionFields() {
  using Described = SnapshotDescription;
  using Layer = DescribedLayer;
  static const Fields<Layer> described_layer = {
      {"layer", "Number of the layer", [](const Layer& of) { return of.layer.index; }},
      {"label", "Name of the layer in the file; absent if it has none",
       [](const Layer& of) { return IfAny(of.layer.label); }, Absent()},
      {"group", "Cache that the layer belongs to, if there are several caches",
       [](const Layer& of) { return IfAny(of.layer.group); }, Absent()},
      {"k", "Keys of the layer",
       [](const Layer& of) {
         return DescribedTensor{of.layer.k, of.rows, of.stats != nullptr ? &of.stats->k : nullptr};
       },
       DescribedTensorFields()},
      {"v", "Values of the layer; null where the file has none",
       [](const Layer& of) -> std::optional<DescribedTensor> {
         if (!of.layer.v) return std::nullopt;
         return DescribedTensor{*of.layer.v, of.rows, of.stats != nullptr ? &of.stats->v : nullptr};
       },
       DescribedTensorFields()}};
  static const Fields<Described> fields = {
      {"run", "Contents of run.json, if the input is a recorded run", &Described::run,
       RecordedRunFields(), Absent()},
      Fields<Described>::Inline(
          [](const Described& of) -> const auto& { return of.snapshot; }, SnapshotFields()),
      {"rows", "Each row of the batch", DescribeRows, BatchRowFields()},
      {"key_rotation_assumed",
       "Reason for assuming that keys are rotated, if the file does not say", AssumedRotation,
       Absent()},
      {"cells", "Records of cache cells; empty if the file has none", DescribeCells,
       DescribedCellsFields()},
      {"facts", "Facts specific to this format, by name", DescribeFacts},
      {"layers", "Each layer in the order of the file", DescribeLayers, described_layer, CsvRows()},
      {"notes", "Remarks on the file", DescribeNotes(false)},
      {"warnings", "Warnings on the file", DescribeNotes(true)},
      {"profile", "Contents of a profile (.kvp), which has no layers", &Described::profile,
       ProfileFields(), Absent()},
      {"transform", "Contents of a transform (.kvx), which has no layers", &Described::transform,
       TransformFields(), Absent()}};
  return fields;
}

void WarnAboutNotes(std::span<const Note> notes, const std::string& path, Console& console) {
  for (const Note& note : notes) {
    if (note.is_warning) console.Warn(path, note.text);
  }
}

namespace {

double BitsPerValue(const ProfileEntry& entry) { return entry.expected / 1024.0; }
double ExpectedRatio(const ProfileEntry& entry) {
  return entry.expected == 0 ? 0 : 16 / BitsPerValue(entry);
}
double BitsPerWeight(const Regression& one) {
  const uint64_t weights = std::max<uint64_t>(one.weights(), 1);
  return 8 * static_cast<double>(one.bytes()) / static_cast<double>(weights);
}
// Returns the neighbours of a regression, e.g. "0v 0k 1k".
std::string PredictedFrom(const Regression& one) {
  std::string text;
  for (const Neighbour& neighbour : one.neighbours) {
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", neighbour.layer,
                        neighbour.is_value ? 'v' : 'k');
  }
  return text;
}

}  // namespace

std::string ProfileSummary(const Profile& profile) {
  const size_t regressions = profile.regressions().list.size();
  return fmt::format("profile{}, {}{}, {}",
                     profile.name().empty() ? "" : " of " + Printable(profile.name()),
                     Plural(profile.entries().size(), "tensor"),
                     regressions > 0 ? ", " + Plural(regressions, "regression") : "",
                     HumanBytes(profile.file().size()));
}

std::string ProfileText(const Profile& profile) {
  Table table({"layer", "kv", "dtype", "row", "tables", "bits per value", "ratio", "known rows"});
  for (const ProfileEntry& entry : profile.entries()) {
    table.Row({std::to_string(entry.layer), entry.is_value ? "v" : "k",
               std::string(Name(entry.dtype)), std::to_string(entry.columns),
               std::to_string(entry.model.tables.size()),
               fmt::format("{:.3f}", BitsPerValue(entry)),
               fmt::format("{:.3f}x", ExpectedRatio(entry)), std::to_string(entry.row_count())});
  }
  std::string text = fmt::format("{}\nhash {}\n\n{}", ProfileSummary(profile),
                                 ProfileHashText(profile.hash()), table.Text("  "));
  const std::vector<Regression>& regressions = profile.regressions().list;
  if (regressions.empty()) return text;
  Table across({"layer", "kv", "row", "taps", "bytes", "bits per weight", "predicted from"});
  for (const Regression& one : regressions) {
    across.Row({std::to_string(one.layer), one.is_value ? "v" : "k", std::to_string(one.columns),
                std::to_string(one.taps()), std::to_string(one.bytes()),
                fmt::format("{:.2f}", BitsPerWeight(one)), PredictedFrom(one)});
  }
  return text + "\n" + across.Text("  ");
}

const Fields<Profile>& ProfileFields() {
  static const Fields<ProfileEntry> profile_entry = {
      {"layer", "Number of the layer", &ProfileEntry::layer},
      {"kv", "K or V", [](const ProfileEntry& entry) { return entry.is_value ? "v" : "k"; },
       OneOf("k", "v")},
      {"dtype", "Element type", [](const ProfileEntry& entry) { return Name(entry.dtype); },
       OneOf("f16", "bf16")},
      {"row_values", "Values per row: all heads of a token", &ProfileEntry::columns, AtLeast(1)},
      {"tables", "Number of entropy tables",
       [](const ProfileEntry& entry) { return entry.model.tables.size(); }, AtLeast(1)},
      {"bits_per_value", "Mean bits per value in training", BitsPerValue, AtLeast(0)},
      {"known_rows", "Rows that recurred in training and are listed", &ProfileEntry::row_count}};
  static const Fields<Regression> regression = {
      {"layer", "Number of the layer that it predicts", &Regression::layer},
      {"kv", "K or V", [](const Regression& one) { return one.is_value ? "v" : "k"; },
       OneOf("k", "v")},
      {"row_values", "Values of a row: all heads of a token", &Regression::columns, AtLeast(1)},
      {"taps",
       "Values from which it predicts each value: of other layers, of the row itself and of the "
       "rows before",
       &Regression::taps},
      {"bytes", "Size in the profile in bytes", &Regression::bytes},
      {"bits_per_weight", "Bits of the profile for each weight", BitsPerWeight, AtLeast(0)},
      {"predicted_from", "Layers whose K or V holds these values, e.g. \"0v 0k 1k\"",
       PredictedFrom}};
  static const Fields<Profile> fields = {
      {"name", "Name of the model", &Profile::name},
      {"hash", "Hash by which frames and archives name the profile: XXH3 (128 bits, 32 hex digits)",
       [](const Profile& profile) { return ProfileHashText(profile.hash()); }, kProfileHashText},
      {"bytes", "Size of the profile in bytes",
       [](const Profile& profile) { return profile.file().size(); }},
      {"tensors", "K and V of the layers, by layer, K before V", &Profile::entries, profile_entry,
       CsvRows()},
      {"regressions", "Regressions of layers on each other, which --across-layers learnt",
       [](const Profile& profile) -> std::optional<std::vector<Regression>> {
         if (profile.regressions().list.empty()) return std::nullopt;
         return profile.regressions().list;
       },
       regression, Absent()}};
  return fields;
}

}  // namespace kv
