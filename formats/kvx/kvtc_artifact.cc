// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/kvx/kvtc_artifact.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/torch/pickle.h"
#include "formats/torch/torch.h"
#include "formats/zip/zip.h"
#include "lib/core/base/error.h"
#include "lib/core/base/number.h"
#include "lib/core/kernels/dequantise.h"

namespace kv {
namespace {

constexpr uint64_t kArtifactBytes = uint64_t{8} << 30;
constexpr uint64_t kArtifactFeatures = 1 << 20;
constexpr std::string_view kWithout = "v1-noquant", kWith = "v3-worker-quant";

std::vector<float> FloatsIn(const TensorFile& file, const std::string& name, size_t rank,
                            std::vector<uint64_t>* shape) {
  const NamedTensor* found = file.Find(name);
  if (found == nullptr) throw Error(Finding::kMissingRecord, "no tensor '{}'", Escaped(name));
  const TensorView& view = found->view;
  if (view.dtype != DType::kF32 || view.rank() != rank || view.elements() == 0)
    throw Error(Finding::kBadField, "tensor '{}' is not float32 of {} axes", Escaped(name), rank);
  std::vector<float> values(view.elements());
  ToFloats(view.dtype, CopyContiguous(view), values);
  if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }))
    throw Error(Finding::kBadField, "tensor '{}' holds values that are not finite", Escaped(name));
  *shape = view.shape;
  return values;
}

// Reads one side; the file's basis has components in columns.
KvtcArtifact::Side ReadTensors(const TensorFile& file, const std::string& folder) {
  KvtcArtifact::Side side;
  std::vector<uint64_t> features, shape;
  side.mean = FloatsIn(file, folder + "/mu", 1, &features);
  const std::vector<float> columns = FloatsIn(file, folder + "/basis", 2, &shape);
  if (shape[0] != features[0] || shape[1] > shape[0] || shape[0] > kArtifactFeatures) {
    throw Error(Finding::kBadField, "'{}' has a basis of {} x {} for {} features", Escaped(folder),
                shape[0], shape[1], features[0]);
  }
  side.basis.features = static_cast<uint32_t>(shape[0]);
  side.basis.variances.assign(shape[1], 0.0);
  for (uint64_t c = 0; c < shape[1]; ++c) {
    for (uint64_t i = 0; i < shape[0]; ++i) side.basis.vectors.push_back(columns[i * shape[1] + c]);
  }
  return side;
}

std::vector<KvtcArtifact::Group> GroupsIn(const Pickle& pickle, PickleId list) {
  std::vector<KvtcArtifact::Group> groups;
  for (const PickleId item : pickle[list].items()) {
    const std::span<const PickleId> pair = pickle[item].items();
    const bool is_pair =
        (pickle[item].kind() == PickleKind::kTuple || pickle[item].kind() == PickleKind::kList) &&
        pair.size() == 2 && pickle[pair[1]].kind() == PickleKind::kText;
    if (!is_pair) {
      throw Error(Finding::kBadField, "a group is {}, expected a size and a type",
                  pickle.Describe(item))
          .At(pickle[item].offset());
    }
    KvtcArtifact::Group group{std::nullopt, std::string(pickle[pair[1]].text())};
    if (pickle[pair[0]].kind() == PickleKind::kInt) group.size = pickle[pair[0]].integer();
    groups.push_back(std::move(group));
  }
  return groups;
}

void ReadSchemas(const Pickle& pickle, PickleId worker, KvtcArtifact::Side& side) {
  const PickleId quant = pickle.Get(worker, "quant");
  const std::span<const PickleId> items = pickle[quant].items();
  if (pickle[quant].kind() != PickleKind::kDict)
    throw Error(Finding::kMissingRecord, "the worker has no schemas").At(pickle[worker].offset());
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const auto ratio = ParseNumber<uint64_t>(pickle[items[i]].text());
    if (!ratio || *ratio == 0 || pickle[items[i + 1]].kind() != PickleKind::kList) {
      throw Error(Finding::kBadField, "a schema is under {}, expected a ratio and a list",
                  pickle.Describe(items[i]))
          .At(pickle[items[i]].offset());
    }
    side.schemas[*ratio] = GroupsIn(pickle, items[i + 1]);
  }
}

// Returns the pickle of a file that ReadTorch has read. Schemas are not tensors, so ReadTorch skips
// them.
ByteSpan PickleIn(const ZipArchive& archive) {
  for (const ZipEntry& entry : archive.entries()) {
    if (entry.name.ends_with("data.pkl")) return archive.Data(entry);
  }
  throw Error(Finding::kMissingRecord, "the zip file has no data.pkl");
}

}  // namespace

KvtcArtifact ReadKvtcArtifact(const Source& source, std::string_view worker) {
  const TensorFile file = ReadTorch(source, kArtifactBytes);
  for (const auto& check : file.checks) check();
  const auto version = file.metadata.find("version");
  const std::string known = version == file.metadata.end() ? "" : version->second;
  if (known != kWithout && known != kWith) {
    throw Error(Finding::kUnsupportedVersion, "an artifact of version '{}', expected {} or {}",
                Escaped(known), kWithout, kWith);
  }
  KvtcArtifact artifact;
  for (const auto& [name, side] :
       {std::pair{"keys", &artifact.k}, std::pair{"values", &artifact.v}})
    *side = ReadTensors(file, fmt::format("{}/{}", name, worker));
  if (known == kWithout) return artifact;
  ZipArchive archive(source.files.at(0).data);
  archive.Inflate(kArtifactBytes);
  const Pickle pickle = ReadPickle(PickleIn(archive));
  for (const auto& [name, side] :
       {std::pair{"keys", &artifact.k}, std::pair{"values", &artifact.v}})
    ReadSchemas(pickle, pickle.Get(pickle.Get(pickle.root(), name), worker), *side);
  return artifact;
}

}  // namespace kv
