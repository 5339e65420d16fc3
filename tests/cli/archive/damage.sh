# A flipped byte is located by layer, K or V, and tokens. There is no output without --keep-going, and zeros with it.
"$PYTHON" "$SHARED_SUITE/make.py" a.bin 3
"$KVTOOL" compress -q --raw f16:2LTHD:2,4,?,8,64 a.bin -o a.kvz
"$PYTHON" - <<'END'
data = bytearray(open("a.kvz", "rb").read())
data[len(data) // 2] ^= 0x10
open("a.kvz", "wb").write(data)
END
"$KVTOOL" verify a.kvz || echo "exit $?"
"$KVTOOL" decompress a.kvz -o b.bin || echo "exit $?"
"$KVTOOL" decompress a.kvz -c > piped || echo "exit $?"
[ ! -e b.bin ] && [ ! -s piped ] && echo "no output"
"$KVTOOL" decompress -q a.kvz --keep-going -o b.bin || echo "exit $?"
"$KVTOOL" decompress -qq a.kvz --keep-going -c > piped || echo "exit $?"
cmp piped b.bin
"$PYTHON" - <<'END'
a, b = open("a.bin", "rb").read(), open("b.bin", "rb").read()
size = len(a) // 8
print(len(a) == len(b), a[:3 * size] == b[:3 * size], not any(b[3 * size:4 * size]), a[4 * size:] == b[4 * size:])
END
"$KVTOOL" decompress a.kvz --layers 2 --to mnn-dump -o part -q && echo "the rest is whole"
("$KVTOOL" verify a.kvz --json || true) | "$PYTHON" "$SHARED_SUITE/../validate.py"
("$KVTOOL" decompress -qq -f a.kvz --keep-going -o b.bin --json || true) | "$PYTHON" "$SHARED_SUITE/../validate.py"
