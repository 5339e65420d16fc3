// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool diff`: the first differences of two caches, and figures of all.
#include <fmt/format.h>

#include "apps/kvtool/commands.h"
#include "formats/registry.h"
#include "lib/report/diff_report.h"

namespace kv {
namespace {

// Returns "0.5 (0x3800)"; for a block type only the value.
std::string ValueText(DType dtype, double value, uint64_t bits) {
  const std::string number = fmt::format("{:.9g}", value);
  return IsBlockQuantised(dtype) ? number : fmt::format("{} ({})", number, BitsText(dtype, bits));
}

// The result of a run; its document has these fields.
struct Diffed {
  struct Input : HashedFile {
    std::string format;
  };
  std::vector<Input> inputs;
  std::optional<double> atol;
  const SnapshotDiff& diff;
};

const Fields<Diffed>& DiffParamsFields() {
  static const Fields<Diffed> fields = {
      {"atol", "Tolerance of values; null: stored bits decide", &Diffed::atol, AtLeast(0)}};
  return fields;
}

const Fields<Diffed>& DiffedFields() {
  using Input = Diffed::Input;
  static const Fields<Input> diff_input = {
      Fields<Input>::Inline([](const Input& of) -> const HashedFile& { return of; },
                            HashedFileFields()),
      {"format", "Format that the input was read as", &Input::format}};
  static const Fields<Diffed> fields = {
      {"inputs",
       "The two snapshots, A and B",
       &Diffed::inputs,
       diff_input,
       {.items = 2, .most_items = 2}},
      {"params", "Parameters of the run", [](const Diffed& of) -> const Diffed& { return of; },
       DiffParamsFields()},
      Fields<Diffed>::Inline([](const Diffed& of) -> const SnapshotDiff& { return of.diff; },
                             SnapshotDiffFields())};
  return fields;
}

class Diff : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("A", a_, "Snapshot in any readable format").Required();
    line.Add("B", b_, "Snapshot in any readable format").Required();
    line.Add("--atol", atol_,
             "Compare values within this tolerance; without it stored bits decide, so that -0, NaN "
             "payloads and element types count");
    const char* group = "Reading the snapshot";
    line.Add("--from-b", from_b_, "Format of B, if it is not that of A; auto detects it")
        .Group(group);
    line.Add("--layout-b", layout_b_, "Axes of the arrays of B, if they are not those of A")
        .Group(group);
    selection_.Declare(line);
    snapshot_.Declare(line);
    page_.Declare(line);
    report_.Declare(line);
  }

  void TakeRuns() override {
    TakeRun(a_, snapshot_);
    TakeRun(b_, snapshot_);
  }

  void Files(CommandFiles& files) const override {
    files.Reads({a_, b_});
    Command::Files(files);
  }

  ExitStatus Run(Context& context) override {
    if (atol_ && !(*atol_ >= 0))
      throw Error(Finding::kUsage, "--atol {}: expected 0 or more", *atol_);
    const Selection selection = selection_.Resolve();
    const OpenOptions options = snapshot_.Resolve(FlagsFor::kSeveral);
    OpenOptions options_b = options;
    if (!from_b_.empty() || !layout_b_.empty()) {
      options_b.from = from_b_ == "auto" ? "" : from_b_;
      options_b.layout = layout_b_;
      if (!HasTrait(from_b_, kReadsRaw)) options_b.raw.clear();
    }
    const Snapshot a = Select(OpenSnapshot(snapshot_.Open(a_), options), selection);
    const Snapshot b = Select(OpenSnapshot(snapshot_.Open(b_), options_b), selection);
    WarnAboutNotes(a, a_, context.console);
    WarnAboutNotes(b, b_, context.console);

    ThreadPool pool(context.global.thread_count());
    ProgressLine progress(context.console, context.global.progress_when(), a_);
    DiffOptions compared{.atol = atol_, .keys = selection.keys, .values = selection.values};
    if (page_.wanted()) compared.token_bins = report::MapColumns(UINT64_MAX, a.layers.size());
    const SnapshotDiff diff = DiffSnapshots(a, b, compared, pool, &progress);
    if (!report_.json && context.console.verbosity > -1) Print(diff, context.console);
    if (report_.wanted()) {
      const Diffed result = {
          {{HashedFile::Of(a.source), a.format}, {HashedFile::Of(b.source), b.format}},
          atol_,
          diff};
      report_.Emit(context.console, "diff", DiffedFields, result);
    }
    if (page_.wanted()) {
      page_.Write(DiffPage(a_, b_, diff), *this, context.console, RulesFor(report_.force));
    }
    return diff.equal() ? kDone : kVerdict;
  }

 private:
  static void WarnAboutNotes(const Snapshot& snapshot, const std::string& path, Console& console) {
    for (const Note& note : snapshot.notes) {
      if (note.is_warning) {
        console.Warn(path, note.text);
      } else {
        console.Say(fmt::format("{}: {}", Printable(path), Printable(note.text)), 1);
      }
    }
  }

  void Print(const SnapshotDiff& diff, Console& console) const {
    for (const std::string& text : diff.structure) console.Line("  " + Printable(text));
    for (const std::string& text : diff.notes)
      console.Line("  " + Printable(text) + " (does not count)");
    const TextTable table = DiffTable(diff);
    if (!table.rows.empty()) console.Data(Table(table).Text("  "));
    const FirstDifference first = FindFirst(diff);
    if (first.diff != nullptr) {
      const DifferingValue& at = *first.diff->first;
      console.Line(fmt::format("  first{}: layer {} {} {}: {} and {}",
                               at.is_beyond ? "" : ", within the tolerance", first.layer,
                               first.part, PlaceText(*first.diff),
                               ValueText(first.diff->a_dtype, at.a, at.a_bits),
                               ValueText(first.diff->b_dtype, at.b, at.b_bits)));
    }
    console.Line(
        fmt::format("{} and {}: {}", Printable(a_), Printable(b_), VerdictText(diff, console)));
  }

  static std::string VerdictText(const SnapshotDiff& diff, Console& console) {
    const TensorDiff total = diff.Total();
    switch (diff.verdict()) {
      case DiffVerdict::kIdentical:
        return fmt::format("{}: {}, {} values", console.Verdict(true, "identical"),
                           Plural(diff.layers.size(), "layer"), total.values);
      case DiffVerdict::kEqualValues:
        return fmt::format("{}, not in bytes: all {} values, stored as {}{}",
                           console.Verdict(diff.equal(), "equal in value"), total.values,
                           TypesText(diff), diff.equal() ? "" : "; --atol 0 accepts that as equal");
      case DiffVerdict::kWithinTolerance:
        return fmt::format("{}, {} of {} values differ",
                           console.Verdict(true, "equal within the tolerance"), total.different,
                           total.values);
      case DiffVerdict::kDifferent:
        break;
    }
    if (total.beyond == 0) {
      return fmt::format("{} as above; all {} values that A and B both have are {}",
                         console.Verdict(false, "DIFFERENT"), total.values,
                         total.different == 0 ? "equal" : "equal within the tolerance");
    }
    const bool tolerated = diff.by_value && total.beyond < total.different;
    return fmt::format("{}, {} of {} values{}", console.Verdict(false, "DIFFERENT"), total.beyond,
                       total.values, tolerated ? " beyond the tolerance" : "");
  }

  // Describes the first tensors whose types differ.
  static std::string TypesText(const SnapshotDiff& diff) {
    for (const LayerDiff& layer : diff.layers) {
      for (const auto* part : {&layer.k, &layer.v}) {
        if (!*part || (*part)->same_dtype()) continue;
        return fmt::format("{} and {}", Name((*part)->a_dtype), Name((*part)->b_dtype));
      }
    }
    return "?";
  }

  std::string a_, b_, from_b_, layout_b_;
  std::optional<double> atol_;
  SelectionOptions selection_;
};

}  // namespace

const FieldTable& DiffFields() { return DiffedFields(); }

std::unique_ptr<Command> MakeDiff() { return std::make_unique<Diff>(); }

}  // namespace kv
