// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The command line: a table of options, checks of combinations, and help.
#include "apps/capture-llama/options.h"

#include <charconv>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>

#include "apps/capture-llama/failure.h"

// CMake defines the version.
#ifndef KVTOOL_CAPTURE_VERSION
#define KVTOOL_CAPTURE_VERSION "unversioned"
#endif

namespace kv::capture {

const char kVersion[] = KVTOOL_CAPTURE_VERSION;

static const char kHelp[] =
    R"(Records a run of llama.cpp for kvtool, or measures in llama.cpp what an eviction plan of kvtool costs.

  kvtool-capture-llama -m model.gguf -f prompt.txt -o run/
  kvtool-capture-llama --confirm run/ --plan plan.json...

Record (run/ gets cache, queries, tokens, likeliest next tokens and nll, all written in bounded memory):
  -m, --model FILE       model to run
  -f, --file FILE        text: the prompt, or with --prompt-tokens the prompt and its continuation
  -o, --output DIR       folder to make
  -n, --tokens N         tokens to decode after the prompt, greedily [256]
      --prompt-tokens N  the text's first N tokens are the prompt; the rest, or -n tokens of it, is decoded as given
  -c, --context N        tokens of the engine's context [as many as the run needs]
      --flash on|off     flash attention [the engine's default]
      --probs            also record attention probabilities (heads x tokens x tokens for each layer); turns --flash off
      --sens SIZE        measure what noise of this relative size in each layer's attention output costs, in nats
      --type f32|f16     type of the queries and probabilities [f32]
      --top-k N          likeliest next tokens to keep for each decoded token [20]
      --ignore-eos       do not stop where the model ends its answer
      --no-hash          do not hash the model file
      --force            replace a run that this program wrote

Confirm (decodes the run's tokens again; one line of JSON for each plan compares the rows after the prompt):
      --confirm DIR      run to repeat
      --plan FILE...     plans (kvtool.h2o-plan/1)
      --by seq_rm|mask   remove cells (if all layers and heads have the same plan), or hide scores (any plan)
                         [seq_rm where the plan allows it]
      --ctk, --ctv TYPE  compare a cache of these types with one of f16, without a plan

Both:
  -t, --threads N        threads of the engine [its own choice]
      --ubatch N         tokens that the engine computes at once [512]
      --backends DIR     folder with the engine's libggml-cpu*.so [beside its other libraries]
      --build NAME       name of the engine's build, if it does not report one
  -h, --help   --version

Exit status: 0 done, 2 wrong usage, 3 invalid input, 4 files, 5 a model that is not supported, 130 interrupted.
)";

namespace {

using Values = std::vector<std::string>;

int32_t Number(const std::string& name, const std::string& text, int32_t least) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) {
    throw Failure(kUsage,
                  name + ": '" + text + "' is not a number of at least " + std::to_string(least));
  }
  return value;
}

std::string RequireOneOf(const std::string& name, const std::string& text, const Values& allowed) {
  for (const std::string& word : allowed) {
    if (text == word) return text;
  }
  throw Failure(kUsage, name + ": '" + text + "' is neither " + allowed[0] + " nor " + allowed[1]);
}

double Size(const std::string& name, const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0) || value > 10) {
    throw Failure(kUsage, name + ": '" + text + "' is not a size above 0 and up to 10");
  }
  return value;
}

void Require(bool good, const char* text) {
  if (!good) throw Failure(kUsage, text);
}

// Throws for combinations that are not allowed.
void Check(const Options& options) {
  const bool confirms = !options.run.empty();
  if (confirms) {
    Require(options.text_file.empty() && options.output.empty(),
            "--confirm takes text and folder from the run; leave out -f and -o");
    const bool types = !options.type_k.empty() || !options.type_v.empty();
    Require(types != !options.plans.empty(), "--confirm needs either --plan or --ctk and --ctv");
    Require(options.by != "mask" || !options.flash.value_or(false),
            "--by mask needs scores, which flash attention does not compute; leave out --flash on");
    return;
  }
  Require(options.plans.empty() && options.by.empty() && options.type_k.empty() &&
              options.type_v.empty(),
          "--plan, --by, --ctk and --ctv go with --confirm");
  Require(!options.model.empty() && !options.text_file.empty() && !options.output.empty(),
          "-m, -f and -o are needed; --help says more");
  Require(!options.probabilities || !options.flash.value_or(false),
          "--probs: flash attention computes no probabilities; leave out --flash on");
}

// Returns the long name of a short one, and other names unchanged.
std::string FullName(const std::string& name) {
  static const std::map<std::string, std::string> full = {
      {"-m", "--model"},   {"-f", "--file"},    {"-o", "--output"}, {"-n", "--tokens"},
      {"-c", "--context"}, {"-t", "--threads"}, {"-h", "--help"}};
  const auto found = full.find(name);
  return found == full.end() ? name : found->second;
}

// Options of kvtool.capture that llama.cpp cannot serve are not taken for misspelt ones.
Failure UnknownOption(const std::string& name) {
  if (name == "--fisher" || name == "--fisher-evicted") {
    return {kUnsupported, name +
                              " is not supported: llama.cpp gives no gradients of attention; "
                              "--sens measures weights of layers, and python -m kvtool.capture "
                              "records gradients"};
  }
  return {kUsage, "'" + name + "' is not an option; --help names all"};
}

}  // namespace

std::optional<Options> ParseOptions(const std::vector<std::string>& arguments) {
  Options options;
  std::string name;
  const auto text = [](std::string& to) { return [&to](const std::string& value) { to = value; }; };
  const auto number = [&name](int32_t& to, int32_t least) {
    return [&, least](const std::string& value) { to = Number(name, value, least); };
  };
  const auto choice = [&name](auto& to, const char* yes, const Values& words) {
    return
        [&, yes, words](const std::string& value) { to = RequireOneOf(name, value, words) == yes; };
  };
  const std::map<std::string, bool*> switches = {{"--probs", &options.probabilities},
                                                 {"--ignore-eos", &options.ignore_end},
                                                 {"--force", &options.force}};
  const std::map<std::string, std::function<void(const std::string&)>> taking = {
      {"--model", text(options.model)},
      {"--file", text(options.text_file)},
      {"--output", text(options.output)},
      {"--tokens", number(options.decoded, 0)},
      {"--prompt-tokens", number(options.prompt_tokens, 1)},
      {"--context", number(options.context, 1)},
      {"--flash", choice(options.flash, "on", {"on", "off"})},
      {"--sens", [&](const std::string& value) { options.noise = Size(name, value); }},
      {"--type", choice(options.half, "f16", {"f32", "f16"})},
      {"--top-k", number(options.top, 1)},
      {"--confirm", text(options.run)},
      {"--plan", [&](const std::string& value) { options.plans.push_back(value); }},
      {"--by",
       [&](const std::string& value) {
         options.by = RequireOneOf(name, value, {"seq_rm", "mask"});
       }},
      {"--ctk", text(options.type_k)},
      {"--ctv", text(options.type_v)},
      {"--threads", number(options.threads, 1)},
      {"--ubatch", number(options.ubatch, 1)},
      {"--backends", text(options.backends)},
      {"--build", text(options.build)}};
  for (size_t i = 0; i < arguments.size(); ++i) {
    name = FullName(arguments[i]);
    if (name == "--help") return std::printf("%s", kHelp), std::nullopt;
    if (name == "--version")
      return std::printf("kvtool-capture-llama %s\n", kVersion), std::nullopt;
    if (name == "--no-hash") {
      options.hash = false;
    } else if (const auto found = switches.find(name); found != switches.end()) {
      *found->second = true;
    } else if (const auto option = taking.find(name); option != taking.end()) {
      Require(i + 1 < arguments.size(), (name + " needs a value").c_str());
      option->second(arguments[++i]);
      // A list continues up to the next option.
      while (name == "--plan" && i + 1 < arguments.size() && arguments[i + 1][0] != '-') {
        option->second(arguments[++i]);
      }
    } else {
      throw UnknownOption(name);
    }
  }
  Check(options);
  return options;
}

}  // namespace kv::capture
