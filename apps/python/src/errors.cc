// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/python/src/errors.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "apps/kvtool/console/console.h"
#include "apps/kvtool/line/help.h"
#include "apps/kvtool/program.h"
#include "apps/python/src/description.h"
#include "lib/core/base/file.h"
#include "lib/core/base/parallel.h"

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
  // The wait is short at first, so that short calls can be interrupted, too.
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
  } catch (const std::system_error&) {  // without a thread, calls cannot be interrupted
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
      // Repeats the stop, because a call that has not begun yet does not notice it.
      std::unique_lock lock(mutex);
      do stop();
      while (!finished.wait_for(lock, kLongest, [&] { return done; }));
    }
    worker.join();
    throw;
  }
  worker.join();
}

namespace {

// Collects a command's messages until the waiting Python thread can take them.
class Listener : public kv::Embedding {
 public:
  void Document(const nlohmann::ordered_json& document) override {
    documents.push_back(kv::JsonText(document, -1, true));
  }
  void Warning(const std::string& text) override { warnings.push_back(text); }
  void Failure(const kv::Error& error) override {
    if (!first_failure) first_failure = error;
  }
  void Progress(uint64_t done, uint64_t total) override {
    done_ = done;
    total_ = total;
    if (stopped) throw kv::Error(kv::Finding::kCancelled, "cancelled");
  }

  std::pair<uint64_t, uint64_t> progress() const { return {done_, total_}; }

  std::vector<std::string> documents, warnings;
  std::optional<kv::Error> first_failure;
  std::atomic<bool> stopped{false};

 private:
  std::atomic<uint64_t> done_{0}, total_{0};
};

Failure Unknown(const char* what) {
  Failure failure;
  failure.status = -static_cast<kvt_status>(kv::Finding::kInternal);
  failure.message = what;
  return failure;
}

// Stores an exception of `f`, to be raised with the GIL held.
std::optional<Failure> Caught(const std::function<void()>& f) {
  try {
    f();
  } catch (const kv::Error& error) {
    return DescribeFailure(error);
  } catch (const std::bad_alloc&) {
    return DescribeFailure(kv::Error(kv::Finding::kNoResources, "out of memory"));
  } catch (const kv::ClosedPipe&) {
    return DescribeFailure(kv::Error(kv::Finding::kWriteFailed, "the reader closed the pipe"));
  } catch (const std::exception& error) {
    return Unknown(error.what());
  } catch (...) {
    return Unknown("unknown exception");
  }
  return std::nullopt;
}

}  // namespace

Failure DescribeFailure(const kv::Error& error) {
  Failure failure;
  failure.status = -static_cast<kvt_status>(error.finding());
  failure.offset = error.offset().value_or(UINT64_MAX);
  failure.message = error.message();
  failure.hint = error.hint();
  failure.file = error.file();
  failure.text = error.what();
  return failure;
}

void WithoutGil(const std::function<void()>& f) {
  std::optional<Failure> failure;
  {
    const nb::gil_scoped_release released;
    failure = Caught(f);
  }
  if (failure) Raise(*failure);
}

void RunInterruptibly(nb::handle progress, const std::function<void(kv::Embedding&)>& work) {
  Listener listener;
  std::optional<Failure> failure;
  const auto tick = [&] {
    if (progress.is_none()) return;
    const auto [done, total] = listener.progress();
    const nb::object answer = progress(done, total);
    if (!answer.is_none() && !nb::cast<bool>(answer)) listener.stopped = true;
  };
  tick();  // checks before any work, because the call may end before the second check
  if (listener.stopped) Raise(DescribeFailure(kv::Error(kv::Finding::kCancelled, "cancelled")));
  RunWatched(
      [&] {
        const kv::StopScope scope(listener.stopped);
        failure = Caught([&] { work(listener); });
      },
      [&] { listener.stopped = true; }, tick);
  if (failure) Raise(*failure);
  tick();
}

std::vector<std::string> Words(nb::handle sequence) {
  std::vector<std::string> words;
  const Sequence given(sequence, "arguments");
  for (size_t i = 0; i < given.size(); ++i) {
    const nb::object word = given[i];
    if (!nb::isinstance<nb::bytes>(word)) throw nb::type_error("arguments: expected bytes");
    const auto bytes = nb::borrow<nb::bytes>(word);
    words.emplace_back(bytes.c_str(), bytes.size());
  }
  return words;
}

CommandOutcome RunCommand(const std::string& command, nb::handle arguments, nb::handle progress) {
  std::vector<std::string> words = Words(arguments);
  words.insert(words.begin(), command);
  CommandOutcome outcome;
  std::optional<kv::Error> failure;
  RunInterruptibly(progress, [&](kv::Embedding& embedding) {
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    const auto [entry, count] = kv::TakeCommand(static_cast<int>(words.size()), pointers.data());
    if (entry == nullptr || entry->make == nullptr) throw kv::UnknownCommand(command);
    words.erase(words.begin(), words.begin() + count);  // removes `replay quant`, for example
    outcome.status = kv::RunEmbedded(entry->name, *entry->make(), words, embedding);
    auto& listener = static_cast<Listener&>(embedding);
    outcome.documents = std::move(listener.documents);
    outcome.warnings = std::move(listener.warnings);
    failure = std::move(listener.first_failure);
  });
  if (failure) Raise(DescribeFailure(*failure));
  return outcome;
}

int RunMain(nb::handle arguments) {
  std::vector<std::string> words = Words(arguments);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const nb::gil_scoped_release released;
  return kv::RunProgram(static_cast<int>(words.size()), pointers.data());
}

}  // namespace kvtool_python
