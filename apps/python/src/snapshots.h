// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "apps/python/src/errors.h"
#include "formats/registry.h"
#include "lib/core/archive/archive.h"

// Snapshots for Python: metadata at once, values as arrays on demand.
namespace kvtool_python {

class OpenedSnapshot {
 public:
  // `arguments` (bytes) are a path and options, as after `kvtool inspect`; `dtype` is "" or the
  // type that values are converted to.
  static std::unique_ptr<OpenedSnapshot> Open(nb::handle arguments, const std::string& dtype);

  // Returns the document of `kvtool inspect --json`, without its header.
  std::string Description() const;
  nb::dict Facts() const;
  // Returns (index, label, group, K, V or None); a tensor is (dtype, tokens, heads, head_dim,
  // heads_known).
  nb::list Layers() const;
  // Returns (group, positions) for every cache of the file.
  nb::list Positions() const;
  nb::list Tokens() const;
  // Returns (array, dtype, is_view): [token][head][dim], of unsigned integers if NumPy has no such
  // type, of bytes for block types. A view keeps the file mapped.
  nb::tuple Array(size_t layer, bool is_value);

 private:
  // The layer with its values, and the object that owns them. The hashes of stored content have
  // been checked. Without the GIL.
  struct LayerValues {
    std::shared_ptr<const kv::Snapshot> snapshot;
    const kv::LayerKv* layer = nullptr;
  };
  LayerValues Values(size_t layer);
  // Returns the layer alone, from an archive or converted.
  kv::Snapshot LoadLayer(const kv::LayerKv& wanted);

  kv::OpenOptions options_;
  kv::Source source_;
  std::string dtype_;
  std::shared_ptr<const kv::Snapshot> metadata_;
  std::mutex mutex_;  // guards those below
  bool checked_ = false;
  std::map<size_t, LayerValues> loaded_;
  std::optional<kv::Archive> archive_;  // with its references, once values were requested
};

// Classes and functions that apps/python/kvtool/_files.py and _snapshot.py wrap.
void BindFiles(nb::module_& m);

}  // namespace kvtool_python
