# Chunks as engines run them, with a BOS token in front: the token is dropped and its shift of positions undone.
$PYTHON "$SHARED_SUITE/make.py" "$TESTDATA/golden/blend/replay"
run() { "$KVTOOL" replay-blend --full "$TESTDATA/golden/blend/replay/full.safetensors" --layout thd --rope-base 1e4 --json "$@" | jq -c '.results[] | .selection.indices, .warnings'; }
run --chunks "$TESTDATA"/golden/blend/replay/chunk?.safetensors
run --chunks bos?.npz --old-layout thd --bos drop
run --chunks bos?.npz --old-layout thd || echo "exit ${PIPESTATUS[0]}"
# Layer 0 reveals a wrong statement about the positions of keys.
run --chunks "$TESTDATA"/golden/blend/replay/chunk?.safetensors --old-rope global
run --chunks bos?.npz --old-layout thd --bos drop --rope-style gptj
