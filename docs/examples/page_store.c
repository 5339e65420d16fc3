/* SPDX-License-Identifier: Apache-2.0 */
/* Stores pages of 16 tokens under keys. Anything but the stored bytes is a miss. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvtool.h"

enum {
  TOKENS = 16,
  HEADS = 8,
  DIM = 128,
  PAGE = TOKENS * HEADS * DIM * 2,
  ROOM = PAGE + KVT_FRAME_HEADER_BYTES
};

struct slot {
  size_t used; /* bytes of the frame; 0: empty */
  unsigned char frame[ROOM];
};

/* Returns the library's status, for logs; the page was stored if it is KVT_OK. */
static kvt_status store(kvt_ctx* ctx, struct slot* slot, const char* key, const void* page) {
  kvt_desc desc = {0};
  desc.struct_size = sizeof desc;
  desc.dtype = KVT_BF16;
  desc.order = KVT_TOKEN_HEAD_DIM;
  desc.role = KVT_K;
  desc.heads = HEADS;
  desc.head_dim = DIM;
  desc.tokens = TOKENS;
  kvt_hash128(key, strlen(key), desc.context);
  return kvt_encode(ctx, &desc, page, PAGE, slot->frame, ROOM, &slot->used);
}

/* Returns 1 if `page` now holds the stored page; otherwise it must be computed again. */
static int load(kvt_ctx* ctx, const struct slot* slot, const char* key, void* page) {
  uint8_t context[16];
  kvt_status status;
  kvt_error error = {0};
  kvt_hash128(key, strlen(key), context);
  status = kvt_decode(ctx, slot->frame, slot->used, context, page, PAGE);
  if (status == KVT_OK) return 1;
  error.struct_size = sizeof error;
  kvt_ctx_error(ctx, &error);
  printf("a miss: %s [%s]\n", error.message, kvt_explain(status, KVT_EXPLAIN_ID));
  return 0;
}

int main(void) {
  static unsigned char page[PAGE], back[PAGE];
  static struct slot slot;
  const kvt_params params = {sizeof params, KVT_FAST, PAGE, NULL};
  kvt_ctx* ctx = NULL;
  int i, ok;
  for (i = 0; i < PAGE; i += 2) { /* bf16 between 1 and 2 */
    page[i] = (unsigned char)(i * 37 % 251);
    page[i + 1] = 0x3f;
  }
  if (kvt_ctx_create(&params, &ctx) != KVT_OK) return 1;
  ok = store(ctx, &slot, "model/layer 0/K/0:16", page) == KVT_OK;
  ok = ok && load(ctx, &slot, "model/layer 0/K/0:16", back) && memcmp(page, back, PAGE) == 0;
  ok = ok && !load(ctx, &slot, "model/layer 1/K/0:16", back); /* the slot has another page */
  slot.frame[slot.used / 2] ^= 1;
  ok = ok && !load(ctx, &slot, "model/layer 0/K/0:16", back); /* damaged */
  kvt_ctx_free(ctx);
  return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
