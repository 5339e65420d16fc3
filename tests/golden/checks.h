// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "tests/golden/golden.h"

namespace kv::golden {

// The checks that rows of the table name, each in the file of its area.
void CheckMnnCodec(Run& run);
void CheckLlamaFiles(Run& run);
void CheckLlamaBad(Run& run);

}  // namespace kv::golden
