# Tests first baselines, other machines and names, and other ways to name logs: each message says how to go on.
gate() { status=0; "$KVTOOL" gate "$@" --deterministic 2>&1 || status=$?; echo "exit $status"; }
bench() { # SPEED FIELDS: writes a llama-bench report with one test
  echo "[{\"n_prompt\": 0, \"n_gen\": 128, \"avg_ts\": $1, \"type_k\": \"f16\", \"type_v\": \"f16\", $2}]"
}
mkdir base new none table
bench 40 '"cpu_info": "EPYC", "model_type": "135M Q8_0", "model_size": 100' > base/bench.json
# Logs that no rule judges become the first baseline; two summaries in one folder get their own files.
gate --engine-logs base -o base.json
gate --engine-logs base -o second.json -q
ls ./*.md ./*.jsonl
# Without -o, with --strict, or with an empty log they do not pass.
gate --engine-logs base -q
gate --engine-logs base -o third.json --strict
: > none/bench.log; cp base/bench.json none/good.json
gate --engine-logs none -o fourth.json
rm none/*
# The baseline is of another machine and another model; a larger model fails if a rule limits its size.
bench 39 '"cpu_info": "Xeon", "model_type": "135M F16", "model_size": 200' > new/bench.json
gate --engine-logs new --baseline base.json
gate --engine-logs new --require 'model_bytes<=150'
# A log of llama-perplexity for another model and another text.
text() { printf 'llama_model_loader: loaded 9 tensors from %s (version 3)\nperplexity: calculating perplexity over %s chunks, n_ctx=512\nFinal estimate: PPL = 6.2 +/- 0.03\n' "$@"; }
text one.gguf 12 > p.log; gate --engine-logs p.log -o p.json -q
text other.gguf 4 > p.log; gate --engine-logs p.log --baseline p.json
# The log gets another name, so its cases match none of the baseline.
mv new/bench.json new/night.json
gate --engine-logs new --baseline base.json
# Logs are given in other ways than one --engine-logs.
gate base new
gate new/night.json
gate --init --engine-logs base
gate --engine-logs new --baseline base
gate --engine-logs new --baseline new/night.json
gate --engine-logs new --baseline base.json --baseline base.json
# The folder has no log.
gate --engine-logs none
echo text > none/notes.txt; mkdir none/older; gate --engine-logs none
# These rules name figures that the log lacks, or are malformed.
gate --engine-logs new --require 'resident_bytes.peak<=50MiB'
gate --engine-logs new --require 'tokens_per_second>=many'
gate --engine-logs new --require 'perplexity<=19'
gate --engine-logs new --require '<=19'
# llama-bench's table.
cat > table/bench.log << 'TABLE'
| model                          |       size |     params | backend    | threads |          test |                  t/s |
| ------------------------------ | ---------: | ---------: | ---------- | ------: | ------------: | -------------------: |
| llama 135M Q8_0                | 136.50 MiB |   134.52 M | CPU        |       4 |         pp512 |        210.40 ± 2.43 |
TABLE
gate --engine-logs table --require 'tokens_per_second>=19'
# The log has two lines that show a failed run.
printf ' eval time = 2000.00 ms / 100 runs\nllama_decode: failed to decode, ret = -3\nllama_decode: failed to decode, ret = -3\n' > broken.log
gate --engine-logs broken.log --require 'tokens_per_second>=1'
# MNN's runs decode at half the speed of the baseline.
cp -r "$TESTDATA/golden/mnn/gate/logs" mnn; chmod -R u+w mnn
gate --engine-logs mnn -o mnn.json
sed -i 's/6\.00/3.00/g; s/5\.81/2.90/g' mnn/*
gate --engine-logs mnn --baseline mnn.json
