# A case without a decision never passes: it fails by default; with on_not_run "warn" the gate passes without it; with
# --strict nothing passes.
s260k="\"snapshot\": \"$TESTDATA/trace/s260k.seq0.bin\", \"trace\": \"$TESTDATA/trace/s260k\", \"prompt_tokens\": 96"
decided="{\"name\": \"decided\", \"mode\": \"full\", $s260k, \"rules\": [{\"metric\": \"lossy_best\", \"op\": \">=\", \"limit\": 1}]}"
unknown="{\"name\": \"unknown\", \"mode\": \"full\", $s260k, \"rules\": [{\"metric\": \"decode_drop_ratio\", \"op\": \"<=\", \"limit\": 1}]}"
ruleless="{\"name\": \"ruleless\", \"mode\": \"full\", $s260k, \"rules\": []}"
gate() { # MEMBERS FLAGS: runs a config with these members
  printf '{"schema": "kvtool.gate-config/1", %s}' "$1" > gate.json
  shift
  status=0
  "$KVTOOL" gate gate.json --deterministic --json -q "$@" > summary.json || status=$?
  echo "exit $status: $(jq -r '.results[0] | "\(.verdict): \(.reason)"' summary.json)"
}
gate "\"cases\": [$decided]"
gate "\"cases\": [$decided, $unknown]"
gate "\"on_not_run\": \"fail\", \"cases\": [$decided, $unknown]"
gate "\"on_not_run\": \"warn\", \"cases\": [$decided, $unknown]"
gate "\"on_not_run\": \"warn\", \"cases\": [$decided, $unknown]" --strict
gate "\"on_not_run\": \"warn\", \"cases\": [$unknown]"
gate "\"cases\": [$ruleless]"
gate "\"on_not_run\": \"warn\", \"cases\": [$ruleless]"
gate "\"on_not_run\": \"warn\", \"cases\": [$decided, $ruleless]"
echo "expected cases"
gate "\"expected_cases\": [\"decided\"], \"cases\": [$decided]"
gate "\"expected_cases\": [\"decided\", \"gone\"], \"cases\": [$decided]"
gate "\"expected_cases\": [\"unknown\"], \"on_not_run\": \"warn\", \"cases\": [$decided, $unknown]"
$VALIDATE < gate.json
$VALIDATE < summary.json
gate "\"expected_cases\": 2, \"on_not_run\": \"warn\", \"cases\": [$decided, $unknown]"
gate "\"expected_cases\": [\"decided\", \"unknown\"], \"cases\": [$decided, $unknown]" --case decided
logs="$TESTDATA/golden/mnn/gate/suite"
gate '"expected_cases": ["runtime_store"]' --engine-logs "$logs" --case runtime_store
gate '"expected_cases": ["runtime_store", "runtime_nightly"]' --engine-logs "$logs"
"$KVTOOL" gate gate.json || echo "exit $?"
