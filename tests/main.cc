// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <unistd.h>

#include <cstdio>

#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

// Test data has paths relative to the top of the tree, wherever a test program is started.
int main(int argc, char** argv) {
  if (::chdir(KVTOOL_SOURCE) != 0) {
    std::perror(KVTOOL_SOURCE);
    return 1;
  }
  return Catch::Session().run(argc, argv);
}
