// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/program.h"

// Nothing is caught out here: what escapes reaches the handler of terminate.
int main(int argc, char** argv) { return kv::RunProgram(argc, argv); }
