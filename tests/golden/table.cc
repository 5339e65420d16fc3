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

namespace {

constexpr Row kTable[] = {
    {"manifests", "*/manifest.json", "infinilm#made_with infinilm#source infinilm#tool*", nullptr,
     "read by the rows below"},
    {"mnn codec", "mnn/codec/*", "", CheckMnnCodec, ""},
    {"mnn dumps", "mnn/dumps/*", "", CheckMnnDumps, ""},
    {"mnn h2o", "mnn/h2o/*", "", CheckMnnH2o, ""},
    {"mnn schedule", "mnn/schedule/*", "", CheckMnnSchedule, ""},
    {"mnn gate", "mnn/gate/*", "", CheckMnnGate, ""},
    {"mnn offline", "mnn/offline/*", "", CheckMnnOffline, ""},
    {"weights, .bin", "infinilm/bin/*", "infinilm#conversions", CheckWeightFiles, ""},
    {"weights, bad .bin", "infinilm/bin_bad/*", "infinilm#bin_cases", CheckWeightCases, ""},
    {"weights, .pth", "infinilm/pth/*", "infinilm#pth*", CheckWeightConversions, ""},
    {"mlp step", "infinilm/compress/*", "infinilm#compress* infinilm#tolerance", CheckMlpStep, ""},
    {"mlp step, dump", "infinilm/dump_kv/*", "infinilm#dump_kv", CheckMlpDump, ""},
    {"blend hkvd", "blend/hkvd/*", "blend#hkvd blend#hkvd_errors", CheckBlendHkvd, ""},
    {"blend rope", "blend/rope/*", "blend#rope", CheckBlendRope, ""},
    {"blend replay", "blend/replay/*", "blend#replay", CheckBlendReplay, ""},
    {"safetensors files", "blend/safetensors/*", "blend#files=safetensors", CheckSafetensorsFiles,
     ""},
    {"safetensors, bad", "blend/bad/st_*", "blend#bad=bad/st_*", CheckSafetensorsBad, ""},
    {"npy and npz files", "blend/npy/* blend/npz/*", "blend#files=npy blend#files=npz",
     CheckNpyFiles, ""},
    {"npy and npz, bad", "blend/bad/np*", "blend#bad=bad/np*", CheckNpyBad, ""},
    {"llama.cpp files", "blend/llamacpp/*", "blend#files=llama.cpp*", CheckLlamaFiles, ""},
    {"llama.cpp, bad", "blend/bad/llama_*", "blend#bad=bad/llama_*", CheckLlamaBad, ""},
    {"mnn dump of blend", "blend/mnn_dump/*", "blend#files=mnn-dump", CheckBlendMnnDump, ""},
    {"torch files", "blend/pt/*", "blend#files=torch* blend#files=pickle*", CheckTorchFiles, ""},
    {"torch, bad", "blend/bad/pt_* blend/bad/pickle_*", "blend#bad=bad/pt_* blend#bad=bad/pickle_*",
     CheckTorchBad, ""},
    {"engine stores",
     "blend/vllm_shared_storage/* blend/lmcache/* blend/sglang_hicache/* blend/bad/lmcache_*",
     "blend#files=safetensors/* blend#files=lmcache* blend#files=sglang* blend#bad=bad/lmcache_*",
     CheckStoreFiles, ""},
    {"quant blocks", "quant/manifest.json quant/ggml/* quant/engine/* quant/hadamard/* quant/fp8/*",
     "", CheckQuantBlocks, ""},
    {"quant scales", "quant/vllm/* quant/lmcache/* quant/kivi/* quant/kvquant/* quant/hf/*", "",
     CheckQuantScales, ""},
    {"quant attention", "quant/attention/*", "", CheckQuantAttention, ""},
    {"quant truth", "quant/truth/*", "", nullptr, "a run of the engine with quantised caches"},
};

}  // namespace

std::span<const Row> Table() { return kTable; }

}  // namespace kv::golden
