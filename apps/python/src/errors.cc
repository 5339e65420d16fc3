// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/python/src/errors.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace kvtool_python {

void Raise(const Failure& failure) {
  const nb::object offset =
      failure.offset == UINT64_MAX ? nb::object(nb::none()) : nb::object(nb::int_(failure.offset));
  const std::string message =
      failure.message.empty() ? kvt_explain(failure.status, KVT_EXPLAIN_SENTENCE) : failure.message;
  const nb::object error =
      nb::module_::import_("kvtool._errors")
          .attr("make_error")(-failure.status, kvt_explain(failure.status, KVT_EXPLAIN_ID),
                              kvt_fault(failure.status), message, offset, failure.hint,
                              failure.file, failure.text);
  PyErr_SetObject(error.type().ptr(), error.ptr());
  throw nb::python_error();
}

void RaiseIfFailed(kvt_status status, const kvt_ctx* ctx) {
  if (status == 0) return;
  Failure failure;
  failure.status = status;
  kvt_error error = {};
  error.struct_size = sizeof error;
  // A busy context recorded nothing about this call.
  if (ctx != nullptr && kvt_ctx_error(ctx, &error) == KVT_OK && error.status == status) {
    failure.offset = error.offset;
    failure.message = error.message;
    failure.hint = error.hint;
  }
  Raise(failure);
}

void RunWatched(const std::function<void()>& work, const std::function<void()>& stop,
                const std::function<void()>& tick) {
  // Short at first, so that short calls can be interrupted, too.
  constexpr std::chrono::milliseconds kLongest{50};
  std::chrono::milliseconds interval{1};
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
  } catch (
      const std::system_error&) {  // no thread is available: runs here, and cannot be interrupted
    const nb::gil_scoped_release released;
    return work();
  }
  const auto wait = [&] {
    const nb::gil_scoped_release released;
    std::unique_lock lock(mutex);
    interval = std::min(2 * interval, kLongest);
    return finished.wait_for(lock, interval, [&] { return done; });
  };
  try {
    while (!wait()) {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (tick) tick();
    }
  } catch (...) {
    const nb::gil_scoped_release released;
    {
      // Repeated, because a call that has not begun yet is not stopped.
      std::unique_lock lock(mutex);
      do stop();
      while (!finished.wait_for(lock, kLongest, [&] { return done; }));
    }
    worker.join();
    throw;
  }
  worker.join();
}

}  // namespace kvtool_python
