# Profiles and transforms are recognised, checked and shown, intact and damaged.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
flags="--kv-heads 4 --head-dim 8"
"$KVTOOL" train "$state" $flags --name s260k -o model.kvp -q
"$KVTOOL" train "$state" --transform kvtc $flags --rope-base 10000 --rope-style gptj --name s260k --ratio 8 -o model.kvx -q
for file in model.kvp model.kvx; do
  "$KVTOOL" verify $file && "$KVTOOL" doctor $file --json | $VALIDATE
  "$KVTOOL" inspect $file --json | $VALIDATE
  "$KVTOOL" decompress $file || true
  # One byte in the middle is changed; then half of the file is cut off.
  "$PYTHON" - $file <<'END'
import pathlib, sys
whole = bytearray(pathlib.Path(sys.argv[1]).read_bytes())
pathlib.Path("cut-" + sys.argv[1]).write_bytes(whole[: len(whole) // 2])
whole[len(whole) // 2] ^= 1
pathlib.Path("bad-" + sys.argv[1]).write_bytes(whole)
END
  for damaged in bad-$file cut-$file; do
    for command in inspect doctor verify; do
      "$KVTOOL" $command $damaged 2>&1 || echo "exit $?"
    done
  done
done
"$KVTOOL" inspect model.kvx
"$KVTOOL" inspect model.kvx --json | jq -c '.results[0].transform | .model, (.k.plans[0] | .held_out_error |= (. * 1e6 | round / 1e6))'
