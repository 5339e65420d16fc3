# The result line has sizes, ratio, rate, K and V separately, the chosen codecs, and what was verified.
"$PYTHON" "$SHARED_SUITE/make.py" a.bin 1
"$KVTOOL" compress --raw f16:2LTHD:2,1,?,8,64 a.bin
"$KVTOOL" compress -f --level fast --no-check --raw f16:2LTHD:2,1,?,8,64 a.bin
"$KVTOOL" decompress a.bin.kvz -o b.bin
"$KVTOOL" compress --from opaque a.bin -qq -o c.kvz
