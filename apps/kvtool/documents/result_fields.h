// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by the cmd_*.cc files

#include "lib/fields/fields.h"

// The fields of each command's result, from which its schema is made.
namespace kv {

const FieldTable& AdviseFields();
const FieldTable& AdviseStatesFields();  // without a run
const FieldTable& AnalyzeFields();
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
const FieldTable& GateFields();
const FieldTable& InspectFields();
const FieldTable& MergeFields();
const FieldTable& PlanCheckFields();
const FieldTable& ReplayBlendFields();
const FieldTable& ReplayH2oEventFields();  // a line of --jsonl-out
const FieldTable& ReplayH2oFields();
const FieldTable& ReplayLosslessEventFields();
const FieldTable& ReplayLosslessFields();
const FieldTable& ReplayMlpFields();
const FieldTable& ReplayQuantFields();
const FieldTable& ReplayQuantOriginFields();  // with --against
const FieldTable& StoreAddFields();
const FieldTable& StoreGcFields();
const FieldTable& StoreGetFields();
const FieldTable& StoreListFields();
const FieldTable& StorePruneFields();
const FieldTable& StoreRemoveFields();
const FieldTable& StoreStatsFields();
const FieldTable& StoreVerifyFields();
const FieldTable& TargetsFields();
const FieldTable& TraceFields();
const FieldTable& TrainFields();
const FieldTable& VerifyFields();
const FieldTable& VersionFields();
const FieldTable& WeightsConvertFields();
const FieldTable& WeightsDiffFields();
const FieldTable& WeightsInspectFields();
const FieldTable& WeightsVerifyFields();

}  // namespace kv
