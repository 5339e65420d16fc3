// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// KVTC: the quantisers, buffers, pages and programmes of Dynamo and SGLang, and kvtool's own forms.
#include "lib/engines/dynamo/kvtc.h"

#include <zlib.h>

#include <catch2/catch.hpp>
#include <numeric>

#include "lib/core/snapshot/rope.h"
#include "lib/engines/sglang/ascend.h"
#include "lib/study/transform/steps.h"
#include "tests/golden/quant_arrays.h"
#include "tests/support/sglang_pages.h"

namespace kv::golden {
namespace {

using nlohmann::json;
using transform::Rows;

// Npz reads the arrays of one vector.
class Npz {
 public:
  explicit Npz(const std::string& name)
      : file_(ReadNpz(Source::Open((Root() / "kvtc" / name).string()), {})) {
    for (const auto& check : file_.checks) check();
  }
  bool Has(const std::string& name) const { return file_.Find(name) != nullptr; }
  const TensorView& View(const std::string& name) const {
    INFO("array " << name);
    REQUIRE(Has(name));
    return file_.Find(name)->view;
  }
  Shape ShapeOf(const std::string& name) const { return View(name).shape; }
  // Returns the numbers of tokens and components of a matrix.
  std::pair<uint64_t, uint64_t> Matrix(const std::string& name) const {
    const Shape shape = ShapeOf(name);
    REQUIRE(shape.size() == 2);
    REQUIRE(shape[0] * shape[1] > 0);
    return {shape[0], shape[1]};
  }
  Bytes Raw(const std::string& name) const { return CopyContiguous(View(name)); }
  std::vector<float> Floats(const std::string& name) const {
    std::vector<float> values(View(name).elements());
    const bool is_float = Info(View(name).dtype).is_float;
    REQUIRE(is_float);
    ToFloats(View(name).dtype, Raw(name), values);
    return values;
  }
  double Double(const std::string& name) const {
    REQUIRE(View(name).dtype == DType::kF64);
    REQUIRE(View(name).elements() == 1);
    return LoadLE<double>(Raw(name).data());
  }
  template <typename T>
  std::vector<T> As(const std::string& name) const {
    REQUIRE(Info(View(name).dtype).block_bytes == sizeof(T));
    const Bytes raw = Raw(name);
    std::vector<T> values(View(name).elements());
    std::memcpy(values.data(), raw.data(), raw.size());
    return values;
  }
  std::vector<int64_t> Integers(const std::string& name) const { return As<int64_t>(name); }
  uint64_t Count(const std::string& name) const {
    REQUIRE(View(name).elements() == 1);
    REQUIRE(Integers(name)[0] >= 0);
    return static_cast<uint64_t>(Integers(name)[0]);
  }

 private:
  TensorFile file_;
};

dynamo::Fp8Path PathOf(const json& vector) {
  const bool is_soft = vector.at("file").get<std::string>().find("soft") != std::string::npos;
  return is_soft ? dynamo::Fp8Path::kSoft : dynamo::Fp8Path::kSm89;
}

// Encodes values, or decodes codes.
void CheckDynamoFp8(const json& vector, Run& run) {
  const Npz npz(vector.at("file"));
  const std::vector<uint8_t> codes = npz.As<uint8_t>("code");
  if (npz.Has("x")) {
    const std::vector<float> values = npz.Floats("x");
    REQUIRE(values.size() == codes.size());
    for (size_t i = 0; i < codes.size(); ++i) {
      INFO(values[i]);
      // NaNs may differ in their sign, which no format specifies.
      const int mask = std::isnan(values[i]) ? 0x7f : 0xff;
      CHECK((dynamo::ToFp8(values[i], PathOf(vector)) & mask) == (codes[i] & mask));
      if (npz.Has("differs")) {
        const bool differs = codes[i] != dynamo::ToFp8(values[i], dynamo::Fp8Path::kSm89);
        CHECK(differs == (npz.As<uint8_t>("differs")[i] != 0));
      }
    }
    run.Checked();
  }
  if (npz.Has("value")) {
    const std::vector<float> values = npz.Floats("value");
    REQUIRE(values.size() == codes.size());
    for (size_t i = 0; i < codes.size(); ++i)
      CHECK(EqualBits(std::vector{E4M3ToF32(codes[i])}, std::vector{values[i]}));
    run.Checked();
  }
}

void CheckDynamoInt(const json& vector, Run& run) {
  const Npz npz(vector.at("file"));
  const auto [rows, width] = npz.Matrix("x");
  const std::vector<float> x = npz.Floats("x"), value = npz.Floats("value");
  const std::vector<float> least = npz.Floats("min"), most = npz.Floats("max");
  const std::vector<uint8_t> codes = npz.As<uint8_t>("code");
  const Bytes packed = npz.Raw("packed");
  const std::string name = vector.at("file");
  const auto bits = static_cast<uint32_t>(std::stoi(name.substr(name.find("int") + 3)));
  REQUIRE((bits == 1 || bits == 2 || bits == 4 || bits == 8));
  const uint64_t row_bytes = (width * bits + 7) / 8;
  REQUIRE(packed.size() == rows * row_bytes);
  REQUIRE(value.size() == x.size());
  REQUIRE(codes.size() == x.size());
  REQUIRE((least.size() == rows && most.size() == rows));
  for (uint64_t r = 0; r < rows; ++r) {
    Bytes got(row_bytes);
    const std::span<const float> row(&x[r * width], width);
    const dynamo::Extremes extremes = dynamo::EncodeRow(row, bits, got.data());
    CHECK(EqualBits(std::vector{extremes.least, extremes.most}, std::vector{least[r], most[r]}));
    const ByteSpan expected(&packed[r * row_bytes], row_bytes);
    CHECK(std::equal(got.begin(), got.end(), expected.begin()));
    for (uint64_t i = 0; i < width; ++i) {
      const auto byte = std::to_integer<uint32_t>(expected[i * bits / 8]);
      CHECK((byte >> (i * bits % 8) & ((1u << bits) - 1)) == codes[r * width + i]);
    }
    std::vector<float> back(width);
    dynamo::DecodeRow(extremes, bits, got.data(), back);
    CHECK(EqualBits(back, std::span(&value[r * width], width)));
  }
  run.Checked();
}

std::vector<dynamo::Range> ListRanges(const Npz& npz) {
  const auto [count, fields] = npz.Matrix("ranges");
  REQUIRE(fields == 4);
  const std::vector<int64_t> all = npz.Integers("ranges");
  std::vector<dynamo::Range> ranges;
  for (size_t i = 0; i < count; ++i) {
    const int64_t* range = &all[4 * i];
    CHECK((range[2] == 0) == (range[3] == 0));  // fp8 ranges have no number of bits
    ranges.push_back({static_cast<uint64_t>(range[0]), static_cast<uint64_t>(range[1]),
                      static_cast<uint32_t>(range[3])});
  }
  return ranges;
}

// Checks the buffer of these coefficients and returns its decoded values. One vector has a gap.
std::vector<float> CheckBuffer(const Npz& npz, const std::string& coefficients) {
  const auto [rows, components] = npz.Matrix(coefficients);
  const std::vector<float> x = npz.Floats(coefficients);
  const std::vector<dynamo::Range> ranges = ListRanges(npz);
  const Bytes expected = npz.Raw("bytes");
  const Bytes bytes =
      dynamo::WriteBuffer(x, rows, components, ranges, dynamo::Fp8Path::kSm89, dynamo::Gaps::kZero);
  CHECK(bytes == expected);
  const dynamo::Buffer buffer = dynamo::ReadBuffer(expected, rows, components, dynamo::Gaps::kZero);
  CHECK(buffer.ranges == ranges);
  return buffer.values;
}

void CheckDynamoBuffer(const json& vector, Run& run) {
  const Npz npz(vector.at("file"));
  CHECK(EqualBits(CheckBuffer(npz, "x"), npz.Floats("value")));
  run.Checked();
}

// Reads blocks of 16-bit or 32-bit elements.
std::vector<float> BlocksOf(const Npz& npz, const std::string& name, DType dtype) {
  std::vector<float> values(npz.View(name).elements());
  REQUIRE(Info(npz.View(name).dtype).block_bytes == Info(dtype).block_bytes);
  ToFloats(dtype, npz.Raw(name), values);
  return values;
}

// Returns the dot product of a row and a column, in double.
float Product(const float* row, const float* column, uint64_t step, uint64_t count) {
  double sum = 0;
  for (uint64_t i = 0; i < count; ++i)
    sum += static_cast<double>(row[i]) * static_cast<double>(column[i * step]);
  return static_cast<float>(sum);
}

void CheckDynamoEndToEnd(const json& vector, Run& run) {
  const Npz npz(vector.at("file"));
  const auto [rows, components] = npz.Matrix("y");
  const auto [blocks, features] = npz.Matrix("blocks");
  REQUIRE(blocks == rows);
  REQUIRE(npz.ShapeOf("projection") == Shape{features, components});
  const std::string name = vector.at("file");
  const DType dtype = name.find("bfloat16") != std::string::npos  ? DType::kBF16
                      : name.find("float16") != std::string::npos ? DType::kF16
                                                                  : DType::kF32;
  std::vector<float> x = BlocksOf(npz, "blocks", dtype);
  const std::vector<float> mean = npz.Floats("mean"), projection = npz.Floats("projection");
  const std::vector<float> y = npz.Floats("y"), expected = BlocksOf(npz, "out", dtype);
  REQUIRE(mean.size() == features);
  REQUIRE(expected.size() == x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] -= mean[i % features];
  for (uint64_t i = 0; i < y.size(); ++i) {
    const float product =
        Product(&x[i / components * features], &projection[i % components], components, features);
    CHECK(y[i] == Approx(product).epsilon(1e-5).margin(1e-4));
  }
  const std::vector<float> stored = CheckBuffer(npz, "y");
  for (uint64_t i = 0; i < x.size(); ++i) {
    const uint64_t feature = i % features;
    const float product = Product(&stored[i / features * components],
                                  &projection[feature * components], 1, components);
    // The last bits of the product may be rounded to the neighbour.
    CHECK(expected[i] ==
          Approx(RoundedTo(dtype, product + mean[feature])).epsilon(0.01).margin(1e-4));
  }
  run.Checked();
}

std::vector<CodeType> TypesNamed(const json& names) {
  std::vector<CodeType> types;
  for (const std::string name : names) {
    const auto type = ParseCodeType(name);
    REQUIRE(type);
    types.push_back(*type);
  }
  return types;
}

const std::vector<CodeType>& AscendTypes() {
  static const std::vector<CodeType> types = TypesNamed({"float32", "bfloat16", "int8", "int4"});
  return types;
}

// Returns groups of `unit` components; their types are indices into a list.
CodeSchema SchemaIn(const Npz& npz, const std::string& size, const std::string& type,
                    const std::vector<CodeType>& types, uint32_t unit = 1) {
  const std::vector<int64_t> sizes = npz.Integers(size), places = npz.Integers(type);
  REQUIRE(sizes.size() == places.size());
  CodeSchema schema;
  for (size_t i = 0; i < sizes.size(); ++i) {
    REQUIRE((places[i] >= 0 && static_cast<size_t>(places[i]) < types.size()));
    schema.push_back(
        {static_cast<uint32_t>(sizes[i]) * unit, types[static_cast<size_t>(places[i])]});
  }
  return schema;
}

void CheckAscendQuant(const json& vector, Run& run) {
  const Npz npz(vector.at("file"));
  const auto [rows, size] = npz.Matrix("x");
  const std::vector<float> x = npz.Floats("x"), value = npz.Floats("value");
  const std::vector<int8_t> codes = npz.As<int8_t>("code");
  const std::vector<uint16_t> scales = npz.As<uint16_t>("scale_f16");
  const std::vector<uint16_t> offsets = npz.As<uint16_t>("offset_f16");
  const std::string name = vector.at("file");
  const CodeType type = name.find("int4") != std::string::npos ? CodeType::kInt4 : CodeType::kInt8;
  REQUIRE((codes.size() == x.size() && value.size() == x.size()));
  REQUIRE((scales.size() == rows && offsets.size() == rows));
  double error = 0;
  for (uint64_t r = 0; r < rows; ++r) {
    const std::span<const float> row(&x[r * size], size);
    const sglang::AscendCodes stored = sglang::StoreAscend(type, row);
    INFO("row " << r);
    CHECK(stored.scale == npz.Floats("scale")[r]);
    CHECK(stored.offset == npz.Floats("offset")[r]);
    CHECK(stored.stored_scale() == scales[r]);
    CHECK((stored.stored_offset() ^ 0x8000) == offsets[r]);
    CHECK(EqualBits(stored.values, std::span(&value[r * size], size)));
    const auto [least, most] = std::minmax_element(row.begin(), row.end());
    if (RoundedTo(DType::kBF16, *least) != RoundedTo(DType::kBF16, *most))
      CHECK(std::equal(stored.codes.begin(), stored.codes.end(), &codes[r * size]));
    for (size_t i = 0; i < size; ++i) {
      const double off = static_cast<double>(stored.values[i]) - static_cast<double>(row[i]);
      error += off * off;
    }
  }
  CHECK(error == Approx(npz.Double("error")).epsilon(1e-5));
  run.Checked();
}

void CheckAscendPage(const json& vector, Run& run) {
  const Npz npz(vector.at("file"));
  const auto [tokens, components] = npz.Matrix("x");
  REQUIRE(npz.Count("page_size") == tokens);
  const std::vector<float> x = npz.Floats("x");
  const CodeSchema schema = SchemaIn(npz, "schema_size", "schema_type", AscendTypes());
  REQUIRE(CountComponents(schema) == components);
  std::vector<int64_t> layout;
  for (const sglang::PageGroup& group : sglang::PageLayout(schema, tokens)) {
    const auto place = std::find(AscendTypes().begin(), AscendTypes().end(), group.type);
    for (const uint64_t field : {group.feature_begin, group.feature_end,
                                 static_cast<uint64_t>(place - AscendTypes().begin()),
                                 group.payload_begin, group.payload_end}) {
      layout.push_back(static_cast<int64_t>(field));
    }
    layout.push_back(group.scale);
  }
  CHECK(layout == npz.Integers("layout"));
  const sglang::Page page = sglang::WritePage(schema, Rows{x, tokens, components});
  CHECK(page.scales == npz.As<uint16_t>("scale_f16"));
  CHECK(page.offsets == npz.As<uint16_t>("offset_f16"));
  if (npz.Has("payload_float32")) CHECK(EqualBits(page.float32, npz.Floats("payload_float32")));
  if (npz.Has("payload_bfloat16")) CHECK(page.bfloat16 == npz.As<uint16_t>("payload_bfloat16"));
  if (npz.Has("payload_int8")) CHECK(page.int8 == npz.As<int8_t>("payload_int8"));
  if (npz.Has("payload_int4")) CHECK(page.int4 == npz.As<int32_t>("payload_int4"));
  CHECK(EqualBits(sglang::ReadPage(schema, page, tokens), npz.Floats("value")));
  run.Checked();
}

void CheckAscendProgramme(const json& vector, Run& run) {
  const Npz npz(vector.at("file"));
  const auto [tokens, rank] = npz.Matrix("projected");
  const std::vector<float> projected = npz.Floats("projected");
  const uint64_t budget = 16 * npz.Count("features") / npz.Count("ratio");
  CHECK(budget == npz.Count("budget"));
  const sglang::Allocation found = sglang::Allocate(Rows{projected, tokens, rank}, budget);
  CHECK(found.schema == SchemaIn(npz, "size", "type", AscendTypes()));
  CHECK(found.bits == npz.Count("bits"));
  CHECK(found.error == Approx(npz.Double("total_error")).epsilon(1e-5));
  run.Checked();
}

void CheckAscendUnrotation(const json& vector, Run& run) {
  const Npz npz(vector.at("file"));
  std::vector<float> keys = npz.Floats("k");
  const Shape shape = npz.ShapeOf("k");
  REQUIRE(shape.size() == 4);
  REQUIRE(npz.ShapeOf("cos_sin") == Shape{shape[0], shape[3]});
  const std::string name = vector.at("file");
  const bool is_bfloat = name.find("bfloat16") != std::string::npos;
  sglang::UnrotateKeys(
      keys, static_cast<uint32_t>(shape[3]), npz.Floats("cos_sin"),
      name.find("neox") != std::string::npos ? RopePairs::kHalves : RopePairs::kNeighbours,
      is_bfloat);
  const std::vector<float> expected = npz.Floats("out");
  if (is_bfloat) CHECK(EqualBits(keys, expected));
  CHECK(WorstError(keys, expected) < 1e-5);
  run.Checked();
}

// Checks K or V of a cache, transformed by its basis and schema; the first 4 and the last 128
// tokens stay.
void CheckAscendSide(const Npz& npz, const std::string& side) {
  const Shape shape = npz.ShapeOf(side);
  REQUIRE(shape.size() == 4);
  const uint64_t tokens = shape[0], features = shape[1] * shape[2] * shape[3];
  const auto [height, rank] = npz.Matrix(side + "_basis");
  REQUIRE((height == features && tokens > 132));
  const std::vector<float> mean = npz.Floats(side + "_mu"), basis = npz.Floats(side + "_basis");
  const CodeSchema schema = SchemaIn(npz, side + "_size", side + "_type", AscendTypes());
  CHECK(CountBits(schema) == npz.Count(side + "_bits"));
  std::vector<float> x = npz.Floats(side);
  const std::vector<float> full = x, expected = npz.Floats(side + "_out");
  const auto dim = static_cast<uint32_t>(shape[3]);
  const auto heads = static_cast<uint32_t>(features / dim);
  std::vector<int64_t> positions(tokens);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<KeyShift> back = ShiftsToZero(positions, tokens), forth = back;
  for (KeyShift& shift : forth) std::swap(shift.from, shift.to);
  const Rope rope;
  const RopeTable undo(rope, dim, back), redo(rope, dim, forth);
  const bool is_key = side == "k";
  double error2 = 0, norm2 = 0;
  for (uint64_t t = 0; t < tokens; ++t) {
    float* row = &x[t * features];
    const bool is_coded = t >= 4 && t + 128 < tokens;
    if (is_coded) {
      if (is_key) undo.Rotate(t, heads, row);
      std::vector<float> y(rank), stored(rank);
      for (uint64_t i = 0; i < features; ++i) row[i] -= mean[i];
      for (uint64_t c = 0; c < rank; ++c) y[c] = Product(row, &basis[c], rank, features);
      transform::Faults faults;
      transform::StoreRow(sglang::kAscendForm, schema, y, stored, faults);
      for (uint64_t i = 0; i < features; ++i)
        row[i] = mean[i] + Product(stored.data(), &basis[i * rank], 1, rank);
      if (is_key) redo.Rotate(t, heads, row);
    }
    double off = 0, norm = 0;
    for (uint64_t i = 0; i < features; ++i) {
      const double e = static_cast<double>(expected[t * features + i]);
      off += std::pow(static_cast<double>(row[i]) - e, 2);
      norm += e * e;
      error2 += std::pow(e - static_cast<double>(full[t * features + i]), 2);
    }
    norm2 += norm;
    INFO("token " << t);
    CHECK(std::sqrt(off) <= 1e-3 * std::sqrt(norm));
  }
  CHECK(error2 > 0);
  CHECK(norm2 > 0);
}

void CheckAscendEndToEnd(const json& vector, Run& run) {
  const Npz npz(vector.at("file"));
  CheckAscendSide(npz, "k");
  CheckAscendSide(npz, "v");
  run.Checked();
}

void CheckPageStream(const json& vector, Run& run) {
  const Npz npz(vector.at("file"));
  const std::vector<float> y = npz.Floats("y"), scale = npz.Floats("scale");
  const std::vector<int64_t> bits = npz.Integers("bits");
  REQUIRE((y.size() == scale.size() && y.size() == bits.size()));
  std::vector<sglang::StaticCode> codes;
  for (size_t i = 0; i < y.size(); ++i) codes.push_back({scale[i], static_cast<uint32_t>(bits[i])});
  CHECK(sglang::WriteStream(y, codes) == npz.Raw("stream"));
  CHECK(EqualBits(sglang::ReadStream(npz.Raw("stream"), codes), npz.Floats("value")));
  run.Checked();
}

// Inflates data in zlib's format, or raw DEFLATE data.
Bytes Inflated(ByteSpan packed, bool is_raw, size_t size) {
  Bytes out(size);
  z_stream stream = {};
  REQUIRE(inflateInit2(&stream, is_raw ? -MAX_WBITS : MAX_WBITS) == Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(size);
  CHECK(inflate(&stream, Z_FINISH) == Z_STREAM_END);
  CHECK(stream.total_out == size);
  inflateEnd(&stream);
  return out;
}

void CheckPage(const json& vector, Run& run) {
  const Npz npz(vector.at("file"));
  const Bytes page = npz.Raw("page"), expected = npz.Raw("inflated");
  const sglang::PageStreams streams = sglang::ReadPageStreams(page);
  CHECK(streams.is_coded);
  CHECK(Inflated(streams.k, streams.version == 4, expected.size()) == expected);
  CHECK(!streams.v.empty());
  run.Checked();
}

const std::vector<CodeType>& OwnTypes() {
  static const std::vector<CodeType> types = TypesNamed({"none", "int2", "int4", "int8", "fp8"});
  return types;
}

void CheckFormGroups(const Npz& npz, const std::string& name) {
  const auto [rows, size] = npz.Matrix("x");
  const std::vector<float> x = npz.Floats("x"), value = npz.Floats("value");
  const std::vector<uint8_t> codes = npz.As<uint8_t>("code");
  REQUIRE((value.size() == x.size() && codes.size() == x.size()));
  const auto type = ParseCodeType(name.substr(5, name.find('.') - 5));
  REQUIRE(type);
  for (uint64_t r = 0; r < rows; ++r) {
    std::vector<uint8_t> got(size);
    std::vector<float> out(size);
    transform::EncodeGroup(*type, std::span(&x[r * size], size), got, out);
    CHECK(std::equal(got.begin(), got.end(), &codes[r * size]));
    CHECK(EqualBits(out, std::span(&value[r * size], size)));
  }
}

void CheckFormSchema(const Npz& npz) {
  const auto [tokens, components] = npz.Matrix("projected");
  REQUIRE(components % 16 == 0);
  const std::vector<float> projected = npz.Floats("projected"), value = npz.Floats("value");
  REQUIRE(value.size() == projected.size());
  const Rows rows{projected, tokens, components};
  const double budget =
      16.0 * static_cast<double>(components) / static_cast<double>(npz.Count("ratio"));
  const CodeSchema schema = transform::FitSchema(transform::kKvtcForm, rows, budget);
  CHECK(schema == SchemaIn(npz, "size", "type", OwnTypes(), 16));
  CHECK(CountBits(schema) == npz.Count("bits"));
  std::vector<float> out(components);
  for (uint64_t t = 0; t < tokens; ++t) {
    transform::Faults faults;
    transform::StoreRow(transform::kKvtcForm, schema, rows.Row(t), out, faults);
    CHECK(EqualBits(out, std::span(&value[t * components], components)));
  }
}

void CheckFormSteps(const Npz& npz) {
  const auto [tokens, components] = npz.Matrix("y");
  const std::vector<float> y = npz.Floats("y"), value = npz.Floats("value");
  const std::vector<float> expected = npz.Floats("symbol_bits");
  REQUIRE(npz.ShapeOf("symbol_bits") == Shape{components, transform::kSymbols});
  const auto step = static_cast<float>(npz.Double("step"));
  const auto [judged, width] = npz.Matrix("value");
  REQUIRE((width == components && judged <= tokens));
  double bits = 0;
  for (uint64_t c = 0; c < components; ++c) {
    std::vector<float> column(tokens);
    for (uint64_t t = 0; t < tokens; ++t) column[t] = y[t * components + c];
    const auto table = transform::SymbolBits(column, step);
    for (size_t s = 0; s < transform::kSymbols; ++s) {
      // The vector's tails are inexact, because they were computed as differences of floats near 1.
      const double off = expected[c * transform::kSymbols + s] - table[s];
      CHECK(std::fabs(off) < (table[s] < 12 ? 1e-4 : 0.01));
    }
    for (uint64_t t = 0; t < judged; ++t) {
      const float symbol = transform::ToSymbol(column[t], step);
      CHECK(symbol * step == value[t * components + c]);
      bits += table[static_cast<size_t>(std::clamp(symbol, -64.0f, 64.0f) + 64)];
      if (std::fabs(symbol) > transform::kMostSymbol) bits += transform::kEscapeBits;
    }
  }
  CHECK(bits == Approx(npz.Double("bits")).epsilon(1e-5));
}

void CheckForm(const json& vector, Run& run) {
  const std::string name = vector.at("file");
  const Npz npz(name);
  if (npz.Has("symbol_bits")) {
    CheckFormSteps(npz);
  } else if (npz.Has("projected")) {
    CheckFormSchema(npz);
  } else {
    CheckFormGroups(npz, name);
  }
  run.Checked();
}

void CheckRefusedSchemas(const json& refused, Run& run) {
  for (const json& item : refused) {
    std::vector<sglang::SchemaEntry> entries;
    for (const json& group : item.at(0)) {
      sglang::SchemaEntry entry{std::nullopt, group.at(1)};
      if (group.at(0).is_number_integer()) entry.size = group.at(0).get<int64_t>();
      entries.push_back(entry);
    }
    INFO(item.at(1));
    CHECK_THROWS_AS(sglang::ParseSchema(entries, 48), Error);
    run.Checked();
  }
}

constexpr KindCheck kKinds[] = {{"dynamo_fp8", CheckDynamoFp8},
                                {"dynamo_intx", CheckDynamoInt},
                                {"dynamo_buffer", CheckDynamoBuffer},
                                {"dynamo_endtoend", CheckDynamoEndToEnd},
                                {"ascend_quant", CheckAscendQuant},
                                {"ascend_page", CheckAscendPage},
                                {"ascend_dp", CheckAscendProgramme},
                                {"ascend_unrope", CheckAscendUnrotation},
                                {"ascend_endtoend", CheckAscendEndToEnd},
                                {"pr21768_stream", CheckPageStream},
                                {"pr21768_page", CheckPage},
                                {"kvtool_form", CheckForm}};

}  // namespace

void CheckKvtc(Run& run) {
  const json manifest = run.Json("kvtc/manifest.json");
  for (const json& vector : manifest.value("vectors", kNone)) {
    const std::string kind = vector.at("kind"), file = vector.at("file");
    INFO(file);
    const auto* known = std::find_if(std::begin(kKinds), std::end(kKinds),
                                     [&](const KindCheck& check) { return check.kind == kind; });
    REQUIRE(known != std::end(kKinds));
    if (run.File("kvtc/" + file)) known->check(vector, run);
  }
  CheckRefusedSchemas(manifest.value("refused_schemas", kNone), run);
}

}  // namespace kv::golden
