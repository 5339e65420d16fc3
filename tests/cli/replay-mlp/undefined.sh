# Tokens without a norm have no ratio of norms, and a head with NaN figures is not the worst of a layer.
$PYTHON - << 'PY'
import numpy
rng = numpy.random.default_rng(0)
k, v = (rng.standard_normal((21, 3, 16)).astype("f2") for _ in "kv")
numpy.savez("zero.npz", k_0=0 * k, v_0=0 * v, k_1=k, v_1=v)
v[:, 0] = numpy.nan
numpy.savez("head.npz", k_0=k, v_0=v, k_1=k, v_1=v)
PY
weights="$TESTDATA/golden/infinilm/bin/full_f5_from_fp32_as_fp16.bin"
"$KVTOOL" replay-mlp zero.npz --layout thd --weights "$weights" --json -q > out.json 2> /dev/null
$VALIDATE < out.json
jq -c ".results[0].quality.relative_norms | map([(.k == null), (.v == null)])" out.json
"$KVTOOL" replay-mlp zero.npz --layout thd --weights "$weights" 2> /dev/null | tail -2 | awk '{print $1, $(NF - 1) == "-", $NF == "-"}'
"$KVTOOL" replay-mlp head.npz --layout thd --weights "$weights" 2> /dev/null | tail -2 | awk '{print $1, "worst head", ($4 == 1 || $4 == 2), ($5 != "-")}'
