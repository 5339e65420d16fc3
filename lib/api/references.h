// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by pack.cc

#include <memory>
#include <span>

#include "formats/registry.h"
#include "lib/api/context.h"

// Immutable, so that any number of contexts may look at it at once.
struct kvt_reference {
  std::shared_ptr<const kv::Reference> reference;
};

namespace kv::api {

// The list of a call. Throws kBadArgument where one is null.
std::span<const kvt_reference* const> Given(const kvt_reference* const* references, size_t count);
// For archives in memory: these are their references, and nothing else is looked for.
OpenOptions WithReferences(std::span<const kvt_reference* const> references);

}  // namespace kv::api
