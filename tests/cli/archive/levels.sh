# kvtool and the independent decoder restore the source of every level. The kinds of chunk suit the values; higher
# levels are not larger.
"$PYTHON" -c 'import numpy, zstandard' 2>&- || { echo "python3-numpy or python3-zstandard is missing"; exit 77; }
"$PYTHON" "$SHARED_SUITE/levels_caches.py"
for name in f16 bf16 f32; do
  last=
  for level in compat fast default high max; do
    "$KVTOOL" compress -qq -f --level $level --raw "$name:L2THD:2,2,?,3,16" $name -o x.kvz
    "$KVTOOL" verify -q x.kvz --against $name
    rm -f y
    "$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" x.kvz y 2> said && cmp y $name || { cat said; echo "$name $level: the decoder failed"; }
    codecs=$("$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" x.kvz --list 2> said | grep -o ' codec=[0-9]*' | sort | uniq -c | tr -s ' \n' ' ')
    echo "$name $level:$codecs"
    size=$(stat -c %s x.kvz)
    if [ "$level" = max ] && [ "$size" -gt "$last" ]; then echo "$name: max is larger than high"; fi
    last=$size
  done
done
# Long chunks are coded in 32 and 64 lanes: chunks of rows, and noise of one scale, which is coded without rows.
"$PYTHON" "$SHARED_SUITE/levels_long.py"
for tokens in 1100 2200; do
  for level in default high; do
    "$KVTOOL" compress -qq -f --level $level --raw "f16:L2THD:1,2,?,4,16" long$tokens -o long.kvz
    rm -f y
    "$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" long.kvz y 2> said && cmp y long$tokens || { cat said; echo "$tokens $level: the decoder failed"; }
    codecs=$("$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" long.kvz --list 2> said | grep -o ' codec=[0-9]*' | tr -d '\n')
    echo "$tokens tokens $level:$codecs"
  done
done
"$KVTOOL" compress -qq --raw "f16:L2THD:2,2,?,3,16" f16 -o unsaid.kvz
"$KVTOOL" compress -qq --raw "f16:L2THD:2,2,?,3,16" f16 -o said.kvz --level default
cmp unsaid.kvz said.kvz
# bf16 exponents that exceed a window of fifteen, with a few outliers.
"$PYTHON" - <<'END'
import numpy
random = numpy.random.default_rng(6)
exponents = numpy.where(random.random(2 * 64 * 48) < 0.01, 3, random.integers(110, 125, 2 * 64 * 48))
values = random.integers(0, 1 << 16, 2 * 64 * 48) & 0x807f | exponents << 7
values.astype("<u2").tofile("wide")
END
"$KVTOOL" compress -qq --level fast --raw "bf16:L2THD:1,2,?,3,16" wide -o wide.kvz
"$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" wide.kvz y2 2> said && cmp y2 wide || cat said
"$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" wide.kvz --list 2> said | grep -o ' codec=[0-9]*'
# Keys that rotate from row to row, of tokens that sometimes repeat, in heads of odd sizes.
"$PYTHON" "$SHARED_SUITE/levels_turning.py"
for level in high max; do
  "$KVTOOL" compress -qq -f --level $level --raw f16:L2THD:2,2,?,2,20 turning -o turning.kvz
  rm -f y
  "$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" turning.kvz y 2> said && cmp y turning || { cat said; echo "$level: the decoder failed"; }
  codecs=$("$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" turning.kvz --list 2> said | grep -o ' codec=[0-9]*' | tr -d '\n')
  echo "turning $level:$codecs"
done
