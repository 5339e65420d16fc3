// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Makes traces of named arrays: names of layers and kinds, metadata, and the order of axes.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "formats/tensors/kvtool_arrays.h"
#include "formats/tensors/tensor_names.h"
#include "formats/trace/trace.h"
#include "lib/core/base/error.h"
#include "lib/core/base/number.h"
#include "lib/core/base/tensor.h"
#include "lib/core/snapshot/attention_trace.h"

namespace kv {
namespace {

// The metadata of a trace that consists of arrays.
struct TraceMetadata {
  bool is_marked = false;  // true: the file itself says that it is a trace
  std::optional<uint64_t> g_start;
  uint64_t g_evicted = 0;
  std::map<uint32_t, LayerRule> rules;  // rules of layers that differ from the common rule
};

Error BadValue(const std::string& key, const std::string& text, std::string_view expected) {
  return Error(Finding::kBadField, "metadata '{}' is '{}', expected {}", Escaped(key, 40),
               Escaped(text, 40), expected);
}

// Values by name; an empty value counts as absent.
class Values {
 public:
  explicit Values(const std::map<std::string, std::string>& values) : values_(values) {}

  const std::string* Find(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }
  std::string Text(const std::string& key) const {
    const std::string* text = Find(key);
    return text == nullptr ? std::string() : Escaped(*text);
  }
  std::optional<uint64_t> Count(const std::string& key) const {
    const std::string* text = Find(key);
    if (text == nullptr || text->empty()) return std::nullopt;
    const auto value = ParseNumber<uint64_t>(*text);
    if (!value || *value > kMostTracePositions) throw BadValue(key, *text, "a count up to 2^31");
    return value;
  }
  std::optional<double> Real(const std::string& key) const {
    const std::string* text = Find(key);
    if (text == nullptr || text->empty()) return std::nullopt;
    const auto value = ParseNumber<double>(*text);
    if (!value || !(*value >= 0) || *value > 1e30) throw BadValue(key, *text, "a number >= 0");
    return value;
  }

 private:
  const std::map<std::string, std::string>& values_;
};

// Returns the layer in a part of a name, within the limit on layers.
std::optional<uint32_t> TraceLayerNumber(std::string_view text) {
  const auto layer = ParseNumber<uint32_t>(text);
  return layer && *layer < kMostTraceLayers ? layer : std::nullopt;
}

// Reads "scale.12", "softcap.12", "window.12".
std::map<uint32_t, LayerRule> ReadRules(const std::map<std::string, std::string>& metadata) {
  const Values values(metadata);
  std::map<uint32_t, LayerRule> rules;
  for (const auto& [key, text] : metadata) {
    const size_t dot = key.find('.');
    const std::string_view what = std::string_view(key).substr(0, dot);
    const bool is_rule = what == "scale" || what == "softcap" || what == "window";
    if (dot == std::string::npos || !is_rule) continue;
    const auto layer = TraceLayerNumber(std::string_view(key).substr(dot + 1));
    if (!layer) throw BadValue(key, text, fmt::format("the name {}.LAYER", what));
    LayerRule& rule = rules[*layer];
    if (what == "scale") rule.scale = values.Real(key);
    if (what == "softcap") rule.softcap = values.Real(key);
    if (what == "window") rule.window = values.Count(key);
  }
  return rules;
}

// Fills the trace's own fields and returns the rest. Throws for a safetensors file without the
// mark, for other versions and for values that are out of range.
TraceMetadata ReadTraceMetadata(const TensorFile& file, AttentionTrace& trace) {
  const Values values(file.metadata);
  TraceMetadata metadata;
  const std::string* version = values.Find("kvtool.trace");
  const auto needs_mark = [&](const TraceCarrier& carrier) {
    return carrier.id == file.format && carrier.needs_mark;
  };
  if (version == nullptr && std::ranges::any_of(TraceCarriers(), needs_mark)) {
    throw Error(Finding::kMissingRecord, "metadata 'kvtool.trace' is missing: not a trace");
  }
  if (version != nullptr && *version != "1") {
    throw Error(Finding::kUnsupportedVersion, "trace version '{}', this program reads 1",
                Escaped(*version, 40));
  }
  trace.engine = values.Text("engine");
  trace.model = values.Text("model");
  trace.rope = values.Text("rope");
  trace.scale = values.Real("scale").value_or(0);
  trace.softcap = values.Real("softcap").value_or(0);
  trace.window = values.Count("window").value_or(0);
  trace.q_start = values.Count("q_start").value_or(0);
  trace.prompt_tokens = values.Count("prompt_tokens");
  trace.kv_heads = static_cast<uint32_t>(values.Count("kv_heads").value_or(0));
  metadata.is_marked = version != nullptr;
  metadata.g_start = values.Count("g_start");
  metadata.g_evicted = values.Count("g_evicted").value_or(0);
  metadata.rules = ReadRules(file.metadata);
  return metadata;
}

// The meaning of a tensor's name: 'q', 'k', 'v', 'a', 'g' of a layer, or 't' for the token ids.
struct Role {
  char kind = 0;  // 0: none
  uint32_t layer = 0;
};

Role ParseRole(char kind, std::string_view number) {
  const auto layer = TraceLayerNumber(number);
  return layer ? Role{kind, *layer} : Role{};
}

// Parses "q.12", "tokens".
Role ParseNameRole(std::string_view name) {
  if (name == "tokens") return {'t', 0};
  if (name.size() < 3 || name[1] != '.') return {};
  if (std::string_view("qkvag").find(name[0]) == std::string_view::npos) return {};
  return ParseRole(name[0], name.substr(2));
}

// Parses "STEM-L12-Q", "STEM-tokens".
Role ParseFileRole(std::string_view name, std::string_view stem) {
  if (name.substr(0, stem.size()) != stem) return {};
  name.remove_prefix(stem.size());
  if (name == "-tokens") return {'t', 0};
  if (name.size() < 5 || name.substr(0, 2) != "-L" || name[name.size() - 2] != '-') return {};
  const size_t kind = std::string_view("QKVAG").find(name.back());
  if (kind == std::string_view::npos) return {};
  return ParseRole("qkvag"[kind], name.substr(2, name.size() - 4));
}

template <typename... Values>
Error BadTensor(const NamedTensor& tensor, fmt::format_string<Values...> text, Values&&... values) {
  return Error(Finding::kBadField, text, std::forward<Values>(values)...).In(Escaped(tensor.name));
}

void RequireFloats(const NamedTensor& tensor) {
  if (Info(tensor.view.dtype).is_float && !IsBlockQuantised(tensor.view.dtype)) return;
  throw Error(Finding::kUnsupportedDtype, "{} values, expected floats", Name(tensor.view.dtype))
      .In(Escaped(tensor.name));
}

TensorView WithAxes(const NamedTensor& tensor, size_t rank, std::string_view axes) {
  RequireFloats(tensor);
  const TensorView& view = tensor.view;
  if (view.rank() != rank) {
    throw BadTensor(tensor, "{} axes, expected {}: {}", view.rank(), rank, axes);
  }
  for (const uint64_t extent : view.shape) {
    if (extent == 0 || extent > kMostTracePositions) {
      throw BadTensor(tensor, "extent {}, expected 1 to 2^31", extent);
    }
  }
  return view;
}

TensorView ThreeAxes(const NamedTensor& tensor, std::string_view axes) {
  return WithAxes(tensor, 3, axes);
}

class Builder {
 public:
  Builder(TensorFile file, const std::string& stem, const std::string& layout)
      : file_(std::make_shared<TensorFile>(std::move(file))), stem_(stem), layout_(layout) {}

  AttentionTrace Build() {
    trace_.path = file_->source.path;
    trace_.format = file_->format;
    trace_.storage = file_;
    for (const std::string& note : file_->notes) trace_.notes.push_back({note, true});
    for (const NamedTensor& tensor : file_->tensors) Sort(tensor);
    if (by_layer_.empty()) {
      const std::string sets = SetsIn();
      throw Error(Finding::kMissingRecord, "no tensor q.{layer} or a.{layer}")
          .Hint(!stem_.empty()  ? "expected STEM-L0-Q.npy or STEM-L0-A.npy"
                : !sets.empty() ? "the folder has several sets, one of which is a trace: " + sets
                                : "kvtool's own names are q.0, a.0, k.0, v.0, tokens; see "
                                  "formats/trace/FORMAT.md");
    }
    metadata_ = ReadTraceMetadata(*file_, trace_);
    for (auto& [index, layer] : by_layer_) AddLayer(index, layer);
    trace_.level = std::all_of(trace_.layers.begin(), trace_.layers.end(),
                               [](const TraceLayer& layer) { return layer.queries.has_value(); })
                       ? TraceLevel::kQueries
                       : TraceLevel::kProbabilities;
    if (trace_.end_position() > kMostTracePositions) {
      throw Error(Finding::kLimit, "rows end at position {}, at most 2^31 are read",
                  trace_.end_position());
    }
    RequireGradientsWithin();
    return std::move(trace_);
  }

 private:
  struct Tensors {
    const NamedTensor *q = nullptr, *k = nullptr, *v = nullptr, *a = nullptr, *g = nullptr;
  };

  // Returns "dir/a, dir/b": the sets of arrays named STEM-L0-Q and so on in a folder.
  std::string SetsIn() const {
    constexpr size_t kMostSets = 8;
    std::set<std::string> stems;
    for (const NamedTensor& tensor : file_->tensors) {
      const size_t layer = tensor.name.rfind("-L");
      if (layer != tensor.name.npos && stems.size() < kMostSets)
        stems.insert((std::filesystem::path(trace_.path) / tensor.name.substr(0, layer)).string());
    }
    return fmt::format("{}", fmt::join(stems, ", "));
  }

  void Sort(const NamedTensor& tensor) {
    const Role role =
        stem_.empty() ? ParseNameRole(tensor.name) : ParseFileRole(tensor.name, stem_);
    if (role.kind == 0) {
      trace_.notes.push_back(
          {fmt::format("tensor '{}' does not belong to a trace", Escaped(tensor.name))});
      return;
    }
    if (role.kind == 't') return ReadTokens(tensor);
    Tensors& layer = by_layer_[role.layer];
    const NamedTensor** slot = role.kind == 'q'   ? &layer.q
                               : role.kind == 'k' ? &layer.k
                               : role.kind == 'v' ? &layer.v
                               : role.kind == 'g' ? &layer.g
                                                  : &layer.a;
    if (*slot != nullptr) {
      throw Error(Finding::kDuplicateName, "a second tensor of this name").In(Escaped(tensor.name));
    }
    *slot = &tensor;
  }

  void ReadTokens(const NamedTensor& tensor) {
    const TensorView& view = tensor.view;
    if (view.rank() != 1 ||
        (view.dtype != DType::kI32 && view.dtype != DType::kI64 && view.dtype != DType::kU32)) {
      throw BadTensor(tensor, "{} of {} axes, expected a list of integers", Name(view.dtype),
                      view.rank());
    }
    for (const int64_t token : ToIntegers(view))
      trace_.tokens.push_back(static_cast<int32_t>(token));
  }

  // Checks that every layer has the same figure.
  template <typename T>
  void Agree(T& known, uint64_t value, const NamedTensor& tensor, std::string_view what) {
    if (known == 0) known = static_cast<T>(value);
    if (known == value) return;
    throw BadTensor(tensor, "{} {}, expected {} as before", value, what, known);
  }

  // Returns K or V as [token, head, dim]. Names of a file that is marked as a trace mean that
  // order. In other files heads may come first; if the query heads do not decide, the values do, as
  // in snapshots.
  TensorView TokensFirst(const NamedTensor& tensor) const {
    TensorView view = ThreeAxes(tensor, "tokens, kv heads, head dim");
    if (metadata_.is_marked || layout_ == "thd") return view;
    TensorView swapped = view;
    std::swap(swapped.shape[0], swapped.shape[1]);
    std::swap(swapped.strides[0], swapped.strides[1]);
    if (layout_ == "htd") return swapped;
    const auto may_be_heads = [&](uint64_t heads) {
      return trace_.kv_heads != 0 ? heads == trace_.kv_heads
                                  : trace_.query_heads % heads == 0 && heads <= trace_.query_heads;
    };
    const auto may_be = [&](uint64_t tokens, uint64_t heads) {
      return tokens >= trace_.end_position() && may_be_heads(heads);
    };
    const bool as_is = may_be(view.shape[0], view.shape[1]);
    const bool as_swapped = may_be(view.shape[1], view.shape[0]);
    if (as_is != as_swapped) return as_is ? view : swapped;
    const TokenAxis evidence = FindTokenAxis(view);
    if (const auto axis = evidence.axis()) return *axis == 0 ? view : swapped;
    throw Error(Finding::kAmbiguousFormat,
                "ambiguous: [{}] is [token, head, dim] or [head, token, dim], and its values do "
                "not show which (margin {:.2f} standard errors, {} needed)",
                fmt::join(view.shape, ", "), evidence.margin(), TokenAxis::kDecidingMargin)
        .In(Escaped(tensor.name))
        .Hint("choose with --layout thd or htd");
  }

  void AddLayer(uint32_t index, const Tensors& tensors) {
    if (tensors.q == nullptr && tensors.a == nullptr) {  // nothing to replay
      if (tensors.g == nullptr) return;
      throw BadTensor(*tensors.g, "gradients without q.{0} or a.{0}", index);
    }
    TraceLayer layer;
    layer.layer = index;
    if (const auto rule = metadata_.rules.find(index); rule != metadata_.rules.end()) {
      layer.rule = rule->second;
    }
    if (tensors.q != nullptr) {
      layer.queries = ThreeAxes(*tensors.q, "rows, query heads, head dim");
      Agree(trace_.rows, layer.queries->shape[0], *tensors.q, "rows");
      Agree(trace_.query_heads, layer.queries->shape[1], *tensors.q, "query heads");
      Agree(trace_.head_dim, layer.queries->shape[2], *tensors.q, "head dim");
    }
    if (tensors.a != nullptr) {
      const TensorView view = ThreeAxes(*tensors.a, "query heads, rows, keys");
      Agree(trace_.query_heads, view.shape[0], *tensors.a, "query heads");
      Agree(trace_.rows, view.shape[1], *tensors.a, "rows");
      const uint64_t end = trace_.end_position();
      layer.probabilities.push_back({0, view.shape[2] >= end ? 0 : end - view.shape[2], view});
    }
    if (tensors.k != nullptr) {
      layer.keys = TokensFirst(*tensors.k);
      Agree(trace_.kv_heads, layer.keys->shape[1], *tensors.k, "kv heads");
      if (layer.queries) Agree(trace_.head_dim, layer.keys->shape[2], *tensors.k, "head dim");
    }
    if (tensors.v != nullptr) {
      layer.values = TokensFirst(*tensors.v);
      Agree(trace_.kv_heads, layer.values->shape[1], *tensors.v, "kv heads");
    }
    if (tensors.g != nullptr) AddGradients(*tensors.g, layer);
    if (trace_.query_heads > kMostTraceHeads) {
      throw Error(Finding::kLimit, "{} query heads, at most {} are read", trace_.query_heads,
                  kMostTraceHeads);
    }
    trace_.layers.push_back(std::move(layer));
  }

  void AddGradients(const NamedTensor& tensor, TraceLayer& layer) {
    layer.gradients = WithAxes(tensor, 4, "samples, rows, query heads, v dim");
    const std::vector<uint64_t>& shape = layer.gradients->shape;
    GradientRows& all = trace_.gradients ? *trace_.gradients : trace_.gradients.emplace();
    all.begin = metadata_.g_start.value_or(trace_.q_start);
    Agree(all.samples, shape[0], tensor, "samples");
    if (metadata_.g_evicted > all.samples) {
      throw BadTensor(tensor, "{} samples, but metadata 'g_evicted' counts {}", all.samples,
                      metadata_.g_evicted);
    }
    all.evicted = metadata_.g_evicted;
    Agree(all.rows, shape[1], tensor, "rows of gradients");
    Agree(trace_.query_heads, shape[2], tensor, "query heads");
    if (layer.values && shape[3] != layer.values->shape[2]) {
      throw BadTensor(tensor, "v dim {}, the trace's values have {}", shape[3],
                      layer.values->shape[2]);
    }
  }

  void RequireGradientsWithin() const {
    if (!trace_.gradients) return;
    const GradientRows& rows = *trace_.gradients;
    if (rows.begin >= trace_.q_start && rows.end() <= trace_.end_position()) return;
    throw Error(Finding::kBadField,
                "gradients of positions {} to {}, but the trace's rows are {} to {}", rows.begin,
                rows.end() - 1, trace_.q_start, trace_.end_position() - 1)
        .Hint("metadata 'g_start' is the position of their first row");
  }

  std::shared_ptr<TensorFile> file_;
  std::string stem_, layout_;
  std::map<uint32_t, Tensors> by_layer_;
  TraceMetadata metadata_;
  AttentionTrace trace_;
};

}  // namespace

AttentionTrace TraceOfTensors(TensorFile file, const std::string& stem,
                              const OpenOptions& options) {
  const std::string path = file.source.path;
  try {
    AttentionTrace trace = Builder(std::move(file), stem, options.layout).Build();
    if (trace.layers.empty()) {
      throw Error(Finding::kMissingRecord, "no layer has queries or probabilities");
    }
    return trace;
  } catch (Error& error) {
    throw error.File(path);
  }
}

}  // namespace kv
