// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/engines/mnn/logs/analyzer.h"
#include "lib/study/gate/log_files.h"

namespace kv::mnn::logs {

using gate::LogFolder;
using gate::LogText;
using gate::ReadLog;

// Evidence that fails a case whatever its figures are: a negative verdict of the engine, figures
// that are not numbers, missing evidence, and lines of a broken cache.

// Troubles of one kind: their number, and the first few in words.
struct Trouble {
  uint64_t count = 0;
  std::vector<std::string> examples = {};

  void Add(std::string what);
  std::string Text() const;  // "a; b; and 3 more"
};

// A negative verdict of the engine.
struct Denial {
  std::string metric;  // the first key with a negative value
  std::string reason;  // "runtime_full/summary.md says false: decode_pass"
};

// The lines of a broken cache in all logs of a case. A line that the bench printed counts once,
// even if console logs repeat it.
class Damage {
 public:
  // Adds a log that the engine's analyzer reads too.
  void AddBench(std::string_view text, std::string_view shown);
  void AddOther(std::string_view text, std::string_view shown);
  // Adds all logs in the folder and in its subfolders down to this depth.
  void AddFolder(const LogFolder& folder, int depth);
  const InvalidLines& lines() const { return lines_; }
  uint64_t logs() const { return read_.size(); }

 private:
  void Add(std::string_view text, std::string_view shown, bool again);

  InvalidLines lines_;
  std::set<std::string, std::less<>> seen_, read_;
};

struct Evidence {
  std::vector<Denial> denials;
  Trouble gaps, non_finite;
  Damage damage;
};

// Returns true if a file name is that of a log of any program.
bool IsLog(std::string_view name);
// Returns the last line that tells how a program died, or "".
std::string LastWords(std::string_view log);

// Checks the cells of all columns with figures. An empty cell is a gap, and so is a cut row.
void CheckCells(const BenchTable& table, Evidence& evidence);
void CheckFigures(const GateBullets& bullets, const std::string& shown, Evidence& evidence);
// Checks the numbers anywhere in a document, or in the value under a name.
void CheckFigures(const Json& value, const std::string& shown, Evidence& evidence,
                  const std::string& name = {});

// Returns the rules that the analyzer's report says are broken, without those that did not apply.
std::vector<std::string> DeniedBy(const GateBullets& bullets);
std::vector<std::string> DeniedBy(const Json& demo_report);
// Adds a denial, unless the list is empty. `why` is the document's own reason, if it gives one.
void AddDenial(const std::vector<std::string>& keys, const std::string& who, Evidence& evidence,
               std::string_view why = {});

}  // namespace kv::mnn::logs
