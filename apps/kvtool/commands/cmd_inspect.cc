// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "lib/core/snapshot/cast.h"
#include "lib/study/statistics/stats_page.h"

namespace kv {
namespace {

// A figure of no finite value is none.
std::string FigureText(double value, int digits) {
  return std::isnan(value) ? std::string(1, '-') : fmt::format("{:.{}g}", value, digits);
}

std::string StatsCells(const TensorStats& stats) {
  std::string planes;
  for (const double bits : stats.plane_entropy_bits)
    planes += fmt::format("{}{:.2f}", planes.empty() ? "" : " ", bits);
  return planes;
}

class Inspect : public EachOf<Inspect> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(line, "FILE", "Snapshots: files, folders, '-' for stdin");
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

  bool GoesOn() const override { return true; }
  bool JoinsInputs() const override { return page_.wanted(); }
  OpenOptions Reading() const override { return snapshot_.WithLimit(); }

  ExitStatus Run(Context& context) override {
    Value::List all;
    const bool with_stats = with_stats_ || page_.wanted();
    report::Page page("What the values are like", joined_.size() == 1 ? input_ : "");
    ExitStatus status = kDone;
    for (const std::string& file : joined_) {
      try {
        std::string path = file;
        SnapshotOptions reading = snapshot_;
        const std::optional<RecordedRun> run = TakeRun(path, reading);
        OpenOptions options = reading.Resolve(flags_for());
        options.metadata_only = !with_stats;
        options.any_batch = true;
        const Source source = reading.Open(path);
        if (source.files.size() == 1 && Profile::HasMagic(source.files[0].data->bytes())) {
          all.push_back(ShowProfile(source, context.console));
          continue;
        }
        const Snapshot snapshot = OpenSnapshot(source, options);
        SnapshotDescription described = {snapshot, with_cells_, {}, run};
        if (run && !report_.json) context.console.Data(RunText(*run, options));
        if (!report_.json)
          context.console.Data(DescribeText(snapshot, context.console, with_tensors_));
        if (!report_.json && with_cells_) context.console.Data("\n" + CellsText(snapshot));
        if (joined_.size() > 1 && page_.wanted()) page.Heading(file);
        if (with_stats) described.stats = FileStats(snapshot, context.console, page);
        WarnOf(snapshot.notes, path, context.console);
        // Of a file with a million tensors the document costs more than the rest.
        all.push_back(report_.wanted() ? SnapshotDescriptionFields().Object(described)
                                       : Value(Value::Object()));
      } catch (Error& error) {
        context.console.Report(error.File(file));
        status = Worse(status, StatusOf(error.code()));
      }
    }
    const bool shown = !all.empty();
    if (shown) report_.Emit(context.console, "inspect", all);
    if (shown && page_.wanted()) {
      page.Footer(MadeBy());
      page_.Write(page, *this, context.console, RulesFor(report_.force));
    }
    return status;
  }

 private:
  Value ShowProfile(const Source& source, Console& console) const {
    const auto profile = Profile::Read(source.files[0].data->bytes());
    if (!report_.json) console.Data(ProfileText(*profile));
    Snapshot described;  // of the same keys, without a layer
    described.source = source;
    described.format = "kvp";
    described.model = profile->name();
    return SnapshotDescriptionFields().Object({described, false, {}, {}, profile.get()});
  }

  std::vector<LayerStats> FileStats(const Snapshot& snapshot, Console& console,
                                    report::Page& page) const {
    snapshot.CheckContent();
    const std::string rotated = HadamardRemark(snapshot);
    if (!rotated.empty()) console.Warn(snapshot.source.path, rotated);
    Table table({"layer", "kv", "min", "max", "mean", "sd", "NaN", "Inf", "zeros",
                 "bits per byte plane", "predicted"});
    std::vector<LayerStats> layers;
    for (const LayerKv& layer : snapshot.layers) {
      const auto add = [&](const KvTensor& tensor, const char* which, bool is_value) {
        const TensorStats stats = StatsOf(snapshot, tensor, is_value);
        (is_value ? layers.back().v : layers.back().k) = stats;
        table.Row({std::to_string(layer.index), which, FigureText(stats.min, 4),
                   FigureText(stats.max, 4), FigureText(stats.mean, 3),
                   FigureText(stats.standard_deviation, 3), std::to_string(stats.nan_count),
                   std::to_string(stats.infinite_count), std::to_string(stats.zero_count),
                   StatsCells(stats), fmt::format("{:.3f}x", stats.predicted_ratio)});
      };
      layers.push_back({layer.index});
      add(layer.k, "k", false);
      if (layer.v) add(*layer.v, "v", true);
    }
    if (with_stats_ && !report_.json) console.Data("\n" + table.Text("  "));
    if (page_.wanted()) AddStats(layers, page);
    return layers;
  }

  bool with_stats_ = false, with_tensors_ = false, with_cells_ = false;
};

}  // namespace

const FieldTable& InspectFields() { return SnapshotDescriptionFields(); }

std::unique_ptr<Command> MakeInspect() { return std::make_unique<Inspect>(); }

}  // namespace kv
