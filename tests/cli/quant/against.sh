# States that engines quantised are compared with the 16-bit state of the same text; type and rotation are found from
# the first layer.
against() { status=0; "$KVTOOL" replay-quant "$TESTDATA/llamacpp/states/$1" --against "$TESTDATA/trace/kjv3m.seq0.bin" --kv-heads 2 "${@:2}" || status=$?; echo $status; }
for state in kjv3m-b8352-q8_0.seq0.bin kjv3m-v050-iq4_nl-rotated.session.bin kjv3m-v050-q4_0-rotated.seq0.bin kjv3m-v050-q4_1-unrotated.seq0.bin; do
  against $state | sed 's/ [0-9.]*% with the next/ X% with the next/'
done
against kjv3m-v050-q5_1-rotated.seq0.bin --json > origin.json
head -n -1 origin.json | $VALIDATE
head -n -1 origin.json | jq -c '.results[0] | .named, .k.tried[0].hadamard, .v.type, (.k.layers | length), [.k, .v | .layers[0].equal_codes_fraction > 0.98]'
# A state that kvtool wrote is matched bit for bit, and a cache of another text is not matched.
"$KVTOOL" replay-quant "$TESTDATA/trace/kjv3m.seq0.bin" --trace "$TESTDATA/trace/kjv3m" --k q8_0 --v q4_0 --rounding ref --hadamard no --out own.bin -q > /dev/null 2>&1
"$KVTOOL" replay-quant own.bin --against "$TESTDATA/trace/kjv3m.seq0.bin" --kv-heads 2 --json | jq -c '.results[0] | .k.tried[0].rounding, .k.layers[3].equal_blocks_fraction, .v.layers[3].equal_blocks_fraction, .k.tried[0].hadamard'
$PYTHON -c "
import numpy as np
random = np.random.default_rng(1)
np.savez('other.npz', **{f'{s}_{l}': random.standard_normal((96, 2, 64)).astype('f2') for l in range(4) for s in 'kv'})"
"$KVTOOL" replay-quant own.bin --against other.npz --kv-heads 2 -q || echo $?
# These caches cannot be compared.
against kjv3m-v050-q4_0-rotated.seq0.bin --k q8_0
"$KVTOOL" replay-quant own.bin --against own.bin --kv-heads 2 || echo $?
"$KVTOOL" replay-quant other.npz --against "$TESTDATA/trace/kjv3m.seq0.bin" --kv-heads 2 || echo $?
"$KVTOOL" replay-quant own.bin --against "$TESTDATA/trace/kjv3m.seq0.bin" || echo $?
