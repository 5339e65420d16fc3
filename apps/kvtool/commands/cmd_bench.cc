// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool bench`: times levels and other compressors on a cache's own chunks, beside models'
// bounds.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "formats/registry.h"
#include "lib/core/snapshot/layout.h"
#include "lib/report/html.h"
#include "lib/report/svg.h"
#include "lib/study/bench/bound.h"
#include "lib/study/bench/contest.h"

namespace kv {
namespace {

// Returns chunks of K and V as an archive would cut them, from all tensors, up to `most` bytes.
std::vector<ContestChunk> CutChunks(const Snapshot& snapshot, uint64_t chunk_bytes, uint64_t most) {
  struct Place {
    const KvTensor* tensor;
    uint32_t layer;
    bool is_value;
  };
  std::vector<Place> places;
  uint64_t total = 0;
  for (const LayerKv& layer : snapshot.layers) {
    places.push_back({&layer.k, layer.index, false});
    if (layer.v) places.push_back({&*layer.v, layer.index, true});
  }
  for (const Place& place : places) total += place.tensor->bytes();
  // Takes the same share of each tensor, from its first tokens.
  const double share = total <= most ? 1 : static_cast<double>(most) / static_cast<double>(total);
  const RowOrders orders(snapshot);
  std::vector<ContestChunk> chunks;
  for (const Place& place : places) {
    const KvTensor& tensor = *place.tensor;
    if (tensor.tokens() == 0 || tensor.row_bytes() == 0) continue;
    const uint64_t tokens =
        std::max<uint64_t>(1, static_cast<uint64_t>(share * static_cast<double>(tensor.tokens())));
    const uint64_t step = std::max<uint64_t>(1, chunk_bytes / tensor.row_bytes());
    ForEachPiece(tokens, step, [&](uint64_t begin, uint64_t count) {
      chunks.push_back(MakeContestChunk(tensor, place.layer, place.is_value, begin, count, orders));
    });
  }
  return chunks;
}

double Rate(uint64_t bytes, double seconds) {
  return static_cast<double>(bytes) / 1e6 / std::max(seconds, 1e-9);
}

double Median(const std::vector<double>& sorted) { return sorted[sorted.size() / 2]; }

// The result of a level or another compressor, and the sizes that models predict.
struct Benched {
  struct Params {
    uint64_t chunk_bytes = 0;
    int rounds = 0;
  };
  struct Speed {
    double fastest = 0, median = 0;
  };
  struct Speeds {
    Speed encode, decode;
  };
  struct Part {
    uint64_t raw_bytes = 0, stored_bytes = 0;
    std::optional<double> worst_chunk;
    std::optional<Speeds> speeds;
  };
  struct Entrant {
    std::string name;
    bool is_peer = false;
    std::optional<uint64_t> rounds;
    Part k, v, both;
  };
  struct Bound {
    std::string_view model;
    Saving k, v;
  };
  std::vector<HashedFile> inputs;
  Params params;
  uint64_t chunks = 0;
  std::vector<Entrant> contestants;
  std::optional<std::vector<Bound>> bounds;
};

Benched::Speeds ComputeSpeeds(uint64_t bytes, const ContestTimes& times) {
  const auto of = [&](const std::vector<double>& seconds) -> Benched::Speed {
    return {Rate(bytes, seconds.front()), Rate(bytes, Median(seconds))};
  };
  return {of(times.encode_seconds), of(times.decode_seconds)};
}

const Fields<Benched::Speed>& BenchSpeedFields() {
  using Speed = Benched::Speed;
  static const Fields<Speed> fields = {
      {"fastest_mb_per_s",
       "Raw bytes per second of CPU time of one thread in the fastest round, in MB (1e6 bytes)",
       &Speed::fastest, AtLeast(0)},
      {"median_mb_per_s", "MB per second of CPU time of one thread in the median round",
       &Speed::median, AtLeast(0)}};
  return fields;
}

const Fields<Benched::Speeds>& BenchSpeedsFields() {
  using Speeds = Benched::Speeds;
  static const Fields<Speeds> fields = {
      {"encode", "Speed of coding; absent in deterministic output and where there are no bytes",
       &Speeds::encode, BenchSpeedFields()},
      {"decode", "Speed of decoding; absent in deterministic output and where there are no bytes",
       &Speeds::decode, BenchSpeedFields()}};
  return fields;
}

const Fields<Benched::Part>& BenchPartFields() {
  using Part = Benched::Part;
  static const Fields<Part> fields = {
      {"raw_bytes", "Bytes before coding", &Part::raw_bytes},
      {"stored_bytes", "Bytes after coding", &Part::stored_bytes},
      Fields<Part>::Inline(
          [](const Part& part) {
            return Saving{part.raw_bytes, part.stored_bytes};
          },
          SavingFields()),
      {"worst_chunk_to_compat",
       "Largest ratio of a chunk to the same chunk at compat; absent where compat did not run",
       &Part::worst_chunk, Absent()},
      Fields<Part>::Inline(&Part::speeds, BenchSpeedsFields())};
  return fields;
}

const Fields<Benched::Entrant>& BenchEntrantFields() {
  using Entrant = Benched::Entrant;
  static const Fields<Entrant> fields = {
      {"name", "Name of the level or of the other compressor", &Entrant::name},
      {"kind", "Whether it is a level of kvtool or another compressor",
       [](const Entrant& of) { return of.is_peer ? "peer" : "level"; }, OneOf("level", "peer")},
      {"rounds", "Number of rounds that were run, 1 if it is slow; absent in deterministic output",
       &Entrant::rounds, Absent(AtLeast(1))},
      {"k", "Result for K", &Entrant::k, BenchPartFields()},
      {"v", "Result for V", &Entrant::v, BenchPartFields()},
      Fields<Entrant>::Inline(
          [](const Entrant& of) {
            return Saving{of.both.raw_bytes, of.both.stored_bytes};
          },
          SavingFields()),
      Fields<Entrant>::Inline([](const Entrant& of) { return of.both.speeds; },
                              BenchSpeedsFields())};
  return fields;
}

const Fields<Saving>& BenchNeedFields() {
  static const Fields<Saving> fields = {
      {"raw_bytes", "Raw bytes of the f16 and bf16 chunks that have enough rows", &Saving::before},
      {"least_bytes", "Bytes that the model would need", &Saving::after},
      Fields<Saving>::Inline([](const Saving& of) { return of; }, SavingFields())};
  return fields;
}

const Fields<Benched::Bound>& BenchBoundFields() {
  using Bound = Benched::Bound;
  static const Fields<Bound> fields = {
      {"model",
       "alone: one table of signs, exponents and the next bits; above: one for each sign and "
       "exponent of the value above; mixed: an adaptive mixture of the distributions of level max "
       "and counters",
       &Bound::model, OneOf("alone", "above", "mixed")},
      {"k", "Bytes that the model would need for K", &Bound::k, BenchNeedFields()},
      {"v", "Bytes that the model would need for V", &Bound::v, BenchNeedFields()}};
  return fields;
}

const Fields<Benched>& BenchedFields() {
  using Params = Benched::Params;
  static const Fields<Params> bench_params = {
      {"chunk_bytes", "Largest size of a chunk in bytes", &Params::chunk_bytes, AtLeast(1)},
      {"rounds", "Number of rounds asked for", &Params::rounds, AtLeast(1)}};
  static const Fields<Benched> fields = {
      {"inputs", "What was read", &Benched::inputs, HashedFileFields()},
      {"params", "Parameters of the run", &Benched::params, bench_params},
      {"chunks", "Number of chunks of K and V that were coded", &Benched::chunks, AtLeast(1)},
      {"contestants", "Results of each level and of each other compressor", &Benched::contestants,
       BenchEntrantFields(), CsvRows()},
      {"bounds", "Bytes that models would need, tables included; absent without --bound",
       &Benched::bounds, BenchBoundFields(), Absent()}};
  return fields;
}

double Ratio(uint64_t raw, uint64_t stored) {
  return stored == 0 ? 0 : static_cast<double>(raw) / static_cast<double>(stored);
}

std::string RatioText(uint64_t raw, uint64_t stored) {
  return raw == 0 ? "-" : fmt::format("{:.3f}x", Ratio(raw, stored));
}

// Returns the rate in MiB/s.
double BinaryRate(uint64_t bytes, double seconds) { return Rate(bytes, seconds) * 1e6 / (1 << 20); }

std::vector<std::vector<std::string>> Rows(const std::vector<ContestResult>& results, bool timing) {
  std::vector<std::vector<std::string>> rows = {{"level", "K", "V", "both"}};
  if (timing) {
    rows[0].insert(rows[0].end(), {"encode MiB/s", "median", "decode MiB/s", "median"});
  }
  for (const ContestResult& result : results) {
    std::vector<std::string>& row = rows.emplace_back(std::vector<std::string>{result.name});
    for (const ContestPart& part : result.parts)
      row.push_back(RatioText(part.raw_bytes, part.stored_bytes));
    row.push_back(RatioText(result.raw_bytes(), result.stored_bytes()));
    if (!timing) continue;
    for (const std::vector<double>* seconds :
         {&result.both.encode_seconds, &result.both.decode_seconds}) {
      row.push_back(format::Rate(BinaryRate(result.raw_bytes(), seconds->front())));
      row.push_back(format::Rate(BinaryRate(result.raw_bytes(), Median(*seconds))));
    }
  }
  return rows;
}

constexpr double kPatience = 10;  // seconds

// Bytes that models need for K and for V.
struct BoundSums {
  std::array<uint64_t, 2> raw_bytes{};
  std::array<ChunkBounds, 2> bits{};

  static constexpr std::array kNames = {"alone", "above", "mixed"};
  uint64_t Needed(size_t model, size_t part) const {
    const ChunkBounds& one = bits[part];
    const double sum = model == 0 ? one.alone_bits : model == 1 ? one.above_bits : one.mixed_bits;
    return static_cast<uint64_t>(std::ceil(sum / 8));
  }
};

BoundSums BoundsOfAll(const std::vector<ContestChunk>& chunks) {
  BoundSums sums;
  Bytes ordered;
  for (const ContestChunk& chunk : chunks) {
    const bool by_cells = chunk.order != nullptr && chunk.order->moves;
    if (by_cells) {
      ordered.resize(chunk.raw.size());
      chunk.order->Apply(chunk.raw, ordered);
    }
    const std::optional<ChunkBounds> bounds =
        ComputeBounds(chunk.head.shape(), by_cells ? ordered : chunk.raw);
    if (!bounds) continue;
    const size_t part = chunk.is_value() ? 1 : 0;
    sums.raw_bytes[part] += chunk.raw.size();
    sums.bits[part].alone_bits += bounds->alone_bits;
    sums.bits[part].above_bits += bounds->above_bits;
    sums.bits[part].mixed_bits += bounds->mixed_bits;
  }
  return sums;
}

class Bench : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("FILE", input_, "Snapshot: file, folder, '-' for stdin").Required();
    line.Add("--level|--levels", levels_,
             "Levels to measure (default: all, from compat, which only archives have, to max); "
             "LEVEL-blocks: in blocks that a device decodes")
        .Separator(',')
        .OneOf({"compat", "fast", "default", "high", "max", "fast-blocks", "default-blocks",
                "high-blocks", "max-blocks"});
    line.AddFlag("--peers", peers_, "Also measure zstd, exponent Huffman and, if installed, blosc");
    line.AddFlag("--slow-peers|--slow", slow_, "With --peers: also zstd -19");
    line.AddFlag(
        "--bound", bound_,
        "Also show the bytes that entropy models would need, their tables included: one table, "
        "tables by the value above, an adaptive mixture (f16 and bf16; 1 to 2 MB/s)");
    line.Add("--rounds", rounds_,
             "Rounds of all contestants; the fastest and the median are reported (a contestant "
             "that takes over 10 s runs once)")
        .Between(1, 1000)
        .ShowDefault();
    line.Add("--chunk-bytes|--chunk", chunk_,
             "Bytes of a chunk (default: as in compress, 1MiB, and 4MiB at high and max)")
        .Check(CheckedBy([](const std::string& text) { ParseSize(text, "--chunk-bytes"); }));
    line.Add("--sample-bytes|--most", most_, "Bytes of K and V to measure on (default: 64MiB)")
        .Check(CheckedBy([](const std::string& text) { ParseSize(text, "--sample-bytes"); }));
    page_.Declare(line);
    line.AddFlag("-f,--force", force_, "Overwrite outputs");
    snapshot_.Declare(line);
    report_.Declare(line);
  }

  void TakeRuns() override { TakeRun(input_, snapshot_); }

  ExitStatus Run(Context& context) override {
    OpenOptions options = snapshot_.Resolve();
    options.any_batch = options.files_for_others = true;
    const std::vector<Effort> levels = ChosenLevels();
    const GivenProfile* profile = ProfileToCodeWith(options, levels);
    const Snapshot snapshot = OpenSnapshot(snapshot_.Open(input_), options);
    WarnAboutNotes(snapshot.notes, input_, context.console);
    const uint64_t chunk_bytes = ParseSize(chunk_, "--chunk-bytes"),
                   most = ParseSize(most_, "--sample-bytes");
    if (chunk_bytes == 0 || chunk_bytes > (8 << 20)) {
      throw Error(Finding::kUsage, "--chunk-bytes: 1 byte to 8MiB expected");
    }
    const std::vector<ContestChunk> chunks = CutChunks(snapshot, chunk_bytes, most);
    if (chunks.empty())
      throw Error(Finding::kUnsupportedKind, "no K or V to measure on").File(input_);
    std::vector<Contestant> contestants =
        LevelContestants(levels, profile == nullptr ? nullptr : profile->profile);
    for (Contestant& level : BlockContestants()) {
      if (std::count(levels_.begin(), levels_.end(), level.name) > 0)
        contestants.push_back(std::move(level));
    }
    if (peers_) {
      // Splitting into halves only makes sense for 16-bit floats.
      const bool halves = std::all_of(chunks.begin(), chunks.end(), [](const ContestChunk& chunk) {
        return chunk.dtype() == DType::kF16 || chunk.dtype() == DType::kBF16;
      });
      for (Contestant& peer : PeerContestants(slow_)) {
        if (halves || peer.name.find("exponent") == std::string::npos)
          contestants.push_back(std::move(peer));
      }
      if (contestants.back().name.find("blosc") == std::string::npos)
        context.console.Say("blosc is left out: no libblosc.so.1 (Debian: libblosc1)");
    }
    ProgressLine progress(context.console, context.global.progress_when(), input_);
    const std::vector<ContestResult> results =
        RunContest(chunks, contestants, rounds_, kPatience, &progress);
    const bool timing = !context.global.deterministic;
    const auto rows = Rows(results, timing);
    std::optional<BoundSums> bounds;
    if (bound_) bounds = BoundsOfAll(chunks);
    if (!report_.json) {
      context.console.Line(Subtitle(chunks, results));
      Table table(rows[0]);
      for (size_t i = 1; i < rows.size(); ++i) table.Row(rows[i]);
      context.console.Data(table.Text());
      if (bounds) context.console.Data("\n" + BoundsText(*bounds));
    }
    Benched result = {{HashedFile::Of(snapshot.source)},
                      {chunk_bytes, rounds_},
                      chunks.size(),
                      ListEntrants(results, timing),
                      {}};
    if (bounds) result.bounds = BoundsIn(*bounds);
    report_.Emit(context.console, "bench", BenchedFields, result, RulesFor(force_));
    if (page_.wanted())
      page_.Write(MakePage(chunks, results, rows, timing), *this, context.console,
                  RulesFor(force_));
    return kDone;
  }

 private:
  std::vector<Effort> ChosenLevels() const {
    std::vector<Effort> levels;
    for (const Effort level : kAllLevels) {
      if (levels_.empty() || std::count(levels_.begin(), levels_.end(), Name(level)) > 0)
        levels.push_back(level);
    }
    return levels;
  }

  static std::string BoundsText(const BoundSums& sums) {
    Table table({"bound", "K", "V", "both"});
    for (size_t model = 0; model < BoundSums::kNames.size(); ++model) {
      const uint64_t k = sums.Needed(model, 0), v = sums.Needed(model, 1);
      table.Row({BoundSums::kNames[model], RatioText(sums.raw_bytes[0], k),
                 RatioText(sums.raw_bytes[1], v),
                 RatioText(sums.raw_bytes[0] + sums.raw_bytes[1], k + v)});
    }
    return table.Text();
  }

  static std::vector<Benched::Bound> BoundsIn(const BoundSums& sums) {
    std::vector<Benched::Bound> bounds;
    for (size_t model = 0; model < BoundSums::kNames.size(); ++model) {
      bounds.push_back({BoundSums::kNames[model],
                        {sums.raw_bytes[0], sums.Needed(model, 0)},
                        {sums.raw_bytes[1], sums.Needed(model, 1)}});
    }
    return bounds;
  }

  std::string Subtitle(const std::vector<ContestChunk>& chunks,
                       const std::vector<ContestResult>& results) const {
    return fmt::format(
        "{}: {} of K and V in {}, one thread, CPU time, {}", Printable(input_),
        HumanBytes(results[0].raw_bytes()), Plural(chunks.size(), "chunk"),
        rounds_ == 1 ? "1 round" : fmt::format("fastest and median of {} rounds", rounds_));
  }

  static std::vector<Benched::Entrant> ListEntrants(const std::vector<ContestResult>& results,
                                                    bool timing) {
    const bool has_compat = results[0].name == Name(Effort::kCompat);
    std::vector<Benched::Entrant> entrants;
    for (const ContestResult& result : results) {
      const auto part_of = [&](const ContestPart& part) {
        Benched::Part of{part.raw_bytes, part.stored_bytes, {}, {}};
        if (part.raw_bytes > 0 && has_compat) of.worst_chunk = part.worst_chunk;
        if (part.raw_bytes > 0 && timing) of.speeds = ComputeSpeeds(part.raw_bytes, part);
        return of;
      };
      Benched::Entrant& entrant = entrants.emplace_back();
      entrant.name = result.name;
      entrant.is_peer = result.is_peer;
      entrant.k = part_of(result.parts[0]);
      entrant.v = part_of(result.parts[1]);
      entrant.both = {result.raw_bytes(), result.stored_bytes(), {}, {}};
      if (!timing) continue;
      entrant.rounds = result.both.encode_seconds.size();
      entrant.both.speeds = ComputeSpeeds(result.raw_bytes(), result.both);
    }
    return entrants;
  }

  // Adds the ratios of each contestant, for a page without times.
  static void AddRatios(const std::vector<ContestResult>& results, report::Page& page) {
    report::LineChart chart;
    chart.title = "Ratio of each contestant";
    chart.x_label = "row of the table";
    chart.y_label = "original / compressed";
    chart.whole_x = true;
    chart.y_unit = report::Unit::kFactor;
    for (const size_t part : {0, 1}) {
      report::ChartSeries series{part == 0 ? "K" : "V", {}, false, false, false};
      for (size_t i = 0; i < results.size(); ++i) {
        const ContestPart& own = results[i].parts[part];
        if (own.raw_bytes == 0) continue;
        series.points.push_back({static_cast<double>(i + 1), Ratio(own.raw_bytes, own.stored_bytes),
                                 part == 0 ? results[i].name : ""});
      }
      if (!series.points.empty()) chart.series.push_back(std::move(series));
    }
    page.Figure(report::Render(chart), "Higher is better; 1 saves nothing.");
  }

  report::Page MakePage(const std::vector<ContestChunk>& chunks,
                        const std::vector<ContestResult>& results,
                        const std::vector<std::vector<std::string>>& rows, bool timing) const {
    report::Page page("Compression of " + input_, Subtitle(chunks, results));
    if (!timing) AddRatios(results, page);
    for (const size_t part : {0, 1}) {
      if (results[0].parts[part].raw_bytes == 0 || !timing) continue;
      for (const bool encode : {true, false}) {
        report::LineChart chart;
        chart.title = fmt::format("{}: ratio against {} speed", part == 0 ? "K" : "V",
                                  encode ? "encoding" : "decoding");
        chart.x_label = fmt::format("{}, MiB/s of one thread", encode ? "encoding" : "decoding");
        chart.y_label = "original / compressed";
        chart.log_x = true;
        chart.x_unit = report::Unit::kRate;
        chart.y_unit = report::Unit::kFactor;
        report::ChartSeries levels{"levels of kvtool", {}, true, false, false};
        report::ChartSeries peers{"others", {}, false, false, false};
        for (const ContestResult& result : results) {
          if (result.name == "memcpy") continue;
          const ContestPart& own = result.parts[part];
          const double seconds = (encode ? own.encode_seconds : own.decode_seconds).front();
          (result.is_peer ? peers : levels)
              .points.push_back({BinaryRate(own.raw_bytes, seconds),
                                 Ratio(own.raw_bytes, own.stored_bytes), result.name});
        }
        std::vector<report::ChartPoint> all = levels.points;
        all.insert(all.end(), peers.points.begin(), peers.points.end());
        chart.series = {
            levels, peers, {"the best", report::Frontier(std::move(all), false), false, true}};
        page.Figure(report::Render(chart), "Up and to the right is better.");
      }
    }
    page.Table(rows);
    return page;
  }

  std::string chunk_ = "1MiB", most_ = "64MiB";
  std::vector<std::string> levels_;
  int rounds_ = 5;
  bool peers_ = false, slow_ = false, bound_ = false, force_ = false;
};

}  // namespace

const FieldTable& BenchFields() { return BenchedFields(); }

std::unique_ptr<Command> MakeBench() { return std::make_unique<Bench>(); }

}  // namespace kv
