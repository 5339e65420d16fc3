// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/analysis/dump_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lib/core/base/reuse.h"
#include "lib/core/codec/backends.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/histogram.h"
#include "lib/core/kernels/planes.h"
#include "lib/core/snapshot/layout.h"
#include "lib/study/statistics/tensor_stats.h"

namespace kv::analysis {
namespace {

using Json = nlohmann::ordered_json;

// Of a byte sequence and of its halves: bytes of 16-bit values, 16-bit halves of 32-bit ones.
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

// K with its rotation undone, in its own type, and how far that moved its values.
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
  const RopeTable turns(rope, dim, TurnsBack(positions, end));
  for (size_t t = 0; t < positions.size(); ++t) {
    turns.Rotate(t, heads, values.data() + t * heads * dim);
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

// The group of columns that `on` decides about: figures where the element size has them, else 0.
void AddSplit(Json& row, const std::string& tensor, const Figures& f, bool on,
              const std::string& high, const std::string& low, const std::string& whole) {
  const auto put = [&](const std::string& name, double value) { row[name] = on ? value : 0.0; };
  put(fmt::format("{}_{}_entropy", tensor, high), f.high_entropy);
  put(fmt::format("{}_{}_entropy", tensor, low), f.low_entropy);
  put(fmt::format("{}_{}_ratio", tensor, high), f.high_ratio);
  put(fmt::format("{}_{}_ratio", tensor, low), f.low_ratio);
  put(fmt::format("{}_{}_ratio", tensor, whole), f.split_ratio);
}

void AddWhole(Json& row, const Figures& k, const Figures& v) {
  row["k_entropy"] = k.entropy;
  row["v_entropy"] = v.entropy;
  row["k_zstd_ratio"] = k.zstd_ratio;
  row["v_zstd_ratio"] = v.zstd_ratio;
}

Json DistributionRow(const DumpEntry& entry, const RowOptions& options, Meter& meter) {
  Json row = {{"layer_id", entry.layer},
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
  // bf16 has the size of f16 and not its values; a damaged meta may place tokens anywhere.
  const bool placed = entry.seq_start >= 0 && entry.seq_start <= INT32_MAX;
  const bool turns =
      options.rope && placed && (entry.k.dtype == DType::kF16 || entry.k.dtype == DType::kF32);
  UnrotatedRows pairs, halves;
  if (turns) pairs = UnrotateRows(entry, raw_k, options, true, meter);
  if (turns) halves = UnrotateRows(entry, raw_k, options, false, meter);
  const auto add = [&](const std::string& name, const UnrotatedRows& u) {
    row[name + "_zstd_ratio"] = u.figures.zstd_ratio;
    row[name + "_gear_ratio"] = unit == 2 ? u.figures.split_ratio : 0.0;
    row[name + "_mean_abs_diff"] = u.mean_abs_diff;
    row[name + "_max_abs_diff"] = u.max_abs_diff;
  };
  add("k_rope_inv", pairs);
  AddSplit(row, "k", k, unit == 4, "hi16", "lo16", "split16");
  AddSplit(row, "v", v, v_unit == 4, "hi16", "lo16", "split16");
  if (turns) add("k_rope_inv_half", halves);
  return row;
}

Json PackedRow(const PackedEntry& entry, const RowOptions& options, Meter& meter) {
  Json row = {{"layer_id", entry.layer},
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

// Python's shortest form keeps a point in whole numbers.
std::string Cell(const Json& value) {
  if (value.is_number_float()) {
    const std::string text = fmt::format("{}", value.get<double>());
    return text.find_first_of(".en") == text.npos ? text + ".0" : text;
  }
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

bool IsAveraged(const std::string& name) {
  return name.ends_with("_ratio") || name.ends_with("entropy");
}

}  // namespace

std::vector<Json> DistributionRows(std::span<const DumpEntry> entries, const RowOptions& options,
                                   ThreadPool& pool) {
  std::vector<const DumpEntry*> whole;
  for (const DumpEntry& entry : entries) {
    if (entry.defect == DumpDefect::kNone && !entry.k.pieces.empty()) whole.push_back(&entry);
  }
  std::vector<Json> rows(whole.size());
  Reuse<Meter> meters;
  pool.ParallelFor(whole.size(), [&](uint64_t i) {
    const Reuse<Meter>::Lease meter(meters);
    rows[i] = DistributionRow(*whole[i], options, *meter);
  });
  return rows;
}

std::vector<Json> PackedRows(std::span<const PackedEntry> entries, const RowOptions& options,
                             ThreadPool& pool) {
  std::vector<Json> rows(entries.size());
  Reuse<Meter> meters;
  pool.ParallelFor(entries.size(), [&](uint64_t i) {
    const Reuse<Meter>::Lease meter(meters);
    rows[i] = PackedRow(entries[i], options, *meter);
  });
  return rows;
}

Json RowAverages(const std::vector<Json>& rows, bool positive_only) {
  Json averages = {{"dumps", rows.size()}};
  if (rows.empty()) return averages;
  for (const auto& [name, first] : rows.front().items()) {
    if (!IsAveraged(name)) continue;
    double sum = 0;
    uint64_t count = 0;
    for (const Json& row : rows) {
      const double value = row.value(name, 0.0);
      if (positive_only && !(value > 0)) continue;
      sum += value;
      ++count;
    }
    averages[name] = count == 0 ? 0.0 : sum / static_cast<double>(count);
  }
  return averages;
}

std::string RowsCsv(const std::vector<Json>& rows) {
  if (rows.empty()) return {};
  std::vector<std::string> names;
  for (const auto& [name, value] : rows.front().items()) names.push_back(name);
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : ",") + names[i];
  text += "\r\n";
  for (const Json& row : rows) {
    for (size_t i = 0; i < names.size(); ++i) {
      text += (i == 0 ? "" : ",") + (row.contains(names[i]) ? Cell(row[names[i]]) : "");
    }
    text += "\r\n";
  }
  return text;
}

}  // namespace kv::analysis
