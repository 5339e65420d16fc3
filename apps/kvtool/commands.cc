// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The table of commands: one line each, in the order of the overview.
#include "apps/kvtool/commands.h"

namespace kv {
namespace {

constexpr CommandEntry kCommands[] = {
    {"doctor", "Looking", "say what a file is, whether it is sound, and which command comes next",
     "  kvtool doctor slot0.bin\n"
     "  kvtool doctor downloads/*\n"
     "  kvtool doctor slot0.bin --json | jq -r '.results[0].next[0].command'\n",
     MakeDoctor},
    {"inspect", "Looking", "show what a snapshot is: engine, layers, heads, dtypes, sizes",
     "  kvtool inspect slot0.bin\n"
     "  kvtool inspect slot0.bin --stats --model model.gguf\n"
     "  kvtool inspect slot0.bin --html-out values.html\n"
     "  kvtool inspect dump/run_1 --json | jq .results[0].layers[0]\n",
     MakeInspect},
    {"analyze", "Looking", "show what compresses: ratios proved by decoding, entropies, structure",
     "  kvtool analyze slot0.bin --html-out what.html --svg-out pictures\n"
     "  kvtool analyze slot0.bin --model model.gguf --per-head --json | jq .results[0].summary\n"
     "  kvtool analyze dump/run_1 --offline-codec adaptive --entry-mode aggregate\n"
     "  kvtool analyze dump/run_1 --distribution --csv-out layer_metrics.csv\n",
     MakeAnalyze},
    {"compress", "Archiving", "make a snapshot smaller without losing a bit (.kvz)",
     "  kvtool compress slot0.bin\n"
     "  kvtool compress dump/run_1 -o run_1.kvz -T 4\n"
     "  kvtool compress any.bin --from opaque -c > any.kvz\n",
     MakeCompress},
    {"decompress", "Archiving", "restore the source of an archive, or tensors from it",
     "  kvtool decompress slot0.bin.kvz -o restored.bin\n"
     "  kvtool decompress slot0.bin.kvz --layers 3-5 --tokens 0-511 --kv k --to npz -o part.npz\n"
     "  kvtool decompress damaged.kvz --keep-going -o what-is-left.bin\n",
     MakeDecompress},
    {"verify", "Archiving", "prove that an archive is whole and restores its source",
     "  kvtool verify slot0.bin.kvz\n"
     "  kvtool verify slot0.bin.kvz --against slot0.bin\n",
     MakeVerify},
    {"train", "Archiving", "learn what a model's K and V look like, for short pages (.kvp)",
     "  kvtool train chats/*.bin -o model.kvp\n"
     "  kvtool inspect model.kvp\n",
     MakeTrain},
    {"convert", "Archiving", "write a snapshot, or part of it, in another format",
     "  kvtool convert slot0.bin --to safetensors --kv-heads 8 -o slot0.safetensors\n"
     "  kvtool convert dump/run_1 --to npz --layers 0-3 --tokens 0-511 -o part.npz\n",
     MakeConvert},
    {"diff", "Archiving", "compare two snapshots across formats, value by value",
     "  kvtool diff slot0.bin slot0.safetensors\n"
     "  kvtool diff before.kvz after.npz --html-out where.html\n"
     "  kvtool diff before.kvz after.npz --atol 1e-3 --json | jq .results[0].first\n",
     MakeDiff},
#ifndef KVTOOL_WITHOUT_STORE
    {"store", "Archiving", "keep many states in a folder, what they have in common once",
     "  kvtool store add states slot0.bin\n"
     "  kvtool store list states\n"
     "  kvtool store get states slot0.bin -o restored.bin\n"
     "  kvtool store prune states --keep-last 3\n",
     MakeStore},
#endif
    {"frame", "Codec", "encode, decode or inspect a bare gear container, as the engine stores it",
     "  kvtool frame encode --dtype f16 k.bin -o k.gear\n"
     "  kvtool frame inspect k.gear\n"
     "  kvtool frame decode --dtype f16 k.gear -o - | cmp - k.bin\n",
     MakeFrame},
    {"bench", "Codec", "compress a snapshot with every level, and peers: ratio and speed of each",
     "  kvtool bench slot0.bin\n"
     "  kvtool bench slot0.bin --peers --slow-peers --html-out bench.html\n"
     "  kvtool bench slot0.bin --chunk-bytes 32KiB --rounds 20 --json | jq "
     ".results[0].contestants[2]\n",
     MakeBench},
    {"replay-h2o", "Replaying", "replay H2O eviction: what it keeps, saves and costs in attention",
     "  kvtool replay-h2o slot0.bin --trace slot0.trace.safetensors --target-ratio 2,3,3.5\n"
     "  kvtool replay-h2o slot0.bin --trace t.npz --engine mnn --plan-out plan.json\n"
     "  kvtool replay-h2o slot0.bin --trace dir/stem --policy all --html-out h2o.html\n",
     MakeReplayH2o},
    {"advise", "Replaying",
     "search for what to evict: the plan that saves most within a loss that you name; of a folder "
     "of saved states: what to keep",
     "  kvtool advise slots/\n"
     "  kvtool advise run/ --max-kl 0.02 --plan-out plan.json\n"
     "  kvtool advise runs/* --max-kl 0.02 --min-ratio 2 --html-out advice.html\n"
     "  kvtool advise slot0.bin --trace dir/stem --granularity layer --context 32768 --plan-out "
     "plan.json\n",
     MakeAdvise},
    {"replay-quant", "Replaying",
     "replay quantised caches: what each type of K and V saves and costs in attention",
     "  kvtool replay-quant run/ --k q8_0,q5_1,q4_0 --v q8_0,q5_1,q4_0\n"
     "  kvtool replay-quant slot0.bin --trace dir/stem --k fp8_e4m3,kivi2 --html-out quant.html\n"
     "  kvtool replay-quant run/ --advise --max-kl 0.01 --plan-out types.json\n",
     MakeReplayQuant},
    {"replay-lossless", "Replaying",
     "replay the engine's lossless path, or its intended design, as a cache is decoded",
     "  kvtool replay-lossless slot0.bin --mode store --prompt-tokens 512\n"
     "  kvtool replay-lossless slot0.bin --trace t.npz --mode store --preset gate --json\n"
     "  kvtool replay-lossless slot0.bin --trace t.npz --mode store --engine design --html-out "
     "l.html\n",
     MakeReplayLossless},
    {"replay-blend", "Replaying",
     "replay CacheBlend: what it recomputes of cached chunks, and the error left",
     "  kvtool replay-blend --full prompt.bin --chunks sys.bin a.bin b.bin ask.bin --model "
     "model.gguf\n"
     "  kvtool replay-blend --full f.safetensors --chunks-joined old_kvs.pt --chunk-tokens "
     "33,512,17 --rope-base 1e4\n"
     "  kvtool replay-blend --full f.npz --chunks a.npz b.npz --trace q.npz --html-out "
     "blend.html\n",
     MakeReplayBlend},
    {"plan", "Replaying", "check that an eviction plan can be applied to a cache",
     "  kvtool plan check plan.json --snapshot slot0.bin\n"
     "  kvtool plan check plan.json --snapshot run/ --json | jq "
     ".results[0].layers[0].kept_tokens\n",
     MakePlan},
    {"trace", "Replaying", "show what an attention trace holds",
     "  kvtool trace inspect slot0.trace.safetensors\n  kvtool trace inspect dir/stem --json\n",
     MakeTrace},
    {"replay-mlp", "Replaying",
     "apply the MLP compression step to a cache and measure what it costs",
     "  kvtool replay-mlp dump_kv --weights llava.bin --image-tokens 576 --dry-run\n"
     "  kvtool replay-mlp cache.safetensors --weights llava.bin -o small.npz --to npz\n"
     "  kvtool replay-mlp dump_kv --weights llava.bin --compat csrc --json | jq .results[0].csrc\n",
     MakeReplayMlp},
    {"corpus", "Many", "list what folders of caches hold, and check that it is still there",
     "  kvtool corpus make dumps -o corpus.jsonl\n"
     "  kvtool analyze --corpus corpus.jsonl --results analysis.jsonl --keep-going\n"
     "  kvtool corpus check corpus.jsonl\n",
     MakeCorpus},
    {"merge", "Many", "join the results of a corpus, of all its shards, to one answer",
     "  kvtool merge analysis.jsonl --html-out corpus.html\n"
     "  kvtool merge results/shard-*.jsonl -o merged.json\n"
     "  kvtool merge analysis.jsonl --json | jq '.results[0].figures[] | select(.layer == null)'\n",
     MakeMerge},
    {"gate", "Judging", "run the quality gate; its verdict is the exit status",
     "  kvtool gate --init run1 run2 -o gate.json\n"
     "  kvtool gate gate.json -o summary.json --html-out gate.html\n"
     "  kvtool gate --snapshot slot0.bin --trace slot0.trace.safetensors\n"
     "  kvtool gate gate.json --baseline main/summary.json --deterministic --json | jq "
     ".results[0].verdict\n"
     "  kvtool gate nightly.json --corpus corpus.jsonl --results verdicts.jsonl --keep-going\n"
     "  kvtool gate --engine-logs exp/h2o_final/out_20260221\n",
     MakeGate},
    {"report", "Judging", "show the summary of a gate as a page, or as JUnit XML for a CI",
     "  kvtool report summary.json --html-out gate.html\n"
     "  kvtool report runs/*/summary.json --html-out history.html\n"
     "  kvtool report summary.json --junit-out gate.xml\n",
     MakeReport},
    {"weights", "Compressor", "inspect, convert, verify and compare KV-compressor weights",
     "  kvtool weights inspect checkpoint.pth --stats\n"
     "  kvtool weights convert checkpoint.pth -o compressor.bin --dtype bf16\n"
     "  kvtool weights verify compressor.bin --layer-count 32 --head-dim 128\n"
     "  kvtool weights diff checkpoint.pth compressor.bin --atol 1e-3\n",
     MakeWeights},
    {"formats", "Help",
     "list what kvtool reads and writes, what you supply, and what it does not read",
     "  kvtool formats\n"
     "  kvtool formats --json | jq -r '.results[0].formats[] | select(.writes) | .name'\n",
     MakeFormats},
    {"targets", "Help", "list SIMD targets, formats, codecs and library versions",
     "  kvtool targets\n  kvtool targets --json\n", MakeTargets},
    {"schema", "Help", "print the JSON Schema of a report",
     "  kvtool schema inspect\n  kvtool schema\n", MakeSchema},
    {"completion", "Help", "print the completion of a shell: bash, zsh or fish",
     "  source <(kvtool completion bash)\n"
     "  kvtool completion zsh > ~/.zfunc/_kvtool\n"
     "  kvtool completion fish > ~/.config/fish/completions/kvtool.fish\n",
     MakeCompletion},
    {"man", "Help", "print the manual page of kvtool, or of one command",
     "  kvtool man replay-h2o | man -l -\n  kvtool man --output-dir ~/.local/share/man/man1\n",
     MakeMan},
    {"explain", "Help", "explain a finding number such as KV1001",
     "  kvtool explain KV1001\n  kvtool explain 1001\n  kvtool explain\n", MakeExplain},
};

}  // namespace

std::span<const CommandEntry> Commands() { return kCommands; }

}  // namespace kv
