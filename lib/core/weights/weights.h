// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/error.h"
#include "lib/core/base/file.h"
#include "lib/core/base/tensor.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Weights of the KV compressor: per layer up to four MLPs (K and V of the text and of the image
// segment), each of three nn.Linear blocks, y = x W^T + b. formats/kvcm/FORMAT.md describes the
// file. The values are the order of an MLP's blocks in a .bin, which has no names: never changed.
enum class MlpRole : uint8_t { kTextK = 0, kTextV = 1, kImageK = 2, kImageV = 3 };
inline constexpr size_t kMlpRoles = 4;
inline constexpr uint32_t kSlotsPerMlp = 3;
// Names in checkpoints, in the order that both loaders assume for a .bin.
inline constexpr std::array<std::string_view, kMlpRoles> kMlpPrefixes = {
    "compress_tk", "compress_tv", "compress_ik", "compress_iv"};

// One nn.Linear. The views have the file's own dtype; from a checkpoint they may have any strides.
struct LinearBlock {
  TensorView weight;       // [rows = out_features][cols = in_features]
  TensorView bias;         // as many values as rows, or data == nullptr
  uint64_t offset = 0;     // offset of its 12-byte header in a .bin; 0 elsewhere
  uint32_t bias_flag = 0;  // has_bias as stored

  uint64_t rows() const { return weight.shape[0]; }
  uint64_t cols() const { return weight.shape[1]; }
  bool has_bias() const { return bias.data != nullptr; }
};

// The numbers of a .bin header; for a checkpoint, those that the converter would write.
struct WeightsHeader {
  uint32_t num_layers = 0;
  uint32_t num_heads = 0;    // informative; the converter writes 0
  uint32_t head_dim = 0;     // rows of the first weight, unless given
  uint32_t hidden_size = 0;  // columns of the first weight: head_dim x factor, not the model's
  uint32_t compression_factor = 0;  // tokens per group
  uint32_t min_seq_len = 2;         // fewest *groups* per segment that are compressed, not tokens
  uint32_t blocks_per_layer = 0;    // prefixes x 3
};

struct CompressorWeights {
  Source source;
  std::vector<std::shared_ptr<const FileSource>> spools;  // inflated or byte-swapped data

  std::string format;         // "kvcm", "torch", "safetensors"
  std::string container;      // path of the weights in the file: "model_state_dict/compressor"
  DType dtype = DType::kF16;  // type of all blocks of a .bin; of the first weight of a checkpoint
  WeightsHeader header;
  // Prefix of blocks 3i .. 3i+2 of a layer. A .bin does not name them: this is then the loaders'
  // fixed order, and names_assumed is set.
  std::vector<std::string> prefixes;
  bool names_assumed = false;
  std::vector<uint32_t> slots;      // indices in the checkpoint's Sequential: 0,3,6 or 0,2,5
  std::vector<LinearBlock> blocks;  // layer-major
  Bytes metadata;                   // metadata of a .bin, opaque
  std::vector<Note> notes;

  // Returns block `index` of `layer`, in file order.
  const LinearBlock& Block(uint32_t layer, uint32_t index) const {
    return blocks[size_t{layer} * header.blocks_per_layer + index];
  }
  // Returns the three blocks of one MLP; nullptr if the file has none for that role.
  const LinearBlock* Mlp(uint32_t layer, MlpRole role) const;
  bool Has(MlpRole role) const { return header.num_layers > 0 && Mlp(0, role) != nullptr; }
  bool is_text_only() const { return !Has(MlpRole::kImageK) || !Has(MlpRole::kImageV); }
  // Returns "layer 3 compress_tk slot 6", for messages.
  std::string BlockName(uint32_t layer, uint32_t index) const;
};

// A violation of the format's rules.
struct WeightsFault {
  Finding finding = Finding::kInconsistent;
  std::string field = {};  // such as "num_layers", "layer 0 compress_tk slot 3 cols"
  std::optional<uint64_t> offset = {};
  std::string found = {}, expected = {};
  std::string effect = {};  // how engines react to the fault, if known
  bool fatal = false;       // true: parts after it cannot be read

  Error ToError() const;
};

// Limit on recorded faults: a damaged file can break rules at every block.
inline constexpr size_t kMostFaults = 256;

// A caller's knowledge about the model of the weights; 0: unknown.
struct WeightsExpectation {
  uint32_t layers = 0, head_dim = 0, factor = 0;
};

// Checks the rules that hold in any container: header against shapes, matching widths, equal
// layers.
std::vector<WeightsFault> CheckWeights(const CompressorWeights& weights);
std::vector<WeightsFault> CheckExpectation(const CompressorWeights& weights,
                                           const WeightsExpectation& expected);

// Counts of values that rounding to another type changed, and how.
struct RoundingCounts {
  uint64_t values = 0;
  uint64_t nan = 0;
  uint64_t infinite = 0;    // infinite before and after rounding
  uint64_t overflowed = 0;  // finite before, infinite after
  uint64_t flushed = 0;     // nonzero before, zero after
  uint64_t changed = 0;     // different numbers after rounding

  RoundingCounts& operator+=(const RoundingCounts& other);
};

// Returns the values of `view` in C order as `to` (f32, f16 or bf16), exactly as torch's
// `.to(dtype)` on a CPU: nearest, ties to even; f64 and integers go through f32, so f64 is rounded
// twice. NaN follows torch, too, and differs from lib/core/base/half.h: in f16 sign | 0x7e00, in
// bf16 0xffff (from f16 0x7fc0). The same type is copied bit by bit. Throws kUnsupportedDtype for
// block-quantised and 8-bit floats.
Bytes RoundValues(const TensorView& view, DType to, RoundingCounts* counts = nullptr);

// One compression step on a cache is planned and checked before anything is computed. K and V of a
// layer are cut into an image segment, the first image_len tokens, and a text segment; in each,
// `factor` adjacent tokens of one head become one token, and the remaining tokens are copied after
// the compressed ones of their segment.
//
// StepSettings are the settings as a caller of the engine gives them.
struct StepSettings {
  uint32_t factor = 0;  // tokens per group; 0 or 1: the weights' own
  uint32_t min_seq_len =
      0;  // fewest groups (not tokens) of a segment that is compressed; 0: the weights' own
  uint64_t image_len = 0;                // tokens of the image prefix; clamped
  std::optional<uint64_t> seq_len = {};  // tokens of the cache to compress; clamped; absent: all
};

enum class RawReason : uint8_t { kNone, kFewGroups, kNoImageWeights };

struct Segment {
  uint64_t begin = 0, tokens = 0;  // in the cache
  uint64_t groups = 0;             // number of compressed groups; 0: the segment stays raw
  MlpRole k_role = MlpRole::kTextK, v_role = MlpRole::kTextV;
  RawReason raw_reason = RawReason::kNone;

  // Returns the number of tokens that are copied unchanged, after the groups.
  uint64_t tail(uint32_t factor) const { return tokens - groups * factor; }
  uint64_t new_length(uint32_t factor) const { return groups + tail(factor); }
};

struct StepPlan {
  uint32_t factor = 0;
  uint32_t min_seq_len = 0;
  bool factor_from_weights = false, min_seq_len_from_weights = false;
  uint64_t tokens = 0;     // tokens of the cache, after clamping
  uint64_t image_len = 0;  // after clamping
  Segment image, text;
  uint64_t new_length = 0;
  size_t layers = 0;
  uint64_t bytes_before = 0, bytes_after = 0;  // K and V of all layers; before: of `tokens`
  uint64_t flop = 0;

  std::array<Segment, 2> segments() const { return {image, text}; }
  // Returns, for each token of the result in order, the tokens that it represents.
  std::vector<TokenRange> Sources() const;
};

// Returns the length of one segment after the step.
uint64_t CompressedLength(uint64_t tokens, uint32_t factor, uint64_t min_groups);

// Checks everything that could fail: layers and their lengths, MLPs and their widths, the factor
// against shapes, head sizes, dtypes. Throws an Error that names the mismatch; afterwards the step
// cannot fail.
StepPlan PlanStep(const Snapshot& snapshot, const CompressorWeights& weights,
                  const StepSettings& settings);

}  // namespace kv
