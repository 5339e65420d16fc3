# Pages that plug-ins store as frames are read like any cache: one by one, joined, archived, converted; damage is
# reported.
frames="$TESTDATA/frames"
"$KVTOOL" inspect "$frames/page-0.kvf"
"$KVTOOL" inspect "$frames" --order 'page-*.kvf'
"$KVTOOL" inspect "$frames/keys.kvf"
"$KVTOOL" convert -q "$frames" --order 'page-*.kvf' --to npz -o both.npz
"$KVTOOL" convert -q "$frames/page-1.kvf" --to npz -o second.npz
"$KVTOOL" convert -q both.npz --tokens 16-31 --to npz -o half.npz
"$KVTOOL" diff -q half.npz second.npz && echo "the second page is the second half"
"$KVTOOL" compress -q "$frames/keys.kvf" -o keys.kvz
"$KVTOOL" verify -q keys.kvz --against "$frames/keys.kvf"
"$KVTOOL" decompress -q keys.kvz -o keys.kvf
cmp keys.kvf "$frames/keys.kvf"
"$KVTOOL" inspect "$frames" --order '*.kvf' || echo "exit $?"
"$KVTOOL" inspect "$frames" || echo "exit $?"
head -c 700 "$frames/keys.kvf" > short.kvf
"$KVTOOL" inspect short.kvf || echo "exit $?"
(cat "$frames/keys.kvf"; echo) > long.kvf
"$KVTOOL" inspect long.kvf || echo "exit $?"
