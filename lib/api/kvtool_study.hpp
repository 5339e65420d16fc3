// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
//
// kvtool_study.hpp: kvtool_study.h with owners, spans and exceptions, C++20. Every function is
// inline. It may change with a minor version, as kvtool_study.h says.
#ifndef KVTOOL_STUDY_HPP_
#define KVTOOL_STUDY_HPP_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvtool.hpp"
#include "kvtool_study.h"

namespace kvtool {

// Returns figures of a tensor that `desc` explains. Throws Error.
inline kvt_analysis Analyze(const Context& context, const kvt_desc& desc, Bytes raw) {
  kvt_analysis analysis = {};
  analysis.struct_size = sizeof analysis;
  context.Raise(kvt_analyze(context.get(), &desc, raw.data(), raw.size(), &analysis, nullptr));
  return analysis;
}

// Returns the figures of Analyze and more, as JSON.
inline std::string AnalyzeJson(const Context& context, const kvt_desc& desc, Bytes raw) {
  std::string text;
  detail::Callback<Write> write([&text](Bytes bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
  const kvt_sink sink = detail::MakeSink(write);
  write.Raise(context, kvt_analyze(context.get(), &desc, raw.data(), raw.size(), nullptr, &sink));
  return text;
}

// Computes one sum for each block of the keys.
inline void BlockScores(const Context& context, const kvt_scores& scores, std::span<float> sums) {
  context.Raise(kvt_block_scores(context.get(), &scores, sums.data(), sums.size()));
}

// MNN's eviction for one sequence. The context must outlive it.
class H2o {
 public:
  static kvt_h2o_params Defaults() {
    kvt_h2o_params params = {};
    params.struct_size = sizeof params;
    Check(kvt_h2o_defaults(&params));
    return params;
  }
  H2o(const Context& context, const kvt_h2o_params& params, const kvt_geometry& geometry)
      : context_(&context) {
    kvt_h2o* h2o = nullptr;
    context.Raise(kvt_h2o_create(context.get(), &params, &geometry, &h2o));
    h2o_.reset(h2o);
  }

  // The returned call's plan points into this object and is valid until its next call.
  kvt_h2o_call Begin(uint64_t new_tokens) {
    kvt_h2o_call call = {};
    call.struct_size = sizeof call;
    context_->Raise(kvt_h2o_begin(h2o_.get(), new_tokens, &call));
    return call;
  }
  kvt_h2o_call Finish(std::span<const float> block_sums, uint64_t query_rows) {
    kvt_h2o_call call = {};
    call.struct_size = sizeof call;
    context_->Raise(
        kvt_h2o_finish(h2o_.get(), block_sums.data(), block_sums.size(), query_rows, &call));
    return call;
  }
  void Truncate(uint32_t layer, uint64_t length) {
    context_->Raise(kvt_h2o_truncate(h2o_.get(), layer, length));
  }

 private:
  const Context* context_;
  detail::Handle<kvt_h2o, kvt_h2o_free> h2o_;
};

// Returns the policies that Policy can make.
inline std::vector<kvt_policy_info> Policies() {
  std::vector<kvt_policy_info> all;
  for (;;) {
    kvt_policy_info info = {};
    info.struct_size = sizeof info;
    if (kvt_policy_at(all.size(), &info) != 0) return all;
    all.push_back(info);
  }
}

// A published policy for one layer of one sequence. The context must outlive it.
class Policy {
 public:
  Policy(const Context& context, const char* name, const kvt_geometry& geometry, uint32_t layer)
      : context_(&context) {
    kvt_policy* policy = nullptr;
    context.Raise(kvt_policy_create(context.get(), name, &geometry, layer, &policy));
    policy_.reset(policy);
  }
  void Observe(const kvt_scores& rows) {
    context_->Raise(kvt_policy_observe(policy_.get(), &rows));
  }
  // Returns one plan, or one for each kv head; they point into the object until its next call.
  std::span<const kvt_plan> Choose(const kvt_scores& cache, uint64_t keep) {
    const kvt_plan* plans = nullptr;
    size_t count = 0;
    context_->Raise(kvt_policy_choose(policy_.get(), &cache, keep, &plans, &count));
    return {plans, count};
  }

 private:
  const Context* context_;
  detail::Handle<kvt_policy, kvt_policy_free> policy_;
};

}  // namespace kvtool

#endif  // KVTOOL_STUDY_HPP_
