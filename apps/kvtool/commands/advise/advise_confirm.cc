// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `advise --confirm`: runs kvtool.closed_loop as a child, because kvtool itself has no inference
// engine, and reads the losses that it measured.
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "apps/kvtool/commands/advise/advise_report.h"
#include "formats/json_fields.h"
#include "lib/core/base/temporary.h"

extern char** environ;

namespace kv {
namespace fs = std::filesystem;
namespace {

constexpr double kMostNats = 1e6;
constexpr uint64_t kMostRows = uint64_t{1} << 31;

// A folder for the plans and the child's document, which exists as long as this object.
class WorkFolder {
 public:
  WorkFolder() {
    do {
      descriptor_.Reset();
      name_ = Temporary(fs::temp_directory_path() / "confirm");
      if (::mkdir(name_.name().c_str(), 0700) != 0) {
        const Error error = SystemError(Finding::kWriteFailed, "cannot create", name_.name());
        name_.Release();  // it is not ours
        throw error;
      }
      descriptor_.Reset(::open(name_.name().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    } while (!name_.Claim(descriptor_.get()));
  }
  std::string File(const std::string& name) const {
    return (fs::path(name_.name()) / name).string();
  }

 private:
  Temporary name_;
  Descriptor descriptor_;
};

// Starts a program with its standard output on ours for errors, and returns its status as wait()
// has it.
int RunProgram(const std::vector<std::string>& words) {
  std::vector<char*> arguments, variables;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  // Without it, -m would import modules from the present folder, which may be anybody's.
  std::string safe_path = "PYTHONSAFEPATH=1";
  variables.push_back(safe_path.data());
  for (char** entry = environ; *entry != nullptr; ++entry) variables.push_back(*entry);
  variables.push_back(nullptr);

  posix_spawn_file_actions_t streams;
  posix_spawn_file_actions_init(&streams);
  posix_spawn_file_actions_addopen(&streams, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&streams, STDERR_FILENO, STDOUT_FILENO);
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, arguments.front(), &streams, nullptr, arguments.data(),
                                    variables.data());
  posix_spawn_file_actions_destroy(&streams);
  if (failed != 0) {
    throw Error(Finding::kOpenFailed, "--python: cannot start '{}': {}", words.front(),
                std::strerror(failed));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw SystemError(Finding::kReadFailed, "cannot wait for", words.front());
  }
  return status;
}

void RequireSuccess(int status, const std::string& python) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  throw Error(Finding::kUnsupportedKind, "--confirm: kvtool.closed_loop {} {}; {} printed why",
              WIFEXITED(status) ? "ended with status" : "was ended by signal",
              WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), python)
      .Hint(
          "--python must have kvtool, torch and transformers; --model must be the captured model");
}

// Returns the losses in a document of kvtool.closed_loop, in the order of the plans given to it.
std::vector<advise::RealLoss> ParseLosses(const FileSource& file, size_t count) {
  const nlohmann::json document = ReadDocument(file, "kvtool.closed-loop/1");
  const auto plans = document.find("plans");
  if (plans == document.end() || !plans->is_array() || plans->size() != count) {
    throw Error(Finding::kBadField, "'plans' is not a list of {}", count);
  }
  std::vector<advise::RealLoss> losses;
  for (const nlohmann::json& plan : *plans) {
    if (!plan.is_object()) throw Error(Finding::kBadField, "'plans' has an entry of another kind");
    const nlohmann::json real = ObjectField(plan, "real");
    // Rounding may take the mean of tiny divergences below 0.
    const auto nats = RealField(real, "kl", -1e-6, kMostNats);
    const auto rows = CountField(real, "rows", kMostRows);
    if (!nats || !rows) throw Error(Finding::kBadField, "'real' has no 'kl' and 'rows'");
    losses.push_back(
        {std::max(*nats, 0.0), RealField(real, "kl_standard_error", 0, kMostNats), *rows});
  }
  return losses;
}

std::vector<advise::RealLoss> ReadLosses(const std::string& path, size_t count) {
  try {
    return ParseLosses(*FileSource::OpenSmall(path, kLargestDocument, "a document"), count);
  } catch (const Error& error) {  // its file is removed
    throw Error(error.finding(), "--confirm: the document of kvtool.closed_loop: {}",
                error.message());
  }
}

}  // namespace

void ConfirmOptions::Declare(CommandLine& line) {
  const Option confirm = line.AddFlag(
      "--confirm", is_wanted,
      "Apply the answer and its neighbours in the model that --model names (a folder, a GGUF file, "
      "or a name that transformers knows), and correct all losses by what they lose there");
  line.Add("--python", python,
           "Python with kvtool, torch and transformers, for --confirm (default: python3)")
      .Needs(confirm);
}

advise::Confirmation ConfirmOptions::Confirm(Console& console, const advise::Runs& runs,
                                             const advise::AdviceRequest& request,
                                             const advise::Advice& advice,
                                             const advise::Savings* savings,
                                             const advise::Answer& answer, ThreadPool& pool) const {
  const std::vector<advise::PlanToConfirm> plans =
      ListPlansToConfirm(runs, request, advice, savings, answer, pool);
  std::vector<advise::ConfirmedPlan> confirmed;
  for (size_t run = 0; run < runs.size(); ++run) {
    const WorkFolder folder;
    const std::string result = folder.File("result.json");
    std::vector<std::string> words = {
        python,  "-m", "kvtool.closed_loop", "--quiet", "--model=" + model, "--output=" + result,
        "--plan"};
    for (size_t p = 0; p < plans.size(); ++p) {
      words.push_back(folder.File(fmt::format("plan{}.json", p)));
      WriteEvictions(words.back(), {}, *runs[run], "mixed", {}, plans[p].evictions[run]);
    }
    if (answer.is_chosen) words.emplace_back("--quant-plan");
    for (size_t p = 0; p < plans.size() && answer.is_chosen; ++p) {
      words.push_back(folder.File(fmt::format("types{}.json", p)));
      WriteTypes(words.back(), {}, runs, *savings, plans[p].pairs);
    }
    words.insert(words.end(), {"--", runs[run]->name()});
    console.Say(fmt::format("{}: confirming {} in {}", Printable(runs[run]->name()),
                            format::Plural(plans.size(), "plan"), Printable(model)));
    RequireSuccess(RunProgram(words), python);
    const std::vector<advise::RealLoss> losses = ReadLosses(result, plans.size());
    for (size_t p = 0; p < plans.size(); ++p)
      confirmed.push_back(ConfirmPlan(runs, run, plans[p], losses[p]));
  }
  advise::Confirmation confirmation =
      Correct(runs, request, advice, savings, answer, std::move(confirmed));
  confirmation.model = model;
  return confirmation;
}

void PrintConfirmation(Console& console, const advise::Confirmation& confirmation,
                       const advise::Answer& answer) {
  console.Line(fmt::format("confirmed in {}:", Printable(confirmation.model)));
  console.Data(Table(ConfirmedTable(confirmation)).Text());
  for (const std::string& text : ConfirmationTexts(confirmation, answer)) console.Line(text);
}

}  // namespace kv
