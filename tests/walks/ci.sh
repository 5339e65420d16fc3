# SPDX-License-Identifier: Apache-2.0
# Wants a pull request to fail when it spoils the cache, and a page that says where.
follow docs/gate.md 'kvtool gate gate/pass.json --deterministic'
said 'gate passed'
follow docs/gate.md 'mkdir -p out && kvtool gate gate/pass.json -o out/summary.json --html-out out/gate.html --junit-out out/junit.xml'
page out/gate.html
[ -s out/summary.md ] || fail "no summary.md beside the summary"
grep -q '<testsuite' out/junit.xml || fail "no test suite in out/junit.xml"

# The next commit is compared with this one.
follow docs/gate.md 'kvtool gate gate/pass.json --baseline out/summary.json'
said 'gate passed'

# A change that alters the cache fails, and the report names the place and the command that shows it again.
follow docs/gate.md 'kvtool convert -q slot0.bin --kv-heads 4 --to npz --dtype bf16 -o slot0.npz'
STATUS=1 follow docs/gate.md 'kvtool gate --snapshot slot0.npz --reference slot0.bin'
said 'at layer 0 K, head 0, token 0, dim 1'
said 'again: kvtool gate'
