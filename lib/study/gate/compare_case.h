// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/study/gate/result.h"
#include "lib/study/gate/subject.h"

namespace kv::gate {

// What a case's cache is, whatever is replayed over it: how it differs from its reference and where
// it holds something that is no number. Sets figures and `result.reference`.
void MeasureCache(const Subject& subject, CaseResult& result);

// A case of mode compare: its cache against the reference, which it must have.
CaseResult CompareCase(const CaseSpec& spec, const Subject& subject);

}  // namespace kv::gate
