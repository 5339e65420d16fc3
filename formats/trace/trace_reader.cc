// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Opens traces in all their forms: block scores line by line, torch attentions, and the choice of
// the form.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/format.h"
#include "formats/npy/npy.h"
#include "formats/safetensors/safetensors.h"
#include "formats/torch/torch.h"
#include "formats/trace/trace.h"
#include "lib/core/base/error.h"
#include "lib/core/base/json.h"
#include "lib/core/base/number.h"

namespace kv {
namespace {

using nlohmann::json;

constexpr size_t kLineCap = 16 << 20;

// Lines of a mapped file, without blank ones.
class Lines {
 public:
  explicit Lines(std::shared_ptr<const FileSource> source) : source_(std::move(source)) {}

  std::optional<std::string_view> Next() {
    const std::string_view all = AsText(source_->bytes());
    while (at_ < all.size()) {
      ++number_;
      offset_ = at_;
      const size_t end = std::min(all.find('\n', at_), all.size());
      const std::string_view line = all.substr(at_, end - at_);
      at_ = end + 1;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      if (line.size() > kLineCap) {
        throw Failure(Finding::kLimit, fmt::format("a line of {} bytes, at most {} are read",
                                                   line.size(), kLineCap));
      }
      return line;
    }
    return std::nullopt;
  }

  json Parse(std::string_view line) const {
    try {
      json value = ReadJson(line, {.bytes = kLineCap});
      if (value.is_object()) return value;
    } catch (const Error& error) {
      throw Failure(error.finding(), error.message());
    }
    throw Failure(Finding::kBadText, "not a JSON object");
  }

  uint64_t number() const { return number_; }
  Error Failure(Finding finding, std::string message) const {
    return std::move(Error(finding, std::move(message))
                         .In("line {}", number_)
                         .At(offset_)
                         .File(source_->name()));
  }

 private:
  std::shared_ptr<const FileSource> source_;
  size_t at_ = 0, offset_ = 0;
  uint64_t number_ = 0;
};

uint64_t ReadCountField(const Lines& lines, const json& object, const char* key, uint64_t least,
                        uint64_t most, std::optional<uint64_t> fallback = std::nullopt) {
  const auto found = object.find(key);
  if (found == object.end() && fallback) return *fallback;
  if (found != object.end() && found->is_number_unsigned()) {
    const auto value = found->get<uint64_t>();
    if (value >= least && value <= most) return value;
  }
  throw lines.Failure(
      Finding::kBadField,
      fmt::format("'{}' is {}, expected a count from {} to {}", key,
                  found == object.end() ? "missing" : ShowJson(*found), least, most));
}

BlockScoreStream ReadHeader(const Lines& lines, const json& header, uint64_t& prompt) {
  const auto version = header.find("kvtool.trace");
  if (version == header.end() || !version->is_string() || *version != "1") {
    throw lines.Failure(Finding::kBadVersion,
                        "\"kvtool.trace\": \"1\" expected on the first line of a stream");
  }
  const auto params = header.find("params");
  if (params == header.end() || !params->is_object()) {
    throw lines.Failure(Finding::kBadField, "'params' is missing");
  }
  BlockScoreStream stream;
  stream.layers =
      static_cast<uint32_t>(ReadCountField(lines, *params, "layers", 1, kMostTraceLayers));
  stream.query_heads =
      static_cast<uint32_t>(ReadCountField(lines, *params, "num_head", 1, kMostTraceHeads));
  stream.kv_heads = static_cast<uint32_t>(
      ReadCountField(lines, *params, "kv_num_head", 1, kMostTraceHeads, stream.query_heads));
  stream.head_dim =
      static_cast<uint32_t>(ReadCountField(lines, *params, "head_dim", 1, kMostTraceHeads));
  stream.element_bytes =
      static_cast<uint32_t>(ReadCountField(lines, *params, "bytes_per_elem", 1, 8, 2));
  prompt = ReadCountField(lines, *params, "prompt_tokens", 0, kMostTracePositions);
  for (const auto& [name, value] : params->items()) {
    if (name.rfind("h2o_", 0) == 0 && value.is_number()) {
      stream.parameters.emplace_back(name, value.get<double>());
    }
  }
  return stream;
}

class Reader : public BlockScoreReader {
 public:
  explicit Reader(std::shared_ptr<const FileSource> source) : lines_(std::move(source)) {
    lines_.Next();  // the header
  }

  std::optional<BlockScoreCall> Next() override {
    const auto line = lines_.Next();
    if (!line) return std::nullopt;
    const json value = lines_.Parse(*line);
    BlockScoreCall call;
    call.line = lines_.number();
    call.step = ReadCountField(lines_, value, "step", 1, kMostTracePositions);
    call.layer =
        static_cast<uint32_t>(ReadCountField(lines_, value, "layer", 0, kMostTraceLayers - 1));
    const auto sums = value.find("block_acc");
    if (sums == value.end() || !sums->is_array()) {
      throw lines_.Failure(Finding::kBadField, "'block_acc' is missing");
    }
    for (const json& sum : *sums) {
      if (!sum.is_number()) {
        throw lines_.Failure(Finding::kBadField, "'block_acc' holds a value that is not a number");
      }
      call.block_sums.push_back(static_cast<float>(sum.get<double>()));
    }
    return call;
  }

 private:
  Lines lines_;
};

}  // namespace

AttentionTrace OpenBlockScores(std::shared_ptr<const FileSource> source) {
  Lines lines(source);
  const auto first = lines.Next();
  if (!first) {
    throw Error(Finding::kTruncated, "an empty stream").File(source->name());
  }
  AttentionTrace trace;
  uint64_t prompt = 0;
  BlockScoreStream stream = ReadHeader(lines, lines.Parse(*first), prompt);
  stream.open = [source] { return std::make_unique<Reader>(source); };
  trace.path = source->name();
  trace.format = "jsonl";
  trace.level = TraceLevel::kBlockScores;
  trace.query_heads = stream.query_heads;
  trace.kv_heads = stream.kv_heads;
  trace.head_dim = stream.head_dim;
  trace.prompt_tokens = prompt;
  trace.block_scores = std::move(stream);
  trace.storage = source;
  return trace;
}

namespace {

constexpr uint64_t kMostIndex = 1 << 24;

std::optional<uint64_t> ParseIndex(std::string_view text) {
  const auto value = ParseNumber<uint64_t>(text);
  return value && *value < kMostIndex ? value : std::nullopt;
}

// The numbers at the end of a tensor's path: "attentions/3/1" has 3 and 1.
struct Path {
  std::string_view prefix;
  std::vector<uint64_t> indices;
};

Path ParsePath(std::string_view name) {
  Path path{name, {}};
  while (!path.prefix.empty() && path.indices.size() < 2) {
    const auto index = ParseIndex(LastPart(path.prefix));
    if (!index) break;
    path.indices.insert(path.indices.begin(), *index);
    path.prefix = FolderPart(path.prefix);
  }
  return path;
}

bool IsAttentionPrefix(std::string_view prefix) {
  return prefix.empty() || prefix == "attentions" || prefix == "decoder_attentions";
}

// Returns one batch row: [q_heads][rows][keys].
TensorView BatchRow(const NamedTensor& tensor, std::optional<uint64_t> named) {
  const TensorView& view = tensor.view;
  const bool is_float = Info(view.dtype).is_float && !IsBlockQuantised(view.dtype);
  if (view.rank() != 4 || !is_float) {
    throw Error(Finding::kBadField,
                "{} of {} axes, expected floats "
                "[batch, query heads, rows, keys]",
                Name(view.dtype), view.rank())
        .In(Escaped(tensor.name));
  }
  if (!named && view.shape[0] > 1) {
    throw Error(Finding::kUsage, "the trace has {} batch rows", view.shape[0])
        .Hint("name one with --batch");
  }
  const uint64_t batch = named.value_or(0);
  if (batch >= view.shape[0]) {
    throw Error(Finding::kUsage, "--batch {}: the trace has {} batch rows", batch, view.shape[0]);
  }
  TensorView row{view.dtype,
                 {view.shape.begin() + 1, view.shape.end()},
                 {view.strides.begin() + 1, view.strides.end()},
                 view.data + batch * view.strides[0]};
  for (const uint64_t extent : row.shape) {
    if (extent != 0 && extent <= kMostTracePositions) continue;
    throw Error(Finding::kBadField, "extent {}, expected 1 to 2^31", extent)
        .In(Escaped(tensor.name));
  }
  return row;
}

}  // namespace

AttentionTrace TraceOfTorch(TensorFile file, std::optional<uint64_t> batch) {
  const auto storage = std::make_shared<TensorFile>(std::move(file));
  AttentionTrace trace;
  trace.path = storage->source.path;
  trace.format = storage->format;
  trace.level = TraceLevel::kProbabilities;
  trace.storage = storage;
  // [layer][step]: steps of one layer in order
  std::map<uint64_t, std::map<uint64_t, const NamedTensor*>> by_layer;
  uint64_t steps = 1;
  for (const NamedTensor& tensor : storage->tensors) {
    const Path path = ParsePath(tensor.name);
    if (path.indices.empty() || !IsAttentionPrefix(path.prefix)) {
      trace.notes.push_back(
          {fmt::format("tensor '{}' does not belong to a trace", Escaped(tensor.name))});
      continue;
    }
    const uint64_t step = path.indices.size() == 2 ? path.indices.front() : 0;
    by_layer[path.indices.back()].emplace(step, &tensor);
    steps = std::max(steps, step + 1);
  }
  for (const auto& [index, of_steps] : by_layer) {
    TraceLayer layer;
    layer.layer = static_cast<uint32_t>(index);
    uint64_t rows = 0;
    for (const auto& [step, tensor] : of_steps) {
      const TensorView view = BatchRow(*tensor, batch);
      if (trace.query_heads == 0) trace.query_heads = static_cast<uint32_t>(view.shape[0]);
      if (view.shape[0] != trace.query_heads || rows + view.shape[1] > kMostTracePositions) {
        throw Error(Finding::kBadField, "{} query heads, expected {}", view.shape[0],
                    trace.query_heads)
            .In(Escaped(tensor->name));
      }
      const uint64_t end = rows + view.shape[1];
      // Fewer columns than positions mean a sliding window's last ones, more mean a static cache's
      // zeros.
      const uint64_t key_begin = view.shape[2] >= end ? 0 : end - view.shape[2];
      layer.probabilities.push_back({rows, key_begin, view});
      if (step == 0 && steps > 1) trace.prompt_tokens = view.shape[1];
      rows = end;
    }
    if (of_steps.size() != steps || (trace.rows != 0 && rows != trace.rows)) {
      throw Error(Finding::kInconsistent, "layer {} has {} steps and {} rows, others {} and {}",
                  index, of_steps.size(), rows, steps, trace.rows)
          .File(trace.path);
    }
    trace.rows = rows;
    trace.layers.push_back(std::move(layer));
  }
  if (trace.layers.empty()) {
    throw Error(Finding::kMissingRecord,
                "no tuple of attentions: expected tensors [batch, heads, rows, keys] "
                "under LAYER or STEP/LAYER")
        .File(trace.path);
  }
  return trace;
}

namespace fs = std::filesystem;
namespace {

constexpr std::string_view kNpy = ".npy";

bool IsStem(const std::string& path) { return path != "-" && !fs::exists(path); }

// Returns the files DIR/STEM-*.npy, named without folder.
Source NpySet(const std::string& path) {
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : ".";
  const std::string prefix = fs::path(path).filename().string() + "-";
  Source source;
  source.path = path;
  source.is_folder = true;
  std::error_code failed;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(kNpy))
      source.files.push_back({name, FileSource::Open(entry.path())});
  }
  if (source.files.empty()) {
    throw Error(Finding::kOpenFailed, "no such file, and no npy set of this stem")
        .File(path)
        .Hint("a trace is a file, a folder, or DIR/STEM for DIR/STEM-L0-Q.npy ...");
  }
  std::sort(source.files.begin(), source.files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
  return source;
}

bool LooksLikeText(const Source& source) {
  const std::string_view text = AsText(source.files.at(0).data->bytes()).substr(0, 4096);
  return !source.is_folder && Trimmed(text).starts_with('{');
}

template <TensorFile (*Read)(Source, const OpenOptions&)>
AttentionTrace OpenArrays(Source source, const OpenOptions& options) {
  return TraceOfTensors(Read(std::move(source), options), "", options);
}

bool IsSafetensors(const Source& source) { return ProbeSafetensors(source) != Confidence::kNo; }
bool IsNpz(const Source& source) { return ProbeNpz(source) != Confidence::kNo; }
bool IsNpy(const Source& source) { return ProbeNpy(source) != Confidence::kNo; }

AttentionTrace OpenStream(Source source, const OpenOptions&) {
  return OpenBlockScores(source.files.front().data);
}

AttentionTrace OpenTorchTrace(Source source, const OpenOptions& options) {
  return TraceOfTorch(ReadTorch(std::move(source), options.max_bytes), options.batch);
}

// Carriers in the order of detection. The length at the start of a safetensors file may look like a
// brace, so safetensors come before text. They come again at the end, for unknown files, because
// their reader reports what is wrong.
constexpr TraceCarrier kCarriers[] = {
    {"safetensors", "Q, K and probabilities as named tensors: a file or a folder", IsSafetensors,
     OpenArrays<ReadSafetensors>, true},
    {"block-scores", "JSON Lines: scores per block, a line per layer call", LooksLikeText,
     OpenStream},
    {"npz", "numpy archives of named arrays", IsNpz, OpenArrays<ReadNpz>},
    {"torch", "attentions as Hugging Face returns them, saved by torch.save", LooksLikeTorch,
     OpenTorchTrace},
    {"npy", "numpy arrays: a folder, or DIR/STEM for DIR/STEM-L0-Q.npy ...", IsNpy,
     OpenArrays<ReadNpy>},
};

}  // namespace

std::span<const TraceCarrier> TraceCarriers() { return kCarriers; }

Source OpenTraceFiles(const std::string& path, const OpenOptions& options) {
  return IsStem(path) ? NpySet(path) : Source::Open(path, options.max_bytes);
}

AttentionTrace OpenTrace(const std::string& path, const OpenOptions& options) {
  return OpenTrace(OpenTraceFiles(path, options), options);
}

AttentionTrace OpenTrace(Source source, const OpenOptions& options) {
  const std::string path = source.path;
  if (IsStem(path)) {
    TensorFile file = ReadNpy(std::move(source), options);
    file.format = "npy set";
    return TraceOfTensors(std::move(file), fs::path(path).filename().string(), options);
  }
  if (source.files.empty()) {
    throw Error(Finding::kMissingRecord, "an empty folder").File(path);
  }
  try {
    for (const TraceCarrier& carrier : kCarriers) {
      if (carrier.fits(source)) return carrier.open(std::move(source), options);
    }
    return OpenArrays<ReadSafetensors>(std::move(source), options);
  } catch (Error& error) {
    throw error.File(path);
  }
}

}  // namespace kv
