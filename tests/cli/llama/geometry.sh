cd "$TESTDATA/llamacpp/states"
for flags in '--kv-heads 4' '--head-dim 8' '--model ../s260k-header.gguf'; do
  "$KVTOOL" inspect $flags s260k-v050-holes.seq0.bin | sed -n 4p
done
"$KVTOOL" inspect --kv-heads 5 s260k-v050-holes.seq0.bin || echo "exit $?"
"$KVTOOL" inspect --model ../kjv3m-header.gguf s260k-v050-holes.seq0.bin || echo "exit $?"
"$KVTOOL" inspect --model s260k-v050-holes.seq0.bin s260k-v050-holes.seq0.bin || echo "exit $?"
