// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Lms and like frames (lms.h; FORMAT.md, "Lms frames"): the model's state over rows, the choice of
// tables and symbol width, and the frame itself.

#include "lib/core/codec/context/lms.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/kernels/symbols.h"

namespace kv {
namespace {

const Rotation kNone;

}  // namespace

float LmsScale(uint32_t largest_exponent) {
  return std::ldexp(1.0f, 127 - static_cast<int>(largest_exponent));
}

uint32_t LmsLargestExponent(ByteSpan values, bool bfloat) {
  const uint32_t largest =
      LargestFinite(values.data(), values.size() / 2, bfloat) >> (bfloat ? 7 : 10);
  return std::clamp(largest, 1u, kMaxLmsExponent);
}

LmsModel::LmsModel(uint64_t rows, uint64_t columns, uint32_t pairing, uint32_t largest_exponent,
                   bool bfloat, const Rotation* rotation, const RowSteps& steps, Arena* arena)
    : columns_(columns),
      padded_((columns + kLmsPadding - 1) / kLmsPadding * kLmsPadding),
      pairing_(pairing),
      bfloat_(bfloat),
      scale_(LmsScale(largest_exponent)),
      rotator_(rotation == nullptr ? kNone : *rotation, columns, arena),
      steps_(steps),
      with_earlier_rows_(rotation != nullptr),
      x_((kRing + (with_earlier_rows_ ? rows : 0)) * padded_, arena),
      partners_(kRing * padded_, arena),
      mean_(padded_, arena),
      prediction_(padded_, arena),
      like_(padded_, arena),
      zeros_(padded_, arena),
      contexts_(padded_, kLmsFirstRow, arena),
      signs_(padded_, arena) {
  // Initial weights of the row above and of the similar row, for rows with none, a weak and a
  // strong one (FORMAT.md, "Like frames").
  constexpr float kAbove[3] = {0.5f, 0.25f, 0.0f}, kLike[3] = {0.0f, 0.5f, 1.0f};
  for (size_t i = 0; i < (with_earlier_rows_ ? 3 : 1); ++i) {
    for (ArenaVector<float>& weights : learned_[i].weights) {
      weights = ArenaVector<float>(padded_, arena);
    }
    learned_[i].weights[0].assign(padded_, kAbove[i]);
    learned_[i].weights[2].assign(padded_, kLike[i]);
    learned_[i].sigma = ArenaVector<float>(padded_, arena);
  }
}

LmsChannels LmsModel::Channels() {
  Learned& learned = learned_[which_];
  // Rows -2 and -1 exist as zeros, so that the first rows need no special case.
  const uint64_t place = row_ + kRing;
  LmsChannels channels;
  channels.padded = padded_;
  channels.x1 = X(place - 1);
  channels.p1 = Partners(place - 1);
  channels.x2 = which_ == 0 ? X(place - 2) : like_.data();
  channels.p2 = which_ == 0 ? Partners(place - 2) : zeros_.data();
  for (size_t w = 0; w < 5; ++w) channels.weights[w] = learned.weights[w].data();
  channels.mean = mean_.data();
  channels.sigma = learned.sigma.data();
  channels.prediction = prediction_.data();
  return channels;
}

void LmsModel::Predict(const EarlierRow& like) {
  // Each kind of row has its own weights: 0 without a similar row, 1 with a weakly, 2 with a
  // strongly similar one.
  which_ = like.similarity == 0 ? 0 : like.similarity < kWeakSimilarity ? 2 : 1;
  if (which_ != 0) {
    rotator_.Rotate(steps_.Up(row_, like.distance), X(row_ + kRing - like.distance), like_.data());
  }
  LmsPredict(Channels(), contexts_.data(), signs_.data());
  if (row_ == 0) std::fill(contexts_.begin(), contexts_.end(), kLmsFirstRow);
}

void LmsModel::Learn(const std::byte* values) {
  const LmsChannels channels = Channels();
  float* x = X(row_ + kRing);
  LmsLoad(values, columns_, bfloat_, scale_, x, padded_);
  Learned& learned = learned_[which_];
  // Rates fall as 1 / rows until the window of the average is full.
  ++learned.rows;
  const auto rate = [](uint64_t rows, uint64_t most) {
    return 1.0f / static_cast<float>(std::min(rows, most));
  };
  LmsUpdate(channels, x, rate(learned.rows, 16), rate(row_ + 1, 32));
  if (pairing_ != 0) CopyPartners(pairing_, x, columns_, Partners(row_ + kRing));
  ++row_;
}

namespace {

// Above this many symbols, whole rows are sampled to merge contexts.
constexpr uint64_t kSampledOfLms = 1 << 16;

// Counts symbols whose exponent field is 0; for bf16 with a base these are escapes.
uint64_t CountLmsEscapes(const ContextCounts& counts) {
  uint64_t escapes = 0;
  for (size_t i = 0; i < counts.counts.size(); ++i) {
    if ((i & 0x7c) == 0) escapes += counts.counts[i];
  }
  return escapes;
}

// Returns the distance between the two channels of a rotated pair: 1 if they are adjacent, half a
// head otherwise, 0 if the values show no rotation. A rotation by a small angle changes a channel
// in proportion to its partner, which correlates the steps of one with the values of the other.
uint32_t FindPairing(ByteSpan values, bool bfloat, uint32_t largest, uint64_t rows,
                     uint64_t columns, uint64_t head_dim, Arena* arena) {
  // 64 rows from the middle of the chunk and about 64 channels suffice to see the correlation.
  constexpr uint64_t kRows = 64, kChannels = 64;
  const uint64_t sampled = std::min(rows, kRows), first = (rows - sampled) / 2;
  ArenaVector<float> x(sampled * columns, arena);
  for (uint64_t row = 0; row < sampled; ++row) {
    LmsLoad(values.data() + 2 * (first + row) * columns, columns, bfloat, LmsScale(largest),
            x.data() + row * columns, columns);
  }
  // The step is odd, so that the sampled channels lie in both halves of a head.
  const uint64_t channel_step = std::max<uint64_t>(1, columns / kChannels) | 1;
  double best = 0, change = 0;
  uint32_t pairing = 0;
  for (const uint64_t step : {1, 2, 4, 8, 16, 24, 32, 40, 48, 64, 96, 128}) {
    if (columns % (2 * step) != 0 || (head_dim != 0 && step != 1 && 2 * step != head_dim)) continue;
    double explained = 0;
    change = 0;
    for (uint64_t c = 0; c < columns; c += channel_step) {
      const uint64_t partner = c / step % 2 == 0 ? c + step : c - step;
      double product = 0, power = 1e-12;
      for (uint64_t row = 1; row < sampled; ++row) {
        const float* at = x.data() + row * columns;
        const double delta = at[c] - (at - columns)[c], above = (at - columns)[partner];
        product += delta * above;
        power += above * above;
        change += delta * delta;
      }
      explained += product * product / power;
    }
    if (explained > best) {
      best = explained;
      pairing = static_cast<uint32_t>(step);
    }
  }
  // Noise alone would explain about 1 / `sampled` of the change; a rotation must explain 1.5 times
  // that.
  return best * static_cast<double>(sampled) > 1.5 * change ? pairing : 0;
}

const std::vector<uint16_t>& ContextOrder() {
  static const auto order = [] {
    std::vector<uint16_t> made(kLmsContexts);
    std::iota(made.begin(), made.end(), uint16_t{0});
    return made;
  }();
  return order;
}

void Lookup(const uint8_t* table_of, const uint16_t* contexts, uint64_t count, uint8_t* tables) {
  for (uint64_t c = 0; c < count; ++c) tables[c] = table_of[contexts[c]];
}

// Two histograms in rotation: equal neighbours in one would stall on store-to-load forwarding.
ContextCounts CountInTables(const uint8_t* symbols, const uint8_t* tables, uint64_t count,
                            uint32_t table_count, Arena* arena) {
  ContextCounts even(table_count, 8, arena), odd(table_count, 8, arena);
  uint32_t *to_even = even.counts.data(), *to_odd = odd.counts.data();
  // A row of a histogram has 256 counts, so that table and symbol concatenate to the index.
  for (uint64_t i = 0; i + 2 <= count; i += 2) {
    ++to_even[uint32_t{tables[i]} << 8 | symbols[i]];
    ++to_odd[uint32_t{tables[i + 1]} << 8 | symbols[i + 1]];
  }
  if (count % 2 != 0) ++to_even[uint32_t{tables[count - 1]} << 8 | symbols[count - 1]];
  for (size_t i = 0; i < even.counts.size(); ++i) to_even[i] += to_odd[i];
  return even;
}

// Inverts the top bit of symbols whose predicted sign is negative. Byte arithmetic throughout lets
// compilers vectorise the loop.
void Flip(const uint8_t* signs, uint64_t count, uint32_t bit, uint8_t* symbols) {
  const auto mask = static_cast<uint8_t>(1u << bit);
  for (uint64_t c = 0; c < count; ++c) {
    const auto all = static_cast<uint8_t>(-signs[c]);
    symbols[c] = static_cast<uint8_t>(symbols[c] ^ (all & mask));
  }
}

// Symbols with their signs relative to the prediction, and the tables that code them. The arrays
// are in the scratch.
struct PredictedSymbols {
  ContextGroups groups;
  ContextCounts grouped;  // exact, by group
};

// Runs the model over all rows, collects symbols and contexts, and merges contexts into tables.
PredictedSymbols PredictSymbols(ByteSpan values, const SymbolShape& shape, uint64_t rows,
                                uint64_t columns, const EarlierRowsPlan* like, LmsModel& lms,
                                ContextScratch& scratch) {
  const uint64_t count = rows * columns;
  scratch.symbols.resize(count);
  scratch.contexts.resize(count);
  uint8_t* symbols = scratch.symbols.data();
  ToSymbols(values.data(), count, shape, symbols);
  const uint64_t row_step = std::max<uint64_t>(1, count / kSampledOfLms);
  ContextCounts joint(kLmsContexts, 6, &scratch.arena);
  for (uint64_t row = 0; row < rows; ++row) {
    lms.Predict(like == nullptr ? EarlierRow{} : like->earlier_rows[row]);
    uint8_t* here = symbols + row * columns;
    Flip(lms.signs(), columns, 7, here);
    std::copy_n(lms.contexts(), columns, scratch.contexts.data() + row * columns);
    lms.Learn(values.data() + 2 * row * columns);
    if (row % row_step != 0) continue;
    for (uint64_t c = 0; c < columns; ++c)
      ++joint.counts[uint32_t{lms.contexts()[c]} << 6 | here[c] >> 2];
  }
  ContextGroups groups =
      MergeContexts(joint, ContextOrder(), static_cast<uint32_t>(row_step), true);
  scratch.tables.resize(count);
  Lookup(groups.group_of.data(), scratch.contexts.data(), count, scratch.tables.data());
  ContextCounts grouped =
      CountInTables(symbols, scratch.tables.data(), count, groups.groups, &scratch.arena);
  return {std::move(groups), std::move(grouped)};
}

// Sets the symbol width of the smallest frame and returns the frame's estimated bytes.
uint64_t ChooseLmsWidth(const PredictedSymbols& predicted, uint64_t count, uint64_t escapes,
                        SymbolShape& shape) {
  uint64_t least = UINT64_MAX;
  uint32_t bits = 8;
  for (uint32_t candidate = shape.form.byte_shift != 0 ? 8 : 6; candidate <= 8; ++candidate) {
    shape.symbol_bits = candidate;
    // 80 bytes are for the header and the lane states, and one byte per group for its map.
    const uint64_t bytes = 80 + predicted.groups.groups +
                           CostBytes(Coarser(predicted.grouped, candidate), 1) +
                           RawPlaneBytes(count, shape.raw_bits()) + escapes;
    if (bytes >= least) continue;
    least = bytes;
    bits = candidate;
  }
  shape.symbol_bits = bits;
  return least;
}

// The frame stores the distance of a rotation in one byte, which the halves of the widest heads
// exceed.
bool StoresRotation(const EarlierRowsPlan* like) {
  return like != nullptr && !like->rotation.angles.empty() && like->rotation.distance <= UINT8_MAX;
}

}  // namespace

// Codes in one pass over the rows: the model predicts, the sign of each symbol is taken relative to
// the prediction, and contexts are collected. Then contexts are merged into tables, the symbol
// width is chosen by estimated size, and all symbols are coded.
bool EncodeLms(ByteSpan values, const HalfSurvey& survey, uint64_t rows, uint64_t columns,
               uint64_t head_dim, const EarlierRowsPlan* like, uint64_t to_beat,
               CodecScratch& codec, Bytes& out, const RowSteps& steps) {
  ContextScratch& scratch = codec.context;
  Arena* const arena = &scratch.arena;
  const uint64_t count = rows * columns;
  KV_ASSERT(count * 2 == values.size() && rows > 1 && columns >= kRansLanes);
  uint64_t escapes = 0;
  SymbolShape shape = ChooseWindow(survey, escapes);
  shape.symbol_bits = 8;
  const uint32_t largest = LmsLargestExponent(values, survey.form.bfloat);
  const uint32_t pairing = StoresRotation(like) ? like->rotation.distance
                                                : FindPairing(values, survey.form.bfloat, largest,
                                                              rows, columns, head_dim, arena);
  LmsModel lms(rows, columns, pairing, largest, survey.form.bfloat,
               like == nullptr ? nullptr : &like->rotation, steps, arena);
  const PredictedSymbols predicted =
      PredictSymbols(values, shape, rows, columns, like, lms, scratch);
  // Exact now: the survey may have seen a sample only.
  if (shape.has_escapes()) escapes = CountLmsEscapes(predicted.grouped);
  if (ChooseLmsWidth(predicted, count, escapes, shape) >= to_beat) return false;

  uint8_t* symbols = scratch.symbols.data();
  const uint32_t bits = shape.symbol_bits;
  for (uint64_t i = 0; i < count; ++i) symbols[i] = static_cast<uint8_t>(symbols[i] >> (8 - bits));
  const ContextModel model = MakeModel(predicted.groups, Coarser(predicted.grouped, bits));
  MakeEncoderSymbols(model, scratch.encoder_symbols);
  scratch.words.resize(count + kRansRoom);
  RansGrid grid{rows, columns};
  // Shorter frames take fewer lanes, because each lane costs four bytes of state.
  grid.lanes = RansLanesFor(grid, 1 << 16, 1 << 17);
  RansStates states;
  states.fill(kRansLow);
  uint16_t* end = scratch.words.data() + count + kRansRoom;
  const uint16_t* begin = RansEncode(symbols, grid, {.tables = scratch.tables.data()},
                                     scratch.encoder_symbols.data(), end, states);

  ByteWriter head;
  head.U8(SymbolsAndLanes(shape, grid));
  head.U8(static_cast<uint8_t>(shape.exponent_base));
  head.U8(static_cast<uint8_t>(pairing));
  head.U8(static_cast<uint8_t>(largest));
  head.U32(static_cast<uint32_t>(rows));
  head.U32(static_cast<uint32_t>(columns));
  head.U32(static_cast<uint32_t>(escapes));
  if (escapes > 0) AppendEscapes(values, symbols, shape, escapes, head);
  if (like != nullptr) WriteEarlierRows(*like, codec, head);
  WriteModel(model, ContextOrder(), head);
  const std::span<const uint16_t> words(begin, end);
  const uint64_t frame_bytes =
      head.size() + RawPlaneBytes(count, shape.raw_bits()) + 4 * grid.lanes + words.size_bytes();
  if (frame_bytes >= to_beat) return false;
  out.reserve(out.size() + frame_bytes);  // a buffer that grows would be copied
  out.insert(out.end(), head.bytes().begin(), head.bytes().end());
  AppendPlanes(values, shape, out);
  AppendCoded({states.data(), grid.lanes}, words, out);
  return true;
}

// Decodes row by row: the contexts of a row follow from the rows above, so each row is predicted,
// decoded, completed with its raw bits, and learnt.
void DecodeLms(ByteSpan frame, HalfForm form, bool with_earlier_rows, std::span<std::byte> values,
               CodecScratch& codec, const RowSteps& steps) {
  ContextScratch& scratch = codec.context;
  ByteReader reader(frame);
  const size_t count = values.size() / 2;
  SymbolShape shape{.form = form};
  RansGrid grid;
  ReadSymbolsAndLanes(reader, shape, grid);
  shape.exponent_base = reader.U8("exponent base");
  const uint32_t pairing = reader.U8("pairing"), largest = reader.U8("largest exponent");
  grid.rows = reader.U32("rows");
  grid.columns = reader.U32("columns");
  const uint32_t escape_count = reader.U32("escape count");
  CheckGrid(shape, grid, values.size());
  if (largest == 0 || largest > kMaxLmsExponent) {
    throw Error(Finding::kBadFrame, "the largest exponent cannot be {}", largest).At(3);
  }
  const ByteSpan escapes = reader.Take(escape_count, "escapes");
  if (with_earlier_rows) CheckSteps(steps, grid.rows);
  EarlierRowsPlan like;
  if (with_earlier_rows) like = ReadEarlierRows(reader, grid.rows, grid.columns, codec);
  const ContextModel model = ReadModel(reader, shape.symbol_bits, ContextOrder(), &scratch.arena);
  const CodedPart coded = ReadCoded(reader, shape, grid, 0);

  MakeSlots(model, scratch.slots);
  UnpackRawBits(coded.planes.data(), count, shape.raw_bits(), values.data());
  scratch.symbols.resize(grid.columns);
  scratch.tables.resize(grid.columns);
  uint8_t* symbols = scratch.symbols.data();
  uint8_t* tables = scratch.tables.data();
  const uint8_t* table_of = model.table_of.data();
  RansStates states = coded.states;
  const RansGrid row_grid{1, grid.columns, grid.lanes};
  size_t used = 0, escapes_used = 0;
  LmsModel lms(grid.rows, grid.columns, pairing, largest, form.bfloat,
               with_earlier_rows ? &like.rotation : nullptr, steps, &scratch.arena);
  for (uint64_t row = 0; row < grid.rows; ++row) {
    lms.Predict(with_earlier_rows ? like.earlier_rows[row] : EarlierRow{});
    Lookup(table_of, lms.contexts(), grid.columns, tables);
    const size_t taken =
        RansDecode(symbols, row_grid, {.tables = tables}, scratch.slots.data(),
                   coded.words.data() + 2 * used, coded.word_count() - used, states);
    std::byte* here = values.data() + 2 * row * grid.columns;
    if (taken == SIZE_MAX) {
      throw Error(Finding::kBadPayload, "the coded symbols end early").At(coded.words_at);
    }
    used += taken;
    Flip(lms.signs(), grid.columns, shape.symbol_bits - 1, symbols);
    AddSymbols(symbols, grid.columns, shape, here);
    if (!AddEscapes(symbols, grid.columns, shape, reinterpret_cast<const uint8_t*>(escapes.data()),
                    escapes.size(), escapes_used, here)) {
      throw Error(Finding::kBadPayload, "there are fewer escapes than the symbols need").At(12);
    }
    lms.Learn(here);
  }
  if (escapes_used != escapes.size()) {
    throw Error(Finding::kBadPayload, "there are more escapes than the symbols need").At(12);
  }
  CheckCodedEnd(coded, used, states, 0);
}

}  // namespace kv
