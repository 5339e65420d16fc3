// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The program: signals and process state, parsing, dispatch, and the checks that apply to every
// command.
#include "apps/kvtool/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <new>
#include <string_view>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/inputs/each_command.h"
#include "apps/kvtool/line/help.h"
#include "lib/core/base/number.h"
#include "lib/core/base/system.h"
#include "lib/core/base/temporary.h"
#include "lib/core/base/utf8.h"
#include "lib/core/kernels/targets.h"
#include "lib/remote/url.h"

namespace kv {
namespace {

// Async-signal-safe.
[[noreturn]] void End(ExitStatus status, std::string_view text = "") {
  Console::ClearProgressOnSignal();
  RemoveTemporariesOnSignal();
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) ::_exit(status);
  ::_exit(status);
}

void OnInterrupt(int) { End(kInterrupted); }

// A mapped input that shrinks while it is read raises SIGBUS; the handler reports that instead of
// dying silently.
void OnBus(int) {
  End(kIoError, "kvtool: an input changed or could not be read while it was in use [KV0102]\n");
}

std::atomic<bool> memory_ran_out = false;

void OnNoMemory() {
  memory_ran_out = true;
  throw std::bad_alloc();
}

// Ends the program for lack of memory, also in libraries: zstd, xxHash and OpenBLAS do not use
// operator new.
bool EndsForWantOfMemory() noexcept {
  if (memory_ran_out) return true;
  try {
    if (const std::exception_ptr escaped = std::current_exception())
      std::rethrow_exception(escaped);
  } catch (const std::bad_alloc&) {
    return true;
  } catch (...) {
  }
  return false;
}

// If memory runs out inside a destructor no exception can leave it: JSON trees, for example,
// allocate while they are destroyed.
[[noreturn]] void OnTerminate() {
  if (EndsForWantOfMemory()) End(kIoError, "kvtool: out of memory [KV0106]\n");
  End(kBug, "kvtool: an exception escaped: this is a bug [KV9001]\n");
}

// nlohmann's JSON marks a null as an object before it allocates one; if that fails, its destructor
// reads uninitialised memory. So a segmentation fault after running out of memory counts as lack of
// memory; any other is a bug.
struct sigaction before_segmentation;

void OnSegmentation(int signal) {
  if (memory_ran_out) OnTerminate();
  ::sigaction(signal, &before_segmentation, nullptr);
  std::raise(signal);
}

// Keeps a signal ignored if the parent ignores it (nohup, a job in the background).
void HandleUnlessIgnored(int signal) {
  struct sigaction before;
  if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) return;
  std::signal(signal, OnInterrupt);
}

void InstallSignals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) HandleUnlessIgnored(signal);
  std::signal(SIGBUS, OnBus);
  ::sigaction(SIGSEGV, nullptr, &before_segmentation);
  std::signal(SIGSEGV, OnSegmentation);
  // Writing then fails with EPIPE or EFBIG, which is reported and cleaned up.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

// Reserves closed descriptors: otherwise an output could become descriptor 0, 1 or 2 and receive
// printed text. Reading from or writing to a closed one still fails.
void FillStandardDescriptors() {
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(standard, F_GETFD) >= 0) continue;
    const int filler = ::open("/dev/null", (standard == STDIN_FILENO ? O_WRONLY : O_RDONLY));
    if (filler >= 0 && filler != standard) ::close(filler);
  }
}

// Threads get stacks of this size, too, and would crash with SIGSEGV at their end.
void RequireStack() {
  constexpr rlim_t kLeastStack = 512 << 10;
  struct rlimit limit;
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kLeastStack) return;
  throw Error(Finding::kNoResources, "the stack is limited to {} KiB, but kvtool needs {}",
              limit.rlim_cur >> 10, kLeastStack >> 10)
      .Hint("'ulimit -s 8192' sets the usual limit");
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
  throw Error(Finding::kUsage, "--simd '{}': expected one of {}", global.simd, known);
}

// Prints for -v what was read and written, in bytes, and the time.
void TellMore(std::string_view name, const CommandFiles& files, double seconds, Context& context) {
  for (const std::string& size : files.Sizes()) {
    context.console.Say(fmt::format("kvtool: {}", size), 1);
  }
  const remote::Traffic traffic = remote::TrafficSoFar();
  if (traffic.requests > 0) {
    context.console.Say(
        fmt::format("kvtool: fetched {} bytes in {} requests", traffic.bytes, traffic.requests), 1);
  }
  context.console.Say(
      fmt::format("kvtool: {} took {} on {}, SIMD {}, at most {} of memory", name,
                  HumanSeconds(seconds),
                  Plural(static_cast<uint64_t>(context.global.thread_count()), "thread"),
                  ActiveSimdTarget(), HumanBytes(sys::PeakMemory())),
      1);
}

// Existing output files end the run before its work. A run that resumes another (--results) may
// find its own. An output that contains one of `inputs` may be invalid for several; RunEach reports
// that.
void RequireNewOutputs(const CommandFiles& files, const CommandLine& line, size_t inputs) {
  if (line.Given("--force") || line.Given("--results")) return;
  std::vector<std::string> existing;
  for (const CommandFiles::Output& output : files.outputs()) {
    if (inputs > 1 && !output.HoldsAllInputs()) continue;
    std::error_code ignored;
    const bool is_file =
        !DescriptorNamed(output.path) && std::filesystem::is_regular_file(output.path, ignored);
    // Names of pictures are known once they are drawn; they are checked before any is written.
    const bool is_known = output.flag.starts_with('-') && output.flag != "--svg-out";
    // The command itself examines an archive that it will replace.
    const bool is_updated = output.flag == "-o" && line.Given("--update");
    if (is_file && is_known && !is_updated) existing.push_back(Printable(output.path));
  }
  if (existing.empty()) return;
  const std::string first = existing.front();
  existing.erase(existing.begin());
  throw Error(Finding::kExists, "exists{}",
              existing.empty() ? "" : fmt::format(", as do {}", fmt::join(existing, ", ")))
      .File(first)
      .Hint("use -f/--force to overwrite");
}

// Returns the files that the options of a command over many inputs name, before the inputs are
// searched. No output may overwrite one of them, whether it exists or not.
CommandFiles NamedFiles(const EachCommand& command, CommandFiles files) {
  for (const std::string& input : command.inputs().given) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(input, ignored)) files.Reads(input);
  }
  try {
    command.Files(files);
  } catch (const Error&) {
    return {};  // a name could not be derived; RunEach reports what is wrong
  }
  files.Check();
  return files;
}

ExitStatus RunCommand(std::string_view name, Command& command, Context& context,
                      const CommandLine& line) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    Configure(context.console, context.global);
    for (const std::string& setting : line.Settings()) {
      context.console.Say(fmt::format("kvtool: {}", Printable(setting)), 2);
    }
    CommandFiles files;
    files.Reads(line.config_file());
    ExitStatus status;
    if (EachCommand* each = command.AsEach()) {
      const size_t inputs = each->JoinsInputs() ? 1 : each->inputs().given.size();
      RequireNewOutputs(NamedFiles(*each, files), line, inputs);
      status = RunEach(name, *each, line.Parameters(), files, context);
    } else {
      command.TakeRuns();
      command.Files(files);
      files.Check();
      RequireNewOutputs(files, line, 1);
      status = command.Run(context);
    }
    if (context.console.warnings() > 1) {
      context.console.Say(fmt::format("{} warnings", context.console.warnings()));
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    TellMore(name, files, took.count(), context);
    return status;
  } catch (Error& error) {
    if (error.code() == ErrorCode::kUsage && error.hint().empty()) error.Hint(line.HintOfUse());
    throw;
  }
}

// Throws if KVTOOL_CONFIG does not name a file; the parser would ignore it silently.
void RequireConfig(int argc, char* const* argv) {
  const char* path = std::getenv("KVTOOL_CONFIG");
  if (path == nullptr || *path == '\0') return;
  int problem = ::access(path, R_OK) == 0 ? 0 : errno;
  std::error_code ignored;
  if (problem == 0 && std::filesystem::is_directory(path, ignored)) problem = EISDIR;
  if (problem == 0) return;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]).starts_with("--config")) return;
  }
  throw Error(Finding::kConfig, "cannot be read: {}", std::strerror(problem))
      .File(path)
      .Hint("KVTOOL_CONFIG names it");
}

int ShowVersion(Console& console, int argc, char** argv) {
  bool json = false;
  bool licences = false;
  for (int i = 2; i < argc; ++i) {
    json |= std::string_view(argv[i]) == "--json";
    licences |= std::string_view(argv[i]) == "--licenses";
  }
  if (!json) {
    console.Product(VersionLine() + "\n");
    if (licences) console.Product(fmt::format("\n{}", Licences()));
    return kDone;
  }
  ReportOptions report;
  report.json = true;
  report.Emit(console, "version", VersionDocument(), RulesFor(false));
  return kDone;
}

// Returns the program and its arguments, quoted for a shell and without secrets in URLs.
std::string CommandText(int count, char** words) {
  std::string text = "kvtool";
  for (int i = 0; i < count; ++i) text += " " + ShellQuoted(remote::WithoutUrlSecrets(words[i]));
  return text;
}

int Dispatch(Console& console, int argc, char** argv);

// Dispatches `words` in place of the program's own arguments.
int DispatchWords(Console& console, std::vector<std::string> words) {
  words.insert(words.begin(), "kvtool");
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return Dispatch(console, static_cast<int>(words.size()), pointers.data());
}

bool IsFindingNumber(std::string_view word) {
  if (word.starts_with("KV") || word.starts_with("kv")) word.remove_prefix(2);
  return !word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos;
}

// Runs `kvtool help formats`, `help schema NAME` and `help KV1001` as the commands that answer
// them, unless a word is missing.
int ShowHelp(Console& console, int count, char** words) {
  if (count == 0 || *words[0] == '-') {
    console.Product(FirstScreen());
    return kDone;
  }
  if (IsFindingNumber(words[0])) return DispatchWords(console, {"explain", words[0]});
  const CommandEntry* entry = FindCommand(words[0]);
  const bool answers = entry != nullptr && entry->shelf == Shelf::kHelp;
  if (answers && (count > 1 || !NeedsWord(*entry))) {
    return DispatchWords(console, {words, words + count});
  }
  console.Product(HelpOn(count, words));
  return kDone;
}

// Shows the help of `kvtool replay` without a verb.
int ShowFamily(Console& console, const CommandEntry& family, int argc, char** argv) {
  const std::string_view word = argc > 2 ? argv[2] : "";
  if (word == "-h" || word == "--help") {
    console.document().Drop();
    console.Product(FamilyHelp(family));
    return kDone;
  }
  const std::string meant = MeantCommand(word);
  Error error(Finding::kUsage, "{}: {}{}", family.name,
              word.empty() || word.starts_with('-')
                  ? "a verb is missing"
                  : fmt::format("'{}' is not one of its verbs", Escaped(word)),
              meant.empty() ? "" : fmt::format("; did you mean '{}'?", meant));
  console.Report(error.Hint("'kvtool {} -h' lists them", family.name));
  return kUsageError;
}

int RunGiven(Console& console, const GivenCommand& given, int argc, char** argv) {
  const CommandEntry& entry = *given.entry;
  console.document().Name(FindDocument(entry.name));
  const std::vector<std::string> arguments(argv + 1 + given.words, argv + argc);
  if (!arguments.empty()) {
    console.document().Name(FindDocument(fmt::format("{} {}", entry.name, arguments.front())));
  }
  const std::unique_ptr<Command> command = entry.make();
  GlobalOptions global;
  CommandLine line(fmt::format("kvtool {}", given.words > 1 ? entry.words : entry.name));
  Declare(line, *command, global);
  switch (line.Parse(argc - given.words, argv + given.words)) {
    case CommandLine::Asked::kShortHelp:
      console.document().Drop();
      console.Product(ShortHelp(entry, line));
      return kDone;
    case CommandLine::Asked::kLongHelp:
      console.document().Drop();
      console.Product(LongHelp(entry, line));
      return kDone;
    case CommandLine::Asked::kRun:
      break;
  }
  const std::vector<std::string> instead = command->Instead(arguments);
  if (!instead.empty()) return DispatchWords(console, instead);
  console.document().Take(line);
  console.only_products = DescriptorNamed(line.Value("--csv")) == STDOUT_FILENO;
  RequireConfig(static_cast<int>(arguments.size()) + 1, argv + given.words);
  const auto run_as = [&](std::vector<std::string> words, const std::string& input) {
    for (std::string& word : line.GivenWords()) words.push_back(std::move(word));
    words.push_back(input.starts_with('-') ? "./" + input : input);
    return static_cast<ExitStatus>(DispatchWords(console, std::move(words)));
  };
  Context context{console, global, run_as};
  return RunCommand(entry.name, *command, context, line);
}

int Dispatch(Console& console, int argc, char** argv) {
  console.document().Guess(argc, argv);
  console.command_line = CommandText(argc - 1, argv + 1);
  if (argc < 2) {
    console.Product(FirstScreen());
    return kUsageError;
  }
  const std::string word = argv[1];
  if (word == "-V" || word == "--version" || word == "version")
    return ShowVersion(console, argc, argv);
  if (word == "-h" || word == "--help") return ShowHelp(console, 0, nullptr);
  if (word == "help") return ShowHelp(console, argc - 2, argv + 2);
  if (word == "__options") {  // for scripts/check/flags.py
    console.Json(OptionsDocument(DescribeCommands()));
    return kDone;
  }
  const GivenCommand given = TakeCommand(argc - 1, argv + 1);
  if (given.entry == nullptr) {
    console.Report(UnknownCommand(word));
    return kUsageError;
  }
  if (given.entry->make == nullptr) return ShowFamily(console, *given.entry, argc, argv);
  return RunGiven(console, given, argc, argv);
}

// Warns that new files are complete, but that hidden leftovers exist: the replaced file, or an
// unfinished one.
void WarnOfLeftovers(Console& console) {
  for (const std::string& name : TakeUnremoved()) {
    console.Warn(
        name, "could not be removed; the next run with the same output tries to remove it again");
  }
}

// The words of the command line, with URLs replaced by their names, so that no secret in them is
// shown or stored.
class NamedUrls {
 public:
  NamedUrls(int argc, char** argv) {
    SetUrlOpener(remote::OpenUrl);
    for (int i = 0; i < argc; ++i) names_.push_back(FindName(argv[i]));
    for (std::string& name : names_) words_.push_back(name.data());
    words_.push_back(nullptr);
  }
  char** words() { return words_.data(); }

 private:
  // Also handles "--trace=URL".
  static std::string FindName(const std::string& word) {
    const size_t begin = word.starts_with("--") ? std::min(word.find('='), word.size() - 1) + 1 : 0;
    const std::string value = word.substr(begin);
    return remote::IsUrl(value) ? word.substr(0, begin) + remote::NameOfUrl(value) : word;
  }

  std::vector<std::string> names_;
  std::vector<char*> words_;
};

}  // namespace

namespace {

// Returns "slot0.bin" if "slot0" was asked for and does not exist: files with a further extension.
std::string FilesBeside(const std::string& missing) {
  namespace fs = std::filesystem;
  constexpr size_t kMost = 3;
  const fs::path path(missing);
  const std::string begin = path.filename().string() + ".";
  std::set<std::string> found;
  std::error_code failed;
  if (missing.empty() || fs::exists(path, failed)) return {};
  for (fs::directory_iterator entry(path.has_parent_path() ? path.parent_path() : ".", failed), end;
       !failed && entry != end; entry.increment(failed)) {
    if (entry->path().filename().string().starts_with(begin))
      found.insert(Printable((path.parent_path() / entry->path().filename()).string()));
  }
  while (found.size() > kMost) found.erase(std::prev(found.end()));
  return found.empty() ? "" : fmt::format("did you mean {}?", fmt::join(found, " or "));
}

}  // namespace

int StatusOfFailure(Console& console, const std::string& file) {
  try {
    throw;
  } catch (const ClosedPipe&) {
    console.document().Drop();
    return kDone;
  } catch (Error& error) {
    if (!file.empty()) error.File(file);
    if (error.finding() == Finding::kOpenFailed && error.hint().empty())
      error.Hint(FilesBeside(error.file()));
    console.Report(error);
    return ExitStatusFor(error.code());
  } catch (const std::bad_alloc&) {
    Error error(Finding::kNoResources, "out of memory");
    console.Report(file.empty() ? error : error.File(file));
    return kIoError;
  } catch (const std::exception& failure) {
    Error error(Finding::kInternal, failure.what());
    error.Hint("this is a bug; please report it with the output of 'kvtool targets'");
    console.Report(file.empty() ? error : error.File(file));
    return kBug;
  }
}

int RunProgram(int argc, char** argv) {
  const CLocale locale;
  FillStandardDescriptors();
  InstallSignals();
  std::set_new_handler(OnNoMemory);
  std::set_terminate(OnTerminate);
  Console console;
  int status;
  try {
    RequireStack();
    NamedUrls named(argc, argv);
    remote::SetWaitNotice([&](const std::string& line) { console.Say("kvtool: " + line); });
    status = Dispatch(console, argc, named.words());
  } catch (...) {
    status = StatusOfFailure(console);
  }
  const auto finish = [&](const std::function<void()>& step) {
    try {
      step();
    } catch (...) {
      status = std::max(status, StatusOfFailure(console));
    }
  };
  finish([&] { WarnOfLeftovers(console); });
  finish([&] { console.document().Write(static_cast<ExitStatus>(status), console); });
  finish([&] { console.document().Print(static_cast<ExitStatus>(status), console); });
  finish([&] { console.Finish(); });
  return status;
}

ExitStatus RunEmbedded(std::string_view name, Command& command,
                       const std::vector<std::string>& arguments, Embedding& embedding) {
  const CLocale locale;
  Console console(&embedding);
  GlobalOptions global;
  CommandLine line(fmt::format("kvtool {}", name));
  Declare(line, command, global);
  std::vector<std::string> words = {std::string(name)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  NamedUrls named(static_cast<int>(pointers.size()), pointers.data());
  console.command_line = CommandText(static_cast<int>(words.size()), named.words());
  if (line.Parse(static_cast<int>(words.size()), named.words()) != CommandLine::Asked::kRun) {
    throw Error(Finding::kUsage, "help is for the command line");
  }
  Context context{console, global};
  const ExitStatus status = RunCommand(name, command, context, line);
  WarnOfLeftovers(console);
  console.document().Write(status, console);
  console.document().Print(status, console);
  return status;
}

}  // namespace kv
