// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "lib/core/archive/approximate.h"

namespace kv {

// --transform with --ratio or --loss of compress: archives of values that a learnt transform
// approximates.
class LossyFlags {
 public:
  void Declare(CommandLine& line);
  void Files(CommandFiles& files) const { files.Reads(file_); }
  bool is_wanted() const { return !file_.empty(); }
  // Throws kUsage for --transform without one of --ratio and --loss, for these without --transform,
  // or if another flag excludes them.
  void Check(Effort level, const OpenOptions& options) const;

  // The file of --transform.
  struct Given {
    std::shared_ptr<const Transform> transform;
    Hash128Bytes hash = {};
  };
  Given Read() const;
  // Returns options with the transform's heads, for a cache that does not record its own.
  static OpenOptions WithHeads(const Given& given, const OpenOptions& options);

  struct Result {
    Source source;  // with approximated values
    Snapshot snapshot;
    std::shared_ptr<const TransformedChunks> chunks;
    std::vector<std::string> warnings;
  };
  // Approximates K and V of a source. Keys are rotated as the options or the model say, otherwise
  // as those that the transform was learnt from. Throws kUsage if the transform was learnt from
  // this very cache without --allow-self, has no tables for the ratio, no weights for --loss, or no
  // ratio with so small a loss; kInconsistent if it belongs to other caches; kUnsupportedLayout if
  // the source cannot hold other values.
  Result Approximate(const Given& given, const Source& source, const Snapshot& snapshot,
                     const OpenOptions& options, ThreadPool& pool) const;

 private:
  // Approximates by --ratio, or by the largest ratio whose expected loss --loss allows.
  ApproximatedSource Choose(const Source& source, const Snapshot& snapshot,
                            const std::shared_ptr<const Transform>& transform,
                            const Approximation& wanted, ThreadPool& pool) const;

  std::string file_;
  double ratio_ = 0, nats_ = 0;
  bool allow_self_ = false;
  RopeOptions rope_;
};

}  // namespace kv
