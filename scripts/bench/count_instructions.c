// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// A plugin of QEMU 7.2's user-mode emulation that counts the instructions of each function and writes "COUNT SYMBOL"
// lines to the file out=FILE at exit; scripts/bench/instructions.py compiles and uses it. Blocks in shared libraries
// have no symbol and count as "-". Counts are exact for one thread only, because inline counters are not atomic.
// Debian ships no qemu-plugin.h, so this file declares the functions that it calls.
#include <search.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t PluginId;
typedef struct qemu_plugin_tb Block;
typedef struct qemu_plugin_insn Instruction;
enum { kAddU64 = 0 };

EXPORT int qemu_plugin_version = 1;
void qemu_plugin_register_vcpu_tb_trans_cb(PluginId id, void (*translated)(PluginId, Block*));
void qemu_plugin_register_atexit_cb(PluginId id, void (*at_exit)(PluginId, void*), void* context);
void qemu_plugin_register_vcpu_tb_exec_inline(Block* block, int operation, void* counter, uint64_t amount);
size_t qemu_plugin_tb_n_insns(const Block* block);
Instruction* qemu_plugin_tb_get_insn(const Block* block, size_t index);
const char* qemu_plugin_insn_symbol(const Instruction* instruction);

typedef struct {
  char* symbol;
  uint64_t count;
} Function;

static void* functions;
static FILE* out;

static int Compare(const void* a, const void* b) {
  return strcmp(((const Function*)a)->symbol, ((const Function*)b)->symbol);
}

// QEMU keeps the address of a counter, so an entry is never moved or freed.
static Function* FindFunction(const char* symbol) {
  Function* added = calloc(1, sizeof *added);
  if (added == NULL || (added->symbol = strdup(symbol)) == NULL) abort();
  Function** const found = tsearch(added, &functions, Compare);
  if (found == NULL) abort();
  if (*found != added) {
    free(added->symbol);
    free(added);
  }
  return *found;
}

static void Translated(PluginId id, Block* block) {
  (void)id;
  const char* const symbol = qemu_plugin_insn_symbol(qemu_plugin_tb_get_insn(block, 0));
  Function* const function = FindFunction(symbol == NULL ? "-" : symbol);
  qemu_plugin_register_vcpu_tb_exec_inline(block, kAddU64, &function->count, qemu_plugin_tb_n_insns(block));
}

static void WriteFunction(const void* node, VISIT visit, int depth) {
  (void)depth;
  if (visit != postorder && visit != leaf) return;
  const Function* const function = *(Function* const*)node;
  fprintf(out, "%llu %s\n", (unsigned long long)function->count, function->symbol);
}

static void AtExit(PluginId id, void* context) {
  (void)id, (void)context;
  twalk(functions, WriteFunction);
  if (fclose(out) != 0) abort();
}

EXPORT int qemu_plugin_install(PluginId id, const void* info, int argc, char** argv) {
  (void)info;
  if (argc != 1 || strncmp(argv[0], "out=", 4) != 0 || (out = fopen(argv[0] + 4, "w")) == NULL) return -1;
  qemu_plugin_register_vcpu_tb_trans_cb(id, Translated);
  qemu_plugin_register_atexit_cb(id, AtExit, NULL);
  return 0;
}
