# A document with very many keys takes time in proportion to its length, and messages about it are short.
ulimit -t 20
dump="$TESTDATA/golden/mnn/dumps/case_fp32_h4_l1_fa64"
"$PYTHON" - <<'END'
count = 60_000
source = ",".join([f'"k{i:06}":{i}' for i in range(count)] + [f'"o{i:06}":{{}}' for i in range(count)])
open("plan.json", "w").write('{"schema":"kvtool.h2o-plan/1","unit":"position","applied":"before the next token",'
                             f'"source":{{"file":"a","xxh3":"0","bytes":1,{source}}},"events":[]}}')
rows = ",".join(f'{{"case":"runtime_{i}","overall_pass":true}}' for i in range(count))
open("summary.json", "w").write(f'{{"overall_pass":true,"total_cases":{count},"rows":[{rows}]}}')
open("gate.json", "w").write('{"schema":' + "9" * 1_000_000 + "}")
open("text.json", "w").write('{"schema":"' + "é" * 500_000 + "\\x")
END
"$KVTOOL" plan check plan.json --snapshot "$dump" -qq >said 2>&1 || echo "exit $?"
"$KVTOOL" gate --engine-logs summary.json 2>&1 || echo "exit $?"
mkdir logs; mv summary.json logs
"$KVTOOL" gate --engine-logs logs 2>&1 || echo "exit $?"
for file in gate text; do
  "$KVTOOL" gate $file.json >said 2>&1 || echo "exit $?: $(grep -c 'not valid JSON' said)"
  [ "$(wc -c <said)" -lt 1000 ] || echo "$file: a message of $(wc -c <said) bytes"
  iconv -f UTF-8 -t UTF-8 said >/dev/null
done
