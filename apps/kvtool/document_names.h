// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

// What version 2 of documents names otherwise than version 1: the tables by which both documents
// and their schemas are made.
namespace kv {

// What version 2 names otherwise. A path goes through arrays as if they were not there.
struct Renamed {
  std::string_view document, path, name, description;
  bool was_seconds = false;  // whole microseconds now
};

inline constexpr Renamed kRenamed[] = {
    // Fractions below 1, where a ratio is original / what is left everywhere else.
    {"blend", "selection/ratio", "recomputed_fraction", "Share of the tokens that is recomputed"},
    {"blend", "curve/ratio", "recomputed_fraction", "Share of the tokens that is recomputed"},
    {"blend", "controller/ratio", "recomputed_fraction",
     "Share of the tokens that the controller recomputes"},
    {"blend", "controller/ratio_hide", "hidden_fraction",
     "Share of the tokens whose recomputation the loading of a layer hides"},
    {"h2o", "runs/layers/keep_ratio", "kept_fraction", "Share of the tokens that stays"},
    {"replay-mlp", "quality/norm_ratios", "relative_norms",
     "Norm of what the step makes, divided by the norm of what it was made of, by layer"},
    // Durations are in microseconds.
    {"replay-lossless", "attention_only_speed/seconds", "elapsed_us",
     "Wall time of the measured decoding, in microseconds", true},
    {"replay-lossless", "attention_only_speed/attention_seconds", "attention_us",
     "Time of that in attention alone, in microseconds", true},
};

// Words that a program compares: in version 2 their spaces are underscores.
struct Words {
  std::string_view document, path;
};

inline constexpr Words kWords[] = {
    {"advise", "loss/unit"},
    {"advise", "check/left_out"},
    {"blend", "model/rope/scaling"},
    {"h2o", "trace/level"},
    {"h2o", "trace/format"},
    {"replay-lossless", "trace/level"},
    {"trace", "level"},
    {"replay-lossless", "trace/format"},
    {"trace", "format"},
};

std::string WithUnderscores(std::string text);
// In the place of the old one, so that what is read together stands together.
void RenameKey(nlohmann::ordered_json& object,
               const std::function<std::string(const std::string&)>& renamed);
void RenameKey(nlohmann::ordered_json& object, const std::string& was, std::string_view now);

}  // namespace kv
