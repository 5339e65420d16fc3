// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The document and page of replay-lossless.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/number.h"
#include "lib/engines/mnn/runtime/replay.h"
#include "lib/report/svg.h"

namespace kv::mnn::runtime {
namespace {

constexpr size_t kMaxPoints = 400;  // points of one line; a screen shows fewer

std::optional<double> SafeRatio(uint64_t raw, uint64_t blob) {
  if (blob == 0) return std::nullopt;
  return static_cast<double>(raw) / static_cast<double>(blob);
}

Value NumberOrNull(double value) {
  if (value == static_cast<double>(static_cast<int64_t>(value))) return static_cast<int64_t>(value);
  return ShortestDouble(static_cast<float>(value));
}

Value ParamsToValue(const Report& report) {
  const ReplayResult& result = report.result;
  Value params = Value::Object{{"h2o_enable", result.h2o_enabled}};
  mnn::h2o::ForEachParameter(result.h2o, [&](std::string_view name, double value) {
    params.Put(name, name == "h2o_target_mode" ? Value(value == 0 ? "static" : "adaptive")
                                               : NumberOrNull(value));
  });
  ForEachParameter(result.lossless, [&](std::string_view name, const ParameterValue& value) {
    const auto* number = std::get_if<double>(&value);
    params.Put(
        name, number != nullptr ? NumberOrNull(*number) : Value(std::get<std::string_view>(value)));
  });
  return params;
}

Value ParamsSchema() {
  const auto choice = [](std::string_view text, Value::List words) {
    return Value::Object{{"description", text}, {"enum", std::move(words)}};
  };
  return Value::Object{
      {"type", "object"},
      {"required", Value::List{"h2o_enable", "h2o_lossless_runtime_mode", "h2o_lossless_scope"}},
      {"properties",
       Value::Object{{"h2o_enable",
                      Value::Object{{"description", "Whether H2O evicts"}, {"type", "boolean"}}},
                     {"h2o_lossless_runtime_mode",
                      choice("probe: encode samples of a layer; full: encode and compare; store: "
                             "give up the raw bytes of a range until they are read again",
                             {"probe", "full", "store"})},
                     {"h2o_lossless_scope",
                      choice("Layers that the path applies to",
                             {"none", "front_n", "h2o_kept", "front_n_and_h2o_kept"})}}},
      {"additionalProperties",
       Value::Object{{"type", Value::List{"number", "string", "boolean"}}}}};
}

// Deterministic documents have no times.
const FieldOptions kTime = {.absent = true, .least = 0};

const Fields<LayerCounters>& CountersFields() {
  using Counters = LayerCounters;
  static const Fields<Counters> fields = {
      {"h2o_lossless_raw_bytes", "Raw bytes of the ranges whose results were taken",
       &Counters::raw_bytes},
      {"h2o_lossless_compressed_bytes",
       "Compressed bytes of the taken ranges; the raw size if encoding failed or gained nothing",
       &Counters::compressed_bytes},
      {"h2o_lossless_decompressed_bytes",
       "Raw bytes that were restored, by a decoder or from a cache", &Counters::decompressed_bytes},
      {"h2o_lossless_compress_us",
       "Time in encoders in microseconds, without gathering; not with --deterministic",
       &Counters::compress_us, kTime},
      {"h2o_lossless_decompress_us",
       "Time of restoring data in microseconds, at least 1 if any was restored; not with "
       "--deterministic",
       &Counters::decompress_us, kTime},
      {"h2o_lossless_fallback_count",
       "Failures of gathering, encoding, decoding or writing back, and blocks that were discarded "
       "undecoded; ranges without gain do not count",
       &Counters::fallback_count},
      {"h2o_lossless_backpressure_skip_count",
       "Ranges that were skipped because the queue was full", &Counters::backpressure_skip_count}};
  return fields;
}

const Fields<ReplayResult>& EngineTermsFields() {
  using Metrics = EngineMetrics;
  const auto metric = [](auto member) {
    return [member](const ReplayResult& of) { return of.metrics.*member; };
  };
  const auto eviction = [](auto member) {
    return [member](const ReplayResult& of) { return of.h2o_metrics.*member; };
  };
  static const Fields<ReplayResult> fields = {
      {"h2o_lossless_ratio",
       "Sum of raw / sum of compressed bytes of the layers in scope; samples without gain and "
       "failures count as ratio 1",
       metric(&Metrics::ratio)},
      Fields<ReplayResult>::Inline(metric(&Metrics::sums), CountersFields()),
      {"h2o_lossless_queue_depth_peak",
       "Largest number of a layer's blocks held or pending, plus tasks of workers, at one time",
       metric(&Metrics::queue_depth_peak)},
      {"h2o_lossless_async_queue_peak", "Largest number of tasks queued or running at one time",
       metric(&Metrics::async_queue_peak)},
      {"h2o_lossless_async_wait_us",
       "Time blocked waiting for workers, in microseconds; not with --deterministic",
       metric(&Metrics::async_wait_us), kTime},
      {"h2o_codec_us",
       "Encoding time of the last result, in microseconds; not with --deterministic",
       metric(&Metrics::codec_us), kTime},
      {"h2o_evict_us", "Time of H2O's last decision, in microseconds; not with --deterministic",
       &ReplayResult::h2o_evict_us, kTime},
      {"h2o_lossless_decode_cache_hit", "Hits in the cache of decoded ranges",
       metric(&Metrics::decode_cache_hit)},
      {"h2o_lossless_decode_cache_miss", "Misses in the cache of decoded ranges",
       metric(&Metrics::decode_cache_miss)},
      {"h2o_keep_ratio",
       "Kept tokens / tokens of the layer at the last H2O decision that the floor of recent and "
       "sink tokens did not force; 1 before",
       eviction(&h2o::MnnMetrics::keep_ratio)},
      {"h2o_lossy_ratio",
       "Bytes of the layer before / after the decision of h2o_keep_ratio, with its plan; 1 before",
       eviction(&h2o::MnnMetrics::lossy_ratio)},
      {"h2o_target_keep_effective", "Share of the tokens that H2O was to keep at its last decision",
       eviction(&h2o::MnnMetrics::target_keep_effective)},
      {"h2o_floor_keep_by_recent_sink",
       "Least share of tokens kept: recent and sink tokens are never evicted",
       eviction(&h2o::MnnMetrics::floor_keep)},
      {"h2o_block_quantized_keep", "Share of the tokens to keep, rounded up to whole blocks",
       eviction(&h2o::MnnMetrics::quantized_keep)},
      {"h2o_last_evict_tokens", "Tokens that the last decision evicts",
       eviction(&h2o::MnnMetrics::last_evict_tokens), AtLeast(0)},
      {"h2o_total_evict_tokens",
       "Tokens that all decisions evict, counted for each layer when planned",
       eviction(&h2o::MnnMetrics::total_evict_tokens), AtLeast(0)},
      {"h2o_plans_cleared",
       "H2O plans that the lossless path's shrink rule discarded before they were applied",
       &ReplayResult::h2o_plans_cleared}};
  return fields;
}

std::optional<double> VerifiedRatio(const Measured& of, size_t tensor) {
  return SafeRatio(of.verified_raw_of[tensor], of.verified_blob_of[tensor]);
}

const Fields<Measured>& MeasuredFields() {
  const auto ratio_of = [](size_t tensor) {
    return [tensor](const Measured& of) { return VerifiedRatio(of, tensor); };
  };
  static const Fields<Measured> fields = {
      {"encode_calls", "Times that the encoder ran", &Measured::encode_calls},
      {"encoded_tokens", "Tokens handed to the encoder, again if encoded again",
       &Measured::encoded_tokens},
      {"encoded_raw_bytes", "Bytes handed to the encoder, again if encoded again",
       &Measured::encoded_raw_bytes},
      {"encoded_blob_bytes", "Bytes that the encoder made, whether they were used or not",
       &Measured::encoded_blob_bytes},
      {"verified_raw_bytes", "Raw bytes of the blobs that decoded to their source",
       &Measured::verified_raw_bytes},
      {"verified_blob_bytes", "Bytes of the verified blobs", &Measured::verified_blob_bytes},
      {"verified_ratio", "verified_raw_bytes / verified_blob_bytes; null: nothing was verified",
       [](const Measured& of) { return SafeRatio(of.verified_raw_bytes, of.verified_blob_bytes); }},
      {"verified_k_ratio", "The ratio of K alone; null: nothing was verified", ratio_of(0)},
      {"verified_v_ratio", "The ratio of V alone; null: nothing was verified", ratio_of(1)},
      {"verify_failures", "Blobs that did not decode to their source", &Measured::verify_failures},
      {"no_gain", "Ranges whose blob is not smaller than the range", &Measured::no_gain},
      {"failures", "Encoders and decoders that failed", &Measured::failures},
      {"backpressure", "Times that a range met a full queue", &Measured::backpressure},
      {"decode_calls", "Times that a decoder ran because the bytes were needed",
       &Measured::decode_calls},
      {"cache_copies", "Hits in a cache of decoded ranges", &Measured::cache_copies},
      {"seeded_hits", "Hits in entries that no decoder ever filled", &Measured::seeded_hits},
      {"encode_us", "Time in encoders in microseconds; not with --deterministic",
       &Measured::encode_us, kTime},
      {"decode_us",
       "Time in decoders in microseconds, with engine design also checks of blobs; not with "
       "--deterministic",
       &Measured::decode_us, kTime},
      {"wait_us", "Time waiting for workers in microseconds; not with --deterministic",
       &Measured::wait_us, kTime}};
  return fields;
}

const Fields<ContentCheck>& ContentFields() {
  static const Fields<Difference> first = {
      {"layer", "Number of the layer", &Difference::layer},
      {"tensor", "K or V", [](const Difference& of) { return of.is_value ? "v" : "k"; },
       OneOf("k", "v")},
      {"head", "The kv head", &Difference::head},
      {"position", "Position of the token", &Difference::position}};
  static const Fields<ContentCheck> fields = {
      {"ranges",
       "Ranges that were compared by hash: every range that the lossless path restored, and at the "
       "end all that is held",
       &ContentCheck::ranges},
      {"bytes", "Bytes of the ranges that were compared", &ContentCheck::bytes},
      {"mismatches", "Ranges that differ from the snapshot", &ContentCheck::mismatches},
      {"equal", "Whether all ranges are equal", &ContentCheck::equal},
      {"first_mismatch", "The first byte that differed; null: all are equal", &ContentCheck::first,
       first}};
  return fields;
}

const Fields<Resident>& ResidentFields() {
  static const Fields<Resident> fields = {
      {"full_bytes",
       "Bytes that K and V would take if nothing were evicted, compressed or allocated ahead",
       &Resident::full},
      {"held_bytes", "Bytes of the rows that the layers hold, at their raw size", &Resident::held},
      {"raw_bytes", "Bytes allocated for raw rows; MNN's buffers never shrink", &Resident::raw},
      {"blob_bytes", "Bytes of compressed ranges", &Resident::blobs},
      {"cache_bytes", "Bytes of decoded copies in caches", &Resident::caches},
      {"in_flight_bytes", "Bytes of copies that wait for a worker", &Resident::in_flight},
      {"resident_bytes", "raw_bytes + blob_bytes + cache_bytes + in_flight_bytes",
       &Resident::total}};
  return fields;
}

const Fields<Report>& MemoryFields() {
  static const Fields<Resident> step = {
      {"token",
       "Position of the token that was decoded; in the first entry, of the last token of the "
       "prompt",
       &Resident::token},
      Fields<Resident>::Inline(std::identity(), ResidentFields())};
  static const Fields<Report> fields = {
      {"before_bytes", "Resident bytes after the prompt",
       [](const Report& of) { return of.result.steps.front().total(); }},
      {"peak_bytes", "Peak of the resident bytes after any layer call",
       [](const Report& of) { return of.result.peak_bytes; }},
      {"end", "Bytes at the end", [](const Report& of) { return of.result.steps.back(); },
       ResidentFields()},
      {"ratio", "Bytes of the whole sequence's K and V / resident bytes at the end",
       [](const Report& of) { return of.result.whole_model_ratio(); }},
      {"removed_fraction", "1 - 1 / ratio; negative where more is resident than without the path",
       [](const Report& of) { return 1 - 1 / of.result.whole_model_ratio(); }},
      {"steps", "Bytes after the prompt and after each decoded token; with --detail",
       [](const Report& of) { return of.detail ? &of.result.steps : nullptr; }, step, Absent()}};
  return fields;
}

const Fields<ReplayResult>& SpeedFields() {
  const auto us = [](double Speed::*seconds) {
    return [seconds](const Speed& of) {
      return static_cast<uint64_t>(std::llround(of.*seconds * 1e6));
    };
  };
  static const Fields<Speed> speed = {
      {"tokens_per_second", "tokens / seconds", &Speed::tokens_per_second},
      {"tokens", "Tokens that were decoded", &Speed::tokens},
      {"elapsed_us", "Wall time of the measured decoding, in microseconds", us(&Speed::seconds)},
      {"attention_us", "Time of the measured decoding in attention alone, in microseconds",
       us(&Speed::attention_seconds)}};
  static const Fields<ReplayResult> fields = {
      {"attention_only_speed",
       "Decoding speed of attention alone; null where no_speed_reason says why",
       &ReplayResult::speed, speed},
      {"no_speed_reason", "Why there is no speed; absent where there is one",
       [](const ReplayResult& of) {
         return of.speed ? std::nullopt : std::optional(of.no_speed_reason);
       },
       Absent()}};
  return fields;
}

const Fields<LayerResult>& LayerFields() {
  static const Fields<LayerResult> fields = {
      {"layer", "Number of the layer in the snapshot", &LayerResult::layer},
      {"in_h2o_range", "Whether the layer is in H2O's range of layers, even if H2O is off",
       &LayerResult::in_h2o_range},
      {"held_tokens", "Tokens that the layer holds at the end", &LayerResult::length},
      {"cold_tokens", "Held tokens that are neither sink nor recent", &LayerResult::cold_tokens},
      {"memory", "Bytes of the layer at the end", &LayerResult::end, ResidentFields()},
      {"measured", "The replay's counts for the layer", &LayerResult::measured, MeasuredFields()},
      {"content", "Comparison of the layer's rows with the snapshot", &LayerResult::content,
       ContentFields()},
      {"engine_terms", "The layer's counters by the engine's definitions", &LayerResult::counters,
       CountersFields()}};
  return fields;
}

std::string ShortText(uint64_t bytes) { return report::ShortBytes(static_cast<double>(bytes)); }

std::string RatioText(const Measured& measured, size_t tensor) {
  const auto ratio = VerifiedRatio(measured, tensor);
  return ratio ? format::Factor(*ratio) : "-";
}

void AddMemory(const ReplayResult& result, report::Page& page) {
  report::LineChart chart;
  chart.title = "Resident bytes at each decode step";
  chart.x_label = "position";
  chart.y_label = "bytes of K and V, all layers";
  chart.y_unit = report::Unit::kBytes;
  chart.y_min = 0;
  report::ChartSeries full{"full", {}, false, true}, resident{"resident", {}, true, false};
  report::ChartSeries raw{"raw rows", {}, false, false}, blobs{"blobs", {}, false, false};
  report::ChartSeries caches{"copies", {}, false, false};
  const size_t stride = std::max<size_t>(1, result.steps.size() / kMaxPoints);
  for (size_t i = 0; i < result.steps.size(); ++i) {
    if (i % stride != 0 && i + 1 != result.steps.size()) continue;
    const Resident& step = result.steps[i];
    const auto x = static_cast<double>(step.token);
    full.points.push_back({x, static_cast<double>(step.full)});
    resident.points.push_back({x, static_cast<double>(step.total())});
    raw.points.push_back({x, static_cast<double>(step.raw)});
    blobs.points.push_back({x, static_cast<double>(step.blobs)});
    caches.points.push_back({x, static_cast<double>(step.caches + step.in_flight)});
  }
  chart.series = {resident, full, raw, blobs, caches};
  page.Heading("Memory and ratio");
  page.Figure(Render(chart), result.engine == Engine::kDesign
                                 ? "Raw rows give way to blobs once a blob was decoded again and "
                                   "found equal; copies are bounded by the cache's capacity."
                                 : "The engine's buffers never shrink: blobs and decoded copies "
                                   "are held in addition to the raw rows they represent.");
}

// Adds the ratios next to the memory; consecutive figures share a row.
void AddRatios(const ReplayResult& result, report::Page& page) {
  report::LineChart chart;
  chart.title = "Ratio of verified blobs by layer";
  chart.x_label = "layer";
  chart.y_label = "raw / compressed, decoded again and equal";
  chart.whole_x = true;
  chart.y_unit = report::Unit::kFactor;
  for (const bool is_value : {false, true}) {
    report::ChartSeries series{is_value ? "V" : "K", {}, false, false, false};
    for (const LayerResult& layer : result.layers) {
      const auto ratio = VerifiedRatio(layer.measured, is_value);
      if (ratio) series.points.push_back({static_cast<double>(layer.layer), *ratio});
    }
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  if (!chart.series.empty()) {
    page.Figure(Render(chart), "Layers without a point encoded nothing.");
  }
}

void AddLayers(const ReplayResult& result, report::Page& page) {
  page.Heading("Layers");
  std::vector<std::vector<std::string>> rows = {{"layer", "held", "cold", "encoded", "K ratio",
                                                 "V ratio", "decoded", "copied", "resident",
                                                 "content"}};
  for (const LayerResult& layer : result.layers) {
    const Measured& m = layer.measured;
    rows.push_back({std::to_string(layer.layer), std::to_string(layer.length),
                    std::to_string(layer.cold_tokens), std::to_string(m.encoded_tokens),
                    RatioText(m, 0), RatioText(m, 1), std::to_string(m.decode_calls),
                    std::to_string(m.cache_copies), ShortText(layer.end.total()),
                    layer.content.equal() ? "equal" : "differs"});
  }
  page.Table(rows);
}

void AddEngineTerms(const ReplayResult& result, report::Page& page) {
  page.Heading("In the engine's terms");
  std::vector<std::vector<std::string>> rows = {{"figure", "value"}};
  const Value terms = EngineTermsFields().Object(result);
  for (const auto& [name, value] : *terms.get_if<Value::Object>()) {
    const auto* real = value.get_if<double>();
    rows.push_back({name, real != nullptr ? report::ShortNumber(*real) : format::Plain(value)});
  }
  page.Table(rows);
}

}  // namespace

Totals SumTotals(const ReplayResult& result) {
  Totals totals;
  for (const LayerResult& layer : result.layers) {
    totals.held_tokens += layer.length;
    totals.cold_tokens += layer.cold_tokens;
  }
  return totals;
}

std::string WhyNothing(const ReplayResult& result) {
  if (result.measured.encode_calls > 0 || result.metrics.sums.backpressure_skip_count > 0) {
    return {};
  }
  const Config& c = result.lossless;
  if (!c.active()) return "h2o_lossless_enable, _codec or _runtime_enable switches the path off";
  if (c.scope == Scope::kNone) return "h2o_lossless_scope is none";
  uint64_t longest = 0;
  for (const LayerResult& layer : result.layers) longest = std::max(longest, layer.length);
  if (longest < static_cast<uint64_t>(result.h2o.trigger_min_tokens)) {
    return fmt::format("h2o_trigger_min_tokens {}: no layer was that long",
                       result.h2o.trigger_min_tokens);
  }
  if (SumTotals(result).cold_tokens == 0) {
    return fmt::format(
        "h2o_lossless_hot_sink_tokens {} (--hot-sink) and h2o_lossless_hot_recent_tokens {} "
        "(--hot-recent) leave no cold zone",
        c.hot_sink_tokens, c.hot_recent_tokens);
  }
  return "no cold range in scope grew to a whole step";
}

const Fields<Report>& ReportFields() {
  const auto result = [](auto member) {
    return [member](const Report& of) { return of.result.*member; };
  };
  static const Fields<Report> fields = {
      {"engine",
       "mnn: MNN's code; mnn-r6: MNN's runtime, with the eviction of the build that its authors "
       "measured; design: the behaviour that MNN's documentation promises",
       [](const Report& of) { return Name(of.result.engine); }, OneOf("mnn", "mnn-r6", "design")},
      {"params",
       "The parameters that were in effect, by the engine's names; those of h2o_lossless_ are the "
       "lossless path's",
       ParamsToValue,
       {.schema = ParamsSchema()}},
      {"prompt_tokens", "Tokens of the prompt, which precede decoding",
       [](const Report& of) { return of.result.prompt; }},
      {"decode_tokens", "Tokens that were decoded",
       [](const Report& of) { return of.result.end - of.result.prompt; }},
      {"cache_capacity_bytes", "Room for decoded ranges in bytes; only with engine design",
       [](const Report& of) {
         const bool has_room = of.result.engine == Engine::kDesign;
         return has_room ? std::optional(of.result.cache_bytes) : std::nullopt;
       },
       Absent()},
      {"held_token_rows", "Tokens that layers hold at the end, summed over layers",
       [](const Report& of) { return SumTotals(of.result).held_tokens; }},
      {"cold_token_rows", "Held tokens that are neither sink nor recent",
       [](const Report& of) { return SumTotals(of.result).cold_tokens; }},
      {"content", "Comparison of the cache's rows with the snapshot",
       result(&ReplayResult::content), ContentFields()},
      {"memory", "Bytes of K and V of all layers", std::identity(), MemoryFields()},
      {"measured", "The replay's own counts of the work", result(&ReplayResult::measured),
       MeasuredFields()},
      {"engine_terms", "Counts of the work by the engine's own definitions and names",
       [](const Report& of) -> const auto& {return of.result;
}
, EngineTermsFields()
}  // namespace kv::mnn::runtime
,
    Fields<Report>::Inline([](const Report& of) { return of.timing ? &of.result : nullptr; },
                           SpeedFields()),
    {"layers", "Figures of each layer", result(&ReplayResult::layers), LayerFields(), CsvRows()},
    {"why_nothing", "Why nothing was encoded; null where something was",
     [](const Report& of) {
       const std::string why = WhyNothing(of.result);
       return why.empty() ? std::nullopt : std::optional(why);
     }},
{
  "warnings", "Warnings of the run", result(&ReplayResult::warnings)
}
}
;
return fields;
}

const Fields<Event>& EventFields() {
  static const Fields<Event> fields = {
      {"schema", "Name and version of this schema",
       [](const Event&) { return "kvtool.replay-lossless-event/1"; },
       OneOf("kvtool.replay-lossless-event/1")},
      {"kind",
       "evict: H2O decided; compact: its plan was applied; encode: a range was handed to the "
       "encoder; apply: its result came back; drop: its raw bytes were given up; restore: they "
       "came back; decode: it was decoded and compared; shrink: the cold range became shorter, "
       "blocks and plan were thrown away; backpressure: the queue was full; fallback: something "
       "failed",
       [](const Event& of) { return Name(of.kind); },
       OneOf("evict", "compact", "encode", "apply", "drop", "restore", "decode", "shrink",
             "backpressure", "fallback")},
      {"token", "Position of the token that is decoded", &Event::token},
      {"layer", "Number of the layer in the snapshot", &Event::layer},
      {"length", "Tokens in the layer's cache", &Event::length},
      {"begin", "First token of the range, in the layer's cache", &Event::begin},
      {"tokens", "Tokens of the range; for evict and compact, the kept ones", &Event::tokens},
      {"raw_bytes", "Bytes of the range before encoding", &Event::raw_bytes},
      {"compressed_bytes", "Bytes of the range after encoding; 0 where nothing was encoded yet",
       &Event::compressed_bytes},
      {"us", "Time of the event in microseconds; not with --deterministic", &Event::us, kTime},
      {"what",
       "For restore and decode: where the bytes came from, cache or decoder; for fallback: the "
       "step that failed; absent for other events",
       [](const Event& of) { return of.what.empty() ? std::nullopt : std::optional(of.what); },
       Absent()}};
  return fields;
}

void RemoveTimes(Value& document) {
  if (auto* list = document.get_if<Value::List>()) {
    for (Value& element : *list) RemoveTimes(element);
  }
  if (auto* object = document.get_if<Value::Object>()) {
    std::erase_if(*object, [](const Value::Member& member) {
      return member.first == "us" || member.first.ends_with("_us");
    });
    for (auto& [key, value] : *object) RemoveTimes(value);
  }
}

report::Page ReportPage(const std::string& name, const ReplayResult& result) {
  report::Page page(
      "Lossless runtime replay",
      fmt::format("{}: engine {}, mode {}, scope {}; prompt {}, {} decoded", name,
                  Name(result.engine), Name(result.lossless.mode), Name(result.lossless.scope),
                  result.prompt, result.end - result.prompt));
  page.Facts({{"ratio, whole model", format::Factor(result.whole_model_ratio())},
              {"ratio, encoded ranges", format::Factor(result.metrics.ratio)},
              {"content", result.content.equal() ? "equal" : "differs"},
              {"before", ShortText(result.steps.front().total())},
              {"peak", ShortText(result.peak_bytes)},
              {"end", ShortText(result.steps.back().total())}});
  page.Paragraph(
      "The ratio of the whole model is the K and V of the whole sequence over what is resident at "
      "the end: raw rows, blobs, decoded copies and what is in flight. The ratio of encoded "
      "ranges, which the engine reports, ignores all the others.");
  AddMemory(result, page);
  AddRatios(result, page);
  AddLayers(result, page);
  AddEngineTerms(result, page);
  page.Notes("Remarks", result.warnings);
  return page;
}

}  // namespace kv::mnn::runtime
