// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/inputs/each_command.h"
#include "lib/core/archive/archive.h"

namespace kv {

// Destinations of the results of compress and decompress: -o, -c, --output-dir, -f and -k.
struct ArchiveOutput {
  OutputOptions one;
  std::string folder;
  using Rename = std::function<std::string(const std::string&)>;

  void Declare(CommandLine& line, const std::string& what);
  // `rename` gives the default name. Throws kUsage if the flags do not fit the inputs.
  void Files(const std::string& input, const std::string& name, const Rename& rename,
             CommandFiles& files) const;
  // Returns the path of the result of an input that a corpus calls `name`, or "-" for standard
  // output.
  std::string PathFor(const std::string& input, const std::string& name,
                      const Rename& rename) const;
  // Creates the folders that --output-dir adds in front of a result's name.
  void MakeFolder(const std::string& path) const;
};

// --max-bytes, --base, --profile and --transform of commands that read archives.
struct ArchiveLimit {
  SizeLimit limit;
  std::vector<std::string> bases, profiles, transforms;

  void Declare(CommandLine& line);
  void Files(CommandFiles& files) const {
    files.Reads(bases);
    files.Reads(profiles);
    files.Reads(transforms);
  }
  // Returns the options by which an archive or a frame is read. Throws what opening a profile
  // throws.
  OpenOptions Reading() const;
  // Opens an archive with its references and its profile, or with the reasons why they are missing.
  // Reads at most max_bytes of a stream. Throws kLimit for an archive whose source is larger.
  Archive Open(const std::string& path) const;
  // Throws kLimit if more bytes are lost than may be written as zeros.
  void RequireWritable(const Archive& archive) const;
};

// Throws kOpenFailed for a folder. One with archives never gets here: its archives are the inputs.
void RequireNoFolder(const std::string& path);

// Destination of a restored source. Nothing appears before Commit, except in a stream.
class OutputTarget : public RestoreTarget {
 public:
  virtual bool is_stream() const { return false; }
  virtual void Commit() = 0;
};
// Lists the contents of a restored folder; a single file has none.
struct RestoredFolder {
  struct File {
    std::string name;
    bool executable;
  };
  std::vector<File> files;
  std::vector<std::string> empty_folders;

  template <typename Files>
  static std::optional<RestoredFolder> Of(bool is_folder, const Files& files,
                                          const std::vector<std::string>& empty_folders) {
    if (!is_folder) return std::nullopt;
    RestoredFolder folder = {{}, empty_folders};
    for (const auto& file : files) folder.files.push_back({file.name, file.executable});
    return folder;
  }
};
// Makes a target; `path` may be "-". Throws kUsage for a folder to a stream.
std::unique_ptr<OutputTarget> MakeOutputTarget(std::optional<RestoredFolder> folder,
                                               const std::string& path, const OutputRules& rules);
// Restores an archive without writing it, and reports what it found; with a source, compares with
// it. `kvtool verify` and `kvtool decompress --test` do this.
ExitStatus VerifyArchive(const std::string& input, const std::string& against,
                         const ArchiveLimit& limit, const ReportOptions& report, Context& context);

// Throws the first damage of the stored bytes, if there is any.
void RequireSound(const Archive& archive, ThreadPool& pool);
// A range of the source that is lost, and the name of its file.
struct Lost {
  std::string file;
  LostRange range;
};
std::vector<Lost> LostIn(const Archive& archive, const RestoreReport& report);

// Fields that tell how an archive's values differ from the original ones.
const Fields<Approximation>& ApproximationFields();
const Fields<ChunkHead>& ChunkFields();
const Fields<Damage>& DamageFields();
const Fields<Lost>& LostFields();
// Returns the hash of the restored bytes, with zeros for lost ones; nothing if so much is lost that
// hashing the zeros would take too long.
std::optional<std::string> RestoredHash(const RestoreReport& report);
std::string LostText(const Archive& archive, const LostRange& lost);

}  // namespace kv
