// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by doctor.cc, doctor_unknown.cc

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/kvtool/exit_status.h"
#include "lib/core/base/file.h"
#include "lib/core/base/parallel.h"

namespace kv {

// What is unpacked at most of one input, unless the user says otherwise: readers of compressed
// arrays inflate all of them, of which a small file can declare a thousand times its size.
inline constexpr uint64_t kMostUnpacked = uint64_t{4} << 30;

// What `kvtool doctor` says of one input.
struct Diagnosis {
  // A whole line for a shell, and what it does. Where it `needs` something that only the user
  // knows, the line has a word in capitals for it.
  struct Step {
    std::string command, effect, needs;
  };
  enum class Sound { kYes, kNo, kUnknown };

  std::string file;
  uint64_t max_bytes = kMostUnpacked;  // of what is inflated or derived to look at it
  std::string kind = "unknown";        // see the schema
  std::string format;                  // the registry's word, if it has one
  std::string what;
  uint64_t bytes = 0;
  Sound sound = Sound::kUnknown;
  std::string sound_text;
  std::vector<std::string> findings;  // what is wrong
  std::string shrinks_text;           // empty: says nothing
  std::optional<double> ratio;
  uint64_t judged_bytes = 0, judged_of_bytes = 0;
  std::vector<Step> next;
  ExitStatus status = kDone;
  std::optional<Error> error;  // why it cannot be read

  void Find(std::string finding);
  void Suggest(std::string command, std::string effect, std::string needs = "") {
    next.push_back({std::move(command), std::move(effect), std::move(needs)});
  }
  void Fail(const Error& why);  // `error`, and the exit code of it
};

// Never throws for what is wrong with the input, and never works in proportion to a large one.
// `most` limits what is unpacked, and the bytes of a stream.
Diagnosis Diagnose(const std::string& path, std::optional<uint64_t> most, ThreadPool& pool);

// How a shell takes a file's name as one word that is no option.
std::string ShellWord(const std::string& path);
// 163840 as "163,840".
std::string Grouped(uint64_t number);
// A path beside `path` that does not exist yet.
std::string FreeName(const std::string& path);

// Files up to this size are read whole where their checksums ask for it.
inline constexpr uint64_t kWholeFileBytes = uint64_t{64} << 20;

// The kinds. Each throws where the input is of another.
void DiagnoseSnapshot(const Source& source, ThreadPool& pool, Diagnosis& out);
void DiagnoseArchive(const Source& source, ThreadPool& pool, Diagnosis& out);
void DiagnoseRun(const std::string& path, ThreadPool& pool, Diagnosis& out);
// True for a store of states. A link as its marker makes none.
bool IsStoreFolder(const std::filesystem::path& folder);
// Of a file that is no cache: whether it is something else that is known.
bool DiagnoseOther(const Source& source, Diagnosis& out);
// The words of the commands that show and check a file that is neither cache nor archive: a trace,
// a plan, weights, a frame, a store. Null for all other files, and for what cannot be read twice.
struct OtherKind {
  std::string_view kind;                     // as Diagnosis has it
  std::vector<std::string> inspect, verify;  // empty: none
};
const OtherKind* FindOtherKind(const std::string& path);
// "it is a cache (npz): ...": what a file that is no archive is, and which command reads it. Empty
// for archives and what nobody knows.
std::string ReaderInstead(const std::string& path);
// Of what nobody knows, or cannot read: what it seems to be, and the way out.
void DiagnoseUnknown(const Source& source, const Error& error, Diagnosis& out);

}  // namespace kv
