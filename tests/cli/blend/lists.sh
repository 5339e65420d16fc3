# Lists of check layers and shares work as in both engines: later layers choose among the tokens chosen before.
replay="$TESTDATA/golden/blend/replay"
run() { "$KVTOOL" replay-blend --full "$replay/full.safetensors" --chunks "$replay"/chunk?.safetensors --layout thd --rope-base 1e4 "$@"; }
run --check-layers 1,2 --recomp-ratios 0.5,0.16 | sed -n 2,3p
run --check-layers 1,2 --recomp-ratios 0.5,0.16 --json -q > two.json
$VALIDATE < two.json
# Every remaining token was chosen before, and the computed share depends only on the two shares around it.
jq -c '.results[0].selection | (.filters[0].indices - .indices), .filters[0].topk, (.indices | length)' two.json
jq -c '.results[0].faults[] | select(.name == "later_check_layers") | .name' two.json
# A later check layer that drops nothing changes nothing.
run --check-layers 1,2 --recomp-ratios 0.5,0.5 --json -q > same.json
jq -e '.results[0] | (.selection.filtered.dev_v_remaining_frac - (.curve[] | select(.recomputed_fraction == 0.5) | .mean.dev_v_remaining_frac)) | fabs < 1e-12' same.json
run --check-layers 1,2 --recomp-ratios 0.5,0.16 --blended-out two.safetensors -qq
run --check-layers 1 --recomp-ratios 0.5 --blended-out one.safetensors -qq
"$KVTOOL" diff one.safetensors two.safetensors | tail -n 1 || true
echo "--- refused"
try() { run "$@" > /dev/null || echo "exit $?"; }
try --check-layers 1,2
try --check-layers 2,1 --recomp-ratios 0.5,0.2
try --check-layers 1,2 --recomp-ratios 0.2,0.5
try --check-layers 1,3 --recomp-ratios 0.5,0.2
