// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/core/base/dtype.h"
#include "lib/core/base/file.h"

namespace kv {

// The tokens [begin, end) of a cache.
struct TokenRange {
  uint64_t begin = 0, end = 0;
  bool operator==(const TokenRange&) const = default;
};

// The sequences of a cell. Caches have millions of cells, nearly all of one sequence, so a single
// id takes 16 bytes and no allocation.
class SequenceIds {
 public:
  SequenceIds() = default;
  SequenceIds(std::initializer_list<int32_t> ids) { Assign({ids.begin(), ids.size()}); }
  explicit SequenceIds(std::span<const int32_t> ids) { Assign(ids); }
  SequenceIds(const SequenceIds& other) { Assign(other.ids()); }
  SequenceIds(SequenceIds&& other) noexcept
      : many_(std::move(other.many_)), one_(other.one_), size_(std::exchange(other.size_, 0)) {}
  SequenceIds& operator=(SequenceIds other) noexcept {
    many_ = std::move(other.many_);
    one_ = other.one_;
    size_ = other.size_;
    return *this;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const int32_t* begin() const { return size_ > 1 ? many_.get() : &one_; }
  const int32_t* end() const { return begin() + size_; }
  std::span<const int32_t> ids() const { return {begin(), size_}; }
  void push_back(int32_t id) {
    if (size_ > 0 && std::has_single_bit(size_)) Reserve(size_ + 1);
    (size_ == 0 ? one_ : many_[size_]) = id;
    ++size_;
  }

  bool operator==(const SequenceIds& other) const { return *this == other.ids(); }
  bool operator==(std::span<const int32_t> other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  void Assign(std::span<const int32_t> ids) {
    if (ids.size() > 1) Reserve(static_cast<uint32_t>(ids.size()));
    std::copy(ids.begin(), ids.end(), ids.size() > 1 ? many_.get() : &one_);
    size_ = static_cast<uint32_t>(ids.size());
  }
  // Moves the ids to an array whose capacity is a power of two, so size_ tells when it is full.
  void Reserve(uint32_t count) {
    std::unique_ptr<int32_t[]> many(new int32_t[std::bit_ceil(count)]);
    std::copy(begin(), end(), many.get());
    many_ = std::move(many);
  }

  std::unique_ptr<int32_t[]> many_;  // used for more than one value
  int32_t one_ = 0;
  uint32_t size_ = 0;
};

// Byte distance along one logical axis, in up to two levels: index i lies at (i / group) *
// group_step + (i % group) * step. A plain stride has group = UINT64_MAX; packed engine layouts
// (tiles of tokens or dims) use both levels.
struct AxisStride {
  uint64_t step = 0;
  uint64_t group = UINT64_MAX;
  uint64_t group_step = 0;

  uint64_t Offset(uint64_t i) const {
    return group == UINT64_MAX ? i * step : (i / group) * group_step + (i % group) * step;
  }
  bool operator==(const AxisStride&) const = default;
};

// A run of consecutive tokens of one tensor, wherever an engine stored them. `dim` counts storage
// units: single elements, or whole blocks for block-quantised types.
struct StridedPiece {
  const std::byte* data = nullptr;  // unit (first token, head 0, dim 0)
  uint64_t tokens = 0;
  AxisStride token = {}, head = {}, dim = {};
};

// K or V of one layer, logically [token][kv head][head dim], read through views that own nothing.
struct KvTensor {
  DType dtype = DType::kF16;
  // Channels = kv heads x head dim. If the file does not tell how they divide (llama.cpp), the
  // whole row is one head of `channels` and heads_known is false.
  uint32_t heads = 0;
  uint32_t head_dim = 0;
  bool heads_known = true;
  std::vector<StridedPiece> pieces = {};  // in token order

  uint64_t channels() const { return uint64_t{heads} * head_dim; }
  uint64_t tokens() const;
  uint64_t bytes() const;           // bytes of the logical values, without padding
  uint64_t row_bytes() const;       // one token, all heads
  uint64_t units_per_head() const;  // head_dim, or blocks of it
  uint32_t unit_bytes() const { return Info(dtype).block_bytes; }
};

struct LayerKv {
  uint32_t index = 0;      // number in the file; llama.cpp: index among stored layers
  std::string label = {};  // the file's own name, if any ("model.layers.0.self_attn.attn")
  std::string group = {};  // the layer's cache, if there are several ("full", "swa")
  KvTensor k = {};
  std::optional<KvTensor> v = {};  // absent in latent-attention caches

  // A part of a snapshot (--kv v) may omit K: it then has no pieces.
  bool has_k() const { return !k.pieces.empty(); }
  // Returns the bytes of one token's row of K and V.
  uint64_t row_bytes() const { return k.row_bytes() + (v ? v->row_bytes() : 0); }
};

// Returns the model's number of a layer. Files that store only some layers count them from 0; a
// model file then labels each with its own number ("blk.7").
uint32_t ModelNumber(const LayerKv& layer);

// Bytes of a source file that are elements of one type in an order that pieces cannot express:
// packed tiles with their padding, interleaved layers. Pieces may lie inside.
struct StoredRange {
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
  DType dtype = DType::kF16;
};

// One row of the cache, if the file records it.
struct Cell {
  int64_t position = 0;
  uint32_t stream = 0;
  SequenceIds sequences = {};
};

// The cells of one cache, which the layers of a group share.
struct CellGroup {
  std::string group = {};
  uint32_t streams = 1;
  std::vector<Cell> cells;
  // Further engine data per cell, in its own form: llama.cpp's second and third position of M-RoPE
  // models. [cell][extension_words]; empty if there is none.
  uint32_t extension_words = 0;
  std::vector<int32_t> extensions = {};
};

// The values of both enums are stored in .kvz archives: never changed, never reused.
enum class KeyRotation { kUnknown = 0, kUnrotated = 1, kRotated = 2 };  // RoPE
enum class HadamardState { kUnknown = 0, kNo = 1, kYes = 2 };  // llama.cpp, quantised caches

// A choice or finding of a reader that the user should know.
struct Note {
  std::string text;
  bool is_warning = true;
};

// A KV cache read from a file or folder, metadata first: opening reads only headers; tensor bytes
// are mapped, and read when a view is walked.
struct Snapshot {
  Source source;
  std::vector<std::shared_ptr<const FileSource>> spools;  // inflated members, kept alive

  std::string format;          // registry id: "llama-state"
  std::string format_version;  // as the file states it: "SEQ 3, layout E"
  std::string engine;          // "llama.cpp"
  std::string model;           // architecture or model name, if known
  // size of an archive's restored source; 0 if the source is not an archive
  uint64_t unpacked_bytes = 0;
  std::vector<LayerKv> layers;
  std::vector<StoredRange> stored;
  std::vector<CellGroup> cell_groups;  // empty if the file has no cell records
  std::vector<int32_t> tokens;         // token ids stored in the file, if any
  KeyRotation key_rotation = KeyRotation::kUnknown;
  HadamardState k_hadamard = HadamardState::kUnknown, v_hadamard = HadamardState::kUnknown;
  std::vector<Note> notes;
  // Format-specific facts for `inspect`: {"layout", "E"}, in the order to print.
  std::vector<std::pair<std::string, std::string>> facts;
  // Properties of the source, or of the file to write, that values do not show, in words common to
  // all formats: {"v_order", "transposed"}, {"version", "b6122"}. Only writers of such formats need
  // them.
  std::map<std::string, std::string> storage;
  // Throw if stored content is damaged (CRC of zip members). Opening does not run them, because
  // they read everything; code that passes values on runs them with CheckContent.
  std::vector<std::function<void()>> checks;

  void CheckContent() const;
  bool heads_known() const;
  uint64_t kv_bytes() const;
  const LayerKv* Find(uint32_t layer) const;
};

// Returns "model llama, 5 layers of 4 kv heads x 8 in f16, 192 tokens", for captions. Without
// `model`, the name is the snapshot's own.
std::string ShapeText(const Snapshot& snapshot, const std::string& model = {});

// Heads and head sizes from options or a model file, for formats that only store rows.
struct ModelGeometry {
  std::string source;                      // origin of the values: "--kv-heads", "model.gguf"
  std::shared_ptr<const FileSource> file;  // kept open, because a pipe can be read only once
  std::string architecture;
  struct Layer {
    uint32_t kv_heads = 0, k_dim = 0, v_dim = 0;  // 0 = unknown
    bool has_kv = true;                           // false: recurrent, or uses another layer's cache
    bool sliding = false;
    // Latent attention (MLA): a K row of exactly this width is one vector for all heads.
    uint32_t latent_dim = 0;
  };
  std::vector<Layer> layers;  // empty if only the uniform values are known
  Layer uniform;              // from --kv-heads / --head-dim
  uint32_t query_heads = 0;   // query heads of the first layer with a cache; 0 = unknown
  double rope_base = 0;       // 0 = unknown
  uint32_t rope_dims = 0;
  std::string rope_style;  // "neox" (pairs i, i+d/2), "gptj" (pairs 2i, 2i+1) or empty
};

// Divides the rows of every layer into heads; tensors whose heads are known stay unchanged, so a
// second call has no effect. One of kv_heads and head_dim gives the other; if neither is known rows
// stay whole. With per-layer geometry, layers are labelled with the model's own numbers ("blk.7")
// and matched cache by cache: sliding-window layers to the group "swa". Throws kInconsistent if
// layer counts differ or heads do not divide a row.
void ApplyGeometry(const ModelGeometry& geometry, Snapshot& snapshot);

// Throws kGeometryMissing, naming the options, unless every layer's heads are known.
void RequireHeads(const Snapshot& snapshot, std::string_view what_for);

// Keys in Snapshot::storage, which travel through archives.
inline constexpr const char* kBatchRows = "batch_rows";  // number of rows; absent for one sequence
inline constexpr const char* kAxesGuessed =
    "axes_guessed";  // set if the axis that counts tokens is a guess

// Returns the number of sequences of equal length that follow each other in every tensor. Throws
// kBadField if the recorded number does not divide the tensors.
uint64_t BatchRows(const Snapshot& snapshot);

}  // namespace kv
