// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lib/report/html.h"
#include "lib/study/advise/advice.h"

namespace kv::advise {

using Json = nlohmann::ordered_json;

// Returns the body of kvtool.advise/1, without header and inputs. page.cc implements AdvicePage,
// report.cc the rest.
Json AdviceJson(const Runs& runs, const AdviceRequest& request, const Advice& advice);

// One part of a plan as people read it: what a candidate is given to.
struct Part {
  std::string candidate;  // "h2o 0.25, recent 0.5 of it" or "everything"
  uint32_t units = 0;
  std::string where;  // "layers 0-3, 7" or "layers 0-2, 5 (some heads)"
};
std::vector<Part> PartsOf(const Advice& advice, const Choice& choice);

// "0.0213 nats" or "4.2%".
std::string LossText(LossKind kind, double loss);
// The same with the standard error and, in nats, the range that the calibration leaves.
std::string LossTextWithError(LossKind kind, double loss, double standard_error);
// What the loss is, in a sentence.
std::string LossName(LossKind kind);
// "streaming 0.25, sinks 4", or how many candidates a plan mixes.
std::string PlanText(const Advice& advice, const Point& point);
// What the folds say, in a sentence.
std::string CheckText(const Advice& advice);

// The table "choices" of kvtool.h2o-plan/1: what each layer and kv head follows.
Json ChoicesJson(const Advice& advice, const Choice& choice);

// Returns the advice as a self-contained HTML page.
report::Page AdvicePage(const Runs& runs, const AdviceRequest& request, const Advice& advice,
                        const std::string& footer);

}  // namespace kv::advise
