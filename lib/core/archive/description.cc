// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The snapshot as its reader described it, in the source table.
#include "lib/core/archive/fields.h"
#include "lib/core/base/checked.h"

namespace kv::kvz {
namespace {

// Cells cost far more in memory than in the file, where a run of them is one entry.
constexpr uint64_t kMaxCells = 4 << 20;
constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 50;
constexpr std::string_view kStorageFact = "storage.";  // entries of Snapshot::storage among facts

void AppendTensor(const KvTensor& tensor, bool held, ByteWriter& out) {
  out.U8(static_cast<uint8_t>(tensor.dtype));
  out.U8(tensor.heads_known ? 1 : 0);
  out.U8(held ? 1 : 0);
  out.U8(0);
  out.U32(tensor.heads);
  out.U32(tensor.head_dim);
  out.U64(tensor.tokens());
}

KvTensor ReadTensor(ByteReader& in, bool& held) {
  KvTensor tensor;
  const auto last = static_cast<uint8_t>(AllDTypes().size() - 1);
  tensor.dtype = ReadEnum<DType>(in, last, "dtype");
  tensor.heads_known = ReadEnum<uint8_t>(in, 1, "heads known") != 0;
  held = ReadEnum<uint8_t>(in, 1, "held flag") != 0;
  ReadEnum<uint8_t>(in, 0, "reserved field");
  tensor.heads = in.U32("heads");
  tensor.head_dim = in.U32("head dim");
  const uint64_t tokens = in.U64("tokens");
  if (tensor.head_dim % Info(tensor.dtype).block_elements != 0) {
    throw Error(Finding::kSizeMismatch, fmt::format("heads of {} do not hold whole {} blocks",
                                                    tensor.head_dim, Name(tensor.dtype)));
  }
  if (CheckedMul(tensor.row_bytes(), tokens, "tensor size") > kMaxTensorBytes ||
      tokens > kMaxTensorBytes) {
    throw Error(Finding::kLimit, fmt::format("a tensor of {} tokens", tokens));
  }
  tensor.pieces.push_back({nullptr, tokens, {}, {}, {}});
  return tensor;
}

struct CellRun {
  int64_t first;
  uint32_t count;
  const Cell* cell;
};

std::vector<CellRun> RunsOf(const std::vector<Cell>& cells) {
  std::vector<CellRun> runs;
  for (const Cell& cell : cells) {
    if (!runs.empty()) {
      CellRun& last = runs.back();
      if (cell.position == last.first + last.count && cell.stream == last.cell->stream &&
          cell.sequences == last.cell->sequences && last.count < UINT32_MAX) {
        ++last.count;
        continue;
      }
    }
    runs.push_back({cell.position, 1, &cell});
  }
  return runs;
}

void AppendCells(const CellGroup& group, ByteWriter& out) {
  AppendText(group.group, out);
  out.U32(group.streams);
  const std::vector<CellRun> runs = RunsOf(group.cells);
  out.U32(static_cast<uint32_t>(runs.size()));
  for (const CellRun& run : runs) {
    out.Write(run.first);
    out.U32(run.count);
    out.U32(run.cell->stream);
    out.U32(static_cast<uint32_t>(run.cell->sequences.size()));
    for (const int32_t sequence : run.cell->sequences) out.I32(sequence);
  }
}

// What counts against kMaxCells, over all groups: cells, and every eight sequences of a cell once
// more.
uint64_t CostOf(const Cell& cell) { return 1 + cell.sequences.size() / 8; }

CellGroup ReadCells(ByteReader& in, uint64_t& cell_cost) {
  CellGroup group;
  group.group = ReadText(in, "cache group");
  group.streams = in.U32("streams");
  const uint32_t runs = ReadCount(in, 20, "cell runs");
  for (uint32_t i = 0; i < runs; ++i) {
    const auto first = in.I64("first position");
    const auto count = in.U32("cells of a run");
    Cell cell{.position = first, .stream = in.U32("stream"), .sequences = {}};
    const uint32_t sequences = ReadCount(in, 4, "sequences of a cell");
    for (uint32_t s = 0; s < sequences; ++s) cell.sequences.push_back(in.I32("sequence"));
    cell_cost += uint64_t{count} * CostOf(cell);
    if (cell_cost > kMaxCells || first > INT64_MAX - count) {
      throw Error(Finding::kLimit, fmt::format("more than {} cells", kMaxCells)).At(in.offset());
    }
    for (uint32_t c = 0; c < count; ++c, ++cell.position) group.cells.push_back(cell);
  }
  return group;
}

}  // namespace

void AppendText(std::string_view text, ByteWriter& out) {
  out.U32(static_cast<uint32_t>(text.size()));
  out.Append(text);
}

std::string ReadText(ByteReader& in, std::string_view field) {
  const auto bytes = in.U32(field);
  return std::string(in.Text(bytes, field));
}

uint32_t ReadCount(ByteReader& in, uint64_t item_bytes, std::string_view field) {
  const uint64_t at = in.offset();
  const auto count = in.U32(field);
  if (count > in.remaining() / item_bytes) {
    throw Error(Finding::kTruncated,
                fmt::format("{} {} do not fit the {} bytes left", count, field, in.remaining()))
        .At(at);
  }
  return count;
}

void DropCellsBeyondLimit(std::vector<CellGroup>& groups) {
  uint64_t left = kMaxCells;
  for (CellGroup& group : groups) {
    uint64_t cost = 0;
    for (const Cell& cell : group.cells) cost += CostOf(cell);
    if (cost > left)
      group.cells.clear();
    else
      left -= cost;
  }
}

void AppendDescription(const SourceTable& table, ByteWriter& out) {
  const Snapshot& snapshot = *table.description;
  for (const std::string* text :
       {&snapshot.format, &snapshot.format_version, &snapshot.engine, &snapshot.model}) {
    AppendText(*text, out);
  }
  out.U8(static_cast<uint8_t>(snapshot.key_rotation));
  out.U8(static_cast<uint8_t>(snapshot.k_hadamard));
  out.U8(static_cast<uint8_t>(snapshot.v_hadamard));
  out.U8(0);
  out.U32(static_cast<uint32_t>(snapshot.facts.size() + snapshot.storage.size()));
  for (const auto& [name, value] : snapshot.facts) {
    AppendText(name, out);
    AppendText(value, out);
  }
  for (const auto& [name, value] : snapshot.storage) {
    AppendText(std::string(kStorageFact) + name, out);
    AppendText(value, out);
  }
  out.U32(static_cast<uint32_t>(snapshot.notes.size()));
  for (const Note& note : snapshot.notes) {
    out.U8(note.is_warning ? 1 : 0);
    AppendText(note.text, out);
  }
  out.U32(static_cast<uint32_t>(snapshot.layers.size()));
  for (size_t i = 0; i < snapshot.layers.size(); ++i) {
    const LayerKv& layer = snapshot.layers[i];
    out.U32(layer.index);
    AppendText(layer.label, out);
    AppendText(layer.group, out);
    out.U8(layer.v ? 1 : 0);
    AppendTensor(layer.k, table.holds_tensor[i][0], out);
    if (layer.v) AppendTensor(*layer.v, table.holds_tensor[i][1], out);
  }
  out.U32(static_cast<uint32_t>(snapshot.cell_groups.size()));
  for (const CellGroup& group : snapshot.cell_groups) AppendCells(group, out);
  out.U64(snapshot.tokens.size());
  for (const int32_t token : snapshot.tokens) out.I32(token);
}

void ReadDescription(ByteReader& in, SourceTable& table) {
  Snapshot& snapshot = table.description.emplace();
  for (std::string* text :
       {&snapshot.format, &snapshot.format_version, &snapshot.engine, &snapshot.model}) {
    *text = ReadText(in, "description");
  }
  snapshot.key_rotation = ReadEnum<KeyRotation>(in, 2, "key rotation");
  snapshot.k_hadamard = ReadEnum<HadamardState>(in, 2, "Hadamard rotation of K");
  snapshot.v_hadamard = ReadEnum<HadamardState>(in, 2, "Hadamard rotation of V");
  ReadEnum<uint8_t>(in, 0, "reserved field");
  for (uint32_t left = ReadCount(in, 8, "facts"); left > 0; --left) {
    std::string name = ReadText(in, "fact");
    std::string value = ReadText(in, "fact");
    if (name.compare(0, kStorageFact.size(), kStorageFact) == 0) {
      snapshot.storage[name.substr(kStorageFact.size())] = std::move(value);
    } else {
      snapshot.facts.emplace_back(std::move(name), std::move(value));
    }
  }
  for (uint32_t left = ReadCount(in, 5, "notes"); left > 0; --left) {
    const bool is_warning = ReadEnum<uint8_t>(in, 1, "note kind") != 0;
    snapshot.notes.push_back({ReadText(in, "note"), is_warning});
  }
  for (uint32_t left = ReadCount(in, 33, "layers"); left > 0; --left) {
    LayerKv& layer = snapshot.layers.emplace_back();
    layer.index = in.U32("layer number");
    layer.label = ReadText(in, "layer label");
    layer.group = ReadText(in, "layer group");
    const bool has_v = ReadEnum<uint8_t>(in, 1, "V flag") != 0;
    std::array<bool, 2>& holds = table.holds_tensor.emplace_back();
    layer.k = ReadTensor(in, holds[0]);
    if (has_v) layer.v = ReadTensor(in, holds[1]);
  }
  uint64_t cells = 0;
  for (uint32_t left = ReadCount(in, 12, "cell groups"); left > 0; --left) {
    snapshot.cell_groups.push_back(ReadCells(in, cells));
  }
  const uint64_t tokens = in.U64("tokens");
  const ByteSpan ids = in.TakeArray(tokens, sizeof(int32_t), "tokens");
  snapshot.tokens.resize(tokens);
  for (uint64_t i = 0; i < tokens; ++i) snapshot.tokens[i] = LoadLE<int32_t>(&ids[4 * i]);
}

}  // namespace kv::kvz
