# An option that holds a list takes one word, so that inputs may follow it.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
flags="--kv-heads 4 --head-dim 8"
"$KVTOOL" bench --rounds 1 --levels compat,fast "$state" | sed -e 's/ .*//' 
"$KVTOOL" compress "$state" -q -o base.kvz
"$KVTOOL" compress --base "$state" "$state" -q -o twin.kvz && "$KVTOOL" verify -q --base "$state" twin.kvz && echo verified
"$KVTOOL" replay quant --prompt-tokens 64 $flags --trace "$TESTDATA/trace/s260k" --k q8_0 --v q8_0,q4_0 "$TESTDATA/trace/s260k.seq0.bin" -q --json |
  jq -c '[.results[0].runs[] | [.k, .v]]'
"$KVTOOL" verify --base a.bin b.bin twin.kvz || echo "exit $?"
"$KVTOOL" bench --levels compat fast "$state" || echo "exit $?"
"$KVTOOL" doctor "$state" --json-out said.json two.json three.json --indent || echo "exit $?"
true
