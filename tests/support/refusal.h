// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <catch2/catch.hpp>

#include "lib/core/base/error.h"

namespace kv::test {

// Returns the finding with which `body` refuses its input. The test fails if `body` accepts it.
template <typename Body>
Finding FindingOf(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.finding();
  }
  FAIL("the input was accepted");
  return Finding::kInternal;
}

}  // namespace kv::test
