/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvtool authors
 *
 * kvtool_study.h: eviction, policies and analysis of key-value caches, over libkvtool_study.
 *
 * This is the second tier: with each minor version its functions and structs may change, and the
 * SONAME of libkvtool_study with them. The rules of kvtool.h hold here too. libkvtool_study works
 * only with the libkvtool of its own version, which the dynamic linker checks.
 *
 * Example: the keep plan of a policy for one layer.
 *
 *   kvt_policy* policy = NULL;
 *   const kvt_plan* plans = NULL;
 *   size_t count = 0;
 *   kvt_policy_create(ctx, "h2o", &geometry, layer, &policy);
 *   kvt_policy_observe(policy, &scores);  // after each step: its query rows
 *   if (kvt_policy_choose(policy, &scores, 1024, &plans, &count) == KVT_OK)
 *     compact(cache, plans, count);
 *   kvt_policy_free(policy);
 */
#ifndef KVTOOL_STUDY_H_
#define KVTOOL_STUDY_H_

#include "kvtool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- types of studies ---- */

typedef struct kvt_h2o kvt_h2o;       /* MNN's eviction for one sequence */
typedef struct kvt_policy kvt_policy; /* a published policy, for one layer */

/* Revisions of MNN's eviction. */
enum {
  KVT_H2O_FINAL = 0, /* the final branch */
  KVT_H2O_R6 = 6     /* the build R6, which MNN's authors measured */
};
/* Target of MNN's eviction. */
enum {
  KVT_H2O_STATIC = 0,  /* target_keep_ratio */
  KVT_H2O_ADAPTIVE = 1 /* target_lossy_ratio */
};
/* Bits of kvt_policy_info.needs: the policy reads query rows, or keys. */
enum { KVT_NEEDS_ROWS = 1, KVT_NEEDS_KEYS = 2 };

/* Figures of one tensor: what compresses, and why. */
typedef struct {
  uint32_t struct_size;
  uint32_t codec; /* number of the codec of most chunks; kvt_codec_name names it */
  uint64_t raw_bytes;
  uint64_t coded_bytes;        /* as an archive of the context's level would hold the tensor */
  double bits_per_value;       /* by the better of coded_bytes and MNN's codec */
  double bound_bits_per_value; /* best of several entropy models; codes with matches may beat it */
  uint64_t values, nans, infinities, zeros;
  uint64_t zero_rows;     /* tokens whose values are all zero */
  uint64_t repeated_rows; /* tokens that equal an earlier one */
} kvt_analysis;

/* Tokens [begin, begin + count). */
typedef struct {
  uint32_t struct_size;
  uint32_t begin, count;
} kvt_range;

/* Tokens that are kept: ascending, disjoint ranges of indices into the cache as it is. The library
 * lends it; ranges lie ranges->struct_size bytes apart. */
typedef struct {
  uint32_t struct_size, reserved;
  const kvt_range* ranges;
  size_t count;
} kvt_plan;

/* Sizes of a model, as far as eviction needs them. */
typedef struct {
  uint32_t struct_size;
  uint32_t layers, query_heads, kv_heads;
  uint32_t head_dim;      /* values */
  uint32_t element_bytes; /* size of one value in the cache */
} kvt_geometry;

/* Query rows of one layer, and the keys that they see. */
typedef struct {
  uint32_t struct_size;
  uint32_t key_dtype; /* KVT_F32, KVT_F16 or KVT_BF16 */
  const kvt_geometry* geometry;
  const float* queries; /* [row][query head][dim], after rotation */
  uint64_t rows;
  const void* keys; /* [token][kv head][dim], by the strides below */
  uint64_t tokens;
  uint64_t visible;        /* keys that the first row sees; row r sees visible + r, at most all */
  size_t key_token_stride; /* bytes from one token to the next */
  size_t key_head_stride;  /* bytes from one kv head to the next */
  float scale;             /* factor of the logits; 0: 1 / sqrt(head_dim) */
  uint32_t block_tokens;   /* tokens of a block of kvt_block_scores */
} kvt_scores;

/* Parameters of MNN's eviction, under MNN's names. kvt_h2o_defaults fills in MNN's values. */
typedef struct {
  uint32_t struct_size;
  uint32_t revision;              /* KVT_H2O_FINAL or KVT_H2O_R6 */
  int32_t layer_start, layer_end; /* both inclusive; a negative end is the last layer */
  uint32_t block_tokens, sink_tokens, recent_tokens;
  uint32_t update_interval; /* tokens between two decisions */
  uint32_t trigger_min_tokens;
  uint32_t target_mode; /* KVT_H2O_STATIC or KVT_H2O_ADAPTIVE */
  float target_keep_ratio, target_lossy_ratio, ema_alpha;
  uint32_t reserved;
  uint64_t prompt_tokens; /* tokens in the cache of every layer when decoding begins */
} kvt_h2o_params;

/* One call of one layer. */
typedef struct {
  uint32_t struct_size;
  uint32_t layer;             /* the layer whose call this is */
  int32_t apply;              /* after begin, 1: compact the layer's cache to `plan`, then append */
  int32_t triggered;          /* after finish, 1: a decision was taken */
  const kvt_plan* plan;       /* never NULL; lent until the next call on the object */
  uint64_t length;            /* tokens in the layer's cache, the new ones included */
  uint64_t final_keep_tokens; /* after finish: the budget that MNN hands to its lossless path */
  float keep_ratio;           /* ratio of the last plan made, as MNN reports it */
  uint32_t in_range;          /* 1: this layer is scored and evicted from */
} kvt_h2o_call;

/* A policy that the program replays too (`replay-h2o --policy`). */
typedef struct {
  uint32_t struct_size;
  uint32_t needs; /* KVT_NEEDS_ROWS and KVT_NEEDS_KEYS, or 0 */
  const char* name;
  const char* summary;
} kvt_policy_info;

/* ---- analysis ---- */

/* Codes a tensor, decodes it again and walks its values, with one thread.
 * desc: must explain all n bytes; role, order and dtype are used. src, n: the values. out: NULL, or
 * filled; struct_size is set. json: NULL, or receives the object of the tensor in `kvtool analyze
 * --json`, on one line, with null for cross_channel_gain_bits.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: the description does not explain the bytes; KVT_E_INTERNAL:
 * decoding returned other bytes; the status of the sink; KVT_E_CANCELLED; KVT_E_BUSY;
 * KVT_E_NO_MEMORY. */
KVT_API kvt_status kvt_analyze(kvt_ctx* ctx, const kvt_desc* desc, const void* src, size_t n,
                               kvt_analysis* out, const kvt_sink* json);

/* ---- eviction ---- */

/* Sums the softmax weights of all query heads and rows on the keys of each block. The sums are
 * equal to the bit on every CPU. in: rows and keys. sums: `blocks` values, and blocks is
 * ceil(tokens / block_tokens). Returns KVT_OK; KVT_E_BAD_ARGUMENT: sizes, or buffers that overlap;
 * KVT_E_CANCELLED; KVT_E_BUSY; KVT_E_NO_MEMORY. */
KVT_API kvt_status kvt_block_scores(kvt_ctx* ctx, const kvt_scores* in, float* sums, size_t blocks);

/* Fills `out` with MNN's own values; struct_size is set.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: out is NULL or its struct_size is wrong. Any thread. */
KVT_API kvt_status kvt_h2o_defaults(kvt_h2o_params* out);

/* Creates MNN's eviction for one sequence, as its engine runs it, decision for decision, without
 * tensors.
 * params: values are clamped as the engine clamps them. geometry: sizes of the model. Both are
 * copied. out: receives the object, which must be freed before the context.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: a revision, a mode or a size that does not exist; KVT_E_BUSY;
 * KVT_E_NO_MEMORY. */
KVT_API kvt_status kvt_h2o_create(kvt_ctx* ctx, const kvt_h2o_params* params,
                                  const kvt_geometry* geometry, kvt_h2o** out);

/* Destroys the object, and its last plan with it. */
KVT_API void kvt_h2o_free(kvt_h2o* h2o);

/* Begins the call of the next layer: one begin and one finish for each, layers in order, token by
 * token. If call->apply is 1, compact the layer's cache to call->plan; then append new_tokens.
 * new_tokens: below 2^31. call: filled; struct_size is set.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: a begin after a begin, or too many tokens (nothing is
 * changed); KVT_E_BUSY. */
KVT_API kvt_status kvt_h2o_begin(kvt_h2o* h2o, uint64_t new_tokens, kvt_h2o_call* call);

/* Ends the call of a layer: takes the block sums of its cache and says whether a decision was
 * taken. call->plan is then the pending plan, due at this layer's next begin. block_sums: `blocks`
 * sums of kvt_block_scores; ignored where in_range is 0. query_rows: rows of this call, below 2^31.
 * call: filled; struct_size is set. Returns KVT_OK; KVT_E_BAD_ARGUMENT: a finish without a begin,
 * or a wrong number of blocks. After a failure it may be called again. KVT_E_BUSY; KVT_E_NO_MEMORY.
 */
KVT_API kvt_status kvt_h2o_finish(kvt_h2o* h2o, const float* block_sums, size_t blocks,
                                  uint64_t query_rows, kvt_h2o_call* call);

/* Tells the object that the engine cut a layer's cache, because a draft was rolled back. A
 * pending plan that no longer fits is dropped at the layer's next begin. Between calls only.
 * length: tokens that are left in the layer's cache.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: amid a call, no such layer, or more tokens than it has;
 * KVT_E_BUSY. */
KVT_API kvt_status kvt_h2o_truncate(kvt_h2o* h2o, uint32_t layer, uint64_t length);

/* ---- policies ---- */

/* Describes one of the policies that kvt_policy_create makes: number `index`, counted from 0.
 * out: filled; struct_size is set. The texts are static.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: past the last one. Any thread. */
KVT_API kvt_status kvt_policy_at(size_t index, kvt_policy_info* out);

/* Creates a policy for one layer of one sequence, with the parameters of its paper.
 * name: one that kvt_policy_at names. geometry: copied. layer: below geometry->layers for pyramid,
 * any number for other policies. out: receives the policy, which must be freed before the context.
 * Returns KVT_OK; KVT_E_BAD_ARGUMENT: no such policy, or an impossible size;
 * KVT_E_UNSUPPORTED_KIND: oracle-mass, which decides by the attention of later rows; only a replay
 * of a recorded run has these; KVT_E_BUSY; KVT_E_NO_MEMORY. */
KVT_API kvt_status kvt_policy_create(kvt_ctx* ctx, const char* name, const kvt_geometry* geometry,
                                     uint32_t layer, kvt_policy** out);

/* Destroys a policy, and its last plans with it. */
KVT_API void kvt_policy_free(kvt_policy* policy);

/* Passes the next query rows of the layer to its policy, each row once. rows->tokens is the length
 * of the cache, and the rows belong to its last tokens: rows->visible = tokens - rows + 1. A policy
 * without KVT_NEEDS_ROWS ignores the fields of query rows; one that needs nothing also ignores
 * those of keys. rows->geometry and block_tokens are always ignored. The caller's memory is not
 * used after the call: a policy that needs rows copies the new keys. Returns KVT_OK;
 * KVT_E_BAD_ARGUMENT: the sizes do not continue the last call (the policy is unchanged);
 * KVT_E_BUSY. After any other failure the policy can only be freed. */
KVT_API kvt_status kvt_policy_observe(kvt_policy* policy, const kvt_scores* rows);

/* Chooses the tokens of the cache that stay; its last rows were observed. The caller must apply the
 * plans: the next call expects a cache of the tokens that they keep and the tokens appended since.
 * The program chooses the same tokens for the same rows.
 * cache: as in the last kvt_policy_observe. keep: tokens to keep, 1 to cache->tokens. plans, count:
 * receive one plan for all kv heads, or one for each, lent until the next call; plans lie
 * (*plans)->struct_size bytes apart.
 * Three policies keep another number of tokens than `keep`, the same in all of their plans:
 *  - full keeps all;
 *  - pyramid takes `keep` for the mean of all layers. The first layers keep more and the last ones
 *    fewer, by a difference that its first choice in this layer sets;
 *  - block keeps whole blocks: its sinks (one block of 64 tokens), its recent tokens (256) and
 * blocks by score up to `keep`, so that it keeps all of a short cache. It is MNN's rule on exact
 * scores; kvt_h2o is MNN's engine, decision for decision. Returns KVT_OK; KVT_E_BAD_ARGUMENT: the
 * last rows were not observed, or a size is wrong (the policy is unchanged); KVT_E_BUSY. After any
 * other failure the policy can only be freed. */
KVT_API kvt_status kvt_policy_choose(kvt_policy* policy, const kvt_scores* cache, uint64_t keep,
                                     const kvt_plan** plans, size_t* count);

#ifdef __cplusplus
}
#endif
#endif /* KVTOOL_STUDY_H_ */
