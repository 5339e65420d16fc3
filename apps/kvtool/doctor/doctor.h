// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool doctor`: what a file is, and why it cannot be read.
#pragma once  // implemented by doctor.cc, doctor_unknown.cc

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/kvtool/exit_status.h"
#include "lib/core/base/file.h"
#include "lib/core/base/parallel.h"

namespace kv {

// Default limit of unpacked bytes per input: readers of compressed arrays inflate all of them, and
// a small file can declare a thousand times its size.
inline constexpr uint64_t kMostUnpacked = uint64_t{4} << 30;

// The result of `kvtool doctor` for one input.
struct Diagnosis {
  // A complete line for a shell, and its effect. If it `needs` something that only the user knows,
  // the line has a placeholder in capitals.
  struct Step {
    std::string command, effect, needs;
  };
  enum class Sound { kYes, kNo, kUnknown };

  std::string file;
  uint64_t max_bytes = kMostUnpacked;  // limit of inflated or derived bytes
  std::string kind = "unknown";        // see the schema
  std::string format;  // name of the format, the registry's if it has one; empty: unknown
  std::string what;
  uint64_t bytes = 0;
  Sound sound = Sound::kUnknown;
  std::string sound_text;
  std::vector<std::string> findings;  // the fault
  std::string shrinks_text;           // empty: unknown
  std::optional<double> ratio;
  uint64_t judged_bytes = 0, judged_of_bytes = 0;
  std::vector<Step> next;
  ExitStatus status = kDone;
  std::optional<Error> error;    // the reason why the input cannot be read
  bool needs_transform = false;  // an archive whose values a transform rounded

  void Find(std::string finding);
  void Suggest(std::string command, std::string effect, std::string needs = "") {
    next.push_back({std::move(command), std::move(effect), std::move(needs)});
  }
  void Fail(const Error& why);  // sets `error` and its exit code
};

// Diagnoses a file. Never throws for faults of the input, and its work does not grow with the size
// of a large one. `most` limits unpacked bytes, and the bytes of a stream.
Diagnosis Diagnose(const std::string& path, std::optional<uint64_t> most, ThreadPool& pool);

// Returns a file's name as one shell word that is not taken for an option.
std::string ShellWord(const std::string& path);
// Returns 163840 as "163,840".
std::string Grouped(uint64_t number);
// Returns a path beside `path` that does not exist yet.
std::string FreeName(const std::string& path);

// Files up to this size are read completely if that is needed to check their checksums.
inline constexpr uint64_t kWholeFileBytes = uint64_t{64} << 20;

// Diagnoses of each kind; all throw if the input is of another kind.
void DiagnoseSnapshot(const Source& source, ThreadPool& pool, Diagnosis& out);
void DiagnoseArchive(const Source& source, ThreadPool& pool, Diagnosis& out);
void DiagnoseRun(const std::string& path, ThreadPool& pool, Diagnosis& out);
// Returns true for a store of states. A folder whose marker file is a symbolic link is none.
bool IsStoreFolder(const std::filesystem::path& folder);
// Diagnoses a file that is not a cache. Returns true if it is of another known kind.
bool DiagnoseOther(const Source& source, Diagnosis& out);
// The commands that show and check a file that is neither cache nor archive: a trace, a plan,
// weights, a frame, a store. Null for all other files, and for those that cannot be read twice.
struct OtherKind {
  std::string_view kind;                     // as in Diagnosis
  std::vector<std::string> inspect, verify;  // empty: none
};
const OtherKind* FindOtherKind(const std::string& path);
// Returns "it is a cache (npz): ...": the kind of a file that is not an archive, and the command
// that reads it. Returns "" for archives and unknown files.
std::string ReaderInstead(const std::string& path);
// Diagnoses an unknown or unreadable file: what it resembles, and how to proceed.
void DiagnoseUnknown(const Source& source, const Error& error, Diagnosis& out);

}  // namespace kv
