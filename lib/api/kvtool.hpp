// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
//
// kvtool.hpp: kvtool.h with owners, spans and exceptions, C++20. kvtool_study.hpp adds
// kvtool_study.h. Every function is inline, so no C++ type crosses the library's boundary and any
// compiler will do. kvtool.h has the rules and the meaning of each call.
#ifndef KVTOOL_HPP_
#define KVTOOL_HPP_

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kvtool.h"

namespace kvtool {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;
using Key = std::array<uint8_t, 16>;  // a context

// A failed call: its finding (1103 of KV1103), whose fault it is, and where in the input.
class Error : public std::exception {
 public:
  Error(kvt_status status, uint64_t offset, std::string_view message, std::string_view hint)
      : status_(status), offset_(offset), hint_(hint) {
    text_ = std::string(message.empty() ? kvt_explain(status, KVT_EXPLAIN_SENTENCE) : message) +
            " [" + kvt_explain(status, KVT_EXPLAIN_ID) + "]";
  }

  kvt_status status() const noexcept { return status_; }
  int finding() const noexcept { return -status_; }
  int fault() const noexcept { return kvt_fault(status_); }
  uint64_t offset() const noexcept { return offset_; }  // UINT64_MAX: none
  const std::string& hint() const noexcept { return hint_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  kvt_status status_;
  uint64_t offset_;
  std::string text_, hint_;
};

namespace detail {

// A handle of the library, freed by its own function.
template <auto kFree>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
template <typename T, auto kFree>
using Handle = std::unique_ptr<T, Free<kFree>>;

}  // namespace detail

inline void Check(kvt_status status) {
  if (status != 0) throw Error(status, UINT64_MAX, {}, {});
}

// Returns the 16 bytes that identify the content of a frame.
inline Key MakeKey(std::string_view text) {
  Key key;
  Check(kvt_hash128(text.data(), text.size(), key.data()));
  return key;
}

// Returns a description with its size filled in; the other fields may be set afterwards.
inline kvt_desc Describe(uint8_t dtype, uint64_t tokens, uint32_t heads, uint32_t head_dim,
                         const Key& context = {}) {
  kvt_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.dtype = dtype;
  desc.tokens = tokens;
  desc.heads = heads;
  desc.head_dim = head_dim;
  for (size_t i = 0; i < context.size(); ++i) desc.context[i] = context[i];
  return desc;
}

// Returns the header of a frame. Throws Error.
inline kvt_info Info(Bytes frame) {
  kvt_info info = {};
  info.struct_size = sizeof info;
  Check(kvt_frame_info(frame.data(), frame.size(), &info));
  return info;
}

// Counts the entries of a whole frame with a function of kvtool.h, and lists them. Throws Error.
template <typename T>
std::vector<T> ListEntries(Bytes frame,
                           kvt_status (*list)(const void*, size_t, T*, size_t, size_t*)) {
  size_t count = 0;
  Check(list(frame.data(), frame.size(), nullptr, 0, &count));
  std::vector<T> entries(count);
  for (T& entry : entries) entry.struct_size = sizeof entry;
  Check(list(frame.data(), frame.size(), entries.data(), count, &count));
  return entries;
}

// Returns the segments of a whole frame, in order. Throws Error.
inline std::vector<kvt_segment> Segments(Bytes frame) {
  return ListEntries(frame, kvt_frame_segments);
}

// Returns the blocks of a whole frame that was encoded in blocks, in order. Throws Error.
inline std::vector<kvt_block> Blocks(Bytes frame) { return ListEntries(frame, kvt_frame_blocks); }

// Worker threads. Must outlive the contexts that use it.
class Pool {
 public:
  explicit Pool(uint32_t threads = 0) {
    kvt_pool* pool = nullptr;
    Check(kvt_pool_create(threads, &pool));
    pool_.reset(pool);
  }
  kvt_pool* get() const { return pool_.get(); }

 private:
  detail::Handle<kvt_pool, kvt_pool_free> pool_;
};

// Statistics of one model's pages, from the bytes of a .kvp file. Many contexts may use it at once,
// and it may be destroyed before them.
class Profile {
 public:
  explicit Profile(Bytes file) {
    kvt_profile* profile = nullptr;
    Check(kvt_profile_open(file.data(), file.size(), &profile));
    profile_.reset(profile);
  }
  // Returns the hash by which frames and archives name the profile.
  Key Hash() const {
    Key hash{};
    Check(kvt_profile_hash(get(), hash.data()));
    return hash;
  }
  kvt_profile* get() const noexcept { return profile_.get(); }

 private:
  detail::Handle<kvt_profile, kvt_profile_free> profile_;
};

// Returns the hash of the profile that decoding a frame needs; zeros: none. Throws Error.
inline Key ProfileOf(Bytes frame) {
  Key hash{};
  Check(kvt_frame_profile(frame.data(), frame.size(), hash.data()));
  return hash;
}

// Use one per thread. Methods throw Error; those named Try return the status instead and never
// throw.
class Context {
 public:
  explicit Context(uint32_t level = KVT_DEFAULT, const Pool* pool = nullptr,
                   uint64_t max_raw_bytes = 0) {
    const kvt_params params = {sizeof params, level, max_raw_bytes,
                               pool == nullptr ? nullptr : pool->get()};
    kvt_ctx* ctx = nullptr;
    Check(kvt_ctx_create(&params, &ctx));
    ctx_.reset(ctx);
  }

  // Uses `profile` for later calls; nullptr removes it.
  void UseProfile(const Profile* profile) {
    Raise(kvt_ctx_use_profile(get(), profile == nullptr ? nullptr : profile->get()));
  }

  // Sets for later archives at KVT_MAX how many layers in a row may be predicted from those
  // before them: 1 to 16, initially 8.
  void JoinLayers(uint32_t layers) { Raise(kvt_ctx_join_layers(get(), layers)); }

  // Makes later calls encode frames that a device decodes.
  void UseBlocks(bool blocks) { Raise(kvt_ctx_use_blocks(get(), blocks ? 1 : 0)); }

  std::vector<std::byte> Encode(const kvt_desc& desc, Bytes raw) {
    std::vector<std::byte> frame(kvt_encode_bound(raw.size()));
    frame.resize(Encode(desc, raw, frame));
    return frame;
  }
  // Encodes into the caller's memory and returns the size of the frame.
  size_t Encode(const kvt_desc& desc, Bytes raw, MutableBytes frame) {
    size_t written = 0;
    Raise(kvt_encode(get(), &desc, raw.data(), raw.size(), frame.data(), frame.size(), &written));
    return written;
  }

  // Returns KVT_E_OUTPUT_TOO_SMALL, with an estimate in `written`, if the frame does not fit.
  [[nodiscard]] kvt_status TryEncodeWithin(const kvt_desc& desc, Bytes raw, MutableBytes frame,
                                           size_t& written) noexcept {
    return kvt_encode_within(get(), &desc, raw.data(), raw.size(), frame.data(), frame.size(),
                             &written);
  }

  void Decode(Bytes frame, const Key& context, MutableBytes raw) {
    Raise(TryDecode(frame, context, raw));
  }
  [[nodiscard]] kvt_status TryDecode(Bytes frame, const Key& context, MutableBytes raw) noexcept {
    return kvt_decode(get(), frame.data(), frame.size(), context.data(), raw.data(), raw.size());
  }
  // Returns the bytes written to the front of `raw`.
  size_t DecodeTokens(Bytes frame, const Key& context, uint64_t begin, uint64_t count,
                      MutableBytes raw) {
    size_t written = 0;
    Raise(kvt_decode_tokens(get(), frame.data(), frame.size(), context.data(), begin, count,
                            raw.data(), raw.size(), &written));
    return written;
  }
  size_t DecodeHeads(Bytes frame, const Key& context, uint32_t begin, uint32_t count,
                     MutableBytes raw) {
    size_t written = 0;
    Raise(kvt_decode_heads(get(), frame.data(), frame.size(), context.data(), begin, count,
                           raw.data(), raw.size(), &written));
    return written;
  }
  [[nodiscard]] kvt_status TryVerify(Bytes frame, const Key& context) noexcept {
    return kvt_verify(get(), frame.data(), frame.size(), context.data());
  }

  // Each item has its status; the call returns the status of the first failed item.
  [[nodiscard]] kvt_status EncodeBatch(std::span<kvt_item> items) noexcept {
    return kvt_encode_batch(get(), items.data(), items.size());
  }
  [[nodiscard]] kvt_status DecodeBatch(std::span<kvt_item> items) noexcept {
    return kvt_decode_batch(get(), items.data(), items.size());
  }

  // Each entry has its status; the call returns the status of the first failed page.
  [[nodiscard]] kvt_status EncodeTable(const kvt_table& table) noexcept {
    return kvt_encode_table(get(), &table);
  }
  [[nodiscard]] kvt_status DecodeTable(const kvt_table& table) noexcept {
    return kvt_decode_table(get(), &table);
  }

  // Estimates from a sample what `level` would achieve on these bytes.
  kvt_rate Estimate(const kvt_desc& desc, Bytes raw, uint32_t level) {
    kvt_rate rate = {sizeof rate, level, 0, 0, 0};
    Raise(kvt_estimate(get(), &desc, raw.data(), raw.size(), &rate, 1));
    return rate;
  }

  // Returns true if a call is running and is going to throw KVT_E_CANCELLED. May be called from any
  // thread.
  bool Cancel() noexcept { return kvt_ctx_cancel(get()) != 0; }
  kvt_stats Stats() const noexcept {  // any thread
    kvt_stats stats = {};
    stats.struct_size = sizeof stats;
    kvt_ctx_stats(get(), &stats);
    return stats;
  }
  kvt_ctx* get() const noexcept { return ctx_.get(); }

  // Throws the error of the context's last call, which ended with `status`.
  void Raise(kvt_status status) const {
    if (status == 0) return;
    kvt_error error = {};
    error.struct_size = sizeof error;
    kvt_ctx_error(get(), &error);
    // A context that was busy recorded no error for this call.
    if (error.status != status) Check(status);
    throw Error(status, error.offset, error.message, error.hint);
  }

 private:
  detail::Handle<kvt_ctx, kvt_ctx_free> ctx_;
};

// Threads that code batches in the background. Any thread may call the methods.
class Queue {
 public:
  // Copies level, limit and profile of the context. By default, uses all processors and 64 tickets.
  explicit Queue(const Context& context, uint32_t threads = 0, uint32_t depth = 0) {
    const kvt_queue_params params = {sizeof params, threads, depth, 0};
    kvt_queue* queue = nullptr;
    context.Raise(kvt_queue_create(context.get(), &params, &queue));
    queue_.reset(queue);
  }

  // The memory of the batch must stay valid until its ticket is done. KVT_E_BUSY: the queue is
  // full.
  [[nodiscard]] kvt_status TrySubmit(kvt_batch batch, uint64_t& ticket) noexcept {
    batch.struct_size = sizeof batch;
    return kvt_queue_submit(get(), &batch, &ticket);
  }
  // Moves completions to the front of `done` and returns their number.
  size_t Poll(std::span<kvt_completion> done) {
    size_t count = 0;
    if (!done.empty()) done[0].struct_size = sizeof done[0];
    Check(kvt_queue_poll(get(), done.data(), done.size(), &count));
    return count;
  }
  // Takes the completion of one ticket. Returns false if it was not done in time.
  bool Wait(uint64_t ticket, kvt_completion& done, uint64_t timeout_ns = UINT64_MAX) {
    done.struct_size = sizeof done;
    const kvt_status status = kvt_queue_wait(get(), ticket, timeout_ns, &done);
    if (status != KVT_E_BUSY) Check(status);
    return status == KVT_OK;
  }
  bool Cancel(uint64_t ticket) noexcept { return kvt_queue_cancel(get(), ticket) != 0; }
  int descriptor() const noexcept { return kvt_queue_fd(get()); }
  kvt_queue* get() const noexcept { return queue_.get(); }

 private:
  detail::Handle<kvt_queue, kvt_queue_free> queue_;
};

// Callbacks for reading and writing. Their exceptions propagate from the call that invoked them.
using ReadAt = std::function<void(uint64_t offset, MutableBytes)>;  // must fill all of it
using Write = std::function<void(Bytes)>;

namespace detail {

constexpr kvt_status kThrown = KVT_CALLBACK_MAX;

// Wraps a function as a C callback and keeps what it threw.
template <typename F>
struct Callback {
  explicit Callback(F f) : function(std::move(f)) {}

  template <typename... Args>
  kvt_status operator()(Args... args) noexcept {
    try {
      function(args...);
      return 0;
    } catch (...) {
      thrown = std::current_exception();
      return kThrown;
    }
  }
  // Called after the C call: rethrows what the function threw, or throws the call's own error.
  void Raise(const Context& context, kvt_status status) {
    if (std::exception_ptr caught = std::exchange(thrown, nullptr)) std::rethrow_exception(caught);
    context.Raise(status);
  }

  F function;
  std::exception_ptr thrown;
};

inline kvt_sink MakeSink(Callback<Write>& callback) {
  return {
      sizeof(kvt_sink), 0, &callback, [](void* user, const void* src, size_t n) {
        return (*static_cast<Callback<Write>*>(user))(Bytes(static_cast<const std::byte*>(src), n));
      }};
}
inline kvt_source MakeSource(Callback<ReadAt>& callback, uint64_t bytes) {
  return {sizeof(kvt_source), 0, bytes, &callback,
          [](void* user, uint64_t offset, void* dst, size_t n) {
            return (*static_cast<Callback<ReadAt>*>(user))(
                offset, MutableBytes(static_cast<std::byte*>(dst), n));
          }};
}

}  // namespace detail

// Writes an archive part by part. The context must outlive it.
class Writer {
 public:
  // `parts` are made by Part(layer, desc) below.
  Writer(const Context& context, std::span<const kvt_part> parts, Write write)
      : context_(&context), callback_(std::make_unique<detail::Callback<Write>>(std::move(write))) {
    const kvt_sink sink = detail::MakeSink(*callback_);
    kvt_writer* writer = nullptr;
    callback_->Raise(context,
                     kvt_writer_create(context.get(), parts.data(), parts.size(), &sink, &writer));
    writer_.reset(writer);
  }
  void Add(size_t index, Bytes values) {
    callback_->Raise(*context_, kvt_writer_add(writer_.get(), index, values.data(), values.size()));
  }
  void Finish() { callback_->Raise(*context_, kvt_writer_finish(writer_.get())); }

 private:
  const Context* context_;
  std::unique_ptr<detail::Callback<Write>> callback_;
  detail::Handle<kvt_writer, kvt_writer_free> writer_;
};

// Returns a part for Writer. `desc` must live until the writer is made.
inline kvt_part Part(uint32_t layer, const kvt_desc& desc) {
  return {sizeof(kvt_part), layer, &desc, 0, 0, nullptr};
}

// Trains a profile, as `kvtool train` does: values[i] are the values of parts[i], and a layer may
// occur several times. Returns the bytes of the .kvp file.
inline std::vector<std::byte> Train(const Context& context, std::span<const kvt_part> parts,
                                    std::span<const Bytes> values, const std::string& name = {}) {
  if (values.size() != parts.size()) Check(KVT_E_BAD_ARGUMENT);
  std::vector<const void*> pointers;
  std::vector<size_t> sizes;
  for (const Bytes& one : values) {
    pointers.push_back(one.data());
    sizes.push_back(one.size());
  }
  std::vector<std::byte> file;
  detail::Callback<Write> write(
      [&file](Bytes bytes) { file.insert(file.end(), bytes.begin(), bytes.end()); });
  const kvt_sink sink = detail::MakeSink(write);
  write.Raise(context, kvt_train(context.get(), parts.data(), pointers.data(), sizes.data(),
                                 parts.size(), name.c_str(), &sink));
  return file;
}

// A file: its name is relative, with '/'; `read` fills the given bytes from an offset on.
struct File {
  std::string name;
  uint64_t bytes = 0;
  ReadAt read;
};

class Reference;

namespace detail {

// The files as C structs, and what their functions threw.
class FileList {
 public:
  explicit FileList(std::span<const File> files) {
    for (const File& file : files) reads_.emplace_back(file.read);
    for (size_t i = 0; i < files.size(); ++i) {
      sources_.push_back(MakeSource(reads_[i], files[i].bytes));
    }
    for (size_t i = 0; i < files.size(); ++i) {
      files_.push_back({sizeof(kvt_file), 0, files[i].name.c_str(), &sources_[i]});
    }
  }
  const kvt_file* data() const { return files_.data(); }
  size_t size() const { return files_.size(); }
  void Rethrow() {
    for (Callback<ReadAt>& read : reads_) {
      if (read.thrown) std::rethrow_exception(std::exchange(read.thrown, nullptr));
    }
  }

 private:
  std::vector<Callback<ReadAt>> reads_;
  std::vector<kvt_source> sources_;
  std::vector<kvt_file> files_;
};

inline std::vector<const kvt_reference*> Handles(std::span<const Reference> references);

}  // namespace detail

// A cache against which archives are coded: files of a snapshot, or an archive of one. It may
// outlive its context, and many contexts may use it at once.
class Reference {
 public:
  Reference(const Context& context, std::span<const File> files,
            std::span<const Reference> references = {}) {
    detail::FileList list(files);
    const std::vector<const kvt_reference*> needed = detail::Handles(references);
    kvt_reference* reference = nullptr;
    const kvt_status status = kvt_reference_create(context.get(), list.data(), list.size(),
                                                   needed.data(), needed.size(), &reference);
    reference_.reset(reference);
    list.Rethrow();
    context.Raise(status);
  }
  const kvt_reference* get() const noexcept { return reference_.get(); }

 private:
  detail::Handle<kvt_reference, kvt_reference_free> reference_;
};

inline std::vector<const kvt_reference*> detail::Handles(std::span<const Reference> references) {
  std::vector<const kvt_reference*> handles;
  for (const Reference& reference : references) handles.push_back(reference.get());
  return handles;
}

// Reads an archive part by part. The context must outlive it.
class Reader {
 public:
  struct Part {
    uint32_t layer = 0;
    uint64_t raw_bytes = 0, stored_bytes = 0;
    std::string name;
    kvt_desc desc = {};
  };

  Reader(const Context& context, uint64_t bytes, ReadAt read)
      : context_(&context), callback_(std::make_unique<detail::Callback<ReadAt>>(std::move(read))) {
    const kvt_source source = detail::MakeSource(*callback_, bytes);
    kvt_reader* reader = nullptr;
    callback_->Raise(context, kvt_reader_open(context.get(), &source, &reader, &parts_));
    reader_.reset(reader);
  }
  uint64_t parts() const noexcept { return parts_; }
  Part At(uint64_t index) const {
    Part part;
    part.desc.struct_size = sizeof part.desc;
    kvt_part found = {sizeof found, 0, nullptr, 0, 0, nullptr};
    context_->Raise(kvt_reader_part(reader_.get(), index, &found, &part.desc));
    part.layer = found.layer;
    part.raw_bytes = found.raw_bytes;
    part.stored_bytes = found.stored_bytes;
    part.name = found.name;
    return part;
  }
  // A cache against which the archive was coded.
  struct Need {
    bool found = false;  // is among those passed to Beside
    uint64_t bytes = 0, hash = 0;
    std::string name, format;
  };
  std::vector<Need> Needs() const {
    std::vector<Need> needs;
    for (kvt_need need = {sizeof need, 0, 0, 0, nullptr, nullptr};
         kvt_reader_need(reader_.get(), needs.size(), &need) == 0;) {
      needs.push_back({need.found != 0, need.bytes, need.hash, need.name, need.format});
    }
    return needs;
  }
  void Beside(std::span<const Reference> references) {
    const std::vector<const kvt_reference*> given = detail::Handles(references);
    callback_->Raise(*context_, kvt_reader_beside(reader_.get(), given.data(), given.size()));
  }
  // Returns the bytes written to the front of `rows`.
  size_t Read(uint64_t index, uint64_t begin, uint64_t count, MutableBytes rows) {
    size_t written = 0;
    callback_->Raise(*context_, kvt_reader_read(reader_.get(), index, begin, count, rows.data(),
                                                rows.size(), &written));
    return written;
  }

 private:
  const Context* context_;
  std::unique_ptr<detail::Callback<ReadAt>> callback_;
  uint64_t parts_ = 0;
  detail::Handle<kvt_reader, kvt_reader_free> reader_;
};

// Archives any files, as `kvtool compress` does; several files as a folder.
inline void Pack(const Context& context, std::span<const File> files, Write write,
                 std::span<const Reference> references = {}) {
  detail::Callback<Write> out(std::move(write));
  detail::FileList list(files);
  const std::vector<const kvt_reference*> beside = detail::Handles(references);
  const kvt_sink sink = detail::MakeSink(out);
  const kvt_status status =
      kvt_pack_beside(context.get(), list.data(), list.size(), beside.data(), beside.size(), &sink);
  list.Rethrow();
  out.Raise(context, status);
}

// Restores the files of an archive, one after another: `open` returns the function that receives
// the bytes of a file.
using Open = std::function<Write(std::string_view name, uint64_t bytes)>;
inline void Unpack(const Context& context, uint64_t bytes, ReadAt read, Open open,
                   std::span<const Reference> references = {}) {
  struct Outputs {
    Open open;
    std::vector<std::unique_ptr<detail::Callback<Write>>> files;
    std::exception_ptr thrown;
  } outputs{std::move(open), {}, nullptr};
  detail::Callback<ReadAt> archive(std::move(read));
  const kvt_source source = detail::MakeSource(archive, bytes);
  const auto begin = [](void* user, const char* name, uint64_t size, kvt_sink* sink) {
    auto& to = *static_cast<Outputs*>(user);
    try {
      to.files.push_back(std::make_unique<detail::Callback<Write>>(to.open(name, size)));
      *sink = detail::MakeSink(*to.files.back());
      return kvt_status{0};
    } catch (...) {
      to.thrown = std::current_exception();
      return detail::kThrown;
    }
  };
  const std::vector<const kvt_reference*> beside = detail::Handles(references);
  const kvt_status status =
      kvt_unpack_beside(context.get(), &source, beside.data(), beside.size(), begin, &outputs);
  if (outputs.thrown) std::rethrow_exception(outputs.thrown);
  for (const auto& file : outputs.files) {
    if (file->thrown) std::rethrow_exception(file->thrown);
  }
  archive.Raise(context, status);
}

}  // namespace kvtool

#endif  // KVTOOL_HPP_
