// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Compares flags with what a file says, and refuses those that contradict it or have no use.
#include "formats/stated.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/tensors/tensor_names.h"

namespace kv {
namespace {

Error Contradiction(std::string message, std::string_view flag) {
  Error error(Finding::kUsage, std::move(message));
  error.Hint("leave {} out: it is for what a file does not state", flag);
  return error;
}

// Returns true for latent attention (MLA), which keeps one row for all heads, whatever their
// number.
bool IsLatent(const ModelGeometry& geometry, const KvTensor& k) {
  for (const ModelGeometry::Layer& layer : geometry.layers) {
    if (layer.latent_dim != 0 && k.heads == 1 && k.head_dim == layer.latent_dim) return true;
  }
  return false;
}

// Checks heads. A tensor that was divided by the flags agrees with them. --head-dim is K's; V's may
// differ.
void CheckHeads(const ModelGeometry& geometry, const LayerKv& layer) {
  const ModelGeometry::Layer& told = geometry.uniform;
  if (IsLatent(geometry, layer.k)) return;
  const auto check = [&](const KvTensor& tensor, char which) {
    if (!tensor.heads_known) return;
    if (told.kv_heads != 0 && tensor.heads != told.kv_heads) {
      throw Contradiction(
          fmt::format("--kv-heads {}, but {} of layer {} has {} heads of {}", told.kv_heads, which,
                      layer.index, tensor.heads, tensor.head_dim),
          "--kv-heads");
    }
    if (which == 'K' && told.k_dim != 0 && tensor.head_dim != told.k_dim) {
      throw Contradiction(fmt::format("--head-dim {}, but K of layer {} has {} heads of {}",
                                      told.k_dim, layer.index, tensor.heads, tensor.head_dim),
                          "--head-dim");
    }
  };
  if (layer.has_k()) check(layer.k, 'K');
  if (layer.v) check(*layer.v, 'V');
}

// Checks K and V; only one of them may be quantised.
void CheckRotation(const std::string& told, const Snapshot& snapshot) {
  const HadamardState state = told == "yes" ? HadamardState::kYes : HadamardState::kNo;
  const HadamardState k = snapshot.k_hadamard, v = snapshot.v_hadamard;
  if (state == k || state == v) return;
  if (k == HadamardState::kUnknown && v == HadamardState::kUnknown) return;
  throw Contradiction(
      fmt::format("--rotated {}, but the file states {}", told, told == "yes" ? "no" : "yes"),
      "--rotated");
}

// Checks the type: some tensor must have the given one; other tensors may differ.
void CheckDType(const OpenOptions& told, const Snapshot& snapshot) {
  const std::optional<DType> dtype = ParseDType(told.as_dtype);
  if (!dtype) throw Error(Finding::kUsage, "--input-dtype '{}': no such type", told.as_dtype);
  for (const LayerKv& layer : snapshot.layers) {
    if ((layer.has_k() && layer.k.dtype == *dtype) || (layer.v && layer.v->dtype == *dtype)) return;
  }
  const LayerKv& first = snapshot.layers.front();
  const KvTensor& tensor = first.has_k() ? first.k : *first.v;
  throw Contradiction(fmt::format("--input-dtype {}, but {} of layer {} is {}", Name(*dtype),
                                  first.has_k() ? 'K' : 'V', first.index, Name(tensor.dtype)),
                      "--input-dtype");
}

bool IsRotationKnown(const Snapshot& snapshot) {
  return snapshot.k_hadamard != HadamardState::kUnknown ||
         snapshot.v_hadamard != HadamardState::kUnknown;
}

bool HoldsQuantised(const Snapshot& snapshot) {
  return std::any_of(snapshot.layers.begin(), snapshot.layers.end(), [](const LayerKv& layer) {
    return (layer.has_k() && IsBlockQuantised(layer.k.dtype)) ||
           (layer.v && IsBlockQuantised(layer.v->dtype));
  });
}

// Returns "" for words that are not axes.
std::string AxesText(const std::string& layout) {
  try {
    return Axes::Parse(layout).text();
  } catch (const Error&) {
    return {};
  }
}

// Checks patterns against the names that K and V had when they were archived; patterns that fit
// them change nothing.
void RequireNames(const OpenOptions& told, const Snapshot& described) {
  std::string names;
  for (const auto& [name, value] : described.facts) {
    if (name == "names") names = value;
  }
  const size_t comma = std::min(names.find(", "), names.size());
  const std::string k = names.substr(0, comma), v = names.substr(std::min(comma + 2, names.size()));
  const auto check = [&](std::string_view flag, const std::string& pattern,
                         std::string_view archived) {
    constexpr std::string_view kMore = " ...";
    if (archived.ends_with(kMore)) archived.remove_suffix(kMore.size());
    const bool is_cut = archived.ends_with("...");  // the layout was too long to be recorded whole
    if (pattern.empty() || is_cut || MatchName(pattern, archived)) return;
    throw Error(Finding::kUsage,
                archived.empty()
                    ? fmt::format("{} {}: it was archived as {}, without tensor names", flag,
                                  pattern, described.format)
                    : fmt::format("{} {}, but it was archived as {}", flag, pattern, archived))
        .Hint("decompress it and give {0} for the restored file, or leave {0} out", flag);
  };
  check("--k-pattern", told.k_pattern, k);
  check("--v-pattern", told.v_pattern, v);
}

// Throws if files are given for an input whose format needs no others.
void RequireUseOfFiles(const OpenOptions& told, const FormatEntry& format) {
  const auto refuse = [&](std::string_view flag, const std::string& file) {
    throw Error(Finding::kUsage, "{} {}: {} needs no other file", flag, Printable(file), format.id)
        .Hint("leave {} out", flag);
  };
  if (!told.profiles.empty() && (format.traits & kReadsProfile) == 0)
    refuse("--profile", told.profiles.front().file);
  if (!told.bases.empty() && (format.traits & kIsArchive) == 0)
    refuse("--base", told.bases.front());
  if (!told.transforms.empty() && (format.traits & kIsArchive) == 0)
    refuse("--transform", told.transforms.front());
}

}  // namespace

void RequireAgreement(const OpenOptions& told, const Snapshot& snapshot) {
  if (snapshot.layers.empty()) return;
  if (told.geometry) {
    for (const LayerKv& layer : snapshot.layers) CheckHeads(*told.geometry, layer);
  }
  if (!told.as_dtype.empty()) CheckDType(told, snapshot);
  if (told.rotated == "yes" || told.rotated == "no") CheckRotation(told.rotated, snapshot);
}

void RequireUse(const OpenOptions& told, const FormatEntry& format, const Snapshot& snapshot) {
  const auto lacks = [&](FormatTraits trait) { return (format.traits & trait) == 0; };
  const auto refuse = [&](std::string_view flag, const std::string& value) {
    Error error(Finding::kUsage, "{} {}: {} has one reading, which the flag does not change", flag,
                value, format.id);
    throw error.Hint(
        !lacks(kIsArchive)
            ? fmt::format("leave {0} out, or decompress it and give {0} for the result", flag)
            : fmt::format("leave {} out, or give --from where the format is another", flag));
  };
  if (!told.raw.empty() && lacks(kReadsRaw)) {
    throw Error(Finding::kUsage, "--raw {}, but --from {}", told.raw, told.from)
        .Hint("--raw is for headerless data: leave it or --from out");
  }
  if (!told.layout.empty() && lacks(kReadsLayout)) refuse("--layout", told.layout);
  if (told.batch && lacks(kReadsBatch)) refuse("--batch", std::to_string(*told.batch));
  if (!told.files_for_others) RequireUseOfFiles(told, format);
  if (!told.k_pattern.empty() && lacks(kReadsNames)) refuse("--k-pattern", told.k_pattern);
  if (!told.v_pattern.empty() && lacks(kReadsNames)) refuse("--v-pattern", told.v_pattern);
  if (told.rotated != "auto" && !IsRotationKnown(snapshot) &&
      (told.rotated == "yes" || HoldsQuantised(snapshot))) {
    refuse("--rotated", told.rotated);
  }
}

void RequireAsArchived(const OpenOptions& told, const Snapshot& described) {
  if (told.is_shared) return;
  if (told.batch && *told.batch != 0) {
    throw Error(Finding::kUsage, "--batch {}: there is 1 row", *told.batch)
        .Hint("choose one row with --batch");
  }
  RequireNames(told, described);
  if (told.layout.empty()) return;
  const std::string& version = described.format_version;
  if (version == told.layout || version.ends_with("layout " + told.layout)) return;
  std::string kept = version.empty() ? described.format : version;
  for (const auto& [name, value] : described.facts) {
    if (name != "axes") continue;
    if (AxesText(told.layout) == value) return;
    kept = value;
  }
  throw Error(Finding::kUsage, "--layout {}, but it was archived as {}", told.layout, kept)
      .Hint("decompress it and give --layout for the restored file, or leave --layout out");
}

}  // namespace kv
