// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "formats/tensors/tensor_snapshot.h"
#include "formats/torch/torch.h"
#include "formats/torch/torch_container.h"

namespace kv {
namespace {

constexpr std::string_view kZipMagic = "PK\x03\x04";
constexpr uint64_t kTarMagicAt = 257;

bool IsZip(ByteSpan bytes) { return AsText(bytes).starts_with(kZipMagic); }

// A protocol mark and an opcode, of which none is below '('. Without the opcode, safetensors
// headers of 640, 896, 1152 or 1408 bytes would look like pickles too.
bool IsBinaryPickle(ByteSpan bytes) {
  return bytes.size() > 2 && bytes[0] == std::byte{0x80} && bytes[1] >= std::byte{2} &&
         bytes[1] <= std::byte{5} && bytes[2] >= std::byte{'('};
}

bool IsTar(ByteSpan bytes) {
  return bytes.size() > kTarMagicAt + 5 && AsText(bytes.subspan(kTarMagicAt, 5)) == "ustar";
}

// A plain pickle has the storages that lie in it; what refers to others came out of a torch file.
class PlainStorages : public StorageBytes {
 public:
  explicit PlainStorages(TensorFile& file) : file_(file) {}
  ByteSpan Find(const StorageId& id) override {
    throw Error(Finding::kMissingRecord,
                fmt::format("a plain pickle holds no storage '{}'", Escaped(id.key)));
  }
  EmbeddedStorage Embedded(ByteSpan bytes) override { return ReadEmbedded(bytes, file_); }

 private:
  TensorFile& file_;
};

void ReadPlainPickle(ByteSpan bytes, uint64_t max_bytes, TensorFile& file) {
  const Pickle pickle(bytes);
  const PickleKind root = pickle[pickle.root()].kind();
  // More pickles behind an integer: a legacy file whose magic number is another.
  if (pickle.length() < bytes.size() && (root == PickleKind::kInt || root == PickleKind::kBigInt)) {
    throw Error(Finding::kBadMagic, "the first pickle is an integer, but not torch's magic number")
        .At(0);
  }
  if (pickle.length() < bytes.size()) {
    file.notes.push_back(fmt::format("{} bytes follow the pickle", bytes.size() - pickle.length()));
  }
  PlainStorages storages(file);
  TensorBuilder builder(pickle, storages, max_bytes, file);
  WalkPickle(pickle, builder, file);
}

// Caches whose tensors are not the values: what stands in key_cache then is the unquantised rest.
void RefuseQuantisedCache(const TensorFile& file) {
  const std::string name = Lookup(file.metadata, "__class__");
  if (name.starts_with("transformers.") && name.find("Quant") != std::string::npos) {
    throw Error(Finding::kUnsupportedKind,
                fmt::format("a {} keeps its values packed by its own quantiser (quanto, HQQ)",
                            Escaped(name, 120)));
  }
}

// A file that holds nothing but what is left alone was not read at all: better say so.
void RefuseUnread(const TensorFile& file) {
  if (!file.tensors.empty()) return;
  for (const OpaqueValue& value : file.opaque) {
    if (!value.is_foreign) continue;
    if (value.kind.find("CacheGen") != std::string::npos) {
      throw Error(Finding::kUnsupportedKind,
                  "LMCache's CacheGen serde: symbols of an arithmetic coder whose tables only its "
                  "GPU decoder knows");
    }
    throw Error(Finding::kForbiddenGlobal,
                fmt::format("'{}' is {}, which is not known to be plain data", Escaped(value.name),
                            value.kind));
  }
  for (const OpaqueValue& value : file.opaque) {
    if (!value.is_tensor) continue;
    throw Error(Finding::kUnsupportedKind,
                fmt::format("'{}' is {} of a kind or element type that is not read, and there is "
                            "no other tensor",
                            Escaped(value.name, 80), value.kind));
  }
}

}  // namespace

bool LooksLikeTorch(const Source& source) {
  if (source.is_folder || source.files.size() != 1) return false;
  const ByteSpan bytes = source.files.front().data->bytes();
  if (IsBinaryPickle(bytes)) return true;
  if (!IsZip(bytes)) return false;
  try {
    return HoldsMember(bytes, "data.pkl");
  } catch (const Error&) {
    return false;
  }
}

TensorFile ReadTorch(Source source, uint64_t max_bytes) {
  if (source.files.size() != 1) {
    throw Error(Finding::kUnsupportedKind, "a torch file is one file, not a folder");
  }
  TensorFile file;
  const std::shared_ptr<const FileSource> data = source.files.front().data;
  file.source = std::move(source);
  if (IsZip(data->bytes())) {
    file.format = "torch";
    ReadZipTorch(data, max_bytes, file);
  } else if (IsLegacyTorch(data->bytes())) {
    file.format = "torch-legacy";
    ReadLegacyTorch(data->bytes(), max_bytes, file);
  } else if (IsTar(data->bytes())) {
    throw Error(Finding::kUnsupportedKind, "a tar file of torch before 0.1.10");
  } else {
    file.format = "pickle";
    ReadPlainPickle(data->bytes(), max_bytes, file);
  }
  RefuseQuantisedCache(file);
  RefuseUnread(file);
  return file;
}

Confidence ProbeTorch(const Source& source) {
  return LooksLikeTorch(source) ? Confidence::kCertain : Confidence::kNo;
}

Snapshot OpenTorch(Source source, const OpenOptions& options) {
  return SnapshotOf(ReadTorch(std::move(source), options.max_bytes), options);
}

}  // namespace kv
