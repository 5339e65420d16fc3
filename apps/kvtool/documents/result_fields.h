// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by the cmd_*.cc files

#include "lib/fields/fields.h"

// The fields of each command's result, from which its schema is made.
namespace kv {

const FieldTable& BenchFields();
const FieldTable& CompressFields();
const FieldTable& ConvertFields();
const FieldTable& CorpusCheckFields();
const FieldTable& DecompressFields();
const FieldTable& DiffFields();
const FieldTable& DoctorFields();
const FieldTable& FailureFields();
const FieldTable& FormatsFields();
const FieldTable& FrameFields();
const FieldTable& PlanCheckFields();
const FieldTable& StoreAddFields();
const FieldTable& StoreGcFields();
const FieldTable& StoreGetFields();
const FieldTable& StoreListFields();
const FieldTable& StorePruneFields();
const FieldTable& StoreStatsFields();
const FieldTable& StoreVerifyFields();
const FieldTable& TargetsFields();
const FieldTable& TrainFields();
const FieldTable& VerifyFields();
const FieldTable& VersionFields();

}  // namespace kv
