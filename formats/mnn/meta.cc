// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads and writes the meta files of MNN's dumps, and describes packed tiles as strided views.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/mnn/mnn.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/json.h"

namespace kv::mnn {

namespace {

using Json = nlohmann::json;

// Sizes and counts are `int` in the engine.
constexpr uint64_t kMaxInt = std::numeric_limits<int32_t>::max();

Json ParseObject(ByteSpan bytes) {
  JsonMistake mistake;
  Json json = ReadJson(AsText(bytes), {.bytes = kMaxMetaBytes, .unique_keys = true}, &mistake);
  if (json.is_discarded()) {
    switch (mistake.kind) {
      case JsonMistake::Kind::kSyntax:
        throw Error(Finding::kBadText, "not valid JSON").At(mistake.at == 0 ? 0 : mistake.at - 1);
      case JsonMistake::Kind::kRange:
        throw Error(Finding::kBadText, "a number of the JSON document is out of range");
      case JsonMistake::Kind::kTwice:
        throw Error(Finding::kBadText, "key '{}' occurs twice", Escaped(mistake.text, 40));
    }
  }
  if (!json.is_object()) throw Error(Finding::kBadText, "expected a JSON object");
  return json;
}

// Typed access to the members of one meta file; each error names the key.
class Fields {
 public:
  explicit Fields(const Json& json) : json_(json) {}

  bool Has(const char* key) const { return json_.contains(key); }

  uint64_t Count(const char* key, uint64_t least, uint64_t most = kMaxInt) const {
    const Json& value = Need(key);
    if (!value.is_number_integer()) throw WrongType(key, "an integer");
    // nlohmann stores all integers as unsigned, except negative ones.
    if (!value.is_number_unsigned() || value.get<uint64_t>() < least ||
        value.get<uint64_t>() > most) {
      throw Error(Finding::kBadField, "{} {} is not in {}..{}", key, ShowJson(value), least, most);
    }
    return value.get<uint64_t>();
  }
  // Reads a number that the engine computes in `int`, which may be zero or negative.
  int64_t Signed(const char* key) const {
    const Json& value = Need(key);
    if (!value.is_number_integer()) throw WrongType(key, "an integer");
    return value.get<int64_t>();
  }
  std::string Text(const char* key) const {
    const Json& value = Need(key);
    if (!value.is_string()) throw WrongType(key, "a string");
    return value.get<std::string>();
  }
  std::string TextOr(const char* key, std::string otherwise) const {
    return Has(key) ? Text(key) : otherwise;
  }
  bool Flag(const char* key) const {
    if (!Has(key)) return false;
    if (!json_[key].is_boolean()) throw WrongType(key, "true or false");
    return json_[key].get<bool>();
  }
  void ExpectCount(const char* key, uint64_t expected, const char* because) const {
    if (!Has(key)) return;
    const uint64_t found = Count(key, 0, std::numeric_limits<uint64_t>::max());
    if (found != expected) {
      throw Error(Finding::kInconsistent, "{} is {}, expected {} ({})", key, found, expected,
                  because);
    }
  }

 private:
  const Json& Need(const char* key) const {
    const auto at = json_.find(key);
    if (at == json_.end()) {
      throw Error(Finding::kBadField, "required key '{}' is missing", key);
    }
    return *at;
  }
  static Error WrongType(const char* key, const char* expected) {
    return {Finding::kBadText, fmt::format("{} is not {}", key, expected)};
  }

  const Json& json_;
};

std::string FileName(const Fields& fields, const char* key) {
  std::string name = fields.Text(key);
  if (!IsSafeRelativePath(name) || name.find('/') != name.npos) {
    throw Error(Finding::kUnsafeName, "{} '{}' is not a plain file name", key, Escaped(name));
  }
  return name;
}

DType ReadDType(const Fields& fields) {
  const uint64_t bytes = fields.Count("bytes_per_elem", 1);
  if (bytes != 2 && bytes != 4) {
    throw Error(Finding::kBadField, "bytes_per_elem is {}, expected 2 or 4", bytes);
  }
  const std::string_view expected = bytes == 2 ? "fp16" : "fp32";
  const std::string word = fields.TextOr("dtype", std::string(expected));
  if (word != expected) {
    throw Error(Finding::kInconsistent, "dtype is '{}', but bytes_per_elem {} means {}",
                Escaped(word, 40), bytes, expected);
  }
  return bytes == 2 ? DType::kF16 : DType::kF32;
}

void ReadLogical(const Fields& fields, DumpMeta& meta) {
  meta.begin = fields.Count("seq_start", 0);
  meta.tokens = fields.Count("seq_len", 1);
  meta.added = fields.Has("add") ? fields.Count("add", meta.tokens) : meta.tokens;
  meta.quantised_cache = fields.Flag("quant_key") || fields.Flag("quant_value");
  fields.ExpectCount("seq_end_exclusive", meta.end(), "seq_start + seq_len");
  CheckedMul(meta.tokens, CheckedProduct({meta.kv_heads, meta.head_dim, 4}, "rows"), "rows");
}

// Computes `used` as the engine does, but at most the memory of one head.
uint64_t HeadBytes(const Fields& fields, const char* used_key, const char* stride_key,
                   uint64_t elements, uint64_t last_index, uint64_t unit) {
  const uint64_t whole = CheckedMul(elements, unit, used_key);
  const uint64_t stride = fields.Count(stride_key, 1, std::numeric_limits<int64_t>::max());
  const uint64_t used = fields.Count(used_key, 1, std::numeric_limits<int64_t>::max());
  if (used != std::min(whole, stride)) {
    throw Error(Finding::kSizeMismatch, "{} is {}, but the pack sizes make it {}", used_key, used,
                std::min(whole, stride));
  }
  if (last_index >= used / unit) {
    throw Error(Finding::kSizeMismatch, "{} {} is too small for the tokens used", stride_key,
                stride);
  }
  return used;
}

void ReadPacked(const Fields& fields, DumpMeta& meta) {
  meta.is_packed = true;
  meta.tokens = meta.added = fields.Count("used_seq_len", 1);
  const uint64_t capacity = fields.Count("max_seq_len", 0);
  const int64_t flash = fields.Signed("flash_upper_kv");
  // Without flash attention the engine, too, takes the capacity as the size of a block.
  const uint64_t block = flash > 0      ? static_cast<uint64_t>(flash)
                         : capacity > 0 ? capacity
                                        : meta.tokens;
  if (block > kMaxInt) {
    throw Error(Finding::kBadField, "flash_upper_kv {} is too large", block);
  }
  meta.pack = {.tokens = meta.tokens,
               .head_dim = meta.head_dim,
               .pack_h = fields.Count("pack_h", 1),
               .pack_l = fields.Count("pack_l", 1),
               .flash_block = block};
  const PackGeometry& pack = meta.pack;
  const uint64_t unit = Info(meta.dtype).block_bytes;
  const uint64_t keys = KeyElements(pack), values = ValueElements(pack);
  meta.key_head_bytes = HeadBytes(fields, "key_used_bytes", "key_stride_bytes", keys,
                                  KeyIndex(pack, pack.tokens - 1, pack.head_dim - 1), unit);
  meta.value_head_bytes = HeadBytes(fields, "value_used_bytes", "value_stride_bytes", values,
                                    ValueIndex(pack, pack.tokens - 1, pack.head_dim - 1), unit);
  CheckedMul(meta.kv_heads, meta.key_head_bytes, "packed keys");
  CheckedMul(meta.kv_heads, meta.value_head_bytes, "packed values");
}

}  // namespace

uint64_t DumpMeta::k_bytes() const {
  return kv_heads * (is_packed ? key_head_bytes : tokens * head_dim * Info(dtype).block_bytes);
}

uint64_t DumpMeta::v_bytes() const {
  return kv_heads * (is_packed ? value_head_bytes : tokens * head_dim * Info(dtype).block_bytes);
}

bool LooksLikeMeta(ByteSpan bytes) {
  if (bytes.size() > kMaxMetaBytes) return false;
  const std::string_view text = AsText(bytes);
  if (!Trimmed(text).starts_with('{')) return false;
  try {
    const Json json = ReadJson(text, {.bytes = kMaxMetaBytes});
    if (!json.is_object()) return false;
    for (const char* key : {"layer_id", "kv_heads", "head_dim", "bytes_per_elem", "k_file"}) {
      if (!json.contains(key)) return false;
    }
    return json.contains("seq_len") || json.contains("used_seq_len");
  } catch (const Error&) {
    return false;  // the JSON is too deeply nested for a metadata file
  }
}

DumpMeta ParseMeta(ByteSpan bytes) {
  if (bytes.size() > kMaxMetaBytes) {
    throw Error(Finding::kLimit, "a meta of {} bytes; at most {} are read", bytes.size(),
                kMaxMetaBytes);
  }
  const Json json = ParseObject(bytes);
  const Fields fields(json);
  DumpMeta meta;
  meta.layer = static_cast<uint32_t>(fields.Count("layer_id", 0));
  meta.kv_heads = static_cast<uint32_t>(fields.Count("kv_heads", 1));
  meta.head_dim = static_cast<uint32_t>(fields.Count("head_dim", 1));
  meta.dtype = ReadDType(fields);
  meta.stage = fields.TextOr("stage", "");
  meta.run_id = fields.TextOr("run_id", "");
  meta.rope_pairs = fields.TextOr("rope_pairs", "");
  meta.k_file = FileName(fields, "k_file");
  meta.v_file = FileName(fields, "v_file");
  if (meta.k_file == meta.v_file) {
    throw Error(Finding::kInconsistent, "k_file and v_file are both '{}'", Escaped(meta.k_file));
  }
  const std::string layout = fields.TextOr("layout", "logical");
  if (layout == "packed") {
    ReadPacked(fields, meta);
  } else if (layout == "logical") {
    ReadLogical(fields, meta);
  } else {
    throw Error(Finding::kBadField, "layout '{}' is neither logical nor packed",
                Escaped(layout, 40));
  }
  return meta;
}

std::string LogicalMetaText(const DumpMeta& meta) {
  nlohmann::ordered_json json = {
      {"layer_id", meta.layer},
      {"seq_start", meta.begin},
      {"seq_len", meta.tokens},
      {"seq_end_exclusive", meta.end()},
      {"kv_heads", meta.kv_heads},
      {"head_dim", meta.head_dim},
      {"bytes_per_elem", Info(meta.dtype).block_bytes},
      {"dtype", meta.dtype == DType::kF16 ? "fp16" : "fp32"},
      {"add", meta.added},
      {"tensor_seq_len", meta.added},
      {"quant_key", false},
      {"quant_value", false},
      {"flash_attention", true},
      {"stage", meta.stage},
      {"run_id", meta.run_id},
      {"k_file", meta.k_file},
      {"v_file", meta.v_file},
  };
  if (!meta.rope_pairs.empty()) json["rope_pairs"] = meta.rope_pairs;
  // Run ids come from folder names, which may not be UTF-8.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

namespace {

uint64_t CheckedRoundUp(uint64_t value, uint64_t multiple, std::string_view what) {
  return CheckedMul(CeilDiv(value, multiple), multiple, what);
}

// Returns a two-level stride, or the equivalent plain one over `extent` indices.
AxisStride Tiled(uint64_t step, uint64_t group, uint64_t group_step, uint64_t extent) {
  if (group == 1) return {group_step};
  if (extent <= group || group_step == step * group) return {step};
  return {step, group, group_step};
}

}  // namespace

uint64_t KeyElements(const PackGeometry& g) {
  return CheckedMul(CheckedRoundUp(g.tokens, g.pack_h, "packed tokens"),
                    CheckedRoundUp(g.head_dim, g.pack_l, "packed head size"), "packed keys");
}

uint64_t ValueElements(const PackGeometry& g) {
  return CheckedProduct(
      {CeilDiv(g.tokens, g.flash_block), CheckedRoundUp(g.head_dim, g.pack_h, "packed head size"),
       CheckedRoundUp(g.flash_block, g.pack_l, "packed flash block")},
      "packed values");
}

KvTensor PackedKeys(const std::byte* data, DType dtype, const PackGeometry& g, uint32_t heads,
                    uint64_t head_bytes) {
  const uint64_t unit = Info(dtype).block_bytes;
  const uint64_t tile = g.pack_h * g.pack_l * unit;
  const uint64_t group = CeilDiv(g.head_dim, g.pack_l) * tile;
  KvTensor tensor{.dtype = dtype,
                  .heads = heads,
                  .head_dim = static_cast<uint32_t>(g.head_dim),
                  .heads_known = true,
                  .pieces = {}};
  tensor.pieces.push_back({data,
                           g.tokens,
                           Tiled(g.pack_l * unit, g.pack_h, group, g.tokens),
                           {head_bytes},
                           Tiled(unit, g.pack_l, tile, g.head_dim)});
  return tensor;
}

// Tokens of V have three levels (block, tile, lane); one piece per flash block leaves two.
KvTensor PackedValues(const std::byte* data, DType dtype, const PackGeometry& g, uint32_t heads,
                      uint64_t head_bytes) {
  const uint64_t unit = Info(dtype).block_bytes;
  const uint64_t tile = g.pack_h * g.pack_l * unit;
  const uint64_t group = CeilDiv(g.flash_block, g.pack_l) * tile;
  const uint64_t block = CeilDiv(g.head_dim, g.pack_h) * group;
  KvTensor tensor{.dtype = dtype,
                  .heads = heads,
                  .head_dim = static_cast<uint32_t>(g.head_dim),
                  .heads_known = true,
                  .pieces = {}};
  for (uint64_t begin = 0; begin < g.tokens; begin += g.flash_block) {
    const uint64_t tokens = std::min(g.flash_block, g.tokens - begin);
    tensor.pieces.push_back({data + begin / g.flash_block * block,
                             tokens,
                             Tiled(unit, g.pack_l, tile, tokens),
                             {head_bytes},
                             Tiled(g.pack_l * unit, g.pack_h, group, g.head_dim)});
  }
  return tensor;
}

}  // namespace kv::mnn
