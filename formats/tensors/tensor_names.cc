// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/tensors/tensor_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/words.h"

namespace kv {
namespace {

using Part = NameMatch::Part;

constexpr size_t kNamesShown = 6;

// How patterns see the names of a file.
struct Naming {
  bool with_file = false;        // of a folder: FILE/NAME
  std::string_view prefix = {};  // left off; names without it are not seen
};

std::string NameOf(const NamedTensor& tensor, bool with_file) {
  return with_file && !tensor.file.empty() ? tensor.file + "/" + tensor.name : tensor.name;
}

// The name of a tensor as patterns see it, or nothing. It lies in the tensor or in `buffer`: every
// pattern sees every name, and a copy for each would cost more than the matching.
std::optional<std::string_view> SeenName(const Naming& naming, const NamedTensor& tensor,
                                         std::string& buffer) {
  std::string_view name = tensor.name;
  if (naming.with_file && !tensor.file.empty()) {
    buffer.assign(tensor.file).append("/").append(tensor.name);
    name = buffer;
  }
  const size_t cut = naming.prefix.size();
  if (cut == 0) return name;
  if (name.size() <= cut || !name.starts_with(naming.prefix) ||
      (name[cut] != '.' && name[cut] != '/')) {
    return std::nullopt;
  }
  return name.substr(cut + 1);
}

void Insert(KvTensors& found, const NameMatch& match, const NamedTensor& tensor) {
  // K and V of a layer mostly follow each other, and layers come in order.
  auto at = found.layers.empty() ? found.layers.end() : std::prev(found.layers.end());
  if (at == found.layers.end() || at->first != match.layer)
    at = found.layers.try_emplace(found.layers.end(), match.layer);
  KvTensors::Layer& layer = at->second;
  const NamedTensor*& place = match.part == Part::kValue ? layer.v : layer.k;
  if (place != nullptr) {
    Error error(Finding::kDuplicateName,
                fmt::format("'{}' and '{}' are both {} of layer {}", Escaped(NameOf(*place, true)),
                            Escaped(NameOf(tensor, true)), match.part == Part::kValue ? "V" : "K",
                            match.layer));
    if (place->file != tensor.file) error.Hint("--order joins files that are pages of one cache");
    throw error;
  }
  place = &tensor;
}

KvTensors Collect(const TensorFile& file, const NamePattern& pattern, const Naming& naming) {
  KvTensors found{.pattern = std::string(pattern.text),
                  .prefix = std::string(naming.prefix),
                  .engine = pattern.engine,
                  .joined = pattern.joined,
                  .layers = {}};
  std::string buffer;
  for (const NamedTensor& tensor : file.tensors) {
    const auto name = SeenName(naming, tensor, buffer);
    const auto match = name ? MatchName(pattern.text, *name) : std::nullopt;
    if (match) Insert(found, *match, tensor);
  }
  return found;
}

KvTensors CollectGiven(const TensorFile& file, const OpenOptions& options) {
  if (options.k_pattern.empty()) throw Error(Finding::kUsage, "--v-pattern needs --k-pattern");
  for (const std::string& pattern : {options.k_pattern, options.v_pattern}) {
    if (std::count(pattern.begin(), pattern.end(), '*') > 1)
      throw Error(Finding::kUsage, fmt::format("'{}': one * at most", pattern));
  }
  KvTensors found{.pattern = options.k_pattern, .layers = {}};
  if (!options.v_pattern.empty()) found.pattern += ", " + options.v_pattern;
  for (const NamedTensor& tensor : file.tensors) {
    for (const Part part : {Part::kKey, Part::kValue}) {
      const std::string& pattern = part == Part::kKey ? options.k_pattern : options.v_pattern;
      if (pattern.empty()) continue;
      auto match = MatchName(pattern, NameOf(tensor, true));
      if (!match) match = MatchName(pattern, tensor.name);
      if (!match || (match->part != Part::kBoth && match->part != part)) continue;
      match->part = part;
      Insert(found, *match, tensor);
    }
  }
  return found;
}

std::string Names(const TensorFile& file) {
  std::string names;
  for (size_t i = 0; i < file.tensors.size() && i < kNamesShown; ++i) {
    const TensorView& view = file.tensors[i].view;
    names += fmt::format("{}'{}' {} [{}]", i == 0 ? "" : ", ",
                         Escaped(NameOf(file.tensors[i], true), 80), Name(view.dtype),
                         fmt::join(view.shape, ", "));
  }
  if (file.tensors.size() > kNamesShown)
    names += fmt::format(" and {} more", file.tensors.size() - kNamesShown);
  return names.empty() ? "none" : names;
}

std::string Sample(const KvTensors& found) {
  const auto& [index, layer] = *found.layers.begin();
  const NamedTensor* tensor = layer.k != nullptr ? layer.k : layer.v;
  return fmt::format("{} ({} layer{}, e.g. '{}')", found.pattern, found.layers.size(),
                     PluralEnding(found.layers.size()), Escaped(NameOf(*tensor, true), 80));
}

// Which patterns fit any name: one pass over the names instead of one for each pattern.
uint32_t FittingPatterns(const TensorFile& file, const Naming& naming, PatternMemo& memo) {
  uint32_t fits = 0;
  std::string buffer;
  for (const NamedTensor& tensor : file.tensors) {
    if (const auto name = SeenName(naming, tensor, buffer)) fits |= memo.Of(*name).patterns;
  }
  return fits;
}

KvTensors CollectBuiltIn(const TensorFile& file, const Naming& naming, PatternMemo& memo) {
  KvTensors best;
  const uint32_t fits = FittingPatterns(file, naming, memo);
  for (size_t i = 0; i < NamePatterns().size(); ++i) {
    if ((fits >> i & 1) == 0) continue;
    KvTensors found = Collect(file, NamePatterns()[i], naming);
    if (found.layers.empty()) continue;
    if (!best.layers.empty()) {
      throw Error(Finding::kAmbiguousFormat,
                  fmt::format("two name patterns fit: {} and {}", Sample(best), Sample(found)))
          .Hint("choose with --k-pattern and --v-pattern");
    }
    best = std::move(found);
  }
  return best;
}

// The cache below one name of the root: {"past_key_values": cache, "input_ids": ...}.
KvTensors CollectBelowPrefix(const TensorFile& file, PatternMemo& memo) {
  std::set<std::string_view> prefixes;
  for (const NamedTensor& tensor : file.tensors) {
    const std::string_view prefix = memo.Of(tensor.name).PrefixOf(tensor.name);
    // What generate() returns beside the cache: [step][layer], which looks like pairs.
    if (!prefix.empty() && !prefix.ends_with("attentions") && !prefix.ends_with("hidden_states"))
      prefixes.insert(prefix);
  }
  if (prefixes.empty()) return {};
  if (prefixes.size() > 1) {
    throw Error(Finding::kAmbiguousFormat,
                fmt::format("holds {} caches, '{}' and '{}'{}", prefixes.size(),
                            Escaped(*prefixes.begin(), 80), Escaped(*prefixes.rbegin(), 80),
                            prefixes.size() > 2 ? " among them" : ""))
        .Hint("choose with --k-pattern and --v-pattern");
  }
  return CollectBuiltIn(file, {.prefix = *prefixes.begin()}, memo);
}

// Attention probabilities, as a model returns them: [batch, head, query, key] for every layer, or
// for every layer of every step. Their names are those of a tuple of pairs, their shapes are not.
void RefuseAttention(const TensorFile& file) {
  struct Step {
    uint64_t queries, keys;
    bool operator!=(const Step& other) const {
      return queries != other.queries || keys != other.keys;
    }
  };
  std::map<uint32_t, Step> steps;
  bool nested = false;
  for (const NamedTensor& tensor : file.tensors) {
    const auto flat = MatchName("{i}", tensor.name), deep = MatchName("{i}.*", tensor.name);
    if ((!flat && !deep) || tensor.view.rank() != 4) return;
    nested |= !flat;
    const Step step{tensor.view.shape[2], tensor.view.shape[3]};
    const auto [at, is_new] = steps.try_emplace(flat ? flat->layer : deep->layer, step);
    if (!is_new && at->second != step) return;
  }
  if (steps.empty()) return;
  const Step first = steps.begin()->second;
  for (const auto& [index, step] : steps) {
    const bool later = nested && index > 0;
    if (later ? step.queries != 1 || step.keys != first.keys + index
              : step.queries != step.keys || step != first) {
      return;
    }
  }
  if (nested && steps.size() < 2) return;  // one step alone may as well be a layer of K and V
  throw Error(Finding::kUnsupportedKind,
              fmt::format("holds attention probabilities [batch, head, query, key] of {} {}, not K "
                          "and V",
                          steps.size(), nested ? "steps" : "layers"))
      .Hint("a trace: kvtool trace inspect, or --trace of the replay commands");
}

// One prompt per folder is how connectors store; two in one cannot be told apart by layer names.
void RefuseSeveralFolders(const TensorFile& file) {
  std::set<std::string_view> folders;
  for (const NamedTensor& tensor : file.tensors) {
    if (tensor.name != "kv_cache") return;
    folders.insert(FolderPart(tensor.file));
  }
  if (folders.size() < 2) return;
  throw Error(Finding::kAmbiguousFormat,
              fmt::format("holds {} caches, one per folder: '{}', '{}'{}", folders.size(),
                          Escaped(*folders.begin(), 80), Escaped(*std::next(folders.begin()), 80),
                          folders.size() > 2 ? " ..." : ""))
      .Hint("give one of these folders");
}

// Tensors of kinds that are not values in rows: K of one may be all that is missing.
void RefuseUnreadTensors(const TensorFile& file) {
  constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
      {"_rebuild_qtensor", "quantised"},
      {"_rebuild_sparse", "sparse"},
      {"_rebuild_nested_tensor", "nested"},
      {"_rebuild_meta_tensor", "without data (meta)"},
      {"_rebuild_wrapper_subclass", "of a wrapping class"},
  };
  for (const OpaqueValue& value : file.opaque) {
    for (const auto& [function, word] : kKinds) {
      if (value.kind.find(function) == value.kind.npos) continue;
      throw Error(Finding::kUnsupportedKind,
                  fmt::format("'{}' is a tensor that is {}; such tensors are not read",
                              Escaped(value.name, 80), word));
    }
  }
}

void RequirePairs(const TensorFile& file, const KvTensors& found) {
  const bool has_v = std::any_of(found.layers.begin(), found.layers.end(),
                                 [](const auto& item) { return item.second.v != nullptr; });
  for (const auto& [index, layer] : found.layers) {
    if (layer.k != nullptr && (layer.v != nullptr || !has_v)) continue;
    RefuseUnreadTensors(file);
    throw Error(Finding::kMissingRecord,
                fmt::format("layer {} has no {} (names {})", index, layer.k == nullptr ? "K" : "V",
                            found.pattern));
  }
}

}  // namespace

bool IsSideTensor(std::string_view name) {
  if (name.empty()) return false;
  for (const std::string_view side :
       {"positions", "streams", "extensions", "tokens", "input_ids"}) {
    if (name.front() == side.front() && name.starts_with(side) &&
        (name.size() == side.size() || name[side.size()] == '.')) {
      return true;
    }
  }
  return false;
}

KvTensors FindKvTensors(const TensorFile& file, const OpenOptions& options) {
  KvTensors best;
  if (!options.k_pattern.empty() || !options.v_pattern.empty()) {
    best = CollectGiven(file, options);
  } else {
    RefuseAttention(file);
    RefuseSeveralFolders(file);
    PatternMemo memo;
    best = CollectBuiltIn(file, {.with_file = true}, memo);
    const bool has_files = std::any_of(file.tensors.begin(), file.tensors.end(),
                                       [](const NamedTensor& t) { return !t.file.empty(); });
    if (best.layers.empty() && has_files) best = CollectBuiltIn(file, {}, memo);
    if (best.layers.empty()) best = CollectBelowPrefix(file, memo);
  }
  if (best.layers.empty() && options.k_pattern.empty() && file.tensors.size() == 1) {
    best = {.pattern = std::string(kOnlyArray.text),
            .lone = true,
            .layers = {{0, {&file.tensors[0], nullptr}}}};
  }
  if (best.layers.empty()) {
    RefuseUnreadTensors(file);
    throw Error(Finding::kUnsupportedKind,
                fmt::format("no tensor is named like K or V: {}", Names(file)))
        .Hint("name them with --k-pattern and --v-pattern, {i} = layer");
  }
  RequirePairs(file, best);
  return best;
}

}  // namespace kv
