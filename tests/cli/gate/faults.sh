# Unreadable inputs give no verdict: 3 for damaged input, 4 for missing files and existing outputs.
trace="$TESTDATA/trace"
gate() { status=0; "$KVTOOL" gate --case runtime_probe --deterministic -q "$@" > out.txt || status=$?; echo "exit $status"; }
gate nothing.json
gate --snapshot nothing.bin --trace "$trace/kjv3m"
head -c 5000 "$trace/kjv3m.seq0.bin" > cut.bin
gate --snapshot cut.bin
gate --snapshot "$trace/kjv3m.seq0.bin" --trace "$trace/s260k" --prompt-tokens 48
gate --snapshot "$trace/kjv3m.seq0.bin" --trace "$trace/kjv3m"
gate --snapshot "$trace/kjv3m.seq0.bin" --trace "$trace/kjv3m" --prompt-tokens 96
# Without a trace only lengths are replayed, and figures of attention are unknown.
gate --snapshot "$trace/kjv3m.seq0.bin" --kv-heads 2 --prompt-tokens 48
"$KVTOOL" gate --case runtime_probe --snapshot "$trace/kjv3m.seq0.bin" --kv-heads 2 --prompt-tokens 48 --json -q 2> /dev/null |
  jq -r '.results[0].cases[0].not_measured["attention_error.mean"]' || true
echo "{}" > old.json
gate --snapshot "$trace/kjv3m.seq0.bin" --trace "$trace/kjv3m" --prompt-tokens 48 --baseline old.json
touch summary.md
gate --snapshot "$trace/kjv3m.seq0.bin" --trace "$trace/kjv3m" --prompt-tokens 48 -o summary.json
ls summary.json cases.jsonl 2> /dev/null || echo "nothing else was written"
gate --snapshot "$trace/kjv3m.seq0.bin" --trace "$trace/kjv3m" --prompt-tokens 48 -o summary.json -f
ls summary.json
