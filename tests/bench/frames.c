/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvtool authors
 *
 * The C half of scripts/bench/frames.py: encodes and decodes objects of one size through kvtool.h
 * alone. Each line of the standard input is a request,
 *
 *   OBJECT_BYTES LEVEL THREADS FILE
 *
 * FILE being objects of that size, one after another: [token][8 heads][128 values] of bf16. The
 * answer is "FRAME_BYTES ENCODE_NS DECODE_NS" for one time over all of them. One thread takes an
 * object a call, as a caller without a batch does; more threads take all objects in one call.
 * Contexts live as long as the program, so that only the first request of a size pays for their
 * buffers. With the argument "cpu" times are the processor's. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvtool.h"

enum { HEADS = 8, DIM = 128, TOKEN = HEADS * DIM * 2, MOST_THREADS = 64 };

static struct {
  kvt_pool* pool;
  kvt_ctx* of_level[KVT_MAX + 1];
} contexts[MOST_THREADS + 1];

static struct {
  char path[4096];
  unsigned char *raw, *back, *frames;
  size_t bytes, object_bytes, count, room; /* room: largest size of one frame */
  kvt_desc desc;
  kvt_piece *source, *target;
  kvt_item *stores, *loads;
} objects;

static clockid_t clock_used = CLOCK_MONOTONIC;

static int64_t now(void) {
  struct timespec time;
  clock_gettime(clock_used, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static kvt_ctx* context_of(uint32_t level, uint32_t threads) {
  kvt_ctx** ctx = &contexts[threads].of_level[level];
  if (*ctx == NULL) {
    kvt_params params = {0};
    if (threads > 1 && contexts[threads].pool == NULL &&
        kvt_pool_create(threads, &contexts[threads].pool) != 0) {
      return NULL;
    }
    params.struct_size = sizeof params;
    params.level = level;
    params.pool = contexts[threads].pool;
    if (kvt_ctx_create(&params, ctx) != 0) return NULL;
  }
  return *ctx;
}

/* Sets only what an item points to, because each call writes its own sizes and statuses. */
static void lay_out(void) {
  size_t i;
  for (i = 0; i < objects.count; ++i) {
    kvt_item* item = &objects.stores[i];
    item->struct_size = sizeof *item;
    objects.source[i].struct_size = objects.target[i].struct_size = sizeof(kvt_piece);
    objects.source[i].data = objects.raw + i * objects.object_bytes;
    objects.target[i].data = objects.back + i * objects.object_bytes;
    objects.source[i].bytes = objects.target[i].bytes = objects.object_bytes;
    item->desc = &objects.desc;
    item->pieces = &objects.source[i];
    item->piece_count = 1;
    item->frame = objects.frames + i * objects.room;
    item->frame_bytes = objects.room;
    objects.loads[i] = *item;
    objects.loads[i].pieces = &objects.target[i];
  }
}

static void forget(void) {
  free(objects.raw);
  free(objects.back);
  free(objects.frames);
  free(objects.source);
  free(objects.target);
  free(objects.stores);
  free(objects.loads);
  memset(&objects, 0, sizeof objects);
}

static int open_objects(const char* path, size_t object_bytes) {
  FILE* file;
  long size;
  if (strcmp(path, objects.path) == 0 && object_bytes == objects.object_bytes) return 1;
  forget();
  if (strlen(path) >= sizeof objects.path || (file = fopen(path, "rb")) == NULL) return 0;
  size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  if (size <= 0 || (size_t)size % object_bytes != 0 || fseek(file, 0, SEEK_SET) != 0) {
    fclose(file);
    return 0;
  }
  objects.bytes = (size_t)size;
  objects.object_bytes = object_bytes;
  objects.count = objects.bytes / object_bytes;
  objects.room = kvt_encode_bound(object_bytes);
  objects.raw = malloc(objects.bytes);
  objects.back = malloc(objects.bytes);
  objects.frames = malloc(objects.count * objects.room);
  objects.source = calloc(objects.count, sizeof *objects.source);
  objects.target = calloc(objects.count, sizeof *objects.target);
  objects.stores = calloc(objects.count, sizeof *objects.stores);
  objects.loads = calloc(objects.count, sizeof *objects.loads);
  if (objects.raw == NULL || objects.back == NULL || objects.frames == NULL ||
      objects.source == NULL || objects.target == NULL || objects.stores == NULL ||
      objects.loads == NULL || fread(objects.raw, 1, objects.bytes, file) != objects.bytes) {
    fclose(file);
    forget();
    return 0;
  }
  fclose(file);
  objects.desc.struct_size = sizeof objects.desc;
  objects.desc.dtype = KVT_BF16;
  objects.desc.order = KVT_TOKEN_HEAD_DIM;
  objects.desc.heads = HEADS;
  objects.desc.head_dim = DIM;
  objects.desc.tokens = object_bytes / TOKEN;
  lay_out();
  strcpy(objects.path, path);
  return 1;
}

static kvt_status encode(kvt_ctx* ctx, uint32_t threads) {
  size_t i;
  if (threads > 1)
    return kvt_encode_batch(ctx, objects.stores, objects.count);
  for (i = 0; i < objects.count; ++i) {
    kvt_item* item = &objects.stores[i];
    const kvt_status status =
        kvt_encode(ctx, &objects.desc, objects.source[i].data, objects.object_bytes, item->frame,
                   objects.room, &item->written);
    if (status != 0) return status;
  }
  return 0;
}

static kvt_status decode(kvt_ctx* ctx, uint32_t threads) {
  size_t i;
  for (i = 0; i < objects.count; ++i) objects.loads[i].frame_bytes = objects.stores[i].written;
  if (threads > 1)
    return kvt_decode_batch(ctx, objects.loads, objects.count);
  for (i = 0; i < objects.count; ++i) {
    const kvt_item* item = &objects.loads[i];
    const kvt_status status = kvt_decode(ctx, item->frame, item->frame_bytes, NULL,
                                         objects.target[i].data, objects.object_bytes);
    if (status != 0) return status;
  }
  return 0;
}

static int answer(uint32_t level, uint32_t threads) {
  kvt_ctx* ctx = context_of(level, threads);
  int64_t begin, middle, end;
  kvt_status status;
  size_t i, stored = 0;
  if (ctx == NULL) return 0;
  begin = now();
  status = encode(ctx, threads);
  middle = now();
  if (status == 0) status = decode(ctx, threads);
  end = now();
  if (status != 0) {
    fprintf(stderr, "%s: %s\n", kvt_explain(status, 0), kvt_explain(status, 1));
    return 0;
  }
  if (memcmp(objects.raw, objects.back, objects.bytes) != 0) {
    fprintf(stderr, "not the same bytes\n");
    return 0;
  }
  /* Memset lets the next comparison fail if nothing is written. */
  memset(objects.back, 0, objects.bytes);
  for (i = 0; i < objects.count; ++i) stored += objects.stores[i].written;
  printf("%zu %" PRId64 " %" PRId64 "\n", stored, middle - begin, end - middle);
  return fflush(stdout) == 0;
}

int main(int argc, char** argv) {
  char line[4200], path[4100];
  size_t object_bytes;
  uint32_t level, threads;
  int ok = 1;
  if (argc > 1 && strcmp(argv[1], "cpu") == 0) clock_used = CLOCK_PROCESS_CPUTIME_ID;
  while (ok && fgets(line, sizeof line, stdin) != NULL) {
    ok = sscanf(line, "%zu %" SCNu32 " %" SCNu32 " %4095[^\n]", &object_bytes, &level, &threads,
                path) == 4 &&
         object_bytes > 0 && level >= KVT_FAST && level <= KVT_MAX && threads >= 1 &&
         threads <= MOST_THREADS && open_objects(path, object_bytes) && answer(level, threads);
    if (!ok) fprintf(stderr, "cannot serve: %s", line);
  }
  forget();
  for (threads = 0; threads <= MOST_THREADS; ++threads) {
    for (level = 0; level <= KVT_MAX; ++level) kvt_ctx_free(contexts[threads].of_level[level]);
    kvt_pool_free(contexts[threads].pool);
  }
  return ok ? 0 : 1;
}
