# A narrow terminal cuts no names of cases that would then look alike.
export KVTOOL
"$KVTOOL" gate --init "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" --prompt-tokens 64 -o gate.json -q
"$PYTHON" - <<'END'
import os
import terminal
status, text = terminal.run([os.environ["KVTOOL"], "gate", "gate.json", "--no-color", "--no-progress"], 80)
print(status, max(map(len, text.splitlines())) <= 80)
print("\n".join(sorted({line.split()[0] for line in text.splitlines() if line.startswith("s260k")})))
END
