# Files of a received store that have the names of future files, or the highest number, do not prevent additions.
state="$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin"
"$KVTOOL" store add -q sound "$state" --name save
head -c 3000 "$state" >other
fresh() { rm -rf s; cp -r sound s; }
works() {
  "$KVTOOL" store add -q s other --from opaque --name first && "$KVTOOL" store gc -q s && "$KVTOOL" store add -q s other --from opaque --name second &&
    "$KVTOOL" store verify -q s --repair && "$KVTOOL" store gc -q s && "$KVTOOL" store get -q s first -c | cmp - other &&
    "$KVTOOL" store get -q s save -c | cmp - "$state" && echo "$1: added"
}
fresh; for n in 2 3 4; do ln -s ../../nothing "s/packs/0000000$n.pack"; done; works "links for packs"
fresh; for n in 2 3 4; do ln -s ../../nothing "s/states/0000000$n.kvs"; done; works "links for records"
fresh; for n in 2 3 4; do mkdir "s/packs/0000000$n.pack" "s/states/0000000$n.kvs"; done; works "folders"
fresh; for n in 2 3; do mkfifo "s/packs/0000000$n.pack"; done; works "FIFOs"
[ ! -e nothing ]
for n in 4503599627370496 9007199254740989 9007199254740990; do
  fresh; cp s/packs/00000001.pack "s/packs/$n.pack"; works "pack $n"
  fresh; echo x >"s/packs/$n.pack"; works "no pack $n"
  fresh; ln -s ../../nothing "s/states/$n.kvs"; works "link $n"
done
