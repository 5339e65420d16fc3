// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "tests/golden/golden.h"

namespace kv::golden {

// The checks that the table's rows name, each in the file of its area.
void CheckMnnCodec(Run& run);
void CheckLlamaFiles(Run& run);
void CheckLlamaBad(Run& run);
void CheckTorchFiles(Run& run);
void CheckTorchBad(Run& run);
void CheckWeightFiles(Run& run);
void CheckWeightCases(Run& run);
void CheckWeightConversions(Run& run);
void CheckMlpStep(Run& run);
void CheckMlpDump(Run& run);

// Returns true for a case of `bin_cases` whose file the engine's C++ code (csrc) loaded, but whose
// step then failed with an error of its own.
bool ThrewInStep(const nlohmann::json& item);

}  // namespace kv::golden
