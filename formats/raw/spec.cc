// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Parses --raw, resolves sizes from the file's, and makes strided views of headerless data.

#include "formats/raw/spec.h"

#include <fmt/format.h>

#include <limits>

#include "formats/format.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/number.h"
#include "lib/core/snapshot/rope.h"

namespace kv::raw {
namespace {

constexpr std::string_view kLetters = "2LBTPGHDC";
constexpr std::string_view kHint =
    "DTYPE:ORDER:SIZES, e.g. f16:2LTHD:2,32,?,8,128; letters 2 (K, then V), L layers, B batch, T "
    "tokens, P tokens of a page, G groups of H kv heads each, D dims of a head (DK/DV where K and "
    "V differ), C channels (H x D)";

template <typename... Values>
Error Wrong(fmt::format_string<Values...> text, Values&&... values) {
  return Error(Finding::kUsage, "--raw: " + fmt::format(text, std::forward<Values>(values)...))
      .Hint(std::string(kHint));
}

// Returns the largest size that an axis can have.
uint64_t Most(char letter) {
  switch (letter) {
    case '2':
      return 2;
    case 'L':
      return kMostLayers;
    case 'T':
    case 'P':
      return std::numeric_limits<uint64_t>::max();
    default:
      return std::numeric_limits<uint32_t>::max();
  }
}

void CheckOrder(std::string_view order) {
  if (order.empty()) throw Wrong("ORDER is empty");
  const auto has = [&](char letter) { return order.find(letter) != order.npos; };
  for (size_t i = 0; i < order.size(); ++i) {
    if (kLetters.find(order[i]) == kLetters.npos) {
      throw Wrong("ORDER '{}': '{}' is not one of {}", Escaped(order, 40),
                  Escaped(order.substr(i, 1)), kLetters);
    }
    if (order.find(order[i], i + 1) != order.npos) {
      throw Wrong("ORDER '{}': '{}' occurs twice", order, order[i]);
    }
  }
  if (!has('T') && !has('P')) throw Wrong("ORDER '{}' has no tokens (T)", order);
  if (has('G') && !has('H')) throw Wrong("ORDER '{}': G are groups of H", order);
  if (has('C') && (has('H') || has('D'))) {
    throw Wrong("ORDER '{}': C stands for H and D together", order);
  }
  if (!has('C') && !has('D')) {
    throw Wrong("ORDER '{}' has neither D (with or without H) nor C", order);
  }
}

Axis ParseAxis(char letter, std::string_view text) {
  if (text == "?") return {letter, std::nullopt};
  const uint64_t size = ParseNumber<uint64_t>(text).value_or(0);
  if (size == 0) {
    throw Wrong("SIZES: '{}' for {} is neither a positive number nor '?'", Escaped(text, 40),
                letter);
  }
  if (size > Most(letter)) {
    throw Wrong("SIZES: {} for {} is more than {}", size, letter, Most(letter));
  }
  return {letter, size};
}

// Takes the size of V's heads off "192/128", dims of K and of V. Returns the rest of the text.
std::string_view TakeVDim(std::string_view order, std::string_view text, Spec& spec) {
  const size_t slash = text.find('/');
  if (slash == text.npos) return text;
  if (order.find('2') > order.find('D')) {
    throw Wrong("SIZES: '{}' gives two sizes, but ORDER '{}' has no 2 outside D", Escaped(text, 40),
                order);
  }
  spec.v_dim = ParseAxis('D', text.substr(slash + 1)).size;
  if (!spec.v_dim) throw Wrong("SIZES: '{}': dims cannot be '?'", text);
  return text.substr(0, slash);
}

// Storage units in K and V together: those in the axis 2 and the axes inside it, with the open axis
// counted once, or those of all axes if V has no size of its own.
struct Units {
  uint64_t inside = 1, outside = 1;
};

Units CountUnits(const Spec& spec, const Axis* open, uint64_t dim) {
  const uint32_t block = Info(spec.dtype).block_elements;
  Units units;
  bool inside = false;
  for (const Axis& axis : spec.axes) {
    if (axis.letter == '2' && spec.v_dim) {
      inside = true;
      continue;
    }
    if (&axis == open) continue;
    uint64_t size = axis.letter == 'D' ? dim : *axis.size;
    if (&axis == &spec.axes.back()) size /= block;
    uint64_t& product = inside ? units.inside : units.outside;
    product = CheckedMul(product, size, spec.name + ": the product of the sizes");
  }
  return units;
}

// Returns the bytes of one index of the open axis, or of all values if none is open.
uint64_t TokenStep(const Spec& spec, const Axis* open) {
  uint64_t dim = 1;
  for (const Axis& axis : spec.axes) {
    if (axis.letter == 'D') dim = axis.size.value_or(1);
  }
  Units units = CountUnits(spec, open, dim);
  if (spec.v_dim) {
    const std::string both = spec.name + ": K and V together";
    units.inside = CheckedAdd(units.inside, CountUnits(spec, open, *spec.v_dim).inside, both);
  }
  const std::string what = spec.name + ": the size in bytes";
  return CheckedMul(CheckedMul(units.inside, units.outside, what), Info(spec.dtype).block_bytes,
                    what);
}

}  // namespace

uint64_t BytesOf(const Spec& spec) { return TokenStep(spec, nullptr); }

Spec ParseSpec(std::string_view text) {
  const std::vector<std::string_view> parts = Split(text, ':');
  if (parts.size() != 3) {
    throw Wrong("'{}' has {} part{}, expected 3", Escaped(text, 60), parts.size(),
                PluralEnding(parts.size()));
  }
  const std::optional<DType> dtype = ParseDType(parts[0]);
  if (!dtype) throw Wrong("DTYPE '{}' is not an element type", Escaped(parts[0], 40));
  const std::string_view order = parts[1];
  CheckOrder(order);
  const std::vector<std::string_view> sizes = Split(parts[2], ',');
  if (sizes.size() != order.size()) {
    throw Wrong("SIZES '{}' has {} numbers for the {} letters of ORDER '{}'", Escaped(parts[2], 60),
                sizes.size(), order.size(), order);
  }
  Spec spec{.name = "--raw", .dtype = *dtype, .axes = {}};
  bool open = false;
  for (size_t i = 0; i < order.size(); ++i) {
    spec.axes.push_back(
        ParseAxis(order[i], order[i] == 'D' ? TakeVDim(order, sizes[i], spec) : sizes[i]));
    if (!spec.axes.back().size) {
      if (open) throw Wrong("SIZES '{}': only one can be '?'", parts[2]);
      open = true;
    }
  }
  const uint32_t block = Info(*dtype).block_elements;
  const Axis& inner = spec.axes.back();
  if (block > 1) {
    if (inner.letter != 'D' && inner.letter != 'C') {
      throw Wrong("ORDER '{}': {} blocks run along D or C, which must come last", order,
                  Name(*dtype));
    }
    if ((inner.size && *inner.size % block != 0) || spec.v_dim.value_or(0) % block != 0) {
      throw Wrong("SIZES: {} for {} is not a multiple of the {} block ({})", *inner.size,
                  inner.letter, Name(*dtype), block);
    }
  }
  return spec;
}

std::string Described(const Spec& spec) {
  std::string order, sizes;
  for (const Axis& axis : spec.axes) {
    order += axis.letter;
    if (!sizes.empty()) sizes += ',';
    sizes += axis.size ? std::to_string(*axis.size) : "?";
    if (axis.letter == 'D' && spec.v_dim) sizes += fmt::format("/{}", *spec.v_dim);
  }
  return fmt::format("{}:{}:{}", Name(spec.dtype), order, sizes);
}

Spec Resolve(Spec spec, uint64_t file_bytes) {
  const DTypeInfo& info = Info(spec.dtype);
  Axis* open = nullptr;
  for (Axis& axis : spec.axes) {
    if (!axis.size) open = &axis;
  }
  // Blocks hold several elements, so the step of the open axis counts blocks if it is the innermost
  // axis.
  const bool counts_blocks = info.block_elements > 1 && open == &spec.axes.back();
  const uint64_t step = TokenStep(spec, open);
  if (open == nullptr) {
    if (step != file_bytes) {
      throw Error(Finding::kSizeMismatch, "has {} bytes, but the sizes of {} give {}", file_bytes,
                  spec.name, step);
    }
    return spec;
  }
  if (file_bytes == 0 || file_bytes % step != 0) {
    throw Error(Finding::kSizeMismatch,
                "has {} bytes, not a multiple of the {} that one {} of {} takes ({} bytes over)",
                file_bytes, step, open->letter, spec.name, file_bytes % step);
  }
  const uint64_t size = file_bytes / step * (counts_blocks ? info.block_elements : 1);
  if (size > Most(open->letter)) {
    throw Error(Finding::kSizeMismatch, "has {} bytes, which make {} {}; it cannot be more than {}",
                file_bytes, open->letter, size, Most(open->letter));
  }
  open->size = size;
  return spec;
}

namespace {

// One piece per page lets the archive code each page as rows. Above this number the bookkeeping
// would cost more than it gains, and one piece with a two-level stride is equivalent.
constexpr uint64_t kMaxPieces = 1 << 14;

// An axis of the resolved spec in units of storage: elements, or blocks of elements.
struct Extent {
  uint64_t size = 1;
  uint64_t stride = 0;  // bytes
  bool exists = false;
  size_t depth = 0;  // 0 = outermost
};

class Extents {
 public:
  // Computes strides of K, or of V if its heads have another size: inside the axis 2 only the
  // tensor's own dims count, outside it those of both.
  explicit Extents(const Spec& spec, bool v = false) : dim_(v ? spec.v_dim : std::nullopt) {
    const bool apart = spec.v_dim.has_value();
    uint64_t stride = Info(spec.dtype).block_bytes;
    uint64_t other = stride;
    for (size_t i = spec.axes.size(); i-- > 0;) {
      const Axis& axis = spec.axes[i];
      const uint64_t block = i + 1 == spec.axes.size() ? Info(spec.dtype).block_elements : 1;
      const bool is_dim = axis.letter == 'D';
      const uint64_t k_size = *axis.size / block, v_size = spec.v_dim.value_or(0) / block;
      const uint64_t size = is_dim && dim_ ? v_size : k_size;
      At(axis.letter) = {size, stride, true, i};
      if (apart && axis.letter == '2') {
        // K comes first, so the step to V is the length of K.
        At('2').stride = v ? other : stride;
        stride += other;
        continue;
      }
      stride *= size;  // the product fits the file, as Resolve has checked
      other *= is_dim && apart ? (v ? k_size : v_size) : size;
    }
  }
  const Extent& operator[](char letter) const { return extents_[static_cast<uint8_t>(letter)]; }

 private:
  Extent& At(char letter) { return extents_[static_cast<uint8_t>(letter)]; }
  Extent extents_[128] = {};
  std::optional<uint64_t> dim_;
};

KvTensor MakeTensor(const Spec& spec, const Extents& axes, const std::byte* data) {
  const bool divided = axes['D'].exists;
  const Extent& dim = divided ? axes['D'] : axes['C'];
  const uint64_t units = dim.size;
  const Extent &of_group = axes['H'], &groups = axes['G'];
  KvTensor tensor{.dtype = spec.dtype,
                  .heads = static_cast<uint32_t>(groups.size * of_group.size),
                  .head_dim = static_cast<uint32_t>(units * Info(spec.dtype).block_elements),
                  .heads_known = divided,
                  .pieces = {}};
  // A missing head axis means one head; its stride ends where the next head would begin.
  AxisStride head{of_group.exists ? of_group.stride : units * dim.stride};
  if (groups.size > 1) head = {head.step, of_group.size, groups.stride};

  const bool paged = axes['T'].exists && axes['P'].exists;
  const bool page_is_outer = axes['P'].depth < axes['T'].depth;
  const Extent& token =
      !paged ? (axes['T'].exists ? axes['T'] : axes['P']) : (page_is_outer ? axes['T'] : axes['P']);
  const Extent page = paged ? (page_is_outer ? axes['P'] : axes['T']) : Extent{};
  if (page.stride == token.size * token.stride) {  // consecutive pages need no second level
    tensor.pieces.push_back({data, page.size * token.size, {token.stride}, head, {dim.stride}});
    return tensor;
  }
  if (page.size > kMaxPieces) {
    tensor.pieces.push_back({data,
                             page.size * token.size,
                             {token.stride, token.size, page.stride},
                             head,
                             {dim.stride}});
    return tensor;
  }
  for (uint64_t p = 0; p < page.size; ++p) {
    tensor.pieces.push_back(
        {data + p * page.stride, token.size, {token.stride}, head, {dim.stride}});
  }
  return tensor;
}

}  // namespace

Snapshot MakeSnapshot(Source source, ByteSpan bytes, const Spec& open_spec,
                      std::optional<uint64_t> batch) {
  const Spec spec = Resolve(open_spec, bytes.size());
  const Extents axes(spec), v_axes(spec, /*v=*/true);
  if (axes['G'].size > kMostLayers || axes['G'].size * axes['H'].size > UINT32_MAX)
    throw Error(Finding::kLimit, "{} groups of heads", axes['G'].size);
  const uint64_t rows = axes['B'].size;
  if (rows > 1 && !batch) {
    throw Error(Finding::kUsage, "{} has {} batch rows", spec.name, rows)
        .Hint("choose one with --batch I");
  }
  if (batch.value_or(0) >= rows) {
    throw Error(Finding::kUsage, "--batch {}, but {} has {} row{}", *batch, spec.name, rows,
                PluralEnding(rows));
  }
  const std::byte* data = bytes.data();
  Snapshot snapshot;
  snapshot.facts.emplace_back("layout", Described(spec));
  if (rows > 1) {
    snapshot.facts.emplace_back("batch row", fmt::format("{} of {}", *batch, rows));
  }
  for (uint64_t i = 0; i < axes['L'].size; ++i) {
    LayerKv& layer = snapshot.layers.emplace_back();
    layer.index = static_cast<uint32_t>(i);
    const auto first = [&](const Extents& of) {
      return data + batch.value_or(0) * of['B'].stride + i * of['L'].stride;
    };
    layer.k = MakeTensor(spec, axes, first(axes));
    if (axes['2'].size == 2) layer.v = MakeTensor(spec, v_axes, first(v_axes) + v_axes['2'].stride);
  }
  // Interleaved axes and other batch rows are stored elements too.
  snapshot.stored.push_back({bytes.data(), bytes.size(), spec.dtype});
  snapshot.source = std::move(source);
  return snapshot;
}

}  // namespace kv::raw
