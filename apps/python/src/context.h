// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by context.cc, batch.cc

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "apps/python/src/description.h"
#include "apps/python/src/errors.h"
#include "lib/core/base/system.h"

// kvtool.Context, and the calls on frames, which it shares with functions of the module.
namespace kvtool_python {

struct FreeProfile {
  void operator()(kvt_profile* profile) const { kvt_profile_free(profile); }
};

// kvtool.Profile.
class Profile {
 public:
  explicit Profile(nb::handle file);
  const kvt_profile* get() const { return profile_.get(); }
  nb::bytes hash() const;

 private:
  std::unique_ptr<kvt_profile, FreeProfile> profile_;
};

class Context {
 public:
  // `profile` may be null.
  Context(uint32_t level, uint32_t threads, uint64_t max_raw_bytes, const Profile* profile);
  // Throws ValueError if it is closed. A running call keeps the context that it was given.
  std::shared_ptr<kvt_ctx> get() const;
  void Close() { ctx_.reset(); }
  bool closed() const { return ctx_ == nullptr; }
  uint32_t level() const { return level_; }
  uint32_t threads() const { return threads_; }

 private:
  uint32_t level_, threads_;
  std::shared_ptr<kvt_ctx> ctx_;
};

// Returns the calling thread's context, for functions of the module.
std::shared_ptr<kvt_ctx> ContextOfThread(uint32_t level);

// Runs one call on `ctx` without the GIL. Long ones on the main thread can be interrupted: Python
// handles signals only there.
template <typename F>
kvt_status RunCall(kvt_ctx* ctx, size_t bytes, F&& call) {
  constexpr size_t kLongBytes = size_t{4} << 20;
  if (bytes < kLongBytes || !kv::sys::OnMainThread()) {
    const nb::gil_scoped_release released;
    return call();
  }
  kvt_status status = 0;
  RunWatched([&] { status = call(); }, [ctx] { kvt_ctx_cancel(ctx); });
  return status;
}

// Memory of a bytes object that is still being filled.
inline void* BytesData(nb::handle bytes) { return PyBytes_AsString(bytes.ptr()); }
nb::object NewBytes(uint64_t size);

// Memory for a result whose size is known only afterwards: the stable ABI cannot shrink a bytes
// object. A thread keeps the memory of its last call, so that it need not be mapped and cleared
// again.
class Room {
 public:
  explicit Room(uint64_t size);
  ~Room();
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  std::byte* data() const { return memory_.get(); }
  nb::object Bytes(size_t offset, size_t size) const { return nb::bytes(data() + offset, size); }

 private:
  std::unique_ptr<std::byte[]> memory_;
  uint64_t size_;
};

kvt_info ReadInfo(const Buffer& frame);
// Decides whether to allocate the size that a header claims: 0, or the status of a frame whose
// claim exceeds what frames can reach.
kvt_status CheckClaim(kvt_ctx* ctx, const Buffer& frame, const kvt_info& info);

nb::object Encode(kvt_ctx* ctx, nb::handle data, const DescriptionArguments& arguments);
size_t EncodeInto(kvt_ctx* ctx, nb::handle data, const DescriptionArguments& arguments,
                  nb::handle out);
nb::object Decode(kvt_ctx* ctx, nb::handle frame, nb::handle context);
size_t DecodeInto(kvt_ctx* ctx, nb::handle frame, nb::handle context, nb::handle out);
nb::object DecodeTokens(kvt_ctx* ctx, nb::handle frame, uint64_t begin, uint64_t count,
                        nb::handle context);
size_t DecodeTokensInto(kvt_ctx* ctx, nb::handle frame, uint64_t begin, uint64_t count,
                        nb::handle context, nb::handle out);
void VerifyFrame(kvt_ctx* ctx, nb::handle frame, nb::handle context);
nb::dict FrameInfo(nb::handle frame);
nb::dict Stats(const Context& context);
nb::dict Caps();
// Estimates from a sample what each level (a name or a number) would achieve on the data.
nb::list Estimate(kvt_ctx* ctx, nb::handle data, nb::handle levels,
                  const DescriptionArguments& arguments);

// A batch with everything that its items point to, at fixed addresses. Created, asked for its
// result and destroyed with the GIL held.
struct Batch {
  // Takes arguments as encode_batch() does: `objects` are buffers or sequences of buffers (pieces).
  static std::unique_ptr<Batch> OfObjects(nb::handle objects, const DescriptionArguments& common,
                                          nb::handle contexts, nb::handle tags, nb::handle outs);
  // `ctx` verifies frames whose claimed raw size exceeds what frames can reach.
  static std::unique_ptr<Batch> OfFrames(kvt_ctx* ctx, nb::handle frames, nb::handle contexts,
                                         nb::handle outs);
  // Returns a kvtool.BatchResult. `refused` is the status of a batch of which no item was tried, or
  // 0.
  nb::object Result(kvt_status refused);

  bool encodes = true;
  std::vector<kvt_item> items;
  std::deque<kvt_desc> descs;
  std::deque<std::vector<kvt_piece>> pieces;
  std::deque<Buffer> buffers;
  size_t raw_bytes = 0;
  std::vector<size_t> offsets;      // where each frame begins in this memory
  std::optional<Room> room;         // for frames, unless the caller gave buffers
  std::vector<nb::object> raws;     // for raw bytes, unless the caller gave buffers
  std::vector<kvt_status> refused;  // errors of frames without memory
};

// Runs a batch in one call.
nb::object RunBatch(kvt_ctx* ctx, Batch& batch);

struct FreeQueue {
  void operator()(kvt_queue* queue) const { kvt_queue_free(queue); }
};

// kvtool._kvtool._Queue: batches on threads of its own.
class Queue {
 public:
  Queue(const Context& context, uint32_t threads, uint32_t depth);
  ~Queue() { Close(); }
  uint64_t Submit(std::unique_ptr<Batch> batch);
  // Returns (ticket, result) of every completed batch.
  nb::list Poll();
  int fileno() const { return kvt_queue_fd(queue_.get()); }
  kvt_ctx* ctx() const { return ctx_.get(); }
  void Close();

 private:
  std::shared_ptr<kvt_ctx> ctx_;
  std::unique_ptr<kvt_queue, FreeQueue> queue_;
  std::unordered_map<uint64_t, std::unique_ptr<Batch>> outstanding_;
};

}  // namespace kvtool_python
