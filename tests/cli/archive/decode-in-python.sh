# An independent decoder, written from FORMAT.md, restores the same bytes: gear in two and four planes, block planes,
# zstd, raw; rows, heads, transposed V; files and folders; by index and without it.
"$PYTHON" -c 'import numpy, zstandard' 2>&- || { echo "python3-numpy or python3-zstandard is missing"; exit 77; }
decode() { "$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" "$@" 2> said || { cat said; return 1; }; grep -v 'python3-xxhash is missing' said || true; }
both() { # FILE COMPRESS-FLAGS...
  "$KVTOOL" compress -q -f "${@:2}" "$1" -o x.kvz
  for walk in "" --walk; do
    rm -rf y
    decode x.kvz y $walk
    diff -r "$1" y && echo "${*:2} $walk"
  done
}
"$PYTHON" "$SHARED_SUITE/make.py" half 3
truncate -s $((16 * 18 * 64 * 128)) half  # whole blocks of q4_0, too
"$PYTHON" "$SHARED_SUITE/make.py" single 3 float32
both half --raw f16:2LTHD:2,3,?,8,64
both half --raw bf16:L2HTD:2,2,8,?,64
both half --raw f16:2LHDT:2,3,8,64,?
both half --raw f16:2LCT:2,3,512,?
both half --raw q4_0:2LTC:2,16,?,1024
both single --raw f32:2LTHD:2,3,?,8,64
both half --from opaque
"$PYTHON" "$SCRIPTS/make/llama_state.py" state --layers 2 --tokens 64 --kv-heads 2 --head-dim 32 --transposed > /dev/null 2>&1
both state
both state --kv-heads 2
mkdir tree
head -c 4096 /dev/zero > tree/zeros
head -c 5000 /dev/urandom > tree/noise
: > tree/empty
cp half tree/
both tree --from opaque
# Damage is detected, not decoded.
head -c 1000 x.kvz > cut.kvz
"$PYTHON" "$SCRIPTS/decoder/decode_kvz.py" cut.kvz z 2>&1 || echo "exit $?"
