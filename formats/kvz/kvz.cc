// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Opens archives as snapshots: facts for inspect, profiles, and restoring sources whose tensors
// have no chunks of their own.
#include "formats/kvz/kvz.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "formats/kvx/kvx.h"
#include "formats/stated.h"
#include "lib/core/archive/archive.h"
#include "lib/core/archive/records.h"
#include "lib/core/archive/transformed_chunks.h"
#include "lib/core/base/hash.h"
#include "lib/core/base/spool_file.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

namespace {

std::string Ratio(uint64_t raw, uint64_t stored) {
  return stored == 0
             ? "-"
             : fmt::format("{:.3f}x", static_cast<double>(raw) / static_cast<double>(stored));
}

// Adds what the archive needs from each of its references.
void AddReferences(const Archive& archive,
                   std::vector<std::pair<std::string, std::string>>& facts) {
  const std::vector<ReferenceName>& names = archive.reference_names();
  if (names.empty()) return;
  struct Needs {
    uint64_t chunks = 0, equal = 0, near = 0;  // numbers of rows
  };
  std::vector<Needs> needs(names.size());
  for (const ArchivedChunk& chunk : archive.chunks()) {
    std::vector<bool> counted(names.size());
    std::vector<ReferenceRun> runs;
    try {
      runs = archive.ListRuns(chunk);
    } catch (const Error&) {
      continue;  // a damaged chunk is reported when it is read
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

// Counts the chunks that are coded against other chunks, and the largest number of neighbours of
// one. Reads only headers.
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
  facts.emplace_back("joined", fmt::format("{} of {} chunks need other chunks, up to {} each",
                                           layered, archive.chunks().size(), depth));
}

// Returns the facts of the archive, followed by those of its source.
std::vector<std::pair<std::string, std::string>> ListFacts(const Archive& archive) {
  std::vector<std::pair<std::string, std::string>> facts;
  if (archive.approximation()) {
    facts.emplace_back("lossy", DescribeLoss(*archive.approximation()));
    facts.emplace_back("original", HashText(archive.approximation()->source_hash));
  }
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
    facts.emplace_back("rows", fmt::format("in {} chunk{} they are coded by sequence and position",
                                           ordered, ordered == 1 ? "" : "s"));
  }
  AddReferences(archive, facts);
  if (const std::optional<ProfileName>& profile = archive.profile_name()) {
    const uint64_t chunks = archive.profiled_chunks();
    facts.emplace_back(
        "profile",
        fmt::format("{}{}{}{}: {}", profile->embedded ? "inside the archive, " : "",
                    profile->file.empty() ? "" : profile->file + ", ",
                    profile->model.empty() ? "" : profile->model + ", ",
                    ProfileHashText(profile->hash),
                    chunks == 0 ? "not needed" : fmt::format("{} chunks need it", chunks)));
  }
  AddNeighbours(archive, facts);
  return facts;
}

// Returns true if the source was archived without a decision that flags make when its tensors are
// read: the row of a batch, or the axis that counts tokens.
bool IsUndecided(const Archive& archive) {
  const auto& described = archive.description();
  return described && (BatchRows(*described) > 1 || described->storage.count(kAxesGuessed) != 0);
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
  // The description lacks what the archive left to flags, so with such flags the values are read.
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
          ? fmt::format("version {}, of opaque bytes (not read as a cache)", kvz::kVersion)
          : fmt::format("version {}, of {}{}{}", kvz::kVersion, snapshot.format,
                        snapshot.format_version.empty() ? "" : ", ", snapshot.format_version);
  std::vector<std::pair<std::string, std::string>> facts = ListFacts(archive);
  facts.insert(facts.end(), snapshot.facts.begin(), snapshot.facts.end());
  snapshot.facts = std::move(facts);
  for (const Damage& damage : archive.damage()) {
    snapshot.notes.push_back({fmt::format("damaged {}: {}", damage.part, damage.text), true});
  }
  // If no values are read, the fact "lossy" reports the loss.
  if (archive.approximation() && !options.metadata_only) {
    snapshot.notes.push_back({DescribeLoss(*archive.approximation()), true});
  }
  return snapshot;
}

// Finds the profile of an archive or a frame.

namespace fs = std::filesystem;
namespace {

constexpr std::string_view kProfileSuffix = ".kvp", kTransformSuffix = ".kvx";
// Largest number of profiles in one folder that are searched for their hash.
constexpr size_t kMostBeside = 1024;

// Returns true if the file ends in this hash. Profiles and transforms end in their own hash, so
// only the wanted one is read.
bool EndsIn(const FileSource& file, const Hash128Bytes& hash) {
  return file.size() >= hash.size() && std::memcmp(file.bytes().data() + file.size() - hash.size(),
                                                   hash.data(), hash.size()) == 0;
}

std::string Wanted(const ProfileName& name) {
  std::string text = "the profile";
  if (!name.model.empty()) text += " of " + Printable(name.model);
  text += " (";
  if (!name.file.empty()) text += fmt::format("'{}', ", Printable(name.file));
  return text + ProfileHashText(name.hash) + ")";
}

// Returns regular files beside `path`: the one with this name, then all that end in the suffix.
std::vector<fs::path> Beside(const std::string& name, std::string_view suffix,
                             const std::string& path, const OpenOptions& options) {
  std::vector<fs::path> paths;
  if (path == "-" || options.in_memory) return paths;  // such an archive has no folder
  fs::path folder = fs::path(path).parent_path();
  if (folder.empty()) folder = ".";
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), end; at != end && paths.size() < kMostBeside;
       at.increment(ignored)) {
    if (ignored) break;
    const std::string file = at->path().filename().string();
    if (file != name && !file.ends_with(suffix)) continue;
    if (at->is_regular_file(ignored)) paths.push_back(at->path());
  }
  std::ranges::sort(paths, {}, [&](const fs::path& beside) {
    return std::pair(beside.filename().string() != name, beside.string());
  });
  return paths;
}

}  // namespace

std::shared_ptr<const Profile> OpenProfile(const std::string& path) {
  try {
    return Profile::Read(FileSource::Open(path, kMostProfileBytes)->bytes());
  } catch (Error& error) {
    throw error.File(path);
  }
}

std::shared_ptr<const Profile> FindProfile(const ProfileName& name, std::string_view what,
                                           const std::string& path, const OpenOptions& options) {
  std::string others;  // given profiles that do not match the archive
  for (const GivenProfile& given : options.profiles) {
    if (given.profile->hash() == name.hash) return given.profile;
    const std::string is =
        given.file.empty() ? "the one that was given" : fmt::format("'{}'", Printable(given.file));
    others += fmt::format("; {} is {}", is, ProfileHashText(given.profile->hash()));
  }
  for (const fs::path& beside : Beside(name.file, kProfileSuffix, path, options)) {
    try {
      const std::shared_ptr<const FileSource> file = FileSource::Open(beside);
      if (file->size() <= kMostProfileBytes && EndsIn(*file, name.hash))
        return Profile::Read(file->bytes());
    } catch (const Error&) {
      continue;  // other files in the folder may be broken
    }
  }
  Error why(Finding::kProfileMissing, "the {} needs {}{}{}", what, Wanted(name),
            options.in_memory ? "" : ", which is not in its folder", others);
  throw why.Hint(options.in_memory
                     ? "open the profile of that hash and give it to the context: "
                       "kvt_profile_open, kvt_ctx_use_profile"
                     : "give it with --profile FILE; a newly trained profile is a different one");
}

void FindProfile(Archive& archive, const std::string& path, const OpenOptions& options) {
  if (archive.profiled_chunks() == 0) return;
  if (!archive.profile_name()) {
    return archive.MissProfile(Error(Finding::kProfileMissing,
                                     "chunks need a profile, and the archive does not say which"));
  }
  std::optional<Error> damage;
  if (archive.profile_name()->embedded) {
    try {
      return archive.UseProfile(archive.ReadEmbeddedProfile());
    } catch (Error& error) {
      damage = std::move(error);  // the file that was embedded may still be there
    }
  }
  try {
    archive.UseProfile(FindProfile(*archive.profile_name(), "archive", path, options));
  } catch (Error& error) {
    archive.MissProfile(damage ? damage->In("the profile inside the archive") : error);
  }
}

void FindTransform(Archive& archive, const std::string& path, const OpenOptions& options) {
  if (archive.transformed_chunks() == 0) return;
  if (!archive.approximation()) {
    return archive.MissTransform(
        Error(Finding::kProfileMissing, "chunks need a transform, and the archive names none"));
  }
  const Approximation& wanted = *archive.approximation();
  const auto use = [&](const fs::path& from) {
    const std::shared_ptr<const FileSource> file = FileSource::Open(from);
    if (!EndsIn(*file, wanted.hash)) return false;
    auto transform = std::make_shared<const Transform>(ReadTransform(file->bytes()));
    archive.UseTransform(std::make_shared<ArchiveTransform>(std::move(transform), wanted));
    return true;
  };
  for (const std::string& from : options.transforms) {
    try {
      if (use(from)) return;
    } catch (Error& error) {
      throw error.File(from);
    }
  }
  for (const fs::path& beside : Beside(wanted.file, kTransformSuffix, path, options)) {
    try {
      if (use(beside)) return;
    } catch (const Error&) {
      continue;  // other files in the folder may be broken
    }
  }
  Error why(Finding::kProfileMissing, "the archive needs the transform {}{}{}",
            wanted.file.empty() ? "" : fmt::format("'{}' ", Printable(wanted.file)),
            ProfileHashText(wanted.hash),
            !options.transforms.empty() ? ", which is not among those given"
            : options.in_memory         ? ""
                                        : ", which is not in its folder");
  why.Hint(options.in_memory
               ? "libkvtool reads no transforms: restore the archive with 'kvtool decompress'"
               : "put it beside the archive or give it with --transform FILE; another transform "
                 "restores "
                 "other values");
  archive.MissTransform(std::move(why));
}

std::string DescribeLoss(const Approximation& approximation) {
  const Loss k = approximation.WorstLoss(false), v = approximation.WorstLoss(true);
  const std::string hash = ProfileHashText(approximation.hash);
  return fmt::format(
      "LOSSY: K and V between the first {} and last {} tokens are approximated by {} at ratio {}; "
      "in a layer, K is off by at most {:.2g}% (largest error {:.3g}), V by {:.2g}% ({:.3g}){}",
      approximation.sinks, approximation.window,
      approximation.file.empty() ? hash
                                 : fmt::format("{} ({})", Printable(approximation.file), hash),
      approximation.ratio, 100 * k.relative, k.largest, 100 * v.relative, v.largest,
      approximation.expected_kl
          ? fmt::format("; expected loss {:.2g} nats a token", *approximation.expected_kl)
          : "");
}

// Archives whose values lie in opaque chunks (packed tiles, deflated members): the source is
// restored into an unnamed temporary file and read again.

namespace {

// All files of a source, one after another in a temporary file.
class SpoolTarget : public RestoreTarget {
 public:
  Sink& Begin(size_t file) override {
    begins_[file] = spool_.size();
    return spool_;
  }
  void End(size_t) override {}

  Source Take(const Archive& archive) {
    const auto whole = spool_.Release("temporary file");
    Source source;
    source.path = archive.data().name();
    source.is_folder = archive.is_folder();
    for (size_t i = 0; i < archive.files().size(); ++i) {
      const ArchivedFile& file = archive.files()[i];
      const std::string& name = source.is_folder ? file.name : source.path;
      source.files.push_back({name, FileSource::Slice(whole, begins_.at(i), file.size, name)});
    }
    return source;
  }

 private:
  SpoolFile spool_;
  std::map<size_t, uint64_t> begins_;  // by file; files come in any order
};

bool HoldsAll(const Archive& archive, const Selection& wanted) {
  // The description of an archive cannot hold extension words.
  if (archive.description()->storage.count("extension_words") != 0) return false;
  const std::vector<LayerKv>& layers = archive.description()->layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!wanted.HasLayer(layers[i].index)) continue;
    if (wanted.keys && !archive.HoldsTensor(i, false)) return false;
    if (wanted.values && layers[i].v && !archive.HoldsTensor(i, true)) return false;
  }
  return true;
}

// Reads the source as it was read when it was archived. If a format has two interpretations of a
// source (MNN: logical, packed), their names are values of --layout.
Snapshot ReadAgain(const Source& source, const Snapshot& described, OpenOptions options) {
  options.from = described.format;
  options.metadata_only = false;
  options.files_for_others = true;  // requested for the archive around the source
  Snapshot snapshot = options.open(source, options);
  if (snapshot.format_version != described.format_version && options.layout.empty()) {
    options.layout = described.format_version;
    options.is_shared = true;
    snapshot = options.open(source, options);
  }
  if (snapshot.format_version == described.format_version) return snapshot;
  throw Error(Finding::kAmbiguousFormat,
              "the restored source reads as {}, but it was archived as {}", snapshot.format_version,
              described.format_version)
      .File(source.path)
      .Hint("decompress it without --to and convert the restored source");
}

void RequireAllowed(std::string_view what, uint64_t bytes, const Archive& archive,
                    const OpenOptions& options) {
  if (bytes <= options.max_bytes) return;
  throw Error(Finding::kLimit, "{} {} bytes; at most {} are allowed", what, bytes,
              options.max_bytes)
      .File(archive.data().name())
      .Hint("--max-bytes raises the limit");
}

// Returns the bytes that LoadTensors decodes.
uint64_t WantedBytes(const Archive& archive, const Selection& wanted) {
  uint64_t bytes = 0;
  for (const ArchivedChunk& chunk : archive.chunks()) {
    const ChunkHead& head = chunk.head;
    const bool is_wanted = head.kind == ChunkKind::kKey     ? wanted.keys
                           : head.kind == ChunkKind::kValue ? wanted.values
                                                            : false;
    if (is_wanted && wanted.HasLayer(head.layer) &&
        wanted.HasTokens(head.token_begin, head.token_begin + head.tokens))
      bytes += head.raw_bytes;
  }
  return bytes;
}

Snapshot LoadSource(const Archive& archive, const OpenOptions& options, ThreadPool& pool,
                    Progress* progress) {
  const Snapshot& described = *archive.description();
  if (described.format == kKvzFormat) {
    throw Error(Finding::kUnsupportedKind, "an archive of an archive").File(archive.data().name());
  }
  RequireAllowed("its source has", archive.source_bytes(), archive, options);
  RestoreOptions restore;
  restore.progress = progress;
  SpoolTarget target;
  Restore(archive, restore, pool, target);
  return ReadAgain(target.Take(archive), described, options);
}

}  // namespace

Snapshot LoadSnapshot(const Archive& archive, const Selection& wanted, const OpenOptions& options,
                      ThreadPool& pool, Progress* progress) {
  if (!archive.description() ||
      (!IsUndecided(archive) && (!archive.damage().empty() || HoldsAll(archive, wanted)))) {
    try {
      if (archive.description()) RequireAsArchived(options, *archive.description());
    } catch (Error& error) {
      throw error.File(archive.data().name());
    }
    RequireAllowed("the selected K and V have", WantedBytes(archive, wanted), archive, options);
    return LoadTensors(archive, wanted, pool, progress);
  }
  Snapshot snapshot = LoadSource(archive, options, pool, progress);
  for (LayerKv& layer : snapshot.layers) {
    if (!wanted.keys) layer.k.pieces.clear();
    if (!wanted.values) layer.v.reset();
  }
  // The archive becomes the source of the snapshot, so the views must keep the old files open.
  for (const SourceFile& file : snapshot.source.files) snapshot.spools.push_back(file.data);
  return snapshot;
}

}  // namespace kv
