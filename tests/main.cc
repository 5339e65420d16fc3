// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
