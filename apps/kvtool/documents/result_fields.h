// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by the cmd_*.cc files

#include "lib/fields/fields.h"

// The fields of each command's result, from which its schema is made.
namespace kv {

const FieldTable& AdviseFields();
const FieldTable& DecompressFields();
const FieldTable& ReplayBlendFields();
const FieldTable& ReplayH2oEventFields();  // of a line of --jsonl-out
const FieldTable& ReplayH2oFields();
const FieldTable& ReplayQuantFields();
const FieldTable& ReplayQuantOriginFields();  // with --against
const FieldTable& VerifyFields();

}  // namespace kv
