// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Finds K and V among named tensors: patterns of names, common prefixes, and the choice if several
// fit.
#include "formats/tensors/tensor_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/format.h"
#include "lib/core/weights/checkpoint.h"

namespace kv {

namespace {

using Part = NameMatch::Part;

constexpr size_t kNamesShown = 6;

// The names of a file as patterns see them.
struct Naming {
  bool with_file = false;        // true: in a folder, names have the form FILE/NAME
  std::string_view prefix = {};  // removed from names; names without it are skipped
};

std::string QualifyName(const NamedTensor& tensor, bool with_file) {
  return with_file && !tensor.file.empty() ? tensor.file + "/" + tensor.name : tensor.name;
}

// Returns the name of a tensor as patterns see it, or nothing if it lacks the prefix. The text lies
// in the tensor or in `buffer`: every pattern tests every name, and a copy for each would cost more
// than the matching.
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
  // K and V of a layer are mostly adjacent, and layers are in order, so the last layer is tried
  // first.
  auto at = found.layers.empty() ? found.layers.end() : std::prev(found.layers.end());
  if (at == found.layers.end() || at->first != match.layer)
    at = found.layers.try_emplace(found.layers.end(), match.layer);
  KvTensors::Layer& layer = at->second;
  const NamedTensor*& place = match.part == Part::kValue ? layer.v : layer.k;
  if (place != nullptr) {
    Error error(Finding::kDuplicateName, "'{}' and '{}' are both {} of layer {}",
                Escaped(QualifyName(*place, true)), Escaped(QualifyName(tensor, true)),
                match.part == Part::kValue ? "V" : "K", match.layer);
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
      throw Error(Finding::kUsage, "'{}': one * at most", pattern);
  }
  KvTensors found{.pattern = options.k_pattern, .layers = {}};
  if (!options.v_pattern.empty()) found.pattern += ", " + options.v_pattern;
  for (const NamedTensor& tensor : file.tensors) {
    for (const Part part : {Part::kKey, Part::kValue}) {
      const std::string& pattern = part == Part::kKey ? options.k_pattern : options.v_pattern;
      if (pattern.empty()) continue;
      auto match = MatchName(pattern, QualifyName(tensor, true));
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
                         Escaped(QualifyName(file.tensors[i], true), 80), Name(view.dtype),
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
                     PluralEnding(found.layers.size()), Escaped(QualifyName(*tensor, true), 80));
}

// Returns which patterns fit any name, in one pass over the names instead of one for each pattern.
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
      throw Error(Finding::kAmbiguousFormat, "two name patterns fit: {} and {}", Sample(best),
                  Sample(found))
          .Hint("choose with --k-pattern and --v-pattern");
    }
    best = std::move(found);
  }
  return best;
}

// Returns the cache below one name of the root: {"past_key_values": cache, "input_ids": ...}.
KvTensors CollectBelowPrefix(const TensorFile& file, PatternMemo& memo) {
  std::set<std::string_view> prefixes;
  for (const NamedTensor& tensor : file.tensors) {
    const std::string_view prefix = memo.Of(tensor.name).FindPrefix(tensor.name);
    // Skips other results of generate(), whose [step][layer] looks like pairs.
    if (!prefix.empty() && !prefix.ends_with("attentions") && !prefix.ends_with("hidden_states"))
      prefixes.insert(prefix);
  }
  if (prefixes.empty()) return {};
  if (prefixes.size() > 1) {
    throw Error(Finding::kAmbiguousFormat, "holds {} caches, '{}' and '{}'{}", prefixes.size(),
                Escaped(*prefixes.begin(), 80), Escaped(*prefixes.rbegin(), 80),
                prefixes.size() > 2 ? " among them" : "")
        .Hint("choose with --k-pattern and --v-pattern");
  }
  return CollectBuiltIn(file, {.prefix = *prefixes.begin()}, memo);
}

// Refuses attention probabilities, as a model returns them: [batch, head, query, key] for every
// layer, or for every layer of every step. Their names look like those of a tuple of pairs, but
// their shapes do not.
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
  if (nested && steps.size() < 2) return;  // a single step may also be a layer with K and V
  throw Error(Finding::kUnsupportedKind,
              "holds attention probabilities [batch, head, query, key] of {} {}, not K and V",
              steps.size(), nested ? "steps" : "layers")
      .Hint("a trace: kvtool trace inspect, or --trace of the replay commands");
}

// Refuses several prompts. Connectors store one prompt per folder, and the names of layers cannot
// separate two of them.
void RefuseSeveralFolders(const TensorFile& file) {
  std::set<std::string_view> folders;
  for (const NamedTensor& tensor : file.tensors) {
    if (tensor.name != "kv_cache") return;
    folders.insert(FolderPart(tensor.file));
  }
  if (folders.size() < 2) return;
  throw Error(Finding::kAmbiguousFormat, "holds {} caches, one per folder: '{}', '{}'{}",
              folders.size(), Escaped(*folders.begin(), 80),
              Escaped(*std::next(folders.begin()), 80), folders.size() > 2 ? " ..." : "")
      .Hint("give one of these folders");
}

// Refuses tensors of unsupported kinds: they may be the reason why K or V is missing.
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
                  "'{}' is a tensor that is {}; such tensors are not read", Escaped(value.name, 80),
                  word);
    }
  }
}

void RequirePairs(const TensorFile& file, const KvTensors& found) {
  const bool has_v = std::any_of(found.layers.begin(), found.layers.end(),
                                 [](const auto& item) { return item.second.v != nullptr; });
  for (const auto& [index, layer] : found.layers) {
    if (layer.k != nullptr && (layer.v != nullptr || !has_v)) continue;
    RefuseUnreadTensors(file);
    throw Error(Finding::kMissingRecord, "layer {} has no {} (names {})", index,
                layer.k == nullptr ? "K" : "V", found.pattern);
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
    throw Error(Finding::kUnsupportedKind, "no tensor is named like K or V: {}", Names(file))
        .Hint(NamesCompressor(file)
                  ? "they are weights of a KV compressor: 'kvtool weights inspect' shows them, "
                    "'kvtool weights convert' writes them in another form"
                  : "name them with --k-pattern and --v-pattern, {i} = layer");
  }
  RequirePairs(file, best);
  return best;
}

namespace {

using Part = NameMatch::Part;

constexpr size_t kLongestName = 1000;
constexpr size_t kMostLayerDigits = 6;
// limit of remembered shapes; names of further shapes are matched one by one
constexpr size_t kMostShapes = 4096;

constexpr NamePattern kPatterns[] = {
    {"{x}_cache.{i}", "transformers DynamicCache with key_cache and value_cache (4.4x)"},
    {"layers.{i}.{x}", "transformers DynamicCache with layers (4.57)"},
    {"layer.{i}.{x}", "scripts"},
    {"layer_{i}_{x}", "scripts"},
    {"layer_{i}.{x}", "scripts"},
    {"layer{i}.{x}", "scripts"},
    {"layer{i}_{x}", "scripts"},
    {"{x}_{i}", "kvtool, scripts"},
    {"{x}.{i}", "scripts"},
    {"{x}{i}", "scripts"},
    {"past_key_values.{i}.{x}", "ONNX inputs, scripts"},
    {"past_key_values.{i}.{01}", "a legacy cache in a dict"},
    {"present.{i}.{x}", "ONNX outputs"},
    {"model.layers.{i}.self_attn.{x}", "scripts"},
    {"{i}.{01}", "transformers legacy cache, CacheBlend's old_kvs: pairs (K, V)"},
    {"*-l{i}-{x}", "numpy sets of traces"},
    {"{x}", "one layer, or all in one array with --layout"},
    {"{x}_cache", "one layer, or all in one array with --layout"},
    {"{x}_cache_{i}", "transformers StaticCache buffers"},
    {"{i}.{x}", "a list of dicts"},
    {"model.layers.{i}.*.kv_cache", "vLLM example and shared-storage connectors, a prompt's folder",
     Joined::kByShape, "vLLM"},
    {"kv_cache", "vLLM example and shared-storage connectors, one layer", Joined::kByShape, "vLLM"},
    {"kvcache", "LMCache GDS backend", Joined::kByNumber, "LMCache"},
    {"kv_chunk", "LMCache 2024 local disk", Joined::kByNumber, "LMCache"},
};

char Folded(char c) { return c == '/' ? '.' : Lower(c); }

bool Take(std::string_view& text, std::string_view word) {
  if (text.size() < word.size() ||
      !std::equal(word.begin(), word.end(), text.begin(),
                  [](char a, char b) { return Folded(a) == Folded(b); })) {
    return false;
  }
  text.remove_prefix(word.size());
  return true;
}

bool TakeNumber(std::string_view& text, uint32_t& number) {
  size_t digits = 0;
  number = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') {
    if (digits == kMostLayerDigits) return false;
    number = number * 10 + static_cast<uint32_t>(text[digits++] - '0');
  }
  text.remove_prefix(digits);
  return digits != 0;
}

bool Matches(std::string_view pattern, std::string_view name, NameMatch& match);

bool MatchesWord(std::string_view pattern, std::string_view name, NameMatch& match,
                 std::initializer_list<std::string_view> words, Part part) {
  for (const std::string_view word : words) {
    std::string_view rest = name;
    NameMatch attempt = match;
    attempt.part = part;
    if (!Take(rest, word) || !Matches(pattern, rest, attempt)) continue;
    match = attempt;
    return true;
  }
  return false;
}

// Takes the literal text before the next placeholder. Every pattern tests every name of a file, and
// most mismatch here.
bool TakeLiteral(std::string_view& pattern, std::string_view& name) {
  size_t literal = 0;
  while (literal < pattern.size() && pattern[literal] != '{' && pattern[literal] != '*') ++literal;
  if (!Take(name, pattern.substr(0, literal))) return false;
  pattern.remove_prefix(literal);
  return true;
}

// Matches recursively, with a depth of the number of placeholders in the pattern.
bool Matches(std::string_view pattern, std::string_view name, NameMatch& match) {
  while (TakeLiteral(pattern, name) && !pattern.empty()) {
    if (Take(pattern, "{i}")) {
      if (!TakeNumber(name, match.layer)) return false;
    } else if (Take(pattern, "{x}")) {
      return MatchesWord(pattern, name, match, {"keys", "key", "k"}, Part::kKey) ||
             MatchesWord(pattern, name, match, {"values", "value", "v"}, Part::kValue);
    } else if (Take(pattern, "{01}")) {
      return MatchesWord(pattern, name, match, {"0"}, Part::kKey) ||
             MatchesWord(pattern, name, match, {"1"}, Part::kValue);
    } else if (pattern.front() == '*') {
      pattern.remove_prefix(1);
      const bool literal = !pattern.empty() && pattern.front() != '{';
      for (size_t skip = 0; skip <= name.size(); ++skip) {
        if (literal && (skip == name.size() || Folded(name[skip]) != Folded(pattern.front())))
          continue;
        NameMatch attempt = match;
        if (!Matches(pattern, name.substr(skip), attempt)) continue;
        match = attempt;
        return true;
      }
      return false;
    } else if (!Take(name, pattern.substr(0, 1))) {  // an ordinary brace
      return false;
    } else {
      pattern.remove_prefix(1);
    }
  }
  return pattern.empty() && name.empty();
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Writes the name with each number replaced by its kind: patterns accept any of up to six digits
// for a layer, distinguish 0 and 1 for K and V, and contain no other digits.
void AppendShape(std::string_view name, std::string& shape) {
  shape.clear();
  for (size_t i = 0; i < name.size();) {
    if (!IsDigit(name[i])) {
      shape += Folded(name[i++]);
      continue;
    }
    const size_t begin = i;
    while (i < name.size() && IsDigit(name[i])) ++i;
    const bool is_bit = i - begin == 1 && name[begin] <= '1';
    shape += is_bit ? name[begin] : i - begin <= kMostLayerDigits ? '2' : '7';
  }
}

// Most patterns differ from most names in the first letter.
bool MayBegin(std::string_view pattern, std::string_view name) {
  if (pattern.empty() || pattern.front() == '*') return true;
  if (name.empty()) return false;
  const char first = Folded(name.front());
  if (pattern.starts_with("{x}")) return first == 'k' || first == 'v';
  if (pattern.starts_with("{i}") || pattern.starts_with("{01}"))
    return first >= '0' && first <= '9';
  return pattern.front() == '{' || Folded(pattern.front()) == first;
}

}  // namespace

std::span<const NamePattern> NamePatterns() { return kPatterns; }

std::optional<NameMatch> MatchName(std::string_view pattern, std::string_view name) {
  if (name.size() > kLongestName) return std::nullopt;
  if (!MayBegin(pattern, name)) return std::nullopt;
  NameMatch match;
  if (!Matches(pattern, name, match)) return std::nullopt;
  return match;
}

std::string_view NameFit::FindPrefix(std::string_view name) const {
  size_t cut = name.size();
  for (size_t i = 0; i < parts_below; ++i) cut = name.find_last_of("./", cut - 1);
  return parts_below == 0 ? std::string_view() : name.substr(0, cut);
}

NameFit FitName(std::string_view name) {
  static_assert(std::size(kPatterns) <= 32);
  constexpr size_t kMostParts = 5;
  NameFit fit;
  for (size_t i = 0; i < std::size(kPatterns); ++i)
    fit.patterns |= uint32_t{MatchName(kPatterns[i].text, name).has_value()} << i;
  size_t cut = name.size();
  for (uint32_t parts = 1; parts <= kMostParts && cut != 0; ++parts) {
    cut = name.find_last_of("./", cut - 1);
    if (cut == name.npos) break;
    for (const NamePattern& pattern : kPatterns) {
      const bool of_layers = pattern.text.find("{i}") != pattern.text.npos;
      if (of_layers && pattern.text.find('*') == pattern.text.npos &&
          MatchName(pattern.text, name.substr(cut + 1))) {
        fit.parts_below = parts;
      }
    }
  }
  return fit;
}

NameFit PatternMemo::Of(std::string_view name) {
  ++matched_;
  if (name.size() > kLongestName) return FitName(name);
  AppendShape(name, shape_);
  const auto known = fits_.find(shape_);
  if (known != fits_.end()) {
    --matched_;
    return known->second;
  }
  const NameFit fit = FitName(name);
  if (fits_.size() < kMostShapes) fits_.emplace(shape_, fit);
  return fit;
}

}  // namespace kv
