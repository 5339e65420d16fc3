// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "formats/trace/trace.h"
#include "lib/core/base/error.h"
#include "lib/core/snapshot/token_axis.h"

namespace kv {
namespace {

std::optional<uint64_t> ParseNumber(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// What a tensor's name says: 'q', 'k', 'v', 'a' of a layer, or 't' for the token ids.
struct Role {
  char kind = 0;  // 0: none
  uint32_t layer = 0;
};

Role RoleOf(char kind, std::string_view number) {
  const auto layer = ParseNumber(number);
  if (!layer || *layer >= kMostTraceLayers) return {};
  return {kind, static_cast<uint32_t>(*layer)};
}

// "q.12", "tokens"
Role RoleOfName(std::string_view name) {
  if (name == "tokens") return {'t', 0};
  if (name.size() < 3 || name[1] != '.') return {};
  if (std::string_view("qkva").find(name[0]) == std::string_view::npos) return {};
  return RoleOf(name[0], name.substr(2));
}

// "STEM-L12-Q", "STEM-tokens"
Role RoleOfFile(std::string_view name, std::string_view stem) {
  if (name.substr(0, stem.size()) != stem) return {};
  name.remove_prefix(stem.size());
  if (name == "-tokens") return {'t', 0};
  if (name.size() < 5 || name.substr(0, 2) != "-L" || name[name.size() - 2] != '-') return {};
  const size_t kind = std::string_view("QKVA").find(name.back());
  if (kind == std::string_view::npos) return {};
  return RoleOf("qkva"[kind], name.substr(2, name.size() - 4));
}

Error BadTensor(const NamedTensor& tensor, std::string message) {
  return std::move(Error(Finding::kBadField, std::move(message)).In(Escaped(tensor.name)));
}

void RequireFloats(const NamedTensor& tensor) {
  if (Info(tensor.view.dtype).is_float && !IsBlockQuantised(tensor.view.dtype)) return;
  throw std::move(Error(Finding::kUnsupportedDtype,
                        fmt::format("{} values, expected floats", Name(tensor.view.dtype)))
                      .In(Escaped(tensor.name)));
}

TensorView ThreeAxes(const NamedTensor& tensor, std::string_view axes) {
  RequireFloats(tensor);
  const TensorView& view = tensor.view;
  if (view.rank() != 3) {
    throw BadTensor(tensor, fmt::format("{} axes, expected 3: {}", view.rank(), axes));
  }
  for (const uint64_t extent : view.shape) {
    if (extent == 0 || extent > kMostTracePositions) {
      throw BadTensor(tensor, fmt::format("extent {}, expected 1 to 2^31", extent));
    }
  }
  return view;
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
      throw Error(Finding::kMissingRecord, "no tensor q.{layer} or a.{layer}")
          .Hint(stem_.empty() ? "kvtool's own names are q.0, a.0, k.0, v.0, tokens; see "
                                "formats/trace/FORMAT.md"
                              : "expected STEM-L0-Q.npy or STEM-L0-A.npy");
    }
    ReadMetadata();
    for (auto& [index, layer] : by_layer_) AddLayer(index, layer);
    trace_.level = std::all_of(trace_.layers.begin(), trace_.layers.end(),
                               [](const TraceLayer& layer) { return layer.queries.has_value(); })
                       ? TraceLevel::kQueries
                       : TraceLevel::kProbabilities;
    if (trace_.end_position() > kMostTracePositions) {
      throw Error(Finding::kLimit, fmt::format("rows end at position {}, at most 2^31 are read",
                                               trace_.end_position()));
    }
    return std::move(trace_);
  }

 private:
  struct Tensors {
    const NamedTensor *q = nullptr, *k = nullptr, *v = nullptr, *a = nullptr;
  };

  void Sort(const NamedTensor& tensor) {
    const Role role = stem_.empty() ? RoleOfName(tensor.name) : RoleOfFile(tensor.name, stem_);
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
                                                  : &layer.a;
    if (*slot != nullptr) {
      throw std::move(
          Error(Finding::kDuplicateName, "a second tensor of this name").In(Escaped(tensor.name)));
    }
    *slot = &tensor;
  }

  void ReadTokens(const NamedTensor& tensor) {
    const TensorView& view = tensor.view;
    if (view.rank() != 1 ||
        (view.dtype != DType::kI32 && view.dtype != DType::kI64 && view.dtype != DType::kU32)) {
      throw BadTensor(tensor, fmt::format("{} of {} axes, expected a list of integers",
                                          Name(view.dtype), view.rank()));
    }
    const Bytes values = CopyContiguous(view);
    const size_t width = Info(view.dtype).block_bytes;
    for (size_t at = 0; at + width <= values.size(); at += width) {
      trace_.tokens.push_back(width == 8 ? static_cast<int32_t>(LoadLE<int64_t>(values.data() + at))
                                         : LoadLE<int32_t>(values.data() + at));
    }
  }

  const std::string* Meta(const std::string& key) const {
    const auto found = file_->metadata.find(key);
    return found == file_->metadata.end() ? nullptr : &found->second;
  }
  std::optional<uint64_t> MetaCount(const std::string& key) const {
    const std::string* text = Meta(key);
    if (text == nullptr || text->empty()) return std::nullopt;
    const auto value = ParseNumber(*text);
    if (!value || *value > kMostTracePositions) {
      throw Error(Finding::kBadField, fmt::format("metadata '{}' is '{}', expected a count up to "
                                                  "2^31",
                                                  key, Escaped(*text, 40)));
    }
    return value;
  }
  double MetaReal(const std::string& key) const {
    const std::string* text = Meta(key);
    if (text == nullptr || text->empty()) return 0;
    double value = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size() || !(value >= 0) ||
        value > 1e30) {
      throw Error(Finding::kBadField, fmt::format("metadata '{}' is '{}', expected a number >= 0",
                                                  key, Escaped(*text, 40)));
    }
    return value;
  }
  std::string MetaText(const std::string& key) const {
    const std::string* text = Meta(key);
    return text == nullptr ? std::string() : Escaped(*text);
  }

  void ReadMetadata() {
    const std::string* version = Meta("kvtool.trace");
    if (version == nullptr && file_->format == "safetensors") {
      throw Error(Finding::kMissingRecord, "metadata 'kvtool.trace' is missing: not a trace");
    }
    if (version != nullptr && *version != "1") {
      throw Error(Finding::kUnsupportedVersion,
                  fmt::format("trace version '{}', this program reads 1", Escaped(*version, 40)));
    }
    trace_.engine = MetaText("engine");
    trace_.model = MetaText("model");
    trace_.rope = MetaText("rope");
    trace_.scale = MetaReal("scale");
    trace_.softcap = MetaReal("softcap");
    trace_.window = MetaCount("window").value_or(0);
    trace_.q_start = MetaCount("q_start").value_or(0);
    trace_.prompt_tokens = MetaCount("prompt_tokens");
    trace_.kv_heads = static_cast<uint32_t>(MetaCount("kv_heads").value_or(0));
  }

  // The same figure from every layer, or refused.
  template <typename T>
  void Agree(T& known, uint64_t value, const NamedTensor& tensor, std::string_view what) {
    if (known == 0) known = static_cast<T>(value);
    if (known == value) return;
    throw BadTensor(tensor, fmt::format("{} {}, expected {} as before", value, what, known));
  }

  // K or V as [token, head, dim]. The names of a file that says what it is mean that; elsewhere
  // heads may come first, and where the query heads leave both open the values tell, as in
  // snapshots.
  TensorView TokensFirst(const NamedTensor& tensor) const {
    TensorView view = ThreeAxes(tensor, "tokens, kv heads, head dim");
    if (Meta("kvtool.trace") != nullptr || layout_ == "thd") return view;
    TensorView turned = view;
    std::swap(turned.shape[0], turned.shape[1]);
    std::swap(turned.strides[0], turned.strides[1]);
    if (layout_ == "htd") return turned;
    const auto may_be_heads = [&](uint64_t heads) {
      return trace_.kv_heads != 0 ? heads == trace_.kv_heads
                                  : trace_.query_heads % heads == 0 && heads <= trace_.query_heads;
    };
    const bool as_is = may_be_heads(view.shape[1]), as_turned = may_be_heads(view.shape[0]);
    if (as_is != as_turned) return as_is ? view : turned;
    const TokenAxis evidence = FindTokenAxis(view);
    if (const auto axis = evidence.axis()) return *axis == 0 ? view : turned;
    throw std::move(
        Error(
            Finding::kAmbiguousFormat,
            fmt::format("ambiguous: [{}] is [token, head, dim] or [head, token, dim], and its "
                        "values do not tell (margin {:.2f} standard errors, {} needed)",
                        fmt::join(view.shape, ", "), evidence.margin(), TokenAxis::kDecidingMargin))
            .In(Escaped(tensor.name))
            .Hint("choose with --layout thd or htd"));
  }

  void AddLayer(uint32_t index, const Tensors& tensors) {
    if (tensors.q == nullptr && tensors.a == nullptr) return;  // only k and v: nothing to replay
    TraceLayer layer;
    layer.layer = index;
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
    if (trace_.query_heads > kMostTraceHeads) {
      throw Error(Finding::kLimit, fmt::format("{} query heads, at most {} are read",
                                               trace_.query_heads, kMostTraceHeads));
    }
    trace_.layers.push_back(std::move(layer));
  }

  std::shared_ptr<TensorFile> file_;
  std::string stem_, layout_;
  std::map<uint32_t, Tensors> by_layer_;
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
