// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/engines/mnn/logs/analyzer.h"
#include "lib/engines/mnn/logs/files.h"
#include "lib/engines/mnn/logs/suite.h"

namespace kv::mnn::logs {

// What fails a case whatever its figures say: a document of the engine that says no, figures that
// are no numbers, evidence that should be there and is not, and lines of a broken cache.

// Equal in kind: counted, with the first ones in words.
struct Trouble {
  uint64_t count = 0;
  std::vector<std::string> examples = {};

  void Add(std::string what);
  std::string Text() const;  // "a; b; and 3 more"
};

// A verdict of the engine that is no.
struct Denial {
  std::string metric;  // the first key that says no
  std::string reason;  // "runtime_full/summary.md says false: decode_pass"
};

// Lines of a broken cache in all logs of a case. A line that the bench printed is not counted again
// in the consoles that repeat it.
class Damage {
 public:
  // Of the logs that the engine's analyzer reads too.
  void AddBench(std::string_view text, std::string_view shown);
  void AddOther(std::string_view text, std::string_view shown);
  // All logs in the folder and, to this depth, in those below it.
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

// Whether a name is that of a log, by any program.
bool IsLog(std::string_view name);
// The line that says how a program died; empty if none does.
std::string LastWords(std::string_view log);

// Of the columns with figures. What a row lacks of what other rows have goes to the gaps.
void CheckCells(const BenchTable& table, Evidence& evidence);
void CheckFigures(const GateBullets& bullets, const std::string& shown, Evidence& evidence);
// Numbers anywhere in a document.
void CheckFigures(const Json& document, const std::string& shown, Evidence& evidence);

// Rules of the analyzer that its report says are broken. Those that were not asked for are not.
std::vector<std::string> DeniedBy(const GateBullets& bullets);
std::vector<std::string> DeniedBy(const Json& demo_report);
// Nothing for an empty list. `why` is the document's own reason, if it gives one.
void AddDenial(const std::vector<std::string>& keys, const std::string& who, Evidence& evidence,
               std::string_view why = {});

}  // namespace kv::mnn::logs
