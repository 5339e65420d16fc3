// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <benchmark/benchmark.h>

BENCHMARK_MAIN();
