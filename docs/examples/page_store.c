/* SPDX-License-Identifier: Apache-2.0 */
/* A C engine that stores pages of 16 tokens under keys, compressed, and takes anything that is not
 * exactly what it stored as a miss. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvtool.h"

enum { TOKENS = 16, HEADS = 8, DIM = 128, PAGE = TOKENS * HEADS * DIM * 2 };

/* `out` has room for kvt_encode_bound(PAGE). The size of the frame; 0 on failure. */
static size_t store_page(kvt_ctx* ctx, const void* page, const uint8_t key[16], void* out) {
  kvt_desc desc = {0};
  size_t used = 0;
  desc.struct_size = sizeof desc;
  desc.dtype = KVT_BF16;
  desc.role = KVT_K;
  desc.heads = HEADS;
  desc.head_dim = DIM;
  desc.tokens = TOKENS;
  memcpy(desc.context, key, 16);
  return kvt_encode(ctx, &desc, page, PAGE, out, kvt_encode_bound(PAGE), &used) == 0 ? used : 0;
}

static int load_page(kvt_ctx* ctx, const void* frame, size_t n, const uint8_t key[16], void* page) {
  return kvt_decode(ctx, frame, n, key, page, PAGE) == 0;
}

int main(void) {
  static unsigned char page[PAGE], back[PAGE];
  unsigned char* frame = malloc(kvt_encode_bound(PAGE));
  uint8_t key[16], other[16];
  kvt_ctx* ctx = NULL;
  size_t size, i;
  int ok;
  for (i = 0; i < PAGE; i += 2) { /* bf16 from 1 to 2 */
    page[i] = (unsigned char)(i * 2654435761u >> 24);
    page[i + 1] = 0x3f;
  }
  kvt_hash128("tiny-model/layer 0/K/tokens 0:16", 32, key);
  kvt_hash128("tiny-model/layer 1/K/tokens 0:16", 32, other);
  if (frame == NULL || kvt_ctx_create(NULL, &ctx) != 0) return 1;
  size = store_page(ctx, page, key, frame);
  ok = size > 0 && load_page(ctx, frame, size, key, back) && memcmp(page, back, PAGE) == 0;
  ok = ok && !load_page(ctx, frame, size, other, back); /* another page: a miss */
  frame[size / 2] ^= 1;
  ok = ok && !load_page(ctx, frame, size, key, back); /* damaged: a miss */
  printf("a page of %d bytes became %zu; %s\n", PAGE, size, ok ? "it came back" : "it did not come back");
  kvt_ctx_free(ctx);
  free(frame);
  return ok ? 0 : 1;
}
