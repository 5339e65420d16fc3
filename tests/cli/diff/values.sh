# Tells which values differ, where the first one is, and by how much; also for other element types, and in the report.
"$PYTHON" "$SHARED_SUITE/values_caches.py"
try() { "$KVTOOL" diff "$@" --layout thd || echo "status $?"; }
try a.npz a.npz
try a.npz one.npz
try a.npz one.npz --atol 0.25
try a.npz one.npz --atol 0.2
try a.npz zero.npz
try a.npz zero.npz --atol 0
try a.npz nan.npz --atol 1e9
try nan.npz nan.npz
try a.npz wide.npz
try a.npz wide.npz --atol 0
try a.npz short.npz
try one.npz a.npz -qq
"$KVTOOL" diff one.npz a.npz --layout thd --json --json-out report.json > stdout.json || echo "status $?"
cmp report.json stdout.json
$VALIDATE < report.json
jq -c '.results[0] | [.verdict, .equal, .different_count, .first, (.layers[0].k | .max_abs, .max_ulp)]' report.json
(try nan.npz a.npz --json | grep -v status) | jq -c '.results[0] | [.first.a, .first.a_bits, .layers[0].v.not_finite_count]'
"$KVTOOL" diff a.npz wide.npz --layout thd --json > report.json || echo "status $?"
$VALIDATE < report.json
jq -c '.results[0] | [.verdict, .equal, .first, .layers[0].k.max_ulp]' report.json
