// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

// Included by the file of every command.
#include "apps/kvtool/command.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/inputs/each_command.h"
#include "apps/kvtool/inputs/run_input.h"

namespace kv {

// One function per command file, named after the command.
std::unique_ptr<Command> MakeAdvise();
std::unique_ptr<Command> MakeAnalyze();
std::unique_ptr<Command> MakeBench();
std::unique_ptr<Command> MakeCompletion();
std::unique_ptr<Command> MakeCompress();
std::unique_ptr<Command> MakeConvert();
std::unique_ptr<Command> MakeCorpus();
std::unique_ptr<Command> MakeDecompress();
std::unique_ptr<Command> MakeDiff();
std::unique_ptr<Command> MakeDoctor();
std::unique_ptr<Command> MakeExplain();
std::unique_ptr<Command> MakeFormats();
std::unique_ptr<Command> MakeFrame();
std::unique_ptr<Command> MakeGate();
std::unique_ptr<Command> MakeInspect();
std::unique_ptr<Command> MakeMan();
std::unique_ptr<Command> MakeMerge();
std::unique_ptr<Command> MakePlan();
std::unique_ptr<Command> MakeReplayBlend();
std::unique_ptr<Command> MakeReplayH2o();
std::unique_ptr<Command> MakeReplayLossless();
std::unique_ptr<Command> MakeReplayMlp();
std::unique_ptr<Command> MakeReplayQuant();
std::unique_ptr<Command> MakeReport();
std::unique_ptr<Command> MakeSchema();
std::unique_ptr<Command> MakeStore();
std::unique_ptr<Command> MakeTargets();
std::unique_ptr<Command> MakeTrace();
std::unique_ptr<Command> MakeTrain();
std::unique_ptr<Command> MakeVerify();
std::unique_ptr<Command> MakeWeights();

}  // namespace kv
