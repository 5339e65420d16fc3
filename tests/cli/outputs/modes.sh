# An output with an input's contents may be read by those who could read the input, as with gzip and zstd.
umask 022
mode() { stat -c '%a' "$1"; }
"$PYTHON" "$SHARED_SUITE/../archive/make.py" a.bin 0.25
raw=f16:2LTHD:2,2,?,8,64
for wanted in 600 640 644 660 755 444; do
  cp -f a.bin b.bin
  chmod $wanted b.bin
  "$KVTOOL" compress -q -f --from opaque b.bin -o b.kvz
  "$KVTOOL" decompress -q -f b.kvz -o c.bin
  echo "$wanted: archive $(mode b.kvz), restored $(mode c.bin)"
  rm -f b.bin b.kvz c.bin
done
chmod 600 a.bin
"$KVTOOL" convert -q --raw $raw a.bin --to npz -o a.npz
"$KVTOOL" frame encode -q --dtype f16 a.bin -o a.gear
"$KVTOOL" convert -q --raw $raw a.bin --to mnn-dump -o dump
"$KVTOOL" compress -q --raw $raw a.bin
"$KVTOOL" decompress -q a.bin.kvz --to npz -o part.npz
echo "npz $(mode a.npz), gear $(mode a.gear), part $(mode part.npz), dump $(mode dump) $(mode "$(find dump -name 'k_*' | sed -n 1p)")"
"$KVTOOL" inspect -q a.npz --json-out report.json > /dev/null
"$KVTOOL" compress -q --from opaque -c a.bin > piped.kvz
"$KVTOOL" decompress -q -o from-pipe.bin - < a.bin.kvz
cp a.bin b.bin && chmod 644 b.bin
"$KVTOOL" train -q b.bin a.bin --raw $raw --name both -o both.kvp
"$KVTOOL" train -q b.bin --raw $raw --name one -o one.kvp
echo "profile of both $(mode both.kvp), of the public one $(mode one.kvp)"
echo "report $(mode report.json), from a pipe $(mode from-pipe.bin)"
# An archive of a folder gets the permissions that all its files share.
mkdir tree && cp a.bin tree/private && echo x > tree/public
"$KVTOOL" compress -q --from opaque tree
"$KVTOOL" decompress -q tree.kvz -o back
echo "tree $(mode tree.kvz), back $(mode back) $(mode back/public)"
chmod 640 tree/private tree/public && chmod 755 tree/public
"$KVTOOL" compress -q -f --from opaque tree
rm -r back
"$KVTOOL" decompress -q tree.kvz -o back
echo "tree $(mode tree.kvz), back $(mode back) $(mode back/private) $(mode back/public)"
if [ "$(id -u)" = 0 ]; then
  chown 12345:23456 a.bin
  "$KVTOOL" compress -q -f --from opaque a.bin
  "$KVTOOL" decompress -q -f a.bin.kvz -o owned.bin
  [ "$(stat -c %u:%g owned.bin)" = 12345:23456 ]
fi
