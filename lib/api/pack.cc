// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Archives of whole files, and the caches and profiles that archives are coded against.
#include <algorithm>

#include "formats/kvz/kvz.h"
#include "formats/registry.h"
#include "lib/api/callbacks.h"
#include "lib/core/archive/archive.h"
#include "lib/core/archive/train.h"
#include "lib/core/codec/profiled/profile.h"
#include "lib/core/snapshot/layout.h"

namespace kv::api {

std::span<const kvt_reference* const> Given(const kvt_reference* const* references, size_t count) {
  Require(references != nullptr || count == 0, "references");
  const std::span given(references, count);
  Require(std::ranges::find(given, nullptr) == given.end(), "references: one is null");
  return given;
}

OpenOptions WithReferences(const kvt_ctx& ctx, std::span<const kvt_reference* const> references) {
  OpenOptions options;
  options.open = OpenSnapshot;
  options.in_memory = true;
  if (ctx.profile != nullptr) options.profiles = {{"", ctx.profile}};
  for (const kvt_reference* given : references) options.references.push_back(given->reference);
  return options;
}

namespace {

constexpr size_t kMostProfileName = 255;

Bytes ReadAll(const kvt_ctx& ctx, const kvt_source& source) {
  Bytes bytes(source.bytes);
  Fetch(ctx, source, 0, bytes);
  return bytes;
}

Source MakeSource(const kvt_ctx& ctx, const Elements<const kvt_file>& files) {
  Source source;
  source.is_folder = files.size() > 1;
  for (size_t i = 0; i < files.size(); ++i) {
    const kvt_file file = files[i];
    Require(file.reserved == 0, "file->reserved");
    Require(file.name != nullptr && IsSafeRelativePath(file.name), "file->name");
    source.files.push_back(
        {file.name, FileSource::FromBytes(ReadAll(ctx, CheckedSource(file.source)), file.name)});
  }
  std::ranges::sort(source.files, {}, &SourceFile::name);
  const auto twice = std::ranges::adjacent_find(source.files, {}, &SourceFile::name);
  Require(twice == source.files.end(), "file->name: the same name twice");
  source.path = source.is_folder ? "folder" : source.files[0].name;
  return source;
}

// Reads the files as `kvtool compress` does; files that no reader understands are archived anyway.
std::optional<Snapshot> TryRead(const kvt_ctx& ctx, const Source& source) {
  OpenOptions options = WithReferences(ctx, {});
  options.metadata_only = options.any_batch = options.may_guess_axes = true;
  try {
    std::string why;  // the reason is not used: unreadable files are archived as bytes
    return OpenToKeep(source, options, why);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kIo || error.code() == ErrorCode::kInternal) throw;
    return std::nullopt;
  }
}

// Writes restored files to the sinks that the caller opens.
class CallbackTarget : public RestoreTarget {
 public:
  CallbackTarget(const Archive& archive, kvt_open_file open, void* user)
      : archive_(archive), open_(open), user_(user) {}

  Sink& Begin(size_t file) override {
    const ArchivedFile& begun = archive_.files()[file];
    kvt_sink sink = {sizeof sink, 0, nullptr, nullptr};
    RequireDone(open_(user_, begun.name.c_str(), begun.size, &sink));
    return sink_.emplace(CheckedSink(&sink));
  }
  void End(size_t) override { sink_.reset(); }

 private:
  const Archive& archive_;
  const kvt_open_file open_;
  void* const user_;
  std::optional<CallbackSink> sink_;
};

// Returns K or V of one layer as a cache without anything else.
Snapshot CacheOfPart(const kvt_part& part, ByteSpan values) {
  Require(part.desc != nullptr, "part->desc");
  Require(part.desc->role == KVT_K || part.desc->role == KVT_V, "part->desc->role");
  KvTensor tensor = MakeTensor(*part.desc);
  Require(values.size() == tensor.bytes(), "sizes: they do not add up to the part's bytes");
  tensor = ContiguousTensor(values.data(), tensor.dtype, tensor.tokens(), tensor.heads,
                            tensor.head_dim, static_cast<Order>(part.desc->order));
  Snapshot cache;
  LayerKv& layer = cache.layers.emplace_back();
  layer.index = part.layer;
  if (part.desc->role == KVT_V) {
    layer.v = std::move(tensor);
  } else {
    layer.k = std::move(tensor);
  }
  return cache;
}

}  // namespace
}  // namespace kv::api

using namespace kv;       // NOLINT: the functions below are the library's outermost layer
using namespace kv::api;  // NOLINT

kvt_status kvt_reference_create(kvt_ctx* ctx, const kvt_file* files, size_t count,
                                const kvt_reference* const* references, size_t reference_count,
                                kvt_reference** out) {
  return CallToMake(ctx, out, [&] {
    Require(count > 0, "count");
    const auto given = GivenElements(files, count, "files->struct_size");
    const Threads threads(ctx);
    OpenOptions options = WithReferences(*ctx, Given(references, reference_count));
    options.pool = &*threads;
    return std::unique_ptr<kvt_reference>(
        new kvt_reference{OpenReference(MakeSource(*ctx, given), options)});
  });
}

void kvt_reference_free(kvt_reference* reference) { delete reference; }

kvt_status kvt_ctx_join_layers(kvt_ctx* ctx, uint32_t layers) {
  return Call(ctx, [&] {
    Require(layers >= 1 && layers <= kMostJoinedLayers, "layers");
    ctx->joined_layers = layers;
  });
}

kvt_status kvt_pack(kvt_ctx* ctx, const kvt_file* files, size_t count, const kvt_sink* sink) {
  return kvt_pack_beside(ctx, files, count, nullptr, 0, sink);
}

kvt_status kvt_pack_beside(kvt_ctx* ctx, const kvt_file* files, size_t count,
                           const kvt_reference* const* references, size_t reference_count,
                           const kvt_sink* sink) {
  return Call(ctx, [&] {
    Require(count > 0, "count");
    const auto packed = GivenElements(files, count, "files->struct_size");
    CallbackSink out(CheckedSink(sink));
    CancelWatch watch(*ctx);
    WriteOptions options;
    options.effort = ctx->level;
    options.joined_layers = ctx->joined_layers;
    options.progress = &watch;
    if (ctx->level >= Effort::kDefault) options.profile = ctx->profile;
    for (const kvt_reference* given : Given(references, reference_count)) {
      RequireShortChain(*given->reference);
      options.references.push_back(given->reference);
    }
    const Source source = MakeSource(*ctx, packed);
    const std::optional<Snapshot> snapshot = TryRead(*ctx, source);
    const Threads threads(ctx);
    WriteArchive(source, snapshot ? &*snapshot : nullptr, options, *threads, out);
  });
}

kvt_status kvt_unpack(kvt_ctx* ctx, const kvt_source* archive, kvt_open_file open, void* user) {
  return kvt_unpack_beside(ctx, archive, nullptr, 0, open, user);
}

kvt_status kvt_unpack_beside(kvt_ctx* ctx, const kvt_source* archive,
                             const kvt_reference* const* references, size_t count,
                             kvt_open_file open, void* user) {
  return Call(ctx, [&] {
    Require(open != nullptr, "open");
    Archive opened =
        Archive::Open(FileSource::FromBytes(ReadAll(*ctx, CheckedSource(archive)), "archive"));
    FindReferences(opened, "archive", WithReferences(*ctx, Given(references, count)));
    RequireReferences(opened);
    CallbackTarget target(opened, open, user);
    CancelWatch watch(*ctx);
    RestoreOptions options;
    options.progress = &watch;
    const Threads threads(ctx);
    Restore(opened, options, *threads, target);
  });
}

kvt_status kvt_profile_open(const void* src, size_t n, kvt_profile** out) {
  return Caught(nullptr, [&] {
    Require(out != nullptr, "out");
    *out = new kvt_profile{Profile::Read(Span(src, n))};
  });
}

void kvt_profile_free(kvt_profile* profile) { delete profile; }

kvt_status kvt_profile_hash(const kvt_profile* profile, uint8_t out[16]) {
  return Caught(nullptr, [&] {
    Require(profile != nullptr && out != nullptr, "profile, out");
    std::memcpy(out, profile->profile->hash().data(), 16);
  });
}

kvt_status kvt_ctx_use_profile(kvt_ctx* ctx, const kvt_profile* profile) {
  return Call(ctx, [&] {
    ctx->profile = profile == nullptr ? nullptr : profile->profile;
    ctx->coder.UseProfile(ctx->profile);
  });
}

kvt_status kvt_frame_profile(const void* src, size_t n, uint8_t out[16]) {
  return Caught(nullptr, [&] {
    Require(out != nullptr, "out");
    std::memcpy(out, ReadFrameHeader(Span(src, n)).profile.data(), 16);
  });
}

kvt_status kvt_train(kvt_ctx* ctx, const kvt_part* parts, const void* const* values,
                     const size_t* sizes, size_t count, const char* name, const kvt_sink* sink) {
  return Call(ctx, [&] {
    Require(values != nullptr && sizes != nullptr && count > 0, "values, sizes, count");
    const auto given = GivenElements(parts, count, "parts->struct_size");
    const std::string model = name == nullptr ? "" : name;
    Require(model.size() <= kMostProfileName, "name: more than 255 bytes");
    CallbackSink out(CheckedSink(sink));
    ProfileBuilder builder;
    for (size_t i = 0; i < count; ++i) {
      builder.Add(CacheOfPart(given[i], Span(values[i], sizes[i])));
      ctx->state.StopIfCancelled();
    }
    out.Write(builder.Finish(model)->file());
  });
}
