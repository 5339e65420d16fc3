// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/kvtool/command.h"
#include "apps/kvtool/inputs/corpus_entries.h"

namespace kv {

// A command that processes each of many inputs as it would process that input alone. It is declared
// and parsed once; then a copy runs for each input, several at once on request. All state that
// depends on the input belongs to `input_`.
class EachCommand : public Command {
 public:
  EachCommand* AsEach() override { return this; }
  virtual std::unique_ptr<EachCommand> Copy() const = 0;
  void Take(const CorpusEntry& entry);
  // Returns true if the command takes an input found in a folder: one whose format has this id (""
  // for none), or a recorded run.
  virtual bool Takes(std::string_view format, bool is_run) const;
  // Returns true if the command takes a store of states as one input.
  virtual bool TakesStores() const { return false; }
  // Returns true if a given folder is one input, however many caches are in it, because this
  // command reads it as a whole.
  virtual bool TakesFolder(const Source&) const { return false; }
  // Called once, before the files are checked, with the destination of these inputs' results.
  virtual void PlaceResults(const CommandInputs&) {}
  // Returns true if failures never end the run, even without --keep-going.
  virtual bool ContinuesAfterFailure() const { return inputs_.keep_going; }
  // Returns true if --output-dir takes the results of many.
  virtual bool HasOutputDir() const { return false; }
  // Called if the run resumes an earlier one: an input without a result may have an output, which
  // may be overwritten.
  virtual void Continue() {}
  // Returns true if the result of this input exists already.
  virtual bool IsDone() const { return false; }
  // Returns options with the other files that reading an input requires.
  virtual OpenOptions Reading() const { return {}; }
  // Returns true if this run combines all its inputs, and therefore iterates over them itself.
  virtual bool JoinsInputs() const { return false; }
  // Returns words of the command line that are not options, but affect results.
  virtual std::vector<std::string> Words() const { return {}; }
  void TakeAll(const std::vector<CorpusEntry>& entries);

  // A pattern may have matched several inputs, so an input that is not named itself counts as one
  // of many.
  FlagsFor flags_for() const {
    const bool is_one =
        inputs_.given.size() == 1 && !inputs_.searches() && input_ == inputs_.given.front();
    return is_one ? FlagsFor::kOne : FlagsFor::kSeveral;
  }
  const InputOptions& inputs() const { return inputs_; }
  // Returns the position of the inputs, as named in messages.
  const std::string& place() const { return place_; }
  ReportOptions& report() { return report_; }

 protected:
  // If several inputs have results and `output`, the value of -o, names a folder, moves it to
  // `folder`; names in it lack the folders of the inputs. Throws kUsage if a folder was searched
  // for inputs and no option says where their results go.
  void TakeOutputFolder(const CommandInputs& inputs, bool to_stdout, std::string& output,
                        std::string& folder);
  // If -o names a folder, puts the result of the single input `given` into it under its own name.
  void EnterFolder(const std::string& given, std::string& output, std::string& folder);
  void DeclareInputs(CommandLine& line, const std::string& place, const std::string& text,
                     const std::string& keep_going_text = "");

  InputOptions inputs_;
  std::string place_;
  std::string name_;                 // name of the input that this copy of the command reads
  bool leaves_parents_ = false;      // true: results lie directly in the folder of -o
  std::vector<std::string> joined_;  // all inputs if they are joined, otherwise one
};

// This hint follows a failure that ends a run over several inputs.
inline constexpr const char* kGoOnHint = "hint: --keep-going goes on with the other inputs";

// Base class of commands: ForEachInput<Inspect>, or ForEachInput<Inspect, Base> if commands share a
// base.
template <typename Self, typename Base = EachCommand>
class ForEachInput : public Base {
 public:
  std::unique_ptr<EachCommand> Copy() const override {
    return std::make_unique<Self>(static_cast<const Self&>(*this));
  }
};

// Runs the command `name` over all given inputs. `files` receives the files of one input;
// `parameters` are the options that were set.
ExitStatus RunEach(std::string_view name, EachCommand& command,
                   const std::vector<std::string>& parameters, CommandFiles& files,
                   Context& context);

// Returns the category of the failure that is being handled, after it was reported.
int StatusOfFailure(Console& console, const std::string& file = "");

}  // namespace kv
