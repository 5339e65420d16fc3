// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <fmt/format.h>

#include <string>

#include "lib/api/context.h"
#include "lib/core/base/file.h"

// The caller's functions as kvtool's own types.
namespace kv::api {

inline const kvt_sink& CheckedSink(const kvt_sink* sink) {
  Require(sink != nullptr && sink->struct_size == sizeof *sink, "sink->struct_size");
  Require(sink->reserved == 0 && sink->write != nullptr, "sink");
  return *sink;
}

class CallbackSink : public Sink {
 public:
  explicit CallbackSink(const kvt_sink& sink) : sink_(sink) {}
  void Write(ByteSpan bytes) override {
    if (bytes.empty()) return;
    if (const kvt_status status = sink_.write(sink_.user, bytes.data(), bytes.size())) {
      throw CallbackFailure{status};
    }
  }

 private:
  const kvt_sink sink_;
};

// The name of a tensor in the files that kvtool writes.
inline std::string PartName(uint32_t layer, bool is_value) {
  return fmt::format("{}_{}", is_value ? 'v' : 'k', layer);
}

}  // namespace kv::api
