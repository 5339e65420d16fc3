# Runs the shell steps of the composite action as a runner does: install by checksum, judge, summarise, always upload,
# fail last.
$PYTHON -c "import yaml" 2> /dev/null || { echo "python3-yaml is not installed"; exit 77; }
command -v curl > /dev/null || { echo "curl is not installed"; exit 77; }
action=$SHARED_SUITE/../../../.github/actions/gate
version=$("$KVTOOL" --version | sed -n '1s/^kvtool \([0-9.]*\).*/\1/p')
name=kvtool-$version-linux-$(uname -m)
release=site/owner/kvtool/releases/download/v$version
mkdir -p "$release" "$name/bin" ci
cp "$KVTOOL" "$name/bin/kvtool"
tar -c "$name" | xz -0 > "$release/$name.tar.xz"
(cd "$release" && sha256sum ./*.tar.xz > SHA256SUMS)
sum=$(cut -d' ' -f1 "$release/SHA256SUMS")
"$KVTOOL" gate --init "$TESTDATA/trace/s260k.seq0.bin" --kv-heads 4 -o ci/gate.json -q
sed 's/"measured_ratio", "op": ">=", "limit": [0-9.]*/"measured_ratio", "op": ">=", "limit": 2/' ci/gate.json > ci/bad.json
act() { # inputs
  rm -rf kv-gate step-summary.md
  status=0
  PATH=/usr/bin:/bin $PYTHON "$SHARED_SUITE/fake_runner.py" "$action" "file://$PWD/site" version="$version" "$@" > out.txt 2>&1 || status=$?
  echo "== exit $status"
  # The digits of a version also occur inside hashes, where its dot would match any digit, so hashes are replaced first.
  sed -n -e "s|$sum|SUM|g; s/[0-9a-f]\{64\}/OTHER/g; s|${version//./\\.}|VERSION|g; s|${TESTDATA%/testdata}|*|g" -e '/^\[/p; /^::/p; /^verdict/p; /no baseline/p' out.txt
}
act config=ci/gate.json
ls kv-gate
head -1 step-summary.md
jq -r '.commit' kv-gate/summary.json
cp kv-gate/summary.json last.json
act config=ci/gate.json sha256="$sum" baseline=last.json pinned=last.json arguments=$'--deterministic\n--strict'
jq -c '[.baseline.commit, .pinned.commit]' kv-gate/summary.json
act config=ci/gate.json baseline=never.json output=other artifact=mine
act config=ci/bad.json
ls kv-gate | wc -l
grep -c 'measured_ratio' step-summary.md > /dev/null && echo "the summary says why"
act config=ci/bad.json fail-on=never
act config=ci/missing.json fail-on=never
act config=ci/gate.json fail-on=always
# Warns that the older baseline has no such case.
jq '.inputs = [] | .cases[0].name = "other"' last.json > odd.json
act config=ci/gate.json baseline=odd.json fail-on=warn arguments=--baseline-lenient
# A program other than the released one is not run.
act config=ci/gate.json sha256=$(printf 0%.0s {1..64})
printf x >> "$release/$name.tar.xz"
act config=ci/gate.json
echo "$sum  another.tar.xz" > "$release/SHA256SUMS"
act config=ci/gate.json
act config=ci/gate.json repository=owner/nothing
act config=ci/gate.json version=0.0.1
act config=ci/gate.json repository='owner/kvtool; id'
act config=ci/gate.json program="$KVTOOL"
if command -v shellcheck > /dev/null; then shellcheck "$action"/*.sh; fi
