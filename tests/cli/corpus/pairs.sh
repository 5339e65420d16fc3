# Archives in a folder are compared with the files of the same names in another folder.
states="$TESTDATA/llamacpp/states"
mkdir -p in/deep
cp "$states/s260k-v050-holes.seq0.bin" in/a.bin
cp "$states/s260k-v050-shifted.seq0.bin" in/deep/b.bin
"$KVTOOL" compress in -o out/ -q
fails() { local status=0; "$KVTOOL" "$@" || status=$?; echo "exit $status"; }
fails verify out --against in
cd out; fails verify a.bin.kvz deep/b.bin.kvz --against ../in; fails verify 'a*.kvz' --against ../in/a.bin; cd ..
cp in/a.bin in/deep/b.bin; fails verify out --against in
rm in/a.bin; fails verify out --against in --keep-going
fails verify out --against in/deep/b.bin
# A store takes all states in a folder, unless their names would make them versions of one.
fails store add store in out -q
"$KVTOOL" store list store --json | jq -c '[.results[0].states[].name]'
mkdir same same/x same/y; cp in/deep/b.bin same/x; cp in/deep/b.bin same/y
fails store add store same
# If one of several fails, the message says how to continue.
fails store add store missing in -q
fails verify missing out/a.bin.kvz
fails verify out/a.bin.kvz missing
