// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>

#include "formats/lmcache/key_name.h"
#include "formats/mnn/cache_files.h"
#include "formats/raw/fs_tier.h"
#include "formats/raw/presets.h"
#include "formats/raw/raw.h"
#include "lib/core/snapshot/key_rotation.h"

namespace kv::raw {
namespace {

// A piece per page lets the archive code each page as the rows that it is. Past this number the
// bookkeeping would outgrow its use, and one piece with a two-level stride says the same.
constexpr uint64_t kMaxPieces = 1 << 14;

// An axis of the resolved spec in units of storage: elements, or blocks of them.
struct Extent {
  uint64_t size = 1;
  uint64_t stride = 0;  // bytes
  bool exists = false;
  size_t depth = 0;  // 0 = outermost
};

class Extents {
 public:
  // Strides of K, or of V where its heads have other dims: inside the axis 2 a plane is as large as
  // its own dims make it, outside both count.
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
        // K first: the way to V is the length of K.
        At('2').stride = v ? other : stride;
        stride += other;
        continue;
      }
      stride *= size;  // no more than the file, which Resolve compared
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
  // A missing head axis has one head; where it ends is where the next would begin.
  AxisStride head{of_group.exists ? of_group.stride : units * dim.stride};
  if (groups.size > 1) head = {head.step, of_group.size, groups.stride};

  const bool paged = axes['T'].exists && axes['P'].exists;
  const bool page_is_outer = axes['P'].depth < axes['T'].depth;
  const Extent& token =
      !paged ? (axes['T'].exists ? axes['T'] : axes['P']) : (page_is_outer ? axes['T'] : axes['P']);
  const Extent page = paged ? (page_is_outer ? axes['P'] : axes['T']) : Extent{};
  if (page.stride == token.size * token.stride) {  // pages back to back are none
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
    throw Error(Finding::kLimit, fmt::format("{} groups of heads", axes['G'].size));
  const uint64_t rows = axes['B'].size;
  if (rows > 1 && !batch) {
    throw Error(Finding::kUsage, fmt::format("{} has {} batch rows", spec.name, rows))
        .Hint("choose one with --batch I");
  }
  if (batch.value_or(0) >= rows) {
    throw Error(Finding::kUsage, fmt::format("--batch {}, but {} has {} row{}", *batch, spec.name,
                                             rows, rows == 1 ? "" : "s"));
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
  // Interleaved axes and other batch rows are elements too.
  snapshot.stored.push_back({bytes.data(), bytes.size(), spec.dtype});
  snapshot.source = std::move(source);
  return snapshot;
}

namespace {

// The one file of a source that is no note beside it.
const SourceFile& OnlyPage(const Source& source) {
  const SourceFile* only = nullptr;
  size_t pages = 0;
  for (const SourceFile& file : source.files) {
    if (source.is_folder && (file.name.ends_with(".json") || file.data->size() == 0)) continue;
    if (pages++ == 0) only = &file;
  }
  if (pages == 1) return *only;
  if (pages == 0) throw Error(Finding::kMissingRecord, "it holds no file with data");
  throw std::move(
      Error(Finding::kUsage,
            fmt::format("holds {} files and does not say which follows which", pages))
          .Hint("give --order FILE, a file with one name per line, or --order '*.bin'"));
}

// Rows of vLLM's tier end at a page of memory. Where all sizes are known the rest is padding, which
// nobody ever writes to: anything but zeros in it means that the sizes are wrong.
ByteSpan WithoutPadding(ByteSpan file, const Spec& spec) {
  const bool is_row = std::any_of(spec.axes.begin(), spec.axes.end(),
                                  [](const Axis& axis) { return axis.letter == 'T'; });
  for (const Axis& axis : spec.axes) {
    if (!axis.size || !is_row) return file;
  }
  const uint64_t values = BytesOf(spec);
  for (const uint64_t page : {4096, 16384, 65536}) {
    if (values >= file.size() || file.size() - values >= page || file.size() % page != 0) continue;
    const ByteSpan rest = file.subspan(values);
    if (std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0}; }))
      return file.first(values);
    throw std::move(
        Error(
            Finding::kSizeMismatch,
            fmt::format(
                "has {} bytes; the sizes of {} give {}, and the bytes that follow are not padding",
                file.size(), spec.name, values))
            .Hint("for cells of several ranks give G=RANKS, with H of all together"));
  }
  if (values != 0 && file.size() > values && file.size() % values == 0) {
    throw std::move(
        Error(Finding::kSizeMismatch,
              fmt::format("has {} bytes, {} times as many as the sizes give", file.size(),
                          file.size() / values))
            .Hint(fmt::format("if it holds cells of {} ranks, give G={}, with H of all together",
                              file.size() / values, file.size() / values)));
  }
  return file;
}

Snapshot OpenPreset(Source source, PresetSpec spec, const OpenOptions& options) {
  std::optional<TierConfig> told;
  if (source.is_folder) told = FillInFromTier(source, spec);
  if (spec.preset->order.empty()) {
    FillIn(options, "", spec);
    if (!spec.dtype) throw Error(Finding::kUsage, "--raw mnn-cache: the element type is missing");
    return mnn::OpenCacheFiles(std::move(source), *spec.dtype, spec.sizes);
  }
  const SourceFile& page = OnlyPage(source);
  FillIn(options, page.name, spec);
  const ByteSpan bytes = page.data->bytes();
  const auto key = lmcache::ParseKeyOfFile(page.name);
  const Spec axes = SpecOf(spec);
  const ByteSpan values = WithoutPadding(bytes, axes);
  Snapshot snapshot = MakeSnapshot(std::move(source), values, axes, options.batch);
  if (values.size() < bytes.size()) {
    snapshot.facts.emplace_back(
        "padding", fmt::format("{} bytes to the end of a page", bytes.size() - values.size()));
  }
  if (key && key->layer && spec.preset->order.find('L') == std::string_view::npos)
    snapshot.layers.front().index = *key->layer;
  if (key) {
    snapshot.model = key->model;
    snapshot.facts.insert(snapshot.facts.end(), key->facts.begin(), key->facts.end());
  }
  snapshot.format_version = spec.preset->name;
  snapshot.engine = spec.preset->engine;
  AssumeRotated(snapshot, fmt::format("{} caches keys after RoPE", spec.preset->engine));
  if (told) {
    snapshot.model = told->model;
    snapshot.facts.insert(snapshot.facts.end(), told->facts.begin(), told->facts.end());
  }
  return snapshot;
}

}  // namespace

Snapshot OpenRaw(Source source, const OpenOptions& options) {
  if (options.raw.empty()) {
    throw std::move(
        Error(Finding::kUsage, "--from raw needs --raw DTYPE:ORDER:SIZES, or a preset")
            .Hint("e.g. --raw f16:2LTHD:2,32,?,8,128; kvtool formats lists the presets"));
  }
  if (auto preset = ParsePreset(options.raw))
    return OpenPreset(std::move(source), std::move(*preset), options);
  const Spec spec = ParseSpec(options.raw);
  const ByteSpan bytes = OnlyPage(source).data->bytes();
  return MakeSnapshot(std::move(source), bytes, spec, options.batch);
}

}  // namespace kv::raw
