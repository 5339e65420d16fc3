// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/study/gate/result.h"
#include "lib/study/gate/summary_view.h"

namespace kv::mnn {

// The row that MNN's suite writes of a case, with our figures; null: not measured.
gate::Json RowOf(const gate::CaseResult& result, const gate::OutputNames& outputs);
// A row that MNN's suite wrote. It keeps no rules; those that its figures show are made anew.
gate::CaseView ReadRow(const gate::Json& row);

}  // namespace kv::mnn
