// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <cstdio>
#include <filesystem>
#include <new>

#include "apps/capture-llama/engine.h"
#include "apps/capture-llama/failure.h"
#include "apps/capture-llama/options.h"

namespace kv::capture {
namespace {

int Run(const std::vector<std::string>& arguments) {
  const std::optional<Options> options = ParseOptions(arguments);
  if (!options) return kDone;
  CatchInterrupts();
  if (options->run.empty()) {
    Capture(*options);
  } else {
    Confirm(*options);
  }
  return std::fflush(stdout) == 0 ? kDone : kIo;
}

int Say(Status status, const char* what) {
  std::fprintf(stderr, "error: %s\n", what);
  return status;
}

int Main(const std::vector<std::string>& arguments) {
  try {
    return Run(arguments);
  } catch (const Failure& failure) {
    return Say(failure.status, failure.what());
  } catch (const std::filesystem::filesystem_error& error) {
    return Say(kIo, error.what());
  } catch (const std::bad_alloc&) {
    return Say(kIo, "out of memory");
  } catch (const std::exception& error) {
    return Say(kBug, error.what());
  }
}

}  // namespace
}  // namespace kv::capture

int main(int count, char** arguments) {
  return kv::capture::Main({arguments + 1, arguments + count});
}
