// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The types kvtc:RATIO and the engines' forms of it: opens transforms, codes caches by them, and
// describes them.
#include "apps/kvtool/commands/transform/transform_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/kvtool/documents/transform_report.h"
#include "apps/kvtool/line/command_line.h"
#include "formats/kvx/kvx.h"
#include "formats/torch/torch.h"
#include "lib/core/base/file.h"
#include "lib/core/base/number.h"
#include "lib/engines/dynamo/kvtc.h"
#include "lib/engines/sglang/ascend.h"
#include "lib/study/transform/steps.h"

namespace kv {
namespace {

using transform::RowCoder;

// below this share in the basis, the basis was learnt from other texts or models
constexpr double kWornBasis = 0.9;

struct CoderRequest {
  const TransformSide& side;
  std::string_view name, argument;
  dynamo::Fp8Path path;
};

const TransformPlan& PlanFor(const CoderRequest& request, std::string_view form) {
  const auto ratio = ParseNumber<double>(request.argument);
  const TransformPlan* plan = ratio ? request.side.Find(form, *ratio) : nullptr;
  if (plan != nullptr) return *plan;
  std::string ratios;
  for (const TransformPlan& of : request.side.plans) {
    if (of.form == form) ratios += fmt::format("{}{}", ratios.empty() ? "" : ", ", of.ratio);
  }
  throw Error(Finding::kUsage, "{}: the transform has no such ratio", request.name)
      .Hint(ratios.empty() ? "learn a transform with this ratio: train --transform kvtc"
                           : "it has " + ratios);
}

RowCoder OwnCoder(const CoderRequest& request) {
  return transform::CodeBySchema(transform::kKvtcForm, PlanFor(request, "kvtc").schema);
}

RowCoder AscendCoder(const CoderRequest& request) {
  return transform::CodeBySchema(sglang::kAscendForm,
                                 PlanFor(request, sglang::kAscendForm.name).schema);
}

RowCoder StepCoder(const CoderRequest& request) {
  return transform::CodeBySteps(PlanFor(request, kStepForm).steps);
}

// Parses "fp8*256+int4*1024": consecutive ranges.
std::vector<dynamo::Range> ParseRangeList(const CoderRequest& request) {
  std::vector<dynamo::Range> ranges;
  std::string_view text = request.argument;
  uint64_t begin = 0;
  while (!text.empty() || ranges.empty()) {
    const std::string_view term = text.substr(0, text.find('+'));
    text.remove_prefix(std::min(text.size(), term.size() + 1));
    const size_t star = term.find('*');
    const std::string_view type = term.substr(0, star);
    const auto width = ParseNumber<uint32_t>(star == term.npos ? "" : term.substr(star + 1));
    const auto bits = type.starts_with("int") ? ParseNumber<uint32_t>(type.substr(3))
                      : type.starts_with("fp8") && type.size() == 3 ? std::optional<uint32_t>(0)
                                                                    : std::nullopt;
    if (!width || !bits || (*bits == 0 && type.front() == 'i')) {
      throw Error(Finding::kUsage, "{}: expected ranges such as fp8*256+int4*1024", request.name);
    }
    ranges.push_back({begin, begin + *width, *bits});
    begin += *width;
  }
  if (begin > request.side.components()) {
    throw Error(Finding::kUsage, "{}: {} components, but the transform has {}", request.name, begin,
                request.side.components());
  }
  return ranges;
}

void CountFloats(const std::vector<dynamo::Range>& ranges, std::span<const float> row,
                 transform::Faults& faults) {
  for (const dynamo::Range& range : ranges) {
    if (range.bits != 0) continue;
    for (const float value : row.subspan(range.begin, range.width())) {
      faults.clipped += std::fabs(value) > kE4M3Max;
      faults.soft_damage += dynamo::ToFp8(value, dynamo::Fp8Path::kSm89) !=
                            dynamo::ToFp8(value, dynamo::Fp8Path::kSoft);
    }
  }
}

// Codes rows through a buffer as the kernels write it, including its headers. A row is a token.
RowCoder DynamoCoder(const CoderRequest& request) {
  const std::vector<dynamo::Range> ranges = ParseRangeList(request);
  const uint64_t kept = ranges.back().end;
  return [ranges, kept, path = request.path](const transform::Rows& rows, std::span<float> out,
                                             transform::Faults& faults) {
    std::vector<float> values;
    for (uint64_t t = 0; t < rows.tokens; ++t) {
      const std::span<const float> row = rows.Row(t).first(kept);
      CountFloats(ranges, row, faults);
      values.insert(values.end(), row.begin(), row.end());
    }
    const Bytes bytes = dynamo::WriteBuffer(values, rows.tokens, kept, ranges, path);
    const dynamo::Buffer buffer = dynamo::ReadBuffer(bytes, rows.tokens, kept);
    std::fill(out.begin(), out.end(), 0.0f);
    for (uint64_t t = 0; t < rows.tokens; ++t)
      std::copy_n(&buffer.values[t * kept], kept, &out[t * rows.components]);
    return static_cast<double>(bytes.size());
  };
}

struct FormRow {
  std::string_view name;
  RowCoder (*make)(const CoderRequest& request);
};
constexpr FormRow kForms[] = {{"kvtc", OwnCoder},
                              {"kvtc_rans", StepCoder},
                              {"kvtc_ascend", AscendCoder},
                              {"kvtc_dynamo", DynamoCoder}};

const FormRow* FindForm(std::string_view type) {
  const std::string_view form = type.substr(0, type.find(':'));
  const auto* row = std::find_if(std::begin(kForms), std::end(kForms),
                                 [&](const FormRow& of) { return of.name == form; });
  return row == std::end(kForms) ? nullptr : row;
}

quant::WholeSide ByLayer(const Snapshot& snapshot, const transform::CodedCache& coded) {
  quant::WholeSide whole;
  whole.bytes = coded.bytes;
  const uint64_t layers = snapshot.layers.size(), row = coded.rows.features / layers;
  for (uint64_t l = 0; l < layers; ++l) {
    std::vector<float>& values = whole.layers[snapshot.layers[l].index];
    for (uint64_t t = 0; t < coded.rows.tokens; ++t) {
      const float* from = &coded.rows.values[t * coded.rows.features + l * row];
      values.insert(values.end(), from, from + row);
    }
  }
  return whole;
}

const Fields<TransformUse::Type>& TypeFields() {
  using Type = TransformUse::Type;
  static const Fields<Type> fields = {
      {"type", "Name of the type", [](const Type& of) { return of.side->name; }},
      {"side", "K or V", [](const Type& of) { return of.side->is_key ? "K" : "V"; },
       OneOf("K", "V")},
      {"middle_tokens", "Tokens that are coded",
       [](const Type& of) { return of.side->coded.middle_tokens; }},
      {"full_tokens",
       "Tokens that stay uncompressed: the first, the last and those after the prompt",
       [](const Type& of) { return of.side->coded.full_tokens(); }},
      {"not_finite_tokens", "Other tokens that stay uncompressed, because values are not finite",
       [](const Type& of) { return of.side->coded.not_finite; }},
      {"middle_ratio",
       "Bytes of coded tokens at 16 bits / bytes after coding; null if no token is coded",
       [](const Type& of) { return of.side->coded.middle_ratio(); }, Nullable()},
      {"retained", "Share of the energy of this cache, mean removed, that the basis captures",
       [](const Type& of) { return of.side->coded.retained; }},
      {"clipped", "Number of coefficients beyond the largest code",
       [](const Type& of) { return of.side->coded.faults.clipped; }},
      {"fp8_soft_damage", "Number of coefficients that GPUs before sm_89 store as another code",
       [](const Type& of) { return of.side->coded.faults.soft_damage; }},
      {"far_offsets",
       "Number of groups so far from 0 that a binary16 offset is coarser than the group's steps",
       [](const Type& of) { return of.side->coded.faults.far_offsets; }},
      {"basis_bytes", "Bytes of mean and basis of K or V, which the ratio does not count",
       [](const Type& of) { return of.side->basis_bytes; }},
      {"pays_from_tokens",
       "Least number of coded tokens, over all caches, that pays for the basis; 0: no number does",
       [](const Type& of) { return of.side->coded.PaysFrom(of.side->basis_bytes); }}};
  return fields;
}

}  // namespace

const Fields<TransformUse>& TransformUseFields() {
  static const Fields<TransformUse> fields = {
      Fields<TransformUse>::Inline(&TransformUse::file, HashedFileFields()),
      {"model", "Name of the model that the transform was learnt from",
       [](const TransformUse& of) { return of.transform->model; }},
      {"rope", "RoPE by which keys are rotated back",
       [](const TransformUse& of) { return of.transform->rope; }},
      Fields<TransformUse>::Inline(
          [](const TransformUse& of) -> const Transform& { return *of.transform; }, BasisFields()),
      {"self",
       "Whether the transform was learnt from this very cache, so that its figures are too good",
       &TransformUse::is_self},
      {"first_full", "First tokens that stay uncompressed", &TransformUse::first_full},
      {"last_full", "Last tokens of the prompt that stay uncompressed", &TransformUse::last_full},
      {"types", "Each type that uses the transform", &TransformUse::types, TypeFields()}};
  return fields;
}

namespace {

// Returns the transform of an artifact. An artifact does not record layers, heads and RoPE, so they
// are the cache's; its number of features must fit.
Transform MakeTransform(const KvtcArtifact& artifact, const Snapshot& snapshot,
                        const ModelRope* rope) {
  const LayerKv& first = snapshot.layers.front();
  Transform transform;
  transform.layers = static_cast<uint32_t>(snapshot.layers.size());
  if (rope != nullptr) transform.rope = RopeText(*rope, transform.layers, first.k.head_dim);
  const auto take = [](const KvtcArtifact::Side& from, const KvTensor& like, TransformSide& side) {
    side = {like.heads, like.head_dim, from.mean, {}, {from.basis}, {}};
    for (const auto& [ratio, groups] : from.schemas) {
      std::vector<sglang::SchemaEntry> entries;
      for (const KvtcArtifact::Group& group : groups) entries.push_back({group.size, group.type});
      side.plans.push_back({std::string(sglang::kAscendForm.name),
                            static_cast<double>(ratio),
                            sglang::ParseSchema(entries, side.components()),
                            {},
                            0});
    }
  };
  take(artifact.k, first.k, transform.k);
  take(artifact.v, *first.v, transform.v);
  RequireSound(transform);
  return transform;
}

}  // namespace

void TransformTypes::Declare(CommandLine& line) {
  line.Add("--transform", file_,
           "Learnt transform (.kvx, or SGLang's kvtc.pt) for the types kvtc:RATIO, "
           "kvtc_rans:RATIO, kvtc_ascend:RATIO and kvtc_dynamo:RANGES, such as fp8*256+int4*1024");
  line.Add("--fp8", fp8_,
           "FP8 conversion of kvtc_dynamo: sm89 (and later GPUs) or soft (default: sm89)")
      .OneOf({"sm89", "soft"});
  line.Add("--worker", worker_, "Worker whose transform in a kvtc.pt to use (default: tp_0_pp_0)");
  line.AddFlag("--allow-self", allow_self_,
               "Judge a transform even by a cache that it was learnt from: figures are too good");
}

void TransformTypes::Open(const Snapshot& snapshot, const ModelRope* rope) {
  if (file_.empty()) return;
  transform::RequireRows(snapshot);
  try {
    const Source source = Source::Open(file_);
    if (source.is_folder) throw Error(Finding::kUsage, "--transform: a folder, expected a file");
    transform_ = LooksLikeTorch(source)
                     ? MakeTransform(ReadKvtcArtifact(source, worker_), snapshot, rope)
                     : ReadTransform(source.files.at(0).data->bytes());
    transform::RequireOrthonormal(*transform_);
    hashed_ = HashedFile::Of(source);
  } catch (Error& error) {
    throw error.File(file_);
  }
  transform::RequireFit(*transform_, snapshot, rope);
  is_self_ = transform::LearntFrom(*transform_, snapshot);
  if (is_self_ && !allow_self_) {
    throw Error(Finding::kUsage,
                "the transform was learnt from this very cache: its figures would be too good")
        .Hint("judge it by another cache, or learn it from others; --allow-self replays anyway");
  }
  snapshot_ = &snapshot;
  rope_ = rope;
}

const quant::CacheType* TransformTypes::Make(const std::string& name, bool is_key, uint64_t prompt,
                                             uint64_t keep_first, uint64_t keep_last) {
  const FormRow* form = FindForm(name);
  if (form == nullptr) return nullptr;
  if (!transform_) {
    throw Error(Finding::kUsage, "{}: needs a transform of the model", name)
        .Hint("learn one (kvtool train --transform kvtc CACHES -o model.kvx) and give --transform");
  }
  const bool is_given = keep_first + keep_last > 0;
  first_ = is_given ? keep_first : transform_->sinks;
  last_ = is_given ? keep_last : transform_->window;
  const TransformSide& side = is_key ? transform_->k : transform_->v;
  const std::string_view text = name;
  const size_t colon = text.find(':');
  const RowCoder coder =
      form->make({side, name, colon == text.npos ? "" : text.substr(colon + 1),
                  fp8_ == "soft" ? dynamo::Fp8Path::kSoft : dynamo::Fp8Path::kSm89});
  const TokenRange middle =
      transform::MiddleRange(std::min(prompt, snapshot_->layers.front().k.tokens()), first_, last_);
  TransformedSide& made = sides_.emplace_back();
  made.name = name;
  made.is_key = is_key;
  made.coded = transform::CodeCache(*snapshot_, side, is_key, rope_, middle, coder);
  made.whole = ByLayer(*snapshot_, made.coded);
  made.coded.rows.values = {};
  made.basis_bytes = static_cast<double>(transform_->BasisBytes(side));
  made.type = quant::TypeOfWhole(made.name, made.whole);
  return &made.type;
}

std::optional<TransformUse> TransformTypes::Use() const {
  if (!transform_) return std::nullopt;
  TransformUse use{hashed_, &*transform_, is_self_, first_, last_, {}};
  for (const TransformedSide& side : sides_) use.types.push_back({&side});
  return use;
}

std::vector<std::string> TransformTypes::Warnings() const {
  std::vector<std::string> warnings;
  if (is_self_)
    warnings.push_back("the transform was learnt from this very cache: its figures are too good");
  for (const TransformedSide& of : sides_) {
    const transform::CodedCache& coded = of.coded;
    const std::string who = fmt::format("{} of {}", of.name, of.is_key ? 'K' : 'V');
    if (coded.middle_tokens == 0) {
      warnings.push_back(
          fmt::format("{}: the first {} and last {} tokens, which stay in full, are the whole "
                      "prompt: nothing is coded",
                      who, first_, last_));
      continue;
    }
    if (coded.retained < kWornBasis) {
      warnings.push_back(
          fmt::format("{}: the basis holds {:.0f}% of this cache's energy: it was learnt from "
                      "other text or another model",
                      who, 100 * coded.retained));
    }
    if (coded.not_finite > 0) {
      warnings.push_back(fmt::format(
          "{}: {} tokens hold values that are not finite and stay in full", who, coded.not_finite));
    }
    if (coded.faults.clipped > 0)
      warnings.push_back(fmt::format("{}: {} coefficients are clipped", who, coded.faults.clipped));
  }
  return warnings;
}

std::string TransformTypes::Text() const {
  std::string text;
  for (const TransformedSide& of : sides_) {
    if (of.coded.middle_tokens == 0) continue;
    text += fmt::format(
        "{} of {}: {} tokens coded at {:.2f}x, {} in full; the basis of {:.0f} bytes pays from {} "
        "coded tokens on\n",
        of.name, of.is_key ? 'K' : 'V', of.coded.middle_tokens, of.coded.middle_ratio(),
        of.coded.full_tokens(), of.basis_bytes, of.coded.PaysFrom(of.basis_bytes));
  }
  return text;
}

}  // namespace kv
