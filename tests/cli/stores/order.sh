# Pages are joined in the order that the caller gives, by a pattern or a list, and never without one.
page="$TESTDATA/golden/blend/sglang_hicache/0123abcd_org-model_0_1.bin"
raw=hicache:bf16:L=2,H=2,D=8
mkdir pages
cp "$page" pages/b.bin
head -c 512 /dev/zero > pages/a.bin
"$KVTOOL" inspect pages --raw $raw || echo "exit $?"
"$KVTOOL" inspect pages --raw $raw --order '*.bin'
printf 'b.bin\na\n' > order.txt
"$KVTOOL" convert -q pages --raw $raw --order order.txt --to npz -o ba.npz
"$KVTOOL" convert -q pages --raw $raw --order '*' --tokens 4:8 --to npz -o b.npz
"$KVTOOL" convert -q "$page" --raw $raw --to npz -o page.npz
"$PYTHON" "$SHARED_SUITE/compare_pages.py"
for order in missing.txt '*.pt'; do "$KVTOOL" inspect pages --raw $raw --order "$order" || echo "exit $?"; done
printf 'a\na.bin\n' > twice.txt
printf 'c\n' > unknown.txt
: > empty.txt
for order in twice unknown empty; do "$KVTOOL" inspect pages --raw $raw --order $order.txt || echo "exit $?"; done
"$KVTOOL" inspect pages/a.bin --raw $raw --order order.txt || echo "exit $?"
head -c 8 pages/a.bin >> pages/a.bin
"$KVTOOL" inspect pages --raw $raw --order '*' || echo "exit $?"
# A joined folder is restored from its archive as that folder.
head -c 512 /dev/zero > pages/a.bin
"$KVTOOL" compress -q pages --raw $raw --order order.txt -o pages.kvz
"$KVTOOL" decompress -q pages.kvz -o restored
diff -r pages restored
"$KVTOOL" inspect pages.kvz | grep "layers"
