// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Walks a pickle's values and names tensors by key paths: keys of dicts, indices of lists,
// attributes of objects, joined by '/'.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "formats/torch/torch_tensor.h"
#include "lib/core/base/name_table.h"

namespace kv {
namespace {

constexpr uint64_t kMostTensors = 1'000'000;
// Steps to reach tensors; shared containers count again.
constexpr uint64_t kMostVisits = 10'000'000;
constexpr size_t kMostOpaque = 1000;  // unknown objects that are listed
constexpr size_t kScalarDepth = 2;    // longest path, in parts, of a scalar that is kept
constexpr size_t kMostScalars = 1000, kMostScalarVisits = 100'000;
constexpr size_t kLongestText = 4096;  // longer texts are not kept as metadata

// Counts of what lies below a value; shared values count each time they are reached.
struct Weight {
  uint64_t tensors = 0;
  uint64_t visits = 0;
};

uint64_t CappedAdd(uint64_t a, uint64_t b) { return std::min(a + b, uint64_t{1} << 62); }

class Walker {
 public:
  Walker(const Pickle& pickle, TensorBuilder& builder, TensorFile& file)
      : pickle_(pickle), builder_(builder), file_(file), weight_at_(pickle.size()) {}

  void Run() {
    const Weight total = Weigh(pickle_.root());
    if (total.tensors > kMostTensors || total.visits > kMostVisits) {
      Error error(Finding::kLimit, "more than {} tensors, or {} steps to reach them", kMostTensors,
                  kMostVisits);
      throw error.At(pickle_[pickle_.root()].offset());
    }
    file_.tensors.reserve(total.tensors);
    ids_.reserve(total.tensors);
    const std::string_view root_class = pickle_.FindClass(pickle_.root());
    if (!root_class.empty() && !builder_.IsTensor(pickle_.root())) {
      file_.metadata["__class__"] = root_class;
    }
    Visit(pickle_.root(), 0);
    DropRepeated();
  }

 private:
  // Returns true for objects of data classes, except tensors of kinds that have no rows: the parts
  // of a sparse tensor are tensors, but none of them is its values.
  bool IsWalked(PickleId id) const {
    const std::string_view name = pickle_.FindClass(id);
    return IsDataClass(name) && !name.starts_with("torch._utils._rebuild_");
  }

  // Returns true for arrays of Python objects, or of a form that numpy does not write.
  bool IsObjectArray(PickleId id) const {
    return pickle_.FindClass(id).ends_with(".multiarray._reconstruct");
  }

  // Calls `with(name, child)` for children that can hold tensors; `name()` makes the child's name.
  // CheckShape has limited the depth.
  template <typename F>
  void ForEachChild(PickleId id, F with) const {
    const PickleValue& value = pickle_[id];
    switch (value.kind()) {
      case PickleKind::kDict:
        for (size_t i = 0; i + 1 < value.items().size(); i += 2) {
          with([&] { return KeyName(value.items()[i], i / 2); }, value.items()[i + 1]);
        }
        return;
      case PickleKind::kList:
      case PickleKind::kTuple:
      case PickleKind::kSet:
        for (size_t i = 0; i < value.items().size(); ++i)
          with([&] { return std::to_string(i); }, value.items()[i]);
        return;
      case PickleKind::kObject:
        if (builder_.IsTensor(id) || !IsWalked(id)) return;
        ForEachPart(value, with);
        return;
      default:
        return;
    }
  }

  // Visits the attributes of an object and the items of its own list or dict. An argument that is
  // also an attribute (ModelOutput of transformers) gets the attribute's name.
  template <typename F>
  void ForEachPart(const PickleValue& object, F with) const {
    const std::span<const PickleId> arguments = pickle_[object.items()[1]].items();
    const std::unordered_set<PickleId> named =
        arguments.empty() ? std::unordered_set<PickleId>() : NamedIn(object);
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (named.count(arguments[i]) == 0)
        with([&] { return fmt::format("__args__/{}", i); }, arguments[i]);
    }
    for (size_t i = 2; i < object.items().size(); ++i) {
      const PickleValue& state = pickle_[object.items()[i]];
      if (state.kind() == PickleKind::kTuple && state.items().size() == 2) {  // (dict, slots)
        ForEachChild(state.items()[0], with);
        ForEachChild(state.items()[1], with);
      } else {
        ForEachChild(object.items()[i], with);
      }
    }
  }

  // Returns the values of an object's own dicts, except numbers: equal numbers do not mean the same
  // value.
  std::unordered_set<PickleId> NamedIn(const PickleValue& object) const {
    std::unordered_set<PickleId> ids;
    for (size_t i = 2; i < object.items().size(); ++i) {
      const PickleValue& state = pickle_[object.items()[i]];
      if (state.kind() != PickleKind::kDict) continue;
      for (size_t at = 1; at < state.items().size(); at += 2) {
        const PickleKind kind = pickle_[state.items()[at]].kind();
        if (kind != PickleKind::kInt && kind != PickleKind::kBool) ids.insert(state.items()[at]);
      }
    }
    return ids;
  }

  std::string KeyName(PickleId key, size_t index) const {
    const PickleValue& value = pickle_[key];
    if (value.kind() == PickleKind::kText) return std::string(value.text());
    if (value.kind() == PickleKind::kInt) return std::to_string(value.integer());
    return fmt::format("#{}", index);
  }

  // Computes the weight of a value. Only values with something below them are stored, because most
  // values in a file of many tensors are their parts.
  Weight Weigh(PickleId id) {
    if (weight_at_[id] != 0) return weights_[weight_at_[id] - 1];
    if (pickle_[id].items().empty()) return {0, 1};
    if (builder_.IsTensor(id)) return {1, 1};
    Weight weight{0, 1};
    ForEachChild(id, [&](const auto&, PickleId child) {
      const Weight below = Weigh(child);
      weight.tensors = CappedAdd(weight.tensors, below.tensors);
      weight.visits = CappedAdd(weight.visits, below.tensors > 0 ? below.visits : 1);
    });
    weights_.push_back(weight);
    weight_at_[id] = static_cast<uint32_t>(weights_.size());
    return weight;
  }

  void Visit(PickleId id, size_t depth) {
    if (builder_.IsTensor(id)) return AddTensor(id);
    const PickleValue& value = pickle_[id];
    switch (value.kind()) {
      case PickleKind::kDict:
      case PickleKind::kList:
      case PickleKind::kTuple:
      case PickleKind::kSet:
        break;
      case PickleKind::kObject:
        if (!IsDataClass(pickle_.FindClass(id))) return AddOpaque(id, true, false);
        if (!IsWalked(id)) return AddOpaque(id, false, true);
        if (Weigh(id).tensors == 0) return AddOpaque(id, false, IsObjectArray(id));
        break;
      case PickleKind::kStorage:
        return AddOpaque(id, false, true);
      default:
        return AddScalar(value, depth);
    }
    if (Weigh(id).tensors == 0) {
      // Only scalars near the root are kept, and walking shared containers is limited.
      if (depth >= kScalarDepth || value.items().size() > scalar_budget_) return;
      scalar_budget_ -= value.items().size();
    }
    const size_t length = path_.size();
    ForEachChild(id, [&](const auto& name, PickleId child) {
      if (length > 0) path_ += '/';
      path_ += name();
      Visit(child, depth + 1);
      path_.resize(length);
    });
  }

  void AddTensor(PickleId id) {
    try {
      std::optional<TensorView> view = builder_.Build(id);
      if (!view) return AddOpaque(id, false, true);
      ids_.push_back(id);
      file_.tensors.push_back({path_, std::move(*view), ""});
    } catch (Error& error) {
      throw error.In("tensor '{}'", Escaped(path_));
    }
  }

  // Drops items that are attributes as well; two tensors of one name are refused.
  void DropRepeated() {
    NameTable names;
    const auto name_at = [&](uint32_t i) -> const std::string& { return file_.tensors[i].name; };
    std::vector<uint32_t> repeated;
    names.InsertAll(static_cast<uint32_t>(ids_.size()), name_at, [&](uint32_t i, uint32_t earlier) {
      if (ids_[i] != ids_[earlier]) {
        throw Error(Finding::kDuplicateName, "two tensors have this name")
            .At(pickle_[ids_[i]].offset())
            .In("tensor '{}'", Escaped(file_.tensors[i].name));
      }
      repeated.push_back(i);
    });
    if (repeated.empty()) return;
    size_t kept = repeated.front(), next = 0;
    for (size_t i = kept; i < file_.tensors.size(); ++i) {
      if (next < repeated.size() && repeated[next] == i) {
        ++next;
      } else {
        file_.tensors[kept++] = std::move(file_.tensors[i]);
      }
    }
    file_.tensors.resize(kept);
  }

  void AddOpaque(PickleId id, bool is_foreign, bool is_tensor) {
    if (file_.opaque.size() >= kMostOpaque) return;
    file_.opaque.push_back({path_, pickle_.Describe(id), is_foreign, is_tensor});
  }

  void AddScalar(const PickleValue& value, size_t depth) {
    if (depth > kScalarDepth || path_.empty() || file_.metadata.size() >= kMostScalars) return;
    switch (value.kind()) {
      case PickleKind::kBool:
        file_.metadata[path_] = value.integer() != 0 ? "true" : "false";
        break;
      case PickleKind::kInt:
        file_.metadata[path_] = std::to_string(value.integer());
        break;
      case PickleKind::kFloat:
        file_.metadata[path_] = fmt::format("{}", value.real());
        break;
      case PickleKind::kText:
        if (value.text().size() <= kLongestText) file_.metadata[path_] = value.text();
        break;
      default:
        break;
    }
  }

  const Pickle& pickle_;
  TensorBuilder& builder_;
  TensorFile& file_;
  std::vector<uint32_t> weight_at_;  // [value]: its index in weights_, counted from 1
  std::vector<Weight> weights_;
  std::vector<PickleId> ids_;  // ids of the tensors, in the file's order
  std::string path_;
  size_t scalar_budget_ = kMostScalarVisits;
};

}  // namespace

void WalkPickle(const Pickle& pickle, TensorBuilder& builder, TensorFile& file) {
  Walker(pickle, builder, file).Run();
}

}  // namespace kv
