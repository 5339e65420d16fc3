# Here --v is the type of V and -v adds output: parsers that treat both as one name refuse the second.
state=$TESTDATA/trace/kjv3m.seq0.bin
quant() { "$KVTOOL" replay-quant "$state" --trace "$TESTDATA/trace/kjv3m" --k q8_0 --v q4_0 --deterministic --json "$@"; }
"$KVTOOL" replay-quant --help | grep -c -- '-v, *--verbose'
quant > plain.json 2> plain
for words in -v -vv -qvv "-q -vv" -vqv; do
  quant $words > more.json 2> more
  cmp plain.json more.json
  echo "$words: $(( $(wc -l < more) > $(wc -l < plain) ))"
done
quant -vq > same.json 2> same
cmp plain same && echo "-vq: as without"
