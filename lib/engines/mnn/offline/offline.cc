// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/offline/offline.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "lib/core/base/arena.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/planes.h"
#include "lib/core/snapshot/layout.h"
#include "lib/engines/mnn/offline/plane_coder.h"

namespace kv::mnn::offline {
namespace {

void Skip(Result& result, const std::string& reason) {
  ++result.skipped;
  for (auto& [known, count] : result.skip_reasons) {
    if (known == reason) {
      ++count;
      return;
    }
  }
  result.skip_reasons.emplace_back(reason, 1);
}

bool InScope(int64_t layer, const Options& options) {
  switch (options.scope) {
    case Scope::kFrontN:
      return layer >= 0 && layer < options.front_n;
    case Scope::kLayerRange:
      return layer >= options.layer_start && (options.layer_end < 0 || layer <= options.layer_end);
    case Scope::kLayerIds:
      return options.layer_ids.count(layer) > 0;
  }
  return false;
}

// Why a tensor cannot become 16-bit values; empty if it can. Types of two bytes count as they are.
std::string WhyNot(const KvTensor& tensor, const DumpEntry& entry, const Options& options) {
  const bool typed = !tensor.pieces.empty();
  if (typed && IsBlockQuantised(tensor.dtype)) {
    return fmt::format("unsupported_dtype_{}", Name(tensor.dtype));
  }
  const int64_t bytes = typed ? tensor.unit_bytes() : entry.element_bytes;
  if (bytes == 2) return {};
  if (bytes != 4 || (typed && tensor.dtype != DType::kF32)) {
    return fmt::format("unsupported_bytes_per_elem_{}", bytes);
  }
  return options.strict_fp16 ? "skip_fp32_strict" : "";
}

// The checks of the original in its order. True: the entry is simulated.
bool IsSelected(const DumpEntry& entry, const Options& options, Result& result) {
  const auto skip = [&](std::string_view reason) {
    Skip(result, std::string(reason));
    return false;
  };
  ++result.scanned;
  if (entry.defect == DumpDefect::kMetaParse) return skip("meta_parse_error");
  if (options.stage != Stage::kBoth && entry.stage != Name(options.stage)) return false;
  if (entry.defect == DumpDefect::kMetaNumbers) return skip("meta_invalid_numeric_fields");
  if (!InScope(entry.layer, options)) return false;
  if (entry.tokens <= 0 || entry.heads <= 0 || entry.head_dim <= 0) return skip("invalid_shape");
  if (options.min_tokens != 0 && entry.tokens < options.min_tokens) return false;
  if (options.max_tokens != 0 && entry.tokens > options.max_tokens) return false;
  if (entry.defect == DumpDefect::kNoFileNames) return skip("missing_k_or_v_file");
  if (entry.defect == DumpDefect::kNoFiles) return skip("missing_k_or_v_binary");
  if (entry.defect == DumpDefect::kUnreadable) return skip("binary_read_error");
  const std::string why_k = WhyNot(entry.k, entry, options);
  if (!why_k.empty()) return skip(why_k);
  const std::string why_v = WhyNot(entry.v, entry, options);
  if (!why_v.empty()) return skip(why_v);
  return true;
}

std::vector<const DumpEntry*> SelectEntries(std::span<const DumpEntry> entries,
                                            const Options& options, Result& result) {
  std::vector<const DumpEntry*> selected;
  std::set<std::string_view> dumps;
  for (const DumpEntry& entry : entries) {
    if (!IsSelected(entry, options, result)) continue;
    const auto is_f32 = [](const KvTensor& t) { return t.unit_bytes() == 4; };
    const bool typed = !entry.k.pieces.empty();
    result.converted += typed ? is_f32(entry.k) || is_f32(entry.v) : entry.element_bytes == 4;
    result.layers.insert(entry.layer);
    dumps.insert(entry.run.empty() ? entry.place : entry.run);
    selected.push_back(&entry);
  }
  result.entries = selected.size();
  result.dumps = dumps.size();
  return selected;
}

// Entries that are compressed as one sequence of tokens.
struct Group {
  std::vector<const DumpEntry*> parts;

  bool HoldsTensors() const {
    return std::all_of(parts.begin(), parts.end(),
                       [](const DumpEntry* part) { return part->defect == DumpDefect::kNone; });
  }
  uint64_t tokens() const {
    uint64_t sum = 0;
    for (const DumpEntry* part : parts) sum += static_cast<uint64_t>(part->tokens);
    return sum;
  }
  uint64_t row() const {  // values of one token
    return static_cast<uint64_t>(parts.front()->heads) *
           static_cast<uint64_t>(parts.front()->head_dim);
  }
};

bool IsGrouped(EntryMode mode) {
  return mode == EntryMode::kAggregate || mode == EntryMode::kChunkedGrouped;
}
bool IsChunked(EntryMode mode) {
  return mode == EntryMode::kChunked || mode == EntryMode::kChunkedGrouped;
}

std::vector<Group> MakeGroups(const std::vector<const DumpEntry*>& selected,
                              const Options& options) {
  std::vector<Group> groups;
  if (!IsGrouped(options.entry_mode)) {
    for (const DumpEntry* entry : selected) groups.push_back({{entry}});
    return groups;
  }
  std::map<std::tuple<std::string, int64_t, int64_t, int64_t, std::string>, size_t> places;
  for (const DumpEntry* entry : selected) {
    // Unnamed runs are one to the original.
    const auto [at, is_new] =
        places.try_emplace({entry->run, entry->layer, entry->heads, entry->head_dim,
                            options.aggregate_by_stage ? entry->stage : std::string()},
                           groups.size());
    if (is_new) groups.emplace_back();
    groups[at->second].parts.push_back(entry);
  }
  for (Group& group : groups) {
    std::stable_sort(
        group.parts.begin(), group.parts.end(),
        [](const DumpEntry* a, const DumpEntry* b) { return a->seq_start < b->seq_start; });
  }
  return groups;
}

// Tokens [begin, begin + tokens) of K or V of a group: what one task compresses.
struct Task {
  const Group* group = nullptr;
  bool is_value = false;
  uint64_t begin = 0, tokens = 0;
};

struct Outcome {
  uint64_t compressed = 0;
  std::map<Predictor, uint64_t> hi_counts, lo_counts;
};

// What a thread keeps from task to task.
struct Worker {
  PlaneCoder coder;
  ScratchBuffer values, planes;
  std::vector<float> floats;
};

// 16-bit values of part of a tensor, [token][head][dim].
void GatherHalves(const KvTensor& tensor, uint64_t begin, uint64_t tokens, Worker& worker,
                  std::span<std::byte> out) {
  if (tensor.unit_bytes() == 2) {
    Gather(tensor, begin, tokens, 0, tensor.heads, Order::kTokenHeadDim, out);
    return;
  }
  worker.floats.resize(out.size() / 2);
  Gather(tensor, begin, tokens, 0, tensor.heads, Order::kTokenHeadDim,
         std::as_writable_bytes(std::span(worker.floats)));
  FloatToHalf(worker.floats.data(), out.data(), worker.floats.size());
}

std::span<std::byte> ValuesOf(const Task& task, Worker& worker) {
  const uint64_t row_bytes = 2 * task.group->row(), end = task.begin + task.tokens;
  const auto values = worker.values.Get(task.tokens * row_bytes);
  uint64_t at = 0;  // of the part in the group
  for (const DumpEntry* part : task.group->parts) {
    const uint64_t part_end = at + static_cast<uint64_t>(part->tokens);
    const uint64_t from = std::max(at, task.begin), to = std::min(part_end, end);
    if (from < to) {
      GatherHalves(task.is_value ? part->v : part->k, from - at, to - from, worker,
                   values.subspan((from - task.begin) * row_bytes, (to - from) * row_bytes));
    }
    at = part_end;
  }
  return values;
}

Outcome Run(const Task& task, const Options& options, Worker& worker) {
  const auto values = ValuesOf(task, worker);
  const size_t words = values.size() / 2;
  const auto planes = worker.planes.Get(values.size());
  const auto low = planes.first(words), high = planes.subspan(words);
  SplitPlanes2(values.data(), words, low.data(), high.data());
  const PlaneShape shape = {task.tokens, task.group->row(),
                            static_cast<uint64_t>(task.group->parts.front()->head_dim)};
  Outcome outcome;
  outcome.compressed =
      worker.coder.Size(high, shape, options, task.is_value ? kVHi : kKHi, outcome.hi_counts);
  outcome.compressed +=
      worker.coder.Size(low, shape, options, task.is_value ? kVLo : kKLo, outcome.lo_counts);
  return outcome;
}

std::vector<Task> MakeTasks(const Group& group, const Options& options) {
  std::vector<Task> tasks;
  const uint64_t tokens = group.tokens(), wanted = static_cast<uint64_t>(options.chunk_tokens);
  const uint64_t chunk =
      IsChunked(options.entry_mode) && wanted > 0 ? std::min(wanted, tokens) : tokens;
  for (const bool is_value : {false, true}) {
    for (uint64_t begin = 0; begin < tokens; begin += chunk) {
      tasks.push_back({&group, is_value, begin, std::min(chunk, tokens - begin)});
    }
  }
  return tasks;
}

void Merge(const std::map<Predictor, uint64_t>& from, std::map<Predictor, uint64_t>& to) {
  for (const auto& [predictor, count] : from) to[predictor] += count;
}

void AddGroup(const Group& group, const Options& options, Result& result) {
  const uint64_t raw = 2 * group.row() * group.tokens();
  result.k.raw += raw;
  result.v.raw += raw;
  if (options.entry_mode == EntryMode::kAggregate) {
    // How a decoder would find the parts again: their number, and the tokens of each.
    const uint64_t meta = 4 + 4 * group.parts.size();
    for (Sizes* sizes : {&result.k, &result.v}) {
      sizes->compressed += meta;
      sizes->chunk_meta += meta;
    }
  }
}

void AddTask(const Task& task, const Outcome& outcome, const Options& options, Result& result) {
  Sizes& sizes = task.is_value ? result.v : result.k;
  sizes.compressed += outcome.compressed;
  if (IsChunked(options.entry_mode)) {
    const auto framing = static_cast<uint64_t>(options.framing_bytes);
    sizes.compressed += framing;
    sizes.chunk_meta += framing;
    ++result.chunks;
  }
  Merge(outcome.hi_counts, result.mode_counts[task.is_value ? kVHi : kKHi]);
  Merge(outcome.lo_counts, result.mode_counts[task.is_value ? kVLo : kKLo]);
}

}  // namespace

Result Simulate(std::span<const DumpEntry> entries, const Options& options, ThreadPool& pool,
                Progress* progress) {
  KV_ASSERT(options.block_tokens > 0 && options.chunk_tokens >= 0 && options.framing_bytes >= 0);
  Result result;
  const std::vector<const DumpEntry*> selected = SelectEntries(entries, options, result);
  const std::vector<Group> groups = MakeGroups(selected, options);
  if (IsGrouped(options.entry_mode)) result.groups = groups.size();

  std::vector<Task> tasks;
  for (const Group& group : groups) {
    if (!group.HoldsTensors()) {
      Skip(result, "compression_failed");
      continue;
    }
    AddGroup(group, options, result);
    const std::vector<Task> of_group = MakeTasks(group, options);
    tasks.insert(tasks.end(), of_group.begin(), of_group.end());
  }
  if (progress != nullptr) progress->Begin(result.total().raw);
  std::vector<Outcome> outcomes(tasks.size());
  Reuse<Worker> workers;
  pool.ParallelFor(tasks.size(), [&](uint64_t i) {
    const Reuse<Worker>::Lease worker(workers);
    outcomes[i] = Run(tasks[i], options, *worker);
    if (progress != nullptr) progress->Advance(2 * tasks[i].tokens * tasks[i].group->row());
  });
  for (size_t i = 0; i < tasks.size(); ++i) AddTask(tasks[i], outcomes[i], options, result);
  return result;
}

}  // namespace kv::mnn::offline
