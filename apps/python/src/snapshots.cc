// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/python/src/snapshots.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <deque>
#include <nlohmann/json.hpp>

#include "apps/kvtool/console/console.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/program.h"
#include "apps/python/src/description.h"
#include "formats/key_pairs.h"
#include "formats/kvz/kvz.h"
#include "formats/registry.h"
#include "lib/core/base/parallel.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/kernels/hadamard.h"
#include "lib/core/kernels/quantise.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/select.h"

namespace kvtool_python {
namespace {

constexpr size_t kBlockValues = 32;

// A command of the embedding only: reads options as every command does, and keeps the snapshot that
// it opened.
class OpenCommand : public kv::Command {
 public:
  void Declare(kv::CommandLine& line) override {
    line.Add("FILE", input_, "Snapshot").Required();
    snapshot_.Declare(line);
  }
  kv::ExitStatus Run(kv::Context&) override {
    options = snapshot_.Resolve();
    options.metadata_only = true;
    source = snapshot_.Open(input_);
    snapshot = std::make_shared<kv::Snapshot>(kv::OpenSnapshot(source, options));
    return kv::kDone;
  }

  kv::OpenOptions options;
  kv::Source source;
  std::shared_ptr<const kv::Snapshot> snapshot;
};

bool HasBytes(const kv::Snapshot& snapshot) {
  const auto has = [](const kv::KvTensor& tensor) {
    return std::ranges::all_of(tensor.pieces, [](const kv::StridedPiece& piece) {
      return piece.data != nullptr || piece.tokens == 0;
    });
  };
  return std::ranges::all_of(snapshot.layers, [&](const kv::LayerKv& layer) {
    return has(layer.k) && (!layer.v || has(*layer.v));
  });
}

nb::object Describe(const kv::KvTensor& tensor) {
  const std::string_view name = kv::Name(tensor.dtype);
  return nb::make_tuple(nb::str(name.data(), name.size()), tensor.tokens(), tensor.heads,
                        tensor.head_dim, tensor.heads_known);
}

nb::dlpack::dtype FindElement(kv::DType dtype) {
  using Code = nb::dlpack::dtype_code;
  const kv::DTypeInfo& info = kv::Info(dtype);
  Code code = Code::UInt;
  if (dtype == kv::DType::kF32 || dtype == kv::DType::kF16 || dtype == kv::DType::kF64) {
    code = Code::Float;
  }
  if (dtype == kv::DType::kI8 || dtype == kv::DType::kI16 || dtype == kv::DType::kI32 ||
      dtype == kv::DType::kI64) {
    code = Code::Int;
  }
  const bool blocks = kv::IsBlockQuantised(dtype);
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(blocks ? 8 : info.block_bytes * 8), 1};
}

struct ArrayPlace {
  const std::byte* data;
  int64_t strides[3];  // in elements
};

// Returns the place of a tensor if NumPy can address it: one piece, even strides of whole elements.
std::optional<ArrayPlace> FindPlace(const kv::KvTensor& tensor, uint64_t element_bytes) {
  if (tensor.pieces.size() != 1) return std::nullopt;
  const kv::StridedPiece& piece = tensor.pieces[0];
  ArrayPlace place{piece.data, {}};
  size_t axis = 0;
  for (const kv::AxisStride& stride : {piece.token, piece.head, piece.dim}) {
    if (stride.group != UINT64_MAX || stride.step % element_bytes != 0) return std::nullopt;
    place.strides[axis++] = static_cast<int64_t>(stride.step / element_bytes);
  }
  if (!kv::IsBlockQuantised(tensor.dtype)) return place;
  if (piece.dim.step != tensor.unit_bytes()) return std::nullopt;
  place.strides[2] = 1;  // bytes of the blocks of one head are contiguous
  return place;
}

nb::object MakeArray(const void* data, const size_t (&shape)[3], nb::handle owner,
                     const int64_t* strides, nb::dlpack::dtype element) {
  return nb::cast(nb::ndarray<nb::numpy, nb::ro>(data, 3, shape, owner, strides, element));
}

}  // namespace

std::unique_ptr<OpenedSnapshot> OpenedSnapshot::Open(nb::handle arguments,
                                                     const std::string& dtype) {
  const std::vector<std::string> words = Words(arguments);
  auto opened = std::make_unique<OpenedSnapshot>();
  opened->dtype_ = dtype;
  RunInterruptibly(nb::none(), [&](kv::Embedding& embedding) {
    if (!dtype.empty() && !kv::ParseDType(dtype)) {
      throw kv::Error(kv::Finding::kUsage, "dtype '" + dtype + "': expected f32, f16 or bf16");
    }
    OpenCommand command;
    kv::RunEmbedded("inspect", command, words, embedding);
    opened->options_ = std::move(command.options);
    opened->source_ = std::move(command.source);
    opened->metadata_ = std::move(command.snapshot);
  });
  return opened;
}

std::string OpenedSnapshot::Description() const {
  return kv::JsonText(kv::ToJson(kv::SnapshotDescriptionFields().Object({*metadata_})), -1, true);
}

nb::dict OpenedSnapshot::Facts() const {
  nb::dict facts;
  facts["format"] = metadata_->format;
  facts["format_version"] = metadata_->format_version;
  facts["engine"] = metadata_->engine;
  facts["model"] = metadata_->model;
  facts["kv_bytes"] = metadata_->kv_bytes();
  nb::list notes;
  for (const kv::Note& note : metadata_->notes) notes.append(note.text);
  facts["notes"] = notes;
  return facts;
}

nb::list OpenedSnapshot::Layers() const {
  nb::list layers;
  for (const kv::LayerKv& layer : metadata_->layers) {
    layers.append(nb::make_tuple(layer.index, layer.label, layer.group, Describe(layer.k),
                                 layer.v ? Describe(*layer.v) : nb::object(nb::none())));
  }
  return layers;
}

nb::list OpenedSnapshot::Positions() const {
  nb::list groups;
  for (const kv::CellGroup& group : metadata_->cell_groups) {
    nb::list positions;
    for (const kv::Cell& cell : group.cells) positions.append(cell.position);
    groups.append(nb::make_tuple(group.group, positions));
  }
  return groups;
}

nb::list OpenedSnapshot::Tokens() const {
  nb::list tokens;
  for (const int32_t token : metadata_->tokens) tokens.append(token);
  return tokens;
}

kv::Snapshot OpenedSnapshot::LoadLayer(const kv::LayerKv& wanted) {
  kv::Selection selection;
  selection.layers = {{wanted.index}};
  kv::ThreadPool pool(kv::UsableCpus());
  kv::Snapshot snapshot = *metadata_;
  if (!HasBytes(snapshot)) {
    if (!archive_) {
      kv::Archive archive = kv::Archive::Open(source_.files.at(0).data);
      kv::FindReferences(archive, source_.path, options_);
      archive_ = std::move(archive);
    }
    snapshot = kv::LoadSnapshot(*archive_, selection, options_, pool);
    snapshot.source.path = source_.path;
    if (options_.geometry) kv::ApplyGeometry(*options_.geometry, snapshot);
  }
  snapshot = kv::Select(std::move(snapshot), selection);
  return dtype_.empty() ? snapshot
                        : kv::CastSnapshot(std::move(snapshot), *kv::ParseDType(dtype_), pool);
}

OpenedSnapshot::LayerValues OpenedSnapshot::Values(size_t layer) {
  const std::lock_guard lock(mutex_);
  const kv::LayerKv& wanted = metadata_->layers.at(layer);
  if (!checked_) metadata_->CheckContent();
  checked_ = true;
  if (dtype_.empty() && HasBytes(*metadata_)) return {metadata_, &wanted};
  LayerValues& values = loaded_[layer];
  if (values.layer != nullptr) return values;
  try {
    values.snapshot = std::make_shared<kv::Snapshot>(LoadLayer(wanted));
  } catch (kv::Error& error) {
    throw error.File(source_.path);
  }
  for (const kv::LayerKv& found : values.snapshot->layers) {
    const bool same = found.index == wanted.index && found.group == wanted.group;
    if (same && values.layer == nullptr) values.layer = &found;
  }
  if (values.layer == nullptr) {
    throw kv::Error(kv::Finding::kInconsistent, "the snapshot no longer has this layer")
        .File(source_.path);
  }
  return values;
}

nb::tuple OpenedSnapshot::Array(size_t layer, bool is_value) {
  LayerValues values;
  WithoutGil([&] { values = Values(layer); });
  const kv::LayerKv& from = *values.layer;
  if (is_value && !from.v) throw nb::value_error("the layer has no V");
  const kv::KvTensor& tensor = is_value ? *from.v : from.k;
  const nb::dlpack::dtype element = FindElement(tensor.dtype);
  const uint64_t element_bytes = element.bits / 8u;
  const uint64_t row = tensor.units_per_head() * tensor.unit_bytes() / element_bytes;
  const size_t shape[3] = {tensor.tokens(), tensor.heads, row};
  const std::string_view name = kv::Name(tensor.dtype);
  const nb::str dtype(name.data(), name.size());
  if (const std::optional<ArrayPlace> place = FindPlace(tensor, element_bytes)) {
    auto* held = new std::shared_ptr<const kv::Snapshot>(values.snapshot);
    const nb::capsule owner(held, [](void* object) noexcept {
      delete static_cast<std::shared_ptr<const kv::Snapshot>*>(object);
    });
    return nb::make_tuple(MakeArray(place->data, shape, owner, place->strides, element), dtype,
                          true);
  }
  auto gathered = std::make_unique<kv::Bytes>();
  WithoutGil([&] { *gathered = kv::Gather(tensor, 0, tensor.tokens(), kv::Order::kTokenHeadDim); });
  const void* data = gathered->data();
  const nb::capsule owner(gathered.release(),
                          [](void* object) noexcept { delete static_cast<kv::Bytes*>(object); });
  return nb::make_tuple(MakeArray(data, shape, owner, nullptr, element), dtype, false);
}

namespace {

kv::KvTensor MakeTensor(const Buffer& buffer, nb::handle dtype) {
  const uint8_t chosen = buffer.ChooseDtype(dtype);
  if (buffer.shape().size() != 3 || buffer.item_bytes() != DtypeBytes(chosen)) {
    throw nb::value_error("layers: expected arrays [token][head][dim] of a type that caches have");
  }
  const auto& shape = buffer.shape();
  if (shape[1] > UINT32_MAX || shape[2] > UINT32_MAX) throw nb::value_error("layers: too large");
  return kv::ContiguousTensor(
      static_cast<const std::byte*>(buffer.data()), static_cast<kv::DType>(chosen), shape[0],
      static_cast<uint32_t>(shape[1]), static_cast<uint32_t>(shape[2]), kv::Order::kTokenHeadDim);
}

// Writes K and V from memory: `layers` holds (K, V or None), arrays [token][head][dim].
void SaveSnapshot(const std::string& path, const std::string& format, nb::handle layers,
                  nb::handle dtype, nb::handle positions, nb::handle tokens, bool force) {
  std::deque<Buffer> buffers;
  kv::Snapshot snapshot;
  snapshot.source.path = "arrays";
  snapshot.format = "arrays";
  const Sequence pairs(layers, "layers");
  for (size_t i = 0; i < pairs.size(); ++i) {
    const nb::object given = pairs[i];
    const Sequence pair(given, "layers");
    if (pair.size() != 2) throw nb::value_error("layers: expected pairs (K, V)");
    const auto tensor = [&](nb::handle array) {
      return MakeTensor(buffers.emplace_back(array, Buffer::Access::kRead), dtype);
    };
    kv::LayerKv layer;
    layer.index = static_cast<uint32_t>(snapshot.layers.size());
    const nb::object k = pair[0], v = pair[1];
    layer.k = tensor(k);
    if (!v.is_none()) layer.v = tensor(v);
    if (layer.v && layer.v->tokens() != layer.k.tokens()) {
      throw nb::value_error("layers: K and V of a layer have different numbers of tokens");
    }
    snapshot.layers.push_back(std::move(layer));
  }
  if (!positions.is_none()) {
    kv::CellGroup group;
    const Sequence given(positions, "positions");
    for (const kv::LayerKv& layer : snapshot.layers) {
      if (layer.k.tokens() != given.size()) {
        throw nb::value_error("positions: expected one for each token");
      }
    }
    for (size_t i = 0; !snapshot.layers.empty() && i < given.size(); ++i) {
      const auto position = ParseInteger<int64_t>(given[i], "positions");
      group.cells.push_back({.position = position, .sequences = {0}});
    }
    snapshot.cell_groups.push_back(std::move(group));
  }
  if (!tokens.is_none()) {
    const Sequence given(tokens, "tokens");
    for (size_t i = 0; i < given.size(); ++i) {
      snapshot.tokens.push_back(ParseInteger<int32_t>(given[i], "tokens"));
    }
  }
  WithoutGil([&] {
    const kv::FormatEntry& entry = kv::WritableFormat(format);
    kv::FitKeyPairs(entry.pairs, "", std::nullopt, snapshot);
    entry.write(snapshot, path, kv::RulesFor(force));
  });
}

}  // namespace

namespace {

void StoreAs(nb::handle values, const std::string& type, bool is_key, uint32_t head_dim) {
  const Buffer memory(values, Buffer::Access::kWrite);
  const std::optional<kv::DType> dtype = kv::ParseDType(type);
  if (!dtype || !kv::IsBlockQuantised(*dtype) || memory.bytes() % (4 * kBlockValues) != 0) {
    throw nb::value_error((type + ": expected a block type, and whole blocks of f32").c_str());
  }
  const std::span floats(static_cast<float*>(memory.data()), memory.bytes() / 4);
  const uint32_t hadamard = kv::HadamardSize(!is_key, head_dim);
  const nb::gil_scoped_release released;
  std::vector<std::byte> packed(kv::BytesOf(*dtype, floats.size()));
  if (hadamard != 0) kv::HadamardScaledFirst(floats.data(), floats.size(), hadamard);
  kv::QuantiseBlocks(*dtype, floats, packed.data());
  kv::ToFloats(*dtype, packed, floats);
  if (hadamard != 0) kv::HadamardScaledFirst(floats.data(), floats.size(), hadamard);
}

}  // namespace

void BindFiles(nb::module_& m) {
  m.def(
      "_store_as", &StoreAs, nb::arg("values"), nb::arg("type"), nb::arg("is_key"),
      nb::arg("head_dim"),
      nb::sig("def _store_as(values: Writable, type: str, is_key: bool, head_dim: int) -> None"),
      R"(Replace f32 values by those that attention reads back after llama.cpp's cache stored them in a block type.)");
  m.def(
      "_run",
      [](const std::string& command, nb::handle arguments, nb::handle progress) {
        const CommandOutcome outcome = RunCommand(command, arguments, progress);
        nb::list documents, warnings;
        for (const std::string& text : outcome.documents) documents.append(text);
        for (const std::string& text : outcome.warnings) {
          warnings.append(nb::steal(PyUnicode_DecodeUTF8(
              text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace")));
        }
        return nb::make_tuple(outcome.status, documents, warnings);
      },
      nb::arg("command"), nb::arg("arguments"), nb::arg("progress") = nb::none(),
      nb::sig("def _run(command: str, arguments: Sequence[bytes], progress: Progress = None) -> "
              "tuple[int, list[str], list[str]]"));
  m.def("_main", &RunMain, nb::arg("arguments"),
        nb::sig("def _main(arguments: Sequence[bytes]) -> int"));
  m.def(
      "_save",
      [](nb::bytes path, const std::string& format, nb::handle layers, nb::handle dtype,
         nb::handle positions, nb::handle tokens, bool force) {
        SaveSnapshot({path.c_str(), path.size()}, format, layers, dtype, positions, tokens, force);
      },
      nb::arg("path"), nb::arg("format"), nb::arg("layers"), nb::arg("dtype").none(),
      nb::arg("positions").none(), nb::arg("tokens").none(), nb::arg("force"),
      nb::sig("def _save(path: bytes, format: str, layers: Sequence[tuple[Readable, Readable]], "
              "dtype: DType, positions: Sequence[int] | None, tokens: Sequence[int] | None, force: "
              "bool) -> None"));
  nb::class_<OpenedSnapshot>(m, "_OpenedSnapshot")
      .def("description", &OpenedSnapshot::Description)
      .def("facts", &OpenedSnapshot::Facts, nb::sig("def facts(self) -> dict[str, Any]"))
      .def("layers", &OpenedSnapshot::Layers, nb::sig("def layers(self) -> list[Any]"))
      .def("positions", &OpenedSnapshot::Positions,
           nb::sig("def positions(self) -> list[tuple[str, list[int]]]"))
      .def("tokens", &OpenedSnapshot::Tokens, nb::sig("def tokens(self) -> list[int]"))
      .def("array", &OpenedSnapshot::Array, nb::arg("layer"), nb::arg("is_value"),
           nb::sig("def array(self, layer: int, is_value: bool) -> tuple[Any, str, bool]"));
  m.def("_open", &OpenedSnapshot::Open, nb::arg("arguments"), nb::arg("dtype"),
        nb::sig("def _open(arguments: Sequence[bytes], dtype: str) -> _OpenedSnapshot"));
}

}  // namespace kvtool_python
