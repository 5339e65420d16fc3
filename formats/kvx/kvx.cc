// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Writes .kvx files, reads them and SGLang's artifacts, and checks every field against the others.
#include "formats/kvx/kvx.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/torch/pickle.h"
#include "formats/torch/torch.h"
#include "formats/zip/zip.h"
#include "lib/core/base/error.h"
#include "lib/core/base/half.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/number.h"
#include "lib/core/kernels/dequantise.h"

namespace kv {
namespace {

constexpr std::string_view kKvxMagic = "KVTOOL-X";
constexpr uint32_t kKvxVersion = 1, kKvxWeightedVersion = 2;
constexpr uint32_t kKvxFeatures = 1 << 20;  // features of K or V
constexpr uint64_t kKvxHash = sizeof(Hash128Bytes);

void PutText(std::string_view text, ByteWriter& out) {
  out.U16(static_cast<uint16_t>(text.size()));
  out.Append(text);
}

template <typename T>
void PutArray(const std::vector<T>& values, ByteWriter& out) {
  out.Append(std::as_bytes(std::span(values)));
}

void PutVectors(const std::vector<float>& vectors, bool is_bfloat, ByteWriter& out) {
  if (!is_bfloat) return PutArray(vectors, out);
  for (const float value : vectors) out.U16(F32ToBF16(value));
}

void PutPlan(const TransformPlan& plan, ByteWriter& out) {
  PutText(plan.form, out);
  out.Write(plan.ratio);
  out.Write(plan.error);
  out.U32(static_cast<uint32_t>(plan.schema.size()));
  for (const CodeGroup& group : plan.schema) {
    out.U32(group.size);
    out.U8(static_cast<uint8_t>(group.type));
  }
  out.Write(plan.steps.step);
  out.U32(static_cast<uint32_t>(plan.steps.tables.size()));
  for (const StepTable& table : plan.steps.tables) {
    out.U8(static_cast<uint8_t>(table.reach));
    PutArray(table.frequencies, out);
  }
}

void PutSide(const TransformSide& side, bool is_bfloat, ByteWriter& out) {
  out.U32(side.heads);
  out.U32(side.dim);
  PutArray(side.mean, out);
  PutArray(side.weights, out);
  out.U32(static_cast<uint32_t>(side.parts.size()));
  for (const TransformPart& part : side.parts) {
    out.U32(part.features);
    out.U32(static_cast<uint32_t>(part.rank()));
    PutArray(part.variances, out);
    PutVectors(part.vectors, is_bfloat, out);
  }
  out.U32(static_cast<uint32_t>(side.plans.size()));
  for (const TransformPlan& plan : side.plans) PutPlan(plan, out);
}

class KvxReader {
 public:
  KvxReader(ByteSpan body, bool is_weighted) : reader_(body), is_weighted_(is_weighted) {}

  Transform Read() {
    Transform transform;
    reader_.Skip(kKvxMagic.size() + 4, "magic and version");
    const uint32_t flags = reader_.U32("flags");
    if (flags > 1) throw Error(Finding::kBadField, "unknown flags {:#x}", flags).At(12);
    transform.is_bfloat = flags == 1;
    transform.model = Text("model");
    transform.rope = Text("RoPE");
    transform.layers = reader_.U32("layers");
    transform.sinks = reader_.U32("first tokens in full");
    transform.window = reader_.U32("last tokens in full");
    transform.rows = reader_.U64("rows");
    for (uint32_t sources = reader_.U32("sources"); sources > 0; --sources)
      transform.sources.push_back(Text("hash of a source"));
    transform.fingerprints = Array<uint64_t>(reader_.U32("fingerprints"), "fingerprints");
    for (TransformSide* side : {&transform.k, &transform.v}) ReadSide(transform, *side);
    reader_.ExpectEnd("transform");
    return transform;
  }

 private:
  std::string Text(std::string_view field) {
    return std::string(reader_.Text(reader_.U16(field), field));
  }

  template <typename T>
  std::vector<T> Array(uint64_t count, std::string_view field) {
    const ByteSpan bytes = reader_.TakeArray(count, sizeof(T), field);
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  void ReadSide(const Transform& transform, TransformSide& side) {
    const uint64_t at = reader_.offset();
    side.heads = reader_.U32("heads");
    side.dim = reader_.U32("values of a head");
    const uint64_t row = uint64_t{side.heads} * side.dim;
    if (row > kKvxFeatures || transform.layers > kKvxFeatures ||
        row * transform.layers > kKvxFeatures) {
      throw Error(Finding::kLimit, "{} layers of {} heads of {} values make a row too long",
                  transform.layers, side.heads, side.dim)
          .At(at);
    }
    side.mean = Array<float>(row * transform.layers, "mean");
    if (is_weighted_) side.weights = Array<float>(side.features(), "weights");
    uint64_t next = 0;
    for (uint32_t parts = reader_.U32("parts"); parts > 0; --parts) {
      TransformPart& part = side.parts.emplace_back();
      part.first_feature = static_cast<uint32_t>(next);
      part.features = reader_.U32("features of a part");
      next += part.features;
      if (next > side.features())
        throw Error(Finding::kBadField, "the parts have more features than a row");
      ReadBasis(transform.is_bfloat, part);
    }
    for (uint32_t plans = reader_.U32("plans"); plans > 0; --plans)
      ReadPlan(side.plans.emplace_back());
  }

  void ReadBasis(bool is_bfloat, TransformPart& part) {
    const uint32_t rank = reader_.U32("rank");
    part.variances = Array<double>(rank, "variances");
    const uint64_t count = uint64_t{rank} * part.features;
    if (!is_bfloat) {
      part.vectors = Array<float>(count, "vectors");
      return;
    }
    for (const uint16_t value : Array<uint16_t>(count, "vectors"))
      part.vectors.push_back(BF16ToF32(value));
  }

  void ReadPlan(TransformPlan& plan) {
    plan.form = Text("form");
    plan.ratio = reader_.Read<double>("ratio");
    plan.error = reader_.Read<double>("error");
    for (uint32_t groups = reader_.U32("groups"); groups > 0; --groups) {
      const uint32_t size = reader_.U32("size of a group");
      const uint8_t type = reader_.U8("type of a group");
      if (type >= CodeTypes().size())
        throw Error(Finding::kBadField, "unknown group type {}", type).At(reader_.offset() - 1);
      plan.schema.push_back({size, static_cast<CodeType>(type)});
    }
    plan.steps.step = reader_.F32("step");
    for (uint32_t tables = reader_.U32("tables"); tables > 0; --tables) {
      StepTable& table = plan.steps.tables.emplace_back();
      table.reach = reader_.U8("reach (largest value) of a table");
      table.frequencies = Array<uint16_t>(table.symbols(), "frequencies");
    }
  }

  ByteReader reader_;
  const bool is_weighted_;
};

}  // namespace

Bytes WriteTransform(const Transform& transform) {
  RequireSound(transform);
  ByteWriter out;
  out.Append(kKvxMagic);
  out.U32(transform.k.weights.empty() ? kKvxVersion : kKvxWeightedVersion);
  out.U32(transform.is_bfloat ? 1 : 0);
  PutText(transform.model, out);
  PutText(transform.rope, out);
  for (const uint32_t field : {transform.layers, transform.sinks, transform.window}) out.U32(field);
  out.U64(transform.rows);
  out.U32(static_cast<uint32_t>(transform.sources.size()));
  for (const std::string& source : transform.sources) PutText(source, out);
  out.U32(static_cast<uint32_t>(transform.fingerprints.size()));
  PutArray(transform.fingerprints, out);
  for (const TransformSide* side : {&transform.k, &transform.v})
    PutSide(*side, transform.is_bfloat, out);
  const Hash128Bytes hash = Hash128(out.bytes());
  out.Append(ByteSpan(hash));
  return out.Release();
}

bool LooksLikeTransform(ByteSpan file) {
  return file.size() >= kKvxMagic.size() &&
         std::memcmp(file.data(), kKvxMagic.data(), kKvxMagic.size()) == 0;
}

Transform ReadTransform(ByteSpan file) {
  ByteReader head(file);
  if (head.Text(kKvxMagic.size(), "magic") != kKvxMagic)
    throw Error(Finding::kBadMagic, "is not a transform of kvtool").At(0);
  const uint32_t version = head.U32("version");
  if (version != kKvxVersion && version != kKvxWeightedVersion) {
    throw Error(Finding::kUnsupportedVersion, "a transform of version {}, expected {} or {}",
                version, kKvxVersion, kKvxWeightedVersion)
        .At(8);
  }
  if (file.size() < head.offset() + kKvxHash) head.Skip(kKvxHash, "hash");
  const ByteSpan body = file.first(file.size() - kKvxHash);
  const Hash128Bytes hash = Hash128(body);
  if (std::memcmp(hash.data(), file.data() + body.size(), kKvxHash) != 0)
    throw Error(Finding::kChecksum, "transform: checksum mismatch").At(body.size());
  Transform transform = KvxReader(body, version == kKvxWeightedVersion).Read();
  RequireSound(transform);
  return transform;
}

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

// Reads the basis of K or V, which has components in columns.
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
      throw Error(Finding::kBadField, "quant entry {}: expected a ratio as key, a list as value",
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
