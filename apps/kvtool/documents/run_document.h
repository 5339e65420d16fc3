// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "apps/kvtool/exit_status.h"
#include "apps/kvtool/line/command_line.h"
#include "lib/core/base/error.h"
#include "lib/core/base/output.h"
#include "lib/fields/fields.h"

namespace kv {

class Console;
struct DocumentKind;

// A failure as documents have it.
const Fields<Error>& ErrorFields();
nlohmann::ordered_json ErrorJson(const Error& error);

constexpr int kJsonVersion = 2;
constexpr const char* kJsonVersionVariable = "KVTOOL_JSON_VERSION";
// Why documents of a version cannot be had; empty if they can.
std::string WrongJsonVersion(std::string_view version);

// A document as a command makes it, as an element of "results".
nlohmann::ordered_json ResultOf(nlohmann::ordered_json made);

// The JSON document of one run of the program. Its envelope says how the run ended, so it is held
// back until that is known, and is made even if there is nothing else to say.
class RunDocument {
 public:
  // What the words ask for, as long as nobody has parsed them.
  void Guess(int argc, char** argv);
  void Name(const DocumentKind* kind);  // null: the words name none
  // What the command line asks for.
  void Take(const CommandLine& line);
  // Nothing is asked for: help was.
  void Drop();

  // Documents as commands make them; printed if `print`, and written to `path` and their rows to
  // `csv` where these are not empty.
  void Hold(nlohmann::ordered_json made, bool print, const std::string& path,
            const std::string& csv, const OutputRules& rules);
  void Failed(const Error& error) { failures_.push_back(error); }
  // At the end, each once; what is printed says whether writing has failed.
  void Write(ExitStatus status, Console& console);
  void Print(ExitStatus status, Console& console);

 private:
  nlohmann::ordered_json Envelope(ExitStatus status, const Console& console,
                                  nlohmann::ordered_json results) const;

  std::string name_ = "failure";  // of the command's documents; none: the line was wrong before
  bool print_ = false;
  std::string path_, csv_;
  OutputRules rules_;
  nlohmann::ordered_json results_ = nlohmann::ordered_json::array();
  std::vector<Error> failures_;
};

}  // namespace kv
