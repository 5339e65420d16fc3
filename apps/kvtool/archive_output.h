// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "formats/kvz/archive.h"

namespace kv {

// Where the results of compress and decompress go: -o, -c, --output-dir, -f and -k.
struct ArchiveOutput {
  OutputOptions one;
  std::string folder;

  void Declare(CLI::App& app, const std::string& what);
  // Throws kUsage where the flags do not fit the inputs.
  void Check(const std::vector<std::string>& inputs) const;
  // The path of an input's result, or "-" for standard output; `rename` gives the default name.
  std::string PathFor(const std::string& input,
                      const std::function<std::string(const std::string&)>& rename) const;
  // Throws kUsage when binary data would go to a terminal.
  void RefuseTerminal(const Console& console) const;
};

// Runs `body` for each input, reports what it throws, and gives the exit status over all: the
// worst wins. Stops at the first failure (exit 3 and up) unless `keep_going`.
ExitStatus ForEachInput(const std::vector<std::string>& inputs, bool keep_going, Console& console,
                        const std::function<ExitStatus(const std::string&)>& body);

// Where a restored source is written: nothing appears before Commit.
class OutputTarget : public RestoreTarget {
 public:
  virtual void Commit() = 0;
};
// `path` may be "-". Throws kUsage for a folder to standard output.
std::unique_ptr<OutputTarget> MakeOutputTarget(const Archive& archive, const std::string& path,
                                               Overwrite overwrite);

// "layer 3 K tokens 0:512" or the name of the archive's damaged part.
std::string Place(const Damage& damage);
nlohmann::ordered_json DamageJson(const Damage& damage);
nlohmann::ordered_json LostJson(const Archive& archive, const LostRange& lost);
nlohmann::ordered_json ChunkJson(const ChunkHead& head);
std::string LostText(const Archive& archive, const LostRange& lost);

}  // namespace kv
