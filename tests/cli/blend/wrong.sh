$PYTHON "$SHARED_SUITE/make.py" "$TESTDATA/golden/blend/replay"
run() { status=0; "$KVTOOL" replay-blend --full full.npz "$@" > /dev/null || status=$?; echo "$status"; }
run
run --chunks chunk0.npz --old full.npz
run --chunks chunk?.npz
run --chunks chunk?.npz --rope-base 1e4 --ratio 1.5
run --chunks chunk?.npz --rope-base 1e4 --ratios 0.5:0.1
run --chunks chunk?.npz --rope-base 1e4 --suffix-len 61
run --chunks chunk[0-3].npz --rope-base 1e4
run --chunks chunk?.npz --rope-base 1e4 --check-layer 9
run --chunks chunk?.npz --rope-base 1e4 --check-layer 3
run --chunks chunk?.npz --rope-base 1e4 --rope-scaling yarn:4
run --chunks chunk?.npz --rope-base 1e4 --rope-dims 7
run --chunks chunk?.npz --rope-base 1e4 --gate 'nothing@0.1.mean<=1'
run --chunks chunk?.npz --rope-base 1e4 --gate 'dev_v_remaining_frac@0.1.layer0<=1'
run --chunks chunk?.npz --rope-base 1e4 --prefill-ms 4
run --chunks chunk?.npz --rope-base 1e4 --chunk-lens 4,18
run --old full.npz
run --old full.npz --old-rope global
run --old full.npz --old-rope global --chunk-lens 4,5
run --chunks nothing.npz
head -c 300 chunk1.npz > cut.npz
run --chunks chunk0.npz cut.npz --rope-base 1e4
