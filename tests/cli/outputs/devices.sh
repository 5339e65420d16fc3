# Devices, FIFOs and links are written through, never replaced; other special files are refused as outputs.
"$PYTHON" "$SHARED_SUITE/../archive/make.py" a.bin 1
"$KVTOOL" compress -q --from opaque a.bin
kind() { stat -c '%F' "$1"; }
# Device nodes are our own if that is permitted, else those of the system, which only root could replace.
null=/dev/null full=/dev/full
mknod n c 1 3 2>&- && mknod u c 1 7 2>&- && echo > n 2>&- && null=n full=u || true
"$KVTOOL" inspect -q --json-out $null a.bin.kvz > /dev/null
for force in "" -f; do
  "$KVTOOL" compress -q --from opaque a.bin -o $null $force
  "$KVTOOL" decompress -q a.bin.kvz -o $null $force
  "$KVTOOL" convert -q --raw f16:2LTHD:2,2,?,8,64 a.bin --to npz -o $null $force
  status=0
  "$KVTOOL" compress -q --from opaque a.bin -o $full $force 2> said || status=$?
  [ $status = 4 ] && grep -q 'No space left on device' said && [ "$(grep -vc ^hint: said)" = 1 ]
done
# The gate's further outputs cannot be placed next to a device.
"$KVTOOL" gate "$TESTDATA/gate/pass.json" --case design_store -q -f -o $null
for name in summary.md cases.jsonl; do [ ! -e "$(dirname $null)/$name" ]; done
[ "$(kind $null)" = "character special file" ] && [ "$(kind $full)" = "character special file" ]
mkfifo pipe
for force in "" -f; do
  cat pipe > got &
  "$KVTOOL" decompress -q a.bin.kvz -o pipe $force
  wait $!
  cmp got a.bin
  cat pipe > got.npz &
  "$KVTOOL" convert -q --raw f16:2LTHD:2,2,?,8,64 a.bin --to npz -o pipe $force
  wait $!
  "$KVTOOL" convert -q -f --raw f16:2LTHD:2,2,?,8,64 a.bin --to npz -o want.npz
  cmp got.npz want.npz
done
[ "$(kind pipe)" = fifo ]
for name in - /dev/stdout /dev/fd/1; do
  "$KVTOOL" decompress -q a.bin.kvz -o $name | cmp - a.bin
  "$KVTOOL" decompress -q a.bin.kvz -o $name > got
  cmp got a.bin
done
"$KVTOOL" decompress -q a.bin.kvz -o /dev/fd/7 7> got
cmp got a.bin
# A link stays; the file that it points to is replaced.
echo old > target
ln -s target link
"$KVTOOL" decompress -q a.bin.kvz -o link && exit 9 || [ $? = 4 ]
"$KVTOOL" decompress -q a.bin.kvz -o link -f
[ -L link ] && cmp target a.bin
ln -s nowhere dangling
for force in "" -f; do
  "$KVTOOL" decompress -q a.bin.kvz -o dangling $force || echo "dangling $force: exit $?"
done
[ -L dangling ] && [ ! -e nowhere ]
mkdir folder
"$KVTOOL" decompress -q a.bin.kvz -o folder && cmp folder/a.bin a.bin
for force in "" -f; do
  "$KVTOOL" convert -q --raw f16:2LTHD:2,2,?,8,64 a.bin --to npy -o folder $force || echo "folder $force: exit $?"
done
[ -d folder ]
if mknod disk b 7 200 2>&-; then
  for force in "" -f; do
    status=0
    "$KVTOOL" decompress -q a.bin.kvz -o disk $force 2> said || status=$?
    [ $status = 2 ] && grep -q 'block device' said
    status=0
    "$KVTOOL" inspect -q a.bin.kvz --json-out disk > /dev/null 2> said || status=$?
    [ $status = 2 ]
  done
  [ "$(kind disk)" = "block special file" ]
fi
