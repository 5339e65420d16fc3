// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/python/src/context.h"

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <thread>

namespace kvtool_python {
namespace {

// The context that a frame must have; it is not checked if the caller passed None.
class WantedContext {
 public:
  explicit WantedContext(nb::handle context) : given_(!context.is_none()) {
    if (given_) ParseContext(context, bytes_);
  }
  const uint8_t* get() const { return given_ ? bytes_ : nullptr; }

 private:
  bool given_;
  uint8_t bytes_[16] = {};
};

// The pool, which may be null, is freed after the context.
std::shared_ptr<kvt_ctx> NewContext(uint32_t level, uint64_t max_raw_bytes,
                                    std::shared_ptr<kvt_pool> pool) {
  const kvt_params params = {sizeof(kvt_params), level, max_raw_bytes, pool.get()};
  kvt_ctx* ctx = nullptr;
  RaiseIfFailed(kvt_ctx_create(&params, &ctx), nullptr);
  return {ctx, [pool = std::move(pool)](kvt_ctx* done) { kvt_ctx_free(done); }};
}

}  // namespace

Profile::Profile(nb::handle file) {
  const Buffer bytes(file, Buffer::Access::kRead);
  kvt_profile* profile = nullptr;
  RaiseIfFailed(kvt_profile_open(bytes.data(), bytes.bytes(), &profile), nullptr);
  profile_.reset(profile);
}

nb::bytes Profile::hash() const {
  uint8_t hash[16] = {};
  RaiseIfFailed(kvt_profile_hash(get(), hash), nullptr);
  return nb::bytes(hash, sizeof hash);
}

Context::Context(uint32_t level, uint32_t threads, uint64_t max_raw_bytes, const Profile* profile)
    : level_(level), threads_(threads) {
  kvt_pool* pool = nullptr;
  if (threads != 1) RaiseIfFailed(kvt_pool_create(threads, &pool), nullptr);
  ctx_ = NewContext(level, max_raw_bytes, {pool, &kvt_pool_free});
  if (profile == nullptr) return;
  RaiseIfFailed(kvt_ctx_use_profile(ctx_.get(), profile->get()), ctx_.get());
}

std::shared_ptr<kvt_ctx> Context::get() const {
  if (closed()) throw nb::value_error("the context is closed");
  return ctx_;
}

std::shared_ptr<kvt_ctx> ContextOfThread(uint32_t level) {
  thread_local std::array<std::shared_ptr<kvt_ctx>, KVT_MAX + 1> contexts;
  auto& context = contexts[level];
  if (!context) context = NewContext(level, 0, nullptr);
  return context;
}

nb::object NewBytes(uint64_t size) {
  if (size > static_cast<uint64_t>(PY_SSIZE_T_MAX)) {
    PyErr_NoMemory();
    throw nb::python_error();
  }
  PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
  if (bytes == nullptr) throw nb::python_error();
  return nb::steal(bytes);
}

namespace {

// The memory is taken out while in use, because a signal handler may call again on the same thread.
struct KeptRoom {
  std::unique_ptr<std::byte[]> memory;
  uint64_t size = 0;
};
thread_local KeptRoom kept_room;

}  // namespace

Room::Room(uint64_t size) : size_(size) {
  if (kept_room.memory && kept_room.size >= size) {
    memory_ = std::move(kept_room.memory);
    size_ = kept_room.size;
    return;
  }
  memory_.reset(new (std::nothrow) std::byte[size]);
  if (memory_) return;
  PyErr_NoMemory();
  throw nb::python_error();
}

Room::~Room() {
  constexpr uint64_t kMostKept = uint64_t{64} << 20;
  if (size_ <= kMostKept && (!kept_room.memory || kept_room.size < size_)) {
    kept_room = {std::move(memory_), size_};
  }
}

nb::object Encode(kvt_ctx* ctx, nb::handle data, const DescriptionArguments& arguments) {
  const Buffer raw(data, Buffer::Access::kRead);
  const kvt_desc desc = Describe(arguments, raw);
  const size_t size = kvt_encode_bound(raw.bytes());
  const Room room(size);
  size_t written = 0;
  const kvt_status status = RunCall(ctx, raw.bytes(), [&] {
    return kvt_encode(ctx, &desc, raw.data(), raw.bytes(), room.data(), size, &written);
  });
  RaiseIfFailed(status, ctx);
  return room.Bytes(0, written);
}

size_t EncodeInto(kvt_ctx* ctx, nb::handle data, const DescriptionArguments& arguments,
                  nb::handle out) {
  const Buffer raw(data, Buffer::Access::kRead), to(out, Buffer::Access::kWrite);
  const kvt_desc desc = Describe(arguments, raw);
  size_t written = 0;
  const kvt_status status = RunCall(ctx, raw.bytes(), [&] {
    return kvt_encode_within(ctx, &desc, raw.data(), raw.bytes(), to.data(), to.bytes(), &written);
  });
  RaiseIfFailed(status, ctx);
  return written;
}

kvt_info ReadInfo(const Buffer& frame) {
  kvt_info info = {};
  info.struct_size = sizeof info;
  RaiseIfFailed(kvt_frame_info(frame.data(), frame.bytes(), &info), nullptr);
  return info;
}

kvt_status CheckClaim(kvt_ctx* ctx, const Buffer& frame, const kvt_info& info) {
  constexpr uint64_t kTrustedBytes = uint64_t{64} << 20, kTrustedRatio = 64;
  if (info.raw_bytes <= kTrustedBytes || info.raw_bytes / kTrustedRatio <= frame.bytes()) return 0;
  // The frame holds constant values, or its claim is false.
  return RunCall(ctx, info.raw_bytes,
                 [&] { return kvt_verify(ctx, frame.data(), frame.bytes(), nullptr); });
}

nb::object Decode(kvt_ctx* ctx, nb::handle frame, nb::handle context) {
  const Buffer from(frame, Buffer::Access::kRead);
  const WantedContext wanted(context);
  const kvt_info info = ReadInfo(from);
  RaiseIfFailed(CheckClaim(ctx, from, info), ctx);
  nb::object raw = NewBytes(info.raw_bytes);
  void* const to = BytesData(raw);
  const kvt_status status = RunCall(ctx, info.raw_bytes, [&] {
    return kvt_decode(ctx, from.data(), from.bytes(), wanted.get(), to, info.raw_bytes);
  });
  RaiseIfFailed(status, ctx);
  return raw;
}

size_t DecodeInto(kvt_ctx* ctx, nb::handle frame, nb::handle context, nb::handle out) {
  const Buffer from(frame, Buffer::Access::kRead), to(out, Buffer::Access::kWrite);
  const WantedContext wanted(context);
  const kvt_status status = RunCall(ctx, to.bytes(), [&] {
    return kvt_decode(ctx, from.data(), from.bytes(), wanted.get(), to.data(), to.bytes());
  });
  RaiseIfFailed(status, ctx);
  return to.bytes();
}

nb::object DecodeTokens(kvt_ctx* ctx, nb::handle frame, uint64_t begin, uint64_t count,
                        nb::handle context) {
  const Buffer from(frame, Buffer::Access::kRead);
  const WantedContext wanted(context);
  const kvt_info info = ReadInfo(from);
  uint64_t size = 0;
  if (info.tokens != 0 && __builtin_mul_overflow(info.raw_bytes / info.tokens, count, &size)) {
    size = 0;
  }
  // A larger size fails inside the call, and needs no memory first.
  if (count > info.tokens || begin > info.tokens - count) size = 0;
  nb::object raw = NewBytes(size);
  void* const to = BytesData(raw);
  size_t written = 0;
  const kvt_status status = RunCall(ctx, size, [&] {
    return kvt_decode_tokens(ctx, from.data(), from.bytes(), wanted.get(), begin, count, to, size,
                             &written);
  });
  RaiseIfFailed(status, ctx);
  return raw;
}

size_t DecodeTokensInto(kvt_ctx* ctx, nb::handle frame, uint64_t begin, uint64_t count,
                        nb::handle context, nb::handle out) {
  const Buffer from(frame, Buffer::Access::kRead), to(out, Buffer::Access::kWrite);
  const WantedContext wanted(context);
  size_t written = 0;
  const kvt_status status = RunCall(ctx, to.bytes(), [&] {
    return kvt_decode_tokens(ctx, from.data(), from.bytes(), wanted.get(), begin, count, to.data(),
                             to.bytes(), &written);
  });
  RaiseIfFailed(status, ctx);
  return written;
}

void VerifyFrame(kvt_ctx* ctx, nb::handle frame, nb::handle context) {
  const Buffer from(frame, Buffer::Access::kRead);
  const WantedContext wanted(context);
  const kvt_status status = RunCall(
      ctx, from.bytes(), [&] { return kvt_verify(ctx, from.data(), from.bytes(), wanted.get()); });
  RaiseIfFailed(status, ctx);
}

nb::dict FrameInfo(nb::handle frame) {
  const Buffer from(frame, Buffer::Access::kRead);
  const kvt_info info = ReadInfo(from);
  nb::dict dict;
  dict["version"] = info.version;
  dict["codec"] = info.codec;
  dict["level"] = LevelName(info.level);
  dict["dtype"] = DtypeName(info.dtype);
  dict["order"] = OrderName(info.order);
  dict["role"] = RoleName(info.role);
  dict["heads"] = info.heads;
  dict["head_dim"] = info.head_dim;
  dict["tokens"] = info.tokens;
  dict["tag"] = info.tag;
  dict["segment_tokens"] = info.segment_tokens;
  dict["raw_bytes"] = info.raw_bytes;
  dict["frame_bytes"] = info.frame_bytes;
  dict["raw_hash"] = nb::bytes(info.raw_hash, sizeof info.raw_hash);
  dict["context"] = nb::bytes(info.context, sizeof info.context);
  uint8_t profile[16] = {};
  RaiseIfFailed(kvt_frame_profile(from.data(), from.bytes(), profile), nullptr);
  const bool needed = std::any_of(profile, profile + 16, [](uint8_t byte) { return byte != 0; });
  dict["profile"] = needed ? nb::object(nb::bytes(profile, sizeof profile)) : nb::none();
  return dict;
}

nb::dict Caps() {
  kvt_caps caps = {};
  caps.struct_size = sizeof caps;
  RaiseIfFailed(kvt_codec_caps(&caps), nullptr);
  nb::dict dict;
  dict["lossless"] = caps.lossless != 0;
  dict["needs_positions"] = caps.needs_positions != 0;
  dict["page_tokens"] = caps.page_tokens;
  dict["head_shards"] = caps.head_shards != 0;
  dict["alignment"] = caps.alignment;
  dict["overhead"] = caps.frame_overhead;
  return dict;
}

nb::list Estimate(kvt_ctx* ctx, nb::handle data, nb::handle levels,
                  const DescriptionArguments& arguments) {
  const Buffer raw(data, Buffer::Access::kRead);
  const kvt_desc desc = Describe(arguments, raw);
  std::vector<kvt_rate> rates;
  const Sequence wanted(levels, "levels");
  for (size_t i = 0; i < wanted.size(); ++i) {
    kvt_rate rate = {};
    rate.struct_size = sizeof rate;
    rate.level = ParseLevel(wanted[i]);
    rates.push_back(rate);
  }
  const kvt_status status = RunCall(ctx, 0, [&] {
    return kvt_estimate(ctx, &desc, raw.data(), raw.bytes(), rates.data(), rates.size());
  });
  RaiseIfFailed(status, ctx);
  nb::list estimates;
  for (const kvt_rate& rate : rates) {
    nb::dict dict;
    dict["level"] = LevelName(rate.level);
    dict["ratio"] = rate.ratio;
    dict["encode_mb_s"] = rate.encode_mb_s;
    dict["decode_mb_s"] = rate.decode_mb_s;
    estimates.append(dict);
  }
  return estimates;
}

nb::dict Stats(const Context& context) {
  kvt_stats stats = {};
  stats.struct_size = sizeof stats;
  RaiseIfFailed(kvt_ctx_stats(context.get().get(), &stats), nullptr);
  nb::dict dict;
  dict["raw_bytes"] = stats.raw_bytes;
  dict["stored_bytes"] = stats.stored_bytes;
  dict["encode_ns"] = stats.encode_ns;
  dict["decode_ns"] = stats.decode_ns;
  dict["frames"] = stats.frames;
  dict["stored_raw"] = stats.stored_raw;
  dict["decoded"] = stats.decoded;
  dict["refused"] = stats.refused;
  return dict;
}

}  // namespace kvtool_python
