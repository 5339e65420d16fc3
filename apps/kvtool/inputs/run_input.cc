// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/inputs/run_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "apps/kvtool/line/numbers.h"
#include "formats/trace/trace.h"
#include "lib/core/base/arena.h"

namespace kv {
namespace fs = std::filesystem;
namespace {

// The STEM of every trace whose arrays (STEM-L0-Q.npy ...) are in a folder.
struct TraceStems {
  fs::path folder;
  fs::file_time_type written;
  std::set<std::string> stems;
};

// Returns true if arrays of the trace STEM are in a folder. Caches the folder's stems, because
// this is called for every file in it, and listing it each time would take quadratic time.
bool IsTraceStem(const fs::path& of, const std::string& stem) {
  static Reuse<TraceStems> kept;
  const Reuse<TraceStems>::Lease lease(kept);
  TraceStems& known = *lease;
  std::error_code failed;
  const fs::path folder = fs::absolute(of.empty() ? "." : of, failed);
  const fs::file_time_type written = fs::last_write_time(folder, failed);
  if (!failed && known.folder == folder && known.written == written)
    return known.stems.contains(stem);
  known = {folder, written, {}};
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const std::string file = entry->path().filename().string();
    const size_t layer = file.rfind("-L");
    if (layer != file.npos && (file.ends_with("-Q.npy") || file.ends_with("-A.npy")))
      known.stems.insert(file.substr(0, layer));
  }
  return known.stems.contains(stem);
}

std::string TraceText(const AttentionTrace& trace) {
  std::string text = fmt::format("{} of {} layers, positions {} to {}", Name(trace.level),
                                 trace.layers.size(), trace.q_start, trace.end_position() - 1);
  if (!trace.gradients) return text;
  const auto with = std::count_if(trace.layers.begin(), trace.layers.end(),
                                  [](const TraceLayer& layer) { return layer.gradients; });
  text += fmt::format("; gradients of {} next tokens in {} layers, positions {} to {}",
                      trace.gradients->samples, with, trace.gradients->begin,
                      trace.gradients->end() - 1);
  if (trace.gradients->evicted == 0) return text;
  return text + fmt::format(", {} of them at evicted states", trace.gradients->evicted);
}

}  // namespace

std::optional<RecordedRun> TakeRun(std::string& path, SnapshotOptions& options) {
  std::optional<RecordedRun> run = OpenRun(path);
  if (!run) return run;
  path = run->snapshot;
  const bool is_told = !options.gguf.empty() || options.kv_heads != 0 || options.head_dim != 0;
  if (!is_told) options.kv_heads = run->kv_heads;
  return run;
}

void TakeRope(const std::optional<RecordedRun>& run, const SnapshotOptions& options,
              RopeOptions& rope) {
  const bool is_told = !options.gguf.empty() || !rope.style.empty() || !rope.scaling.empty() ||
                       !rope.freqs.empty() || rope.base != 0 || rope.dims != 0;
  if (!run || is_told || run->rope.base == 0) return;
  rope.style = run->rope.style;
  rope.scaling = run->rope.scaling;
  rope.base = run->rope.base;
  rope.dims = run->rope.dims;
}

std::string RunText(const RecordedRun& run, const OpenOptions& reading) {
  const auto or_unknown = [](const std::string& text) {
    return text.empty() ? std::string("unknown") : Printable(text);
  };
  std::string text = fmt::format("{}: a recorded run\n", Printable(run.folder));
  const auto add = [&](std::string_view name, const std::string& value) {
    text += fmt::format("  {:<12} {}\n", name, value);
  };
  add("engine", or_unknown(run.engine) + (run.build.empty() ? "" : " " + Printable(run.build)));
  std::string model = or_unknown(run.model);
  if (!run.architecture.empty()) model += ", " + Printable(run.architecture);
  if (run.context_length != 0) model += fmt::format(", context of {}", run.context_length);
  add("model", model);
  add("tokens", fmt::format("{}, of these {} of the prompt", run.tokens, run.prompt_tokens));
  if (run.nll) add("nll", fmt::format("{:.4f} nats per decoded token", *run.nll));
  if (run.rope.base != 0) {
    add("RoPE", fmt::format("{}, base {}, {} dims, scaling {}", run.rope.style, run.rope.base,
                            run.rope.dims, run.rope.scaling));
  }
  OpenOptions trace;
  trace.max_bytes = reading.max_bytes;
  add("trace", run.trace.empty() ? "none" : TraceText(OpenTrace(run.trace, trace)));
  if (!run.sensitivity.empty()) {
    add("sensitivity", fmt::format("of {} layers", ReadSensitivity(run.sensitivity).kl.size()));
  }
  return text;
}

const Fields<RecordedRun>& RecordedRunFields() {
  using Run = RecordedRun;
  static const Fields<Run> engine = {
      {"name", "Name of the engine; null if not stated", IfAny(&Run::engine)},
      {"build", "Build of the engine; null if not stated", IfAny(&Run::build)}};
  static const Fields<Run> model = {
      {"name", "Name of the model; null if not stated", IfAny(&Run::model)},
      {"architecture", "Architecture of the model; null if not stated", IfAny(&Run::architecture)},
      {"context_length", "Longest context of the model in tokens; null if not stated",
       [](const Run& of) {
         return of.context_length == 0 ? std::nullopt : std::optional(of.context_length);
       },
       AtLeast(1)}};
  static const Fields<Run::Rope> rope = {
      {"style", "Pairing of dimensions: neox (halves) or gptj (neighbours)", &Run::Rope::style},
      {"base", "RoPE base", &Run::Rope::base},
      {"dims", "Number of dimensions of a head that RoPE rotates", &Run::Rope::dims},
      {"scaling", "RoPE scaling in the syntax of --rope-scaling; \"none\" if the model has none",
       &Run::Rope::scaling}};
  static const Fields<Run> files = {
      {"snapshot", "Path of the KV cache at the end", &Run::snapshot},
      {"prefill", "Path of the KV cache after the prompt; null: not recorded",
       IfAny(&Run::prefill)},
      {"trace", "Path of the attention trace; null: not recorded", IfAny(&Run::trace)},
      {"logits", "Path of the logits; null: not recorded", IfAny(&Run::logits)},
      {"sensitivity", "Path of the layers' sensitivities; null: not recorded",
       IfAny(&Run::sensitivity)}};
  static const Fields<Run> fields = {
      {"folder", "Folder of the run as given", &Run::folder},
      {"engine", "Engine that recorded the run", std::identity(), engine},
      {"model", "Model that ran", std::identity(), model},
      {"tokens", "Tokens of the run, prompt included", &Run::tokens, AtLeast(1)},
      {"prompt_tokens", "Tokens of the prompt", &Run::prompt_tokens},
      {"nll", "Mean negative log likelihood of the decoded tokens in nats; null if not stated",
       &Run::nll, AtLeast(0)},
      {"rope",
       "RoPE of the model, as --rope-style, --rope-base, --rope-dims and --rope-scaling take it",
       [](const Run& of) { return of.rope.base != 0 ? std::optional(of.rope) : std::nullopt; },
       rope},
      {"files", "Files of the run", std::identity(), files}};
  return fields;
}

void TakeTrace(const std::optional<RecordedRun>& run, std::string& trace) {
  if (run && trace.empty()) trace = run->trace;
}

// Endings of the names of traces that are one file.
constexpr std::string_view kTraceEndings[] = {".trace.safetensors", ".trace.npz", ".trace.pt"};

bool IsOfTrace(const fs::path& path) {
  const std::string file = path.filename().string();
  if (std::ranges::any_of(kTraceEndings, [&](auto ending) { return file.ends_with(ending); }))
    return true;
  const size_t end = file.ends_with("-tokens.npy") ? file.size() - 11 : file.rfind("-L");
  return file.ends_with(".npy") && end != file.npos &&
         IsTraceStem(path.parent_path(), file.substr(0, end));
}

std::string TraceBeside(const std::string& snapshot) {
  std::error_code failed;
  const fs::path folder = fs::path(snapshot).parent_path();
  const std::string name = fs::path(snapshot).filename().string();
  for (size_t end = name.rfind('.'); end != name.npos && end > 0; end = name.rfind('.', end - 1)) {
    if (IsTraceStem(folder, name.substr(0, end))) return (folder / name.substr(0, end)).string();
  }
  for (fs::path stem = fs::path(name); !stem.empty(); stem = stem.stem()) {
    for (const std::string_view extension : kTraceEndings) {
      const fs::path file = folder / (stem.string() + std::string(extension));
      if (fs::is_regular_file(fs::symlink_status(file, failed))) return file.string();
    }
    if (!stem.has_extension()) break;
  }
  return {};
}

void RequireTrace(const std::string& trace, const std::string& input) {
  if (!trace.empty()) return;
  std::error_code ignored;
  if (input != "-" && !fs::exists(input, ignored)) Source::Open(input);
  Error error(Finding::kUsage, "--trace is missing: only a recorded run brings its own");
  const std::string beside = TraceBeside(input);
  error.Hint("{}", !beside.empty() ? "give --trace " + Printable(beside) + ", from the same folder"
                   : fs::is_directory(input, ignored)
                       ? "'kvtool doctor " + Printable(input) +
                             "' names the caches in it, with the traces beside them"
                       : "record a run: python -m kvtool.capture MODEL ... -o run/ "
                         "(docs/engines/README.md)");
  throw std::move(error.File(input));
}

}  // namespace kv
