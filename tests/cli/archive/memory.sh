# 256 MiB in bounded memory, mapped pages included: under 96 MiB and four chunks of 1 MiB per thread,
# plain and with a transposed V.
cat > peak.py <<'END'
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
print(sys.argv[2], "bounded" if peak < 96 + 4 * 2 else f"peak {peak:.0f} MiB")
END
for flags in "" --transposed; do
  "$PYTHON" "$SCRIPTS/make_llama_state.py" state --size 256MiB $flags > /dev/null 2>&1
  "$PYTHON" peak.py "$KVTOOL" compress -q -f -T2 state
  "$PYTHON" peak.py "$KVTOOL" verify -q -T2 state.kvz --against state
  "$PYTHON" peak.py "$KVTOOL" decompress -q -f -T2 state.kvz -o restored
  cmp state restored
done
