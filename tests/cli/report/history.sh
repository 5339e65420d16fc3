# Several summaries make a history, in the order of their dates; the newest one is the verdict.
one() {
  cat > "$1" <<EOF
{"schema": "kvtool.gate/1", "generated_at": "$2", "overall_pass": $3, "verdict": "$4", "rows": [],
 "cases": [{"name": "runtime_store", "mode": "store", "status": "$4", "reason": "",
   "rules": [{"metric": "lossy_best", "op": ">=", "limit": 3, "value": $5, "margin": 0, "status": "$4",
              "reason": "", "where": {"layer": 2, "kind": "V"}, "reproduce": "kvtool gate c.json"}],
   "true_figures": {"whole_model_ratio": $5}},
  {"name": "llm_demo_full", "mode": "full", "status": "not_run", "reason": "no engine logs", "rules": []}]}
EOF
}
one b.json 2026-11-03T10:00:00 false fail 2.5
one a.json 2026-11-02T10:00:00 true pass 3.2
one c.json 2026-11-01T10:00:00 true pass 3.1
"$KVTOOL" report b.json a.json c.json --html-out page.html --junit-out gate.xml
grep -o '<td data-name="run">[^<]*' page.html
grep -o 'layer 2 V' page.html gate.xml | sort -u
grep -o '<pre>.*</pre>' page.html
# The same summaries give the same text, in any order; nothing is overwritten without -f.
"$KVTOOL" report c.json b.json a.json --html-out page2.html -q > /dev/null
# Pages name their command in the footer; everything else is compared.
without_footer() { sed '/<footer>/,/<\/footer>/d' "$1"; }
cmp <(without_footer page.html) <(without_footer page2.html) && echo "same page"
"$KVTOOL" report a.json --html-out page.html || echo "status $?"
