# Compares a cache with a golden one: equal, changed in one bit, within a tolerance, with a NaN; a fault in the replay
# itself.
s="$TESTDATA/trace/s260k.seq0.bin"
"$KVTOOL" compress "$s" -o golden.kvz -q
gate() { status=0; "$KVTOOL" gate "$@" --deterministic || status=$?; echo "exit $status"; }
patch() { # FILE OFFSET BYTES: makes a copy with two bytes changed, OFFSET before its end
  cp "$s" "$1"
  printf "$3" | dd of="$1" bs=1 seek=$(($(stat -c %s "$s") - $2)) conv=notrunc status=none
}
patch changed.bin 3000 '\x37\x36'
patch nan.bin 3000 '\x00\x7e'
gate --snapshot "$s" --reference golden.kvz
gate --snapshot changed.bin --reference golden.kvz
config() { # MEMBERS: writes a config with one case
  printf '{"schema": "kvtool.gate-config/1", "cases": [{"name": "mine", "reference": "golden.kvz", "kv_heads": 4, %s}]}' "$1" > gate.json
}
config '"snapshot": "changed.bin", "tolerance": {"k": "bit_equal", "v": 0.2}'
$VALIDATE < gate.json
gate gate.json
gate gate.json --json | sed '$d' > summary.json
$VALIDATE < summary.json
jq -c '.results[0].cases[0].reference | [.verdict, .first.layer, .first.part, .first.token, .first.head, .first.dim]' summary.json
jq -c '.results[0].inputs | map(.file)' summary.json
config '"snapshot": "changed.bin", "tolerance": {"v": 0.2, "layers": {"4": {"v": 0.0001}}}'
gate gate.json
config '"snapshot": "nan.bin", "rules": [{"metric": "reference.different", "op": "<=", "limit": 1}]'
gate gate.json
config '"snapshot": "nan.bin", "rules": [{"metric": "content.not_finite", "op": "<=", "limit": 1}, {"metric": "reference.different", "op": "<=", "limit": 1}]'
gate gate.json
# A layer without a trace has a NaN, in a case without a reference.
printf '{"schema": "kvtool.gate-config/1", "cases": [{"name": "replayed", "mode": "full", "snapshot": "nan.bin", "kv_heads": 4, "prompt_tokens": 96, "rules": [{"metric": "lossy_best", "op": ">=", "limit": 1}]}]}' > nan.json
gate nan.json 2> /dev/null
# The content comparison fails if a bit of the replayed cache is flipped.
gate "$TESTDATA/gate/pass.json" --case design_store --inject-fault content
"$KVTOOL" gate --help | grep inject-fault || echo "in no help"
gate --snapshot "$s" --reference missing.kvz
gate gate.json --inject-fault disk
