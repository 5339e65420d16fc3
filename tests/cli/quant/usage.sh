# These caches and types cannot be replayed, and the messages say why.
quant() { status=0; "$KVTOOL" replay-quant "$TESTDATA/trace/kjv3m.seq0.bin" --trace "$TESTDATA/trace/kjv3m" "$@" > /dev/null || status=$?; echo "$status"; }
quant --k q9_0
quant --v q8_0,
quant --advise
quant --max-kl 0.1
quant --bytes-per-token 100
quant --plan-out plan.json
quant --advise --max-kl 0.1
quant --prompt-tokens 96
quant --rounding up
quant --k kvquant4
quant --plan plan.json --k q8_0
"$KVTOOL" replay-quant "$TESTDATA/trace/kjv3m.seq0.bin" || echo $?
# A trace of probabilities alone is refused: they cannot be recomputed for other keys.
$PYTHON -c "
import numpy as np
a = np.load('$TESTDATA/trace/kjv3m-L0-A.npy'); np.savez('p.npz', **{'a.0': a})"
"$KVTOOL" replay-quant "$TESTDATA/trace/kjv3m.seq0.bin" --trace p.npz --kv-heads 2 || echo $?
# A type has no groups for some head sizes.
$PYTHON "$SHARED_SUITE/../runs/made_run.py" "$TESTDATA" run
"$KVTOOL" replay-quant run --k quanto4 --v f16 || echo $?
"$KVTOOL" replay-quant run --k f16 --v kivi4 || echo $?
