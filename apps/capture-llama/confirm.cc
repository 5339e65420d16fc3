// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <cstdio>
#include <map>

#include "apps/capture-llama/failure.h"
#include "apps/capture-llama/logits.h"
#include "apps/capture-llama/options.h"
#include "apps/capture-llama/perturbations.h"
#include "apps/capture-llama/run_folder.h"

namespace kv::capture {
namespace {

// The way in which rows are decoded. Kernels round differently for one row than for many, so runs
// that are compared are decoded in the same way and only the plan differs.
enum class Pace { kBatches, kOneByOne };

class Repeat {
 public:
  Repeat(const RecordedRun& run, const Model& model, const ContextOptions& settings)
      : run_(run), words_(model.words()), context_(model, settings) {
    for (const llama_token token : run.tokens) {
      if (token < 0 || token >= words_) {
        throw Failure(kInvalid, "the run has tokens that are not in this model's vocabulary");
      }
    }
  }

  // Returns the distributions of the unchanged run, rows after the prompt.
  const Distributions& Full(Pace pace) {
    const auto known = full_.find(pace);
    if (known != full_.end()) return known->second;
    Distributions& full = full_.try_emplace(pace, run_.prompt, words_).first->second;
    ReturnTo(run_.prompt);
    Decode(run_.prompt, end(), pace,
           [&full](int32_t, std::span<float> logits) { full.Add(logits); });
    return full;
  }

  Comparison ByMask(const Evictions& plan) {
    const Distributions& full = Full(Pace::kBatches);
    const int32_t start = ReturnTo(plan.First());
    Evictor evictor(plan);
    context_.Observe(&evictor);
    Comparison comparison;
    Decode(start, end(), Pace::kBatches, ComparingWith(full, comparison));
    context_.Observe(nullptr);
    return comparison;
  }

  Comparison BySeqRm(const Evictions& plan) {
    const Distributions& full = Full(Pace::kOneByOne);
    int32_t at = ReturnTo(plan.First());
    Comparison comparison;
    const Context::Row compare = ComparingWith(full, comparison);
    for (const auto& [token, runs] : plan.Steps()) {
      Decode(at, token + 1, Pace::kOneByOne, compare);
      at = std::max(at, token + 1);
      for (const auto& [begin, beyond] : runs) context_.Forget(begin, beyond);
    }
    Decode(at, end(), Pace::kOneByOne, compare);
    return comparison;
  }

  // Compares this run with another one's distributions.
  Comparison Against(const Distributions& full) {
    Comparison comparison;
    Decode(0, end(), Pace::kBatches, ComparingWith(full, comparison));
    return comparison;
  }

 private:
  int32_t end() const { return static_cast<int32_t>(run_.tokens.size()); }

  // Restores the state before the first eviction, which follows row `first`: the state at the
  // prompt's end, or the very beginning, so that batches stay the same. Returns the row to continue
  // with.
  int32_t ReturnTo(int32_t first) {
    if (first < run_.prompt - 1) {
      context_.Forget(0, -1);
      return 0;
    }
    if (prompt_state_.empty()) {
      Decode(0, run_.prompt, Pace::kBatches, nullptr);
      prompt_state_ = context_.State();
    } else {
      context_.Restore(prompt_state_);
    }
    return run_.prompt;
  }

  // Decodes rows [begin, beyond); the prompt's rows are always decoded in batches.
  void Decode(int32_t begin, int32_t beyond, Pace pace, const Context::Row& row) {
    const auto decode = [&](int32_t from, int32_t to) {
      if (from >= to) return;
      const auto tokens = std::span(run_.tokens).subspan(size_t(from), size_t(to - from));
      context_.Decode(tokens, from, run_.prompt, row);
    };
    decode(begin, std::min(beyond, run_.prompt));
    begin = std::max(begin, run_.prompt);
    if (pace == Pace::kBatches) return decode(begin, beyond);
    for (; begin < beyond; ++begin) decode(begin, begin + 1);
  }

  Context::Row ComparingWith(const Distributions& full, Comparison& comparison) const {
    return [this, &full, &comparison](int32_t position, std::span<float> logits) {
      ToLogProbabilities(logits);
      const bool last = position + 1 == end();
      comparison.Add(full.Row(position), logits, last ? -1 : run_.tokens[size_t(position) + 1]);
    };
  }

  const RecordedRun& run_;
  int32_t words_;
  Context context_;
  std::map<Pace, Distributions> full_;
  std::vector<uint8_t> prompt_state_;
};

bool Removes(const Options& options, const Evictions& plan) {
  return options.by == "seq_rm" || (options.by.empty() && plan.common());
}

void CheckWay(const Options& options, const std::string& file, const Evictions& plan) {
  if (plan.common()) return;
  const std::string differs = file + ": differs by layer or head, which ";
  if (options.by == "seq_rm")
    throw Failure(kUnsupported, differs + "seq_rm cannot apply; --by mask can");
  if (options.flash.value_or(false)) throw Failure(kUnsupported, differs + "needs --flash off");
}

void ConfirmPlans(const Options& options, const RecordedRun& run, const Model& model,
                  ContextOptions settings) {
  const auto read = [&](const std::string& file) {
    return ReadPlan(file, run.geometry, static_cast<int32_t>(run.tokens.size()));
  };
  // A plan that cannot be applied stops the program before anything is computed.
  for (const std::string& file : options.plans) CheckWay(options, file, read(file));
  settings.flash = options.flash.value_or(false);
  Repeat repeat(run, model, settings);
  for (const std::string& file : options.plans) {
    const Evictions plan = read(file);
    const bool removes = Removes(options, plan);
    const Comparison comparison = removes ? repeat.BySeqRm(plan) : repeat.ByMask(plan);
    std::printf("%s\n", comparison.Line(file, removes ? "seq_rm" : "mask").c_str());
    std::fflush(stdout);
  }
}

// Both runs use flash attention, which quantised values require, so that only the cache differs.
void ConfirmTypes(const Options& options, const RecordedRun& run, const Model& model,
                  ContextOptions settings) {
  settings.flash = options.flash.value_or(true);
  Repeat full(run, model, settings);
  settings.type_k = options.type_k;
  settings.type_v = options.type_v;
  Repeat other(run, model, settings);
  const auto named = [](const std::string& type) { return type.empty() ? "f16" : type; };
  const std::string types = "k " + named(options.type_k) + ", v " + named(options.type_v);
  const Comparison comparison = other.Against(full.Full(Pace::kBatches));
  std::printf("%s\n", comparison.Line(types, "cache").c_str());
}

}  // namespace

void Confirm(const Options& options) {
  const RecordedRun run = ReadRun(options.run);
  const std::string file = options.model.empty() ? run.model_file : options.model;
  if (file.empty()) throw Failure(kUsage, "the run does not name its model file; give it with -m");
  const Model model(file, options.backends);
  const Geometry& sizes = run.geometry;
  const int32_t heads = llama_model_n_head(model.get());
  if (sizes.layers != llama_model_n_layer(model.get()) || sizes.query_heads != heads ||
      heads % sizes.kv_heads != 0) {
    throw Failure(kInvalid, file + ": its layers or heads differ from those of the run's model");
  }
  ContextOptions settings;
  settings.tokens = static_cast<int32_t>(run.tokens.size());
  settings.ubatch = options.ubatch;
  settings.threads = options.threads;
  if (options.plans.empty()) return ConfirmTypes(options, run, model, settings);
  ConfirmPlans(options, run, model, settings);
}

}  // namespace kv::capture
