// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Finds the caches that archives refer to and opens them as references.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "formats/kvz/kvz.h"
#include "lib/core/archive/archive_rows.h"
#include "lib/core/base/hash.h"
#include "lib/core/codec/ref/ref.h"

namespace kv {
namespace fs = std::filesystem;

// Results of opening files, by depth in the chain. Archives may refer to each other by the
// thousand, even in circles, so each is opened only once per depth.
struct OpenedReferences {
  struct Outcome {
    std::shared_ptr<const Reference> reference;
    std::optional<Error> why;
  };
  std::map<std::pair<std::string, uint32_t>, Outcome> outcomes;
};

namespace {

constexpr std::string_view kArchiveSuffix = ".kvz";
// Number of chunks whose rows are compared to recognise a reference.
constexpr int kTriedChunks = 2;

OpenOptions ForReferences(const OpenOptions& options) {
  OpenOptions plain;
  plain.open = options.open;
  plain.bases = options.bases;
  plain.references = options.references;
  plain.profiles = options.profiles;
  plain.files_for_others = true;
  plain.in_memory = options.in_memory;
  plain.pool = options.pool;
  plain.reference_depth = options.reference_depth;
  plain.opened_references = options.opened_references;
  plain.max_bytes = options.max_bytes;
  return plain;
}

// For each reference, some runs of rows that the archive needs from it, and their number of
// elements per row.
class NeededRuns {
 public:
  using Run = std::pair<ReferenceRun, uint64_t>;

  explicit NeededRuns(const Archive& archive) : archive_(archive) {}

  const std::vector<Run>& Of(size_t place) {
    if (!looked_) Look();
    return runs_[place];
  }

 private:
  void Look() {
    looked_ = true;
    runs_.resize(archive_.reference_names().size());
    std::vector<int> tried(runs_.size(), 0);
    size_t done = 0;
    for (const ArchivedChunk& chunk : archive_.chunks()) {
      if (done == runs_.size()) return;
      std::vector<ReferenceRun> runs;
      try {
        runs = archive_.ListRuns(chunk);
      } catch (const Error&) {
        continue;  // decoding reports the damage
      }
      const uint64_t elements =
          uint64_t{chunk.head.heads} * chunk.head.units * Info(chunk.head.dtype).block_elements;
      std::set<size_t> seen;
      for (ReferenceRun& run : runs) {
        const size_t place = run.reference;
        if (place >= runs_.size() || tried[place] == kTriedChunks) continue;
        seen.insert(place);
        run.reference = 0;  // RequireRows gets this run alone, so its reference is number 0
        runs_[place].emplace_back(run, elements);
      }
      for (const size_t place : seen) done += ++tried[place] == kTriedChunks ? 1 : 0;
    }
  }

  const Archive& archive_;
  bool looked_ = false;
  std::vector<std::vector<Run>> runs_;
};

// Compares some rows that the archive needs from a reference with the snapshot's. Throws
// kReferenceDiffers if they differ.
void RequireRows(const std::vector<NeededRuns::Run>& needed,
                 const std::shared_ptr<const Reference>& one) {
  const References alone = {one};
  const RowsOfReferences rows(alone);
  Bytes bytes;
  for (const auto& [run, elements] : needed) {
    rows.Read(run, elements, bytes);
    if (Hash128(bytes) != run.hash) {
      throw Error(Finding::kReferenceDiffers,
                  "tokens {}:{} of layer {} {} are not those that the archive was made with",
                  run.first_token, run.first_token + run.rows, run.layer, run.is_value ? 'V' : 'K');
    }
  }
}

// A possible reference: a file, or a snapshot that the caller has opened.
struct Candidate {
  std::string path;
  std::shared_ptr<const Reference> opened;
};

// Returns the snapshots that the caller has opened, then files that the user names, then files
// beside the archive.
std::vector<Candidate> CandidatesFor(const ReferenceName& name, const std::string& archive,
                                     const OpenOptions& options) {
  std::vector<std::string> paths = options.bases;
  if (archive != "-" && !options.in_memory) {
    const fs::path folder = fs::path(archive).parent_path();
    std::vector<std::string> names = {name.file, name.file + std::string(kArchiveSuffix)};
    if (name.file.ends_with(kArchiveSuffix))
      names.push_back(name.file.substr(0, name.file.size() - kArchiveSuffix.size()));
    for (const std::string& one : names) {
      std::error_code ignored;
      const fs::path path = folder / one;
      const fs::file_type type = fs::status(path, ignored).type();
      // Only the user may name a file that could block or never end, such as a pipe.
      if (!one.empty() && (type == fs::file_type::regular || type == fs::file_type::directory))
        paths.push_back(path.string());
    }
  }
  std::erase_if(paths, [&](const std::string& path) {
    std::error_code ignored;
    return !options.in_memory && fs::equivalent(path, archive, ignored);
  });
  std::vector<Candidate> candidates;
  for (const auto& opened : options.references) candidates.push_back({opened->name.file, opened});
  for (std::string& one : paths) candidates.push_back({std::move(one), nullptr});
  return candidates;
}

bool HoldsAllTensors(const Archive& archive) {
  if (!archive.description()) return false;
  const std::vector<LayerKv>& layers = archive.description()->layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!archive.HoldsTensor(i, false) || (layers[i].v && !archive.HoldsTensor(i, true)))
      return false;
  }
  return true;
}

// Opens a file whose rows are read as needed; nothing else of it is read. Its name does not matter.
std::shared_ptr<const Reference> OpenForRows(const std::string& path, const OpenOptions& options) {
  const Source source = Source::Open(path);
  auto reference = std::make_shared<Reference>();
  reference->name.file = Printable(fs::path(path).lexically_normal().filename().string());
  if (ProbeKvz(source) == Confidence::kCertain) {
    Archive archive = Archive::Open(source.files[0].data);
    FindReferences(archive, path, options);
    RequireReferences(archive);
    if (archive.damage().empty() && HoldsAllTensors(archive)) {
      reference->name.source_bytes = archive.source_bytes();
      reference->name.source_hash = archive.source_hash().value_or(0);
      reference->snapshot = *archive.description();
      reference->rows = std::make_shared<ArchiveRows>(std::move(archive));
      return reference;
    }
  }
  reference->snapshot = options.open(source, ForReferences(options));
  return reference;
}

bool HasSource(const Reference& reference, const ReferenceName& name) {
  return name.source_hash != 0 && reference.name.source_hash == name.source_hash &&
         reference.name.source_bytes == name.source_bytes;
}

std::shared_ptr<const Reference> OpenOnce(const std::string& path, const OpenOptions& options) {
  std::error_code ignored;
  const std::string canonical = fs::canonical(path, ignored).string();
  const std::pair key(canonical.empty() ? path : canonical, options.reference_depth);
  auto& outcomes = options.opened_references->outcomes;
  auto known = outcomes.find(key);
  if (known == outcomes.end()) {
    OpenedReferences::Outcome outcome;
    try {
      outcome.reference = OpenForRows(path, options);
    } catch (const Error& error) {
      outcome.why = error;
    }
    known = outcomes.emplace(key, std::move(outcome)).first;
  }
  if (known->second.why) throw *known->second.why;
  return known->second.reference;
}

std::shared_ptr<const Reference> Find(const Archive& archive, NeededRuns& needed, size_t place,
                                      const std::string& path, const OpenOptions& options) {
  auto none = std::make_shared<Reference>();
  none->name = archive.reference_names()[place];
  const std::string file = Printable(none->name.file);
  std::optional<Error> why;
  bool is_limited = false;
  for (const Candidate& candidate : CandidatesFor(none->name, path, options)) {
    try {
      const auto found = candidate.opened ? candidate.opened : OpenOnce(candidate.path, options);
      // An archive of the same source as the reference has the same rows.
      if (candidate.opened || !HasSource(*found, none->name)) RequireRows(needed.Of(place), found);
      return found;
    } catch (const Error& error) {
      if (error.finding() == Finding::kLimit && options.reference_depth >= kMaxReferenceChain)
        throw;
      // Errors of files that the user named are reported first, before those of files found in the
      // folder.
      if (!why || why->finding() != Finding::kReferenceDiffers) {
        const bool lacks = error.finding() == Finding::kReferenceMissing ||
                           error.finding() == Finding::kProfileMissing;
        is_limited = error.finding() == Finding::kLimit;
        why = Error(lacks ? error.finding() : Finding::kReferenceDiffers,
                    fmt::format("'{}' cannot be used as the reference '{}': {}",
                                Printable(candidate.path), file, error.message()));
      }
    }
  }
  if (!why) {
    why = Error(Finding::kReferenceMissing,
                "the archive needs '{}' ({}, {} bytes, {}), which is not in its folder", file,
                Printable(none->name.format), none->name.source_bytes,
                HashText(none->name.source_hash));
  }
  why->Hint(is_limited ? "--max-bytes raises the limit"
                       : "give the cache that the archive was coded against, or an archive of it, "
                         "with --base FILE");
  none->missing = std::move(why);
  return none;
}

}  // namespace

uint64_t HashSource(const Source& source) {
  ByteWriter hashes;
  for (const SourceFile& file : source.files) hashes.U64(Hash64(file.data->bytes()));
  return source.is_folder ? Hash64(hashes.bytes()) : LoadLE<uint64_t>(hashes.data());
}

std::shared_ptr<const Reference> OpenReference(const Source& source, const OpenOptions& options) {
  auto reference = std::make_shared<Reference>();
  try {
    ReferenceName& name = reference->name;
    const fs::path path = fs::path(source.path).lexically_normal();
    name.file = path.filename().string();
    if (name.file.empty()) name.file = path.parent_path().filename().string();
    if (!IsSafeRelativePath(name.file)) name.file = "reference";
    if (ProbeKvz(source) == Confidence::kCertain) {
      const Archive archive = Archive::Open(source.files[0].data);
      for (const ReferenceName& next : archive.reference_names())
        name.chain = std::max(name.chain, next.chain + 1);
      name.source_bytes = archive.source_bytes();
      name.source_hash = archive.source_hash().value_or(0);
    } else {
      name.source_bytes = source.total_bytes();
      name.source_hash = HashSource(source);
    }
    reference->snapshot = options.open(source, ForReferences(options));
    reference->snapshot.CheckContent();
    name.format = reference->snapshot.format;
  } catch (Error& error) {
    throw error.File(source.path);
  }
  return reference;
}

std::shared_ptr<const Reference> OpenReference(const std::string& path,
                                               const OpenOptions& options) {
  return OpenReference(Source::Open(path), options);
}

void RequireShortChain(const Reference& reference) {
  if (reference.name.chain <= kMaxReferenceChain) return;
  throw Error(
      Finding::kLimit,
      "it would end a chain of {} archives, each coded against the next; at most {} are allowed",
      reference.name.chain + 1, kMaxReferenceChain)
      .Hint("code against the first cache of its chain");
}

void RequireReferences(const Archive& archive) {
  for (const auto& reference : archive.references()) {
    if (reference != nullptr && reference->missing) throw *reference->missing;
  }
  archive.RequireProfile();
  archive.RequireTransform();
}

void FindReferences(Archive& archive, const std::string& path, const OpenOptions& options) {
  FindProfile(archive, path, options);
  FindTransform(archive, path, options);
  if (archive.reference_names().empty()) return;
  OpenOptions next = options;
  if (++next.reference_depth > kMaxReferenceChain) {
    throw Error(Finding::kLimit, "more than {} archives, each coded against the next",
                kMaxReferenceChain)
        .File(path);
  }
  if (next.opened_references == nullptr)
    next.opened_references = std::make_shared<OpenedReferences>();
  NeededRuns needed(archive);
  References references;
  for (size_t i = 0; i < archive.reference_names().size(); ++i)
    references.push_back(Find(archive, needed, i, path, next));
  archive.UseReferences(std::move(references));
}

}  // namespace kv
