# Words that a user may guess lead to the right commands.
kvtool() {
  "$KVTOOL" "$@" > said 2>&1 || echo "exit $?" >> said
  sed "s|$TESTDATA/||g" said
}
for word in h2o snapkv eviction xyzzy; do kvtool replay $word; done
for word in evict quant tova; do kvtool $word; done
kvtool help nats | grep -v '^    '
kvtool help topics | sed -n 1p
kvtool help xyzzy
kvtool help csv | grep -c -- "--csv FILE"
kvtool replay quant x.bin --types q4_0
kvtool replay quant x.bin --report x.html
kvtool replay lossless x.bin
for name in "replay evict" replay-evict evict replay-h2o "trace inspect" h2o/2; do kvtool schema $name | grep '"$id"'; done
kvtool schema replay
# The folder has sets of arrays, a snapshot without its extension, and two traces.
kvtool trace inspect "$TESTDATA/trace" | cut -c1-110
kvtool replay evict "$TESTDATA/trace/kjv3m"
kvtool replay evict "$TESTDATA/trace/kjv3m.seq0.bin" --trace a --trace b
cp "$TESTDATA/trace/s260k.seq0.bin" other.bin
kvtool replay evict "$TESTDATA/trace/kjv3m.seq0.bin" other.bin --trace "$TESTDATA/trace/kjv3m" --prompt-tokens 48 --budget 0.5 -q
# Tests a file in place of a command, words of other programs, a command's only verb, and names of figures.
cp "$TESTDATA/trace/s260k.seq0.bin" slot0.bin && mkdir -p slots
kvtool slot0.bin
for word in info unpack check; do kvtool $word slot0.bin; done
kvtool store slots
kvtool store add slots
kvtool trace "$TESTDATA/trace/s260k" | sed -n 1p
kvtool trace "$TESTDATA/trace/s260k" --json | jq -c '.schema'
kvtool help cosine
# Tests options of other programs, short ones, and a value that is missing.
for option in --best --older-than "-l 9"; do kvtool compress slot0.bin $option; done
kvtool replay evict slot0.bin --csv-out x.csv
kvtool replay evict slot0.bin --keep 0.5
kvtool replay evict slot0.bin --ratio 2
kvtool advise slot0.bin --max-loss 5%
kvtool inspect slot0.bin --csv
kvtool store verify slots --against slot0.bin
# The caches of a folder have their traces beside them.
kvtool replay evict "$TESTDATA/trace" --policy h2o
