// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Serialises the source table, including the snapshot as its reader described it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "lib/core/archive/records.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/file.h"

namespace kv::kvz {
namespace {

void AppendText(std::string_view text, ByteWriter& out) {
  out.U32(static_cast<uint32_t>(text.size()));
  out.Append(text);
}

std::string ReadText(ByteReader& in, std::string_view field) {
  const auto bytes = in.U32(field);
  return std::string(in.Text(bytes, field));
}

// Reads a count and checks that this many items of at least `item_bytes` fit the remaining bytes.
// Throws kTruncated.
uint32_t ReadCount(ByteReader& in, uint64_t item_bytes, std::string_view field) {
  const uint64_t at = in.offset();
  const auto count = in.U32(field);
  if (count > in.remaining() / item_bytes) {
    throw Error(Finding::kTruncated, "{} {} do not fit the {} bytes left", count, field,
                in.remaining())
        .At(at);
  }
  return count;
}

// Cells take far more memory than file bytes, because a run of them is one entry.
constexpr uint64_t kMaxCells = 4 << 20;
constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 50;
// prefix of the facts that are entries of Snapshot::storage
constexpr std::string_view kStorageFact = "storage.";

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
    throw Error(Finding::kSizeMismatch, "heads of {} do not hold whole {} blocks", tensor.head_dim,
                Name(tensor.dtype));
  }
  if (CheckedMul(tensor.row_bytes(), tokens, "tensor size") > kMaxTensorBytes ||
      tokens > kMaxTensorBytes) {
    throw Error(Finding::kLimit, "a tensor of {} tokens", tokens);
  }
  tensor.pieces.push_back({nullptr, tokens, {}, {}, {}});
  return tensor;
}

struct CellRun {
  int64_t first;
  uint32_t count;
  const Cell* cell;
};

std::vector<CellRun> FindCellRuns(const std::vector<Cell>& cells) {
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
  const std::vector<CellRun> runs = FindCellRuns(group.cells);
  out.U32(static_cast<uint32_t>(runs.size()));
  for (const CellRun& run : runs) {
    out.Write(run.first);
    out.U32(run.count);
    out.U32(run.cell->stream);
    out.U32(static_cast<uint32_t>(run.cell->sequences.size()));
    for (const int32_t sequence : run.cell->sequences) out.I32(sequence);
  }
}

// Returns the cost of a cell against kMaxCells, which limits all groups together: one, plus one for
// every eight sequences.
uint64_t ComputeCost(const Cell& cell) { return 1 + cell.sequences.size() / 8; }

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
    cell_cost += uint64_t{count} * ComputeCost(cell);
    if (cell_cost > kMaxCells || first > INT64_MAX - count) {
      throw Error(Finding::kLimit, "more than {} cells", kMaxCells).At(in.offset());
    }
    for (uint32_t c = 0; c < count; ++c, ++cell.position) group.cells.push_back(cell);
  }
  return group;
}

// Drops the cells that exceed the reader's limit.
void DropCellsBeyondLimit(std::vector<CellGroup>& groups) {
  uint64_t left = kMaxCells;
  for (CellGroup& group : groups) {
    uint64_t cost = 0;
    for (const Cell& cell : group.cells) cost += ComputeCost(cell);
    if (cost > left)
      group.cells.clear();
    else
      left -= cost;
  }
}

// Appends the snapshot as its reader described it.
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

void CheckName(const std::string& name, const std::string* before) {
  if (!IsSafeRelativePath(name)) {
    throw Error(Finding::kUnsafeName, "the stored name '{}' would leave the output folder",
                Escaped(name));
  }
  if (before != nullptr && *before >= name) {
    throw Error(Finding::kDuplicateName, "the stored name '{}' occurs twice or out of order",
                Escaped(name));
  }
}

void CheckNames(const SourceTable& table) {
  if (!table.is_folder) {
    if (table.files.size() != 1 || !table.files[0].name.empty() || table.has_attributes()) {
      throw Error(Finding::kBadField, "a single-file source has one file without a name");
    }
    return;
  }
  std::vector<std::string_view> names;
  const std::string* before = nullptr;
  for (const ArchivedFile& file : table.files) {
    CheckName(file.name, std::exchange(before, &file.name));
    names.push_back(file.name);
  }
  before = nullptr;
  for (const std::string& folder : table.empty_folders) {
    CheckName(folder, std::exchange(before, &folder));
    names.push_back(folder);
  }
  // The name of a file or of an empty folder must not also be a parent folder of another name.
  const auto clash = FindNameClash(std::move(names));
  if (!clash) return;
  throw Error(Finding::kDuplicateName,
              clash->above == clash->name
                  ? fmt::format("the stored name '{}' is a file and a folder", Escaped(clash->name))
                  : fmt::format("the stored name '{}' is also the folder of '{}'",
                                Escaped(clash->above), Escaped(clash->name)));
}

constexpr uint32_t kIsFolder = 1, kHasDescription = 2, kHasAttributes = 4, kHasReferences = 8,
                   kHasProfile = 16, kHasGroups = 32, kByCells = 64, kIsApproximated = 128,
                   kHasExpectedLoss = 256, kEmbedsProfile = 512;
constexpr uint32_t kKnownFlags = kIsFolder | kHasDescription | kHasAttributes | kHasReferences |
                                 kHasProfile | kHasGroups | kByCells | kIsApproximated |
                                 kHasExpectedLoss | kEmbedsProfile;

void AppendAttributes(const SourceTable& table, ByteWriter& out) {
  for (const ArchivedFile& file : table.files) out.U8(file.executable ? 1 : 0);
  out.U32(static_cast<uint32_t>(table.empty_folders.size()));
  for (const std::string& name : table.empty_folders) AppendText(name, out);
}

void ReadAttributes(ByteReader& in, SourceTable& table) {
  for (ArchivedFile& file : table.files) file.executable = ReadEnum<uint8_t>(in, 1, "mode") != 0;
  for (uint32_t left = ReadCount(in, 4, "empty folders"); left > 0; --left) {
    table.empty_folders.push_back(ReadText(in, "name of an empty folder"));
  }
}

// The file is searched for in a folder, so its name must not lead outside.
void RequireFileName(const std::string& name, std::string_view what) {
  if (IsSafeRelativePath(name) && name.find('/') == std::string::npos) return;
  throw Error(Finding::kUnsafeName, "'{}' is not a valid file name of a {}", Escaped(name), what);
}

void AppendGroups(const SourceTable& table, ByteWriter& out) {
  out.U32(static_cast<uint32_t>(table.groups.size()));
  for (const FileGroup& group : table.groups) {
    out.U32(static_cast<uint32_t>(group.files.size()));
    out.U32(static_cast<uint32_t>(group.cuts.size()));
    for (const uint32_t file : group.files) out.U32(file);
    for (const uint64_t cut : group.cuts) out.U64(cut);
  }
}

// Throws kBadField or kLimit for a malformed group; `taken` marks files of earlier groups.
void CheckGroup(const FileGroup& group, const SourceTable& table, std::vector<bool>& taken) {
  const auto require = [](bool holds, std::string_view rule) {
    if (!holds) throw Error(Finding::kBadField, "group: broken rule: {}", rule);
  };
  require(group.files.size() >= 2, "a group has at least two files");
  uint64_t bytes = 0;
  for (const uint32_t file : group.files) {
    require(file < table.files.size(), "files of a group are in the table");
    require(!taken[file], "a file is in at most one group");
    taken[file] = true;
    const uint64_t size = table.files[file].size;
    require(size > 0, "its files are not empty");
    require(group.cuts.empty() || size == table.files[group.first()].size,
            "files that are cut have one size");
    bytes += std::min(size, kMostGroupBytes + 1);
    if (bytes > kMostGroupBytes) throw Error(Finding::kLimit, "a group of more than 64 MiB");
  }
  uint64_t before = 0;
  for (const uint64_t cut : group.cuts) {
    require(cut > before && cut < table.files[group.first()].size,
            "cuts ascend and lie within the files");
    before = cut;
  }
}

void ReadGroups(ByteReader& in, SourceTable& table) {
  std::vector<bool> taken(table.files.size());
  for (uint32_t left = ReadCount(in, 16, "groups"); left > 0; --left) {
    FileGroup group;
    const uint32_t files = ReadCount(in, 4, "files of a group");
    const uint32_t cuts = ReadCount(in, 8, "cuts of a group");
    if (cuts > kMostGroupCuts) throw Error(Finding::kLimit, "a group has too many cuts");
    for (uint32_t i = 0; i < files; ++i) group.files.push_back(in.U32("file of a group"));
    for (uint32_t i = 0; i < cuts; ++i) group.cuts.push_back(in.U64("cut of a group"));
    CheckGroup(group, table, taken);
    if (!table.groups.empty() && table.groups.back().first() >= group.first())
      throw Error(Finding::kBadField, "groups: broken rule: sorted by their first files");
    table.groups.push_back(std::move(group));
  }
  if (table.groups.empty()) throw Error(Finding::kBadField, "groups: none, at least one expected");
}

void AppendReferences(const SourceTable& table, ByteWriter& out) {
  out.U32(static_cast<uint32_t>(table.references.size()));
  for (const ReferenceName& reference : table.references) {
    AppendText(reference.file, out);
    AppendText(reference.format, out);
    out.U64(reference.source_bytes);
    out.U64(reference.source_hash);
    out.U32(reference.chain);
  }
}

void ReadReferences(ByteReader& in, SourceTable& table) {
  for (uint32_t left = ReadCount(in, 28, "references"); left > 0; --left) {
    ReferenceName& reference = table.references.emplace_back();
    reference.file = ReadText(in, "name of a reference");
    reference.format = ReadText(in, "format of a reference");
    reference.source_bytes = in.U64("size of a reference");
    reference.source_hash = in.U64("hash of a reference");
    reference.chain = in.U32("length of a chain");
    RequireFileName(reference.file, "reference");
    if (reference.chain == 0 || reference.chain > kMaxReferenceChain) {
      throw Error(Finding::kLimit, "a chain of {} references, 1..{} expected", reference.chain,
                  kMaxReferenceChain);
    }
  }
  if (table.references.empty() || table.references.size() > UINT16_MAX)
    throw Error(Finding::kBadField, "{} references, 1 to 65535 expected", table.references.size());
}

void AppendProfile(const ProfileName& profile, ByteWriter& out) {
  AppendText(profile.file, out);
  AppendText(profile.model, out);
  out.Append(ByteSpan(profile.hash));
}

ProfileName ReadProfile(ByteReader& in) {
  ProfileName profile;
  profile.file = ReadText(in, "name of a profile");
  profile.model = ReadText(in, "model of a profile");
  const ByteSpan hash = in.Take(profile.hash.size(), "hash of a profile");
  std::memcpy(profile.hash.data(), hash.data(), hash.size());
  if (!profile.file.empty()) RequireFileName(profile.file, "profile");
  return profile;
}

void AppendApproximation(const Approximation& of, ByteWriter& out) {
  AppendText(of.file, out);
  AppendText(of.model, out);
  out.Append(ByteSpan(of.hash));
  out.Write(of.ratio);
  out.U32(of.sinks);
  out.U32(of.window);
  out.U64(of.source_hash);
  out.U32(static_cast<uint32_t>(of.rotations.size()));
  for (const Rotation& rotation : of.rotations) WriteRotation(rotation, out);
  out.U32(static_cast<uint32_t>(of.layers.size()));
  for (const Approximation::Layer& layer : of.layers) {
    out.U32(layer.number);
    out.U32(layer.rotation);
    for (const Loss& loss : {layer.k, layer.v}) {
      out.Write(loss.relative);
      out.Write(loss.largest);
    }
  }
}

// Reads a figure that is finite and at least `least`.
double ReadFigure(ByteReader& in, double least, std::string_view field) {
  const auto value = in.Read<double>(field);
  if (std::isfinite(value) && value >= least) return value;
  throw Error(Finding::kBadField, "{} {}, at least {} expected", field, value, least)
      .At(in.offset() - sizeof value);
}

Approximation::Layer ReadApproximatedLayer(ByteReader& in, const Approximation& of) {
  Approximation::Layer layer;
  layer.number = in.U32("number of a layer");
  layer.rotation = in.U32("rotation of a layer");
  if (layer.rotation >= of.rotations.size())
    throw Error(Finding::kBadField, "rotation {} of {}", layer.rotation, of.rotations.size());
  for (Loss* loss : {&layer.k, &layer.v}) {
    loss->relative = ReadFigure(in, 0, "relative error");
    loss->largest = ReadFigure(in, 0, "largest error");
  }
  return layer;
}

Approximation ReadApproximation(ByteReader& in, const SourceTable& table) {
  Approximation of;
  of.file = ReadText(in, "name of a transform");
  of.model = ReadText(in, "model of a transform");
  const ByteSpan hash = in.Take(of.hash.size(), "hash of a transform");
  std::memcpy(of.hash.data(), hash.data(), hash.size());
  if (!of.file.empty()) RequireFileName(of.file, "transform");
  of.ratio = ReadFigure(in, 1, "ratio");
  of.sinks = in.U32("first tokens");
  of.window = in.U32("last tokens");
  of.source_hash = in.U64("hash of the original");
  for (uint32_t left = ReadCount(in, 4, "rotations"); left > 0; --left)
    of.rotations.push_back(ReadRotation(in, UINT16_MAX));
  for (uint32_t left = ReadCount(in, 40, "approximated layers"); left > 0; --left)
    of.layers.push_back(ReadApproximatedLayer(in, of));
  const auto& described = table.description->layers;
  const bool fits = std::equal(
      of.layers.begin(), of.layers.end(), described.begin(), described.end(),
      [](const auto& layer, const LayerKv& known) { return layer.number == known.index; });
  if (!fits) throw Error(Finding::kBadField, "the approximated layers are not those described");
  return of;
}

}  // namespace

bool SourceTable::has_attributes() const {
  return !empty_folders.empty() ||
         std::any_of(files.begin(), files.end(),
                     [](const ArchivedFile& file) { return file.executable; });
}

namespace {

uint32_t ListFlags(const SourceTable& table) {
  const bool has_loss = table.approximation && table.approximation->expected_kl;
  return (table.is_folder ? kIsFolder : 0) | (table.description ? kHasDescription : 0) |
         (table.has_attributes() ? kHasAttributes : 0) |
         (table.references.empty() ? 0 : kHasReferences) | (table.profile ? kHasProfile : 0) |
         (table.groups.empty() ? 0 : kHasGroups) | (table.by_cells ? kByCells : 0) |
         (table.approximation ? kIsApproximated : 0) | (has_loss ? kHasExpectedLoss : 0) |
         (table.profile && table.profile->embedded ? kEmbedsProfile : 0);
}

}  // namespace

Bytes EncodeTable(const SourceTable& table) {
  ByteWriter out;
  out.U32(ListFlags(table));
  out.U32(static_cast<uint32_t>(table.files.size()));
  for (const ArchivedFile& file : table.files) {
    out.U64(file.size);
    AppendText(file.name, out);
  }
  if (table.has_attributes()) AppendAttributes(table, out);
  if (!table.groups.empty()) AppendGroups(table, out);
  if (table.description) AppendDescription(table, out);
  if (!table.references.empty()) AppendReferences(table, out);
  if (table.profile) AppendProfile(*table.profile, out);
  if (table.approximation) AppendApproximation(*table.approximation, out);
  if (table.approximation && table.approximation->expected_kl)
    out.Write(*table.approximation->expected_kl);
  return out.Release();
}

SourceTable DecodeTable(ByteSpan bytes) {
  ByteReader in(bytes);
  SourceTable table;
  try {
    const auto flags = in.U32("flags");
    if ((flags & ~kKnownFlags) != 0)
      throw Error(Finding::kBadField, "flags {:#x} are unknown", flags);
    table.is_folder = (flags & kIsFolder) != 0;
    table.by_cells = (flags & kByCells) != 0;
    if (table.by_cells && (flags & kHasDescription) == 0)
      throw Error(Finding::kBadField, "rows are in cell order, but no cells are described");
    if ((flags & kIsApproximated) != 0 && (flags & kHasDescription) == 0)
      throw Error(Finding::kBadField, "values are approximated, but no layers are described");
    if ((flags & kHasExpectedLoss) != 0 && (flags & kIsApproximated) == 0)
      throw Error(Finding::kBadField, "a loss is expected, but no values are approximated");
    uint64_t total = 0;
    for (uint32_t left = ReadCount(in, 12, "files"); left > 0; --left) {
      const uint64_t size = in.U64("file size");
      total = CheckedAdd(total, size, "source size");
      table.files.push_back({ReadText(in, "file name"), size, std::nullopt, false});
    }
    if (total > INT64_MAX) throw Error(Finding::kOverflow, "the source's size exceeds 63 bits");
    if ((flags & kHasAttributes) != 0) ReadAttributes(in, table);
    CheckNames(table);
    if ((flags & kHasGroups) != 0) ReadGroups(in, table);
    if ((flags & kHasDescription) != 0) ReadDescription(in, table);
    if ((flags & kHasReferences) != 0) ReadReferences(in, table);
    if ((flags & kHasProfile) != 0) table.profile = ReadProfile(in);
    if ((flags & kEmbedsProfile) != 0) {
      if (!table.profile) throw Error(Finding::kBadField, "a profile inside that has no name");
      table.profile->embedded = true;
    }
    if ((flags & kIsApproximated) != 0) table.approximation = ReadApproximation(in, table);
    if ((flags & kHasExpectedLoss) != 0)
      table.approximation->expected_kl = ReadFigure(in, 0, "expected loss");
    in.ExpectEnd("the source table");
  } catch (Error& error) {
    throw error.In("source table");
  }
  return table;
}

SourceTable DescribeSource(const Source& source, const Snapshot* snapshot,
                           const std::vector<Region>& regions) {
  SourceTable table;
  table.is_folder = source.is_folder;
  for (const SourceFile& file : source.files) {
    table.files.push_back({source.is_folder ? file.name : "", file.data->size(), std::nullopt,
                           source.is_folder && file.executable});
  }
  table.empty_folders = source.empty_folders;
  CheckNames(table);
  if (snapshot == nullptr) return table;
  Snapshot& copy = table.description.emplace();
  copy.format = snapshot->format;
  copy.format_version = snapshot->format_version;
  copy.engine = snapshot->engine;
  copy.model = snapshot->model;
  copy.layers = snapshot->layers;
  copy.cell_groups = snapshot->cell_groups;
  DropCellsBeyondLimit(copy.cell_groups);
  copy.tokens = snapshot->tokens;
  copy.key_rotation = snapshot->key_rotation;
  copy.k_hadamard = snapshot->k_hadamard;
  copy.v_hadamard = snapshot->v_hadamard;
  copy.notes = snapshot->notes;
  copy.facts = snapshot->facts;
  copy.storage = snapshot->storage;
  std::map<std::pair<uint32_t, bool>, uint64_t> held;  // bytes in regions
  for (const Region& region : regions) {
    if (region.order == Order::kStorage) continue;
    held[{region.layer, region.is_value}] += region.size;
  }
  for (const LayerKv& layer : copy.layers) {
    const auto holds = [&](const KvTensor& tensor, bool is_value) {
      const auto at = held.find({layer.index, is_value});
      return tensor.bytes() == (at == held.end() ? 0 : at->second);
    };
    table.holds_tensor.push_back({holds(layer.k, false), layer.v && holds(*layer.v, true)});
  }
  return table;
}

}  // namespace kv::kvz
