// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "lib/core/base/error.h"

namespace kv {

// Who runs commands inside a program of its own gets here what they would print.
class Embedding {
 public:
  virtual ~Embedding() = default;
  virtual void Document(const nlohmann::ordered_json& document) = 0;
  virtual void Warning(const std::string& text) = 0;
  virtual void Failure(const Error& error) = 0;
  // Bytes of work; any thread. May throw kCancelled.
  virtual void Progress(uint64_t done, uint64_t total) = 0;
};

}  // namespace kv
