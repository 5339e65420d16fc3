// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/archive.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>

#include "formats/kvz/kvz.h"
#include "formats/registry.h"
#include "formats/safetensors/safetensors.h"
#include "lib/api/callbacks.h"
#include "lib/core/archive/archive_rows.h"
#include "lib/core/archive/records.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/file.h"
#include "lib/core/base/system.h"
#include "lib/core/snapshot/layout.h"

using namespace kv;       // NOLINT: the functions below are the library's outermost layer
using namespace kv::api;  // NOLINT

namespace kv::api {

// Bytes of a file of known size that are brought in, and given back, piece by piece. Absent bytes
// read as zeros and take no memory. Uses anonymous memory: no file system is involved.
class PartialFile {
 public:
  // Throws kNoMemory, also for a size that no memory can hold.
  PartialFile(uint64_t size, std::string name);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  const std::shared_ptr<const FileSource>& source() const { return source_; }
  uint64_t size() const { return source_->size(); }
  // Returns a range of the bytes, writable.
  std::span<std::byte> Range(uint64_t offset, uint64_t size) { return all_.subspan(offset, size); }
  // Releases the memory of the whole pages in a range; they read as zeros again.
  void Drop(uint64_t offset, uint64_t size);

 private:
  PartialFile() = default;

  int descriptor_ = -1;
  std::span<std::byte> all_;
  std::shared_ptr<const FileSource> source_;
};

// Delegates, so that the destructor runs even if the rest of this constructor throws.
PartialFile::PartialFile(uint64_t size, std::string name) : PartialFile() {
  if (size == 0) {
    source_ = FileSource::FromBytes({}, std::move(name));
    return;
  }
  descriptor_ = sys::OpenMemory();
  void* map = MAP_FAILED;
  if (descriptor_ >= 0 && size <= static_cast<uint64_t>(INT64_MAX) &&
      ::ftruncate(descriptor_, static_cast<off_t>(size)) == 0) {
    map = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor_, 0);
  }
  if (map != MAP_FAILED) all_ = {static_cast<std::byte*>(map), size};
  const int second = map == MAP_FAILED ? -1 : ::fcntl(descriptor_, F_DUPFD_CLOEXEC, 0);
  if (second < 0) throw Error(Finding::kNoMemory, "out of memory for a file in pieces");
  source_ = FileSource::FromDescriptor(second, std::move(name));
}

PartialFile::~PartialFile() {
  if (!all_.empty()) ::munmap(all_.data(), all_.size());
  if (descriptor_ >= 0) ::close(descriptor_);
}

void PartialFile::Drop(uint64_t offset, uint64_t size) {
  static const auto kPage = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = RoundUp(offset, kPage), end = (offset + size) / kPage * kPage;
  if (begin < end) sys::PunchHole(descriptor_, begin, end - begin);
}

}  // namespace kv::api

// ---- writing ----

struct kvt_writer {
  kvt_writer(kvt_ctx* context, const kvt_sink& to) : ctx(context), sink(to), watch(*context) {}

  struct Part {
    uint64_t offset = 0, bytes = 0;  // where the part begins in the archived file
    DType dtype = DType::kF16;
    Order order = Order::kTokenHeadDim;  // as in the caller's memory
    uint64_t tokens = 0, heads = 0, units = 0;
  };

  kvt_ctx* const ctx;
  CallbackSink sink;
  CancelWatch watch;
  std::vector<Part> parts;
  size_t next = 0;
  bool failed = false, finished = false;
  std::optional<PartialFile> file;  // only the part being added is in memory
  Snapshot snapshot;                // snapshot of that file
  std::optional<ArchiveWriter> archive;
};

namespace kv::api {

namespace {

// Returns the cache that the parts form, with layers in order.
Snapshot MakeCache(const Elements<const kvt_part>& parts) {
  std::map<uint32_t, std::array<std::optional<KvTensor>, 2>> layers;
  for (size_t i = 0; i < parts.size(); ++i) {
    const kvt_part part = parts[i];
    Require(part.desc != nullptr, "part->desc");
    Require(part.name == nullptr, "part->name: must be NULL, because kvtool chooses the names");
    std::optional<KvTensor>& place = layers[part.layer][part.desc->role == KVT_V ? 1 : 0];
    Require(!place, "parts: K or V of a layer is given twice");
    Require(part.desc->role == KVT_K || part.desc->role == KVT_V, "part->desc->role");
    place = MakeTensor(*part.desc);
  }
  Snapshot cache;
  for (auto& [index, tensors] : layers) {
    Require(tensors[0].has_value(), "parts: a layer has V but no K");
    LayerKv& layer = cache.layers.emplace_back();
    layer.index = index;
    layer.k = *std::move(tensors[0]);
    layer.v = std::move(tensors[1]);
  }
  return cache;
}

// Lays out the safetensors file of the parts and begins its archive.
void Start(kvt_writer& writer, const Elements<const kvt_part>& parts) {
  const Snapshot cache = MakeCache(parts);
  const TensorExport content = MakeExport(cache);
  std::vector<const TensorToWrite*> order;
  for (size_t i = 0; i < parts.size(); ++i) {
    const kvt_part part = parts[i];
    const std::string name = PartName(part.layer, part.desc->role == KVT_V);
    const auto at = std::ranges::find(content.tensors, name, &TensorToWrite::name);
    KV_ASSERT(at != content.tensors.end());
    order.push_back(&*at);
  }
  const Bytes head = SafetensorsHead(order, content.metadata);
  uint64_t offset = head.size();
  for (size_t i = 0; i < parts.size(); ++i) {
    const kvt_desc desc = Whole(parts[i].desc, "part->desc->struct_size");
    kvt_writer::Part& part = writer.parts.emplace_back();
    part = {offset,
            order[i]->bytes(),
            static_cast<DType>(desc.dtype),
            static_cast<Order>(desc.order),
            desc.tokens,
            desc.heads,
            desc.head_dim / Info(static_cast<DType>(desc.dtype)).block_elements};
    offset = CheckedAdd(offset, part.bytes, "size of the file");
  }
  writer.file.emplace(offset, "archive");
  std::ranges::copy(head, writer.file->Range(0, head.size()).begin());

  Source source;
  source.path = "cache.safetensors";
  source.files.push_back({"cache.safetensors", writer.file->source()});
  OpenOptions options;
  options.metadata_only = true;
  writer.snapshot = OpenSafetensors(std::move(source), options);
  writer.snapshot.format = "safetensors";
  WriteOptions write;
  write.effort = writer.ctx->level;
  write.progress = &writer.watch;
  if (write.effort >= Effort::kDefault) write.profile = writer.ctx->profile;
  writer.archive.emplace(writer.snapshot.source, &writer.snapshot, write, writer.sink);
}

// Runs one call on a writer, which is unusable after a failure.
template <typename F>
kvt_status WriterCall(kvt_writer* writer, F&& f) {
  return CallOn(writer, [&] {
    Require(!writer->failed && !writer->finished, "writer: an earlier call failed or finished it");
    writer->failed = true;
    f();
    writer->ctx->state.Commit();
    writer->failed = false;
  });
}

}  // namespace
}  // namespace kv::api

kvt_status kvt_writer_create(kvt_ctx* ctx, const kvt_part* parts, size_t count,
                             const kvt_sink* sink, kvt_writer** out) {
  return CallToMake(ctx, out, [&] {
    Require(count > 0, "count");
    const auto given = GivenElements(parts, count, "parts->struct_size");
    auto writer = std::make_unique<kvt_writer>(ctx, CheckedSink(sink));
    Start(*writer, given);
    return writer;
  });
}

kvt_status kvt_writer_add(kvt_writer* writer, size_t index, const void* src, size_t n) {
  return WriterCall(writer, [&] {
    Require(index == writer->next && index < writer->parts.size(),
            "index: parts must be added in order");
    const kvt_writer::Part& part = writer->parts[index];
    const ByteSpan from = Span(src, n);
    Require(n == part.bytes, "n: differs from the part's bytes");
    const std::span<std::byte> to = writer->file->Range(part.offset, part.bytes);
    if (part.order == Order::kTokenHeadDim) {
      std::ranges::copy(from, to.begin());
    } else {
      Reorder(from, part.order, to, Order::kTokenHeadDim, part.tokens, part.heads, part.units,
              Info(part.dtype).block_bytes);
    }
    const Threads threads(writer->ctx);
    const uint64_t end = part.offset + part.bytes;
    const uint64_t done = writer->archive->Advance(0, end, *threads);
    const uint64_t first = index == 0 ? 0 : writer->parts[index - 1].offset;
    if (done > first) writer->file->Drop(first, done - first);
    ++writer->next;
  });
}

kvt_status kvt_writer_finish(kvt_writer* writer) {
  return WriterCall(writer, [&] {
    Require(writer->next == writer->parts.size(), "writer: parts are missing");
    const Threads threads(writer->ctx);
    writer->archive->Finish(*threads);
    writer->finished = true;
  });
}

void kvt_writer_free(kvt_writer* writer) { delete writer; }

// ---- reading ----

struct kvt_reader {
  kvt_reader(kvt_ctx* context, const kvt_source& from)
      : ctx(context), source(from), file(from.bytes, "archive") {}

  struct Part {
    ArchivePart part;
    std::string name;
    uint64_t stored_bytes = 0;
  };
  struct Scratch {
    CodecScratch codec;
    Bytes raw;
  };

  // Brings a range of the archive into memory.
  void Need(uint64_t offset, uint64_t bytes) {
    if (whole || offset >= file.size()) return;
    bytes = std::min(bytes, file.size() - offset);
    Fetch(*ctx, source, offset, file.Range(offset, bytes));
  }
  void Drop(uint64_t offset, uint64_t bytes) {
    if (!whole) file.Drop(offset, bytes);
  }

  kvt_ctx* const ctx;
  const kvt_source source;
  PartialFile file;
  bool whole = false;  // the whole archive is in memory, because its index is damaged
  std::optional<Archive> archive;
  std::vector<Part> parts;
  Reuse<Scratch> scratch;
};

namespace kv::api {
namespace {

// Reads only the index; returns false if the index is damaged.
bool OpenByIndex(kvt_reader& reader) {
  try {
    const uint64_t size = reader.file.size();
    reader.Need(0, kvz::kHeaderBytes);
    if (size > kvz::kTrailerBytes) reader.Need(size - kvz::kTrailerBytes, kvz::kTrailerBytes);
    const kvz::Trailer trailer = kvz::ReadTrailer(reader.file.source()->bytes());
    reader.Need(trailer.index_offset, trailer.index_bytes);
    reader.archive = Archive::Open(reader.file.source());
    return reader.archive->has_index() && reader.archive->damage().empty();
  } catch (const Error& error) {
    // A failure of the caller's functions or a cancelled call says nothing about the index.
    if (error.code() == ErrorCode::kUsage) throw;
    return false;
  }
}

void OpenReader(kvt_reader& reader) {
  if (!OpenByIndex(reader)) {
    reader.archive.reset();
    reader.Need(0, reader.file.size());
    reader.whole = true;
    reader.archive = Archive::Open(reader.file.source());
  }
  const std::vector<ArchivePart> parts = ListParts(*reader.archive);
  const std::vector<uint64_t> stored = StoredBytes(*reader.archive, parts);
  for (size_t i = 0; i < parts.size(); ++i) {
    const LayerKv& layer = reader.archive->description()->layers[parts[i].layer];
    reader.parts.push_back({parts[i], PartName(layer.index, parts[i].is_value), stored[i]});
  }
  FindProfile(*reader.archive, "archive", WithReferences(*reader.ctx, {}));
  FindTransform(*reader.archive, "archive", WithReferences(*reader.ctx, {}));
}

// Fetches only chunks that distinguish references, two for each reference, and returns them.
std::vector<const ArchivedChunk*> NeedTellingChunks(kvt_reader& reader) {
  constexpr uint32_t kEnough = 2;
  const Archive& archive = *reader.archive;
  std::vector<uint32_t> seen(archive.reference_names().size());
  std::vector<const ArchivedChunk*> brought;
  for (const ArchivedChunk& chunk : archive.chunks()) {
    if (std::ranges::all_of(seen, [](uint32_t count) { return count >= kEnough; })) break;
    if (!HasReferences(static_cast<CodecId>(chunk.head.codec))) continue;
    reader.Need(chunk.payload_offset, chunk.payload_bytes);
    brought.push_back(&chunk);
    std::set<uint16_t> needed;
    try {
      for (const ReferenceRun& run : archive.ListRuns(chunk)) needed.insert(run.reference);
    } catch (const Error&) {
      continue;  // reading the archive's tokens reports the damage
    }
    for (const uint16_t reference : needed) {
      if (reference < seen.size()) ++seen[reference];
    }
  }
  return brought;
}

void UseReferences(kvt_reader& reader, std::span<const kvt_reference* const> given) {
  const std::vector<const ArchivedChunk*> brought = NeedTellingChunks(reader);
  FindReferences(*reader.archive, "archive", WithReferences(*reader.ctx, given));
  for (const ArchivedChunk* chunk : brought) {
    reader.Drop(chunk->payload_offset, chunk->payload_bytes);
  }
}

const kvt_reader::Part& PartAt(const kvt_reader* reader, uint64_t index) {
  Require(index < reader->parts.size(), "index");
  return reader->parts[index];
}

kvt_desc DescriptionOfPart(const KvTensor& tensor, bool is_value) {
  kvt_desc desc = {};
  desc.dtype = static_cast<uint8_t>(tensor.dtype);
  desc.order = KVT_TOKEN_HEAD_DIM;
  desc.role = is_value ? KVT_V : KVT_K;
  desc.heads = tensor.heads;
  desc.head_dim = tensor.head_dim;
  desc.tokens = tensor.tokens();
  return desc;
}

// Reads a few chunks at a time on the calling thread and decodes them on the pool.
void ReadTokens(kvt_reader& reader, const ArchivePart& part, uint64_t begin, uint64_t count,
                std::span<std::byte> out) {
  const Archive& archive = *reader.archive;
  const KvTensor& tensor = kv::FindTensor(archive, part);
  const std::vector<const ArchivedChunk*> chunks = FindChunks(archive, part, begin, count);
  const Threads threads(reader.ctx);
  const size_t together = static_cast<size_t>((*threads).threads());
  for (size_t first = 0; first < chunks.size(); first += together) {
    reader.ctx->state.StopIfCancelled();
    const std::span some(chunks.data() + first, std::min(together, chunks.size() - first));
    std::set<const ArchivedChunk*> brought;
    for (const ArchivedChunk* chunk : some) {
      archive.NeededBy(*chunk, [&](const ArchivedChunk& one) {
        if (!brought.insert(&one).second) return;
        reader.Need(one.payload_offset, one.payload_bytes);
      });
    }
    (*threads).ParallelFor(some.size(), [&](uint64_t i) {
      const Reuse<kvt_reader::Scratch>::Lease scratch(reader.scratch);
      archive.Decode(*some[i], (*scratch).codec, (*scratch).raw);
      CopyTokens(some[i]->head, (*scratch).raw, tensor, begin, count, out);
    });
    for (const ArchivedChunk* chunk : brought) {
      reader.Drop(chunk->payload_offset, chunk->payload_bytes);
    }
  }
}

}  // namespace

}  // namespace kv::api

kvt_status kvt_reader_open(kvt_ctx* ctx, const kvt_source* source, kvt_reader** out,
                           uint64_t* parts) {
  return CallToMake(ctx, out, [&] {
    auto reader = std::make_unique<kvt_reader>(ctx, CheckedSource(source));
    OpenReader(*reader);
    if (parts != nullptr) *parts = reader->parts.size();
    return reader;
  });
}

kvt_status kvt_reader_part(const kvt_reader* reader, uint64_t index, kvt_part* out,
                           kvt_desc* desc) {
  return CallOn(reader, [&] {
    RequireSize(out, "out->struct_size");
    if (desc != nullptr) RequireSize(desc, "desc->struct_size");
    const kvt_reader::Part& found = PartAt(reader, index);
    const KvTensor& tensor = kv::FindTensor(*reader->archive, found.part);
    if (desc != nullptr) Fill(desc, DescriptionOfPart(tensor, found.part.is_value));
    kvt_part part = {};
    part.layer = reader->archive->description()->layers[found.part.layer].index;
    part.raw_bytes = tensor.bytes();
    part.stored_bytes = found.stored_bytes;
    part.name = found.name.c_str();
    Fill(out, part);
  });
}

kvt_status kvt_reader_read(kvt_reader* reader, uint64_t index, uint64_t begin, uint64_t count,
                           void* dst, size_t cap, size_t* written) {
  return CallOn(reader, [&] {
    if (written != nullptr) *written = 0;
    const ArchivePart& part = PartAt(reader, index).part;
    const KvTensor& tensor = kv::FindTensor(*reader->archive, part);
    Require(begin <= tensor.tokens() && count <= tensor.tokens() - begin, "begin, count");
    const uint64_t bytes = count * tensor.row_bytes();
    const std::span<std::byte> room = Span(dst, cap);
    if (cap < bytes) {
      throw Error(Finding::kOutputTooSmall, "{} tokens take {} bytes, the buffer has {}", count,
                  bytes, cap);
    }
    ReadTokens(*reader, part, begin, count, room.first(bytes));
    if (written != nullptr) *written = bytes;
  });
}

kvt_status kvt_reader_need(const kvt_reader* reader, size_t index, kvt_need* out) {
  return CallOn(reader, [&] {
    RequireSize(out, "out->struct_size");
    const std::vector<ReferenceName>& names = reader->archive->reference_names();
    Require(index < names.size(), "index");
    const References& given = reader->archive->references();
    kvt_need need = {};
    need.found = index < given.size() && !given[index]->missing ? 1 : 0;
    need.bytes = names[index].source_bytes;
    need.hash = names[index].source_hash;
    need.name = names[index].file.c_str();
    need.format = names[index].format.c_str();
    Fill(out, need);
  });
}

kvt_status kvt_reader_beside(kvt_reader* reader, const kvt_reference* const* references,
                             size_t count) {
  return CallOn(reader, [&] { UseReferences(*reader, Given(references, count)); });
}

void kvt_reader_free(kvt_reader* reader) { delete reader; }
