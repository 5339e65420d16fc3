# A folder that is not a cache itself stands for the caches in it, whatever else it contains.
states="$TESTDATA/llamacpp/states"
mkdir slots slots/deep outside empty
cp "$states/s260k-v050-holes.seq0.bin" slots/a.bin
cp "$states/s260k-v050-shifted.seq0.bin" slots/deep/a.bin
cp "$TESTDATA/references/three.kvz" slots/old.kvz
cp "$states/s260k-v050-shifted.seq0.bin" outside/secret.bin
echo notes > slots/notes.txt
cp "$TESTDATA"/trace/kjv3m-L0-?.npy slots
names() { jq -c '[.results[].inputs[].file]'; }
"$KVTOOL" inspect slots/ --json | names
"$KVTOOL" doctor slots --json | jq -c '[.results[].kind]'
"$KVTOOL" analyze slots -q --json | names
"$KVTOOL" verify slots -q && echo intact
# Results go to the folder that the command line names, under the inputs' names, and replace nothing.
fails() { local status=0; "$KVTOOL" "$@" 2> err || status=$?; grep -v 'input' err; echo "exit $status"; }
fails compress slots
fails compress slots -o out.kvz
"$KVTOOL" compress slots -o out/ -q && find out -type f | sort
fails compress slots -o out/ -q
"$KVTOOL" decompress out -o back/ -q
cmp back/a.bin slots/a.bin && cmp back/deep/a.bin slots/deep/a.bin && echo the same
"$KVTOOL" compress slots/a.bin -o one/ -q && find one -type f
# If there is nothing to do, the message says what would help.
fails inspect empty
fails verify outside
"$KVTOOL" store add states slots/a.bin -q; fails analyze states
# Links, loops and pipes are skipped, and hostile names do no harm.
mkdir hostile; cp slots/a.bin "hostile/$(printf 'a\n\033[31mb.bin')"; cp slots/a.bin hostile/b.bin
ln -s ../outside/secret.bin hostile/link.bin; ln -s .. hostile/up; mkfifo hostile/pipe
timeout 20 "$KVTOOL" inspect hostile --json 2> err | names; cat err | tr -d '*'
# Pages may belong to one cache, and a folder that is read with --from is one input.
fails inspect "$TESTDATA/frames" | sed "s,$TESTDATA,DATA,"
"$KVTOOL" compress slots --from opaque -o whole.kvz -q && "$KVTOOL" decompress whole.kvz -o again -q && diff -r slots again && echo one
# An archive whose contents are destroyed counts as damaged: commands that verify and restore name it and fail.
mkdir kept; cp slots/old.kvz kept/good.kvz; : > kept/empty.kvz; head -c 4096 /dev/zero > kept/zeros.kvz
fails verify kept
fails verify kept --keep-going
fails decompress kept -o restored/
