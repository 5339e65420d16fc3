// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Writes torch's zip form: a pickle of tensors whose storages are members of the archive.
#include <fmt/format.h>

#include <filesystem>

#include "formats/torch/torch.h"
#include "formats/torch/torch_tensor.h"
#include "formats/zip/zip.h"
#include "lib/core/base/bytes.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/rope.h"

namespace kv {
namespace {

constexpr uint64_t kGatherBytes = 8 << 20;

// Writes protocol 2, as torch does. Repeated values are not memoised, which costs only bytes.
class PickleWriter {
 public:
  PickleWriter() { out_.Append("\x80\x02"); }

  void Global(std::string_view module, std::string_view name) {
    out_.Append(fmt::format("c{}\n{}\n", module, name));
  }
  void Text(std::string_view text) {
    if (text.size() > UINT32_MAX) throw Error(Finding::kBadName, "a name is too long");
    Op('X');
    out_.U32(static_cast<uint32_t>(text.size()));
    out_.Append(text);
  }
  void Integer(uint64_t value) {
    if (value < 256) {
      Op('K');
      out_.U8(static_cast<uint8_t>(value));
    } else if (value <= INT32_MAX) {
      Op('J');
      out_.I32(static_cast<int32_t>(value));
    } else {
      out_.Append("\x8a\x08");
      out_.U64(value);
    }
  }
  void IntegerTuple(const std::vector<uint64_t>& values) {
    Op('(');
    for (const uint64_t value : values) Integer(value);
    Op('t');
  }
  void Op(char opcode) { out_.U8(static_cast<uint8_t>(opcode)); }
  void Ops(std::string_view opcodes) { out_.Append(opcodes); }
  Bytes Release() { return out_.Release(); }

 private:
  ByteWriter out_;
};

// Writes _rebuild_tensor_v2(storage, 0, size, stride, False, OrderedDict()), or _v3 with a dtype at
// the end.
void WriteTensor(PickleWriter& pickle, const TensorToWrite& tensor, size_t key) {
  const uint64_t item = Info(tensor.dtype).block_bytes;
  const TorchTypeName type = ToTorchType(tensor.dtype);
  // Types without a storage class are stored in untyped bytes.
  const std::string_view untyped = type.storage.empty() ? type.dtype : "";
  std::vector<uint64_t> strides = ContiguousView(tensor.dtype, tensor.shape, nullptr).strides;
  for (uint64_t& stride : strides) stride /= item;
  pickle.Global("torch._utils", untyped.empty() ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  pickle.Op('(');
  pickle.Op('(');
  pickle.Text("storage");
  if (untyped.empty()) {
    pickle.Global("torch", type.storage);
  } else {
    pickle.Global("torch.storage", "UntypedStorage");
  }
  pickle.Text(std::to_string(key));
  pickle.Text("cpu");
  pickle.Integer(tensor.bytes() / item);
  pickle.Ops("tQ");
  pickle.Integer(0);
  pickle.IntegerTuple(tensor.shape);
  pickle.IntegerTuple(strides);
  pickle.Ops("\x89");
  pickle.Global("collections", "OrderedDict");
  pickle.Ops(")R");
  if (!untyped.empty()) pickle.Global("torch", untyped);
  pickle.Ops("tR");
}

Bytes PickleDict(const std::vector<TensorToWrite>& tensors, const TensorMetadata& texts) {
  PickleWriter pickle;
  pickle.Global("collections", "OrderedDict");
  pickle.Ops(")R(");
  for (size_t i = 0; i < tensors.size(); ++i) {
    pickle.Text(tensors[i].name);
    WriteTensor(pickle, tensors[i], i);
  }
  for (const auto& [name, text] : texts) {
    pickle.Text(name);
    pickle.Text(text);
  }
  pickle.Ops("u.");
  return pickle.Release();
}

}  // namespace

namespace {

void WriteArchive(Bytes pickle, const std::vector<TensorToWrite>& tensors, std::string_view stem,
                  AtomicFile& file) {
  const std::string root = fmt::format("{}/", stem.empty() ? "archive" : stem);
  ZipWriter zip(file);
  zip.Add(root + "data.pkl", pickle);
  zip.Add(root + "byteorder", AsBytes("little"));
  for (size_t i = 0; i < tensors.size(); ++i) {
    zip.Begin(fmt::format("{}data/{}", root, i), tensors[i].bytes());
    tensors[i].write(zip);
    zip.End();
  }
  zip.Add(root + "version", AsBytes("3\n"));
  zip.Finish();
}

// Writes a tensor as [head, token, dim], a few MiB at a time.
void WriteHeads(const Snapshot& snapshot, const KvTensor& tensor, Sink& sink) {
  const uint64_t tokens = tensor.tokens(), row = tensor.row_bytes() / tensor.heads;
  const uint64_t step = std::max<uint64_t>(1, kGatherBytes / row);
  Bytes rows;
  for (uint32_t head = 0; head < tensor.heads; ++head) {
    for (uint64_t begin = 0; begin < tokens; begin += step) {
      const uint64_t count = std::min(step, tokens - begin);
      rows.resize(count * row);
      Gather(tensor, begin, count, head, 1, Order::kHeadTokenDim, rows);
      sink.Write(rows);
    }
  }
  DropTensor(snapshot, tensor);
}

TensorToWrite ToHeadsFirst(const Snapshot& snapshot, const KvTensor& tensor) {
  return {"", tensor.dtype, {1, tensor.heads, tensor.tokens(), tensor.head_dim}, [&](Sink& sink) {
            WriteHeads(snapshot, tensor, sink);
          }};
}

// Checks that everything which a tuple of pairs cannot express has the usual value.
void CheckTuple(const Snapshot& snapshot, const std::string& path) {
  const auto refuse = [&](std::string why) {
    return Error(Finding::kUnsupportedLayout, why + ", which a tuple of (K, V) cannot express")
        .File(path)
        .Hint("--to torch-dict or safetensors can");
  };
  RequireRotatedKeys(snapshot, "a tuple of (K, V)");
  for (size_t i = 0; i < snapshot.layers.size(); ++i) {
    const LayerKv& layer = snapshot.layers[i];
    if (layer.index != i) throw refuse(fmt::format("layer {} is at index {}", layer.index, i));
    if (!layer.v || !layer.has_k()) throw refuse(fmt::format("layer {} lacks K or V", layer.index));
    for (const KvTensor* tensor : {&layer.k, &*layer.v}) {
      if (IsBlockQuantised(tensor->dtype))
        throw refuse(fmt::format("layer {} is {}", layer.index, Name(tensor->dtype)));
    }
  }
}

}  // namespace

void WriteTorch(const std::vector<TensorToWrite>& tensors, std::string_view stem, AtomicFile& file,
                const TensorMetadata& texts) {
  WriteArchive(PickleDict(tensors, texts), tensors, stem, file);
}

void WriteTorchTuple(const Snapshot& snapshot, const std::string& path, const OutputRules& rules) {
  RequireHeads(snapshot, "writing [batch, head, token, dim] tensors");
  CheckTuple(snapshot, path);
  snapshot.CheckContent();
  std::vector<TensorToWrite> tensors;
  PickleWriter pickle;
  pickle.Op('(');
  for (const LayerKv& layer : snapshot.layers) {
    for (const KvTensor* tensor : {&layer.k, &*layer.v}) {
      tensors.push_back(ToHeadsFirst(snapshot, *tensor));
      WriteTensor(pickle, tensors.back(), tensors.size() - 1);
    }
    pickle.Ops("\x86");
  }
  pickle.Ops("t.");
  AtomicFile file(path, rules);
  WriteArchive(pickle.Release(), tensors, std::filesystem::path(path).stem().string(), file);
  file.Commit();
}

void WriteTorchSnapshot(const Snapshot& snapshot, const std::string& path,
                        const OutputRules& rules) {
  snapshot.CheckContent();
  const TensorExport content = MakeExport(snapshot);
  AtomicFile file(path, rules);
  WriteTorch(content.tensors, std::filesystem::path(path).stem().string(), file, content.metadata);
  file.Commit();
}

}  // namespace kv
