# The tables always contain the best plan and the answer, even if they leave out rows; --csv has every row.
trace=$TESTDATA/trace/kjv3m
advise() { "$KVTOOL" advise --no-progress "$trace.seq0.bin" --trace "$trace" --prompt-tokens 48 --deterministic "$@"; }
advise --min-ratio 1.5 --csv all.csv --json-out all.json > text 2> /dev/null
grep -e '^frontier' -e '(eviction)' -e '^everything that' -e '(answer)' -e '^answer' text
cut -d, -f1-2 all.csv | sed "s|$TESTDATA/||" | sed -n 1,3p
"$PYTHON" - <<'END'
import csv, json
rows, document = list(csv.DictReader(open("all.csv"))), json.load(open("all.json"))["results"][0]
print(len(rows) == len(document["savings"]["rows"]), list(rows[0]))
END
advise --min-ratio 1.5 --types none --csv - 2> /dev/null | sed -n 1,3p | sed "s|$TESTDATA/||" | cut -c1-60
# The expected loss of a mixture includes a factor for having been chosen among many; that of a single candidate does
# not, so the candidate wins.
advise --max-error 10% --types none 2> /dev/null | sed -n '3,4p; /^frontier/,/0.5, blocks/p'
