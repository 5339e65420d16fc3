# The quantised cache is written as a state of llama.cpp and read again, rotated or not.
quant() { "$KVTOOL" replay-quant "$TESTDATA/trace/kjv3m.seq0.bin" --trace "$TESTDATA/trace/kjv3m" -q "$@"; }
full=$(wc -c < "$TESTDATA/trace/kjv3m.seq0.bin")
quant --k q8_0 --v q5_1 --out small.bin --json > quant.json 2> /dev/null
$VALIDATE < quant.json
jq -c .results[0].out quant.json
"$KVTOOL" inspect small.bin --kv-heads 2 --json -q | jq -c '.results[0] | [.layers[0] | .k.dtype, .v.dtype]'
$PYTHON -c "
import os
print(os.path.getsize('small.bin') < 0.55 * $full)"
# After the inverse rotation the state equals the cache up to the quantisation error; read as unrotated it does not.
"$KVTOOL" convert "$TESTDATA/trace/kjv3m.seq0.bin" --kv-heads 2 --dtype f32 --to npz -o full.npz -q
compare() {
  "$KVTOOL" convert "$1" --kv-heads 2 --rotated "$2" --dtype f32 --to npz -o back.npz -f -q
  $PYTHON -c "
import numpy as np
full, back = np.load('full.npz'), np.load('back.npz')
error = [np.linalg.norm(back[n] - full[n]) / np.linalg.norm(full[n]) for n in full.files if full[n].ndim == 3]
print(len(error), max(error) < 0.05)"
}
compare small.bin yes
compare small.bin no
quant --k q8_0 --v q5_1 --hadamard no --out plain.bin > /dev/null 2>&1
compare plain.bin no
echo '{"schema":"kvtool.quant-plan/1","layers":[{"layer":1,"k":"q4_0","v":"iq4_nl"}]}' > plan.json
quant --plan plan.json --out mixed.bin > /dev/null 2>&1
"$KVTOOL" inspect mixed.bin --kv-heads 2 --json -q | jq -c '.results[0] | [.layers[] | [.k.dtype, .v.dtype]]'
for flags in "--k q8_0 --v fp8_e4m3" "--k q8_0,q4_0 --v q8_0" "--k q8_0 --v q8_0 --keep-last 4" "--k q8_0 --v q8_0 --target-version b1"; do
  status=0; quant $flags --out no.bin > /dev/null || status=$?; echo $status
done
