// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/weights/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"

namespace kv {
namespace {

// The parts of "…/module.compress_tk.0.3.weight".
struct Key {
  std::string_view container;  // everything before the prefix: "…/module."
  std::string_view prefix;
  uint64_t layer = 0;
  uint32_t slot = 0;
  bool is_bias = false;
};

// Removes and returns the last dot-separated part.
std::string_view CutPart(std::string_view& text) {
  const size_t dot = text.rfind('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view part = text.substr(dot + 1);
  text = text.substr(0, dot);
  return part;
}

std::optional<Key> ParseKey(std::string_view name) {
  Key key;
  const std::string_view kind = CutPart(name);
  if (kind != "weight" && kind != "bias") return std::nullopt;
  key.is_bias = kind == "bias";
  const auto slot = ParseNumber<decltype(key.slot)>(CutPart(name));
  const auto layer = ParseNumber<decltype(key.layer)>(CutPart(name));
  if (!slot || !layer) return std::nullopt;
  key.slot = *slot;
  key.layer = *layer;
  const size_t begin = name.find_last_of("./");
  key.prefix = begin == std::string_view::npos ? name : name.substr(begin + 1);
  key.container = name.substr(0, name.size() - key.prefix.size());
  return key;
}

bool IsOptimizer(std::string_view name) {
  const std::string_view top = name.substr(0, name.find('/'));
  return top.find("optim") != std::string_view::npos && top.size() < name.size();
}

constexpr std::string_view kBlanks = " \t\n\r\f\v";

std::string PrefixName(std::string_view item) {
  const std::string_view name = Trimmed(item, kBlanks);
  return std::string(name.substr(name.rfind('.') + 1));
}

std::vector<std::string_view> SplitList(std::string_view list) {
  std::vector<std::string_view> items = Split(list, ',');
  for (std::string_view& item : items) item = Trimmed(item, kBlanks);
  std::erase(items, "");
  return items;
}

CheckpointOptions WithPrefixNames(CheckpointOptions options) {
  for (std::string& prefix : options.prefix_order) prefix = PrefixName(prefix);
  std::erase(options.prefix_order, "");
  return options;
}

// Returns the rank in the order in which InfiniLM's converter searches; other containers come last.
int RankContainer(std::string_view container) {
  constexpr std::string_view kKnown[] = {"model_state_dict/compressor/", "compressor/", ""};
  for (int i = 0; i < 3; ++i) {
    if (container == kKnown[i]) return i;
  }
  return 3;
}

class Finder {
 public:
  Finder(TensorFile file, CheckpointOptions options) : options_(std::move(options)) {
    weights_.source = file.source;
    weights_.spools = file.spools;
    weights_.format = file.format;
    for (const std::string& note : file.notes) weights_.notes.push_back({note, true});
    file_ = std::move(file);
  }

  void Run() {
    ChooseContainer();
    RefuseForeign();
    ChoosePrefixes();
    ChooseSlots();
    CountLayers();
    ReadHeader();
    for (uint32_t layer = 0; layer < weights_.header.num_layers; ++layer) ReadLayer(layer);
  }

  CheckpointShares Shares() const;
  CompressorWeights Release() { return std::move(weights_); }

 private:
  void ChooseContainer();
  void RefuseForeign() const;
  void ChoosePrefixes();
  void ChooseSlots();
  void CountLayers();
  void ReadHeader();
  void ReadLayer(uint32_t layer);
  TensorView Bias(const std::string& key, uint64_t rows);

  bool IsWanted(std::string_view prefix) const {
    const auto& order = options_.prefix_order;
    if (!order.empty()) return std::find(order.begin(), order.end(), prefix) != order.end();
    return std::find(kMlpPrefixes.begin(), kMlpPrefixes.end(), prefix) != kMlpPrefixes.end();
  }

  std::string KeyName(std::string_view prefix, uint64_t layer, uint32_t slot,
                      std::string_view kind) const {
    return fmt::format("{}.{}.{}.{}", prefix, layer, slot, kind);
  }

  // Returns a tensor of the container by its key.
  const NamedTensor* Find(const std::string& key) const {
    const auto found = by_key_.find(key);
    return found == by_key_.end() ? nullptr : found->second;
  }

  const TensorView& Weight(std::string_view prefix, uint64_t layer, uint32_t slot) const;

  TensorFile file_;
  const CheckpointOptions options_;
  CompressorWeights weights_;
  std::unordered_map<std::string, const NamedTensor*> by_key_;  // tensors of the container
  std::vector<std::pair<Key, const NamedTensor*>> keys_;        // keys of weights, in file order
  std::set<std::string> used_;
};

void Finder::ChooseContainer() {
  std::map<std::string_view, bool> containers;
  for (const NamedTensor& tensor : file_.tensors) {
    const std::optional<Key> key = ParseKey(tensor.name);
    if (key && IsWanted(key->prefix) && !IsOptimizer(tensor.name)) containers[key->container];
  }
  if (containers.empty()) {
    throw Error(Finding::kMissingRecord, "no compressor weights among {} tensors",
                file_.tensors.size())
        .Hint("keys like compress_tk.0.0.weight are expected; name others with --prefix-order");
  }
  std::string_view best = containers.begin()->first;
  for (const auto& [container, unused] : containers) {
    if (RankContainer(container) < RankContainer(best)) best = container;
  }
  if (RankContainer(best) == 3 && containers.size() > 1) {
    std::string all;
    for (const auto& [container, unused] : containers) {
      all += fmt::format("{}'{}'", all.empty() ? "" : ", ", Escaped(container));
    }
    throw Error(Finding::kAmbiguousFormat, "compressor weights in {} places: {}", containers.size(),
                all);
  }
  weights_.container = best;
  for (const NamedTensor& tensor : file_.tensors) {
    if (!tensor.name.starts_with(best)) continue;
    by_key_.emplace(tensor.name.substr(best.size()), &tensor);
    const std::optional<Key> key = ParseKey(tensor.name);
    if (key && key->container == best) keys_.emplace_back(*key, &tensor);
  }
}

void Finder::RefuseForeign() const {
  const std::string& container = weights_.container;
  const std::string_view folder =
      std::string_view(container).substr(0, container.find_last_of('/') + 1);
  for (const OpaqueValue& value : file_.opaque) {
    if (!value.is_foreign || !value.name.starts_with(folder)) continue;
    if (folder.empty() && value.name.find('/') != std::string::npos) continue;
    throw Error(Finding::kForbiddenGlobal, "the entry '{}' of the weights is {}",
                Escaped(value.name), value.kind);
  }
}

void Finder::ChoosePrefixes() {
  if (!options_.prefix_order.empty()) {
    weights_.prefixes = options_.prefix_order;
  } else {
    for (const std::string_view prefix : kMlpPrefixes) {
      const bool found = std::any_of(keys_.begin(), keys_.end(),
                                     [&](const auto& item) { return item.first.prefix == prefix; });
      if (found) weights_.prefixes.emplace_back(prefix);
    }
  }
  if (!options_.text_only) return;
  std::erase_if(weights_.prefixes, [](const std::string& prefix) {
    return prefix != kMlpPrefixes[0] && prefix != kMlpPrefixes[1];
  });
}

void Finder::ChooseSlots() {
  if (!options_.slot_order.empty()) {
    weights_.slots = options_.slot_order;
  } else {
    std::set<uint32_t> found;
    for (const auto& [key, tensor] : keys_) {
      if (IsWanted(key.prefix) && !key.is_bias) found.insert(key.slot);
    }
    weights_.slots.assign(found.begin(), found.end());
  }
  if (weights_.slots.size() != kSlotsPerMlp) {
    throw Error(Finding::kInconsistent, "an MLP has weights in slots {}, expected 3 slots",
                fmt::join(weights_.slots, ","))
        .Hint("choose them with --slot-order, as in --slot-order 0,3,6");
  }
}

void Finder::CountLayers() {
  uint64_t layers = 0;
  for (const auto& [key, tensor] : keys_) {
    const auto& chosen = weights_.prefixes;
    if (std::find(chosen.begin(), chosen.end(), key.prefix) == chosen.end()) continue;
    if (key.layer >= UINT32_MAX) {
      throw Error(Finding::kBadName, "'{}' names a layer that no model has", Escaped(tensor->name));
    }
    layers = std::max(layers, key.layer + 1);
  }
  if (layers == 0) {
    throw Error(Finding::kMissingRecord, "no weights of {}", fmt::join(weights_.prefixes, ", "));
  }
  weights_.header.num_layers = static_cast<uint32_t>(layers);
}

const TensorView& Finder::Weight(std::string_view prefix, uint64_t layer, uint32_t slot) const {
  const std::string key = KeyName(prefix, layer, slot, "weight");
  const NamedTensor* tensor = Find(key);
  if (tensor == nullptr) {
    throw Error(Finding::kMissingRecord, "Missing weight: {}", Escaped(key))
        .Hint("save all weights of the compressor, or choose by --prefix-order, --slot-order");
  }
  const TensorView& view = tensor->view;
  if (view.rank() != 2) {
    throw Error(Finding::kInconsistent, "Expected 2D weight for {}, got ({})", Escaped(key),
                fmt::join(view.shape, ", "));
  }
  const auto fits = [](uint64_t extent) { return extent > 0 && extent <= UINT32_MAX; };
  if (!fits(view.shape[0]) || !fits(view.shape[1])) {
    throw Error(Finding::kBadField, "{} has shape ({})", Escaped(key), fmt::join(view.shape, ", "));
  }
  return view;
}

void Finder::ReadHeader() {
  const TensorView& first = Weight(weights_.prefixes[0], 0, weights_.slots[0]);
  WeightsHeader& header = weights_.header;
  weights_.dtype = first.dtype;
  header.num_heads = options_.num_heads;
  header.min_seq_len = options_.min_seq_len.value_or(2);
  header.hidden_size = static_cast<uint32_t>(first.shape[1]);
  header.head_dim =
      options_.head_dim > 0 ? options_.head_dim : static_cast<uint32_t>(first.shape[0]);
  if (header.hidden_size % header.head_dim != 0) {
    throw Error(Finding::kInconsistent,
                "Cannot infer compression factor: hidden_size={} head_dim={}", header.hidden_size,
                header.head_dim)
        .Hint("give the model's head size with --head-dim");
  }
  header.compression_factor = options_.compression_factor > 0
                                  ? options_.compression_factor
                                  : header.hidden_size / header.head_dim;
  header.blocks_per_layer = static_cast<uint32_t>(weights_.prefixes.size()) * kSlotsPerMlp;
}

void Finder::ReadLayer(uint32_t layer) {
  for (const std::string& prefix : weights_.prefixes) {
    for (const uint32_t slot : weights_.slots) {
      LinearBlock block;
      block.weight = Weight(prefix, layer, slot);
      block.bias = Bias(KeyName(prefix, layer, slot, "bias"), block.rows());
      block.bias_flag = block.has_bias() ? 1 : 0;
      used_.insert(KeyName(prefix, layer, slot, "weight"));
      if (block.has_bias()) used_.insert(KeyName(prefix, layer, slot, "bias"));
      weights_.blocks.push_back(std::move(block));
    }
  }
}

// Accepts any shape with as many values as rows. A tensor with another count is not a bias;
// InfiniLM's converter drops it silently.
TensorView Finder::Bias(const std::string& key, uint64_t rows) {
  const NamedTensor* tensor = Find(key);
  if (tensor == nullptr) return {};
  if (tensor->view.elements() != rows) {
    weights_.notes.push_back({fmt::format("{} has {} values for {} rows and is dropped",
                                          Escaped(key), tensor->view.elements(), rows),
                              true});
    return {};
  }
  TensorView flat = tensor->view;
  for (size_t axis = flat.rank(); axis-- > 0;) {
    if (flat.shape[axis] != 1 || flat.rank() == 1) continue;
    flat.shape.erase(flat.shape.begin() + static_cast<std::ptrdiff_t>(axis));
    flat.strides.erase(flat.strides.begin() + static_cast<std::ptrdiff_t>(axis));
  }
  if (flat.rank() == 1) return flat;
  weights_.spools.push_back(FileSource::FromBytes(CopyContiguous(tensor->view), key));
  return ContiguousView(flat.dtype, {rows}, weights_.spools.back()->bytes().data());
}

// Returns the prefixes of parameters without optimizer state, which never got a gradient. The
// optimizer numbers parameters in the order of their keys.
std::vector<std::string> UntrainedPrefixes(
    const TensorFile& file, const std::vector<std::pair<Key, const NamedTensor*>>& keys) {
  std::map<uint64_t, const NamedTensor*> moments;
  for (const NamedTensor& tensor : file.tensors) {
    if (!IsOptimizer(tensor.name) || !tensor.name.ends_with("/exp_avg")) continue;
    const std::string_view path = std::string_view(tensor.name).substr(0, tensor.name.size() - 8);
    const auto index = ParseNumber<uint64_t>(path.substr(path.rfind('/') + 1));
    if (index) moments[*index] = &tensor;
  }
  std::vector<std::string> order;
  std::map<std::string, uint64_t> states;
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::string prefix(keys[i].first.prefix);
    if (states.try_emplace(prefix, 0).second) order.push_back(prefix);
    const auto found = moments.find(i);
    if (found == moments.end()) continue;
    // A moment of another shape: the optimizer numbers its parameters in another order.
    if (found->second->view.shape != keys[i].second->view.shape) return {};
    ++states[prefix];
  }
  std::vector<std::string> untrained;
  for (const std::string& prefix : order) {
    if (states[prefix] == 0) untrained.push_back(prefix);
  }
  return untrained.size() == order.size() ? std::vector<std::string>() : untrained;
}

CheckpointShares Finder::Shares() const {
  constexpr size_t kListed = 4;
  CheckpointShares shares;
  const std::string& container = weights_.container;
  for (const NamedTensor& tensor : file_.tensors) {
    const uint64_t bytes = tensor.view.bytes();
    const bool inside = tensor.name.starts_with(container);
    if (inside && used_.count(tensor.name.substr(container.size())) != 0) {
      shares.weight_bytes += bytes;
      continue;
    }
    (IsOptimizer(tensor.name) ? shares.optimizer_bytes : shares.other_bytes) += bytes;
    if (!inside || IsOptimizer(tensor.name)) continue;
    ++shares.ignored_keys;
    if (shares.ignored.size() < kListed) shares.ignored.push_back(tensor.name);
  }
  shares.untrained = UntrainedPrefixes(file_, keys_);
  return shares;
}

}  // namespace

std::vector<std::string> ParsePrefixOrder(std::string_view list) {
  std::vector<std::string> names;
  for (const std::string_view item : SplitList(list)) names.push_back(PrefixName(item));
  return names;
}

std::vector<uint32_t> ParseSlotOrder(std::string_view list) {
  std::vector<uint32_t> slots;
  for (const std::string_view item : SplitList(list)) {
    const auto slot = ParseNumber<uint32_t>(item);
    if (!slot) {
      throw Error(Finding::kUsage, "--slot-order '{}': expected whole numbers", Escaped(item));
    }
    slots.push_back(*slot);
  }
  return slots;
}

bool NamesCompressor(const TensorFile& file) {
  return std::ranges::any_of(file.tensors, [](const NamedTensor& tensor) {
    const std::optional<Key> key = ParseKey(tensor.name);
    return key && std::ranges::count(kMlpPrefixes, key->prefix) > 0;
  });
}

CompressorWeights MakeWeights(TensorFile file, const CheckpointOptions& options,
                              CheckpointShares* shares) {
  Finder finder(std::move(file), WithPrefixNames(options));
  finder.Run();
  if (shares != nullptr) *shares = finder.Shares();
  return finder.Release();
}

CompressorWeights Adjusted(CompressorWeights weights, const CheckpointOptions& given) {
  const CheckpointOptions options = WithPrefixNames(given);
  WeightsHeader& header = weights.header;
  if (options.min_seq_len) header.min_seq_len = *options.min_seq_len;
  if (options.num_heads > 0) header.num_heads = options.num_heads;
  if (options.head_dim > 0) header.head_dim = options.head_dim;
  if (options.compression_factor > 0) header.compression_factor = options.compression_factor;
  if (!options.slot_order.empty()) weights.slots = options.slot_order;
  std::vector<std::string> order = options.prefix_order;
  if (order.empty() && options.text_only) order = {kMlpPrefixes.begin(), kMlpPrefixes.begin() + 2};
  if (order.empty() || order == weights.prefixes) return weights;

  std::vector<LinearBlock> blocks;
  for (uint32_t layer = 0; layer < header.num_layers; ++layer) {
    for (const std::string& prefix : order) {
      const auto found = std::find(weights.prefixes.begin(), weights.prefixes.end(), prefix);
      if (found == weights.prefixes.end()) {
        throw Error(Finding::kMissingRecord, "no weights of {}", Escaped(prefix));
      }
      const auto first = static_cast<uint32_t>(found - weights.prefixes.begin()) * kSlotsPerMlp;
      for (uint32_t slot = 0; slot < kSlotsPerMlp; ++slot) {
        blocks.push_back(weights.Block(layer, first + slot));
      }
    }
  }
  weights.blocks = std::move(blocks);
  header.blocks_per_layer = static_cast<uint32_t>(order.size()) * kSlotsPerMlp;
  weights.prefixes = std::move(order);
  return weights;
}

std::string BlockKey(const CompressorWeights& weights, uint32_t layer, uint32_t index) {
  return fmt::format("{}.{}.{}", weights.prefixes.at(index / kSlotsPerMlp), layer,
                     weights.slots.at(index % kSlotsPerMlp));
}

}  // namespace kv
