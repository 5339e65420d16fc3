// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands.h"

namespace kv {
namespace {

class Convert : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_option("IN", input_, "Snapshot: file, folder or '-'")->required();
    app.add_option("--to", to_, "Format to write (see kvtool formats)")->required();
    app.add_option("-o,--output", output_, "File or folder to write")->required();
    app.add_flag("-f,--force", force_, "Overwrite the output");
    selection_.Declare(app);
    snapshot_.Declare(app);
    report_.Declare(app);
  }

  ExitStatus Run(Context& context) override {
    const FormatEntry& format = WritableFormat(to_);
    const Overwrite overwrite = force_ ? Overwrite::kAllow : Overwrite::kRefuse;
    Selection selection = selection_.Resolve();
    if (!selection.keys || !selection.values)
      throw Error(Finding::kUsage, "--kv: convert writes K and V");
    const Snapshot snapshot =
        Select(OpenSnapshot(Source::Open(input_), snapshot_.Resolve()), selection);
    for (const Note& note : snapshot.notes) {
      if (note.is_warning) context.console.Warn(input_, note.text);
    }
    format.write(snapshot, output_, overwrite);

    nlohmann::ordered_json document = ReportHeader("convert");
    document["inputs"] = {InputRecord(snapshot.source)};
    document["params"] = {{"to", to_}, {"layers", snapshot.layers.size()}};
    document["output"] = output_;
    document["kv_bytes"] = snapshot.kv_bytes();
    report_.Emit(context.console, document, overwrite);
    if (!report_.json) {
      context.console.Say(fmt::format("{}: {} layers, {} of K and V, from {} to {}", output_,
                                      snapshot.layers.size(), HumanBytes(snapshot.kv_bytes()),
                                      snapshot.format, to_));
    }
    return kDone;
  }

 private:
  std::string input_, to_, output_;
  bool force_ = false;
  SelectionOptions selection_;
  SnapshotOptions snapshot_;
  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeConvert() { return std::make_unique<Convert>(); }

}  // namespace kv
