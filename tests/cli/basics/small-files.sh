# Configurations, summaries and lists are small: beyond its limit each is refused by name, as a file and as a stream.
try() { "$KVTOOL" "$@" 2>&1 && echo read || echo "exit $?"; }
truncate -s 65M large.json
head -c 17000000 /dev/zero | tr "\0" " " > spaces.json
mkdir pages run && truncate -s 1K pages/0.bin && truncate -s 17M run/run.json
cache="$TESTDATA/trace/s260k.seq0.bin"
try gate spaces.json
try report large.json
try inspect pages --order large.json --raw f16:2LTHD:2,1,?,1,8
try analyze "$cache" --kv-heads 4 --rope-freqs large.json
try replay-h2o "$cache" --kv-heads 4 --trace "$TESTDATA/trace/s260k" --sensitivity large.json
try replay-quant "$cache" --kv-heads 4 --trace "$TESTDATA/trace/s260k" --plan large.json
try inspect run
# Readers may close these pipes before everything is written.
too_much() { head -c "$1" /dev/zero 2> err.txt || true; }
too_much 18000000 | try gate -
too_much 68000000 | try report -
too_much 18000000 | try analyze "$cache" --kv-heads 4 --rope-freqs -
# An array of frequencies may come from a pipe, which is read once.
"$PYTHON" -c 'import numpy
numpy.save("freqs.npy", 1e4 ** -(numpy.arange(4) / 4))'
"$KVTOOL" analyze "$cache" --kv-heads 4 --rope-freqs freqs.npy --json -q --deterministic | jq -c .results > file.json
"$KVTOOL" analyze "$cache" --kv-heads 4 --rope-freqs - --json -q --deterministic < freqs.npy | jq -c .results > stream.json
cmp file.json stream.json && echo same
