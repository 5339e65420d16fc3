// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/study/gate/result.h"
#include "lib/study/gate/subject.h"

namespace kv::gate {

// Sets the figures quant.*: what the types of the case's "quant" would cost its cache. Needs
// queries.
void MeasureQuant(const Subject& subject, CaseResult& result);

// Runs a case of mode quant: nothing but that.
CaseResult QuantCase(const CaseSpec& spec, const Subject& subject);

}  // namespace kv::gate
