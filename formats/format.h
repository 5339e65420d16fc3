// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/file.h"
#include "lib/core/base/output.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/core/weights/weights.h"

// What a reader or writer of a format includes: how it is asked, and the row that names it in
// registry.cc, which knows them all.
namespace kv {

struct DumpEntries;
struct OpenedReferences;
class Profile;
struct Reference;
class ThreadPool;

struct OpenOptions;
// Opens a source in whichever format it has.
using SnapshotOpener = Snapshot (*)(Source source, const OpenOptions& options);

struct GivenProfile {
  std::string file;  // empty where the caller has it in memory
  std::shared_ptr<const Profile> profile;
};

// What a user may have to tell a reader. Each field holds the flag of the same name.
struct OpenOptions {
  std::string from;                  // registry id; empty = detect
  std::string raw;                   // --raw DTYPE:ORDER:SIZES or PRESET:DTYPE:SIZES
  std::string k_pattern, v_pattern;  // tensor names with {i} for the layer
  std::string layout;                // chooses between readings where two fit
  std::string as_dtype;              // --input-dtype bf16: what |V2 or u2 arrays mean
  std::string order;                 // --order: which file of a folder of pages follows which
  std::string rotated = "auto";      // Hadamard rotation of quantised llama.cpp caches: auto|yes|no
  uint64_t max_bytes = uint64_t{64} << 30;  // cap on inflated or derived data
  std::optional<uint64_t> batch;            // which batch row of [B, ...] tensors
  // Caches that an archive may refer to, beside those in its folder.
  std::vector<std::string> bases;
  // The same, opened already; they are tried first.
  std::vector<std::shared_ptr<const Reference>> references;
  // Profiles that archives and frames may need, beside those in their folders.
  std::vector<GivenProfile> profiles;
  // An input need not have a use for `bases` and `profiles`: the caller or another input has.
  bool files_for_others = false;
  // How an archive opens what it refers to and the source that it restores. OpenSnapshot sets it
  // for the readers that it calls; who calls formats/kvz directly gives OpenSnapshot itself.
  SnapshotOpener open = nullptr;
  uint32_t reference_depth = 0;                              // archives that have led to this one
  std::shared_ptr<OpenedReferences> opened_references = {};  // by them; FindReferences begins it
  bool in_memory = false;                                    // no folder is looked into
  ThreadPool* pool = nullptr;  // where an archive's values are decoded; null: on all CPUs
  // Values will not be read, so readers may skip decoding and leave tensors without bytes.
  bool metadata_only = false;
  // The caller accepts whole batches: without `batch` their rows follow each other as tokens, and
  // Snapshot::storage holds their number (lib/core/snapshot/snapshot.h). Others must give `batch`.
  bool any_batch = false;
  // The caller keeps bytes regardless of their meaning: if nothing tells which axis counts tokens,
  // the reader takes the likelier one, warns, and records that in Snapshot::storage.
  bool may_guess_axes = false;
  // The flags are for several inputs, of which some may have no use for them.
  bool is_shared = false;
  std::optional<ModelGeometry> geometry;
};

// The order of K's RoPE pairs that a format's reader expects.
enum class PairsWanted {
  kAsSource,  // the snapshot's own: formats that are read back as that engine's
  kOfModel,   // as llama.cpp keeps them for the model's architecture
  kHalves,    // i and i + d/2, as transformers has them for all models with halves
};

enum class Confidence { kNo, kMaybe, kCertain };

// What is true of a format, for those who would otherwise ask for its name.
enum FormatTraits : unsigned {
  // Flags that it heeds, beside those of all formats.
  kReadsLayout = 1,  // --layout
  kReadsBatch = 2,   // --batch
  kReadsNames = 4,   // --k-pattern, --v-pattern
  kReadsAll = 7,
  kReadsRaw = 8,         // --raw, which says all that the file does not
  kIsArchive = 16,       // kvtool's own, of a cache in another format
  kStandsAlone = 32,     // each of its files is a cache of its own, wherever it lies
  kIsOpaque = 64,        // bytes that no reader looks into
  kHoldsStates = 128,    // a file of a kind that is not read is a saved state all the same
  kWritesFolder = 256,   // what is written is a folder
  kReadsProfile = 512,   // --profile
  kIsCompressed = 1024,  // by kvtool: compressed again it gains nothing
};

struct FormatEntry {
  std::string_view id;  // the word for --from and --to
  std::string_view summary;
  std::string_view needs;  // what the user must supply beyond the file, for `kvtool targets`
  unsigned traits;         // of FormatTraits
  // Looks at content only. Null for formats that cannot be detected.
  Confidence (*probe)(const Source& source);
  // Reads metadata and maps tensor bytes. Throws Error. Null for formats without a reader.
  Snapshot (*open)(Source source, const OpenOptions& options);
  // Writes canonical [token][kv head][dim] tensors to a file or folder. Null when not writable.
  void (*write)(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);
  // Writes a cache before and after a compression step as one dump. Null when the format holds one
  // cache.
  void (*write_step)(const Snapshot& before, const Snapshot& after, const StepPlan& plan,
                     const std::string& path, const OutputRules& rules) = nullptr;
  // Phrases for what `write` would leave out of this snapshot or cannot promise. Null if the format
  // keeps everything.
  std::vector<std::string> (*not_kept)(const Snapshot& snapshot) = nullptr;
  // Whether `write` heeds Snapshot::storage: --v-order, --target-version.
  bool has_choices = false;
  // Reads every dump in a folder separately, with runs, overlaps and damage as they are
  // (lib/core/snapshot/dump_entry.h). Null for formats without dumps.
  DumpEntries (*read_dumps)(const Source& source) = nullptr;
  PairsWanted pairs = PairsWanted::kAsSource;
};

// Probes formats that are one file or a folder of such files. A file fits or does not; a folder is
// certain if all its files except *.json fit, possible if some do.
Confidence ProbeFiles(const Source& source, bool (*fits)(ByteSpan));
// The bytes of a source that is one file; none of a folder, which formats of one file cannot be.
ByteSpan BytesOfOnlyFile(const Source& source);

// What a file's arrays say of its batch: all have as many rows, and all rows of all layers together
// are not too many.
class BatchOfFile {
 public:
  // Takes one more array. Throws kInconsistent, kLimit.
  void Add(uint64_t rows);
  // Nothing before the first array.
  std::optional<uint64_t> rows() const { return rows_; }

 private:
  std::optional<uint64_t> rows_;
  uint64_t views_ = 0;
};

// Refuses a --batch that an array of so many rows does not have, and its absence where a caller
// wants one of several. Throws kUsage with the hint.
void RequireRow(const OpenOptions& options, uint64_t rows, bool has_batch_axis,
                std::string_view hint);

// What readers that make values and writers of rows have in common.

// An unnamed temporary file for values that a reader must make: it is mapped once it is written.
class SpoolFile : public Sink {
 public:
  SpoolFile() : descriptor_(OpenSpool()), sink_(descriptor_, "temporary spool file") {}
  ~SpoolFile() override;
  SpoolFile(const SpoolFile&) = delete;
  SpoolFile& operator=(const SpoolFile&) = delete;

  void Write(ByteSpan bytes) override { sink_.Write(bytes); }
  std::shared_ptr<const FileSource> Release(std::string name);

 private:
  int descriptor_;
  DescriptorSink sink_;
};

// Writes rows of a tensor as [token][head][dim], gathered in bounded memory, and gives back the
// pages that were read.
void WriteRows(const Snapshot& snapshot, const KvTensor& tensor, uint64_t begin, uint64_t count,
               Sink& sink);
// Throws kUnsupportedLayout for two layers of one number, where it becomes a name.
void RequireLayerNumbers(const Snapshot& snapshot);
// For FormatEntry::not_kept of formats that count layers from 0.
void AddLayerNumbers(const Snapshot& snapshot, std::vector<std::string>& lost);

}  // namespace kv
