// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/replay/h2o_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace kv {
namespace {

std::string PercentOf(double share) { return fmt::format("{:.2f}%", 100 * share); }

// What the real KL is expected to be, and where most runs of the study lie.
std::string Text(const eviction::PredictedKl& kl) {
  const std::string expected = fmt::format("{:.3g}", kl.expected());
  return kl.nats == 0 ? expected : fmt::format("{} ({:.3g}-{:.3g})", expected, kl.low(), kl.high());
}

std::vector<std::string> RowOf(const mnn::h2o::ReplayRun& run, bool engine, bool predicts) {
  std::vector<std::string> row = {
      run.policy_text(), run.target_text(), fmt::format("{:.3f}x", run.ratio()),
      fmt::format("{:.3f}x", run.mean_ratio()), std::to_string(run.evictions())};
  if (engine) {
    row.push_back(run.mnn ? fmt::format("{:.4f}x", run.mnn->metrics.lossy_ratio)
                          : std::string(1, '-'));
  }
  if (predicts) row.push_back(run.predicted_kl ? Text(*run.predicted_kl) : std::string(1, '-'));
  if (!run.quality) return row;
  const AttentionSummary &evicting = *run.evicting, &all = *run.quality;
  const auto figure = [](const Distribution& of, double Distribution::*value, auto&& text) {
    return of.count == 0 ? std::string(1, '-') : text(of.*value);
  };
  const auto real = [](double value) { return fmt::format("{:.4g}", value); };
  // A share of rows with its standard error, where rows were drawn.
  const auto share = [](const Distribution& of, double value, double error) {
    if (of.count == 0) return std::string(1, '-');
    return error == 0 ? PercentOf(value)
                      : fmt::format("{} +-{}", PercentOf(value), PercentOf(error));
  };
  const auto error = [&](const AttentionSummary& of) {
    return share(of.output_error, of.output_error_frobenius,
                 of.standard_error.output_error_frobenius);
  };
  const auto mass = [&](const AttentionSummary& of) {
    return share(of.mass, of.mass.mean, of.standard_error.mass);
  };
  row.push_back(error(evicting));
  row.push_back(figure(evicting.output_cosine, &Distribution::mean,
                       [&](double cosine) { return real(1 - cosine); }));
  row.push_back(figure(evicting.output_error, &Distribution::p95, PercentOf));
  row.push_back(mass(evicting));
  row.push_back(figure(evicting.mass, &Distribution::p5, PercentOf));
  row.push_back(figure(evicting.kl, &Distribution::mean, real));
  row.push_back(figure(evicting.top_k[1], &Distribution::mean, PercentOf));
  row.push_back(error(all));
  row.push_back(mass(all));
  return row;
}

}  // namespace

std::string ScheduleText(const mnn::h2o::ReplayResult& result) {
  std::string text = "budgets hold at every step from the prompt's end on";
  std::vector<std::string> followed;
  eviction::ForEachParameter(result.config, [&](std::string_view name, double value) {
    if (std::count(result.followed.begin(), result.followed.end(), name) != 0) {
      followed.push_back(fmt::format("{} {}", name, value));
    }
  });
  if (followed.empty()) return text;
  return text + fmt::format("; chosen by the trace's length: {}", fmt::join(followed, ", "));
}

void PrintRuns(Console& console, const mnn::h2o::ReplayResult& result, bool has_quality) {
  const bool engine = result.engine != mnn::h2o::Engine::kExact;
  std::vector<std::string> header = {"policy", "target", "true ratio", "mean ratio", "evictions"};
  if (engine) header.push_back("h2o_lossy_ratio");
  if (result.kl_method) header.push_back("predicted KL");
  if (has_quality) {
    header.insert(header.end(), {"output error", "1 - cosine", "error p95", "mass", "mass p5",
                                 "attention KL", "top-16", "error (all rows)", "mass (all rows)"});
  }
  Table table(header);
  for (const mnn::h2o::ReplayRun& run : result.runs) {
    table.Row(RowOf(run, engine, result.kl_method.has_value()));
  }
  console.Data(table.Text());
  for (const std::string& note : result.notes) console.Line("note: " + note);
}

}  // namespace kv
