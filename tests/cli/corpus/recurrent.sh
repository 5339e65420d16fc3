# A state without K and V is still a state: a folder is compressed with it, or fails and names it.
states="$TESTDATA/llamacpp/states"
mkdir slots
cp "$states/synthetic-mamba-recurrent-v050.session.bin" slots/mamba.bin
cp "$states/s260k-v050-holes.seq0.bin" slots/a.bin
echo notes > slots/notes.txt
fails() { local status=0; "$KVTOOL" "$@" || status=$?; echo "exit $status"; }
fails compress slots -o out/ -q
fails compress -r slots --output-dir again -q
fails verify out --against slots
cmp out/mamba.bin.kvz again/slots/mamba.bin.kvz && echo the same
fails analyze slots -q --keep-going
fails inspect slots -q
# An archive of a state without K and V can be verified under any name. Commands that show caches skip it, but fail on a
# damaged archive.
mv out/mamba.bin.kvz out/mamba.archive
fails verify out
cp again/slots/mamba.bin.kvz out/whole.kvz
fails inspect out -q
: > out/empty.kvz; head -c 100 out/a.bin.kvz > out/torn.kvz
fails inspect out -q
fails analyze out -q --keep-going
mkdir more; cp slots/a.bin more; : > more/empty.kvz
"$KVTOOL" compress more -o all/ 2>&1 | sed -n 1p
