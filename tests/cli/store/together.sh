# Many processes at once: all additions succeed, while others collect and extract.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
for n in 1 2 3 4; do "$KVTOOL" convert -q "$state" --to llama-state --tokens "0:$((100 * n))" -o "save$n"; done
"$KVTOOL" store add -q store save1
runs=()
for n in 1 2 3 4; do
  "$KVTOOL" store add -q store "save$n" --name "a$n" & runs+=($!)
  "$KVTOOL" store add -q store "save$n" --name "b$n" & runs+=($!)
  "$KVTOOL" store gc -q store & runs+=($!)
  "$KVTOOL" store get -q store save1 -o "got$n" & runs+=($!)
done
for run in "${runs[@]}"; do wait "$run" || echo "exit $?"; done
for n in 1 2 3 4; do
  cmp "got$n" save1
  for name in "a$n" "b$n"; do "$KVTOOL" store get -q store "$name" -c | cmp - "save$n"; done
done
"$KVTOOL" store gc -q store
"$KVTOOL" store verify -q store
