// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads the rows of all inputs, divides them into those to learn from and those to judge by, and
// learns K and V.
#include "apps/kvtool/commands/transform/learn_flags.h"

#include <fmt/format.h>

#include <cmath>

#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/line/numbers.h"
#include "formats/registry.h"
#include "lib/core/base/number.h"
#include "lib/engines/sglang/ascend.h"
#include "lib/study/transform/learn.h"

namespace kv {
namespace {

constexpr uint64_t kRowsOfFeature = 5;  // with fewer the basis fits only its own rows

// The rows of K and V to learn from, and those for testing.
struct Lesson {
  transform::CacheRows learn, held_out;
};

void AppendRows(const transform::CacheRows& from, transform::CacheRows& to) {
  to.features = from.features;
  to.tokens += from.tokens;
  to.values.insert(to.values.end(), from.values.begin(), from.values.end());
}

// Takes layers, heads and RoPE of the first input, which all others must have.
void TakeShape(const Snapshot& snapshot, const std::string& rope, Transform& transform) {
  const LayerKv& first = snapshot.layers.front();
  const auto layers = static_cast<uint32_t>(snapshot.layers.size());
  TransformSide k{first.k.heads, first.k.head_dim, {}, {}, {}};
  TransformSide v{first.v->heads, first.v->head_dim, {}, {}, {}};
  const bool fits =
      transform.layers == 0 ||
      (transform.layers == layers && transform.k.heads == k.heads && transform.k.dim == k.dim &&
       transform.v.heads == v.heads && transform.v.dim == v.dim && transform.rope == rope);
  if (!fits) {
    throw Error(Finding::kInconsistent, "other layers, heads or RoPE than the inputs before");
  }
  transform.layers = layers;
  transform.rope = rope;
  transform.k = std::move(k);
  transform.v = std::move(v);
}

class Lessons {
 public:
  Lessons(const LearnFlags& flags, size_t inputs)
      : flags_(flags),
        held_inputs_(static_cast<size_t>(std::ceil(flags.hold * static_cast<double>(inputs)))),
        inputs_(inputs) {}

  void Add(const Snapshot& snapshot, const std::optional<ModelRope>& rope, Transform& transform) {
    transform::RequireRows(snapshot);
    const KvTensor& k = snapshot.layers.front().k;
    const auto layers = static_cast<uint32_t>(snapshot.layers.size());
    const bool turns = snapshot.key_rotation != KeyRotation::kUnrotated;
    TakeShape(snapshot, turns && rope ? RopeText(*rope, layers, k.head_dim) : "", transform);
    const TokenRange middle = transform::MiddleRange(k.tokens(), flags_.sinks, flags_.window);
    for (Lesson* lesson : {&k_, &v_}) {
      transform::CacheRows rows =
          transform::CollectRows(snapshot, lesson == &k_, rope ? &*rope : nullptr, middle);
      transform::DropNotFinite(rows);
      Take(rows, *lesson);
    }
    ++taken_;
    for (const uint64_t hash : transform::Fingerprints(snapshot))
      transform.fingerprints.push_back(hash);
  }

  const Lesson& k() const { return k_; }
  const Lesson& v() const { return v_; }

 private:
  // Holds out whole inputs, or the last rows of a single one.
  void Take(const transform::CacheRows& rows, Lesson& lesson) const {
    if (inputs_ > 1) {
      AppendRows(rows, taken_ + held_inputs_ >= inputs_ ? lesson.held_out : lesson.learn);
      return;
    }
    const auto kept = static_cast<uint64_t>((1 - flags_.hold) * static_cast<double>(rows.tokens));
    const auto cut = rows.values.begin() + static_cast<std::ptrdiff_t>(kept * rows.features);
    AppendRows({{rows.values.begin(), cut}, kept, rows.features}, lesson.learn);
    AppendRows({{cut, rows.values.end()}, rows.tokens - kept, rows.features}, lesson.held_out);
  }

  const LearnFlags& flags_;
  size_t held_inputs_, inputs_, taken_ = 0;
  Lesson k_, v_;
};

// Warns if there is little to learn from; throws kUsage if there is nothing.
void RequireEnough(const Lesson& k, const LearnFlags& flags, const std::vector<std::string>& inputs,
                   Console& console) {
  if (inputs.size() == 1) {
    console.Warn(
        inputs.front(),
        "only one cache: its last rows judge what was learnt from the others, though all are "
        "of one text");
  }
  const transform::CacheRows& rows = k.learn;
  if (rows.tokens < kRowsOfFeature * rows.features) {
    console.Warn(inputs.front(),
                 fmt::format("{} rows of {} features: with fewer than {} rows a feature the basis "
                             "fits the rows that it is learnt from better than others",
                             rows.tokens, rows.features, kRowsOfFeature));
  }
  if (k.held_out.tokens != 0 && rows.tokens != 0) return;
  throw Error(Finding::kUsage, "--keep-first {}, --keep-last {}: they leave no token to learn from",
              flags.sinks, flags.window);
}

uint32_t LayersOfGroup(const std::string& grouping, uint32_t layers) {
  if (grouping == "all") return layers;
  if (grouping == "layer") return 1;
  const auto number = ParseNumber<uint32_t>(grouping);
  if (number && *number > 0) return *number;
  throw Error(Finding::kUsage, "--grouping {}: expected all, layer or a number of layers",
              grouping);
}

}  // namespace

void LearnFlags::Declare(CommandLine& line) {
  const CommandLine::Heading heading(line, "Transforms");
  line.Add("--transform", kind, "Learn a transform of K and V in place of a profile: kvtc")
      .OneOf({"kvtc"});
  line.Add("--ratio", ratios, "Ratios that coefficients get a schema for (4,8,16)")
      .Check(CheckedBy([](const std::string& text) { ParseRatios(text, "--ratio"); }));
  line.Add("--rank", rank, "Components of a basis, a multiple of 16 (chosen on half of the rows)");
  line.Add("--grouping", grouping, "Layers that share a basis: all, layer or a number (all)")
      .Check(CheckedBy([](const std::string& text) { LayersOfGroup(text, 1); }));
  line.Add("--basis", basis, "How the basis is stored: f32 or bf16 (f32)").OneOf({"f32", "bf16"});
  line.Add("--keep-first", sinks, "First tokens of each cache that stay in full (4)");
  line.Add("--keep-last", window, "Last tokens of each cache that stay in full (128)");
  line.OnText(
      "--hold", [this](const std::string& text) { hold = ParseShare(text, "--hold", 0.01, 0.9); },
      "Share of the inputs that only judges what was learnt from the others (0.2)");
  rope.Declare(line, "How K is rotated, for --transform");
}

Transform LearnFlags::Learn(const std::vector<std::string>& inputs,
                            const SnapshotOptions& snapshots, const std::string& name,
                            Context& context) const {
  Transform transform;
  transform.model = name;
  transform.sinks = sinks;
  transform.window = window;
  transform.is_bfloat = basis == "bf16";
  const OpenOptions options =
      snapshots.Resolve(inputs.size() > 1 ? FlagsFor::kSeveral : FlagsFor::kOne);
  Lessons lessons(*this, inputs.size());
  for (const std::string& input : inputs) {
    try {
      const Snapshot snapshot = OpenSnapshot(snapshots.Open(input), options);
      WarnAboutNotes(snapshot.notes, input, context.console);
      snapshot.CheckContent();
      lessons.Add(snapshot, rope.Resolve(options, &snapshot), transform);
      if (transform.model.empty()) transform.model = snapshot.model.substr(0, 255);
      transform.sources.push_back(HashedFile::Of(snapshot.source).xxh3);
    } catch (Error& error) {
      throw error.File(input);
    }
  }
  RequireEnough(lessons.k(), *this, inputs, context.console);
  transform.rows = lessons.k().learn.tokens;
  transform::LearnOptions how{rank,
                              LayersOfGroup(grouping, transform.layers),
                              transform.is_bfloat,
                              ParseRatios(ratios, "--ratio"),
                              {&transform::kKvtcForm, &sglang::kAscendForm}};
  ThreadPool pool(context.global.thread_count());
  for (TransformSide* side : {&transform.k, &transform.v}) {
    const Lesson& lesson = side == &transform.k ? lessons.k() : lessons.v();
    *side = transform::LearnSide(lesson.learn, lesson.held_out, transform.layers, side->heads,
                                 side->dim, how, pool);
  }
  return transform;
}

}  // namespace kv
