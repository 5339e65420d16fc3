// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// MNN's offline estimate: selects dump entries, joins and cuts them into tasks, and counts the
// bytes that each byte plane would take.
#include "lib/engines/mnn/offline/offline.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "lib/core/base/arena.h"
#include "lib/core/base/utf8.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/planes.h"
#include "lib/core/snapshot/layout.h"

namespace kv::mnn::offline {
namespace {

constexpr std::string_view kEntryModes[] = {"per_meta", "aggregate", "chunked", "chunked_grouped"};
constexpr std::string_view kCodecModes[] = {"legacy", "adaptive_v22"};
constexpr std::string_view kScopes[] = {"front_n", "layer_range", "layer_ids"};
constexpr std::string_view kStages[] = {"both", "prefill", "decode"};
constexpr std::string_view kPredictors[] = {"raw", "delta_seq", "xor_seq", "pair_delta",
                                            "pair_delta_delta_seq"};
constexpr std::string_view kStreamNames[] = {"k_hi", "k_lo", "v_hi", "v_lo"};

void Skip(Result& result, const std::string& reason) {
  ++result.skipped;
  const auto known = std::find_if(result.skip_reasons.begin(), result.skip_reasons.end(),
                                  [&](const auto& entry) { return entry.first == reason; });
  if (known == result.skip_reasons.end()) {
    result.skip_reasons.emplace_back(reason, 1);
  } else {
    ++known->second;
  }
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

// Returns why a tensor cannot become 16-bit values; "" if it can. Types of two bytes are taken
// unchanged.
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

// Applies the checks of MNN's script in its order. Returns true if the entry is simulated.
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
  uint64_t row() const {  // number of values of one token
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
    // MNN's script treats all unnamed runs as one.
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

// Tokens [begin, begin + tokens) of K or V of a group: the unit of work.
struct Task {
  const Group* group = nullptr;
  bool is_value = false;
  uint64_t begin = 0, tokens = 0;
};

using Counts = std::map<Predictor, uint64_t>;

struct Outcome {
  uint64_t compressed = 0;
  std::array<Counts, 2> counts;  // counts of the high plane and of the low one
};

// Buffers that a thread reuses from task to task.
struct Worker {
  PlaneCoder coder;
  ScratchBuffer values, planes;
  std::vector<float> floats;
};

// Reads 16-bit values of part of a tensor, [token][head][dim].
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

std::span<std::byte> ScratchValues(const Task& task, Worker& worker) {
  const uint64_t row_bytes = 2 * task.group->row(), end = task.begin + task.tokens;
  const auto values = worker.values.Get(task.tokens * row_bytes);
  uint64_t at = 0;  // position of the part in the group
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

Stream SelectStream(const Task& task, bool is_low) {
  return static_cast<Stream>((task.is_value ? kVHi : kKHi) + is_low);
}

Outcome Run(const Task& task, const Options& options, Worker& worker) {
  const auto values = ScratchValues(task, worker);
  const size_t words = values.size() / 2;
  const auto planes = worker.planes.Get(values.size());
  const auto low = planes.first(words), high = planes.subspan(words);
  SplitPlanes2(values.data(), words, low.data(), high.data());
  const PlaneShape shape = {task.tokens, task.group->row(),
                            static_cast<uint64_t>(task.group->parts.front()->head_dim)};
  Outcome outcome;
  for (const bool is_low : {false, true}) {
    outcome.compressed += worker.coder.Size(is_low ? low : high, shape, options,
                                            SelectStream(task, is_low), outcome.counts[is_low]);
  }
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

void AddGroup(const Group& group, const Options& options, Result& result) {
  const uint64_t raw = 2 * group.row() * group.tokens();
  result.k.raw += raw;
  result.v.raw += raw;
  if (options.entry_mode == EntryMode::kAggregate) {
    // The sizes include the number of parts and the tokens of each, which a decoder would need.
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
  for (const bool is_low : {false, true}) {
    for (const auto& [predictor, count] : outcome.counts[is_low]) {
      result.mode_counts[SelectStream(task, is_low)][predictor] += count;
    }
  }
}

uint8_t* U8(std::byte* p) { return reinterpret_cast<uint8_t*>(p); }
const uint8_t* U8(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

// Written so that compilers vectorise the loops: `from` and `to` never overlap.
void DeltaRows(const PlaneShape& shape, const uint8_t* __restrict from, uint8_t* __restrict to) {
  const size_t size = shape.tokens * shape.row, row = shape.row;
  std::memcpy(to, from, row);
  for (size_t i = row; i < size; ++i) to[i] = static_cast<uint8_t>(from[i] - from[i - row]);
}

void XorRows(const PlaneShape& shape, const uint8_t* __restrict from, uint8_t* __restrict to) {
  const size_t size = shape.tokens * shape.row, row = shape.row;
  std::memcpy(to, from, row);
  for (size_t i = row; i < size; ++i) to[i] = from[i] ^ from[i - row];
}

// Subtracts from odd dims the even dim before them; an odd last dim does not change.
void PairDelta(const PlaneShape& shape, const uint8_t* __restrict from, uint8_t* __restrict to) {
  const size_t size = shape.tokens * shape.row, dim = shape.dim;
  if (dim % 2 == 0) {
    // Subtracts both bytes of a pair at once: as a 16-bit number, odd minus even is minus 256 times
    // even.
    for (size_t i = 0; i < size; i += 2) {
      const auto pair = LoadLE<uint16_t>(from + i);
      StoreLE(to + i, static_cast<uint16_t>(pair - (pair << 8)));
    }
    return;
  }
  for (size_t head = 0; head < size; head += dim) {
    for (size_t d = 0; d < dim; ++d) {
      to[head + d] = static_cast<uint8_t>(from[head + d] - (d % 2 == 1 ? from[head + d - 1] : 0));
    }
  }
}

// Works from the last token to the first, so that it can work in place.
void DeltaRowsInPlace(const PlaneShape& shape, uint8_t* data) {
  for (size_t token = shape.tokens - 1; token > 0; --token) {
    uint8_t* __restrict to = data + token * shape.row;
    const uint8_t* __restrict before = to - shape.row;
    for (size_t i = 0; i < shape.row; ++i) to[i] = static_cast<uint8_t>(to[i] - before[i]);
  }
}

// Several predictors write the same bytes for a single token, or for heads of one dim. Such a
// candidate has the size of the one it equals and can never win against it.
Predictor SimplestEqual(Predictor predictor, const PlaneShape& block) {
  const bool one_token = block.tokens == 1, one_dim = block.dim == 1;
  switch (predictor) {
    case Predictor::kDeltaSeq:
    case Predictor::kXorSeq:
      return one_token ? Predictor::kRaw : predictor;
    case Predictor::kPairDelta:
      return one_dim ? Predictor::kRaw : predictor;
    case Predictor::kPairDeltaDeltaSeq:
      if (one_dim) return SimplestEqual(Predictor::kDeltaSeq, block);
      return one_token ? Predictor::kPairDelta : predictor;
    case Predictor::kRaw:
      break;
  }
  return predictor;
}

}  // namespace

std::string_view Name(EntryMode mode) { return kEntryModes[static_cast<size_t>(mode)]; }
std::string_view Name(CodecMode mode) { return kCodecModes[static_cast<size_t>(mode)]; }
std::string_view Name(Scope scope) { return kScopes[static_cast<size_t>(scope)]; }
std::string_view Name(Stage stage) { return kStages[static_cast<size_t>(stage)]; }
std::string_view Name(Predictor predictor) { return kPredictors[static_cast<size_t>(predictor)]; }
std::string_view Name(Stream stream) { return kStreamNames[stream]; }

std::vector<Predictor> ParsePredictorList(std::string_view list, std::string_view flag) {
  std::vector<Predictor> predictors;
  for (const std::string_view part : Split(list, ',')) {
    const std::string_view word = Trimmed(part);
    if (word.empty()) continue;
    const auto* known = std::find(std::begin(kPredictors), std::end(kPredictors), word);
    if (known == std::end(kPredictors)) {
      throw Error(Finding::kUsage, "{} '{}': expected one of {}", flag, Escaped(word, 40),
                  fmt::join(kPredictors, ", "));
    }
    const auto predictor = static_cast<Predictor>(known - std::begin(kPredictors));
    if (std::find(predictors.begin(), predictors.end(), predictor) == predictors.end()) {
      predictors.push_back(predictor);
    }
  }
  if (predictors.empty()) throw Error(Finding::kUsage, "{}: the list is empty", flag);
  return predictors;
}

std::array<std::vector<Predictor>, kStreams> Options::DefaultPredictors() {
  const std::vector<Predictor> along = {Predictor::kRaw, Predictor::kDeltaSeq, Predictor::kXorSeq};
  std::vector<Predictor> all = along;
  all.insert(all.end(), {Predictor::kPairDelta, Predictor::kPairDeltaDeltaSeq});
  return {all, all, along, along};
}

Options OnlineSimOptions() {
  Options options;
  options.entry_mode = EntryMode::kChunkedGrouped;
  options.chunk_tokens = 192;
  options.framing_bytes = 8;
  return options;
}

void Predict(Predictor predictor, const PlaneShape& shape, const std::byte* from, std::byte* to) {
  switch (predictor) {
    case Predictor::kRaw:
      std::memcpy(to, from, shape.tokens * shape.row);
      return;
    case Predictor::kDeltaSeq:
      return DeltaRows(shape, U8(from), U8(to));
    case Predictor::kXorSeq:
      return XorRows(shape, U8(from), U8(to));
    case Predictor::kPairDelta:
      return PairDelta(shape, U8(from), U8(to));
    case Predictor::kPairDeltaDeltaSeq:
      PairDelta(shape, U8(from), U8(to));
      return DeltaRowsInPlace(shape, U8(to));
  }
}

void BitShuffle(const std::byte* from, size_t size, std::byte* to) {
  if (size % 8 != 0) {
    std::memset(to, 0, size);
    for (size_t i = 0; i < size; ++i) {
      for (size_t b = 0; b < 8; ++b) {
        const size_t bit = b * size + i;
        U8(to)[bit / 8] |= static_cast<uint8_t>((U8(from)[i] >> b & 1) << bit % 8);
      }
    }
    return;
  }
  const size_t plane = size / 8;
  for (size_t i = 0; i < plane; ++i) {
    // Transposes the 8 x 8 bits of eight bytes by swapping blocks of 4, 2 and 1 bits.
    uint64_t x = LoadLE<uint64_t>(from + 8 * i);
    uint64_t t = (x ^ (x >> 7)) & 0x00aa00aa00aa00aa;
    x ^= t ^ (t << 7);
    t = (x ^ (x >> 14)) & 0x0000cccc0000cccc;
    x ^= t ^ (t << 14);
    t = (x ^ (x >> 28)) & 0x00000000f0f0f0f0;
    x ^= t ^ (t << 28);
    for (size_t b = 0; b < 8; ++b) to[b * plane + i] = static_cast<std::byte>(x >> (8 * b));
  }
}

uint64_t PlaneCoder::Compressed(ByteSpan bytes, int level) {
  const size_t size = zstd_.Compress(bytes, compressed_.Get(Zstd::Bound(bytes.size())), level);
  KV_ASSERT(size > 0);  // the buffer is as large as zstd's own bound
  return size;
}

ByteSpan PlaneCoder::Payload(Predictor predictor, const PlaneShape& block, const std::byte* from,
                             bool bitshuffle) {
  const size_t size = block.tokens * block.row;
  ByteSpan payload(from, size);
  if (predictor != Predictor::kRaw) {
    const auto predicted = predicted_.Get(size);
    Predict(predictor, block, from, predicted.data());
    payload = predicted;
  }
  if (bitshuffle) {
    const auto shuffled = shuffled_.Get(size);
    BitShuffle(payload.data(), size, shuffled.data());
    payload = shuffled;
  }
  return payload;
}

uint64_t PlaneCoder::BestOfBlock(const PlaneShape& block, const std::byte* from,
                                 const Options& options, const std::vector<Predictor>& predictors,
                                 Predictor& best, std::byte* to) {
  uint64_t best_size = UINT64_MAX;
  std::vector<Predictor> tried;
  for (const Predictor predictor : predictors) {
    const Predictor simplest = SimplestEqual(predictor, block);
    if (std::find(tried.begin(), tried.end(), simplest) != tried.end()) continue;
    tried.push_back(simplest);
    const ByteSpan payload = Payload(simplest, block, from, options.bitshuffle);
    const uint64_t size = Compressed(payload, options.zstd_level);
    if (size >= best_size) continue;  // if sizes are equal, the first one wins
    best_size = size;
    best = predictor;
    std::memcpy(to, payload.data(), payload.size());
  }
  return best_size;
}

uint64_t PlaneCoder::AdaptiveSize(ByteSpan plane, const PlaneShape& shape, const Options& options,
                                  Stream stream, std::map<Predictor, uint64_t>& counts) {
  const std::vector<Predictor>& predictors = options.predictors[stream];
  for (const Predictor predictor : predictors) counts.try_emplace(predictor, 0);
  const uint64_t block = std::min(static_cast<uint64_t>(options.block_tokens), shape.tokens);
  const auto merged = merged_.Get(plane.size());
  uint64_t blocks = 0, size_of_last = 0;
  for (uint64_t begin = 0; begin < shape.tokens; begin += block, ++blocks) {
    const PlaneShape part = {std::min(block, shape.tokens - begin), shape.row, shape.dim};
    Predictor best = predictors.front();
    size_of_last = BestOfBlock(part, plane.data() + begin * shape.row, options, predictors, best,
                               merged.data() + begin * shape.row);
    ++counts[best];
  }
  // A single block is compressed already, with the size found when it was chosen.
  const uint64_t data = blocks == 1 ? size_of_last : Compressed(merged, options.zstd_level);
  constexpr uint64_t kHeader = 8;
  return data + blocks + kHeader;
}

uint64_t PlaneCoder::Size(ByteSpan plane, const PlaneShape& shape, const Options& options,
                          Stream stream, std::map<Predictor, uint64_t>& counts) {
  KV_ASSERT(shape.tokens > 0 && plane.size() == shape.tokens * shape.row);
  if (options.codec == CodecMode::kAdaptive) {
    return AdaptiveSize(plane, shape, options, stream, counts);
  }
  const bool high = stream == kKHi || stream == kVHi;
  const Predictor predictor = high ? Predictor::kDeltaSeq : Predictor::kRaw;
  ++counts[predictor];
  return Compressed(Payload(predictor, shape, plane.data(), options.bitshuffle),
                    options.zstd_level);
}

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
