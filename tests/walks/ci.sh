# SPDX-License-Identifier: Apache-2.0
# A team has recordings but no thresholds. It wants pull requests to fail if they spoil the cache, and a page that says where.
follow docs/gate.md 'kvtool gate --init trace/s260k.seq0.bin --trace trace/s260k --prompt-tokens 64 -o gate.json'
said 'next: kvtool gate gate.json'
follow docs/gate.md 'kvtool gate gate.json --deterministic'
said 'gate passed'
with='s|gate/pass.json|gate.json|'
follow docs/gate.md 'mkdir -p out && kvtool gate gate/pass.json -o out/summary.json --html-out out/gate.html --junit-out out/junit.xml' "$with"
page out/gate.html
[ -s out/summary.md ] || fail "no summary.md beside the summary"
grep -q '<testsuite' out/junit.xml || fail "no test suite in out/junit.xml"

# The results of the next commit are compared with those of this commit.
follow docs/gate.md 'kvtool gate gate/pass.json --baseline out/summary.json' "$with"
said 'gate passed'

# A change loses the content of a layer: the gate fails, names the layer, and prints the command to reproduce it.
dd if=/dev/zero of=trace/s260k.seq0.bin bs=1024 seek=76 count=11 conv=notrunc status=none
STATUS=1 follow docs/gate.md 'kvtool gate gate.json --deterministic'
said 'layer 1 V'
said 'again: kvtool gate gate.json'

# If two caches must be equal, one flag checks that.
follow docs/gate.md 'kvtool convert -q slot0.bin --kv-heads 4 --to npz --dtype bf16 -o slot0.npz'
STATUS=1 follow docs/gate.md 'kvtool gate --snapshot slot0.npz --reference slot0.bin'
said 'at layer 0 K, head 0, token 0, dim 1'
