// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/replay/h2o_flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/kvtool/line/numbers.h"
#include "lib/engines/mnn/h2o/mnn_engine.h"

namespace kv {
namespace {

constexpr std::string_view kPrefix = "h2o_";  // of the engine's names of the parameters

}  // namespace

void H2oFlags::Declare(CommandLine& line) {
  const char* group = "The engine's parameters (engine; with a budget: chosen by the trace)";
  const auto add = [&](const char* flag, const char* name, const char* text) {
    line.OnNumber(
            flag, [this, name](const double& value) { given.emplace_back(name, value); }, text)
        .Check(ParameterCheck(name))
        .ValueName(std::string(RuntimeParameterText(name).value))
        .Group(group);
  };
  add("--block-tokens|--h2o-block-tokens", "h2o_block_tokens",
      "Tokens per block (64; budget/8, a power of 2)");
  add("--sink|--h2o-sink-tokens,--h2o-sink", "h2o_sink_tokens",
      "First tokens that block keeps (32; budget/16)");
  add("--recent|--h2o-recent-tokens,--h2o-recent", "h2o_recent_tokens",
      "Last tokens that block keeps (256; budget/4)");
  add("--ema-alpha|--h2o-ema-alpha", "h2o_ema_alpha", "Weight of the old score (0.9)");
  add("--update-interval|--h2o-update-interval", "h2o_update_interval",
      "Tokens (exact, design) or layer calls (mnn) between decisions (16; with a budget: every "
      "step)");
  add("--trigger-min|--h2o-trigger-min-tokens,--h2o-trigger-min", "h2o_trigger_min_tokens",
      "Shortest cache that is evicted from (512; 1)");
  add("--layer-start|--h2o-layer-start", "h2o_layer_start", "First layer that evicts (2; 0)");
  add("--layer-end|--h2o-layer-end", "h2o_layer_end",
      "Last layer that evicts, -1 = the last one (-1)");
  add("--keep-share|--h2o-keep-share,--h2o-target-keep-ratio", "h2o_target_keep_ratio",
      "With --target-mode static: share of the cache that stays at each trigger (0.5)");
  line.Add("--target-mode|--h2o-target-mode", target_mode,
           "adaptive or static: how the engine reads the target (adaptive)")
      .OneOf({"adaptive", "static"})
      .Group(group);
}

eviction::BlockConfig H2oFlags::Resolve(const AttentionTrace& trace,
                                        eviction::BlockConfig config) const {
  if (trace.block_scores) {
    for (const auto& [name, value] : trace.block_scores->parameters) {
      mnn::h2o::SetParameter(name, value, config);
    }
  }
  for (const auto& [name, value] : given) mnn::h2o::SetParameter(name, value, config);
  if (!target_mode.empty()) {
    mnn::h2o::SetParameter("h2o_target_mode", target_mode == "static" ? 0 : 1, config);
  }
  return config;
}

std::set<std::string, std::less<>> H2oFlags::Chosen() const {
  std::set<std::string, std::less<>> names;
  for (const auto& [name, value] : given) names.insert(name.substr(kPrefix.size()));
  return names;
}

void PaperFlags::Declare(CommandLine& line) {
  const char* group = "The papers' parameters";
  line.Add("--snapkv-window|--window", paper.window,
           "Last rows, which weigh the others and stay (snapkv, pyramid) (64)")
      .Group(group);
  line.Add("--snapkv-kernel|--kernel", paper.kernel,
           "Keys pooled to one score, odd (snapkv, pyramid) (5)")
      .Group(group);
  line.Add("--pyramid-beta", paper.pyramid_beta,
           "pyramid: mean budget over that of the last layer (20)")
      .Group(group);
  line.Add("--streaming-sink|--sinks,--streaming-sinks", paper.sinks,
           "First tokens that streaming keeps (4)")
      .Group(group);
  line.Add("--h2o-heavy-share|--h2o-heavy,--heavy-share", paper.heavy_share,
           "Share of h2o's budget for heavy hitters, the rest is recent (0.5)")
      .Group(group);
  line.Add("--after-prompt", after_prompt,
           "snapkv, pyramid: grow as published, or hold the budget (grow)")
      .OneOf({"grow", "hold"})
      .Group(group);
}

eviction::PaperParameters PaperFlags::Resolve() const {
  eviction::PaperParameters resolved = paper;
  const auto refuse = [](const char* flag, auto value, const char* expected) {
    throw Error(Finding::kUsage, fmt::format("{} {}: expected {}", flag, value, expected));
  };
  if (paper.window == 0) refuse("--snapkv-window", paper.window, "at least one row");
  if (paper.kernel % 2 == 0) refuse("--snapkv-kernel", paper.kernel, "an odd number of keys");
  if (paper.pyramid_beta == 0) refuse("--pyramid-beta", paper.pyramid_beta, "at least 1");
  if (!(paper.heavy_share >= 0 && paper.heavy_share <= 1)) {
    refuse("--h2o-heavy-share", paper.heavy_share, "a share from 0 to 1");
  }
  if (std::max({paper.window, paper.kernel, paper.sinks}) > UINT32_MAX) {
    throw Error(Finding::kUsage,
                "--snapkv-window, --snapkv-kernel, --streaming-sink: larger than any cache");
  }
  resolved.grow = after_prompt == "grow";
  return resolved;
}

}  // namespace kv
