// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/kvtool/console/console.h"
#include "apps/kvtool/inputs/command_files.h"
#include "apps/kvtool/line/command_line.h"
#include "apps/kvtool/line/numbers.h"
#include "formats/registry.h"
#include "lib/core/base/file.h"
#include "lib/core/codec/codec.h"
#include "lib/core/snapshot/rope.h"
#include "lib/core/snapshot/select.h"
#include "lib/fields/fields.h"
#include "lib/report/html.h"

namespace kv {

// Options that several commands share. Each declares itself, so that a flag has the same text and
// behaviour everywhere.

// Options of every command.
struct GlobalOptions {
  int verbose = 0, quiet = 0;
  std::string colour = "auto", progress = "auto", simd;
  int threads = 0;
  bool deterministic = false;

  void Declare(CommandLine& line);
  When progress_when() const;
  int thread_count() const;  // 0 resolved to the usable CPUs
};

// Returns the permitted values of --from and --to.
std::vector<std::string> ReadableFormats();
std::vector<std::string> WritableFormats();

// --max-bytes: a small file can expand to a large output, and a stream may be endless.
struct SizeLimit {
  std::string text;

  void Declare(CommandLine& line, const std::string& what);
  std::optional<uint64_t> most() const;  // throws kUsage
  // Throws kLimit where the source, as `file` describes it, is larger.
  void Require(uint64_t source_bytes, const std::string& file) const;
  // Calls `open`; if the limit is exceeded, adds how to raise it.
  template <typename Open>
  static auto WithHint(const Open& open) {
    try {
      return open();
    } catch (Error& error) {
      if (error.finding() == Finding::kLimit && error.hint().empty())
        error.Hint("--max-bytes sets the limit");
      throw;
    }
  }
};

// A single input must use every flag; each of several inputs takes those that it can use.
enum class FlagsFor { kOne, kSeveral };

// Throws kOpenFailed for the first missing file, before it is known whether it is needed. Addresses
// are tried when they are needed.
void RequireThere(const std::vector<std::string>& paths);

// Options for reading snapshots: --from, --raw, geometry, patterns, limits.
struct SnapshotOptions {
  OpenOptions open;
  std::vector<std::string> profiles;
  std::string gguf;
  uint32_t kv_heads = 0, head_dim = 0;
  SizeLimit limit;

  // kOfCommand: --transform means something else, so lossy archives need theirs in their folder.
  enum class TransformFlag { kOfArchives, kOfCommand };
  void Declare(CommandLine& line, TransformFlag transform = TransformFlag::kOfArchives);
  void Files(CommandFiles& files) const;
  OpenOptions WithLimit() const;  // `open` with --max-bytes and --profile
  // Returns the options with the geometry from the flags and the GGUF file filled in.
  OpenOptions Resolve(FlagsFor inputs = FlagsFor::kOne) const;
  Source Open(const std::string& path) const;  // with --max-bytes for a stream
  // Returns `told` or, if it is empty, the name of the --model file or, for a config.json, of its
  // folder; empty without one.
  std::string ModelName(const std::string& told) const;

 private:
  // Indexed by name. Every input has a copy of the options, and a pipe can be read only once.
  struct Models {
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<const FileSource>> files;
    std::map<std::string, std::shared_ptr<const Profile>> profiles;
  };
  std::shared_ptr<Models> models_ = std::make_shared<Models>();
};

// Returns the profile that a command codes with at `levels`; null without --profile. Throws kUsage
// if several profiles are given, or if none of the levels uses a profile.
const GivenProfile* ProfileToCodeWith(const OpenOptions& options, std::span<const Effort> levels);

// One output file or folder: -o, -c, -f.
struct OutputOptions {
  std::string path;
  bool to_stdout = false;
  bool force = false;

  void Declare(CommandLine& line, const std::string& what);
  // Throws kUsage if binary data, called `what`, cannot go to standard output: it is a terminal, or
  // gets the document.
  void RequireStdout(const Console& console, bool json, std::string_view what) const;
};

// --json, --json-out, --json-version, --csv, and -f unless the command declares it itself.
struct ReportOptions {
  bool json = false, force = false;
  std::string json_out, csv;
  int json_version = kJsonVersion;  // the only version

  void Declare(CommandLine& line);
  void DeclareVersion(CommandLine& line);
  // Another object requests the document: the one that runs a command over many inputs.
  bool collects = false;
  bool wanted() const { return json || !json_out.empty() || !csv.empty() || collects; }
  // Prints and writes the document, or an array with one for each input, as requested. Only --json
  // suppresses the table on stdout.
  void Emit(Console& console, nlohmann::ordered_json document, const OutputRules& rules) const;
  // Emits a result made of fields, or a list of them, as the document `name`.
  void Emit(Console& console, std::string_view name, const Value& result,
            const OutputRules& rules = RulesFor(false)) const;
  // Emits the result of one run. The result is built only if a document or table was requested.
  template <typename T>
  void Emit(Console& console, std::string_view name, const Fields<T>& (*fields)(),
            const std::type_identity_t<T>& result,
            const OutputRules& rules = RulesFor(false)) const {
    if (wanted() || console.captured() != nullptr)
      Emit(console, name, fields().Object(result), rules);
  }
  void Files(CommandFiles& files) const;  // throws kUsage if two documents go to stdout
};

// The part of a snapshot: --layers 0-3,27, --tokens 0-511, --kv k|v|both.
struct SelectionOptions {
  std::string layers, tokens, kv = "both";

  void Declare(CommandLine& line);
  Selection Resolve() const;
};

// Returns {"file", "bytes", "xxh3"} of an input.
nlohmann::ordered_json InputRecord(const Source& source);

// --html-out, --svg-out, --figure-out: a report as a page, its pictures as files, and one of them
// for a paper.
struct PageOptions {
  std::string html, svg, figure;

  // `of` ends the sentence about the page, such as " of the statistics".
  void Declare(CommandLine& line, const std::string& of = "");
  void Files(CommandFiles& files) const;
  bool wanted() const { return !html.empty() || !svg.empty() || !figure.empty(); }
  void Write(const report::Page& page, const FileUser& command, Console& console,
             const OutputRules& rules) const;
  // Throws kUsage where a picture would go to another output or an input: before anything is
  // written.
  void CheckPictures(const report::Page& page, const FileUser& command) const {
    CheckedPlaces(page, command);
  }
  // Writes only the pictures and the figure.
  void WritePictures(const report::Page& page, const FileUser& command, Console& console,
                     const OutputRules& rules) const;

 private:
  void WriteFigure(const report::Page& page, Console& console, const OutputRules& rules) const;
  // Returns the paths of the pictures. Throws kUsage if one is also another output or an input.
  std::vector<std::string> CheckedPlaces(const report::Page& page, const FileUser& command) const;
};

// Returns the end of every page: the program, its command line, and the hashes of its inputs.
report::Origin DescribeOrigin(const FileUser& command, const Console& console);

// Rotation of a model's keys: the model file, overridden by flags.
struct RopeOptions {
  std::string style, scaling, freqs;
  double base = 0;
  uint32_t dims = 0;

  void Declare(CommandLine& line, const char* group);
  // Declares the options without --rope-style, for commands that try both styles.
  void DeclareUnpaired(CommandLine& line, const char* group);
  // Returns the rotation, if any source gives one. Bases and scalings in flags apply to all layers.
  // Without --rope-style the pairs are those of `keys`, whose order differs between engines (null:
  // pairs do not matter). Throws kUsage if the model's file does not determine them.
  std::optional<ModelRope> Resolve(const OpenOptions& options, const Snapshot* keys) const;
  // For commands that can work without it: if a model file's rotation is not supported, or the file
  // is cut before it is complete, returns nothing, with a warning that ends in `consequence`.
  std::optional<ModelRope> ResolveOrWarn(const OpenOptions& options, const Snapshot* keys,
                                         std::string_view consequence, Console& console) const;

 private:
  bool FromModel(const OpenOptions& options, ModelRope& model) const;
  std::optional<RopePairs> PairsFor(const OpenOptions& options, const Snapshot* keys) const;
};

}  // namespace kv
