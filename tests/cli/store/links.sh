# Links inside a received store are not followed: no verb reads, writes or removes anything outside.
state="$TESTDATA/llamacpp/states/s260k-v050-holes.seq0.bin"
"$KVTOOL" store add -q sound "$state" --name save
"$KVTOOL" store add -q victim "$state" --name theirs
touch victim/packs/.x.tmp victim/packs/.00000009.pack.kvtool-0.tmp victim/packs/00000077.pack victim/states/00000077.kvs
ls -lAR --time-style=full-iso victim >before; find victim -type f -exec sha256sum {} + | sort >>before
fresh() { rm -rf s; cp -r sound s; }
verbs=("list s" "stats s" "verify s" "get s save -o out -f" "gc s" "prune s --keep-last 0 -f" "add s $state --name other" "verify s --repair"
  "gc s" "watch --slots slots --store s --settle-ms 10 --once")
mkdir slots; cp "$state" slots/chat
tries() {
  for verb in "${verbs[@]}"; do
    timeout 20 "$KVTOOL" store $verb >/dev/null 2>said || { status=$?; [ $status -lt 6 ] || echo "$1: '$verb': exit $status"; }
    { ls -lAR --time-style=full-iso victim; find victim -type f -exec sha256sum {} + | sort; } >after
    cmp -s before after || { echo "$1: '$verb' changed what is outside:"; diff before after || true; exit 1; }
  done
}
says() { timeout 20 "$KVTOOL" store $2 >/dev/null 2>said && echo "$1: accepted" || echo "$1: exit $?: $(cat said)"; }
for part in packs states; do
  fresh; rm -r s/$part; ln -s ../victim/$part s/$part; says "$part" "list s"; says "$part" "gc s"; tries "$part"
  fresh; rm -r s/$part; ln -s "$PWD/victim/$part" s/$part; tries "$part, from the root"
  fresh; rm -r s/$part; touch s/$part; says "$part as a file" "list s"; tries "$part as a file"
  fresh; rm -r s/$part; says "no $part" "list s"; "$KVTOOL" store verify s --repair >/dev/null 2>&1 || true; "$KVTOOL" store list s >/dev/null
done
fresh; ln -sf ../victim/index.sqlite s/index.sqlite; says "index" "list s"; tries "index"
fresh; rm s/index.sqlite; ln -s ../nothing s/index.sqlite; says "index of nothing" "list s"; tries "index of nothing"; [ ! -e nothing ]
fresh; rm s/index.sqlite; mkfifo s/index.sqlite; says "index as a FIFO" "list s"; tries "index as a FIFO"
fresh; ln -f victim/index.sqlite s/index.sqlite; ls -lAR --time-style=full-iso victim >before; find victim -type f -exec sha256sum {} + | sort >>before
says "index with two names" "add s slots/chat"; rm s/index.sqlite; ls -lAR --time-style=full-iso victim >before; find victim -type f -exec sha256sum {} + | sort >>before
fresh; ln -s ../victim/index.sqlite s/index.sqlite.new; tries "new index"
fresh; ln -sf ../victim/packs/.x.tmp s/reserve; tries "reserve"; fresh; rm s/reserve; mkdir s/reserve; tries "reserve as a folder"
fresh; rm s/reserve; mkfifo s/reserve; tries "reserve as a FIFO"; fresh; rm s/reserve; tries "no reserve"
fresh; ln -s ../victim/kvtool-store s/kvtool-store.x; ln -sf ../victim/kvtool-store s/kvtool-store; says "marker" "list s"; tries "marker"
fresh; rm s/kvtool-store; mkfifo s/kvtool-store; says "marker as a FIFO" "list s"
fresh; ln -sf ../../victim/packs/00000001.pack s/packs/00000001.pack; says "pack" "get s save -o out -f"; tries "pack"
fresh; rm s/packs/*; mkfifo s/packs/00000001.pack; says "pack as a FIFO" "get s save -o out -f"; tries "pack as a FIFO"
fresh; ln -sf ../../victim/states/00000001.kvs s/states/00000001.kvs; says "record" "get s save -o out -f"; tries "record"
fresh; rm s/states/*; mkfifo s/states/00000001.kvs; says "record as a FIFO" "get s save -o out -f"; tries "record as a FIFO"
# The links have hidden names, or names that the store will use next.
fresh; for n in 2 3 4; do ln -s ../../victim/packs/.x.tmp "s/packs/0000000$n.pack"; ln -s ../../victim/packs/.x.tmp "s/states/0000000$n.kvs"; done; tries "numbers to come"
fresh; ln -s ../../victim "s/packs/.00000002.pack.kvtool-0.tmp"; ln -s ../../victim/packs "s/states/.tmp"; tries "hidden names"
# A store that is itself a link is the user's choice.
fresh; ln -s s whole; "$KVTOOL" store add -q whole slots/chat && "$KVTOOL" store verify -q whole && echo "the store itself may be a link"
