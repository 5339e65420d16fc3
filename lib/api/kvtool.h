/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvtool authors
 *
 * kvtool.h: lossless compression of key-value caches in memory, for engines that store them.
 *
 * Rules for every function, stated once:
 *  - A status is 0, or -N where KVN is a finding that `kvtool explain KVN` describes: -1103 is
 *    KV1103. Functions that can fail return one; on failure their output must not be used.
 *  - Buffers may lie at any alignment. A buffer that a call writes must not overlap another one of
 * that call (KV0010). NULL stands for a buffer of 0 bytes, and with a size is refused (KV0010).
 *  - What an encoder writes depends on the bytes, the description, the level and the version of the
 *    library: never on the number of threads, the CPU or earlier calls.
 *  - One thread at a time per object. A context that is busy answers KV0007; only kvt_ctx_cancel
 * and kvt_ctx_stats may be called beside a running call.
 *  - Nothing returned needs to be freed, objects apart. Every kvt_*_free accepts NULL.
 *  - The library has no global state, writes nothing to any stream and opens no file.
 *  - A context keeps its buffers. Once they have grown, every level encodes and decodes with only
 * small allocations, under 16 KiB each. That takes two calls of a size. Only at KVT_MAX zstd
 * exchanges tables of up to a MiB now and then, while encoding. All memory is malloc's;
 * docs/library.md says why there is no parameter for another allocator.
 *  - Growable structs begin with struct_size, which the caller sets to sizeof. Later versions
 * append fields only; a field that an old caller lacks counts as zero, and zero is the old
 * behaviour.
 */
#ifndef KVTOOL_H_
#define KVTOOL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define KVT_API __attribute__((visibility("default")))
#else
#define KVT_API
#endif

/* Of this header: MAJOR * 10000 + MINOR * 100 + PATCH. */
#define KVT_VERSION 200u

/* ---- types ---- */

typedef int32_t kvt_status;

typedef struct kvt_pool kvt_pool;           /* worker threads, shared by contexts */
typedef struct kvt_ctx kvt_ctx;             /* level, scratch memory, last error */
typedef struct kvt_profile kvt_profile;     /* what pages of one model look like */
typedef struct kvt_writer kvt_writer;       /* an archive that is being written */
typedef struct kvt_reader kvt_reader;       /* an archive that is read */
typedef struct kvt_reference kvt_reference; /* a cache that archives are coded beside */
typedef struct kvt_h2o kvt_h2o;             /* MNN's eviction for one sequence */
typedef struct kvt_policy kvt_policy;       /* a published policy, for one layer */

/* Element types, by the numbers that .kvz archives and frames store. */
enum {
  KVT_F32 = 0,
  KVT_F16 = 1,
  KVT_BF16 = 2,
  KVT_I8 = 4,
  KVT_U8 = 5,
  KVT_F8_E4M3 = 13,
  KVT_F8_E5M2 = 14,
  KVT_Q8_0 = 15,
  KVT_Q4_0 = 16
};
/* Order of a tensor's values in memory, the outermost axis first. */
enum { KVT_TOKEN_HEAD_DIM = 0, KVT_HEAD_TOKEN_DIM = 1, KVT_ORDER_UNKNOWN = 3 };
enum { KVT_FAST = 1, KVT_DEFAULT = 2, KVT_HIGH = 3, KVT_MAX = 4 };
/* KVT_KV: K and V side by side in each head of each token, head_dim counting both. They are coded
 * apart where that makes the frame smaller. */
enum { KVT_ROLE_UNKNOWN = 0, KVT_K = 1, KVT_V = 2, KVT_KV = 3 };
/* Whose fault a status is. */
enum {
  KVT_FAULT_NONE = 0,
  KVT_FAULT_CALLER = 1,      /* an argument */
  KVT_FAULT_DATA = 2,        /* bytes that were read: treat as a miss */
  KVT_FAULT_IO = 3,          /* memory, threads, a caller's callback */
  KVT_FAULT_UNSUPPORTED = 4, /* sound bytes of a kind that this version cannot read */
  KVT_FAULT_INTERNAL = 5,    /* a bug in the library */
  KVT_FAULT_STOPPED = 6      /* kvt_ctx_cancel */
};

/* What the last call on a context found. */
typedef struct {
  uint32_t struct_size;
  kvt_status status;
  uint64_t offset; /* in the input of the call that failed; UINT64_MAX: none */
  const char* message;
  const char* hint; /* empty, or what to do */
} kvt_error;

/* What a context is made of. */
typedef struct {
  uint32_t struct_size;
  uint32_t level;         /* KVT_FAST to KVT_MAX; 0: KVT_DEFAULT */
  uint64_t max_raw_bytes; /* larger inputs are refused with KV1014; 0: no limit */
  kvt_pool* pool;         /* borrowed; NULL: the calling thread alone */
} kvt_params;

/* What the bytes to encode are. Only `context` is checked when they are decoded; everything else
 * helps the codec, and a wrong value costs compression, never correctness. */
typedef struct {
  uint32_t struct_size;
  uint8_t dtype, order, role, reserved;
  uint32_t heads, head_dim; /* head_dim counts values */
  uint64_t tokens;
  uint32_t tag; /* the caller's own; stored */
  uint32_t reserved2;
  uint8_t context[16]; /* names model, layer and tokens: made with kvt_hash128 */
} kvt_desc;

/* What a frame's header says. */
typedef struct {
  uint32_t struct_size;
  uint16_t version;
  uint8_t codec; /* of the only segment; 255: several segments, each with its own */
  uint8_t level, dtype, order, role, reserved;
  uint32_t heads, head_dim, tag;
  uint32_t segment_tokens; /* what kvt_decode_tokens decodes at once; 0: only whole frames decode */
  uint32_t reserved2;
  uint64_t tokens, raw_bytes, frame_bytes;
  uint8_t raw_hash[16], context[16];
} kvt_info;

/* A part of a raw object: read when encoding, written when decoding. */
typedef struct {
  void* data;
  size_t bytes;
} kvt_piece;

/* One object of a batch. */
typedef struct {
  const kvt_desc* desc; /* decoding checks desc->context; NULL: not checked, bytes without shape */
  const kvt_piece* pieces; /* in order, together one raw object */
  size_t piece_count;
  void* frame;
  size_t frame_bytes; /* encoding: room at `frame`; decoding: bytes there */
  size_t written;     /* set by encoding: size of the frame; by decoding: raw bytes */
  kvt_status status;  /* set for every item */
  uint32_t reserved;
} kvt_item;

/* What a context has done since it was created. */
typedef struct {
  uint32_t struct_size, reserved;
  uint64_t raw_bytes, stored_bytes; /* of frames encoded */
  uint64_t encode_ns, decode_ns;    /* wall time inside calls */
  uint64_t frames;                  /* encoded */
  uint64_t stored_raw;              /* of these: incompressible */
  uint64_t decoded;                 /* frames decoded or verified with status 0 */
  uint64_t refused;                 /* frames that were damaged, foreign or unsupported */
} kvt_stats;

/* What a level is likely to make of given bytes. */
typedef struct {
  uint32_t struct_size;
  uint32_t level;                  /* set by the caller: KVT_FAST to KVT_MAX */
  double ratio;                    /* raw bytes over the frame's */
  double encode_mb_s, decode_mb_s; /* 10^6 raw bytes a second, of one thread */
} kvt_rate;

/* ---- library and findings: any thread, no object needed ---- */

/* Version of the library that was loaded. With the same SONAME a newer library serves older
 * callers, never the reverse. */
KVT_API uint32_t kvt_version(void);
/* Version, SIMD target in use and the libraries inside; static text. */
KVT_API const char* kvt_build(void);

/* Static text of a status: part 0 its id ("KV1103"), 1 a sentence, 2 the page of `kvtool explain`.
 * Numbers that this library does not know give their id and a general sentence; never NULL. */
KVT_API const char* kvt_explain(kvt_status status, int part);
/* One of KVT_FAULT_*. */
KVT_API int kvt_fault(kvt_status status);

/* XXH3, 128 bits, seed 0, canonical byte order: what contexts are made with, so that all engines
 * agree. It finds accidents, not attackers. Zeros where src is NULL and n is not 0. */
KVT_API void kvt_hash128(const void* src, size_t n, uint8_t out[16]);

/* ---- threads and contexts ---- */

/* Worker threads for any number of contexts; it must outlive them. threads: how many run at once,
 * the caller included; 0: as many as the process may use (affinity, cgroup). Threads start with the
 * first job, and again in a child after fork. */
KVT_API kvt_status kvt_pool_create(uint32_t threads, kvt_pool** out);
/* After the last context that uses it. */
KVT_API void kvt_pool_free(kvt_pool* pool);

/* params NULL: KVT_DEFAULT, no limit, the calling thread alone. KV0010: a level or a struct_size
 * that does not exist. */
KVT_API kvt_status kvt_ctx_create(const kvt_params* params, kvt_ctx** out);
/* After the writers and readers that were made from it, and never beside a call. */
KVT_API void kvt_ctx_free(kvt_ctx* ctx);

/* The most memory, in bytes, that a context of these parameters holds and uses while it encodes,
 * decodes and verifies, its pool's threads included but not their stacks. A batch takes up to 64
 * bytes more for each of its buffers. 0 where nothing bounds it: max_raw_bytes is 0, or the sum
 * overflows; and for parameters that kvt_ctx_create refuses. Any thread. */
KVT_API uint64_t kvt_ctx_bytes(const kvt_params* params);

/* Any thread, and signal handlers. Stops the call that runs on the context at this moment, and no
 * later one: it returns KV0008 within one segment (at most 4 MiB of raw bytes) and one use of a
 * callback, or its own status if it was done by then. A request while no call runs does nothing.
 * kvt_train ends after the part that it learns from. kvt_analyze, kvt_reference_create and those of
 * policies and kvt_h2o run to their end. */
KVT_API void kvt_ctx_cancel(kvt_ctx* ctx);
/* Any thread; does not wait. Sums since the context was created. */
KVT_API void kvt_ctx_stats(const kvt_ctx* ctx, kvt_stats* out);
/* What the last call on the context found; status 0 after a success. The texts belong to the
 * context until its next call. After a batch: the first failed item's. */
KVT_API void kvt_ctx_error(const kvt_ctx* ctx, kvt_error* out);

/* ---- frames: one page, chunk or tensor, complete in itself ---- */

/* The room that always suffices for a frame: raw_bytes + 128, which incompressible bytes need.
 * 0 on overflow. Any thread. */
KVT_API size_t kvt_encode_bound(size_t raw_bytes);

/* Writes one frame of the n bytes at src to dst. desc NULL: bytes without shape. A shape that does
 * not multiply to n is dropped. *written (unless NULL): size of the frame; with KV0006, where cap
 * is too small, the size that was needed. */
KVT_API kvt_status kvt_encode(kvt_ctx* ctx, const kvt_desc* desc, const void* src, size_t n,
                              void* dst, size_t cap, size_t* written);

/* Reads a header from the first 128 bytes of a frame; any thread, no object. KV1001: fewer bytes;
 * KV1003: not a frame; KV1301: of a newer version; KV1302: needs a reference; KV1103, KV1006,
 * KV1010: damaged. The sizes are claims until a decode or a verify returned 0: never allocate from
 * them without a limit of your own. out->struct_size must be set. */
KVT_API kvt_status kvt_frame_info(const void* src, size_t n, kvt_info* out);

/* Fills dst[0, raw_bytes). 0 means: the header, the context (unless NULL; KV1106 where it differs),
 * raw_bytes (KV1008) and the hash of every byte agree. Bytes after the frame are ignored, for
 * stores that pad. On any other status dst holds garbage; nothing outside it is ever written. */
KVT_API kvt_status kvt_decode(kvt_ctx* ctx, const void* src, size_t n, const uint8_t context[16],
                              void* dst, size_t raw_bytes);

/* Decodes tokens [begin, begin + count) of a frame in KVT_TOKEN_HEAD_DIM order: only the segments
 * that hold them, whose hashes are checked. KV1302 where kvt_info.segment_tokens is 0, KV0010
 * beyond the tokens, KV0006 where cap is too small. *written (unless NULL): bytes. */
KVT_API kvt_status kvt_decode_tokens(kvt_ctx* ctx, const void* src, size_t n,
                                     const uint8_t context[16], uint64_t begin, uint64_t count,
                                     void* dst, size_t cap, size_t* written);

/* kvt_decode without an output buffer, for scrubbers. */
KVT_API kvt_status kvt_verify(kvt_ctx* ctx, const void* src, size_t n, const uint8_t context[16]);

/* Many objects in one call, spread over the pool's threads; each is gathered from, or scattered to,
 * its pieces. One bad item changes no other. Items with a buffer that overlaps one that the batch
 * writes are refused (KV0010), all of them; several may read the same bytes. Returns the status of
 * the first failed item. item_size: sizeof(kvt_item). */
KVT_API kvt_status kvt_encode_batch(kvt_ctx* ctx, kvt_item* items, size_t count, size_t item_size);
/* The reverse, with the rules of kvt_decode for each item. */
KVT_API kvt_status kvt_decode_batch(kvt_ctx* ctx, kvt_item* items, size_t count, size_t item_size);

/* Fills one entry for each rates[i].level from a sample of at most 64 KiB, which is encoded and
 * decoded: for choosing a level. The ratio is an estimate, and low for bytes that repeat over long
 * distances; speeds are those of this machine at this moment. Costs about 0.25 % of encoding 32 MiB
 * at the same levels, 1 % at KVT_MAX. rate_size: sizeof(kvt_rate). */
KVT_API kvt_status kvt_estimate(kvt_ctx* ctx, const kvt_desc* desc, const void* src, size_t n,
                                kvt_rate* rates, size_t count, size_t rate_size);

/* ---- profiles: short pages without tables of their own ---- */

/* A profile that `kvtool train` made, from the bytes of its .kvp file, which may go after the call.
 * Pages of 16 to 64 KiB coded with it are about as small as long chunks without one. KV1003: not a
 * profile; KV1301: of a newer version; KV1103 and other findings: damaged. Any thread. */
KVT_API kvt_status kvt_profile_open(const void* src, size_t n, kvt_profile** out);
/* Before or after the contexts that use it. */
KVT_API void kvt_profile_free(kvt_profile* profile);
/* What frames name it by. */
KVT_API void kvt_profile_hash(const kvt_profile* profile, uint8_t out[16]);
/* From now on the context encodes with the profile at levels from KVT_DEFAULT on, wherever that
 * makes a frame smaller, and decodes frames that name it. NULL: without. Its tables, up to 160 KiB
 * for K or V of each layer that was met, come on top of kvt_ctx_bytes. Archives that it packs or
 * writes then need the profile where it made them smaller, and it reads those that do. */
KVT_API kvt_status kvt_ctx_use_profile(kvt_ctx* ctx, const kvt_profile* profile);
/* From now on archives that kvt_pack makes at KVT_MAX have up to so many layers in a row coded by
 * those before them: 1 (each on its own) to 16, at first 8. More is smaller and slower, and to read
 * one layer takes those before it too. KV0010: another number. Archives beside references, and
 * those of kvt_writer, join none. */
KVT_API kvt_status kvt_ctx_join_layers(kvt_ctx* ctx, uint32_t layers);
/* The hash of the profile that decoding a frame needs; zeros: none. Statuses of kvt_frame_info. A
 * call that decodes answers KV1109 without the profile. */
KVT_API kvt_status kvt_frame_profile(const void* src, size_t n, uint8_t out[16]);

/* ---- callbacks ---- */

/* Functions of the caller's. They are called on the calling thread alone, and return 0 or a status
 * from -39999 to -30000 of their own, which the running call then returns unchanged. Any other
 * number ends the call with KV0010. */
/* Fills all n bytes at dst from `offset` on. */
typedef kvt_status (*kvt_read_at)(void* user, uint64_t offset, void* dst, size_t n);
/* Takes the next n bytes. */
typedef kvt_status (*kvt_write)(void* user, const void* src, size_t n);

/* Something to read: `bytes` long and unchanged as long as it is used. */
typedef struct {
  uint32_t struct_size, reserved;
  uint64_t bytes;
  void* user;
  kvt_read_at read_at;
} kvt_source;

/* Something to write, from its first byte to its last. */
typedef struct {
  uint32_t struct_size, reserved;
  void* user;
  kvt_write write;
} kvt_sink;

/* ---- analysis ---- */

/* What compresses in one tensor, and why. */
typedef struct {
  uint32_t struct_size;
  uint32_t codec; /* that codes most chunks at the context's level, by its number in archives */
  uint64_t raw_bytes, coded_bytes; /* as an archive of the context's level would hold it */
  double bits_per_value;           /* that the better of that and MNN's codec needs */
  double bound_bits_per_value;     /* under the best of a set of entropy models; matches beat it */
  uint64_t values, nans, infinities, zeros;
  uint64_t zero_rows, repeated_rows; /* tokens of zeros; equal to an earlier token */
} kvt_analysis;

/* Codes the tensor, decodes it again (KV9001 if it differs) and walks its values; with one thread.
 * The description must explain all n bytes (KV0010). out (unless NULL) has its struct_size set;
 * json (unless NULL) receives the tensor's object of `kvtool analyze --json` on one line, with null
 * for cross_channel_gain_bits. */
KVT_API kvt_status kvt_analyze(kvt_ctx* ctx, const kvt_desc* desc, const void* src, size_t n,
                               kvt_analysis* out, const kvt_sink* json);

/* ---- archives: .kvz, as the program reads and writes them ---- */

/* Opens an output of `bytes` bytes: sets sink->user and sink->write. Names are relative, with '/',
 * and never lead out of a folder; the name of a single file is empty. */
typedef kvt_status (*kvt_open_file)(void* user, const char* name, uint64_t bytes, kvt_sink* sink);

/* A file of kvt_pack. */
typedef struct {
  const char* name; /* relative, with '/' */
  const kvt_source* source;
} kvt_file;

/* A cache that an archive was coded beside. */
typedef struct {
  uint32_t struct_size;
  uint32_t found;     /* 1: it is among those that kvt_reader_beside was given */
  uint64_t bytes;     /* of its file, or of what its archive restores to */
  uint64_t hash;      /* of these bytes: XXH3, 64 bits; of a folder, of the hashes of its files */
  const char* name;   /* of the file, without folders: a claim of the archive's, as all of these */
  const char* format; /* as `kvtool formats` lists it */
} kvt_need;

/* K or V of one layer. */
typedef struct {
  uint32_t struct_size, layer;
  kvt_desc* desc;                   /* writing: read; reading: filled in, unless NULL */
  uint64_t raw_bytes, stored_bytes; /* set by reading */
  const char* name;                 /* reading: of the reader; writing: NULL */
} kvt_part;

/* Writes an archive of the parts to the sink, forward only, in memory for one part. What it
 * restores to is a safetensors file of tensors k_0, v_0 ..., [token, head, dim], in the order of
 * the parts. Each part has a complete description: role KVT_K or KVT_V, an order with tokens and
 * heads; K of a layer may come without V. Every chunk is decoded again and compared before it is
 * written. Parts and their descriptions may go after the call; sink->user must stay. The writer
 * uses the context's threads and error and must be freed before it. part_size: sizeof(kvt_part). */
KVT_API kvt_status kvt_writer_create(kvt_ctx* ctx, const kvt_part* parts, size_t count,
                                     size_t part_size, const kvt_sink* sink, kvt_writer** out);
/* The values of part `index`: each part once, in order (KV0010), with exactly its bytes (KV0010).
 * src is free again on return. After a failure the writer can only be freed. */
KVT_API kvt_status kvt_writer_add(kvt_writer* writer, size_t index, const void* src, size_t n);
/* Writes the index. An archive that ends without one is damaged: readers recover what was added. */
KVT_API kvt_status kvt_writer_finish(kvt_writer* writer);
/* Without kvt_writer_finish the archive stays without an index. */
KVT_API void kvt_writer_free(kvt_writer* writer);

/* Learns a profile, as `kvtool train` does, and writes the bytes of its .kvp file to the sink.
 * values[i]: those of part i, sizes[i] bytes, in the part's order; parts are as for
 * kvt_writer_create, but the same layer may come several times, of several caches of one model.
 * Give it some thousand tokens of text as it is going to be used. name (may be NULL): of the model,
 * at most 255 bytes. KV1303: no values of f16 or bf16; KV1016: rows of a layer differ in width. */
KVT_API kvt_status kvt_train(kvt_ctx* ctx, const kvt_part* parts, const void* const* values,
                             const size_t* sizes, size_t count, size_t part_size, const char* name,
                             const kvt_sink* sink);

/* Reads the trailer and the index of an archive, not its data; all of it where they are damaged, to
 * recover what is left. *parts (unless NULL): how many tensors can be read. Any archive will do,
 * whatever wrote it; one whose tensors do not lie in chunks of their own has fewer parts, or none.
 * source->user must stay. Freed before the context, as writers are. KV1003: not an archive; the
 * findings of `kvtool verify` where it is damaged. */
KVT_API kvt_status kvt_reader_open(kvt_ctx* ctx, const kvt_source* source, kvt_reader** out,
                                   uint64_t* parts);
/* out->struct_size must be set, and that of out->desc, unless it is NULL. KV0010 beyond the parts.
 */
KVT_API kvt_status kvt_reader_part(kvt_reader* reader, uint64_t index, kvt_part* out);
/* Tokens [begin, begin + count) of a part as [token][head][dim]. Fetches the chunks that hold them
 * and nothing else, and checks their hashes. KV0010 beyond the tokens, KV0006 where cap is too
 * small; *written (unless NULL): bytes. On a failure dst holds garbage. */
KVT_API kvt_status kvt_reader_read(kvt_reader* reader, uint64_t index, uint64_t begin,
                                   uint64_t count, void* dst, size_t cap, size_t* written);
/* The next two are for archives that were coded beside other caches ("references", below). Parts of
 * them may be readable without these; for others kvt_reader_read returns KV1107 where the cache was
 * not given, and KV1108 where its rows are not those that the archive was made with. */
/* What the archive needs, by index from 0; KV0010 past the end. out->struct_size must be set. The
 * texts belong to the reader. */
KVT_API kvt_status kvt_reader_need(const kvt_reader* reader, size_t index, kvt_need* out);
/* Gives it caches, in any order, also more than it needs; a second call replaces the first. Fetches
 * a few chunks, to tell which is which. They may be freed before the reader. */
KVT_API kvt_status kvt_reader_beside(kvt_reader* reader, const kvt_reference* const* references,
                                     size_t count);
/* The names of its parts go with it. */
KVT_API void kvt_reader_free(kvt_reader* reader);

/* `kvtool compress` without a file system: archives any files so that kvt_unpack and the program
 * give the very same back; several as a folder. A format that kvtool knows is recognised by its
 * content and compresses better. The files are held in memory. */
KVT_API kvt_status kvt_pack(kvt_ctx* ctx, const kvt_file* files, size_t count,
                            const kvt_sink* sink);
/* `kvtool decompress` without a file system: calls `open` for each file, one after another, and
 * then its sink. Stops at the first damage. The archive is held in memory. */
KVT_API kvt_status kvt_unpack(kvt_ctx* ctx, const kvt_source* archive, kvt_open_file open,
                              void* user);

/* References. Rows that another cache has as well, or nearly has, cost an archive next to nothing
 * if its reader has that cache, too: an earlier save of the same chat, another chat with the same
 * system prompt. Whoever reads the archive needs the same rows, from whatever file has them: the
 * archive holds their hashes, which decide. */

/* A cache to code beside, in memory: files of a format that kvtool knows (several as a folder), or
 * an archive of one; `references` are those that this archive needs itself (KV1107 where one
 * lacks). The object never changes: contexts on several threads may use it at once, and it may
 * outlive all. */
KVT_API kvt_status kvt_reference_create(kvt_ctx* ctx, const kvt_file* files, size_t count,
                                        const kvt_reference* const* references,
                                        size_t reference_count, kvt_reference** out);
/* Not beside a call that uses it. */
KVT_API void kvt_reference_free(kvt_reference* reference);
/* kvt_pack beside caches. The archive then needs those of them that helped, and names them as their
 * files were named. KV1014: one of them ends a chain of 8 archives, each coded beside the next. */
KVT_API kvt_status kvt_pack_beside(kvt_ctx* ctx, const kvt_file* files, size_t count,
                                   const kvt_reference* const* references, size_t reference_count,
                                   const kvt_sink* sink);
/* kvt_unpack of such an archive. KV1107 and KV1108, as of kvt_reader_read, before a file is opened.
 */
KVT_API kvt_status kvt_unpack_beside(kvt_ctx* ctx, const kvt_source* archive,
                                     const kvt_reference* const* references, size_t count,
                                     kvt_open_file open, void* user);

/* ---- eviction ---- */

/* Tokens [begin, begin + count). */
typedef struct {
  uint32_t begin, count;
} kvt_range;
/* Tokens that are kept: ascending, disjoint ranges of indices into the cache as it is. */
typedef struct {
  const kvt_range* ranges;
  size_t count;
} kvt_plan;

/* A model's sizes, as far as eviction needs them. */
typedef struct {
  uint32_t struct_size;
  uint32_t layers, query_heads, kv_heads, head_dim, element_bytes;
} kvt_geometry;

/* Query rows of one layer and the keys that they see. */
typedef struct {
  uint32_t struct_size;
  uint32_t key_dtype; /* KVT_F32, KVT_F16 or KVT_BF16 */
  const kvt_geometry* geometry;
  const float* queries; /* [row][query head][dim], after rotation */
  uint64_t rows;
  const void* keys; /* [token][kv head][dim], by the strides below */
  uint64_t tokens;
  uint64_t visible; /* keys that the first row sees; row r sees visible + r, at most all */
  size_t key_token_stride, key_head_stride; /* bytes */
  float scale;                              /* 0: 1 / sqrt(head_dim) */
  uint32_t block_tokens;
} kvt_scores;

/* sums[b] = softmax weights of all query heads and rows on the keys of block b. Equal to the bit on
 * every CPU. blocks must be ceil(tokens / block_tokens). */
KVT_API kvt_status kvt_block_scores(kvt_ctx* ctx, const kvt_scores* in, float* sums, size_t blocks);

/* MNN's parameters under its own names; kvt_h2o_defaults fills in its own values. */
typedef struct {
  uint32_t struct_size;
  uint32_t revision;              /* 0: the final branch; 6: the measured build R6 */
  int32_t layer_start, layer_end; /* inclusive; a negative end is the last layer */
  uint32_t block_tokens, sink_tokens, recent_tokens, update_interval;
  uint32_t trigger_min_tokens;
  uint32_t target_mode; /* 0 static: target_keep_ratio; 1 adaptive: target_lossy_ratio */
  float target_keep_ratio, target_lossy_ratio, ema_alpha;
  uint32_t reserved;
  uint64_t prompt_tokens; /* in every layer's cache when decoding begins */
} kvt_h2o_params;

/* One call of one layer. */
typedef struct {
  uint32_t struct_size;
  uint32_t layer;             /* whose call this is */
  int32_t apply;              /* begin: compact this layer's cache to `plan` before appending */
  int32_t triggered;          /* finish: a decision was taken */
  kvt_plan plan;              /* borrowed until the next call on the object */
  uint64_t length;            /* tokens in the layer's cache, new ones included */
  uint64_t final_keep_tokens; /* finish: the budget that MNN hands to its lossless path */
  float keep_ratio;           /* of the last plan made, as MNN reports it */
  uint32_t in_range;          /* whether this layer is scored and evicted at all */
} kvt_h2o_call;

/* MNN's own values; out->struct_size must be set. */
KVT_API void kvt_h2o_defaults(kvt_h2o_params* out);
/* MNN's eviction as its engine runs it, decision for decision, without tensors. Values are clamped
 * as the engine clamps them. The object may outlive the context. */
KVT_API kvt_status kvt_h2o_create(kvt_ctx* ctx, const kvt_h2o_params* params,
                                  const kvt_geometry* geometry, kvt_h2o** out);
/* Before or after the context that it was made from. */
KVT_API void kvt_h2o_free(kvt_h2o* h2o);
/* One begin and one finish per layer call, layers in order, token by token; otherwise KV0010. If
 * call->apply, compact this layer's cache to call->plan; then append new_tokens. */
KVT_API kvt_status kvt_h2o_begin(kvt_h2o* h2o, uint64_t new_tokens, kvt_h2o_call* call);
/* Takes the block sums of the layer's cache (kvt_block_scores; ignored where in_range is 0) and
 * says whether a decision was taken; call->plan is then the pending plan, due at this layer's next
 * begin. query_rows: those of this call, below 2^31. After a failure it may be called again. */
KVT_API kvt_status kvt_h2o_finish(kvt_h2o* h2o, const float* block_sums, size_t blocks,
                                  uint64_t query_rows, kvt_h2o_call* call);
/* A layer's cache was cut outside, by a draft that was rolled back: a pending plan that no longer
 * fits is dropped at the layer's next begin. Between calls only. */
KVT_API kvt_status kvt_h2o_truncate(kvt_h2o* h2o, uint32_t layer, uint64_t length);

/* A policy that the program replays, too (`replay-h2o --policy`). */
typedef struct {
  uint32_t struct_size;
  uint32_t needs; /* KVT_NEEDS_ROWS, KVT_NEEDS_KEYS */
  const char* name;
  const char* summary;
} kvt_policy_info;
enum { KVT_NEEDS_ROWS = 1, KVT_NEEDS_KEYS = 2 };

/* The policies that kvt_policy_create makes, by index from 0; KV0010 past the end. Static text. Any
 * thread; out->struct_size must be set. */
KVT_API kvt_status kvt_policy_at(size_t index, kvt_policy_info* out);
/* A policy for one layer of one sequence, with the parameters of its paper. It uses the context's
 * threads and error and must be freed before it. KV0010: no such policy; KV1302: oracle-mass, which
 * decides by the attention of rows that are yet to come, so that only a replay of a recorded run
 * can know it. layer: below geometry->layers where the policy is pyramid; elsewhere any number. */
KVT_API kvt_status kvt_policy_create(kvt_ctx* ctx, const char* name, const kvt_geometry* geometry,
                                     uint32_t layer, kvt_policy** out);
/* After the last call. */
KVT_API void kvt_policy_free(kvt_policy* policy);
/* Both of the following: after a failure other than KV0010 the policy can only be freed. */
/* Query rows of this layer, in order and each once: rows->tokens tokens are in the cache, and the
 * rows are those of the last ones (rows->visible = tokens - rows + 1). Where the policy needs no
 * rows the rest may be zero. Keys that are new are copied where the policy needs rows; nothing is
 * kept of the caller's memory. block_tokens is ignored. */
KVT_API kvt_status kvt_policy_observe(kvt_policy* policy, const kvt_scores* rows);
/* Chooses `keep` tokens of the cache, whose last rows were observed: one plan for all kv heads, or
 * one for each, lent until the next call. The caller must apply them: the next call counts on a
 * cache of what they keep and of what was appended since. The choices are the program's for the
 * same rows. Three policies keep another number of tokens than `keep`, the same in all of their
 * plans:
 *  - full keeps all;
 *  - pyramid takes `keep` for the mean of all layers. The first layers keep more and the last ones
 *    fewer, by a difference that its first choice in this layer sets;
 *  - block keeps whole blocks: its sinks (one block of 64 tokens), its recent tokens (256) and
 * blocks by score up to `keep`, so that it keeps all of a short cache. It is MNN's rule on exact
 * scores; kvt_h2o is MNN's engine, decision for decision. */
KVT_API kvt_status kvt_policy_choose(kvt_policy* policy, const kvt_scores* cache, uint64_t keep,
                                     const kvt_plan** plans, size_t* count);

/* ---- for engines that keep pages themselves ---- */

/* What the codec promises, the same for every level and context. */
typedef struct {
  uint32_t struct_size;
  uint32_t lossless;              /* 1: every byte comes back */
  uint32_t needs_positions;       /* 0: nothing about tokens is needed beside the bytes */
  uint32_t page_tokens;           /* 1: a page has any number of tokens */
  uint32_t head_shards;           /* 1: frames of some of the heads decode without the others */
  uint32_t alignment;             /* 1: buffers may lie anywhere */
  uint32_t frame_overhead;        /* 128: the most by which a frame is longer than its raw bytes */
  uint32_t most_table_page_bytes; /* of a page in a kvt_table */
  uint32_t block_bytes;           /* 65536: raw bytes of a block, see kvt_ctx_use_blocks */
  uint32_t block_alignment;       /* 16: where blocks begin in a frame */
} kvt_caps;
/* Fills out, whose struct_size is set. KV0010: another struct_size. Any thread. */
KVT_API kvt_status kvt_codec_caps(kvt_caps* out);

/* kvt_encode for room that may be too small: KV0006 as soon as an estimate says that the frame is
 * not going to fit, which takes a tenth of the time of encoding at most where cap is far from what
 * is needed. *written (unless NULL) is then the estimate, more than cap. A cap that is missed by
 * less than the estimate's margin may cost the whole work, and hardly ever is a frame refused that
 * would have fitted. The bytes written are those of kvt_encode. KV0010: n is above the context's
 * max_raw_bytes, or src and dst overlap. */
KVT_API kvt_status kvt_encode_within(kvt_ctx* ctx, const kvt_desc* desc, const void* src, size_t n,
                                     void* dst, size_t cap, size_t* written);

/* kvt_decode_tokens for heads [begin, begin + count) of every token: [token][count][dim], or
 * [count][token][dim] for a frame in KVT_HEAD_TOKEN_DIM order, of which only the segments that hold
 * the heads are decoded. KV1302: the frame has no shape. KV0010: beyond the heads. KV0006: cap is
 * too small. *written (unless NULL): bytes. */
KVT_API kvt_status kvt_decode_heads(kvt_ctx* ctx, const void* src, size_t n,
                                    const uint8_t context[16], uint32_t begin, uint32_t count,
                                    void* dst, size_t cap, size_t* written);

/* 1: the context encodes frames and tables in blocks from now on, so that a batched decoder
 * on a device takes them as they are (kvt_frame_blocks). 0: it writes the smallest frames again.
 * Decoding needs no such call. KV0010: another number. */
KVT_API kvt_status kvt_ctx_use_blocks(kvt_ctx* ctx, int blocks);

/* A block of a frame: an ordinary zstd frame, complete in itself, of at most 64 KiB of raw bytes;
 * or, where bytes == raw_bytes, the raw bytes. What the blocks decode to goes to planes_offset in a
 * buffer of the frame's raw size. There the byte planes of each segment lie at segment_offset:
 * byte p of word i is at segment_offset + p * (segment_bytes / planes) + i. Where `rotated` is 1,
 * each word of two bytes is then rotated right by one bit. kvt_planes_join does that on the host.
 */
typedef struct {
  uint64_t offset;                        /* in the frame: a multiple of 16 */
  uint64_t planes_offset;                 /* of what it decodes to */
  uint64_t segment_offset, segment_bytes; /* in raw bytes, as in planes */
  uint32_t bytes, raw_bytes;
  uint8_t planes, rotated, reserved[6];
} kvt_block;
/* Lists the blocks of a frame that was encoded with kvt_ctx_use_blocks, which src holds whole.
 * *count: how many there are; out NULL with cap 0: nothing else. KV0006: more than cap. A frame
 * that is stored raw has none: its raw bytes follow the header's 128. KV1302: a frame of another
 * kind. Statuses of kvt_frame_info and of damaged tables. Hashes of the content are not checked.
 * Any thread. */
KVT_API kvt_status kvt_frame_blocks(const void* src, size_t n, kvt_block* out, size_t cap,
                                    size_t* count);

/* The transform before and after the blocks, for compressors in hardware: n bytes of values of a
 * KVT_ type at src as byte planes at dst, and back. Values of two or four bytes become as many
 * planes, the lowest byte first, bf16 after a rotation of each word left by one bit; all other
 * bytes are one plane. KV0010: an unknown dtype, or src and dst overlap. Any thread. */
KVT_API kvt_status kvt_planes_split(uint8_t dtype, const void* src, size_t n, void* dst);
KVT_API kvt_status kvt_planes_join(uint8_t dtype, const void* src, size_t n, void* dst);

/* What an engine keeps of a page in a table of its own. */
typedef struct {
  uint32_t bytes;    /* of the coded page */
  uint32_t codec;    /* by its number in frames */
  uint64_t raw_hash; /* XXH3-64 of the raw bytes */
  kvt_status status; /* set by every call */
  uint32_t reserved;
} kvt_entry;

/* Pages of one size and shape, as engines hold them, and what they are coded to. Page i of the call
 * is the page_bytes at pages + index[i] * stride; its coded bytes lie at data + i * room, without a
 * header of their own. */
typedef struct {
  uint32_t struct_size, reserved;
  const kvt_desc* desc; /* of one page; its context and tag are not used */
  void* pages;
  size_t page_count;     /* at `pages`: what index may name */
  size_t stride;         /* from page to page, at least page_bytes */
  size_t page_bytes;     /* at most 4 MiB (KV1014) */
  const uint32_t* index; /* NULL: pages 0, 1 ... */
  size_t count;          /* of pages to code, of entries and of rooms */
  void* data;
  size_t room; /* for each coded page; page_bytes always suffice */
  kvt_entry* entries;
} kvt_table;
/* Codes the pages of a table, spread over the pool's threads, and sets their entries. Returns the
 * status of the first page that failed; KV0006: the page does not fit its room, and
 * entries[i].bytes is what it needs. KV0010 for the whole call: an index beyond page_count, memory
 * that overlaps what is written, a NULL where bytes should be. A profile that the context uses must
 * be used by whoever decodes. */
KVT_API kvt_status kvt_encode_table(kvt_ctx* ctx, const kvt_table* table);
/* The reverse: fills the pages and checks the hash of each (KV1103). KV1302: a codec that this
 * version does not have. KV0010 also where index names a page twice. */
KVT_API kvt_status kvt_decode_table(kvt_ctx* ctx, const kvt_table* table);

#ifdef __cplusplus
}
#endif
#endif /* KVTOOL_H_ */
