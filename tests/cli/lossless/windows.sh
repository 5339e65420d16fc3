# A runtime that does not support sliding windows counts tokens outside them as memory savings; a warning says so.
$PYTHON - "$TESTDATA/trace" << 'PY'
import pathlib
import sys
import numpy
import safetensors_file
queries = {f"q.{layer}": numpy.load(pathlib.Path(sys.argv[1]) / f"s260k-L{layer}-Q.npy") for layer in range(5)}
meta = {"kvtool.trace": "1", "kv_heads": "4", "prompt_tokens": "64"}
safetensors_file.write("plain.safetensors", meta, queries)
safetensors_file.write("windowed.safetensors", {**meta, "window.2": "50", "window.4": "300"}, queries)
PY
for trace in plain windowed; do
  "$KVTOOL" replay-lossless "$TESTDATA/trace/s260k.seq0.bin" --trace $trace.safetensors --mode full --hot-sink 4 --hot-recent 16 --json -q |
    jq -c --arg trace $trace '[$trace] + [.results[0].warnings[] | select(test("window"))]'
  "$KVTOOL" gate --snapshot "$TESTDATA/trace/s260k.seq0.bin" --trace $trace.safetensors --case runtime_full --json -q 2> /dev/null |
    jq -c '[.results[0] | .warnings[] | select(test("sliding window"))] | length' || true
done
