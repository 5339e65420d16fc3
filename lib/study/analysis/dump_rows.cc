// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The rows of MNN's distribution experiment: entropies and ratios of every dump, also with the
// rotary embedding of K undone.
#include "lib/study/analysis/dump_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/base/arena.h"
#include "lib/core/codec/backends.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/counts.h"
#include "lib/core/kernels/planes.h"
#include "lib/core/snapshot/layout.h"
#include "lib/study/statistics/tensor_stats.h"

namespace kv::analysis {
namespace {

// Figures of a byte sequence and of its halves: the bytes of 16-bit values, or the 16-bit halves of
// 32-bit values.
struct Figures {
  double entropy = 0, zstd_ratio = 0;
  double high_entropy = 0, low_entropy = 0, high_ratio = 0, low_ratio = 0, split_ratio = 0;
};

class Meter {
 public:
  Figures Of(ByteSpan bytes, int64_t element_bytes, int level) {
    level_ = level;
    Figures figures;
    figures.zstd_ratio = Ratio(bytes.size(), Size(bytes));
    const bool splits = (element_bytes == 2 || element_bytes == 4) &&
                        bytes.size() % static_cast<uint64_t>(element_bytes) == 0 && !bytes.empty();
    if (!splits) {
      figures.entropy = EntropyBits(Count(bytes));
      return figures;
    }
    const size_t half = bytes.size() / 2;
    const auto halves = halves_.Get(bytes.size());
    const auto low = halves.first(half), high = halves.subspan(half);
    if (element_bytes == 2) {
      SplitPlanes2(bytes.data(), half, low.data(), high.data());
    } else {
      for (size_t i = 0; i < half; i += 2) {
        std::memcpy(&low[i], &bytes[2 * i], 2);
        std::memcpy(&high[i], &bytes[2 * i + 2], 2);
      }
    }
    const auto low_counts = Count(low), high_counts = Count(high);
    auto all = low_counts;
    for (size_t i = 0; i < all.size(); ++i) all[i] += high_counts[i];
    figures.entropy = EntropyBits(all);
    figures.low_entropy = EntropyBits(low_counts);
    figures.high_entropy = EntropyBits(high_counts);
    const uint64_t low_size = Size(low), high_size = Size(high);
    figures.low_ratio = Ratio(half, low_size);
    figures.high_ratio = Ratio(half, high_size);
    figures.split_ratio = Ratio(bytes.size(), low_size + high_size);
    return figures;
  }

 private:
  static std::array<uint64_t, 256> Count(ByteSpan bytes) {
    std::array<uint64_t, 256> counts{};
    CountBytes(bytes.data(), bytes.size(), counts.data());
    return counts;
  }
  static double Ratio(uint64_t raw, uint64_t size) {
    return size == 0 ? 0 : static_cast<double>(raw) / static_cast<double>(size);
  }
  uint64_t Size(ByteSpan bytes) {
    if (bytes.empty()) return 0;
    return zstd_.Compress(bytes, frame_.Get(Zstd::Bound(bytes.size())), level_);
  }

  int level_ = 0;
  Zstd zstd_;
  ScratchBuffer halves_, frame_;
};

// K without its rotary embedding, in its own type, and how far removing it moved the values.
struct UnrotatedRows {
  Figures figures;
  double mean_abs_diff = 0, max_abs_diff = 0;
};

UnrotatedRows UnrotateRows(const DumpEntry& entry, ByteSpan raw, const RowOptions& options,
                           bool interleaved, Meter& meter) {
  const auto layer = entry.model_layer.value_or(static_cast<uint32_t>(entry.layer));
  Rope rope = options.rope->Of(layer);
  rope.pairs = interleaved ? RopePairs::kNeighbours : RopePairs::kHalves;
  const bool half = entry.k.dtype == DType::kF16;
  const size_t count = raw.size() / entry.k.unit_bytes();
  std::vector<float> values(count);
  if (half) {
    HalfToFloat(raw.data(), values.data(), count);
  } else {
    std::memcpy(values.data(), raw.data(), raw.size());
  }
  const std::vector<float> before = values;
  const uint32_t heads = entry.k.heads, dim = entry.k.head_dim;
  RequireFit(rope, dim);
  std::vector<int64_t> positions(static_cast<size_t>(entry.tokens));
  std::iota(positions.begin(), positions.end(), entry.seq_start);
  const auto end = static_cast<uint64_t>(entry.seq_start + entry.tokens);
  const RopeTable rotations(rope, dim, ShiftsToZero(positions, end));
  for (size_t t = 0; t < positions.size(); ++t) {
    rotations.Rotate(t, heads, values.data() + t * heads * dim);
  }
  UnrotatedRows out;
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    const double difference = std::abs(static_cast<double>(values[i]) - before[i]);
    sum += difference;
    out.max_abs_diff = std::max(out.max_abs_diff, difference);
  }
  out.mean_abs_diff = count == 0 ? 0 : sum / static_cast<double>(count);
  Bytes back(raw.size());
  if (half) {
    FloatToHalf(values.data(), back.data(), count);
  } else {
    std::memcpy(back.data(), values.data(), back.size());
  }
  out.figures = meter.Of(back, entry.k.unit_bytes(), options.zstd_level);
  return out;
}

// Adds a group of columns: the figures, or 0 unless the element size has them (`on`).
void AddSplit(Value& row, const std::string& tensor, const Figures& f, bool on,
              const std::string& high, const std::string& low, const std::string& whole) {
  const auto put = [&](const std::string& name, double value) { row.Put(name, on ? value : 0.0); };
  put(fmt::format("{}_{}_entropy", tensor, high), f.high_entropy);
  put(fmt::format("{}_{}_entropy", tensor, low), f.low_entropy);
  put(fmt::format("{}_{}_ratio", tensor, high), f.high_ratio);
  put(fmt::format("{}_{}_ratio", tensor, low), f.low_ratio);
  put(fmt::format("{}_{}_ratio", tensor, whole), f.split_ratio);
}

void AddWhole(Value& row, const Figures& k, const Figures& v) {
  row.Put("k_entropy", k.entropy);
  row.Put("v_entropy", v.entropy);
  row.Put("k_zstd_ratio", k.zstd_ratio);
  row.Put("v_zstd_ratio", v.zstd_ratio);
}

Value DistributionRow(const DumpEntry& entry, const RowOptions& options, Meter& meter) {
  Value row = Value::Object{{"layer_id", entry.layer},
                            {"stage", entry.stage},
                            {"seq_start", entry.seq_start},
                            {"seq_len", entry.tokens},
                            {"kv_heads", entry.heads},
                            {"head_dim", entry.head_dim},
                            {"bytes_per_elem", entry.element_bytes}};
  const Bytes raw_k = Gather(entry.k, 0, entry.k.tokens(), Order::kTokenHeadDim);
  const Bytes raw_v = Gather(entry.v, 0, entry.v.tokens(), Order::kTokenHeadDim);
  const int64_t unit = entry.k.unit_bytes(), v_unit = entry.v.unit_bytes();
  const Figures k = meter.Of(raw_k, unit, options.zstd_level);
  const Figures v = meter.Of(raw_v, v_unit, options.zstd_level);
  AddWhole(row, k, v);
  AddSplit(row, "k", k, unit == 2, "hi", "lo", "gear");
  AddSplit(row, "v", v, v_unit == 2, "hi", "lo", "gear");
  // bf16 has the size of f16 but other values, and a damaged meta file may give any token position.
  const bool placed = entry.seq_start >= 0 && entry.seq_start <= INT32_MAX;
  const bool rotates =
      options.rope && placed && (entry.k.dtype == DType::kF16 || entry.k.dtype == DType::kF32);
  UnrotatedRows pairs, halves;
  if (rotates) pairs = UnrotateRows(entry, raw_k, options, true, meter);
  if (rotates) halves = UnrotateRows(entry, raw_k, options, false, meter);
  const auto add = [&](const std::string& name, const UnrotatedRows& u) {
    row.Put(name + "_zstd_ratio", u.figures.zstd_ratio);
    row.Put(name + "_gear_ratio", unit == 2 ? u.figures.split_ratio : 0.0);
    row.Put(name + "_mean_abs_diff", u.mean_abs_diff);
    row.Put(name + "_max_abs_diff", u.max_abs_diff);
  };
  add("k_rope_inv", pairs);
  AddSplit(row, "k", k, unit == 4, "hi16", "lo16", "split16");
  AddSplit(row, "v", v, v_unit == 4, "hi16", "lo16", "split16");
  if (rotates) add("k_rope_inv_half", halves);
  return row;
}

Value PackedRow(const PackedEntry& entry, const RowOptions& options, Meter& meter) {
  Value row = Value::Object{{"layer_id", entry.layer},
                            {"stage", entry.stage},
                            {"used_seq_len", entry.used_tokens},
                            {"max_seq_len", entry.max_tokens},
                            {"kv_heads", entry.heads},
                            {"head_dim", entry.head_dim},
                            {"bytes_per_elem", entry.element_bytes},
                            {"pack_h", entry.pack_h},
                            {"pack_l", entry.pack_l},
                            {"flash_upper_kv", entry.flash_block},
                            {"key_used_bytes", entry.key_used_bytes},
                            {"value_used_bytes", entry.value_used_bytes}};
  const int64_t unit = entry.element_bytes;
  const Figures k = meter.Of(entry.k, unit, options.zstd_level);
  const Figures v = meter.Of(entry.v, unit, options.zstd_level);
  AddWhole(row, k, v);
  AddSplit(row, "k", k, unit == 4, "hi16", "lo16", "split16");
  AddSplit(row, "v", v, unit == 4, "hi16", "lo16", "split16");
  AddSplit(row, "k", k, unit == 2, "hi8", "lo8", "gear");
  AddSplit(row, "v", v, unit == 2, "hi8", "lo8", "gear");
  return row;
}

// Python prints whole floats with a decimal point ("1.0").
std::string PythonText(const Value& value) {
  const std::string text = format::Plain(value);
  const bool is_whole = text.find_first_of(".en") == text.npos;
  return value.get_if<double>() != nullptr && is_whole ? text + ".0" : text;
}

bool IsAveraged(const std::string& name) {
  return name.ends_with("_ratio") || name.ends_with("entropy");
}

}  // namespace

std::vector<Value> DistributionRows(std::span<const DumpEntry> entries, const RowOptions& options,
                                    ThreadPool& pool) {
  std::vector<const DumpEntry*> whole;
  for (const DumpEntry& entry : entries) {
    if (entry.defect == DumpDefect::kNone && !entry.k.pieces.empty()) whole.push_back(&entry);
  }
  std::vector<Value> rows(whole.size());
  Reuse<Meter> meters;
  pool.ParallelFor(whole.size(), [&](uint64_t i) {
    const Reuse<Meter>::Lease meter(meters);
    rows[i] = DistributionRow(*whole[i], options, *meter);
  });
  return rows;
}

std::vector<Value> PackedRows(std::span<const PackedEntry> entries, const RowOptions& options,
                              ThreadPool& pool) {
  std::vector<Value> rows(entries.size());
  Reuse<Meter> meters;
  pool.ParallelFor(entries.size(), [&](uint64_t i) {
    const Reuse<Meter>::Lease meter(meters);
    rows[i] = PackedRow(entries[i], options, *meter);
  });
  return rows;
}

Value RowAverages(const std::vector<Value>& rows, bool positive_only) {
  Value averages = Value::Object{{"dumps", rows.size()}};
  if (rows.empty()) return averages;
  for (const auto& [name, first] : *rows.front().get_if<Value::Object>()) {
    if (!IsAveraged(name)) continue;
    double sum = 0;
    uint64_t count = 0;
    for (const Value& row : rows) {
      const Value* cell = row.Find(name);
      const double value = cell == nullptr ? 0 : cell->number();
      if (positive_only && !(value > 0)) continue;
      sum += value;
      ++count;
    }
    averages.Put(name, count == 0 ? 0.0 : sum / static_cast<double>(count));
  }
  return averages;
}

std::string RowsCsv(const std::vector<Value>& rows) {
  if (rows.empty()) return {};
  TextTable table;
  for (const auto& [name, value] : *rows.front().get_if<Value::Object>())
    table.head.push_back(name);
  for (const Value& row : rows) {
    std::vector<std::string>& cells = table.rows.emplace_back();
    for (const std::string& name : table.head) {
      const Value* cell = row.Find(name);
      cells.push_back(cell == nullptr ? "" : PythonText(*cell));
    }
  }
  return Csv(table);
}

namespace {

Value WithoutZeroRatios(Value row) {
  for (auto& [name, value] : *row.get_if<Value::Object>()) {
    if (name.ends_with("ratio") && value.number() == 0) value = nullptr;
  }
  return row;
}

class RowSchema {
 public:
  RowSchema() {
    Add("layer_id", "integer", "Number of the layer as the dump gives it");
    Add("stage", "string", "Stage of the dump: prefill or decode");
    Add("seq_start", "integer", "Position of the first token of the dump");
    Add("seq_len", "integer", "Number of tokens of the dump");
    Add("used_seq_len", "integer", "Number of tokens in use");
    Add("max_seq_len", "integer", "Number of tokens that the buffers have room for");
    Add("kv_heads", "integer", "Number of kv heads");
    Add("head_dim", "integer", "Number of values of a head");
    Add("bytes_per_elem", "integer", "Size of a value in bytes");
    Add("pack_h", "integer", "MNN's packing parameter hP");
    Add("pack_l", "integer", "MNN's packing parameter lP");
    Add("flash_upper_kv", "integer", "Tokens of a block of flash attention, as the dump gives it");
    Add("key_used_bytes", "integer", "Bytes of K in use");
    Add("value_used_bytes", "integer", "Bytes of V in use");
    AddTensor("k", "K");
    AddTensor("v", "V");
    AddUnrotated("k_rope_inv", "neighbours (2i, 2i+1)");
    AddUnrotated("k_rope_inv_half", "halves (i, i + dims/2)");
  }

  Value Made() {
    return Value::Object{
        {"type", "object"},
        {"required", Value::List{"layer_id", "stage", "k_entropy", "v_zstd_ratio"}},
        {"properties", std::move(properties_)}};
  }

 private:
  void Add(const std::string& name, Value type, std::string text) {
    properties_.emplace_back(
        name, Value::Object{{"description", std::move(text)}, {"type", std::move(type)}});
  }
  void AddRatio(const std::string& name, std::string text) {
    Add(name, Value::List{"number", "null"}, std::move(text));
  }

  void AddTensor(const std::string& key, const char* tensor) {
    Add(key + "_entropy", "number",
        fmt::format("Shannon entropy of the bytes of {}, in bits per byte", tensor));
    AddRatio(key + "_zstd_ratio", fmt::format("Bytes of {} / bytes after zstd", tensor));
    AddHalves(key, tensor, "", "bytes", 16);
    AddWhole(key + "_gear_ratio", tensor, "bytes", 16);
    AddHalves(key, tensor, "8", "bytes", 16);
    AddHalves(key, tensor, "16", "halves", 32);
    AddWhole(key + "_split16_ratio", tensor, "halves", 32);
  }

  void AddHalves(const std::string& key, const char* tensor, const char* size, const char* parts,
                 int bits) {
    for (const auto& [half, word] : {std::pair("hi", "high"), std::pair("lo", "low")}) {
      const std::string name = fmt::format("{}_{}{}", key, half, size);
      const std::string what =
          fmt::format("the {} {} of the {}-bit values of {}", word, parts, bits, tensor);
      Add(name + "_entropy", "number",
          fmt::format("Entropy in bits per byte of {}; 0: the values have another size", what));
      AddRatio(name + "_ratio", fmt::format("Ratio of {} under zstd", what));
    }
  }

  void AddWhole(const std::string& name, const char* tensor, const char* parts, int bits) {
    AddRatio(name, fmt::format("Ratio of {} under zstd with high and low {} of {}-bit values coded "
                               "apart",
                               tensor, parts, bits));
  }

  void AddUnrotated(const std::string& key, const char* pairs) {
    AddRatio(key + "_zstd_ratio",
             fmt::format("Ratio of K under zstd after its rotation is undone, pairs being {}; not "
                         "measured without a known rotation",
                         pairs));
    AddRatio(key + "_gear_ratio",
             "Ratio of K under zstd without rotation, 16-bit values as high and low bytes apart");
    for (const auto& [name, word] : {std::pair("mean", "Mean distance by which"),
                                     std::pair("max", "Largest distance by which")}) {
      Add(fmt::format("{}_{}_abs_diff", key, name), "number",
          fmt::format("{} undoing the rotation moves a value of K, pairs being {}", word, pairs));
    }
  }

  Value::Object properties_;
};

}  // namespace

RowsReport ReportRows(const std::vector<Value>& rows, bool positive_only) {
  RowsReport report = {WithoutZeroRatios(RowAverages(rows, positive_only)), {}};
  for (const Value& row : rows) report.rows.push_back(WithoutZeroRatios(row));
  return report;
}

const Fields<RowsReport>& RowsReportFields() {
  static const Value averages = Value::Object{
      {"type", "object"},
      {"additionalProperties", Value::Object{{"type", Value::List{"number", "null"}}}},
      {"properties", Value::Object{{"dumps", Value::Object{{"description", "Number of rows"},
                                                           {"type", "integer"},
                                                           {"minimum", 0}}}}}};
  static const Fields<RowsReport> fields = {
      {"averages",
       "Mean of each ratio and entropy over the dumps, each with the same weight; for packed dumps "
       "only over values above 0",
       &RowsReport::averages,
       {.schema = averages}},
      {"rows",
       "One row for each dump, under the column names of MNN's experiment",
       &RowsReport::rows,
       {.schema = Value::Object{{"type", "array"}, {"items", RowSchema().Made()}}}}};
  return fields;
}

}  // namespace kv::analysis
