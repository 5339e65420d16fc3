// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/python/src/interrupt.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace kvtool_python {

bool OnMainThread() { return ::syscall(SYS_gettid) == ::getpid(); }

void RunWatched(const std::function<void()>& work, const std::function<void()>& stop,
                const std::function<void()>& tick) {
  constexpr std::chrono::milliseconds kInterval{50};
  std::mutex mutex;
  std::condition_variable finished;
  bool done = false;
  std::thread worker;
  try {
    worker = std::thread([&] {
      work();
      const std::lock_guard lock(mutex);
      done = true;
      finished.notify_one();
    });
  } catch (const std::system_error&) {  // no thread to be had: done here, and not watched
    const nb::gil_scoped_release released;
    return work();
  }
  const auto wait = [&] {
    const nb::gil_scoped_release released;
    std::unique_lock lock(mutex);
    return finished.wait_for(lock, kInterval, [&] { return done; });
  };
  try {
    while (!wait()) {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (tick) tick();
    }
  } catch (...) {
    const nb::gil_scoped_release released;
    {
      // More than once, because a call that has not begun yet is not stopped.
      std::unique_lock lock(mutex);
      do stop();
      while (!finished.wait_for(lock, kInterval, [&] { return done; }));
    }
    worker.join();
    throw;
  }
  worker.join();
}

}  // namespace kvtool_python
