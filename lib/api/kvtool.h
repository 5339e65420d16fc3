/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvtool authors
 *
 * kvtool.h: lossless compression of key-value caches, for engines that store them.
 *
 * This header and libkvtool are the stable tier: frames, profiles, archives and references.
 * kvtool_study.h and libkvtool_study are the second tier: eviction, policies and analysis, which
 * may change with each minor version.
 *
 * Example: one page of 16 tokens, stored under a key and loaded again.
 *
 *   kvt_ctx* ctx = NULL;
 *   kvt_desc desc = {0};
 *   size_t used = 0;
 *   desc.struct_size = sizeof desc;
 *   desc.dtype = KVT_BF16;
 *   desc.role = KVT_K;
 *   desc.heads = 8, desc.head_dim = 128, desc.tokens = 16;
 *   kvt_hash128(key, strlen(key), desc.context);
 *   if (kvt_ctx_create(NULL, &ctx) != KVT_OK) return;
 *   if (kvt_encode(ctx, &desc, page, PAGE, frame, KVT_ENCODE_BOUND(PAGE), &used) == KVT_OK)
 *     put(store, key, frame, used);
 *   switch (kvt_decode(ctx, frame, used, desc.context, page, PAGE)) {
 *     case KVT_OK: break;
 *     case KVT_E_CONTEXT_DIFFERS:  // another page lies under this key
 *     default: compute(page);      // every failure is a miss, never wrong bytes
 *   }
 *   kvt_ctx_free(ctx);
 *
 * These rules hold for every function:
 *  - Status. KVT_OK is 0. A failure is -N, where `kvtool explain N` describes the finding KVN:
 *    KVT_E_CHECKSUM is -1103, KV1103. After a failure the output must not be used. Every function
 *    that takes a pointer can return KVT_E_BAD_ARGUMENT (KV0010).
 *  - Buffers may lie at any alignment. A buffer that a call writes must not overlap another buffer
 *    of that call: KVT_E_BAD_ARGUMENT. NULL stands for a buffer of 0 bytes; NULL with a size is
 *    KVT_E_BAD_ARGUMENT.
 *  - Structs. Every struct begins with struct_size, which the caller sets to its sizeof before each
 *    call that takes the struct, also where the call fills it. Later versions append fields only. A
 *    library accepts every size that a version up to its own had: fields that an older caller lacks
 *    count as zero, zero is the old behaviour, and nothing beyond struct_size is written. Any other
 *    size is KVT_E_BAD_ARGUMENT. The elements of an array are struct_size bytes apart and
 *    all have the same struct_size. Fields called reserved must be zero. Where one struct refers to
 *    another it holds a pointer, so that both can grow.
 *  - Determinism. The encoded bytes depend on the input, the description, the level and the version
 *    of the library, never on the number of threads, the CPU or earlier calls.
 *  - Threads. An object serves one call at a time; a context that is busy answers KVT_E_BUSY
 *    (KV0007) at once. Only kvt_ctx_cancel and kvt_ctx_stats may be called during another call.
 *    A queue takes calls from any number of threads at once. Functions without an object may be
 *    called from any thread at any time.
 *  - Lifetime. An object that was made from a context (kvt_writer, kvt_reader, and kvt_h2o and
 *    kvt_policy of kvtool_study.h) uses the threads and the error of that context and must be freed
 *    before it. A pool must be freed after the last context that uses it. A profile and a reference
 *    never change, serve any number of threads at once, and may be freed before or after contexts,
 *    but not during a call that uses them. Every kvt_*_free accepts NULL. Nothing else needs to be
 *    freed.
 *  - Errors. A call that takes a context, or an object that was made from one, leaves its error
 *    with the context: kvt_ctx_error gives the text, the offset and a hint.
 *  - The library keeps no global state, writes to no stream and opens no file.
 *  - Memory. A context keeps its buffers. After two calls of a size, every level encodes and
 *    decodes with small allocations only, below 16 KiB each; zstd alone exchanges tables of up to
 *    1 MiB now and then while KVT_MAX encodes. kvt_queue_submit, kvt_queue_poll and kvt_queue_wait
 *    allocate nothing at all. All memory comes from malloc; docs/library.md says why there is no
 *    parameter for another allocator.
 */
#ifndef KVTOOL_H_
#define KVTOOL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* KVT_API marks what the libraries export. A program for Windows that links the static library
 * defines KVT_STATIC. Only the build of the libraries defines KVT_BUILDING. */
#if defined(KVT_STATIC)
#define KVT_API
#elif defined(_WIN32) && defined(KVT_BUILDING)
#define KVT_API __declspec(dllexport)
#elif defined(_WIN32)
#define KVT_API __declspec(dllimport)
#elif defined(__GNUC__)
#define KVT_API __attribute__((visibility("default")))
#else
#define KVT_API
#endif

/* The version of this header; kvt_version() is that of the library. */
#define KVT_VERSION_MAJOR 0
#define KVT_VERSION_MINOR 2
#define KVT_VERSION_PATCH 0
#define KVT_VERSION (KVT_VERSION_MAJOR * 10000u + KVT_VERSION_MINOR * 100u + KVT_VERSION_PATCH)

/* Size of a frame's header in bytes: kvt_frame_info reads no more. */
#define KVT_FRAME_HEADER_BYTES 128
/* Equals kvt_encode_bound(raw_bytes), for arrays whose size is a constant. */
#define KVT_ENCODE_BOUND(raw_bytes)                        \
  ((size_t)(raw_bytes) > SIZE_MAX - KVT_FRAME_HEADER_BYTES \
       ? (size_t)0                                         \
       : (size_t)(raw_bytes) + KVT_FRAME_HEADER_BYTES)

/* ---- statuses ---- */

typedef int32_t kvt_status;

/* Every status of the library. scripts/check/abi.py writes this list from lib/core/base/error.h. */
enum {
  /* ---- from the table of findings ---- */
  KVT_OK = 0,                        /* success */
  KVT_E_USAGE = -1,                  /* wrong use of the command line */
  KVT_E_GEOMETRY_MISSING = -2,       /* the file does not say its head count or head size */
  KVT_E_UNKNOWN_FORMAT = -3,         /* no known format matches the bytes of the file */
  KVT_E_AMBIGUOUS_FORMAT = -4,       /* the bytes fit two formats or layouts */
  KVT_E_CONFIG = -5,                 /* a configuration file cannot be used */
  KVT_E_OUTPUT_TOO_SMALL = -6,       /* the caller's buffer is too small */
  KVT_E_BUSY = -7,                   /* the context or the queue is busy */
  KVT_E_CANCELLED = -8,              /* the call was cancelled */
  KVT_E_NO_MEMORY = -9,              /* the library could not allocate memory */
  KVT_E_BAD_ARGUMENT = -10,          /* an argument of a library call is wrong */
  KVT_E_OPEN_FAILED = -101,          /* a file cannot be opened */
  KVT_E_READ_FAILED = -102,          /* reading failed */
  KVT_E_WRITE_FAILED = -103,         /* writing failed */
  KVT_E_EXISTS = -104,               /* the output exists */
  KVT_E_UNSAFE_NAME = -105,          /* a stored file name would leave the output folder */
  KVT_E_NO_RESOURCES = -106,         /* the system gave no memory or no thread */
  KVT_E_TRUNCATED = -1001,           /* the file ends too early */
  KVT_E_TRAILING_BYTES = -1002,      /* bytes are left over */
  KVT_E_BAD_MAGIC = -1003,           /* the magic number is wrong */
  KVT_E_BAD_VERSION = -1004,         /* the version field is impossible */
  KVT_E_BAD_HEADER = -1005,          /* the header is malformed */
  KVT_E_BAD_FIELD = -1006,           /* a field has an impossible value */
  KVT_E_OVERFLOW = -1007,            /* a size computation overflows 64 bits */
  KVT_E_SIZE_MISMATCH = -1008,       /* two sizes that must agree differ */
  KVT_E_BAD_OFFSETS = -1009,         /* stored ranges leave holes, overlap or leave the file */
  KVT_E_UNKNOWN_DTYPE = -1010,       /* the element type is unknown */
  KVT_E_DUPLICATE_NAME = -1011,      /* a name occurs twice */
  KVT_E_BAD_NAME = -1012,            /* a name cannot be used */
  KVT_E_MISSING_RECORD = -1013,      /* something that the file refers to is missing */
  KVT_E_LIMIT = -1014,               /* a limit was reached */
  KVT_E_BAD_TEXT = -1015,            /* text or JSON inside the file is malformed */
  KVT_E_INCONSISTENT = -1016,        /* parts of the input contradict each other */
  KVT_E_BAD_FRAME = -1101,           /* a compressed frame is malformed */
  KVT_E_BAD_PAYLOAD = -1102,         /* a compressed payload does not decode */
  KVT_E_CHECKSUM = -1103,            /* a checksum does not match */
  KVT_E_LOST_CHUNK = -1104,          /* a chunk of the archive is lost */
  KVT_E_CONTENT_DIFFERS = -1105,     /* restored content differs from its source */
  KVT_E_CONTEXT_DIFFERS = -1106,     /* the frame belongs to another context */
  KVT_E_REFERENCE_MISSING = -1107,   /* a reference of the archive was not found */
  KVT_E_REFERENCE_DIFFERS = -1108,   /* a reference is not the one that the archive was made with */
  KVT_E_PROFILE_MISSING = -1109,     /* the profile or transform that the data was coded with was not found */
  KVT_E_FORBIDDEN_GLOBAL = -1201,    /* a pickle names something that can run code */
  KVT_E_FORBIDDEN_OPCODE = -1202,    /* a pickle uses an opcode that can run code */
  KVT_E_BAD_PICKLE = -1203,          /* a pickle is malformed */
  KVT_E_BAD_ZIP = -1204,             /* a zip directory is malformed */
  KVT_E_UNSUPPORTED_VERSION = -1301, /* this version is known but not supported */
  KVT_E_UNSUPPORTED_KIND = -1302,    /* this kind of content is known but not supported */
  KVT_E_UNSUPPORTED_DTYPE = -1303,   /* this element type is known but not supported here */
  KVT_E_UNSUPPORTED_LAYOUT = -1304,  /* this layout is known but not supported here */
  KVT_E_TRACE_MISMATCH = -1401,      /* trace and snapshot do not belong together */
  KVT_E_INTERNAL = -9001             /* a bug in kvtool */
  /* ---- end ---- */
};
/* Statuses that a caller's own function may return, lowest and highest. */
enum { KVT_CALLBACK_MIN = -39999, KVT_CALLBACK_MAX = -30000 };

/* Tells whose fault a status is, so that an engine can react without knowing each number. */
enum {
  KVT_FAULT_NONE = 0,
  KVT_FAULT_CALLER = 1,      /* an argument is wrong, or a profile or reference was not given */
  KVT_FAULT_DATA = 2,        /* the bytes that were read are damaged or foreign: a miss */
  KVT_FAULT_IO = 3,          /* memory or threads ran out, or a caller's function failed */
  KVT_FAULT_UNSUPPORTED = 4, /* the bytes are sound, but of a kind this version cannot read */
  KVT_FAULT_INTERNAL = 5,    /* the library has a bug */
  KVT_FAULT_STOPPED = 6      /* kvt_ctx_cancel stopped the call */
};

/* Texts of kvt_explain. */
enum {
  KVT_EXPLAIN_ID = 0,       /* "KV1103" */
  KVT_EXPLAIN_SENTENCE = 1, /* one line without a full stop */
  KVT_EXPLAIN_PAGE = 2      /* the page of `kvtool explain` */
};

/* ---- types ---- */

typedef struct kvt_pool kvt_pool;           /* worker threads, shared by contexts */
typedef struct kvt_ctx kvt_ctx;             /* level, scratch memory, last error */
typedef struct kvt_profile kvt_profile;     /* tables of one model, for short pages */
typedef struct kvt_writer kvt_writer;       /* an archive that is being written */
typedef struct kvt_reader kvt_reader;       /* an archive that is being read */
typedef struct kvt_reference kvt_reference; /* a cache that archives are coded against */
typedef struct kvt_queue kvt_queue;         /* threads that code batches in the background */

/* Element types, by the numbers that frames and .kvz archives store. Every number from 0 to
 * KVT_IQ4_NL is taken. Block types (Q8_0 and on) hold 32 values in each block, as ggml has them. */
enum {
  KVT_F32 = 0,
  KVT_F16 = 1,
  KVT_BF16 = 2,
  KVT_F64 = 3,
  KVT_I8 = 4,
  KVT_U8 = 5,
  KVT_I16 = 6,
  KVT_U16 = 7,
  KVT_I32 = 8,
  KVT_U32 = 9,
  KVT_I64 = 10,
  KVT_U64 = 11,
  KVT_BOOL = 12,
  KVT_F8_E4M3 = 13,
  KVT_F8_E5M2 = 14,
  KVT_Q8_0 = 15,
  KVT_Q4_0 = 16,
  KVT_Q4_1 = 17,
  KVT_Q5_0 = 18,
  KVT_Q5_1 = 19,
  KVT_IQ4_NL = 20
};
/* Order of a tensor's values in memory, the outermost axis first. */
enum {
  KVT_TOKEN_HEAD_DIM = 0,
  KVT_HEAD_TOKEN_DIM = 1,
  KVT_HEAD_DIM_TOKEN = 2, /* archives of the program have it; no call of this header accepts it */
  KVT_ORDER_UNKNOWN = 3
};
/* Levels. Each is slower than the one before and makes frames that are about as small or smaller.
 */
enum {
  KVT_LEVEL_UNSET = 0, /* in kvt_params: KVT_DEFAULT */
  KVT_FAST = 1,
  KVT_DEFAULT = 2,
  KVT_HIGH = 3,
  KVT_MAX = 4
};
/* Roles of a tensor. KVT_KV has K and V side by side in each head of each token, and head_dim
 * counts both; they are coded separately where that makes the frame smaller. */
enum { KVT_ROLE_UNKNOWN = 0, KVT_K = 1, KVT_V = 2, KVT_KV = 3 };
/* Numbers of codecs that callers compare with; kvt_codec_name names all of them. */
enum {
  KVT_CODEC_RAW = 0,      /* the bytes as they are */
  KVT_CODEC_SEVERAL = 255 /* in kvt_info: the frame has several segments, each with its own codec */
};
/* Kinds of segments, by what decoding one needs. */
enum {
  KVT_SEGMENT_RAW = 0,     /* nothing: its bytes are the raw bytes */
  KVT_SEGMENT_CODED = 1,   /* the codec that the segment names */
  KVT_SEGMENT_PROFILED = 2 /* the profile that kvt_frame_profile names */
};
/* Highest and default number of layers that kvt_pack joins at KVT_MAX (kvt_ctx_join_layers). */
enum { KVT_JOINED_LAYERS_MAX = 16, KVT_JOINED_LAYERS_DEFAULT = 8 };

/* Error of the last call on a context. */
typedef struct {
  uint32_t struct_size;
  kvt_status status;   /* KVT_OK after a success */
  uint64_t offset;     /* place in the input of that call, in bytes; UINT64_MAX: none is known */
  const char* message; /* one line; empty after a success */
  const char* hint;    /* advice, or empty */
} kvt_error;

/* Parameters of a context. */
typedef struct {
  uint32_t struct_size;
  uint32_t level;         /* KVT_FAST to KVT_MAX, or KVT_LEVEL_UNSET */
  uint64_t max_raw_bytes; /* larger inputs are refused (KVT_E_LIMIT); 0: no limit */
  kvt_pool* pool;         /* borrowed; NULL: calls run on the calling thread alone */
} kvt_params;

/* Description of the bytes to encode. Decoding checks only `context`. Everything else helps the
 * codec: a wrong value costs compression, never correctness. */
typedef struct {
  uint32_t struct_size;
  uint8_t dtype; /* KVT_F32 ... KVT_IQ4_NL */
  uint8_t order; /* KVT_TOKEN_HEAD_DIM, KVT_HEAD_TOKEN_DIM or KVT_ORDER_UNKNOWN */
  uint8_t role;  /* KVT_ROLE_UNKNOWN ... KVT_KV */
  uint8_t reserved;
  uint32_t heads;
  uint32_t head_dim; /* values in a head of a token, not bytes and not blocks */
  uint64_t tokens;
  uint32_t tag; /* a number of the caller's, stored in the frame */
  uint32_t reserved2;
  uint8_t context[16]; /* names the model, the layer and the tokens: made with kvt_hash128 */
} kvt_desc;

/* Contents of a frame's header. */
typedef struct {
  uint32_t struct_size;
  uint16_t version; /* version of the frame's grammar */
  uint8_t codec;    /* number of the only segment's codec, or KVT_CODEC_SEVERAL */
  uint8_t level, dtype, order, role, reserved;
  uint32_t heads, head_dim, tag;
  uint32_t
      segment_tokens; /* number of tokens that decode without the rest; 0: only the whole frame */
  uint32_t reserved2;
  uint64_t tokens, raw_bytes, frame_bytes;
  uint8_t raw_hash[16]; /* kvt_hash128 of the raw bytes */
  uint8_t context[16];
  /* Version 0.2.0 ends here: 88 bytes. */
  uint64_t segments; /* how many kvt_frame_segments lists */
} kvt_info;

/* One segment of a frame. Segments are coded separately and stored in order. */
typedef struct {
  uint32_t struct_size;
  uint32_t kind;  /* KVT_SEGMENT_RAW, KVT_SEGMENT_CODED or KVT_SEGMENT_PROFILED */
  uint32_t codec; /* its number; kvt_codec_name names it */
  uint32_t reserved;
  uint64_t offset;     /* where its coded bytes begin, from the first byte of the frame */
  uint64_t bytes;      /* length of its coded bytes */
  uint64_t raw_offset; /* where its raw bytes begin in what the frame decodes to */
  uint64_t raw_bytes;
} kvt_segment;

/* A part of a raw object of a batch: encoding reads it, decoding writes it. */
typedef struct {
  uint32_t struct_size, reserved;
  void* data;
  size_t bytes;
} kvt_piece;

/* One object of a batch. */
typedef struct {
  uint32_t struct_size;
  kvt_status status;       /* set by the call, for every item */
  const kvt_desc* desc;    /* encoding: NULL is bytes without shape. Decoding: only desc->context is
                            * used, and NULL accepts any context */
  const kvt_piece* pieces; /* in order, together one raw object */
  size_t piece_count;
  void* frame;        /* encoding writes it, decoding reads it */
  size_t frame_bytes; /* encoding: room at `frame`; decoding: bytes there */
  size_t written;     /* set by the call: encoding: bytes of the frame, with KVT_E_OUTPUT_TOO_SMALL
                       * the bytes that it needs; decoding: raw bytes; 0 on other failures */
} kvt_item;

/* Sums over the calls of a context since it was created. A page of a table counts as a frame. */
typedef struct {
  uint32_t struct_size, reserved;
  uint64_t raw_bytes, stored_bytes; /* sums over encoded frames, raw and as stored */
  uint64_t encode_ns, decode_ns;    /* wall time inside calls, in nanoseconds */
  uint64_t frames;                  /* frames encoded */
  uint64_t stored_raw;              /* frames among them that did not shrink */
  uint64_t decoded;                 /* frames decoded or verified with KVT_OK */
  uint64_t refused;                 /* frames that were damaged, foreign or unsupported */
} kvt_stats;

/* Estimate of one level for given bytes. */
typedef struct {
  uint32_t struct_size;
  uint32_t level;     /* set by the caller: KVT_FAST to KVT_MAX */
  double ratio;       /* raw bytes over bytes of the frame */
  double encode_mb_s; /* 10^6 raw bytes a second, on one thread */
  double decode_mb_s;
} kvt_rate;

/* ---- library and statuses ---- */

/* Returns the version of the library that was loaded, as KVT_VERSION counts. With the same SONAME a
 * newer library serves callers of an older header, never the reverse: a program that needs this
 * header checks kvt_version() >= KVT_VERSION. Any thread. */
KVT_API uint32_t kvt_version(void);

/* Returns one line for bug reports: the version, the SIMD target in use and the version of zstd.
 * The text is static. Any thread. */
KVT_API const char* kvt_build(void);

/* Returns a text of a status.
 * status: any number. part: KVT_EXPLAIN_ID, KVT_EXPLAIN_SENTENCE or KVT_EXPLAIN_PAGE.
 * The text is static and never NULL; it is empty for a part that does not exist. A status of a
 * newer library gives its id and a general sentence. Any thread.
 *
 *   fprintf(stderr, "%s: %s\n", kvt_explain(status, KVT_EXPLAIN_ID),
 *           kvt_explain(status, KVT_EXPLAIN_SENTENCE)); */
KVT_API const char* kvt_explain(kvt_status status, int part);

/* Returns the KVT_FAULT_* of a status: KVT_FAULT_NONE for KVT_OK, KVT_FAULT_IO for a status of a
 * caller's function. Statuses of newer libraries have the fault of their group. Any thread. */
KVT_API int kvt_fault(kvt_status status);

/* Returns the name of a codec ("raw", "zstd"), by the number that frames and archives store;
 * "several" for KVT_CODEC_SEVERAL, and "unknown" for a number that this library does not have. The
 * text is static. Any thread. */
KVT_API const char* kvt_codec_name(uint32_t codec);

/* Hashes the n bytes at src with XXH3, 128 bits, seed 0, in canonical byte order. Contexts are made
 * with it, so that all engines agree on them. It finds accidents, not attackers.
 * src: any bytes; NULL with n = 0 is the empty string. out: 16 bytes, which are set to zero where
 * the call fails.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: out is NULL, or src is NULL and n is not 0. Any thread. */
KVT_API kvt_status kvt_hash128(const void* src, size_t n, uint8_t out[16]);

/* ---- threads and contexts ---- */

/* Creates worker threads for any number of contexts.
 * threads: how many run at once, the calling thread included, at most 4096; 0: as many as the
 * process may use (affinity and cgroup). out: receives the pool.
 * Threads start with the first call that has work for them, and anew in a child after fork.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT; KVT_E_NO_MEMORY. Any thread. */
KVT_API kvt_status kvt_pool_create(uint32_t threads, kvt_pool** out);

/* Destroys a pool and ends its threads. All contexts that use it must have been freed. */
KVT_API void kvt_pool_free(kvt_pool* pool);

/* Creates a context. An engine makes one for each of its threads; contexts may share a pool.
 * params: copied; NULL means KVT_DEFAULT without a limit, on the calling thread only. out: receives
 * the context.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: the level or the struct_size does not exist;
 * KVT_E_NO_MEMORY. Any thread. */
KVT_API kvt_status kvt_ctx_create(const kvt_params* params, kvt_ctx** out);

/* Destroys a context. Its writers, readers, policies and kvt_h2o must have been freed, and no call
 * may run on it. */
KVT_API void kvt_ctx_free(kvt_ctx* ctx);

/* Returns the most memory, in bytes, that a context of these parameters holds and uses while it
 * encodes, decodes and verifies. Threads of its pool count, but not their stacks. A batch takes up
 * to 64 bytes more for each buffer and 128 for each item.
 * Returns 0 where nothing bounds the memory (max_raw_bytes is 0, or the sum overflows) and for
 * parameters that kvt_ctx_create refuses. Any thread. */
KVT_API uint64_t kvt_ctx_bytes(const kvt_params* params);

/* Stops the call that runs on the context at this moment, and no later one.
 * Returns 1: a call runs, and it is going to return KVT_E_CANCELLED, within one segment (at most
 * 4 MiB of raw bytes) and one use of a caller's function. kvt_train ends after the part that it
 * learns from; kvt_reference_create and the calls of kvtool_study.h run to their end and then
 * return KVT_E_CANCELLED. Returns 0: no call runs or its result is already decided, and nothing
 * changes. To stop a call that another thread is about to make, repeat this call until it returns 1
 * or that thread is done, so that no request is lost. Any thread, and signal handlers. ctx NULL:
 * returns 0. */
KVT_API int kvt_ctx_cancel(kvt_ctx* ctx);

/* Fills `out` with sums over the calls of the context since it was created. Does not wait for a
 * running call.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: a pointer is NULL or the struct_size is wrong. Any thread. */
KVT_API kvt_status kvt_ctx_stats(const kvt_ctx* ctx, kvt_stats* out);

/* Fills `out` with the error of the last call on the context, or on an object made from it; after a
 * batch it is that of the first failed item. The texts belong to the context and hold until its
 * next call.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: a pointer is NULL or the struct_size is wrong. That error
 * is not kept, nor is KVT_E_BUSY. Must not run during another call on the context. */
KVT_API kvt_status kvt_ctx_error(const kvt_ctx* ctx, kvt_error* out);

/* ---- frames: one page, chunk or tensor, complete in itself ---- */

/* Returns the room in bytes that always suffices for a frame: raw_bytes + KVT_FRAME_HEADER_BYTES,
 * which incompressible bytes need. 0: the sum overflows. Any thread. */
KVT_API size_t kvt_encode_bound(size_t raw_bytes);

/* Encodes n bytes as one frame.
 * desc: NULL is bytes without shape. A shape that does not multiply to n bytes is dropped.
 * src: n raw bytes. dst: cap bytes of room. written: NULL, or receives the bytes of the frame; with
 * KVT_E_OUTPUT_TOO_SMALL the bytes that it needs; 0 on other failures.
 * Returns KVT_OK; KVT_E_OUTPUT_TOO_SMALL: cap is smaller than the frame; KVT_E_LIMIT: n is above
 * max_raw_bytes; KVT_E_BAD_ARGUMENT: a field of desc does not exist, or buffers overlap;
 * KVT_E_CANCELLED; KVT_E_BUSY; KVT_E_NO_MEMORY. On a failure dst holds garbage. */
KVT_API kvt_status kvt_encode(kvt_ctx* ctx, const kvt_desc* desc, const void* src, size_t n,
                              void* dst, size_t cap, size_t* written);

/* Reads the header of a frame, without decoding.
 * src, n: at least the first KVT_FRAME_HEADER_BYTES of the frame. out: filled; struct_size is set.
 * Returns KVT_OK; KVT_E_TRUNCATED: fewer bytes; KVT_E_BAD_MAGIC: not a frame;
 * KVT_E_UNSUPPORTED_VERSION: of a newer version; KVT_E_UNSUPPORTED_KIND: it needs what this version
 * does not have; KVT_E_CHECKSUM, KVT_E_BAD_FIELD, KVT_E_UNKNOWN_DTYPE: damaged.
 * The sizes are claims until a decode or a verify returned KVT_OK: never allocate from them without
 * a limit of your own. Any thread. */
KVT_API kvt_status kvt_frame_info(const void* src, size_t n, kvt_info* out);

/* Lists the segments of a frame, without decoding, for an engine that copies, places or hands out
 * the parts of a frame.
 * src, n: the whole frame; bytes after it are ignored. out: room for `cap` segments; the caller
 * sets struct_size of the first one, the call fills all. NULL with cap = 0 only counts. count:
 * receives the number of segments. Returns KVT_OK; KVT_E_OUTPUT_TOO_SMALL: there are more than cap,
 * and out is untouched; the statuses of kvt_frame_info; KVT_E_TRUNCATED: the frame is not whole;
 * KVT_E_BAD_FRAME: its table and its segments contradict each other. The bytes of segments are not
 * checked. Any thread. */
KVT_API kvt_status kvt_frame_segments(const void* src, size_t n, kvt_segment* out, size_t cap,
                                      size_t* count);

/* Decodes a frame.
 * src, n: the frame; bytes after it are ignored, for stores that pad. context: NULL, or the 16
 * bytes that the frame must have been encoded with. dst: raw_bytes bytes, exactly the frame's.
 * Returns KVT_OK: the header, the context, raw_bytes and the hash of every byte agree.
 * KVT_E_CONTEXT_DIFFERS: a sound frame of something else; KVT_E_SIZE_MISMATCH: raw_bytes is not the
 * frame's; KVT_E_PROFILE_MISSING: see kvt_frame_profile; the statuses of kvt_frame_info;
 * KVT_E_TRUNCATED, KVT_E_BAD_FRAME, KVT_E_BAD_PAYLOAD, KVT_E_CHECKSUM: damaged; KVT_E_LIMIT,
 * KVT_E_CANCELLED, KVT_E_BUSY, KVT_E_NO_MEMORY. On a failure dst holds garbage; nothing outside of
 * it is ever written. */
KVT_API kvt_status kvt_decode(kvt_ctx* ctx, const void* src, size_t n, const uint8_t context[16],
                              void* dst, size_t raw_bytes);

/* Decodes tokens [begin, begin + count) of a frame in KVT_TOKEN_HEAD_DIM order. Only the segments
 * that hold them are decoded, and only their hashes are checked.
 * src, n, context: as for kvt_decode. dst: cap bytes of room for [token][head][dim]. written: NULL,
 * or receives the bytes at dst; 0 on a failure.
 * Returns KVT_OK; KVT_E_UNSUPPORTED_KIND: kvt_info.segment_tokens is 0; KVT_E_BAD_ARGUMENT: the
 * range ends beyond the tokens; KVT_E_OUTPUT_TOO_SMALL: cap; otherwise as kvt_decode. */
KVT_API kvt_status kvt_decode_tokens(kvt_ctx* ctx, const void* src, size_t n,
                                     const uint8_t context[16], uint64_t begin, uint64_t count,
                                     void* dst, size_t cap, size_t* written);

/* Checks a frame as kvt_decode does, without an output buffer: for scrubbers. It holds one segment
 * for each thread in memory. Returns the statuses of kvt_decode. */
KVT_API kvt_status kvt_verify(kvt_ctx* ctx, const void* src, size_t n, const uint8_t context[16]);

/* Encodes many objects in one call, spread over the threads of the pool. Each is gathered from its
 * pieces.
 * items: `count` items; status and written of each are set.
 * Returns the status of the first failed item, or KVT_OK. A bad item changes no other. Every item
 * with a buffer that overlaps one that the batch writes gets KVT_E_BAD_ARGUMENT; several items may
 * read the same bytes. KVT_E_CANCELLED may come with items of status KVT_OK, which are complete.
 * Otherwise as kvt_encode. */
KVT_API kvt_status kvt_encode_batch(kvt_ctx* ctx, kvt_item* items, size_t count);

/* Decodes many frames in one call, each scattered to its pieces, which together have exactly the
 * raw bytes of the frame. Rules and statuses for each item are those of kvt_decode, for the batch
 * those of kvt_encode_batch. */
KVT_API kvt_status kvt_decode_batch(kvt_ctx* ctx, kvt_item* items, size_t count);

/* Estimates the size and speed of levels on given bytes, to choose one: encodes and decodes a
 * sample of at most 64 KiB at each.
 * desc, src, n: as for kvt_encode. rates: `count` entries whose struct_size and level are set; the
 * call fills the rest. The context's profile and blocks count (kvt_ctx_use_profile,
 * kvt_ctx_use_blocks), its own level does not.
 * The ratio is low for bytes that repeat over long distances; speeds are those of this machine at
 * this moment. Takes about 0.25 % of the time of encoding 32 MiB at the same levels, 1 % at
 * KVT_MAX.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: a level does not exist; KVT_E_CANCELLED; KVT_E_BUSY;
 * KVT_E_NO_MEMORY. */
KVT_API kvt_status kvt_estimate(kvt_ctx* ctx, const kvt_desc* desc, const void* src, size_t n,
                                kvt_rate* rates, size_t count);

/* ---- profiles: short pages without tables of their own ---- */

/* Opens a profile that `kvtool train` or kvt_train made. Pages of 16 to 64 KiB coded with it are
 * about as small as long chunks without one.
 * src, n: the bytes of its .kvp file, which may be freed after the call. out: receives the profile.
 * Returns KVT_OK; KVT_E_BAD_MAGIC: not a profile; KVT_E_UNSUPPORTED_VERSION: of a newer version;
 * KVT_E_TRUNCATED, KVT_E_CHECKSUM and other findings of KVT_FAULT_DATA: damaged;
 * KVT_E_NO_MEMORY. Any thread. */
KVT_API kvt_status kvt_profile_open(const void* src, size_t n, kvt_profile** out);

/* Destroys a profile. Contexts that use it keep what they need. */
KVT_API void kvt_profile_free(kvt_profile* profile);

/* Writes to `out` the 16 bytes by which frames and archives name the profile.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: a pointer is NULL. Any thread. */
KVT_API kvt_status kvt_profile_hash(const kvt_profile* profile, uint8_t out[16]);

/* Makes the context use a profile for all later calls; NULL removes it. The context encodes with
 * the profile at KVT_HIGH and KVT_MAX wherever that makes a frame smaller; at KVT_DEFAULT a page of
 * less than 256 KiB is coded one way only, and if it gains almost nothing its frame may be some
 * bytes larger. With kvt_ctx_use_blocks the profile serves only decoding. The context decodes
 * frames that name the profile. Archives that the context packs or writes then need the profile if
 * it made them smaller, and the context reads such archives. The profile's tables, up to 160 KiB
 * for K or V of each layer in use, are not included in kvt_ctx_bytes. The profile may be freed
 * after the call.
 * Returns KVT_OK; KVT_E_BUSY. */
KVT_API kvt_status kvt_ctx_use_profile(kvt_ctx* ctx, const kvt_profile* profile);

/* Sets how many layers in a row may be predicted from those before them, in later calls of kvt_pack
 * at KVT_MAX.
 * layers: 1 (each layer on its own) to KVT_JOINED_LAYERS_MAX; by default KVT_JOINED_LAYERS_DEFAULT.
 * More make the archive smaller and slower, and reading one layer takes those before it too.
 * Archives with references and archives of kvt_writer join no layers.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: another number; KVT_E_BUSY. */
KVT_API kvt_status kvt_ctx_join_layers(kvt_ctx* ctx, uint32_t layers);

/* Writes to `out` the hash of the profile that decoding a frame needs, 16 zeros if none. A call
 * that decodes the frame without it returns KVT_E_PROFILE_MISSING.
 * src, n: at least the first KVT_FRAME_HEADER_BYTES of the frame.
 * Returns the statuses of kvt_frame_info. Any thread. */
KVT_API kvt_status kvt_frame_profile(const void* src, size_t n, uint8_t out[16]);

/* ---- callbacks ---- */

/* A caller's function is called only on the calling thread. It returns KVT_OK, or a status of its
 * own from KVT_CALLBACK_MIN to KVT_CALLBACK_MAX, which the running call then returns unchanged; any
 * other number ends the call with KVT_E_BAD_ARGUMENT. It must not call the context that calls it,
 * which answers KVT_E_BUSY, and no exception may leave it. */

/* Fills all n bytes at dst with those of the source from `offset` on. */
typedef kvt_status (*kvt_read_at)(void* user, uint64_t offset, void* dst, size_t n);
/* Takes the next n bytes of an output. */
typedef kvt_status (*kvt_write)(void* user, const void* src, size_t n);

/* A source of bytes, which must not change while it is used. */
typedef struct {
  uint32_t struct_size, reserved;
  uint64_t bytes; /* length of the source */
  void* user;     /* passed to read_at */
  kvt_read_at read_at;
} kvt_source;

/* A destination. The library passes it all bytes in order, from the first to the last. */
typedef struct {
  uint32_t struct_size, reserved;
  void* user; /* passed to write */
  kvt_write write;
} kvt_sink;

/* ---- archives: .kvz, as the program reads and writes them ---- */

/* Opens an output of `bytes` bytes: sets sink->user and sink->write (sink->struct_size is set).
 * name: relative, with '/', and never leading out of a folder; empty for a single file. */
typedef kvt_status (*kvt_open_file)(void* user, const char* name, uint64_t bytes, kvt_sink* sink);

/* One file of kvt_pack. */
typedef struct {
  uint32_t struct_size, reserved;
  const char* name; /* relative, with '/', without '..' */
  const kvt_source* source;
} kvt_file;

/* A reference of an archive: a cache that it was coded against. All fields are claims of the
 * archive. */
typedef struct {
  uint32_t struct_size;
  uint32_t found;     /* 1: it is among the caches that kvt_reader_beside was given; 0: it is not */
  uint64_t bytes;     /* length of its file, or of what its archive restores to */
  uint64_t hash;      /* XXH3, 64 bits, of these bytes; for a folder, of the hashes of its files */
  const char* name;   /* name of the file, without folders */
  const char* format; /* name of its format, as `kvtool formats` lists it */
} kvt_need;

/* K or V of one layer of an archive. */
typedef struct {
  uint32_t struct_size, layer;
  const kvt_desc* desc;  /* writing: describes the values; reading: NULL */
  uint64_t raw_bytes;    /* reading: set; writing: ignored */
  uint64_t stored_bytes; /* reading: set; writing: ignored */
  const char* name;      /* reading: set, belongs to the reader; writing: must be NULL */
} kvt_part;

/* Begins an archive that is written part by part, forward only, with one part in memory at a time.
 * It restores to a safetensors file of tensors k_0, v_0 and so on, [token][head][dim], in the order
 * of the parts. Every chunk is decoded again and compared before it is written.
 * parts: `count` parts, each with a complete description: role KVT_K or KVT_V, an order with tokens
 * and heads. K of a layer may come without V. They may be freed after the call. sink: copied;
 * sink->user must stay until the writer is freed. out: receives the writer.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: parts that contradict each other; the status of the sink;
 * KVT_E_CANCELLED; KVT_E_BUSY; KVT_E_NO_MEMORY. */
KVT_API kvt_status kvt_writer_create(kvt_ctx* ctx, const kvt_part* parts, size_t count,
                                     const kvt_sink* sink, kvt_writer** out);

/* Adds the values of part `index`, counted from 0: each part once, in order.
 * src, n: exactly the bytes of the part, in the order that its description says; free on return.
 * Returns the statuses of kvt_writer_create; KVT_E_BAD_ARGUMENT: another part or another size.
 * After any failure the writer can only be freed. */
KVT_API kvt_status kvt_writer_add(kvt_writer* writer, size_t index, const void* src, size_t n);

/* Writes the index of the archive, after the last part. An archive that ends without an index is
 * damaged: readers recover what was added.
 * Returns the statuses of kvt_writer_add; KVT_E_BAD_ARGUMENT: parts are missing. */
KVT_API kvt_status kvt_writer_finish(kvt_writer* writer);

/* Destroys a writer. Nothing more is written. */
KVT_API void kvt_writer_free(kvt_writer* writer);

/* Learns a profile, as `kvtool train` does, and writes the bytes of its .kvp file to the sink.
 * parts: `count` parts as for kvt_writer_create, but a layer may come several times, from several
 * caches of one model. values[i], sizes[i]: the bytes of part i, in the order of its description. A
 * few thousand tokens of typical text are enough. name: of the model, at most 255 bytes; NULL:
 * none.
 * Returns KVT_OK; KVT_E_UNSUPPORTED_DTYPE: no values of f16 or bf16; KVT_E_INCONSISTENT: rows of a
 * layer differ in width; KVT_E_BAD_ARGUMENT; the status of the sink; KVT_E_CANCELLED; KVT_E_BUSY;
 * KVT_E_NO_MEMORY. */
KVT_API kvt_status kvt_train(kvt_ctx* ctx, const kvt_part* parts, const void* const* values,
                             const size_t* sizes, size_t count, const char* name,
                             const kvt_sink* sink);

/* Opens an archive, whatever wrote it. Reads its trailer and its index, not its data; if these are
 * damaged, reads everything, to recover what is left.
 * source: copied; source->user must stay until the reader is freed. out: receives the reader.
 * parts: NULL, or receives how many tensors can be read; tensors without chunks of their own
 * cannot. Returns KVT_OK; KVT_E_BAD_MAGIC: not an archive; findings of `kvtool verify`: damaged
 * beyond use; KVT_E_PROFILE_MISSING; the status of the source; KVT_E_CANCELLED; KVT_E_BUSY;
 * KVT_E_NO_MEMORY. */
KVT_API kvt_status kvt_reader_open(kvt_ctx* ctx, const kvt_source* source, kvt_reader** out,
                                   uint64_t* parts);

/* Describes part `index`, counted from 0.
 * out: filled; struct_size is set. desc: NULL, or filled; struct_size is set.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: there is no such part; KVT_E_BUSY. */
KVT_API kvt_status kvt_reader_part(const kvt_reader* reader, uint64_t index, kvt_part* out,
                                   kvt_desc* desc);

/* Reads tokens [begin, begin + count) of part `index` as [token][head][dim]. Fetches the chunks
 * that hold them and nothing else, and checks their hashes. dst: cap bytes of room. written: NULL,
 * or receives the bytes at dst; 0 on a failure. Returns KVT_OK; KVT_E_BAD_ARGUMENT: no such part,
 * or the range ends beyond its tokens; KVT_E_OUTPUT_TOO_SMALL: cap; KVT_E_REFERENCE_MISSING,
 * KVT_E_REFERENCE_DIFFERS: see kvt_reader_beside; KVT_E_CHECKSUM and other findings of
 * KVT_FAULT_DATA: damaged; the status of the source; KVT_E_CANCELLED; KVT_E_BUSY; KVT_E_NO_MEMORY.
 * On a failure dst holds garbage. */
KVT_API kvt_status kvt_reader_read(kvt_reader* reader, uint64_t index, uint64_t begin,
                                   uint64_t count, void* dst, size_t cap, size_t* written);

/* Describes one of the caches that the archive was coded against ("references", below): number
 * `index`, counted from 0. out: filled; struct_size is set. The texts belong to the reader.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: past the last one; KVT_E_BUSY. */
KVT_API kvt_status kvt_reader_need(const kvt_reader* reader, size_t index, kvt_need* out);

/* Gives the reader the caches that its archive was coded against, in any order; more than it
 * needs may be given. A second call replaces the first. Fetches a few chunks, to tell which is
 * which. Some parts may be readable without the caches; for the others kvt_reader_read returns
 * KVT_E_REFERENCE_MISSING where the cache was not given, and KVT_E_REFERENCE_DIFFERS where its rows
 * differ from those that the archive was coded against.
 * references: `count` pointers; the references may be freed before the reader.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT; the status of the source; KVT_E_CANCELLED; KVT_E_BUSY;
 * KVT_E_NO_MEMORY. */
KVT_API kvt_status kvt_reader_beside(kvt_reader* reader, const kvt_reference* const* references,
                                     size_t count);

/* Destroys a reader, and the names of its parts with it. */
KVT_API void kvt_reader_free(kvt_reader* reader);

/* Archives any files, as `kvtool compress` does, so that kvt_unpack and the program give the very
 * same bytes back. A format that kvtool knows is recognised by its content and compresses better.
 * The files are held in memory.
 * files: `count` files, at least 1; several become a folder. sink: receives the archive.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: a name that leads out of a folder or comes twice; the status
 * of a source or the sink; KVT_E_CANCELLED; KVT_E_BUSY; KVT_E_NO_MEMORY. */
KVT_API kvt_status kvt_pack(kvt_ctx* ctx, const kvt_file* files, size_t count,
                            const kvt_sink* sink);

/* Restores the files of an archive, as `kvtool decompress` does: calls `open` for each file, one
 * after another, and then the sink that it set. Stops at the first damage. The archive is held in
 * memory.
 * user: passed to open.
 * Returns KVT_OK; KVT_E_BAD_MAGIC: not an archive; findings of KVT_FAULT_DATA: damaged, and the
 * files written so far must be dropped; KVT_E_REFERENCE_MISSING: see kvt_unpack_beside;
 * KVT_E_PROFILE_MISSING; the status of a caller's function; KVT_E_CANCELLED; KVT_E_BUSY;
 * KVT_E_NO_MEMORY. */
KVT_API kvt_status kvt_unpack(kvt_ctx* ctx, const kvt_source* archive, kvt_open_file open,
                              void* user);

/* ---- references: archives coded against other caches ---- */

/* Rows that are equal or similar to those of another cache take almost no space in an archive if
 * its reader has that cache too: an earlier save of the same chat, another chat with the same
 * system prompt. The reader needs the same rows, from any file: the archive holds their hashes,
 * which decide. */

/* Creates a reference in memory: a cache that archives are coded against.
 * files: `count` files of a format that kvtool knows (several as a folder), or one archive of such.
 * references: `reference_count` caches that this archive needs itself. out: receives the reference.
 * Returns KVT_OK; KVT_E_REFERENCE_MISSING: a cache that the archive needs was not given; findings
 * of KVT_FAULT_DATA: no cache, or damaged; KVT_E_BAD_ARGUMENT; the status of a source;
 * KVT_E_CANCELLED; KVT_E_BUSY; KVT_E_NO_MEMORY. */
KVT_API kvt_status kvt_reference_create(kvt_ctx* ctx, const kvt_file* files, size_t count,
                                        const kvt_reference* const* references,
                                        size_t reference_count, kvt_reference** out);

/* Destroys a reference. No call may use it meanwhile. */
KVT_API void kvt_reference_free(kvt_reference* reference);

/* Archives files, coded against caches, as kvt_pack does. The archive then needs the caches
 * that helped, and names each as its file was named.
 * Returns the statuses of kvt_pack; KVT_E_LIMIT: a reference ends a chain of 8 archives, each
 * coded against the next. */
KVT_API kvt_status kvt_pack_beside(kvt_ctx* ctx, const kvt_file* files, size_t count,
                                   const kvt_reference* const* references, size_t reference_count,
                                   const kvt_sink* sink);

/* Restores the files of an archive that was coded against caches, as kvt_unpack does.
 * Returns the statuses of kvt_unpack; KVT_E_REFERENCE_MISSING, KVT_E_REFERENCE_DIFFERS: a cache was
 * not given or has other rows, found before the first file is opened. */
KVT_API kvt_status kvt_unpack_beside(kvt_ctx* ctx, const kvt_source* archive,
                                     const kvt_reference* const* references, size_t count,
                                     kvt_open_file open, void* user);

/* ---- for engines that keep pages themselves ---- */

/* Guarantees of the codec, the same for every level and context. */
typedef struct {
  uint32_t struct_size;
  uint32_t lossless;              /* 1: every byte comes back */
  uint32_t needs_positions;       /* 0: nothing about tokens is needed beside the bytes */
  uint32_t page_tokens;           /* 1: a page may have any number of tokens */
  uint32_t head_shards;           /* 1: frames of some of the heads decode without the others */
  uint32_t alignment;             /* 1: buffers may lie at any address */
  uint32_t frame_overhead;        /* most bytes by which a frame exceeds its raw bytes: 128 */
  uint32_t most_table_page_bytes; /* largest page of a kvt_table, in bytes: 4194304 */
  uint32_t block_bytes;           /* raw bytes of a block, see kvt_ctx_use_blocks: 65536 */
  uint32_t block_alignment;       /* multiple at which blocks begin in a frame: 16 */
} kvt_caps;

/* Fills `out` with the promises of the codec; struct_size is set.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: out is NULL or the struct_size is wrong. Any thread. */
KVT_API kvt_status kvt_codec_caps(kvt_caps* out);

/* Encodes as kvt_encode does, into a buffer that may be too small: gives up as soon as an estimate
 * shows that the frame does not fit. That takes about a tenth of the time of encoding where cap
 * is far too small, and up to all of that time where cap is nearly large enough. A
 * frame that would have fitted is hardly ever refused.
 * desc, src, n, dst, cap: as for kvt_encode. written: NULL, or receives the bytes of the frame;
 * with KVT_E_OUTPUT_TOO_SMALL the estimate of what it needs, more than cap; 0 on other failures.
 * Returns the statuses of kvt_encode. The bytes are those of kvt_encode. With several threads the
 * estimate, and whether a frame that nearly fits is refused, may differ from call to call. */
KVT_API kvt_status kvt_encode_within(kvt_ctx* ctx, const kvt_desc* desc, const void* src, size_t n,
                                     void* dst, size_t cap, size_t* written);

/* Decodes heads [begin, begin + count) of every token of a frame. In KVT_HEAD_TOKEN_DIM order only
 * the segments that hold them are decoded, and only their hashes are checked; in
 * KVT_TOKEN_HEAD_DIM order all segments are.
 * src, n, context: as for kvt_decode. dst: cap bytes of room for [token][count][dim], or
 * [count][token][dim] in KVT_HEAD_TOKEN_DIM order. written: NULL, or receives the bytes at dst; 0
 * on a failure.
 * Returns KVT_OK; KVT_E_UNSUPPORTED_KIND: the frame has no shape, or its segments cut rows apart;
 * KVT_E_BAD_ARGUMENT: the range ends beyond the heads; KVT_E_OUTPUT_TOO_SMALL: cap; otherwise as
 * kvt_decode. */
KVT_API kvt_status kvt_decode_heads(kvt_ctx* ctx, const void* src, size_t n,
                                    const uint8_t context[16], uint32_t begin, uint32_t count,
                                    void* dst, size_t cap, size_t* written);

/* Sets whether later calls encode frames and tables in blocks, which a batched decoder on a device
 * takes as they are (kvt_frame_blocks). While they do, the context encodes without its profile
 * (kvt_ctx_use_profile), and still decodes with it. Decoding needs no such call.
 * blocks: 1: in blocks; 0, the default: the smallest frames.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: another number; KVT_E_BUSY. */
KVT_API kvt_status kvt_ctx_use_blocks(kvt_ctx* ctx, int blocks);

/* One block of a frame: an ordinary zstd frame of at most 64 KiB of raw bytes, complete in itself,
 * or the raw bytes where bytes == raw_bytes. A decoder puts the raw bytes at planes_offset of a
 * buffer of the frame's raw size. That buffer then holds the byte planes of each segment: byte p of
 * word i is at segment_offset + p * (segment_bytes / planes) + i. Where `rotated` is 1, each word
 * of two bytes must then be rotated right by one bit. kvt_planes_join does both on the host. */
typedef struct {
  uint32_t struct_size;
  uint32_t bytes;     /* length in the frame */
  uint32_t raw_bytes; /* length of the decoded block */
  uint8_t planes;     /* byte planes of its segment */
  uint8_t rotated;    /* 1: words were rotated left by one bit */
  uint8_t reserved[2];
  uint64_t offset;         /* offset in the frame: a multiple of 16 */
  uint64_t planes_offset;  /* offset of the decoded block in the buffer of planes */
  uint64_t segment_offset; /* offset of its segment in the raw bytes and in the buffer of planes */
  uint64_t segment_bytes;  /* raw bytes of its segment */
} kvt_block;

/* Lists the blocks of a frame that was encoded with kvt_ctx_use_blocks, without decoding.
 * src, n: the whole frame. out: room for `cap` blocks; the caller sets struct_size of the first
 * one, the call fills all. NULL with cap = 0 only counts. count: receives the number of blocks; 0
 * for a frame that is stored raw, whose bytes follow its header.
 * Returns KVT_OK; KVT_E_OUTPUT_TOO_SMALL: there are more than cap, and out is untouched;
 * KVT_E_UNSUPPORTED_KIND: the frame is not in blocks; the statuses of kvt_frame_info;
 * KVT_E_TRUNCATED, KVT_E_BAD_FRAME: damaged. The bytes of blocks are not checked. Any thread. */
KVT_API kvt_status kvt_frame_blocks(const void* src, size_t n, kvt_block* out, size_t cap,
                                    size_t* count);

/* Splits values into byte planes, as blocks hold them, for compressors in hardware.
 * dtype: KVT_F32 ... KVT_IQ4_NL. Values of two or four bytes become as many planes, the lowest byte
 * first; words of bf16 are rotated left by one bit before. Other types are one plane.
 * src: n bytes of values. dst: n bytes of room.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: the dtype does not exist, or the buffers overlap. Any thread.
 */
KVT_API kvt_status kvt_planes_split(uint8_t dtype, const void* src, size_t n, void* dst);

/* Joins byte planes to values, the reverse of kvt_planes_split.
 * src: n bytes of planes. dst: n bytes of room.
 * Returns the statuses of kvt_planes_split. Any thread. */
KVT_API kvt_status kvt_planes_join(uint8_t dtype, const void* src, size_t n, void* dst);

/* Entry of one page, in an engine's own table: what decoding the page needs besides its bytes. */
typedef struct {
  uint32_t struct_size;
  uint32_t bytes;    /* length of the coded page */
  uint32_t codec;    /* its number; kvt_codec_name names it */
  kvt_status status; /* set by every call */
  uint64_t raw_hash; /* XXH3-64 of the raw bytes */
} kvt_entry;

/* Pages of one size and shape, as engines hold them, and room for their coded bytes. Page i of the
 * call is the page_bytes at pages + index[i] * stride. Its coded bytes lie at data + i * room,
 * without a header. */
typedef struct {
  uint32_t struct_size, reserved;
  const kvt_desc* desc;  /* describes one page; its context and tag are not used */
  void* pages;           /* encoding reads them, decoding writes them */
  size_t page_count;     /* number of pages at `pages`; each index is below it */
  size_t stride;         /* bytes from page to page, at least page_bytes */
  size_t page_bytes;     /* at most 4 MiB */
  const uint32_t* index; /* `count` numbers of pages; NULL: pages 0, 1, 2 ... */
  size_t count;          /* pages to code, and length of index, entries and data */
  void* data;            /* count * room bytes: encoding writes them, decoding reads them */
  size_t room;           /* bytes for each coded page; page_bytes always suffice */
  kvt_entry* entries;    /* `count` entries, each with its struct_size */
} kvt_table;

/* Encodes the pages of a table, spread over the threads of the pool, and sets their entries.
 * Decoding them needs the profile that the context uses.
 * Returns the status of the first page that failed, or KVT_OK; a bad page changes no other. For a
 * page: KVT_E_OUTPUT_TOO_SMALL: entries[i].bytes, which is what it needs, exceeds room. For the
 * call: KVT_E_BAD_ARGUMENT: an index is not below page_count, or memory overlaps what the call
 * writes; KVT_E_LIMIT: page_bytes is above 4 MiB or max_raw_bytes; KVT_E_CANCELLED; KVT_E_BUSY;
 * KVT_E_NO_MEMORY. */
KVT_API kvt_status kvt_encode_table(kvt_ctx* ctx, const kvt_table* table);

/* Decodes the pages of a table to where the table says, and checks the hash of each.
 * Returns as kvt_encode_table. For a page: KVT_E_TRUNCATED: room is smaller than entries[i].bytes;
 * KVT_E_UNSUPPORTED_KIND: this version does not have the codec; KVT_E_BAD_FRAME,
 * KVT_E_BAD_PAYLOAD, KVT_E_CHECKSUM: damaged. For the call also KVT_E_BAD_ARGUMENT: index names a
 * page twice. */
KVT_API kvt_status kvt_decode_table(kvt_ctx* ctx, const kvt_table* table);

/* ---- queues: batches in the background ---- */

/* A queue codes batches on threads of its own while its callers do something else. kvt_queue_submit
 * hands a batch over and gives a ticket; the completion of the ticket is taken once, by
 * kvt_queue_poll or by kvt_queue_wait. docs/examples/tickets.c is a complete program.
 *
 * Every function but kvt_queue_create and kvt_queue_free may be called from any number of threads
 * at once. Submitting and polling wait for no lock, allocate nothing and start no thread. The
 * queue's threads keep their buffers from batch to batch, as contexts do.
 *
 * A queue belongs to the process that created it, because threads do not survive fork: in a child
 * submitting, polling and waiting return KVT_E_BAD_ARGUMENT, and kvt_queue_free frees nothing. */

/* Operations of a batch. */
enum {
  KVT_ENCODE_ITEMS = 1, /* kvt_encode_batch */
  KVT_DECODE_ITEMS = 2, /* kvt_decode_batch */
  KVT_ENCODE_TABLE = 3, /* kvt_encode_table */
  KVT_DECODE_TABLE = 4  /* kvt_decode_table */
};

/* Size of a queue. */
typedef struct {
  uint32_t struct_size;
  uint32_t threads; /* threads that code, at most 1024; 0: as many as the process may use */
  uint32_t depth;   /* tickets that may be outstanding, at most 1024; 0: 64 */
  uint32_t reserved;
} kvt_queue_params;

/* One batch. Everything that it points to must stay valid until its ticket is done, and must not
 * overlap what another outstanding batch writes. The struct itself is copied. */
typedef struct {
  uint32_t struct_size;
  uint32_t operation;     /* KVT_ENCODE_ITEMS ... KVT_DECODE_TABLE */
  kvt_item* items;        /* of an operation on items: `count` items, as for kvt_encode_batch */
  size_t count;           /* how many items */
  const kvt_table* table; /* of an operation on a table, as for kvt_encode_table */
  void* user;             /* given back with the completion */
} kvt_batch;

/* Result of a ticket. The statuses of the items, or of the table's entries, are in the batch. */
typedef struct {
  uint32_t struct_size;
  kvt_status status; /* what the call of the operation would have returned */
  uint64_t ticket;
  void* user;        /* of the batch */
  uint64_t failed;   /* index of the first item or page that failed; UINT64_MAX: none, or the batch
                      * was refused as a whole and nothing was written */
  uint64_t offset;   /* as in kvt_error, of that item */
  char message[256]; /* as in kvt_error, cut to this size; empty after a success */
} kvt_completion;

/* Creates a queue and starts its threads.
 * ctx: the queue copies its level, its max_raw_bytes, its profile (kvt_ctx_use_profile) and whether
 * it encodes in blocks (kvt_ctx_use_blocks); its pool is not used, and the context may be used or
 * freed afterwards. params: NULL is as many threads as the process may use and 64 tickets; copied.
 * out: receives the queue, which takes about 2 KiB for each ticket, and for each thread what
 * kvt_ctx_bytes gives for a context without a pool.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: a number that is not allowed; KVT_E_BUSY: the context is in
 * use; KVT_E_NO_MEMORY: the system gave no memory or no thread. The error is with the context. */
KVT_API kvt_status kvt_queue_create(kvt_ctx* ctx, const kvt_queue_params* params, kvt_queue** out);

/* Cancels all outstanding tickets and destroys the queue. Returns when its threads have ended, each
 * after at most one more segment (4 MiB of raw bytes): from then on no batch is touched. Items of
 * status KVT_OK are complete. Completions not yet taken (kvt_queue_poll, kvt_queue_wait) are lost,
 * and the file descriptor is closed. No other call may use the queue while this one runs. */
KVT_API void kvt_queue_free(kvt_queue* queue);

/* Hands a batch to the queue's threads. Items and pages are spread over the threads; batches begin
 * in about the order in which they were submitted.
 * batch: see kvt_batch. ticket: receives the number of the ticket, never 0 and never given twice.
 * Returns KVT_OK; KVT_E_BUSY: `depth` tickets are outstanding, and one can be submitted once a
 * completion was taken; KVT_E_BAD_ARGUMENT: the operation does not exist, or a pointer that it
 * needs is NULL. Everything else that is wrong with a batch is in its completion. Any thread. */
KVT_API kvt_status kvt_queue_submit(kvt_queue* queue, const kvt_batch* batch, uint64_t* ticket);

/* Takes the completions of tickets that are done, in no particular order, without waiting.
 * out: room for `cap` completions; the caller sets struct_size of the first one, the call fills as
 * many as there are. count: receives how many it filled; 0: none is done.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT. Any thread. */
KVT_API kvt_status kvt_queue_poll(kvt_queue* queue, kvt_completion* out, size_t cap, size_t* count);

/* Waits until one ticket is done and takes its completion.
 * timeout_ns: the most nanoseconds to wait; 0: does not wait; UINT64_MAX: no limit. out: filled;
 * struct_size is set.
 * Returns KVT_OK, whatever the status of the batch: that is in `out`; KVT_E_BUSY: the ticket was
 * not done in that time, and its completion is still to be taken; KVT_E_BAD_ARGUMENT: there is no
 * such ticket, or its completion was taken. Any thread. */
KVT_API kvt_status kvt_queue_wait(kvt_queue* queue, uint64_t ticket, uint64_t timeout_ns,
                                  kvt_completion* out);

/* Cancels one ticket. It still gets a completion, which is to be taken.
 * Returns 1: its status is going to be KVT_E_CANCELLED, within one segment (at most 4 MiB of raw
 * bytes) on each thread; items of status KVT_OK are complete. Returns 0: the ticket is done, its
 * result is already decided, or there is no such ticket. Any thread. */
KVT_API int kvt_queue_cancel(kvt_queue* queue, uint64_t ticket);

/* Returns a file descriptor that is readable while a completion can be taken, for poll, epoll and
 * event loops: an eventfd, on macOS the end of a pipe, opened by the first call. It belongs to the
 * queue. Never read it: kvt_queue_poll ends its readiness. It may be readable although
 * kvt_queue_poll then finds nothing, because kvt_queue_wait took the completion.
 * Returns the descriptor; -1: the system gave none, or queue is NULL. Any thread. */
KVT_API int kvt_queue_fd(kvt_queue* queue);

/* Fills `out` with sums over the batches of the queue. Returns the statuses of kvt_ctx_stats. Any
 * thread. */
KVT_API kvt_status kvt_queue_stats(const kvt_queue* queue, kvt_stats* out);

#ifdef __cplusplus
}
#endif
#endif /* KVTOOL_H_ */
