// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Archives whose values lie in opaque chunks (packed tiles, deflated members): the source is
// restored into an unnamed temporary file and read again.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <utility>

#include "formats/kvz/kvz.h"
#include "formats/stated.h"
#include "lib/core/archive/archive.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {
namespace {

// All files of a source, one after another in a temporary file.
class SpoolTarget : public RestoreTarget, private Sink {
 public:
  SpoolTarget() : descriptor_(OpenSpool()) {}
  ~SpoolTarget() override {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  SpoolTarget(const SpoolTarget&) = delete;
  SpoolTarget& operator=(const SpoolTarget&) = delete;

  Sink& Begin(size_t file) override {
    begins_[file] = size_;
    return *this;
  }
  void End(size_t) override {}

  Source Take(const Archive& archive) {
    const auto whole = FileSource::FromDescriptor(std::exchange(descriptor_, -1), "temporary file");
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
  void Write(ByteSpan bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) throw Error(Finding::kWriteFailed, "cannot write the temporary file");
      bytes = bytes.subspan(static_cast<size_t>(written));
      size_ += static_cast<uint64_t>(written);
    }
  }

  int descriptor_;
  uint64_t size_ = 0;
  std::map<size_t, uint64_t> begins_;  // by file; they come in any order
};

bool HoldsAll(const Archive& archive, const Selection& wanted) {
  // What the description of an archive has no room for.
  if (archive.description()->storage.count("extension_words") != 0) return false;
  const std::vector<LayerKv>& layers = archive.description()->layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!wanted.HasLayer(layers[i].index)) continue;
    if (wanted.keys && !archive.HoldsTensor(i, false)) return false;
    if (wanted.values && layers[i].v && !archive.HoldsTensor(i, true)) return false;
  }
  return true;
}

// Reads the source as it was read when it was archived. Where a format has two readings of one
// source (MNN: logical, packed) their names serve as --layout.
Snapshot ReadAgain(const Source& source, const Snapshot& described, OpenOptions options) {
  options.from = described.format;
  options.metadata_only = false;
  Snapshot snapshot = options.open(source, options);
  if (snapshot.format_version != described.format_version && options.layout.empty()) {
    options.layout = described.format_version;
    options.is_shared = true;
    snapshot = options.open(source, options);
  }
  if (snapshot.format_version == described.format_version) return snapshot;
  throw Error(Finding::kAmbiguousFormat,
              fmt::format("the restored source reads as {}, but it was archived as {}",
                          snapshot.format_version, described.format_version))
      .File(source.path)
      .Hint("decompress it without --to and convert the restored source");
}

void RequireAllowed(std::string_view what, uint64_t bytes, const Archive& archive,
                    const OpenOptions& options) {
  if (bytes <= options.max_bytes) return;
  throw Error(Finding::kLimit,
              fmt::format("{} {} bytes; at most {} are allowed", what, bytes, options.max_bytes))
      .File(archive.data().name())
      .Hint("--max-bytes raises the limit");
}

// What LoadTensors decodes.
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

bool IsUndecided(const Archive& archive) {
  const auto& described = archive.description();
  return described && (BatchRows(*described) > 1 || described->storage.count(kAxesGuessed) != 0);
}

Snapshot LoadSnapshot(const Archive& archive, const Selection& wanted, const OpenOptions& options,
                      ThreadPool& pool, Progress* progress) {
  if (!archive.description() ||
      (!IsUndecided(archive) && (!archive.damage().empty() || HoldsAll(archive, wanted)))) {
    try {
      if (archive.description()) RequireAsArchived(options, *archive.description());
    } catch (Error& error) {
      throw error.File(archive.data().name());
    }
    RequireAllowed("K and V that are wanted have", WantedBytes(archive, wanted), archive, options);
    return LoadTensors(archive, wanted, pool, progress);
  }
  Snapshot snapshot = LoadSource(archive, options, pool, progress);
  for (LayerKv& layer : snapshot.layers) {
    if (!wanted.keys) layer.k.pieces.clear();
    if (!wanted.values) layer.v.reset();
  }
  // The views keep their bytes when the archive becomes the source of the snapshot.
  for (const SourceFile& file : snapshot.source.files) snapshot.spools.push_back(file.data);
  return snapshot;
}

}  // namespace kv
