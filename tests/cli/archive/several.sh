# Many inputs go to one output folder, and the worst exit status counts; --keep-going continues after a failure.
mkdir in
head -c 2000 /dev/zero > in/a.bin
echo hello > in/b.bin
"$KVTOOL" compress -q --from opaque in/a.bin in/b.bin --output-dir out -k
find out -type f | sort
"$KVTOOL" compress -q --from opaque in/a.bin in/b.bin -o x || echo "exit $?"
"$KVTOOL" compress -q --from opaque in/a.bin in/a.bin || echo "exit $?"
"$KVTOOL" compress -q --from opaque in/a.bin missing in/b.bin || echo "exit $?"
ls in
"$KVTOOL" compress -q --from opaque in/b.bin in/a.bin --keep-going || echo "exit $?"
ls in
"$KVTOOL" verify in/a.bin.kvz in/a.bin in/b.bin.kvz || echo "exit $?"
"$KVTOOL" verify --keep-going in/a.bin.kvz in/a.bin in/b.bin.kvz || echo "exit $?"
"$KVTOOL" decompress -q in/a.bin.kvz in/b.bin.kvz --output-dir back
diff -r back/in/a.bin in/a.bin
"$KVTOOL" verify in/b.bin.kvz --against in/a.bin || echo "exit $?"
"$KVTOOL" compress in/a.bin || echo "exit $?"
"$KVTOOL" decompress in/a.bin || echo "exit $?"
"$KVTOOL" compress --level best in/a.bin || echo "exit $?"
