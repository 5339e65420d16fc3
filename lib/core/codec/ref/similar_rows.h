// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by similar_distributions.cc, similar_differences.cc, similar_layers.cc

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lib/core/base/hash.h"
#include "lib/core/codec/cdf/layers.h"
#include "lib/core/codec/codec.h"
#include "lib/core/kernels/residual.h"

// Similar rows (SimilarRows in the code): rows of 16-bit floats that are coded by their difference
// from expected rows. There are three codings of the differences, and a forecast of them from other
// chunks. Internal to lib/core/codec/ref, whose FORMAT.md is the grammar.
//
// similar_rows.cc codes distances with static tables (kRef), similar_differences.cc a list of the
// few values that differ (kRefSparse), similar_distributions.cc learned distributions (kRefCdf),
// and similar_layers.cc forecasts the differences from other chunks (kRefLayers).
namespace kv {

// Maps consecutive rows of a chunk to the tokens of another cache that represent them.
struct ReferenceRun {
  uint16_t reference = 0;  // index into the archive's list of references
  bool is_value = false;
  bool equal = false;  // true: the rows are copies; false: their differences are coded
  uint32_t layer = 0;  // the layer's number in the reference
  uint32_t first_row = 0, rows = 0;
  uint64_t first_token = 0;    // in the reference
  int32_t position_shift = 0;  // position of the rows here minus that in the reference
  Hash128Bytes hash = {};      // hash of the reference's rows
};

// Gives access to rows of the caches that an archive refers to.
class ReferenceRows {
 public:
  virtual ~ReferenceRows() = default;
  // Fills `rows` with the run's tokens as stored, [token][head][unit], and returns their type.
  // Throws kReferenceMissing, and kReferenceDiffers if there are no such tokens or a token does not
  // have exactly `elements` elements.
  virtual DType Read(const ReferenceRun& run, uint64_t elements, Bytes& rows) const = 0;
  // Fills `rows` with the tokens of an equal run of a chunk of this type. Also throws
  // kReferenceDiffers if they are of another type or size.
  virtual void ReadEqual(const ReferenceRun& run, DType dtype, uint64_t elements,
                         std::span<std::byte> rows) const;
};
// Throws kReferenceDiffers unless `fits`: the run's rows must have the size that the chunk needs.
void RequireRows(bool fits, const ReferenceRun& run);

// A factor is one byte per row: kEqualRow, kOwnRow, or kFactorOfUsual plus the half octaves by
// which the row's errors differ from the usual.
constexpr uint8_t kFactorOfUsual = 32, kMostFactor = 61, kEqualRow = 62, kOwnRow = 63;

// Computes the expected rows: rows of a reference, rotated to their position and converted to the
// chunk's type.
class ExpectedRows {
 public:
  ExpectedRows(HalfForm form, uint64_t columns, const Rotation& rotation);
  // Converts whole rows of any type in `from` to expected values.
  void Make(DType dtype, ByteSpan from, int32_t shift, uint16_t* expected);

 private:
  void Round(uint16_t* expected);

  HalfForm form_;
  uint64_t columns_;
  const Rotation& rotation_;
  Rotator rotator_;
  std::vector<float> x_, cosines_, sines_, partners_;
  std::vector<uint8_t> bytes_;  // one row of 8-bit floats
};

// All similar rows of a chunk, in order.
struct SimilarRows {
  HalfForm form;
  uint64_t columns = 0;
  ArenaVector<uint16_t> expected, values;
  ArenaVector<uint8_t> factors;  // one per row

  explicit SimilarRows(Arena* arena) : expected(arena), values(arena), factors(arena) {}

  uint64_t rows() const { return factors.size(); }
};

// Sets the factors: kEqualRow for rows that are as expected, kOwnRow for rows that are cheaper to
// code without a reference, at `own_bits` a value. Then appends everything that a decoder needs to
// turn `expected` into `values`, except for remaining rows.
void EncodeSimilarRows(SimilarRows& similar, double own_bits, CodecScratch& scratch,
                       ByteWriter& out);
// Decodes into `values` and `factors`, which have their final sizes; values of remaining rows stay.
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeSimilarRows(ByteReader& reader, SimilarRows& similar, CodecScratch& scratch);

// Returns the contexts of residuals in their order: the classes of the expected values.
std::vector<uint16_t> ResidualClassOrder();
uint64_t CodedRows(const SimilarRows& similar);  // counts rows that are neither equal nor remaining
// Computes the classes of all coded rows, one after another.
void ComputeClasses(const SimilarRows& similar, const std::vector<int16_t>& scales,
                    uint8_t* classes);

// Helpers that all codings of similar rows share. Equal rows are marked by their factors.
void MarkEqualRows(SimilarRows& similar);
void WriteFactors(const ArenaVector<uint8_t>& factors, CodecScratch& scratch, ByteWriter& out);
void ReadFactors(ByteReader& reader, SimilarRows& similar, CodecScratch& scratch);
void CopyEqualRows(SimilarRows& similar);

// Codings whose distributions are learned on the way are smaller and slower than tables.
//
// An ErrorForecast predicts by how much the values of a similar row exceed the expected ones. Calls
// of Expect and Learn alternate, in the order of the rows; equal rows are left out.
class ErrorForecast {
 public:
  virtual ~ErrorForecast() = default;
  virtual const float* Expect(uint64_t similar_row) = 0;
  virtual void Learn(uint64_t similar_row, const float* errors) = 0;
};

// Sets the factors of rows that are as expected to kEqualRow; no row becomes a remaining row.
// Returns false without appending anything if too few rows differ.
bool EncodeSimilarDistributions(SimilarRows& similar, uint64_t head_dim, CodecScratch& scratch,
                                ByteWriter& out, ErrorForecast* forecast = nullptr);
// Behaves as DecodeSimilarRows.
void DecodeSimilarDistributions(ByteReader& reader, SimilarRows& similar, CodecScratch& scratch,
                                ErrorForecast* forecast = nullptr);

// A list of the differing values is tried if fewer than one value in this many differs.
constexpr uint64_t kFewDifferences = 24;
// If fewer than one value in this many differs, the list is taken without trying other codings.
constexpr uint64_t kVeryFewDifferences = 128;

// Returns the number of values that differ from the expected ones, or any number above `most`.
uint64_t CountDifferences(const SimilarRows& similar, uint64_t most);
// Makes no row a remaining row and leaves the factors unchanged.
void EncodeSimilarDifferences(const SimilarRows& similar, CodecScratch& scratch, ByteWriter& out);
// Behaves as DecodeSimilarRows, and sets all factors to 0.
void DecodeSimilarDifferences(ByteReader& reader, SimilarRows& similar, CodecScratch& scratch);

// Forecasts errors of similar rows from errors of neighbours: where one layer of a cache differs
// from the reference, the next layer differs in a similar way.

// A neighbour, and the layer that represents it in the references.
struct ErrorNeighbour {
  Neighbour neighbour;
  std::vector<uint32_t> layers;  // number of the layer in the reference, per similar run
  Hash128Bytes hash = {};        // hash of the reference's rows, run after run
};

struct ErrorsHead {
  bool rotates = false;  // true if the chunk's own rows are rotated, as rows of K are
  std::vector<ErrorNeighbour> neighbours;
  Rotation rotation;                    // rotation of K
  std::vector<int32_t> shifts_of_runs;  // per similar K run: its position minus the reference's
};

void WriteErrorsHead(const ErrorsHead& head, ByteWriter& out);
// Throws kTruncated, and kBadFrame for values that no encoder writes.
ErrorsHead ReadErrorsHead(ByteReader& reader, uint64_t similar_runs);

class NeighbourErrors : public ErrorForecast {
 public:
  // `similar_runs` are the chunk's similar runs; its similar rows are their rows in order. Collects
  // the hashes of the references' rows, for the caller to compare or store. Throws what
  // NeighbourSource and ReferenceRows throw, kBadFrame, kReferenceDiffers.
  NeighbourErrors(const ErrorsHead& head, std::span<const ReferenceRun> similar_runs, uint64_t rows,
                  uint64_t columns, const ReferenceRows& references,
                  const NeighbourSource& neighbours);
  ~NeighbourErrors() override;

  // Returns the hashes of the references' rows, one per neighbour.
  const std::vector<Hash128Bytes>& hashes() const { return hashes_; }
  const float* Expect(uint64_t similar_row) override;
  void Learn(uint64_t similar_row, const float* errors) override;

 private:
  class Taps;

  const ErrorsHead& head_;
  std::vector<uint32_t> rows_;  // index of each similar row in the chunk
  std::vector<Hash128Bytes> hashes_;
  std::vector<std::unique_ptr<Taps>> taps_;
  BlockRegression block_;
  Rotator rotator_;
  std::vector<float> forecast_, rotated_;
};

}  // namespace kv
