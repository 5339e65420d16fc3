// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <thread>

#include "lib/api/batch.h"
#include "lib/core/base/number.h"
#include "lib/core/base/system.h"

namespace kv::api {
namespace {

constexpr uint32_t kMostQueueThreads = 1024, kMostDepth = 1024, kDefaultDepth = 64;

// A descriptor that is readable from Raise to the next Lower. It is opened on first request: a
// queue whose callers only wait makes no system call for it.
class Signal {
 public:
  ~Signal() {
    if (event_.reader != -1) ::close(event_.reader);
    if (event_.writer != event_.reader) ::close(event_.writer);
  }
  // Returns the descriptor, or -1 if the system gave none.
  int Open() {
    const std::lock_guard lock(opening_);
    if (!open_) event_ = sys::OpenEvent();
    open_ = event_.reader != -1;
    return event_.reader;
  }
  // Writes once until the next Lower, however many completions there are.
  void Raise() {
    constexpr uint64_t kOne = 1;
    if (!open_ || raised_.exchange(true)) return;
    // A full pipe is readable already.
    [[maybe_unused]] const ssize_t written = ::write(event_.writer, &kOne, sizeof(kOne));
  }
  // Completions after this call raise the descriptor again; the caller finds earlier ones when it
  // searches next. The read is unconditional, because a concurrent Raise may write after `raised_`
  // became false.
  void Lower() {
    std::array<uint64_t, 16> raises;  // a pipe may hold more than one
    [[maybe_unused]] const ssize_t taken =
        open_ ? ::read(event_.reader, raises.data(), sizeof(raises)) : 0;
    raised_ = false;
  }

 private:
  std::mutex opening_;
  sys::Event event_;  // constant once `open_` is true
  std::atomic<bool> open_{false}, raised_{false};
};

enum Phase : uint64_t { kFree, kOwned, kRunning, kDone };  // kOwned: one thread fills or empties it

// Phase and generation of a slot form one number, so that a ticket of an earlier batch in the same
// slot has no effect.
constexpr uint64_t MakeWord(uint64_t generation, Phase phase) { return generation << 2 | phase; }
constexpr Phase GetPhase(uint64_t word) { return static_cast<Phase>(word & 3); }
constexpr uint64_t GetGeneration(uint64_t word) { return word >> 2; }

// One outstanding ticket.
//
// Threads share the work by two counters. `unclaimed` is the work that no thread has taken yet: 1
// for checking the batch, then 1 for each object. `held` counts all unfinished work, and the thread
// that lowers it to 0 finishes the batch. A claiming thread therefore always gets work of the batch
// that is in the slot at that moment, and the batch stays until that work is done.
struct alignas(64) Slot {
  std::atomic<uint64_t> word{MakeWord(0, kFree)};
  std::atomic<uint64_t> unclaimed{0}, held{0};
  kvt_batch given = {};
  std::optional<Batch> batch;  // holds a batch once it has been checked
  CallState state;
  std::optional<FirstFailure> failure;
  kvt_completion completion = {};

  // Used only by kvt_queue_wait.
  std::mutex mutex;
  std::condition_variable done;
  std::atomic<uint32_t> waiters{0};

  // Keeps the batch from being finished. Returns false if no batch is running.
  bool Hold() {
    uint64_t holders = held.load(std::memory_order_relaxed);
    while (holders > 0) {
      if (held.compare_exchange_weak(holders, holders + 1, std::memory_order_acquire)) return true;
    }
    return false;
  }
  // Takes one piece of work and returns how much there was before; 0: none.
  uint64_t Claim() {
    uint64_t left = unclaimed.load(std::memory_order_relaxed);
    while (left > 0) {
      if (unclaimed.compare_exchange_weak(left, left - 1, std::memory_order_acquire)) return left;
    }
    return 0;
  }
};

}  // namespace
}  // namespace kv::api

struct kvt_queue {
  kvt_queue(const kvt_ctx& like, uint32_t threads, uint32_t depth_);
  ~kvt_queue();

  kvt_ctx ctx;  // settings and sums; no call runs on it
  const pid_t process = ::getpid();
  const uint32_t depth;
  const std::unique_ptr<kv::api::Slot[]> slots;
  kv::api::Signal signal;
  std::atomic<uint32_t> next{0};  // where the next ticket begins to look for a free slot
  std::atomic<uint32_t> news{0};  // changes when there is work, and when the queue stops
  std::atomic<bool> stopping{false};
  std::vector<kvt_ctx::BatchWorker> memories;
  std::vector<std::jthread> workers;
};

namespace kv::api {
namespace {

// Throws kBadArgument also in a child after fork, where the queue has no threads.
void RequireUsable(const kvt_queue* queue) {
  Require(queue != nullptr && queue->process == ::getpid(), "queue");
}

void Wake(kvt_queue& queue, bool all) {
  queue.news.fetch_add(1, std::memory_order_release);
  all ? queue.news.notify_all() : queue.news.notify_one();
}

void Finish(kvt_queue& queue, Slot& slot) {
  kvt_ctx::LastError error;
  kvt_completion& completion = slot.completion;
  completion.status = Caught(&error, [&] {
    slot.state.Commit();
    slot.failure->ThrowIfAny();
  });
  completion.failed = slot.batch ? slot.failure->index() : UINT64_MAX;
  completion.offset = error.offset;
  Copy(error.message, completion.message, sizeof completion.message);
  // The word is stored before `waiters` is read, both sequentially consistent: a thread that begins
  // to wait either reads the new word or is counted in `waiters`.
  slot.word = MakeWord(GetGeneration(slot.word), kDone);
  queue.signal.Raise();
  if (slot.waiters == 0) return;
  const std::lock_guard lock(slot.mutex);
  slot.done.notify_all();
}

void Release(kvt_queue& queue, Slot& slot) {
  if (slot.held.fetch_sub(1, std::memory_order_acq_rel) == 1) Finish(queue, slot);
}

// Checks the batch and offers its objects to all threads.
void Check(kvt_queue& queue, Slot& slot, kvt_ctx::BatchWorker& memory) {
  kvt_ctx::LastError error;
  if (Caught(&error, [&] { slot.batch.emplace(&queue.ctx, slot.given, memory); }) != 0)
    return slot.failure->Note(0, error);
  const uint64_t count = slot.batch->count();
  slot.held.fetch_add(count, std::memory_order_relaxed);
  slot.unclaimed.store(count, std::memory_order_release);
  if (count > 1) Wake(queue, true);
}

// Does the piece of work that was claimed when `left` pieces were unclaimed.
void Work(kvt_queue& queue, Slot& slot, uint64_t left, kvt_ctx::BatchWorker& memory) {
  if (slot.batch) {
    const size_t index = slot.batch->count() - static_cast<size_t>(left);
    FrameCoder& coder = PrepareCoder(&queue.ctx, slot.state, memory);
    slot.batch->Run(&queue.ctx, slot.state, index, coder, memory, *slot.failure);
  } else {
    Check(queue, slot, memory);
  }
  Release(queue, slot);
}

// Searches the slots in a circle from where it last found work, so that every batch gets its turn.
void RunWorker(kvt_queue& queue, kvt_ctx::BatchWorker& memory) {
  const CLocale locale;
  for (uint32_t at = 0;;) {
    const uint32_t seen = queue.news.load(std::memory_order_acquire);
    uint64_t left = 0;
    for (uint32_t searched = 0; searched < queue.depth; ++searched, at = (at + 1) % queue.depth)
      if ((left = queue.slots[at].Claim()) > 0) break;
    if (left > 0) {
      Work(queue, queue.slots[at], left, memory);
    } else if (queue.stopping) {
      return;
    } else {
      queue.news.wait(seen, std::memory_order_acquire);
    }
  }
}

bool Cancel(kvt_queue& queue, Slot& slot, std::optional<uint64_t> generation) {
  if (!slot.Hold()) return false;
  const bool meant = !generation || slot.word == MakeWord(*generation, kRunning);
  const bool accepted = meant && slot.state.Cancel();
  Release(queue, slot);
  return accepted;
}

// Cancels all outstanding work and ends the threads.
void Stop(kvt_queue& queue) {
  for (uint32_t i = 0; i < queue.depth; ++i) Cancel(queue, queue.slots[i], std::nullopt);
  queue.stopping = true;
  Wake(queue, true);
  queue.workers.clear();  // joins
}

kvt_status Submit(kvt_queue& queue, const kvt_batch& batch, uint64_t* ticket) {
  const uint32_t first = queue.next.fetch_add(1, std::memory_order_relaxed);
  for (uint32_t i = 0; i < queue.depth; ++i) {
    const uint32_t index = (first + i) % queue.depth;
    Slot& slot = queue.slots[index];
    uint64_t word = slot.word.load(std::memory_order_relaxed);
    const uint64_t generation = GetGeneration(word) + 1;
    if (GetPhase(word) != kFree ||
        !slot.word.compare_exchange_strong(word, MakeWord(generation, kOwned)))
      continue;
    *ticket = generation * queue.depth + index;
    slot.given = batch;
    slot.completion = {0, 0, *ticket, batch.user, 0, 0, {}};
    slot.failure.emplace();
    slot.state.Begin();
    slot.held.store(1, std::memory_order_relaxed);
    slot.word = MakeWord(generation, kRunning);
    slot.unclaimed.store(1, std::memory_order_release);
    Wake(queue, false);
    return KVT_OK;
  }
  return KVT_E_BUSY;
}

// Takes the completion of a slot if it is of this generation.
bool Take(Slot& slot, uint64_t generation, kvt_completion& out) {
  uint64_t word = MakeWord(generation, kDone);
  if (!slot.word.compare_exchange_strong(word, MakeWord(generation, kOwned))) return false;
  out = slot.completion;
  slot.batch.reset();
  slot.state.End();
  slot.word = MakeWord(generation, kFree);
  return true;
}

size_t Poll(kvt_queue& queue, const Elements<kvt_completion>& room) {
  queue.signal.Lower();
  size_t count = 0;
  for (uint32_t i = 0; i < queue.depth; ++i) {
    const uint64_t word = queue.slots[i].word;
    if (GetPhase(word) != kDone) continue;
    if (count == room.size()) {  // more tickets completed than `out` can hold
      queue.signal.Raise();
      break;
    }
    kvt_completion completion;
    if (Take(queue.slots[i], GetGeneration(word), completion)) room.Put(count++, completion);
  }
  return count;
}

kvt_status Wait(Slot& slot, uint64_t generation, uint64_t timeout_ns, kvt_completion& out) {
  constexpr uint64_t kForEver = uint64_t{1} << 62;
  const uint64_t running = MakeWord(generation, kRunning);
  if (slot.word == running && timeout_ns > 0) {
    std::unique_lock lock(slot.mutex);
    const auto is_over = [&] { return slot.word != running; };
    ++slot.waiters;
    if (timeout_ns >= kForEver) {
      slot.done.wait(lock, is_over);
    } else {
      slot.done.wait_for(lock, std::chrono::nanoseconds(timeout_ns), is_over);
    }
    --slot.waiters;
  }
  const uint64_t before = slot.word;  // read first: the ticket may complete after Take looked
  if (Take(slot, generation, out)) return KVT_OK;
  return before == running ? KVT_E_BUSY : KVT_E_BAD_ARGUMENT;
}

}  // namespace
}  // namespace kv::api

using namespace kv;       // NOLINT: the functions below are the library's outermost layer
using namespace kv::api;  // NOLINT

kvt_queue::kvt_queue(const kvt_ctx& like, uint32_t threads, uint32_t depth_)
    : ctx(like.level, like.max_raw_bytes, nullptr),
      depth(depth_),
      slots(new Slot[depth_]),
      memories(threads) {
  ctx.profile = like.profile;
  ctx.coder.UseBlocks(like.coder.uses_blocks());
  for (kvt_ctx::BatchWorker& memory : memories) PrepareCoder(&ctx, ctx.state, memory);
  try {
    for (kvt_ctx::BatchWorker& memory : memories)
      workers.emplace_back([this, &memory] { RunWorker(*this, memory); });
  } catch (const std::exception& failure) {
    Stop(*this);
    ThrowNoThread(failure, "a thread of the queue");
  }
}

kvt_queue::~kvt_queue() { Stop(*this); }

kvt_status kvt_queue_create(kvt_ctx* ctx, const kvt_queue_params* params, kvt_queue** out) {
  return CallToMake(ctx, out, [&] {
    kvt_queue_params chosen = {};
    if (params != nullptr) chosen = Whole(params, "params->struct_size");
    Require(chosen.reserved == 0, "params->reserved");
    Require(chosen.threads <= kMostQueueThreads, "params->threads");
    Require(chosen.depth <= kMostDepth, "params->depth");
    if (chosen.threads == 0) chosen.threads = static_cast<uint32_t>(UsableCpus());
    if (chosen.depth == 0) chosen.depth = kDefaultDepth;
    return std::make_unique<kvt_queue>(*ctx, chosen.threads, chosen.depth);
  });
}

void kvt_queue_free(kvt_queue* queue) {
  if (queue != nullptr && queue->process == ::getpid()) delete queue;
}

kvt_status kvt_queue_submit(kvt_queue* queue, const kvt_batch* batch, uint64_t* ticket) {
  kvt_status found = KVT_OK;  // not thrown: an exception would allocate
  const kvt_status status = Caught(nullptr, [&] {
    RequireUsable(queue);
    Require(ticket != nullptr, "ticket");
    const kvt_batch whole = Whole(batch, "batch->struct_size");
    Require(whole.operation >= KVT_ENCODE_ITEMS && whole.operation <= KVT_DECODE_TABLE,
            "batch->operation");
    Require(whole.operation <= KVT_DECODE_ITEMS ? whole.items != nullptr || whole.count == 0
                                                : whole.table != nullptr,
            "batch->items, table");
    found = Submit(*queue, whole, ticket);
  });
  return status != 0 ? status : found;
}

kvt_status kvt_queue_poll(kvt_queue* queue, kvt_completion* out, size_t cap, size_t* count) {
  return Caught(nullptr, [&] {
    Require(count != nullptr, "count");
    *count = 0;
    RequireUsable(queue);
    *count = Poll(*queue, Elements<kvt_completion>(out, cap, "out->struct_size"));
  });
}

kvt_status kvt_queue_wait(kvt_queue* queue, uint64_t ticket, uint64_t timeout_ns,
                          kvt_completion* out) {
  kvt_status found = KVT_OK;
  const kvt_status status = Caught(nullptr, [&] {
    RequireUsable(queue);
    RequireSize(out, "out->struct_size");
    kvt_completion completion;
    Slot& slot = queue->slots[ticket % queue->depth];
    found = Wait(slot, ticket / queue->depth, timeout_ns, completion);
    if (found == KVT_OK) Fill(out, completion);
  });
  return status != 0 ? status : found;
}

int kvt_queue_cancel(kvt_queue* queue, uint64_t ticket) {
  if (queue == nullptr) return 0;
  return Cancel(*queue, queue->slots[ticket % queue->depth], ticket / queue->depth) ? 1 : 0;
}

int kvt_queue_fd(kvt_queue* queue) {
  if (queue == nullptr) return -1;
  const int descriptor = queue->signal.Open();
  for (uint32_t i = 0; i < queue->depth; ++i)  // signals tickets that completed before
    if (GetPhase(queue->slots[i].word) == kDone) queue->signal.Raise();
  return descriptor;
}

kvt_status kvt_queue_stats(const kvt_queue* queue, kvt_stats* out) {
  return kvt_ctx_stats(queue == nullptr ? nullptr : &queue->ctx, out);
}
