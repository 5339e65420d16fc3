// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Cache types that code K and V by a learnt transform.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "apps/kvtool/documents/document_fields.h"
#include "lib/fields/fields.h"
#include "lib/study/quantisation/types/cache_type.h"
#include "lib/study/transform/coded_cache.h"

namespace kv {

// K or V of a cache in a type such as kvtc:8.
struct TransformedSide {
  std::string name;
  bool is_key = true;
  transform::CodedCache coded;  // without its rows
  quant::WholeSide whole;
  quant::CacheType type;
  double basis_bytes = 0;  // bytes of the basis of K or V
};

// Identifies a transform in documents, and each type that was made with it.
struct TransformUse {
  HashedFile file;
  const Transform* transform = nullptr;
  bool is_self = false;  // true: learnt from the same cache that it is tested on
  uint64_t first_full = 0, last_full = 0;
  struct Type {
    const TransformedSide* side;
  };
  std::vector<Type> types;
};
const Fields<TransformUse>& TransformUseFields();

// --transform, and the types of --k and --v that need it.
class TransformTypes {
 public:
  void Declare(CommandLine& line);
  const std::string& file() const { return file_; }

  // Reads the transform if one is named. Throws kUsage if it was learnt from this very cache
  // without --allow-self, kInconsistent if it belongs to other caches.
  void Open(const Snapshot& snapshot, const ModelRope* rope);
  // Codes the middle of the prompt; `keep_first` and `keep_last` replace the transform's own
  // numbers if one is given. Returns null for names of other types.
  const quant::CacheType* Make(const std::string& name, bool is_key, uint64_t prompt,
                               uint64_t keep_first, uint64_t keep_last);

  std::optional<TransformUse> Use() const;
  std::vector<std::string> Warnings() const;
  std::string Text() const;  // a line for each type; "" without types

 private:
  std::string file_, fp8_ = "sm89", worker_ = "tp_0_pp_0";
  const Snapshot* snapshot_ = nullptr;
  const ModelRope* rope_ = nullptr;
  std::optional<Transform> transform_;
  HashedFile hashed_;
  bool allow_self_ = false, is_self_ = false;
  uint64_t first_ = 0, last_ = 0;
  std::deque<TransformedSide> sides_;  // types point to them
};

}  // namespace kv
