# Tensors that share bytes, as expand() makes them, are archived as bytes, with a note.
"$PYTHON" "$SHARED_SUITE/make.py" a.bin 1
"$KVTOOL" convert --raw f16:2LTHD:2,1,?,8,64 a.bin --to torch-dict -o apart.pt -qq
"$PYTHON" "$SHARED_SUITE/share_bytes.py" apart.pt shared.pt
"$KVTOOL" compress shared.pt 2>&1 | grep opaque
"$KVTOOL" decompress shared.pt.kvz -o back.pt -q && cmp back.pt shared.pt && echo "byte for byte"
"$KVTOOL" store add store shared.pt 2>&1 | grep opaque
"$KVTOOL" store get store shared.pt -o again.pt -q && cmp again.pt shared.pt && echo "from a store"
