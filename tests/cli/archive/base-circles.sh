# Archives that refer to each other in circles are refused promptly; so is a pipe in place of a reference.
"$PYTHON" "$SHARED_SUITE/circles.py" 8
bases=()
for i in 0 1 2 3 4 5 6 7; do
  "$KVTOOL" convert -q --raw f16:2LTHD:2,1,?,2,32 cache$i.f16 --to safetensors -o cache$i.st
  bases+=(--base cache$i.st)
done
"$KVTOOL" compress -q --raw f16:2LTHD:2,1,?,2,32 all.f16 "${bases[@]}" -o all.kvz
[ "$("$KVTOOL" inspect all.kvz | grep -c 'cache[0-7].st')" -ge 1 ] && "$KVTOOL" verify -q all.kvz
cp cache0.st kept.st
for i in 0 1 2 3 4 5 6 7; do cp -f all.kvz cache$i.st; done
"$KVTOOL" verify -q all.kvz 2> said || echo "exit $?"
"$KVTOOL" doctor -q all.kvz 2> said || echo "exit $?"
rm cache0.st && mkfifo cache0.st
"$KVTOOL" verify -q all.kvz 2> said || echo "exit $?"
rm cache?.st && mkfifo cache0.st
"$KVTOOL" verify all.kvz 2> said || echo "exit $?"
grep -o "needs 'cache0.st'" said
