# Falsifies one thing at a time in a suite that passes: the gate fails, and names the falsified figure.
golden="$TESTDATA/golden/mnn/gate"
mkdir good
cp -r "$golden/suite/runtime_probe" "$golden/suite/runtime_store" "$golden/suite/llm_demo_full" good/
for name in runtime_probe runtime_store llm_demo_full; do cp "$golden/suite/$name.console.log" good/; done
jq -c '.rows |= map(select(.overall_pass)) | .overall_pass = true | .total_cases = 3' "$golden/suite/summary.json" > good/summary.json
jq -c '.rows[]' good/summary.json > good/cases.jsonl
chmod -R u+w good
. "$SHARED_SUITE/judge.bash"
echo '{"schema": "kvtool.gate-config/1", "expected_cases": ["runtime_probe", "runtime_store", "llm_demo_full"]}' > part.json
config=part.json
cheat() { title=$1; shift; rm -rf suite; cp -r good suite; (cd suite; eval "$1"); shift; judge suite "$@"; }
document() { jq -c "$2" "$1" > new && mv new "$1"; }
cheat "nothing" ":"
cheat "return code in summary.json" "rm cases.jsonl; document summary.json '.rows[1].return_code = 3'"
cheat "the same, overridden" "rm cases.jsonl; document summary.json '.rows[1].return_code = 3'" --return-codes runtime_store=0
cheat "return code in cases.jsonl" "document cases.jsonl 'if .case == \"runtime_probe\" then .return_code = 139 else . end'"
cheat "return code null" "rm cases.jsonl; document summary.json '.rows[0].return_code = null'"
cheat "return code in a text" "rm cases.jsonl; document summary.json '.rows[0].return_code = \"0\"'"
cheat "overall_pass of a row" "rm cases.jsonl; document summary.json '.rows[2].overall_pass = false'"
cheat "overall_pass of the suite" "document summary.json '.overall_pass = false'"
cheat "a row that is gone" "rm cases.jsonl; document summary.json 'del(.rows[2])'"
cheat "a case that is gone" "rm -r runtime_store runtime_store.console.log"
cheat "the suite's text" "echo '2. case=runtime_store, mode=store, pass=false, rc=1, decode=5.9/5.0(avg)' > summary.md"
cp "$golden/suite/summary.md" good/; chmod u+w good/summary.md
sed -i '/runtime_baseline\|runtime_full\|llm_demo_store/d; s/overall_pass: false/overall_pass: true/; s/total_cases: 6/total_cases: 3/' good/summary.md
cheat "the suite's text as it should be" ":"
cheat "the suite's text cut at its end" "head -n -1 summary.md > new; mv new summary.md"
cheat "a line less in it" "sed -i '/case=runtime_store/d' summary.md"
cheat "its verdict of all" "sed -i 's/overall_pass: true/overall_pass: false/' summary.md"
cheat "a key twice in summary.json" "rm cases.jsonl; sed -i 's/\"overall_pass\":true,\"total/\"overall_pass\":false,\"overall_pass\":true,\"total/' summary.json"
rm good/summary.md
cheat "a summary cut short" "head -c 700 summary.json > new; mv new summary.json"
cheat "summary.json in UTF-16" "document summary.json '.rows[1].return_code = 3'; rm cases.jsonl; iconv -f UTF-8 -t UTF-16 summary.json > new; mv new summary.json"
cheat "a way out of the folder" "rm cases.jsonl; document summary.json '.rows[1].case = \"../good/runtime_store\"'"
cheat "a script that failed without a known code" "rm *.json*; echo 'FAIL: no [H2O-LOSSLESS] line' >> runtime_store.console.log"
cheat "a script that said so and returned 0" "echo 'FAIL: no [H2O-LOSSLESS] line' >> runtime_store.console.log"
cheat "unknown name" ":" --return-codes runtime_stor=0
cheat "a code beyond all numbers" ":" --return-codes runtime_store=99999999999999999999
cheat "two codes" ":" --return-codes runtime_store=1,runtime_store=0
echo "--- reports"
md=runtime_store/summary.md
demo=llm_demo_full/llm_demo_report.json
cheat "overall_pass" "sed -i 's/overall_pass: true/overall_pass: false/' $md"
cheat "overall_pass cut away" "sed -i '/overall_pass/,\$d' $md"
cheat "two verdicts, the last one good" "sed -i 's/^- overall_pass: true/- overall_pass: false\\n- overall_pass: true/' $md"
cheat "two verdicts, the last one bad" "sed -i 's/^- overall_pass: true/- overall_pass: true\\n- overall_pass: false/' $md"
cheat "two gates" "(echo; echo '## Quality Gate'; echo; echo '- overall_pass: false') >> $md"
cheat "cut behind overall_pass" "sed -i '/^- overall_pass/q' $md"
cheat "cut before the last lines" "head -n -4 $md > new; mv new $md"
cheat "cut at its head" "sed -i '/^- Rows/,/^## Pareto/d' $md"
cheat "decode_pass" "sed -i 's/decode_pass: true/decode_pass: false/' $md"
cheat "wait" "sed -i 's/wait_best_us: .*/wait_best_us: nan/' $md"
cheat "queue" "sed -i 's/runtime_queue_peak_best: .*/runtime_queue_peak_best: inf/' $md"
cheat "ratio" "sed -i 's/Avg lossless raw MB: .*/Avg lossless raw MB: 1e999/' $md"
cheat "demo decode_pass" "document $demo '.decode_pass = false'"
cheat "demo overall_pass" "document $demo '.overall_pass = false'"
cheat "demo overall_pass as a text" "document $demo '.overall_pass = \"false\"'"
cheat "demo bucket_gate_pass" "document $demo '.bucket_gate_pass = false'"
cheat "demo a bucket too slow" "document $demo '.bucket_decode_failures = [\"2048\"]'"
cheat "demo drop that its speeds belie" "document $demo '.candidate_decode_tps_avg = 4'"
cheat "demo speed" "sed -i 's/\"candidate_decode_tps_avg\":6.025/\"candidate_decode_tps_avg\":1e999/; s/\"candidate_decode_tps_avg\": 6.025/\"candidate_decode_tps_avg\": NaN/' $demo"
cheat "demo cut short" "head -c 200 $demo > new; mv new $demo"
cheat "demo evicts nothing" "document $demo '.candidate_lossy_ratio_avg = 1'"
cheat "demo Round 6" "document $demo '.candidate_lossy_ratio_avg = 2.903 | .candidate_lossless_ratio_avg = 1.269'"
cheat "demo asked for 3" ":" --lossy-target 3
echo "--- good ones, alone"
config=
for name in gate_pass_store.md suite/runtime_probe suite/runtime_store/summary.md suite/llm_demo_full demo_report_ok.json logs; do
  title=$name; judge "$golden/$name"
done
mkdir -p demo/baseline demo/candidate
cp "$golden/demo_baseline.json" demo/baseline/baseline_summary.json
cp "$golden/demo_report_ok.json" demo/llm_demo_report.json
for name in ok slow2048; do
  cp "$golden/demo_candidate_$name.json" demo/candidate/candidate_summary.json
  chmod u+w demo/candidate/*
  title="a report beside the summary '$name'"; judge demo
done
chmod u+w demo/*.json
echo '{"prompt_file": "prompt_512_1.txt", "returncode": null, "effective_returncode": 0}' > demo/candidate/candidate_runs.jsonl
title="a run without a code"; judge demo
rm demo/candidate/*; echo 'munmap_chunk(): invalid pointer' > demo/candidate/prompt_512_1.stderr.log
title="damage in a prompt's stderr"; judge demo
