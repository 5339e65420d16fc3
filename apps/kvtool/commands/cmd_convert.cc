// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool convert`: reads a cache in one format and writes it in another.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "formats/key_pairs.h"
#include "lib/core/base/output.h"
#include "lib/core/snapshot/cast.h"

namespace kv {
namespace {

// The result of a run; its document has these fields.
struct Converted {
  std::vector<HashedFile> inputs;
  std::string to, output;
  uint64_t layers = 0, kv_bytes = 0;
  std::optional<std::string> pairs;
  std::vector<std::string> not_kept;
};

const Fields<Converted>& ConvertParamsFields() {
  static const Fields<Converted> fields = {
      {"to", "Name of the format that was written", &Converted::to},
      {"layers", "Number of layers that were written", &Converted::layers}};
  return fields;
}

const Fields<Converted>& ConvertedFields() {
  const auto itself = [](const Converted& of) -> const Converted& { return of; };
  static const Fields<Converted> fields = {
      {"inputs", "What was read", &Converted::inputs, HashedFileFields()},
      {"params", "Parameters of the run", itself, ConvertParamsFields()},
      {"output", "File or folder that was written", &Converted::output},
      {"kv_bytes", "Bytes of K and V that were written", &Converted::kv_bytes},
      {"rope_pairs", "How the values of K were reordered; null: not reordered", &Converted::pairs},
      {"not_kept", "Facts of this snapshot that the format cannot express", &Converted::not_kept}};
  return fields;
}

class Convert : public ForEachInput<Convert> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(line, "IN", "Snapshots: files, folders, '-' for stdin");
    line.Add("--to", to_, "Format to write (see kvtool formats; default: the ending of -o)")
        .Suggest(WritableFormats());
    line.Add("-o,--output", output_, "File or folder to write");
    line.Add("--output-dir", output_dir_,
             "Folder for the results of many inputs, each called IN.FORMAT; relative names keep "
             "their folders");
    line.AddFlag("-f,--force", force_, "Overwrite the output");
    DeclareWriting(line);
    selection_.Declare(line);
    line.Add("--sequence", sequence_, "Only the cells of one sequence")
        .Between(0, INT32_MAX)
        .Group("Selecting parts");
    snapshot_.Declare(line);
    report_.Declare(line);
  }

  bool HasOutputDir() const override { return true; }
  void Continue() override { force_ = true; }
  OpenOptions Reading() const override { return snapshot_.WithLimit(); }

  void PlaceResults(const CommandInputs& inputs) override {
    TakeOutputFolder(inputs, false, output_, output_dir_);
  }

  void TakeRuns() override {
    const std::string given = input_;
    TakeRun(input_, snapshot_);
    if (to_.empty()) TakeFormatOfOutput();
    if (!HasTrait(to_, kWritesFolder)) EnterFolder(given, output_, output_dir_);
    if (output_.empty() == output_dir_.empty()) {
      throw Error(Finding::kUsage, output_.empty() ? "--output or --output-dir is required"
                                                   : "give one of -o and --output-dir");
    }
    if (!output_dir_.empty()) {
      output_ = (std::filesystem::path(output_dir_) / (name_ + "." + to_)).string();
    }
  }

  void Files(CommandFiles& files) const override {
    files.Writes(output_, output_dir_.empty() ? std::string("-o")
                                              : fmt::format("the result of {}", Printable(input_)));
    Command::Files(files);
  }

  ExitStatus Run(Context& context) override {
    const FormatEntry& format = WritableFormat(to_);
    Selection selection = selection_.Resolve();
    if (!selection.keys || !selection.values)
      throw Error(Finding::kUsage, "--kv: convert always writes both K and V");
    if ((!v_order_.empty() || !version_.empty()) && !format.has_choices) {
      throw Error(Finding::kUsage, "{}: {} has no such choice",
                  v_order_.empty() ? "--target-version" : "--v-order", to_);
    }
    const OpenOptions options = snapshot_.Resolve(flags_for());
    Snapshot snapshot = Select(OpenSnapshot(snapshot_.Open(input_), options), selection);
    if (sequence_) snapshot = SelectSequence(std::move(snapshot), *sequence_);
    WarnAboutNotes(snapshot.notes, input_, context.console);
    if (!dtype_.empty()) {
      ThreadPool pool(context.global.thread_count());
      snapshot = CastSnapshot(std::move(snapshot), ParseValueType(), pool);
    }
    if (!v_order_.empty()) snapshot.storage["v_order"] = v_order_;
    snapshot.storage.erase("version");
    if (!version_.empty()) snapshot.storage["version"] = version_;
    std::string pairs;
    if (!output_dir_.empty()) {
      std::error_code ignored;  // a missing folder is reported when the result is created
      output::MakeFolders(std::filesystem::path(output_).parent_path(), ignored);
    }
    try {
      pairs = FitKeyPairs(format.pairs, rope_pairs_, options.geometry, snapshot);
      format.write(snapshot, output_, RulesFor(force_, input_, snapshot.source));
    } catch (Error& error) {
      throw error.File(input_);
    }
    if (!pairs.empty()) context.console.Say(fmt::format("{}: {}", output_, pairs));
    const std::vector<std::string> not_kept =
        format.not_kept == nullptr ? std::vector<std::string>() : format.not_kept(snapshot);
    for (const std::string& what : not_kept)
      context.console.Say(fmt::format("{}: not kept: {}", Printable(output_), Printable(what)));

    const Converted result = {{HashedFile::Of(snapshot.source)},
                              to_,
                              output_,
                              snapshot.layers.size(),
                              snapshot.kv_bytes(),
                              IfAny(pairs),
                              not_kept};
    report_.Emit(context.console, "convert", ConvertedFields, result, RulesFor(force_));
    if (!report_.json) {
      context.console.Say(fmt::format("{}: {}, {} of K and V, from {} to {}", Printable(output_),
                                      Plural(snapshot.layers.size(), "layer"),
                                      HumanBytes(snapshot.kv_bytes()), snapshot.format, to_));
    }
    return kDone;
  }

 private:
  void TakeFormatOfOutput() {
    const std::string ending = std::filesystem::path(output_).extension().string();
    const std::vector<std::string> formats = WritableFormats();
    if (!ending.empty() && std::ranges::count(formats, ending.substr(1)) > 0) {
      to_ = ending.substr(1);
      return;
    }
    throw Error(Finding::kUsage, "--to is required: one of {}", fmt::join(formats, ", "))
        .Hint("-o FILE names a format by its ending: -o cache.safetensors");
  }

  void DeclareWriting(CommandLine& line) {
    const CommandLine::Heading heading(line, "Writing");
    line.Add("--dtype", dtype_, "Convert values to f32, f16 or bf16 (default: as they are)");
    line.Add("--v-order", v_order_,
             "V of a llama.cpp state: rows (flash attention) or transposed (default: as the "
             "source has it, else rows)")
        .OneOf({"rows", "transposed"});
    line.Add("--target-version", version_,
             "Version of the format or engine to write for, e.g. b6122 (default: newest)");
    line.Add("--rope-pairs", rope_pairs_,
             "Order of K's RoPE pairs in the output: neighbours (2i, 2i+1), halves (i, i+dim/2), "
             "FROM:TO, keep (default: as readers of the format expect it for the model's "
             "architecture)");
  }

  DType ParseValueType() const {
    if (const std::optional<DType> dtype = ParseDType(dtype_)) return *dtype;
    throw Error(Finding::kUsage, "--dtype '{}': expected f32, f16 or bf16", dtype_);
  }

  std::string to_, output_, output_dir_, dtype_, v_order_, version_, rope_pairs_;
  std::optional<int32_t> sequence_;
  bool force_ = false;
  SelectionOptions selection_;
};

}  // namespace

const FieldTable& ConvertFields() { return ConvertedFields(); }

std::unique_ptr<Command> MakeConvert() { return std::make_unique<Convert>(); }

}  // namespace kv
