/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes pages in the background: submits batches, does other work, and takes the completions when
 * a file descriptor says that there are some. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvtool.h"

enum { BATCHES = 8, PAGES = 16, PAGE = 16 * 8 * 128 * 2, ROOM = PAGE + KVT_FRAME_HEADER_BYTES };

/* Everything that a ticket's batch points to. It must stay until the ticket is done. */
struct job {
  kvt_piece pieces[PAGES];
  kvt_item items[PAGES];
  unsigned char raw[PAGES][PAGE], frames[PAGES][ROOM];
};

static uint64_t submit(kvt_queue* queue, struct job* job) {
  /* The completion returns the last field. */
  const kvt_batch batch = {sizeof batch, KVT_ENCODE_ITEMS, job->items, PAGES, NULL, job};
  uint64_t ticket = 0;
  for (int i = 0; i < PAGES; ++i) {
    const kvt_piece piece = {sizeof piece, 0, job->raw[i], PAGE};
    const kvt_item item = {sizeof item, 0, NULL, &job->pieces[i], 1, job->frames[i], ROOM, 0};
    memset(job->raw[i], i, PAGE); /* as if the engine had written its page */
    job->pieces[i] = piece;
    job->items[i] = item;
  }
  return kvt_queue_submit(queue, &batch, &ticket) == KVT_OK ? ticket : 0;
}

int main(void) {
  static struct job jobs[BATCHES];
  const kvt_queue_params params = {sizeof params, 2, BATCHES, 0};
  kvt_completion done[BATCHES] = {{sizeof done[0], 0, 0, NULL, 0, 0, ""}};
  kvt_queue* queue = NULL;
  kvt_ctx* ctx = NULL; /* the queue copies only its level, limit and profile */
  size_t taken = 0, count;
  if (kvt_ctx_create(NULL, &ctx) != KVT_OK) return EXIT_FAILURE;
  if (kvt_queue_create(ctx, &params, &queue) != KVT_OK) return EXIT_FAILURE;
  kvt_ctx_free(ctx);
  for (size_t i = 0; i < BATCHES; ++i)
    if (submit(queue, &jobs[i]) == 0) return EXIT_FAILURE;
  while (taken < BATCHES) {
    struct pollfd ready = {kvt_queue_fd(queue), POLLIN, 0}; /* or the engine's event loop */
    if (poll(&ready, 1, -1) != 1) return EXIT_FAILURE;
    if (kvt_queue_poll(queue, done, BATCHES, &count) != KVT_OK) return EXIT_FAILURE;
    for (size_t i = 0; i < count; ++i) {
      const struct job* job = done[i].user;
      if (done[i].status != KVT_OK) fprintf(stderr, "%s\n", done[i].message);
      if (job->items[0].status != KVT_OK) return EXIT_FAILURE;
    }
    taken += count;
  }
  printf("%zu batches, the first page takes %zu bytes\n", taken, jobs[0].items[0].written);
  kvt_queue_free(queue);
  return EXIT_SUCCESS;
}
