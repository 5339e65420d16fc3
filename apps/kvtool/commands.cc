// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The table of commands: one row each, in the order of the overview.
#include "apps/kvtool/commands.h"

namespace kv {

// Each factory is defined in the file of its command, in commands/.
std::unique_ptr<Command> MakeAdvise();
std::unique_ptr<Command> MakeAnalyze();
std::unique_ptr<Command> MakeBench();
std::unique_ptr<Command> MakeCompletion();
std::unique_ptr<Command> MakeCompress();
std::unique_ptr<Command> MakeConvert();
std::unique_ptr<Command> MakeCorpus();
std::unique_ptr<Command> MakeDecompress();
std::unique_ptr<Command> MakeDiff();
std::unique_ptr<Command> MakeDoctor();
std::unique_ptr<Command> MakeExplain();
std::unique_ptr<Command> MakeFormats();
std::unique_ptr<Command> MakeFrame();
std::unique_ptr<Command> MakeGate();
std::unique_ptr<Command> MakeInspect();
std::unique_ptr<Command> MakeMan();
std::unique_ptr<Command> MakeMerge();
std::unique_ptr<Command> MakePlan();
std::unique_ptr<Command> MakeReplayBlend();
std::unique_ptr<Command> MakeReplayH2o();
std::unique_ptr<Command> MakeReplayLossless();
std::unique_ptr<Command> MakeReplayMlp();
std::unique_ptr<Command> MakeReplayQuant();
std::unique_ptr<Command> MakeReport();
std::unique_ptr<Command> MakeSchema();
std::unique_ptr<Command> MakeStore();
std::unique_ptr<Command> MakeTargets();
std::unique_ptr<Command> MakeTrace();
std::unique_ptr<Command> MakeTrain();
std::unique_ptr<Command> MakeVerify();
std::unique_ptr<Command> MakeWeights();

namespace {

constexpr ShelfEntry kShelves[] = {
    {Shelf::kFirst, "", "Every day"},
    {Shelf::kReplay, "", "Replaying"},
    {Shelf::kMore, "", "More about a cache"},
    {Shelf::kBatch, "batch", "Many caches"},
    {Shelf::kEngines, "engines", "What engines do and write"},
    {Shelf::kHelp, "", "Help"},
};

constexpr CommandEntry kCommands[] = {
    {"inspect", Shelf::kFirst, "show what a snapshot is: engine, layers, heads, dtypes, sizes",
     "  kvtool inspect slot0.bin\n"
     "  kvtool inspect slot0.bin --stats --model model.gguf\n"
     "  kvtool inspect dump/run_1 --json | jq .results[0].layers[0]\n"
     "  kvtool inspect slot0.bin --html-out values.html\n",
     MakeInspect},
    {"compress", Shelf::kFirst, "make a snapshot smaller without losing a bit (.kvz)",
     "  kvtool compress slot0.bin\n"
     "  kvtool compress dump/run_1 -o run_1.kvz -T 4\n"
     "  kvtool compress any.bin --from opaque -c > any.kvz\n",
     MakeCompress},
    {"decompress", Shelf::kFirst, "restore the source of an archive, or tensors from it",
     "  kvtool decompress slot0.bin.kvz -o restored.bin\n"
     "  kvtool decompress slot0.bin.kvz --layers 3-5 --tokens 0-511 --kv k --to npz -o part.npz\n"
     "  kvtool decompress damaged.kvz --keep-going -o what-is-left.bin\n",
     MakeDecompress},
    {"verify", Shelf::kFirst, "prove that an archive is whole and restores its source",
     "  kvtool verify slot0.bin.kvz\n"
     "  kvtool verify slot0.bin.kvz --against slot0.bin\n",
     MakeVerify},
    {"diff", Shelf::kFirst, "compare two snapshots across formats, value by value",
     "  kvtool diff slot0.bin slot0.safetensors\n"
     "  kvtool diff before.kvz after.npz --html-out where.html\n"
     "  kvtool diff before.kvz after.npz --atol 1e-3 --json | jq .results[0].first\n",
     MakeDiff},
    {"convert", Shelf::kFirst, "write a snapshot, or part of it, in another format",
     "  kvtool convert slot0.bin --to safetensors --kv-heads 8 -o slot0.safetensors\n"
     "  kvtool convert dump/run_1 --to npz --layers 0-3 --tokens 0-511 -o part.npz\n",
     MakeConvert},
#ifndef KVTOOL_WITHOUT_STORE
    {"store", Shelf::kFirst, "keep many states in a folder that stores common rows once",
     "  kvtool store add states slot0.bin\n"
     "  kvtool store get states slot0.bin -o restored.bin\n"
     "  kvtool store prune states --keep-last 3\n"
     "  kvtool store remove states slot0.bin@1\n"
     "  kvtool store list states\n"
     "  kvtool store list states slot0.bin --json\n"
     "  kvtool store verify states\n"
     "  kvtool store verify states --repair\n"
     "  kvtool store stats states\n"
     "  kvtool store gc states\n"
     "  kvtool store watch --slots slots --store states\n"
     "  kvtool store watch --slots slots --store states --once\n",
     MakeStore},
#endif
    {"replay", Shelf::kFirst, "what eviction, smaller types and engines' own paths save and cost",
     "  kvtool replay evict run/ --policy streaming,h2o --budget 0.5\n"
     "  kvtool replay quant run/ --k q8_0,q4_0 --v q8_0,q4_0\n"},
    {"advise", Shelf::kFirst, "what to keep of saved states, or what to evict within a given loss",
     "  kvtool advise slots/\n"
     "  kvtool advise run/ --max-kl 0.02 --plan-out plan.json\n"
     "  kvtool advise runs/* --max-kl 0.02 --min-ratio 2 --html-out advice.html\n"
     "  kvtool advise slot0.bin --trace dir/stem --granularity layer --context 32768 --plan-out "
     "plan.json\n",
     MakeAdvise},
    {"gate", Shelf::kFirst, "run the quality gate; its verdict is the exit status",
     "  kvtool gate --init run1 run2 -o gate.json\n"
     "  kvtool gate gate.json -o summary.json --html-out gate.html\n"
     "  kvtool gate --from summary.json --junit-out gate.xml\n"
     "  kvtool gate --snapshot slot0.bin --trace slot0.trace.safetensors\n"
     "  kvtool gate gate.json --baseline main/summary.json --deterministic --json | jq "
     ".results[0].verdict\n"
     "  kvtool gate nightly.json --corpus corpus.jsonl --results verdicts.jsonl --keep-going\n"
     "  kvtool gate --engine-logs exp/h2o_final/out_20260221\n",
     MakeGate},
    {"replay-h2o", Shelf::kReplay, "which tokens eviction keeps, what it saves and costs",
     "  kvtool replay evict run/ --policy streaming,h2o,snapkv --budget 0.5,0.25\n"
     "  kvtool replay evict slot0.bin --trace dir/stem --policy all --html-out evict.html\n"
     "  kvtool replay evict slot0.bin --trace t.npz --engine mnn --plan-out plan.json\n",
     MakeReplayH2o, "replay evict"},
    {"replay-quant", Shelf::kReplay, "what each type of K and V saves and costs in attention",
     "  kvtool replay quant run/ --k q8_0,q5_1,q4_0 --v q8_0,q5_1,q4_0\n"
     "  kvtool replay quant slot0.bin --trace dir/stem --k fp8_e4m3,kivi2 --html-out quant.html\n"
     "  kvtool replay quant run/ --advise --max-kl 0.01 --plan-out types.json\n",
     MakeReplayQuant, "replay quant"},
    {"doctor", Shelf::kMore, "say what a file is, whether it is sound, and which command is next",
     "  kvtool doctor slot0.bin\n"
     "  kvtool doctor downloads/*\n"
     "  kvtool doctor slot0.bin --json | jq -r '.results[0].next[0].command'\n",
     MakeDoctor},
    {"analyze", Shelf::kMore, "show what compresses: ratios verified by decoding, entropies",
     "  kvtool analyze slot0.bin --html-out what.html --svg-out pictures\n"
     "  kvtool analyze slot0.bin --model model.gguf --per-head --json | jq .results[0].summary\n"
     "  kvtool analyze dump/run_1 --distribution --csv-out layer_metrics.csv\n"
     "  kvtool analyze dump/run_1 --offline-codec adaptive --entry-mode aggregate\n",
     MakeAnalyze},
    {"bench", Shelf::kMore, "compress with every level, and peers: ratio and speed of each",
     "  kvtool bench slot0.bin\n"
     "  kvtool bench slot0.bin --peers --slow-peers --html-out bench.html\n"
     "  kvtool bench slot0.bin --chunk-bytes 32KiB --rounds 20 --json | jq "
     ".results[0].contestants[2]\n",
     MakeBench},
    {"train", Shelf::kMore, "learn a profile of a model's K and V that shortens small pages (.kvp)",
     "  kvtool train chats/*.bin -o model.kvp\n"
     "  kvtool train chats/*.bin -o model.kvp --name llama-3.2-1b\n"
     "  kvtool train --transform kvtc chats/*.bin --model model.gguf -o model.kvx\n",
     MakeTrain},
    {"corpus", Shelf::kBatch, "list the caches in folders, and check that they are unchanged",
     "  kvtool corpus make dumps -o corpus.jsonl\n"
     "  kvtool corpus check corpus.jsonl\n"
     "  kvtool corpus check corpus.jsonl --corpus-dir /mnt/dumps --quick\n",
     MakeCorpus},
    {"merge", Shelf::kBatch, "merge the results of a corpus from all its shards into one",
     "  kvtool merge analysis.jsonl --html-out corpus.html\n"
     "  kvtool merge results/shard-*.jsonl -o merged.json\n"
     "  kvtool merge analysis.jsonl --json | jq '.results[0].figures[] | select(.layer == null)'\n",
     MakeMerge},
    {"replay-lossless", Shelf::kEngines,
     "the engine's lossless path, or its intended design, as tokens are generated",
     "  kvtool replay lossless slot0.bin --mode store --prompt-tokens 512\n"
     "  kvtool replay lossless slot0.bin --trace t.npz --mode store --preset gate --json\n"
     "  kvtool replay lossless slot0.bin --trace t.npz --mode store --engine design\n",
     MakeReplayLossless, "replay lossless"},
    {"replay-blend", Shelf::kEngines, "what CacheBlend recomputes of cached chunks, and the error",
     "  kvtool replay blend --full prompt.bin --chunks sys.bin a.bin b.bin ask.bin --model "
     "model.gguf\n"
     "  kvtool replay blend --full f.safetensors --chunks-joined old_kvs.pt --chunk-tokens "
     "33,512,17 --rope-base 1e4\n"
     "  kvtool replay blend --full f.npz --chunks a.npz b.npz --trace q.npz --html-out "
     "blend.html\n",
     MakeReplayBlend, "replay blend"},
    {"replay-mlp", Shelf::kEngines, "the MLP compression step, applied to a cache, and its cost",
     "  kvtool replay mlp dump_kv --weights llava.bin --image-tokens 576 --dry-run\n"
     "  kvtool replay mlp cache.safetensors --weights llava.bin -o small.npz --to npz\n"
     "  kvtool replay mlp dump_kv --weights llava.bin --compat csrc --json | jq .results[0].csrc\n",
     MakeReplayMlp, "replay mlp"},
    {"frame", Shelf::kEngines, "encode, decode or inspect a bare gear container of MNN",
     "  kvtool frame encode --dtype f16 k.bin -o k.gear\n"
     "  kvtool frame inspect k.gear\n"
     "  kvtool frame decode --dtype f16 k.gear -o - | cmp - k.bin\n",
     MakeFrame},
    {"plan", Shelf::kEngines, "check that an eviction plan can be applied to a cache",
     "  kvtool plan check plan.json --snapshot slot0.bin\n"
     "  kvtool plan check plan.json --snapshot run/ --json | jq "
     ".results[0].layers[0].kept_tokens\n",
     MakePlan},
    {"trace", Shelf::kEngines, "show what an attention trace holds",
     "  kvtool trace inspect slot0.trace.safetensors\n  kvtool trace inspect dir/stem --json\n",
     MakeTrace},
    {"weights", Shelf::kEngines, "inspect, convert, verify and compare KV-compressor weights",
     "  kvtool weights inspect checkpoint.pth --stats\n"
     "  kvtool weights convert checkpoint.pth -o compressor.bin --dtype bf16\n"
     "  kvtool weights verify compressor.bin --layer-count 32 --head-dim 128\n"
     "  kvtool weights diff checkpoint.pth compressor.bin --atol 1e-3\n",
     MakeWeights},
    {"formats", Shelf::kHelp, "list what kvtool reads and writes, and what it does not read",
     "  kvtool formats\n"
     "  kvtool formats --json | jq -r '.results[0].formats[] | select(.writes) | .name'\n",
     MakeFormats},
    {"targets", Shelf::kHelp, "list SIMD targets, formats, codecs and library versions",
     "  kvtool targets\n  kvtool targets --json\n", MakeTargets},
    {"schema", Shelf::kHelp, "print the JSON Schema of a report",
     "  kvtool schema inspect\n  kvtool schema\n", MakeSchema},
    {"explain", Shelf::kHelp, "explain a finding number such as KV1001",
     "  kvtool explain KV1001\n  kvtool explain 1001\n  kvtool explain\n", MakeExplain},
    {"completion", Shelf::kHelp, "print the completion of a shell: bash, zsh or fish",
     "  source <(kvtool completion bash)\n"
     "  kvtool completion zsh > ~/.zfunc/_kvtool\n"
     "  kvtool completion fish > ~/.config/fish/completions/kvtool.fish\n",
     MakeCompletion},
    {"man", Shelf::kHelp, "print the manual page of kvtool, or of one command",
     "  kvtool man replay evict | man -l -\n  kvtool man --output-dir ~/.local/share/man/man1\n",
     MakeMan},
    {"report", Shelf::kHelp, "show a gate's summary, as gate --from does: a page, or JUnit XML",
     "  kvtool report summary.json --html-out gate.html\n"
     "  kvtool report runs/*/summary.json --html-out history.html\n"
     "  kvtool report summary.json --junit-out gate.xml\n",
     MakeReport},
};

}  // namespace

std::span<const CommandEntry> Commands() { return kCommands; }
std::span<const ShelfEntry> Shelves() { return kShelves; }

}  // namespace kv
