// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/npy/npy.h"
#include "formats/npy/npy_header.h"
#include "formats/tensors/tensor_snapshot.h"
#include "formats/tensors/tensor_writer.h"
#include "formats/zip/zip_writer.h"
#include "lib/core/base/checked.h"

namespace kv {
namespace {

void WriteArray(const TensorToWrite& tensor, Sink& sink) {
  sink.Write(MakeNpyHeader(tensor.dtype, tensor.shape));
  tensor.write(sink);
}

TensorToWrite MetadataArray(const TensorMetadata& metadata) {
  const std::string text = MetadataJson(metadata);
  return {
      "__metadata__", DType::kU8, {text.size()}, [text](Sink& sink) { sink.Write(AsBytes(text)); }};
}

}  // namespace

void WriteNpy(const Snapshot& snapshot, const std::string& path, const OutputRules& rules) {
  snapshot.CheckContent();
  const TensorExport content = ExportOf(snapshot);
  AtomicFolder folder(path, rules);
  const auto write = [&](const std::string& name, const std::function<void(Sink&)>& body) {
    const auto file = folder.Create(name);
    body(*file);
    file->Close();
  };
  for (const TensorToWrite& tensor : content.tensors)
    write(tensor.name + ".npy", [&](Sink& sink) { WriteArray(tensor, sink); });
  write("metadata.json",
        [&](Sink& sink) { sink.Write(AsBytes(MetadataJson(content.metadata) + "\n")); });
  folder.Commit();
}

void WriteNpz(const Snapshot& snapshot, const std::string& path, const OutputRules& rules) {
  snapshot.CheckContent();
  TensorExport content = ExportOf(snapshot);
  content.tensors.push_back(MetadataArray(content.metadata));
  AtomicFile file(path, rules);
  ZipWriter zip(file);
  for (const TensorToWrite& tensor : content.tensors) {
    const uint64_t header_bytes = MakeNpyHeader(tensor.dtype, tensor.shape).size();
    zip.Begin(tensor.name + ".npy", CheckedAdd(header_bytes, tensor.bytes(), "member size"));
    WriteArray(tensor, zip);
    zip.End();
  }
  zip.Finish();
  file.Commit();
}

}  // namespace kv
