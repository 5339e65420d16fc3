# -o FOLDER/ takes the results of many inputs under their own names; --output-dir keeps the folders of the inputs.
states="$TESTDATA/llamacpp/states"
mkdir -p in/deep other
cp "$states/s260k-v050-holes.seq0.bin" in/a.bin
cp "$states/s260k-v050-shifted.seq0.bin" in/b.bin
cp in/b.bin in/deep/c.bin; cp in/b.bin other/a.bin
fails() { local status=0; "$KVTOOL" "$@" || status=$?; echo "exit $status"; }
"$KVTOOL" compress in/a.bin in/b.bin -o out/ -q && ls out
"$KVTOOL" decompress out/*.kvz -o back/ -q && cmp back/a.bin in/a.bin && cmp back/b.bin in/b.bin && echo the same
"$KVTOOL" convert in/a.bin in/deep/c.bin --kv-heads 4 --to npz -o arrays/ -q && ls arrays
"$KVTOOL" verify out/*.kvz --against in
find in -name '?.bin' | sort | "$KVTOOL" compress --files-from - -o listed/ -q && ls listed
"$KVTOOL" compress -r in/deep -o tree/ -q && find tree -type f
# Equal names collide before anything is written.
fails compress in/a.bin other/a.bin -o both/; test -e both || echo nothing is written
"$KVTOOL" compress in/a.bin other/a.bin --output-dir both -q && find both -type f | sort
fails compress in/a.bin in/b.bin -o x
# The results of a folder's caches need a folder, so a new name without an extension is taken for one.
"$KVTOOL" compress in -o small -q && find small -type f | sort
fails compress in -o v1.2
fails compress in -o other/a.bin
