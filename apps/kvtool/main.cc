// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Parses the command line, runs one command, turns failures into messages and exit statuses.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <new>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/help.h"
#include "lib/kernels/targets.h"

namespace kv {
namespace {

void OnInterrupt(int signal) {
  RemoveTemporariesOnSignal();
  ::_exit(signal == SIGINT || signal == SIGTERM ? kInterrupted : kIoError);
}

// A mapped input that shrinks while it is read raises SIGBUS; say so instead of dying silently.
void OnBus(int) {
  RemoveTemporariesOnSignal();
  constexpr char kText[] =
      "kvtool: an input changed or could not be read while it was in use [KV0102]\n";
  if (::write(STDERR_FILENO, kText, sizeof(kText) - 1) < 0) ::_exit(kIoError);
  ::_exit(kIoError);
}

void InstallSignals() {
  std::signal(SIGINT, OnInterrupt);
  std::signal(SIGTERM, OnInterrupt);
  std::signal(SIGBUS, OnBus);
}

void Configure(Console& console, const GlobalOptions& global) {
  console.verbosity = global.verbose - global.quiet;
  console.colour = global.colour == "always"  ? When::kAlways
                   : global.colour == "never" ? When::kNever
                                              : When::kAuto;
  if (global.simd.empty() || ForceSimdTarget(global.simd)) return;
  std::string known;
  for (const SimdTarget& target : SimdTargets()) {
    if (target.supported) known += (known.empty() ? "" : ", ") + target.name;
  }
  throw Error(Finding::kUsage, fmt::format("--simd '{}': expected one of {}", global.simd, known));
}

int RunCommand(const CommandEntry& entry, Command& command, Console& console,
               const GlobalOptions& global) {
  try {
    Configure(console, global);
    Context context{console, global};
    const ExitStatus status = command.Run(context);
    if (console.warnings() > 1) console.Say(fmt::format("{} warnings", console.warnings()));
    // A reader that closed the pipe early (head) is no failure; a full disk behind stdout is.
    if (std::fflush(stdout) != 0 && errno != EPIPE) {
      throw Error(Finding::kWriteFailed, fmt::format("cannot write: {}", std::strerror(errno)))
          .File("stdout");
    }
    return status;
  } catch (const Error& error) {
    console.Report(error);
    if (error.code() == ErrorCode::kUsage && error.hint().empty()) {
      console.Say(fmt::format("hint: 'kvtool {} -h' shows how it is used", entry.name), -1);
    }
    return StatusOf(error.code());
  } catch (const std::bad_alloc&) {
    console.Report(Error(Finding::kInternal, "out of memory"));
    return kBug;
  } catch (const std::exception& error) {
    console.Report(
        Error(Finding::kInternal, error.what())
            .Hint("this is a bug; please report it with the output of 'kvtool targets'"));
    return kBug;
  }
}

int Main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  InstallSignals();
  Console console;
  if (argc < 2) {
    console.Data(Overview());
    return kUsageError;
  }
  const std::string word = argv[1];
  if (word == "-V" || word == "--version") {
    console.Line(VersionLine());
    return kDone;
  }
  if (word == "-h" || word == "--help" || word == "help") {
    if (word == "help" && argc > 2) return ShowHelp(console, argv[2]);
    console.Data(Overview());
    return kDone;
  }
  const CommandEntry* entry = FindCommand(word);
  if (entry == nullptr) {
    console.Report(UnknownCommand(word));
    return kUsageError;
  }

  const std::unique_ptr<Command> command = entry->make();
  GlobalOptions global;
  CLI::App app("", fmt::format("kvtool {}", entry->name));
  PrepareApp(app, *command, global);
  try {
    app.parse(argc - 1, argv + 1);
  } catch (const CLI::CallForHelp&) {
    console.Data(ShortHelp(*entry, app));
    return kDone;
  } catch (const CLI::CallForAllHelp&) {
    console.Data(LongHelp(*entry, app));
    return kDone;
  } catch (const CLI::ParseError& error) {
    console.Report(ExplainParseError(error, app, argc, argv));
    return kUsageError;
  }
  return RunCommand(*entry, *command, console, global);
}

}  // namespace
}  // namespace kv

int main(int argc, char** argv) { return kv::Main(argc, argv); }
