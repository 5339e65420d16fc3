// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "formats/kvz/kvz.h"
#include "formats/stated.h"
#include "lib/core/archive/archive.h"
#include "lib/core/archive/records.h"
#include "lib/core/base/hash.h"

namespace kv {
namespace {

std::string Ratio(uint64_t raw, uint64_t stored) {
  return stored == 0
             ? "-"
             : fmt::format("{:.3f}x", static_cast<double>(raw) / static_cast<double>(stored));
}

// What it needs of each of its references.
void AddReferences(const Archive& archive,
                   std::vector<std::pair<std::string, std::string>>& facts) {
  const std::vector<ReferenceName>& names = archive.reference_names();
  if (names.empty()) return;
  struct Needs {
    uint64_t chunks = 0, equal = 0, near = 0;  // rows
  };
  std::vector<Needs> needs(names.size());
  for (const ArchivedChunk& chunk : archive.chunks()) {
    std::vector<bool> counted(names.size());
    std::vector<ReferenceRun> runs;
    try {
      runs = archive.RunsOf(chunk);
    } catch (const Error&) {
      continue;  // damage is reported where the chunk is read
    }
    for (const ReferenceRun& run : runs) {
      if (run.reference >= names.size()) continue;
      Needs& one = needs[run.reference];
      if (!counted[run.reference]) ++one.chunks;
      counted[run.reference] = true;
      (run.equal ? one.equal : one.near) += run.rows;
    }
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const ReferenceName& name = names[i];
    std::string text = fmt::format("{}, {}, {} bytes, {}: ", name.file, name.format,
                                   name.source_bytes, HashText(name.source_hash));
    text += needs[i].chunks == 0
                ? "not needed"
                : fmt::format("{} chunks need {} rows of it, {} of them equal", needs[i].chunks,
                              needs[i].equal + needs[i].near, needs[i].equal);
    if (name.chain > 1) text += fmt::format(", a chain of {}", name.chain);
    facts.emplace_back(names.size() == 1 ? "reference" : fmt::format("reference {}", i),
                       std::move(text));
  }
}

// How many chunks are coded by others, and how many of these one takes at most. Nothing is read but
// heads.
void AddNeighbours(const Archive& archive,
                   std::vector<std::pair<std::string, std::string>>& facts) {
  uint64_t layered = 0;
  uint32_t depth = 0;
  for (const ArchivedChunk& chunk : archive.chunks()) {
    if (!HasNeighbours(static_cast<CodecId>(chunk.head.codec))) continue;
    ++layered;
    depth = std::max(depth, chunk.head.codec_parameter);
  }
  if (layered == 0) return;
  facts.emplace_back("joined", fmt::format("{} of {} chunks are coded by others of the archive: to "
                                           "read one takes up to {} more",
                                           layered, archive.chunks().size(), depth));
}

// The facts of the archive, before those of its source.
std::vector<std::pair<std::string, std::string>> FactsOf(const Archive& archive) {
  std::vector<std::pair<std::string, std::string>> facts;
  facts.emplace_back(
      "restores",
      fmt::format("{} {}, {} bytes{}", archive.files().size(),
                  archive.files().size() == 1 ? "file" : "files", archive.source_bytes(),
                  archive.source_hash() ? ", " + HashText(*archive.source_hash()) : ""));
  facts.emplace_back("chunks", std::to_string(archive.chunks().size()));
  if (!archive.groups().empty()) {
    uint64_t files = 0;
    for (const FileGroup& group : archive.groups()) files += group.files.size();
    facts.emplace_back(
        "solid", fmt::format("{} files are coded together, in {} group{}", files,
                             archive.groups().size(), archive.groups().size() == 1 ? "" : "s"));
  }
  std::string ratio = "whole " + Ratio(archive.source_bytes(), archive.data().size());
  for (const auto& [kind, name] :
       {std::pair{ChunkKind::kKey, "K"}, {ChunkKind::kValue, "V"}, {ChunkKind::kOpaque, "other"}}) {
    if (archive.stored_bytes(kind) == 0) continue;
    ratio +=
        fmt::format(", {} {}", name, Ratio(archive.raw_bytes(kind), archive.stored_bytes(kind)));
  }
  facts.emplace_back("ratio", ratio);
  if (const uint64_t ordered = archive.ordered_chunks(); ordered > 0) {
    facts.emplace_back("rows", fmt::format("of {} chunk{} are coded by sequence and position",
                                           ordered, ordered == 1 ? "" : "s"));
  }
  AddReferences(archive, facts);
  if (const std::optional<ProfileName>& profile = archive.profile_name()) {
    const uint64_t chunks = archive.profiled_chunks();
    facts.emplace_back(
        "profile",
        fmt::format("{}{}{}: {}", profile->file.empty() ? "" : profile->file + ", ",
                    profile->model.empty() ? "" : profile->model + ", ",
                    ProfileHashText(profile->hash),
                    chunks == 0 ? "not needed" : fmt::format("{} chunks need it", chunks)));
  }
  AddNeighbours(archive, facts);
  return facts;
}

}  // namespace

Confidence ProbeKvz(const Source& source) {
  if (source.is_folder || source.files.size() != 1) return Confidence::kNo;
  const FileSource& data = *source.files[0].data;
  data.Need(0, kvz::kHeaderBytes);
  data.Need(data.size() - std::min(data.size(), kvz::kTrailerBytes), kvz::kTrailerBytes);
  const ByteSpan bytes = data.bytes();
  return kvz::HasMagic(bytes) || kvz::HasTrailerMagic(bytes) ? Confidence::kCertain
                                                             : Confidence::kNo;
}

Snapshot OpenKvz(Source source, const OpenOptions& options) {
  if (source.files.size() != 1) {
    throw Error(Finding::kBadMagic, "an archive is one file, not a folder");
  }
  Archive archive = Archive::Open(source.files[0].data);
  Snapshot snapshot;
  // What its flags decide is not in the description of an archive.
  const bool decides = IsUndecided(archive) && (options.batch || !options.layout.empty());
  if (options.metadata_only && !decides) {
    if (archive.description()) {
      snapshot = *archive.description();
      RequireAsArchived(options, snapshot);
    }
  } else {
    FindReferences(archive, source.path, options);
    std::optional<ThreadPool> own;
    ThreadPool& pool = options.pool != nullptr ? *options.pool : own.emplace(UsableCpus());
    snapshot = LoadSnapshot(archive, {}, options, pool);
  }
  snapshot.source = std::move(source);
  snapshot.unpacked_bytes = archive.source_bytes();
  snapshot.format_version =
      snapshot.format.empty()
          ? fmt::format("version {}, of opaque bytes", kvz::kVersion)
          : fmt::format("version {}, of {}{}{}", kvz::kVersion, snapshot.format,
                        snapshot.format_version.empty() ? "" : ", ", snapshot.format_version);
  std::vector<std::pair<std::string, std::string>> facts = FactsOf(archive);
  facts.insert(facts.end(), snapshot.facts.begin(), snapshot.facts.end());
  snapshot.facts = std::move(facts);
  for (const Damage& damage : archive.damage()) {
    snapshot.notes.push_back({fmt::format("damaged {}: {}", damage.part, damage.text), true});
  }
  return snapshot;
}

}  // namespace kv
