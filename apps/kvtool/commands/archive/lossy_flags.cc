// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/archive/lossy_flags.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>

#include "formats/kvx/kvx.h"
#include "formats/kvz/kvz.h"
#include "formats/registry.h"
#include "lib/core/base/hash.h"
#include "lib/study/transform/coded_cache.h"

namespace kv {
namespace {

std::string ListRatios(const Transform& transform) {
  std::string ratios;
  for (const TransformPlan& plan : transform.k.plans) {
    if (plan.form == kStepForm)
      ratios += fmt::format("{}{}", ratios.empty() ? "" : ", ", plan.ratio);
  }
  return ratios;
}

void RequireRatio(const Transform& transform, double ratio) {
  if (transform.k.Find(kStepForm, ratio) != nullptr &&
      transform.v.Find(kStepForm, ratio) != nullptr)
    return;
  throw Error(Finding::kUsage, "--ratio {}: the transform has no such ratio", ratio)
      .Hint("it has {}; 'kvtool train --transform kvtc --ratio R' learns others",
            ListRatios(transform));
}

}  // namespace

void LossyFlags::Declare(CommandLine& line) {
  const CommandLine::Heading heading(line, "Lossy archives");
  line.Add("--transform", file_,
           "LOSSY: approximate K and V by a learnt transform (.kvx), which decompress then needs; "
           "the archive is named FILE.lossy.kvz");
  line.Add("--ratio", ratio_, "Factor by which K and V shrink: one of the transform's ratios")
      .Positive();
  line.AddFlag("--allow-self", allow_self_,
               "Use a transform even if it was learnt from this very cache");
  rope_.Declare(line, "How K is rotated, for --transform");
}

void LossyFlags::Check(Effort level, const OpenOptions& options) const {
  if (is_wanted() != (ratio_ > 0)) {
    throw Error(Finding::kUsage, is_wanted()
                                     ? "--transform needs --ratio R, how much smaller K and V get"
                                     : "--ratio needs --transform FILE");
  }
  if (!is_wanted()) return;
  if (level == Effort::kCompat)
    throw Error(Finding::kUsage,
                "--level compat writes what the engine reads, and it reads no transforms");
  if (!options.bases.empty() || !options.profiles.empty())
    throw Error(Finding::kUsage, "--transform excludes --base and --profile");
}

LossyFlags::Result LossyFlags::Approximate(const Source& source, const Snapshot& snapshot,
                                           const OpenOptions& options, ThreadPool& pool) const {
  transform::RequireRows(snapshot);
  if (!snapshot.checks.empty()) {
    throw Error(Finding::kUnsupportedLayout,
                "the format stores checksums of K and V, which approximated values would not match")
        .Hint("'kvtool convert' writes the cache as plain tensors, such as safetensors");
  }
  RequireReplaceable(source, snapshot);
  const std::optional<ModelRope> rope = rope_.Resolve(options, &snapshot);
  Approximation wanted;
  std::shared_ptr<const Transform> transform;
  try {
    const auto file = FileSource::Open(file_);
    transform = std::make_shared<const Transform>(ReadTransform(file->bytes()));
    transform::RequireOrthonormal(*transform);
    const ByteSpan hash = file->bytes().last(wanted.hash.size());
    std::memcpy(wanted.hash.data(), hash.data(), hash.size());
  } catch (Error& error) {
    throw error.File(file_);
  }
  transform::RequireFit(*transform, snapshot, rope ? &*rope : nullptr);
  RequireRatio(*transform, ratio_);
  if (!allow_self_ && transform::LearntFrom(*transform, snapshot)) {
    throw Error(Finding::kUsage, "the transform was learnt from this very cache")
        .Hint("the stated errors do not hold for other caches; --allow-self archives it anyway");
  }
  const std::string name = std::filesystem::path(file_).filename().string();
  if (IsSafeRelativePath(name)) wanted.file = name;
  wanted.model = transform->model;
  wanted.ratio = ratio_;
  wanted.sinks = transform->sinks;
  wanted.window = transform->window;
  wanted.source_hash = HashSource(source);
  TakeLayers(snapshot, rope ? &*rope : nullptr, wanted);
  ApproximatedSource made =
      ApproximateSource(source, snapshot, std::move(transform), std::move(wanted), pool);

  Result result;
  result.source = source;
  for (size_t i = 0; i < made.files.size(); ++i) {
    SourceFile& file = result.source.files[i];
    file.data = FileSource::FromBytes(std::move(made.files[i]), file.data->name());
  }
  std::string why;
  std::optional<Snapshot> read = OpenToKeep(result.source, options, why);
  if (!read) {
    throw Error(Finding::kUnsupportedLayout,
                "the source cannot be read with approximated values: {}", why);
  }
  result.snapshot = *std::move(read);
  result.chunks = std::move(made.chunks);
  if (made.exact_blocks > 0) {
    result.warnings.push_back(fmt::format(
        "{} blocks of tokens stay exact, because values are not finite", made.exact_blocks));
  }
  if (made.clipped > 0)
    result.warnings.push_back(fmt::format("{} coefficients are clipped", made.clipped));
  return result;
}

}  // namespace kv
