/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvtool authors
 *
 * Compares tickets of a queue with calls, on the same pages in the same round:
 *
 *   kvt_bench_tickets FILE [LEVEL [ROUNDS]]
 *
 * FILE: values of bf16, [token][8 heads][128 values]; what is beyond whole pages is left out.
 * Speeds are raw bytes by wall time, of the fastest round; the ratios of tickets to calls are
 * medians over the rounds, so that other work on the machine counts on both sides. "calls" are
 * kvt_encode and kvt_decode, a page a call; "batch" is one call for all pages on a pool of N
 * threads. "N: page" has a ticket for each page on a queue of N threads, 64 outstanding; "N: 16"
 * has a ticket for 16 pages. Calls are compared with N = 1, the batch with N > 1. "submit" is the
 * median time of one kvt_queue_submit, in which the submitting thread is not free. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvtool.h"

enum { TOKEN = 8 * 128 * 2, MOST_PAGES = 4096, MOST_ROUNDS = 101, DEPTH = 64, WAYS = 6 };
static const struct way {
  const char* name;
  /* Pages: per ticket, 0 for plain calls; beside: index of its baseline. */
  unsigned threads, pages, beside;
} ways[WAYS] = {{"calls", 1, 0, 0}, {"1: page", 1, 1, 0}, {"1: 16", 1, 16, 0},
                {"batch", 2, 0, 3}, {"2: page", 2, 1, 3}, {"2: 16", 2, 16, 3}};

static unsigned char* raw;
static size_t raw_bytes, page_bytes, count;
static kvt_desc desc;
static kvt_piece source[MOST_PAGES], target[MOST_PAGES];
static kvt_item stores[MOST_PAGES], loads[MOST_PAGES];
static unsigned char *frames, *back;
static double submits[MOST_PAGES];

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double median(double* values, size_t n) {
  qsort(values, n, sizeof *values, by_value);
  return n == 0 ? 0 : values[n / 2];
}

static void check(kvt_status status) {
  if (status == KVT_OK) return;
  fprintf(stderr, "%s: %s\n", kvt_explain(status, 0), kvt_explain(status, 1));
  exit(1);
}

static void lay_out(size_t bytes) {
  const size_t room = kvt_encode_bound(bytes);
  size_t i;
  page_bytes = bytes;
  count = raw_bytes / bytes < MOST_PAGES ? raw_bytes / bytes : MOST_PAGES;
  desc.struct_size = sizeof desc;
  desc.dtype = KVT_BF16;
  desc.heads = 8, desc.head_dim = 128, desc.tokens = bytes / TOKEN;
  for (i = 0; i < count; ++i) {
    const kvt_piece from = {sizeof from, 0, raw + i * bytes, bytes};
    const kvt_piece to = {sizeof to, 0, back + i * bytes, bytes};
    const kvt_item item = {sizeof item, 0, &desc, &source[i], 1, frames + i * room, room, 0};
    source[i] = from;
    target[i] = to;
    stores[i] = loads[i] = item;
    loads[i].pieces = &target[i];
  }
}

static void by_calls(kvt_ctx* ctx, unsigned threads, int decodes) {
  size_t i;
  if (threads > 1) {
    check((decodes ? kvt_decode_batch : kvt_encode_batch)(ctx, decodes ? loads : stores, count));
    return;
  }
  for (i = 0; i < count; ++i) {
    kvt_item* item = &stores[i];
    check(decodes ? kvt_decode(ctx, item->frame, item->written, NULL, target[i].data, page_bytes)
                  : kvt_encode(ctx, &desc, source[i].data, page_bytes, item->frame,
                               item->frame_bytes, &item->written));
  }
}

/* Keeps as many tickets outstanding as the queue holds. Returns the median time of a submit. */
static double by_tickets(kvt_queue* queue, unsigned pages, int decodes) {
  kvt_completion done = {sizeof done, 0, 0, NULL, 0, 0, ""};
  uint64_t tickets[DEPTH];
  size_t first = 0, submitted = 0, taken = 0;
  while (first < count || taken < submitted) {
    if (first < count && submitted - taken < DEPTH) {
      kvt_batch batch = {sizeof batch, KVT_ENCODE_ITEMS, stores + first, 0, NULL, NULL};
      const double begin = now();
      batch.count = count - first < pages ? count - first : pages;
      if (decodes) batch.operation = KVT_DECODE_ITEMS, batch.items = loads + first;
      check(kvt_queue_submit(queue, &batch, &tickets[submitted % DEPTH]));
      submits[submitted++] = now() - begin;
      first += batch.count;
    } else {
      check(kvt_queue_wait(queue, tickets[taken++ % DEPTH], UINT64_MAX, &done));
      check(done.status);
    }
  }
  return median(submits, submitted);
}

static void compare(size_t bytes, uint32_t level, int rounds) {
  static double took[2][WAYS][MOST_ROUNDS], submit[WAYS][MOST_ROUNDS], ratios[MOST_ROUNDS];
  kvt_ctx* ctx[WAYS] = {0};
  kvt_queue* queue[WAYS] = {0};
  kvt_pool* pool = NULL;
  int way, round, decodes;
  size_t i;
  lay_out(bytes);
  check(kvt_pool_create(2, &pool));
  for (way = 0; way < WAYS; ++way) {
    const kvt_params params = {sizeof params, level, 0, ways[way].threads > 1 ? pool : NULL};
    const kvt_queue_params of_queue = {sizeof of_queue, ways[way].threads, DEPTH, 0};
    check(kvt_ctx_create(&params, &ctx[way]));
    if (ways[way].pages > 0) check(kvt_queue_create(ctx[way], &of_queue, &queue[way]));
  }
  for (round = -1; round < rounds; ++round) { /* round -1 warms up and is not measured */
    for (way = 0; way < WAYS; ++way) {
      for (decodes = 0; decodes < 2; ++decodes) {
        const double begin = now();
        double one_submit = 0;
        for (i = 0; decodes && i < count; ++i) loads[i].frame_bytes = stores[i].written;
        if (queue[way] == NULL)
          by_calls(ctx[way], ways[way].threads, decodes);
        else
          one_submit = by_tickets(queue[way], ways[way].pages, decodes);
        if (round < 0) continue;
        took[decodes][way][round] = now() - begin;
        if (!decodes) submit[way][round] = one_submit;
      }
      if (memcmp(raw, back, count * bytes) != 0) check(KVT_E_CONTENT_DIFFERS);
      memset(back, 0, count * bytes);
    }
  }
  printf("\n%zu KiB, %zu pages, level %u, %d rounds\n", bytes >> 10, count, level, rounds);
  printf("%-8s %12s %12s %8s %8s %9s\n", "", "encode MB/s", "decode MB/s", "encode", "decode",
         "submit us");
  for (way = 0; way < WAYS; ++way) {
    double fastest[2], ratio[2];
    for (decodes = 0; decodes < 2; ++decodes) {
      for (round = 0; round < rounds; ++round)
        ratios[round] = took[decodes][ways[way].beside][round] / took[decodes][way][round];
      ratio[decodes] = median(ratios, (size_t)rounds);
    }
    for (decodes = 0; decodes < 2; ++decodes) {
      fastest[decodes] = took[decodes][way][0];
      for (round = 1; round < rounds; ++round)
        if (took[decodes][way][round] < fastest[decodes])
          fastest[decodes] = took[decodes][way][round];
    }
    printf("%-8s %12.0f %12.0f %8.2f %8.2f %9.2f\n", ways[way].name,
           (double)(count * bytes) / fastest[0] / 1e6, (double)(count * bytes) / fastest[1] / 1e6,
           ratio[0], ratio[1], 1e6 * median(submit[way], (size_t)rounds));
  }
  for (way = 0; way < WAYS; ++way) {
    kvt_queue_free(queue[way]);
    kvt_ctx_free(ctx[way]);
  }
  kvt_pool_free(pool);
}

int main(int argc, char** argv) {
  const uint32_t level = argc > 2 ? (uint32_t)atoi(argv[2]) : KVT_FAST;
  int rounds = argc > 3 ? atoi(argv[3]) : 15;
  FILE* file = argc > 1 ? fopen(argv[1], "rb") : NULL;
  enum { MOST_BYTES = 16 << 20 };
  if (file == NULL || rounds < 1 || level < KVT_FAST || level > KVT_MAX) {
    fprintf(stderr, "usage: kvt_bench_tickets FILE [LEVEL, 1 (fast) to 4 (max) [ROUNDS]]\n");
    return 2;
  }
  if (rounds > MOST_ROUNDS) rounds = MOST_ROUNDS;
  raw = malloc(MOST_BYTES);
  back = calloc(1, MOST_BYTES);
  frames = malloc(MOST_BYTES + MOST_PAGES * (size_t)KVT_FRAME_HEADER_BYTES);
  if (raw == NULL || back == NULL || frames == NULL) return 1;
  raw_bytes = fread(raw, 1, MOST_BYTES, file);
  fclose(file);
  compare(16 << 10, level, rounds);
  compare(64 << 10, level, rounds);
  free(raw);
  free(back);
  free(frames);
  return 0;
}
