# A state with one flipped bit, or one other token id, is neither equal to the original nor contained in it.
state="$TESTDATA/llamacpp/states/s260k-v050-f16.seq0.bin"
flip() { printf '\125' | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }
mkdir ab hd ok
cp "$state" ab/good && cp "$state" ab/flipped && flip ab/flipped 9000
cp "$state" hd/good && cp "$state" hd/other && flip hd/other 20
"$KVTOOL" convert -q "$state" --to llama-state --tokens 0:300 -o ok/start
cp "$state" ok/one && cp "$state" ok/two && flip ok/two 9000
for folder in ab hd ok; do
  "$KVTOOL" advise $folder --json -q | jq -c '.results[0] | .contained_states, .alike_states, (.states | sort_by(.name) | .[] | [.name, .kinship, .kin])'
done
"$KVTOOL" advise --no-progress ab --deterministic | sed -n '2,6p'
