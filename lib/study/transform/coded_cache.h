// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>

#include "lib/study/transform/learn.h"

namespace kv::transform {

// Codes coefficients of tokens: writes the decoded values and returns the bytes.
using RowCoder =
    std::function<double(const Rows& coefficients, std::span<float> out, Faults& faults)>;
RowCoder CodeBySchema(const Form& form, CodeSchema schema);
RowCoder CodeBySteps(StepCode code);

// K or V of a whole cache after coding it by a transform.
struct CodedCache {
  CacheRows rows;              // all tokens, in the type of the cache, keys rotated again
  double bytes = 0;            // bytes of all tokens, those in full at 16 bits; without the basis
  double middle_bytes = 0;     // bytes of the coded tokens alone
  uint64_t middle_tokens = 0;  // number of coded tokens
  uint64_t not_finite = 0;     // tokens of the middle kept in full, because a value is not finite
  double retained = 0;         // share of the centred energy that the basis holds
  Faults faults;

  uint64_t full_tokens() const { return rows.tokens - middle_tokens; }
  double middle_ratio() const;
  // Returns how many tokens, over all caches of the model, must be coded until the savings exceed
  // the basis; 0: savings never do.
  uint64_t PaysFrom(double basis_bytes) const;
};

// Codes the tokens of the middle; all others do not change. Throws what CollectRows throws does.
CodedCache CodeCache(const Snapshot& snapshot, const TransformSide& side, bool is_key,
                     const ModelRope* rope, TokenRange middle, const RowCoder& coder);

// Throws kInconsistent, naming the difference, unless the transform was learnt for caches of this
// shape, and of this RoPE if keys are rotated.
void RequireFit(const Transform& transform, const Snapshot& snapshot, const ModelRope* rope);

}  // namespace kv::transform
