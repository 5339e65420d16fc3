// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by near_distributions.cc, near_differences.cc, near_layers.cc

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/base/hash.h"
#include "lib/core/codec/cdf/layers.h"
#include "lib/core/codec/codec.h"
#include "lib/core/kernels/residual.h"

// Rows of 16-bit floats coded by their distance to rows that are expected: three ways to code the
// differences, and what neighbours say of them. Internal to lib/core/codec/ref, whose FORMAT.md is
// the grammar.
namespace kv {

// Consecutive rows of a chunk and the tokens of another cache that stand for them.
struct ReferenceRun {
  uint16_t reference = 0;  // its place in the archive's list
  bool is_value = false;
  bool equal = false;  // the same bytes; otherwise residuals tell the difference
  uint32_t layer = 0;  // the reference's own number of it
  uint32_t first_row = 0, rows = 0;
  uint64_t first_token = 0;  // of the reference
  int32_t turn = 0;          // steps by which positions here are further on
  Hash128Bytes hash = {};    // of the reference's rows
};

// Gives rows of the caches that an archive refers to.
class ReferenceRows {
 public:
  virtual ~ReferenceRows() = default;
  // Fills `rows` with the run's tokens as they are stored, [token][head][unit], and returns their
  // type. Throws kReferenceMissing, and kReferenceDiffers where there are no such tokens or where
  // one has not just so many elements.
  virtual DType Read(const ReferenceRun& run, uint64_t elements, Bytes& rows) const = 0;
  // Fills `rows` with the tokens of an equal run of a chunk of this type. Throws kReferenceDiffers
  // also where they are of another type or size.
  virtual void ReadEqual(const ReferenceRun& run, DType dtype, uint64_t elements,
                         std::span<std::byte> rows) const;
};
// Throws kReferenceDiffers unless rows have the size that the chunk wants.
void RequireRows(bool fits, const ReferenceRun& run);

// One byte per row: the half octaves by which its errors differ from those of others, plus
// kFactorOfUsual, or one of the last two.
constexpr uint8_t kFactorOfUsual = 32, kMostFactor = 61, kEqualRow = 62, kOwnRow = 63;

// What rows of a reference are expected to be here: of the chunk's type, turned to their place.
class ExpectedRows {
 public:
  ExpectedRows(HalfForm form, uint64_t columns, const Rotation& rotation);
  // `from` holds whole rows of any type.
  void Make(DType dtype, ByteSpan from, int32_t turn, uint16_t* expected);

 private:
  void Round(uint16_t* expected);

  HalfForm form_;
  uint64_t columns_;
  const Rotation& rotation_;
  Turner turner_;
  std::vector<float> x_, cosines_, sines_, partners_;
  std::vector<uint8_t> bytes_;  // of a row of 8-bit floats
};

// All near rows of a chunk, one after another.
struct NearRows {
  HalfForm form;
  uint64_t columns = 0;
  ArenaVector<uint16_t> expected, values;
  ArenaVector<uint8_t> factors;  // one per row

  explicit NearRows(Arena* arena) : expected(arena), values(arena), factors(arena) {}

  uint64_t rows() const { return factors.size(); }
};

// Gives rows factors: kOwnRow those that are better coded otherwise, at `own_bits` a value,
// kEqualRow those that are as expected. Then appends all that tells `values` from `expected`, but
// for own rows.
void EncodeNearRows(NearRows& near, double own_bits, CodecScratch& scratch, ByteWriter& out);
// Reads that into `values` and `factors`, which have their final sizes; values of own rows stay.
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeNearRows(ByteReader& reader, NearRows& near, CodecScratch& scratch);

// What both directions share: residuals are coded by the classes of what is expected, in this
// order.
std::vector<uint16_t> ResidualClassOrder();
uint64_t CodedRows(const NearRows& near);  // neither equal nor own
// The classes of all coded rows, one after another.
void ClassesOf(const NearRows& near, const std::vector<int16_t>& scales, uint8_t* classes);

// What this has in common with other ways to code near rows.
void WriteFactors(const ArenaVector<uint8_t>& factors, CodecScratch& scratch, ByteWriter& out);
void ReadFactors(ByteReader& reader, NearRows& near, CodecScratch& scratch);
void CopyEqualRows(NearRows& near);

// Near rows whose differences from what is expected are coded under distributions that are learned
// on the way: smaller and slower than by tables.

// Expects errors from elsewhere: how much more the values of a near row are than what is expected
// of them. Rows are expected and known in order, by turns; those that are equal are left out.
class ErrorForecast {
 public:
  virtual ~ErrorForecast() = default;
  virtual const float* Expect(uint64_t near_row) = 0;
  virtual void Know(uint64_t near_row, const float* errors) = 0;
};

// Gives rows factors, kEqualRow to those that are as expected; no row becomes an own row. Returns
// false, having appended nothing, if there are too few rows that differ.
bool EncodeNearDistributions(NearRows& near, uint64_t head_dim, CodecScratch& scratch,
                             ByteWriter& out, ErrorForecast* forecast = nullptr);
// As DecodeNearRows.
void DecodeNearDistributions(ByteReader& reader, NearRows& near, CodecScratch& scratch,
                             ErrorForecast* forecast = nullptr);

// Near rows of which few values are not as expected: a list of these.

// What a list is for: fewer values than one in so many differ.
constexpr uint64_t kFewDifferences = 24;
// Below one in so many nothing takes less than a list.
constexpr uint64_t kVeryFewDifferences = 128;

// How many values are not as expected; any number above `most` if there are more.
uint64_t CountDifferences(const NearRows& near, uint64_t most);
// No row becomes an own row; factors stay.
void EncodeNearDifferences(const NearRows& near, CodecScratch& scratch, ByteWriter& out);
// As DecodeNearRows; all factors become 0.
void DecodeNearDifferences(ByteReader& reader, NearRows& near, CodecScratch& scratch);

// Expects the errors of near rows from those of neighbours: where one layer of a cache differs from
// a reference, the next one differs in much the same way.

// A neighbour, and what stands for its rows in the references.
struct ErrorNeighbour {
  Neighbour neighbour;
  std::vector<uint32_t> layers;  // for each near run, the reference's number of the layer
  Hash128Bytes hash = {};        // of the reference's rows, run after run
};

struct ErrorsHead {
  bool turns = false;  // whether the chunk's own rows turn, as those of K do
  std::vector<ErrorNeighbour> neighbours;
  Rotation rotation;  // of K
  std::vector<int32_t>
      turns_of_runs;  // of K, for each near run: steps by which it is further on here
};

void WriteErrorsHead(const ErrorsHead& head, ByteWriter& out);
// Throws kTruncated, and kBadFrame for what no encoder writes.
ErrorsHead ReadErrorsHead(ByteReader& reader, uint64_t near_runs);

class NeighbourErrors : public ErrorForecast {
 public:
  // `near_runs` are those of the chunk, whose near rows are in them, one after another. Hashes of
  // the head are checked, or set. Throws as NeighbourSource and ReferenceRows do, kBadFrame,
  // kReferenceDiffers.
  NeighbourErrors(const ErrorsHead& head, std::span<const ReferenceRun> near_runs, uint64_t rows,
                  uint64_t columns, const ReferenceRows& references,
                  const NeighbourSource& neighbours);
  ~NeighbourErrors() override;

  // Of the references' rows, by neighbours.
  const std::vector<Hash128Bytes>& hashes() const { return hashes_; }
  const float* Expect(uint64_t near_row) override;
  void Know(uint64_t near_row, const float* errors) override;

 private:
  class Taps;

  const ErrorsHead& head_;
  std::vector<uint32_t> rows_;  // of the chunk, for each near row
  std::vector<Hash128Bytes> hashes_;
  std::vector<std::unique_ptr<Taps>> taps_;
  BlockRegression block_;
  Turner turner_;
  std::vector<float> forecast_, turned_;
};

}  // namespace kv
