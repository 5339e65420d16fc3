// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "lib/core/archive/approximate.h"

namespace kv {

// --transform and --ratio of compress: archives of values that a learnt transform approximates.
class LossyFlags {
 public:
  void Declare(CommandLine& line);
  void Files(CommandFiles& files) const { files.Reads(file_); }
  bool is_wanted() const { return !file_.empty(); }
  // Throws kUsage if only one of --transform and --ratio is given, or another flag excludes them.
  void Check(Effort level, const OpenOptions& options) const;

  struct Result {
    Source source;  // with approximated values
    Snapshot snapshot;
    std::shared_ptr<const TransformedChunks> chunks;
    std::vector<std::string> warnings;
  };
  // Approximates K and V of a source. Throws kUsage if the transform was learnt from this very
  // cache without --allow-self, or has no tables for the ratio; kInconsistent if it belongs to
  // other caches; kUnsupportedLayout if the source cannot hold other values.
  Result Approximate(const Source& source, const Snapshot& snapshot, const OpenOptions& options,
                     ThreadPool& pool) const;

 private:
  std::string file_;
  double ratio_ = 0;
  bool allow_self_ = false;
  RopeOptions rope_;
};

}  // namespace kv
