// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>

#include "lib/study/transform/learn.h"

namespace kv::transform {

// Codes coefficients of tokens: writes what comes back and returns the bytes.
using RowCoder =
    std::function<double(const Rows& coefficients, std::span<float> out, Faults& faults)>;
RowCoder CodeBySchema(const Form& form, CodeSchema schema);
RowCoder CodeBySteps(StepCode code);

// K or V of a whole cache as a transform and a coder leave it.
struct CodedCache {
  CacheRows rows;              // all tokens, keys turned again, in the type of the cache
  double bytes = 0;            // of all tokens, those in full at 16 bits; without the basis
  double middle_bytes = 0;     // of the coded tokens alone
  uint64_t middle_tokens = 0;  // that are coded
  uint64_t not_finite = 0;     // tokens of the middle that stay in full for their values
  double retained = 0;         // share of the centred energy that is in the basis
  Faults faults;

  uint64_t full_tokens() const { return rows.tokens - middle_tokens; }
  double middle_ratio() const;
  // Tokens of all caches of the model from which on the basis pays for itself; 0: never.
  uint64_t PaysFrom(double basis_bytes) const;
};

// Codes the tokens of the middle; all others stay as they are. Throws as RowsOf does.
CodedCache CodeCache(const Snapshot& snapshot, const TransformSide& side, bool is_key,
                     const ModelRope* rope, TokenRange middle, const RowCoder& coder);

// Throws kInconsistent, naming what differs, unless the transform is of such caches; RoPE counts
// where keys are turned.
void RequireFit(const Transform& transform, const Snapshot& snapshot, const ModelRope* rope);

}  // namespace kv::transform
