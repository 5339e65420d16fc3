// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/doctor/doctor.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/documents/transform_report.h"
#include "formats/kvx/kvx.h"
#include "lib/core/snapshot/cast.h"
#include "lib/study/statistics/tensor_stats.h"

namespace kv {
namespace {

class Inspect : public ForEachInput<Inspect> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(
        line, "FILE",
        "Snapshots: files, folders, '-' for stdin; or one trace, plan, frame, store, or weights");
    line.AddFlag("--stats", with_stats_,
                 "Read every value: ranges, NaNs, entropy per byte plane, predicted ratio");
    line.AddFlag("--tensors", with_tensors_, "One line per layer even when all are alike");
    line.AddFlag("--cells", with_cells_,
                 "Every cell of the cache: its position, and the sequences that it belongs to");
    snapshot_.Declare(line);
    page_.Declare(line, " of the statistics, which implies --stats");
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    files.Reads(joined_);
    snapshot_.Files(files);
    page_.Files(files);
    report_.Files(files);
  }

  bool ContinuesAfterFailure() const override { return true; }
  bool JoinsInputs() const override { return page_.wanted(); }
  OpenOptions Reading() const override { return snapshot_.WithLimit(); }

  bool TakesStores() const override { return true; }

  ExitStatus Run(Context& context) override {
    Value::List all;
    report::Page page("Statistics of the values", joined_.size() == 1 ? input_ : "");
    ExitStatus status = kDone;
    for (const std::string& file : joined_) {
      try {
        all.push_back(Show(file, context.console, page));
      } catch (Error& error) {
        // A cache that is damaged, or that options contradict, is still reported as a cache.
        const bool is_other = error.finding() == Finding::kUnknownFormat ||
                              error.finding() == Finding::kUnsupportedKind ||
                              error.finding() == Finding::kOpenFailed;
        if (joined_.size() == 1 && context.run_as && is_other) {
          const OtherKind* other = FindOtherKind(file);
          if (other != nullptr && !other->inspect.empty())
            return context.run_as(other->inspect, file);
        }
        context.console.Report(error.File(file));
        status = Worse(status, ExitStatusFor(error.code()));
      }
    }
    const bool shown = !all.empty();
    if (shown) report_.Emit(context.console, "inspect", all);
    if (shown && page_.wanted()) {
      page_.Write(page, *this, context.console, RulesFor(report_.force));
    }
    return status;
  }

 private:
  // Prints what a file holds, adds it to the page, and returns its document.
  Value Show(const std::string& file, Console& console, report::Page& page) const {
    const bool with_stats = with_stats_ || page_.wanted();
    std::string path = file;
    SnapshotOptions reading = snapshot_;
    const std::optional<RecordedRun> run = TakeRun(path, reading);
    OpenOptions options = reading.Resolve(flags_for());
    options.metadata_only = !with_stats;
    options.any_batch = true;
    const Source source = reading.Open(path);
    if (std::optional<Value> learnt = ShowLearnt(source, console)) return std::move(*learnt);
    const Snapshot snapshot = OpenSnapshot(source, options);
    SnapshotDescription described = {snapshot, with_cells_, {}, run};
    if (run && !report_.json) console.Data(RunText(*run, options));
    if (!report_.json) console.Data(DescribeText(snapshot, console, with_tensors_));
    if (!report_.json && with_cells_) console.Data("\n" + CellsText(snapshot));
    if (joined_.size() > 1 && page_.wanted()) page.Heading(file);
    if (with_stats) described.stats = FileStats(snapshot, console, page);
    WarnAboutNotes(snapshot.notes, path, console);
    // For a file with a million tensors the document costs more than everything else, so it is
    // made only on request.
    return report_.wanted() ? SnapshotDescriptionFields().Object(described)
                            : Value(Value::Object());
  }

  // Shows a profile or a transform; nothing for other files. The document has the keys of a cache,
  // without a layer.
  std::optional<Value> ShowLearnt(const Source& source, Console& console) const {
    if (source.files.size() != 1) return std::nullopt;
    const ByteSpan file = source.files[0].data->bytes();
    Snapshot described;
    described.source = source;
    if (Profile::HasMagic(file)) {
      const auto profile = Profile::Read(file);
      if (!report_.json) console.Data(ProfileText(*profile));
      described.format = "kvp";
      described.model = profile->name();
      return SnapshotDescriptionFields().Object({described, false, {}, {}, profile.get()});
    }
    if (!LooksLikeTransform(file)) return std::nullopt;
    const Transform transform = ReadTransform(file);
    if (!report_.json) console.Data(TransformText(transform));
    described.format = "kvx";
    described.model = transform.model;
    return SnapshotDescriptionFields().Object({described, false, {}, {}, nullptr, &transform});
  }

  std::vector<LayerStats> FileStats(const Snapshot& snapshot, Console& console,
                                    report::Page& page) const {
    snapshot.CheckContent();
    const std::string rotated = HadamardRemark(snapshot);
    if (!rotated.empty()) console.Warn(snapshot.source.path, rotated);
    std::vector<LayerStats> layers;
    for (const LayerKv& layer : snapshot.layers) {
      LayerStats& of = layers.emplace_back(LayerStats{layer.index});
      of.k = MeasureTensor(snapshot, layer.k, false);
      if (layer.v) of.v = MeasureTensor(snapshot, *layer.v, true);
    }
    if (with_stats_ && !report_.json) console.Data("\n" + Table(StatsTable(layers)).Text("  "));
    if (page_.wanted()) {
      // The page of several files has no subtitle, because the figure would be the first file's.
      if (joined_.size() > 1 && page.pictures().empty()) page.FeatureText(snapshot.source.path);
      AddStats(layers, page);
    }
    return layers;
  }

  bool with_stats_ = false, with_tensors_ = false, with_cells_ = false;
};

}  // namespace

const FieldTable& InspectFields() { return SnapshotDescriptionFields(); }

std::unique_ptr<Command> MakeInspect() { return std::make_unique<Inspect>(); }

}  // namespace kv
