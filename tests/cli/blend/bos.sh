# Chunks as engines run them, with a token in front: the token goes, its shift is turned back.
$PYTHON "$SHARED_SUITE/make.py" "$TESTDATA/golden/blend/replay"
run() { "$KVTOOL" replay-blend --full "$TESTDATA/golden/blend/replay/full.safetensors" --layout thd --rope-base 1e4 --json "$@" | jq -c '.results[] | .selection.indices, .warnings'; }
run --chunks "$TESTDATA"/golden/blend/replay/chunk?.safetensors
run --chunks bos?.npz --old-layout thd --bos drop
run --chunks bos?.npz --old-layout thd || echo "exit ${PIPESTATUS[0]}"
# The wrong word on where keys stand is found out by layer 0.
run --chunks "$TESTDATA"/golden/blend/replay/chunk?.safetensors --old-rope global
run --chunks bos?.npz --old-layout thd --bos drop --rope-style gptj
