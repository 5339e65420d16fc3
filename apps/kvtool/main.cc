// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/program.h"

// RunProgram reports every error; an exception that escapes it is a bug and reaches the terminate
// handler.
int main(int argc, char** argv) { return kv::RunProgram(argc, argv); }
