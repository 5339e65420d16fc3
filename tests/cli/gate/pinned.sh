# Half a percent per commit: each step passes against the last run, and their sum fails against the pinned one.
config=gate.json
sed -E "s|^ *//.*||; s|\"\.\./|\"$TESTDATA/|" "$TESTDATA/gate/pass.json" |
  jq '.cases |= map(select(.name == "design_store")) | .pinned_commit = "0000000"' > $config
$VALIDATE < $config
gate() { status=0; "$KVTOOL" gate $config --deterministic "$@" || status=$?; echo "exit $status"; }
quiet() { gate "$@" -qq | tail -1; }
quiet -o first.json --commit 0000000aaaa
$VALIDATE < first.json
jq -c '[.commit, .pinned, (.cases[0].trace_xxh3 | length), [.inputs[].file | split("/")[-1]]]' first.json
better() { # FACTOR FILE: writes the summary of an older commit whose ratios were higher by this factor
  jq "(.cases[].true_figures.measured_ratio, .cases[].true_figures.measured_ratio_mean) *= $1" first.json > "$2"
}
better 1.005 last.json
better 1.015 pinned.json
quiet --baseline last.json
quiet --baseline last.json --pinned first.json
gate --baseline last.json --pinned pinned.json --commit 0000003
# The pinned baseline has rules of its own.
jq '.pinned_rules = [{"metric": "measured_ratio", "max_drop": 0.05}]' $config > wide.json
$VALIDATE < wide.json
config=wide.json quiet --baseline last.json --pinned pinned.json
# The baseline has another commit than the config pins, another trace, or data that change with each run.
jq '.commit = "1111111"' first.json > other.json
quiet --pinned other.json
jq '.cases[0].trace_xxh3 = "0123456789abcdef"' first.json > trace.json
gate --baseline trace.json
quiet --baseline trace.json --new-recordings
gate --new-recordings
gate --commit $'a\nb'
jq '.pinned_commit = "00"' $config > short.json
config=short.json
gate
