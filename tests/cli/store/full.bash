# Sourced by full.sh where mounting is allowed. Exit status 9 means that the program misbehaved.
mkdir tiny
mount -t tmpfs -o size=800k none tiny 2> /dev/null || exit 77
fails() { echo "$*"; [ ! -s said ] || cat said; df -k tiny; ls -lR tiny; exit 9; }
fill() { rm -f tiny/rest; cat /dev/zero > tiny/rest 2> said || true; [ "$(df -k --output=avail tiny | tail -1 | tr -d ' ')" = 0 ] || fails "not full"; }
"$KVTOOL" store add -q tiny/st a.bin
for n in 1 2 3; do "$KVTOOL" convert -q a.bin --to llama-state --tokens "0:$((100 * n))" -o "save$n"; done
fill
before=$(ls tiny/st/packs tiny/st/states)
status=0
"$KVTOOL" store add tiny/st b.bin --level fast 2> said || status=$?
[ $status = 4 ] && grep -q 'adding the state takes about [0-9]* bytes of the disk, and 0 are free' said || fails "exit $status"
[ "$(ls tiny/st/packs tiny/st/states)" = "$before" ] || fails "left behind"
cp -a tiny/st kept
reset() { rm -rf tiny/st tiny/rest; cp -a kept tiny/st; fill; }
for verb in "prune tiny/st --keep-last 0 -f" "remove tiny/st a.bin" "verify tiny/st --repair" "gc tiny/st"; do
  reset
  "$KVTOOL" store $verb > said 2>&1 || fails "$verb: exit $?"
done
"$KVTOOL" store get -q tiny/st a.bin -c | cmp - a.bin || fails "changed"
# Adds states until nothing fits: every listed state is restored, and can be pruned.
rm -rf tiny/*
n=0
while [ $n -lt 40 ]; do
  n=$((n + 1))
  head -c 30000 /dev/urandom > "r$n"
  "$KVTOOL" store add -q tiny/st "r$n" --from opaque 2> said || break
done
[ $n -lt 40 ] || fails "never full"
"$KVTOOL" store verify -q tiny/st || fails "verify"
[ "$("$KVTOOL" store verify tiny/st --json -q | jq '.results[0] | .leftover_files + (.unlisted | length)')" = 0 ] || fails "leftovers"
"$KVTOOL" store get -q tiny/st r1 -c | cmp - r1 || fails "changed"
fill
"$KVTOOL" store remove -q tiny/st r1 2> said || fails "remove: exit $?"
rm tiny/rest
"$KVTOOL" store add -q tiny/st r1 --from opaque 2> said || fails "no room after a removal"
exit 0
