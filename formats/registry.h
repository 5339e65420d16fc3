// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"
#include "lib/core/base/file.h"

namespace kv {

// Returns the table of formats, in the order of detection.
std::span<const FormatEntry> Formats();
const FormatEntry* FindFormat(std::string_view id);
// Returns true if the format of this name has the trait; false for any other word.
bool HasTrait(std::string_view id, FormatTraits trait);
// Returns the format that --to names. Throws kUsage, listing the formats that can be written.
const FormatEntry& WritableFormat(std::string_view id);

// Returns the format of a source: by --from, otherwise by its bytes. Throws kUnknownFormat,
// kAmbiguousFormat, kUsage.
const FormatEntry& DetectFormat(const Source& source, const OpenOptions& options);

// Detects, reads and applies the geometry of `options`. With --order, the files of a folder are
// read one by one and joined in that order. Errors carry the file's name.
Snapshot OpenSnapshot(Source source, const OpenOptions& options);
// Opens a snapshot as above. If the file does not record the heads, it is read again with those
// that `otherwise` returns, because a reader may infer more from heads than their number.
Snapshot OpenSnapshot(const Source& source, const OpenOptions& options,
                      const std::optional<ModelGeometry>& otherwise);

// Opens a source to keep it byte for byte, in an archive or a store. Returns nothing if only bytes
// can be kept: by --from opaque or, with the reason in `why`, because no reader makes a snapshot of
// it or its tensors share bytes, as torch's expand() leaves them.
std::optional<Snapshot> OpenToKeep(const Source& source, const OpenOptions& options,
                                   std::string& why);

// Returns true if a folder is a dump of a known format and holds nothing else.
bool HoldsOnlyADump(const std::string& folder);

// Reads heads and head sizes from a model file: a GGUF header or a config.json.
ModelGeometry ReadModelGeometry(std::shared_ptr<const FileSource> file);

// Everything that can be read or written, for `kvtool formats`, collected from the tables of the
// readers and writers.
enum class FormatKind { kSnapshot, kNames, kPreset, kTrace, kWeights, kModel };
std::string_view Name(FormatKind kind);

struct FormatListing {
  std::string_view id;
  FormatKind kind;
  bool detected = false, reads = false, writes = false;
  std::string_view summary;
  std::string_view needs;  // what the user must supply beside the file
};
std::vector<FormatListing> ListFormats();

// Formats that people may try but kvtool does not read as a cache, with the reason: one table for
// errors and for `kvtool formats`.
struct ForeignFormat {
  std::string_view id;
  std::string_view what;    // program that writes the format, and its form on disk
  std::string_view reason;  // the reason why kvtool does not read it
  std::string_view hint;    // what to do instead; may be empty
  // Recognises a source by its bytes (by its name if the bytes are no evidence). Null if no file
  // can have this format.
  bool (*recognise)(const Source& source);
};
std::span<const ForeignFormat> ForeignFormats();

// Throws kUnsupportedKind, with the reason, if the source is one of these.
void RefuseForeign(const Source& source);

}  // namespace kv
