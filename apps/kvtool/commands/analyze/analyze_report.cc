// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The text that analyze prints: totals, ratios by layer, findings, and the rows of MNN's reports.
#include "apps/kvtool/commands/analyze/analyze_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>

namespace kv {
namespace {

using analysis::Analysis;
using analysis::LayerAnalysis;
using analysis::TensorAnalysis;
using analysis::Totals;

std::string Row(std::string_view name, std::string_view value) {
  return fmt::format("  {:<9} {}\n", name, value);
}

using format::Factor;

void ForEachTensor(const Analysis& analysis,
                   const std::function<void(const TensorAnalysis& tensor)>& use) {
  for (const LayerAnalysis& layer : analysis.layers) {
    for (const auto* tensor : {&layer.k, &layer.v}) {
      if (*tensor) use(**tensor);
    }
  }
}

// Returns "f16", or "f16 and q8_0" if tensors differ.
std::string ListDTypes(const Analysis& analysis) {
  std::set<std::string_view> names;
  ForEachTensor(analysis, [&](const TensorAnalysis& tensor) { names.insert(Name(tensor.dtype)); });
  return fmt::format("{}", fmt::join(names, " and "));
}

uint64_t MostTokens(const Analysis& analysis) {
  uint64_t most = 0;
  ForEachTensor(analysis, [&](const TensorAnalysis& t) { most = std::max(most, t.tokens); });
  return most;
}

// Returns "1.151x, 1.234x   12.97 of 16 bits per value, order-0/1 entropy 12.71 (1.259x)".
std::string TotalsLine(const Analysis& analysis, bool values, bool with_own) {
  const Totals& totals = values ? analysis.v : analysis.k;
  if (totals.raw_bytes == 0) return "not in the snapshot";
  const double raw = 8.0 * static_cast<double>(totals.raw_bytes) / totals.values;
  std::string line = fmt::format(
      "{:<{}} {:.2f} of {:.4g} bits per value, order-0/1 entropy {:.2f} ({})",
      Factor(totals.ratio()) + (with_own ? ", " + Factor(totals.own_ratio()) : ""),
      with_own ? 16 : 8, totals.reached(), raw, totals.bound(), Factor(totals.bound_ratio()));
  if (totals.reached() >= totals.bound()) return line;
  const bool repeats =
      std::any_of(analysis.layers.begin(), analysis.layers.end(), [&](const LayerAnalysis& layer) {
        const auto& tensor = values ? layer.v : layer.k;
        return tensor && tensor->structure.repeated_rows > 0;
      });
  return line + fmt::format("; the codec needs fewer bits because it uses {}",
                            repeats ? "repeated rows" : "earlier rows");
}

// Returns a sparkline of the layers in order, from the ratio 1 up to the best.
std::string RatiosByLayer(const Analysis& analysis, bool values, bool utf8) {
  std::vector<double> ratios;
  for (const LayerAnalysis& layer : analysis.layers) {
    const auto& tensor = values ? layer.v : layer.k;
    if (tensor) ratios.push_back(tensor->better().ratio());
  }
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  const std::string range = fmt::format("{} to {}", Factor(*least), Factor(*most));
  const double top = std::max(*most - 1, 1e-9);
  for (double& ratio : ratios) ratio = std::clamp((ratio - 1) / top, 0.0, 1.0);
  return fmt::format("{}  {}", Sparkline(ratios, utf8), range);
}

// Returns true for the columns that a table for people has room for: those that identify a dump,
// and ratios and entropies of the whole if any row has one.
bool IsShown(const std::string& name, const std::vector<Value>& rows) {
  for (const char* part :
       {"_hi", "_lo", "_diff", "kv_heads", "head_dim", "bytes", "pack_", "flash", "max_seq"}) {
    if (name.find(part) != name.npos && !name.ends_with("half_zstd_ratio") &&
        !name.ends_with("half_gear_ratio")) {
      return false;
    }
  }
  return std::any_of(rows.begin(), rows.end(), [&](const Value& row) {
    const Value* cell = row.Find(name);  // rows without a known position lack some columns
    const auto* number = cell == nullptr ? nullptr : cell->get_if<double>();
    return cell != nullptr && (number == nullptr || *number != 0);
  });
}

// Returns the total saving of storing exact values at half the size.
std::string NarrowLine(const Analysis& analysis) {
  analysis::Coded as_is, narrow;
  ForEachTensor(analysis, [&](const TensorAnalysis& tensor) {
    as_is.Add(tensor.measured);
    narrow.Add(tensor.narrow ? *tensor.narrow : tensor.measured);
  });
  if (narrow.coded_bytes == as_is.coded_bytes) return {};
  return fmt::format("{:<8} if f32 values that are exact in two bytes were stored so, losslessly",
                     Factor(narrow.ratio()));
}

}  // namespace

std::string AnalysisText(const Snapshot& snapshot, const Analysis& analysis,
                         const std::string& level, const Console& console) {
  const bool with_own = level != "compat";
  const Totals total = analysis.total();
  std::string text = fmt::format("{}: {}{}, {}, {} tokens, {}, {}\n",
                                 console.Bold(snapshot.source.path), snapshot.format,
                                 snapshot.engine.empty() ? "" : " of " + Printable(snapshot.engine),
                                 Plural(analysis.layers.size(), "layer"), MostTokens(analysis),
                                 ListDTypes(analysis), HumanBytes(total.raw_bytes));
  if (total.raw_bytes == 0) return text;
  std::string overall = HumanRatio(total.raw_bytes, total.coded_bytes);
  if (with_own) {
    overall += fmt::format(" by MNN's codec, {} at level {}",
                           HumanRatio(total.raw_bytes, total.own_bytes), level);
  }
  overall += total.decodes ? "; decoded again and equal by hash"
                           : "; " + console.Verdict(false, "DECODED DIFFERENTLY");
  text += Row("overall", overall);
  text += Row("K", TotalsLine(analysis, false, with_own));
  text += Row("V", TotalsLine(analysis, true, with_own));
  const auto extreme = [](const analysis::Extreme& e) {
    return fmt::format("layer {} {}, {}", e.layer, e.is_value ? "V" : "K", Factor(e.ratio));
  };
  text += Row("best", extreme(analysis.best));
  text += Row("worst", extreme(analysis.worst));
  const std::string narrow = NarrowLine(analysis);
  if (!narrow.empty()) text += Row("narrow", narrow);
  const bool several = analysis.layers.size() > 2;
  if (several && analysis.k.raw_bytes > 0) {
    text += Row("K layers", RatiosByLayer(analysis, false, console.utf8()));
  }
  if (several && analysis.v.raw_bytes > 0) {
    text += Row("V layers", RatiosByLayer(analysis, true, console.utf8()));
  }
  for (const std::string& finding : analysis.findings) text += Row("note", finding);
  return text + "\n" + Table(analysis::LayersTable(analysis, level)).Text("  ");
}

std::string OfflineText(const mnn::offline::Options& options, const mnn::offline::Result& result,
                        const Console& console) {
  std::string text = console.Bold("MNN's offline experiment") +
                     fmt::format(": {}, {}, {}\n", Name(options.codec), Name(options.entry_mode),
                                 Name(options.scope));
  if (result.entries == 0) {
    text += Row("nothing", fmt::format("none of {} entries is selected", result.scanned));
  } else {
    const mnn::offline::Sizes total = result.total();
    text += Row("overall", fmt::format("{}, K {}, V {}; an estimate, nothing is decoded",
                                       Factor(total.ratio()), Factor(result.k.ratio()),
                                       Factor(result.v.ratio())));
    text +=
        Row("counted", fmt::format("{} of {} entries in {} layers, {} as f16", result.entries,
                                   result.scanned, result.layers.size(), HumanBytes(total.raw)));
    for (size_t i = 0; i < mnn::offline::kStreams; ++i) {
      std::vector<std::string> chosen;
      for (const auto& [predictor, count] : result.mode_counts[i]) {
        if (count > 0) chosen.push_back(fmt::format("{} {}", Name(predictor), count));
      }
      text += Row(Name(static_cast<mnn::offline::Stream>(i)),
                  chosen.empty() ? "-" : fmt::format("{}", fmt::join(chosen, ", ")));
    }
  }
  for (const auto& [reason, count] : result.skip_reasons) {
    text += Row("skipped", fmt::format("{} {}", count, reason));
  }
  return text;
}

std::string RowsText(std::string_view title, const std::vector<Value>& rows,
                     const Console& console) {
  constexpr size_t kMostRows = 40;
  std::string text = console.Bold(title) + ": " + Plural(rows.size(), "dump") + "\n";
  if (rows.empty()) return text;
  std::vector<std::string> names;
  for (const auto& [name, first] : *rows.front().get_if<Value::Object>()) {
    if (IsShown(name, rows)) names.push_back(name);
  }
  Table table(names);
  for (size_t i = 0; i < std::min(rows.size(), kMostRows); ++i) {
    std::vector<std::string> cells;
    for (const std::string& name : names) {
      const Value* cell = rows[i].Find(name);
      const auto* number = cell == nullptr ? nullptr : cell->get_if<double>();
      cells.push_back(cell == nullptr     ? "-"
                      : number != nullptr ? fmt::format("{:.3f}", *number)
                                          : format::Plain(*cell));
    }
    table.Row(std::move(cells));
  }
  text += table.Text("  ");
  if (rows.size() > kMostRows) {
    text +=
        fmt::format("  ... and {} more: --csv-out and --json have all\n", rows.size() - kMostRows);
  }
  return text;
}

}  // namespace kv
