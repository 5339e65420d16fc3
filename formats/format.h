// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/base/file.h"
#include "lib/core/base/output.h"
#include "lib/core/base/utf8.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/core/weights/weights.h"

// The interface between readers and writers of formats and their callers: options, and the row of a
// format in the table of registry.cc.
namespace kv {

struct DumpEntries;
struct OpenedReferences;
class Profile;
struct Reference;
class ThreadPool;

struct OpenOptions;
// Opens a source in whatever format it has.
using SnapshotOpener = Snapshot (*)(Source source, const OpenOptions& options);

struct GivenProfile {
  std::string file;  // empty if the caller has it in memory
  std::shared_ptr<const Profile> profile;
};

// Information that a user may have to give a reader. Each field holds the flag of the same name.
struct OpenOptions {
  std::string from;                  // registry id; empty = detect
  std::string raw;                   // --raw DTYPE:ORDER:SIZES or PRESET:DTYPE:SIZES
  std::string k_pattern, v_pattern;  // tensor names with {i} for the layer
  std::string layout;                // --layout: chooses an interpretation if two fit
  std::string as_dtype;              // --input-dtype bf16: the type of |V2 or u2 arrays
  std::string order;                 // --order: the sequence of the files of a folder of pages
  std::string rotated = "auto";      // auto, yes or no: is the llama.cpp cache rotated
  uint64_t max_bytes = uint64_t{64} << 30;  // cap on inflated or derived data
  std::optional<uint64_t> batch;            // batch row of [B, ...] tensors
  // Caches that an archive may refer to, in addition to those in its folder.
  std::vector<std::string> bases;
  // Opened references, which are tried first.
  std::vector<std::shared_ptr<const Reference>> references;
  // Profiles that archives and frames may need, in addition to those in their folders.
  std::vector<GivenProfile> profiles;
  // Files of transforms that lossy archives may need, in addition to those in their folders.
  std::vector<std::string> transforms;
  // `bases`, `profiles` and `transforms` need not apply to this input: the caller or another input
  // uses them.
  bool files_for_others = false;
  // Opens the references of an archive and the source that it restores. OpenSnapshot sets it for
  // the readers that it calls; direct callers of formats/kvz set it to OpenSnapshot themselves.
  SnapshotOpener open = nullptr;
  uint32_t reference_depth = 0;  // number of archives on the way to this one
  // files that they opened; FindReferences creates it
  std::shared_ptr<OpenedReferences> opened_references = {};
  bool in_memory = false;      // true: no folder is searched
  ThreadPool* pool = nullptr;  // decodes an archive's values; null: on all CPUs
  // Values will not be read, so readers may skip decoding and leave tensors without bytes.
  bool metadata_only = false;
  // The caller accepts whole batches: without `batch` their rows are concatenated as tokens, and
  // Snapshot::storage holds their number (lib/core/snapshot/snapshot.h). Other callers must set
  // `batch`.
  bool any_batch = false;
  // The caller keeps bytes regardless of their meaning: if it is unknown which axis counts tokens,
  // the reader takes the likelier one, warns, and records that in Snapshot::storage.
  bool may_guess_axes = false;
  // The flags are for several inputs, some of which may not use them.
  bool is_shared = false;
  std::optional<ModelGeometry> geometry;
};

// The order of K's RoPE pairs that a format's reader expects.
enum class PairsWanted {
  kAsSource,  // the order in the snapshot, for formats that only its engine reads
  kOfModel,   // the order that llama.cpp uses for the model's architecture
  kHalves,    // i and i + d/2: transformers' order for models that rotate halves
};

enum class Confidence { kNo, kMaybe, kCertain };

// Properties of a format, which code asks for instead of comparing its name.
enum FormatTraits : unsigned {
  // Flags that the format reads, in addition to those of all formats.
  kReadsLayout = 1,  // --layout
  kReadsBatch = 2,   // --batch
  kReadsNames = 4,   // --k-pattern, --v-pattern
  kReadsAll = 7,
  kReadsRaw = 8,         // takes --raw, which describes what the file does not
  kIsArchive = 16,       // kvtool's own archive of a cache in another format
  kStandsAlone = 32,     // each file is a complete cache, wherever it lies
  kIsOpaque = 64,        // bytes that no reader interprets
  kHoldsStates = 128,    // a file of a kind that is not supported is still a saved state
  kWritesFolder = 256,   // the output is a folder
  kReadsProfile = 512,   // --profile
  kIsCompressed = 1024,  // compressed by kvtool; compressing it again gains nothing
};

struct FormatEntry {
  std::string_view id;  // the name for --from and --to
  std::string_view summary;
  std::string_view needs;  // what the user must supply beside the file, for `kvtool targets`
  unsigned traits;         // bits of FormatTraits
  // Detects the format from content only. Null for formats that cannot be detected.
  Confidence (*probe)(const Source& source);
  // Reads metadata and maps tensor bytes. Throws Error. Null for formats without a reader.
  Snapshot (*open)(Source source, const OpenOptions& options);
  // Writes canonical [token][kv head][dim] tensors to a file or folder. Null when not writable.
  void (*write)(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);
  // Writes a cache before and after a compression step as one dump. Null when the format holds one
  // cache.
  void (*write_step)(const Snapshot& before, const Snapshot& after, const StepPlan& plan,
                     const std::string& path, const OutputRules& rules) = nullptr;
  // Returns phrases for what `write` would leave out of this snapshot or cannot guarantee. Null if
  // the format keeps everything.
  std::vector<std::string> (*not_kept)(const Snapshot& snapshot) = nullptr;
  // True if `write` uses Snapshot::storage: --v-order, --target-version.
  bool has_choices = false;
  // Reads every dump in a folder separately, with its runs, overlaps and damage
  // (lib/core/snapshot/dump_entry.h). Null for formats without dumps.
  DumpEntries (*read_dumps)(const Source& source) = nullptr;
  PairsWanted pairs = PairsWanted::kAsSource;
};

// Probes formats that are one file or a folder of such files. A folder is certain if all its files
// except *.json fit, possible if some do.
Confidence ProbeFiles(const Source& source, bool (*fits)(ByteSpan));
// Returns the bytes of a source that is one file. A folder yields no bytes, because a format of
// single files cannot be a folder.
ByteSpan BytesOfOnlyFile(const Source& source);

// The batch of a file's arrays: all must have the same number of rows, and all rows of all layers
// together must not exceed the limit.
class BatchOfFile {
 public:
  // Adds an array. Throws kInconsistent, kLimit.
  void Add(uint64_t rows);
  // Returns nothing before the first array.
  std::optional<uint64_t> rows() const { return rows_; }

 private:
  std::optional<uint64_t> rows_;
  uint64_t views_ = 0;
};

// Throws kUsage with the hint if --batch exceeds the array's rows, or if it is missing and the
// caller needs one of several rows.
void RequireRow(const OpenOptions& options, uint64_t rows, bool has_batch_axis,
                std::string_view hint);

// Writes rows of a tensor as [token][head][dim], gathered in bounded memory, and releases the pages
// that were read.
void WriteRows(const Snapshot& snapshot, const KvTensor& tensor, uint64_t begin, uint64_t count,
               Sink& sink);
// Throws kUnsupportedLayout if two layers have the same number, for formats that name layers by it.
void RequireLayerNumbers(const Snapshot& snapshot);
// Adds to `lost` that layer numbers are not kept, unless they already count from 0. For
// FormatEntry::not_kept of formats that number the stored layers from 0.
void AddLayerNumbers(const Snapshot& snapshot, std::vector<std::string>& lost);

// Returns the name of a file without its folders.
inline std::string_view LastPart(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Returns the folders of a file's name; "" if it has none.
inline std::string_view FolderPart(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? std::string_view() : path.substr(0, slash);
}

template <size_t kCount>
bool Contains(const std::string_view (&list)[kCount], std::string_view word) {
  return std::find(std::begin(list), std::end(list), word) != std::end(list);
}

// Returns "a, b, c, d and 4 more".
inline std::string Listed(const std::vector<std::string>& names) {
  const auto shown = static_cast<std::ptrdiff_t>(std::min<size_t>(names.size(), 4));
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  if (names.size() > 4) text += fmt::format(" and {} more", names.size() - 4);
  return text;
}

}  // namespace kv
