// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/study/gate/result.h"
#include "lib/study/gate/subject.h"

namespace kv::gate {

// Measures a case's cache as it is, apart from any replay: how it differs from its reference, and
// where it holds values that are no numbers. Sets figures and `result.reference`.
void MeasureCache(const Subject& subject, CaseResult& result);

// Runs a case of mode compare: measures its cache against the reference, which it must have.
CaseResult CompareCase(const CaseSpec& spec, const Subject& subject);

}  // namespace kv::gate
