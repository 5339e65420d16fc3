// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <filesystem>

#include "formats/torch/torch.h"
#include "formats/zip/zip_writer.h"
#include "lib/base/checked.h"

namespace kv {
namespace {

std::string_view StorageType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "FloatStorage";
    case DType::kF16:
      return "HalfStorage";
    case DType::kBF16:
      return "BFloat16Storage";
    case DType::kF64:
      return "DoubleStorage";
    case DType::kI64:
      return "LongStorage";
    case DType::kI32:
      return "IntStorage";
    case DType::kI16:
      return "ShortStorage";
    case DType::kI8:
      return "CharStorage";
    case DType::kU8:
      return "ByteStorage";
    case DType::kBool:
      return "BoolStorage";
    default:
      throw Error(Finding::kUnsupportedDtype,
                  fmt::format("torch has no storage for {} values", Name(dtype)));
  }
}

// Protocol 2, as torch writes it; values that come back are not memoised, which only costs bytes.
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

// _rebuild_tensor_v2(storage, 0, size, stride, False, OrderedDict())
void WriteTensor(PickleWriter& pickle, const TensorToWrite& tensor, size_t key) {
  const uint64_t item = Info(tensor.dtype).block_bytes;
  std::vector<uint64_t> strides = ContiguousView(tensor.dtype, tensor.shape, nullptr).strides;
  for (uint64_t& stride : strides) stride /= item;
  pickle.Global("torch._utils", "_rebuild_tensor_v2");
  pickle.Op('(');
  pickle.Op('(');
  pickle.Text("storage");
  pickle.Global("torch", StorageType(tensor.dtype));
  pickle.Text(std::to_string(key));
  pickle.Text("cpu");
  pickle.Integer(tensor.bytes() / item);
  pickle.Ops("tQ");
  pickle.Integer(0);
  pickle.IntegerTuple(tensor.shape);
  pickle.IntegerTuple(strides);
  pickle.Ops("\x89");
  pickle.Global("collections", "OrderedDict");
  pickle.Ops(")RtR");
}

Bytes PickleOf(const std::vector<TensorToWrite>& tensors, const TensorMetadata& texts) {
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

void WriteTorch(const std::vector<TensorToWrite>& tensors, std::string_view stem, AtomicFile& file,
                const TensorMetadata& texts) {
  const std::string root = fmt::format("{}/", stem.empty() ? "archive" : stem);
  ZipWriter zip(file);
  zip.Add(root + "data.pkl", PickleOf(tensors, texts));
  zip.Add(root + "byteorder", AsBytes("little"));
  for (size_t i = 0; i < tensors.size(); ++i) {
    zip.Begin(fmt::format("{}data/{}", root, i), tensors[i].bytes());
    tensors[i].write(zip);
    zip.End();
  }
  zip.Add(root + "version", AsBytes("3\n"));
  zip.Finish();
}

void WriteTorchSnapshot(const Snapshot& snapshot, const std::string& path, Overwrite overwrite) {
  snapshot.CheckContent();
  const TensorExport content = ExportOf(snapshot);
  AtomicFile file(path, overwrite);
  WriteTorch(content.tensors, std::filesystem::path(path).stem().string(), file, content.metadata);
  file.Commit();
}

}  // namespace kv
