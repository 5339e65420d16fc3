# A truncated archive yields the chunks that it holds, and the missing ones are named.
"$PYTHON" "$SHARED_SUITE/make.py" a.bin 2
"$KVTOOL" compress -q --raw f16:2LTHD:2,2,?,8,64 a.bin -o a.kvz
head -c $(($(stat -c %s a.kvz) * 6 / 10)) a.kvz > cut.kvz
"$KVTOOL" verify cut.kvz || echo "exit $?"
"$KVTOOL" decompress -q cut.kvz -o b.bin || echo "exit $?"
[ ! -e b.bin ] && echo "no output"
"$KVTOOL" decompress -q cut.kvz --keep-going -o b.bin || echo "exit $?"
cmp -n 1048576 a.bin b.bin && stat -c %s b.bin
head -c 30 a.kvz > stub.kvz
"$KVTOOL" verify stub.kvz || echo "exit $?"
