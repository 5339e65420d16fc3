// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/archive/lossy_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "formats/kvx/kvx.h"
#include "formats/kvz/kvz.h"
#include "formats/registry.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/number.h"
#include "lib/study/transform/coded_cache.h"

namespace kv {
namespace {

// Returns the ratios that K and V both have tables for, in ascending order.
std::vector<double> FindRatios(const Transform& transform) {
  std::vector<double> ratios;
  for (const TransformPlan& plan : transform.k.plans) {
    if (plan.form == kStepForm && transform.v.Find(kStepForm, plan.ratio) != nullptr)
      ratios.push_back(plan.ratio);
  }
  std::ranges::sort(ratios);
  return ratios;
}

void RequireRatio(const Transform& transform, double ratio) {
  const std::vector<double> ratios = FindRatios(transform);
  if (std::ranges::find(ratios, ratio) != ratios.end()) return;
  throw Error(Finding::kUsage, "--ratio {}: the transform has no such ratio", ratio)
      .Hint("it has {}; 'kvtool train --transform kvtc --ratio R' learns others",
            fmt::join(ratios, ", "));
}

// Parses "0.001nats" or "0.001".
double ParseNats(std::string_view text) {
  const std::string_view whole = text;
  if (text.ends_with("nats")) text.remove_suffix(4);
  const auto nats = ParseNumber<double>(text);
  if (nats && *nats > 0 && std::isfinite(*nats)) return *nats;
  throw Error(Finding::kUsage, "--loss {}: expected nats, such as 0.001nats", whole);
}

}  // namespace

void LossyFlags::Declare(CommandLine& line) {
  const CommandLine::Heading heading(line, "Lossy archives");
  line.Add("--transform", file_,
           "LOSSY: approximate K and V by a learnt transform (.kvx), which decompress then needs; "
           "the archive is named FILE.lossy.kvz");
  line.Add("--ratio", ratio_, "Factor by which K and V shrink: one of the transform's ratios")
      .Positive();
  line.OnText(
      "--loss", [this](const std::string& text) { nats_ = ParseNats(text); },
      "Choose the largest ratio whose expected loss is at most this, as 0.001nats; needs a "
      "transform with weights (train --weights-from)");
  line.AddFlag("--allow-self", allow_self_,
               "Use a transform even if it was learnt from this very cache");
  rope_.Declare(line, "How K is rotated, for --transform");
}

void LossyFlags::Check(Effort level, const OpenOptions& options) const {
  if (ratio_ > 0 && nats_ > 0)
    throw Error(Finding::kUsage, "--ratio and --loss: the loss follows from the ratio");
  if (is_wanted() != (ratio_ > 0 || nats_ > 0)) {
    throw Error(Finding::kUsage, is_wanted()
                                     ? "--transform needs --ratio R, how much smaller K and V "
                                       "get, or --loss NATS, what that may cost"
                                 : ratio_ > 0 ? "--ratio needs --transform FILE"
                                              : "--loss needs --transform FILE");
  }
  if (!is_wanted()) return;
  if (level == Effort::kCompat)
    throw Error(Finding::kUsage,
                "--level compat writes what the engine reads, which excludes transforms");
  if (!options.bases.empty() || !options.profiles.empty())
    throw Error(Finding::kUsage, "--transform excludes --base and --profile");
}

ApproximatedSource LossyFlags::Choose(const Source& source, const Snapshot& snapshot,
                                      const std::shared_ptr<const Transform>& transform,
                                      const Approximation& wanted, ThreadPool& pool) const {
  const auto approximate = [&](double ratio) {
    Approximation by_ratio = wanted;
    by_ratio.ratio = ratio;
    return ApproximateSource(source, snapshot, transform, std::move(by_ratio), pool);
  };
  if (ratio_ > 0) return approximate(ratio_);
  if (transform->k.weights.empty()) {
    throw Error(Finding::kUsage,
                "--loss: the transform has no weights, so no loss in nats is known")
        .Hint("'kvtool train --transform kvtc --weights-from RUN' learns one with weights");
  }
  double least = 0;
  const std::vector<double> ratios = FindRatios(*transform);
  for (auto ratio = ratios.rbegin(); ratio != ratios.rend(); ++ratio) {
    ApproximatedSource made = approximate(*ratio);
    least = *made.chunks->transform->approximation().expected_kl;
    if (least <= nats_) return made;
  }
  throw Error(Finding::kUsage, "--loss {}: the smallest ratio, {}, is expected to cost {:.2g} nats",
              nats_, ratios.empty() ? 0 : ratios.front(), least)
      .Hint("'kvtool train --transform kvtc --ratio R' learns smaller ratios");
}

LossyFlags::Given LossyFlags::Read() const {
  try {
    const auto file = FileSource::Open(file_);
    Given given;
    given.transform = std::make_shared<const Transform>(ReadTransform(file->bytes()));
    transform::RequireOrthonormal(*given.transform);
    const ByteSpan hash = file->bytes().last(given.hash.size());
    std::memcpy(given.hash.data(), hash.data(), hash.size());
    return given;
  } catch (Error& error) {
    throw error.File(file_);
  }
}

OpenOptions LossyFlags::WithHeads(const Given& given, const OpenOptions& options) {
  OpenOptions with_heads = options;
  ModelGeometry& geometry = with_heads.geometry.emplace();
  geometry.source = "--transform";
  geometry.uniform.kv_heads = given.transform->k.heads;
  return with_heads;
}

LossyFlags::Result LossyFlags::Approximate(const Given& given, const Source& source,
                                           const Snapshot& snapshot, const OpenOptions& options,
                                           ThreadPool& pool) const {
  transform::RequireRows(snapshot);
  if (!snapshot.checks.empty()) {
    throw Error(Finding::kUnsupportedLayout,
                "the format stores checksums of K and V, which approximated values would not match")
        .Hint("'kvtool convert' writes the cache as plain tensors, such as safetensors");
  }
  RequireReplaceable(source, snapshot);
  const std::shared_ptr<const Transform>& transform = given.transform;
  std::optional<ModelRope> rope = rope_.Resolve(options, &snapshot);
  if (!rope) rope = ParseRopeText(transform->rope, transform->layers, transform->k.dim);
  Approximation wanted;
  wanted.hash = given.hash;
  transform::RequireFit(*transform, snapshot, rope ? &*rope : nullptr);
  if (ratio_ > 0) RequireRatio(*transform, ratio_);
  if (!allow_self_ && transform::LearntFrom(*transform, snapshot)) {
    throw Error(Finding::kUsage, "the transform was learnt from this very cache")
        .Hint("the stated errors do not hold for other caches; --allow-self archives it anyway");
  }
  const std::string name = std::filesystem::path(file_).filename().string();
  if (IsSafeRelativePath(name)) wanted.file = name;
  wanted.model = transform->model;
  wanted.sinks = transform->sinks;
  wanted.window = transform->window;
  wanted.source_hash = HashSource(source);
  TakeLayers(snapshot, rope ? &*rope : nullptr, wanted);
  ApproximatedSource made = Choose(source, snapshot, transform, wanted, pool);

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
                "with its values approximated, the source can no longer be read: {}", why);
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
