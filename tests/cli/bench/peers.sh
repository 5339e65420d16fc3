# Packages and levels code the same chunks: sizes of kvtool's levels equal those of bench; zstd's output is decompressed
# again.
state=$TESTDATA/llamacpp/states/s260k-v050-bf16.seq0.bin
if ! "$PYTHON" -c 'import numpy, zstandard' 2> /dev/null; then
  echo "no numpy or zstandard"
  exit 77
fi
"$PYTHON" "$SCRIPTS/bench/peers.py" "$KVTOOL" "$state" --chunk 8KiB --rounds 1 --json-out peers.json > table 2> left-out
"$KVTOOL" bench "$state" --chunk 8KiB --rounds 1 --json > bench.json
"$PYTHON" "$SHARED_SUITE/check_peers.py"
grep -c '^K: max against the smallest peer' table
