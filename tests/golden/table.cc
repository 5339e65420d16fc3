// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The one table of golden areas. A file or kind in no row fails the tests.
#include "tests/golden/checks.h"

namespace kv::golden {

void CheckMnnH2o(Run& run);
void CheckMnnSchedule(Run& run);
void CheckMnnDumps(Run& run);
void CheckMnnOffline(Run& run);
void CheckMnnGate(Run& run);
void CheckBlendMnnDump(Run& run);
void CheckSafetensorsFiles(Run& run);
void CheckSafetensorsBad(Run& run);
void CheckNpyFiles(Run& run);
void CheckNpyBad(Run& run);
void CheckBlendHkvd(Run& run);
void CheckBlendRope(Run& run);
void CheckBlendReplay(Run& run);
void CheckStoreFiles(Run& run);
void CheckQuantBlocks(Run& run);
void CheckQuantScales(Run& run);
void CheckQuantAttention(Run& run);
void CheckKvtc(Run& run);

namespace {

constexpr Row kTable[] = {
    {"manifests", "*/manifest.json", "infinilm#made_with infinilm#source infinilm#tool*", nullptr},
    {"mnn codec", "mnn/codec/*", "", CheckMnnCodec, 321},
    {"mnn dumps", "mnn/dumps/*", "", CheckMnnDumps, 56},
    {"mnn h2o", "mnn/h2o/*", "", CheckMnnH2o, 219},
    {"mnn schedule", "mnn/schedule/*", "", CheckMnnSchedule, 24},
    {"mnn gate", "mnn/gate/*", "", CheckMnnGate, 12},
    // The fifth vector, a page of such a document, is compared only with the zstd version that
    // wrote it.
    {"mnn offline", "mnn/offline/*", "", CheckMnnOffline, 4},
    {"weights, .bin", "infinilm/bin/*", "infinilm#conversions", CheckWeightFiles, 19},
    {"weights, bad .bin", "infinilm/bin_bad/*", "infinilm#bin_cases", CheckWeightCases, 31},
    {"weights, .pth", "infinilm/pth/*", "infinilm#pth*", CheckWeightConversions, 36},
    {"mlp step", "infinilm/compress/*", "infinilm#compress* infinilm#tolerance", CheckMlpStep, 40},
    {"mlp step, dump", "infinilm/dump_kv/*", "infinilm#dump_kv", CheckMlpDump, 4},
    {"blend hkvd", "blend/hkvd/*", "blend#hkvd blend#hkvd_errors", CheckBlendHkvd, 29},
    {"blend rope", "blend/rope/*", "blend#rope", CheckBlendRope, 9},
    {"blend replay", "blend/replay/*", "blend#replay", CheckBlendReplay, 55},
    {"safetensors files", "blend/safetensors/*", "blend#files=safetensors", CheckSafetensorsFiles,
     16},
    {"safetensors, bad", "blend/bad/st_*", "blend#bad=bad/st_*", CheckSafetensorsBad, 17},
    {"npy and npz files", "blend/npy/* blend/npz/*", "blend#files=npy blend#files=npz",
     CheckNpyFiles, 16},
    {"npy and npz, bad", "blend/bad/np*", "blend#bad=bad/np*", CheckNpyBad, 15},
    {"llama.cpp files", "blend/llamacpp/*", "blend#files=llama.cpp*", CheckLlamaFiles, 5},
    {"llama.cpp, bad", "blend/bad/llama_*", "blend#bad=bad/llama_*", CheckLlamaBad, 1},
    {"mnn dump of blend", "blend/mnn_dump/*", "blend#files=mnn-dump", CheckBlendMnnDump, 4},
    {"torch files", "blend/pt/*", "blend#files=torch* blend#files=pickle*", CheckTorchFiles, 14},
    {"torch, bad", "blend/bad/pt_* blend/bad/pickle_*", "blend#bad=bad/pt_* blend#bad=bad/pickle_*",
     CheckTorchBad, 24},
    {"engine stores",
     "blend/vllm_shared_storage/* blend/lmcache/* blend/sglang_hicache/* blend/bad/lmcache_*",
     "blend#files=safetensors/* blend#files=lmcache* blend#files=sglang* blend#bad=bad/lmcache_*",
     CheckStoreFiles, 28},
    {"quant blocks", "quant/ggml/* quant/engine/* quant/hadamard/* quant/fp8/*",
     "quant#ggml quant#engine quant#hadamard "
     "quant#fp8_table quant#fp8_decode quant#fp8_f32",
     CheckQuantBlocks, 33},
    {"quant scales", "quant/vllm/* quant/lmcache/* quant/kivi/* quant/kvquant/* quant/hf/*",
     "quant#vllm_fp8 quant#vllm_per_token_head quant#lmcache_k16v8 quant#lmcache_fp8 "
     "quant#turboquant quant#kivi quant#kvquant quant#hf_quanto quant#octave quant#ultraquant "
     "quant#hf_fp8",
     CheckQuantScales, 69},
    {"quant attention", "quant/attention/*", "quant#attention", CheckQuantAttention, 39},
    {"quant truth", "quant/truth/*", "quant#truth", nullptr, 0,
     "needs a run of the engine with quantised caches"},
    {"kvtc", "kvtc/*", "", CheckKvtc, 48},
};

}  // namespace

std::span<const Row> Table() { return kTable; }

}  // namespace kv::golden
