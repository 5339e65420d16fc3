# Recorded queries are asked instead of keys: a mean-pooling "MLP" of a real cache, under the engine's
# own queries. What the trace cannot fit is refused.
"$PYTHON" - << 'PY'
import struct
factor, dim, layers = 4, 8, 5
# relu(x + c) - c with a large c passes values through: the three slots then compute the mean of a group.
shift = 64.0
def block(rows, cols, weight, bias):
    return struct.pack("<3I", rows, cols, 1) + struct.pack(f"<{rows * cols}f", *weight) + struct.pack(f"<{rows}f", *bias)
mean = [(1.0 / factor if c % dim == r else 0.0) for r in range(dim) for c in range(dim * factor)]
same = [(1.0 if c == r else 0.0) for r in range(dim) for c in range(dim)]
mlp = block(dim, dim * factor, mean, [shift] * dim) + block(dim, dim, same, [0.0] * dim) + block(dim, dim, same, [-shift] * dim)
with open("mean.bin", "wb") as file:
    file.write(struct.pack("<IIHH8I", 0x4B56434D, 1, 2, 0, layers, 0, dim, dim * factor, factor, 1, 6, 0))
    file.write(2 * layers * mlp)
PY
flags="--weights mean.bin --positions original --image-len 0"
"$KVTOOL" replay-mlp "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/s260k" $flags --json > report.json 2> /dev/null
$VALIDATE < report.json
jq -c '[.quality.queries, .quality.query_rows, .quality.query_heads]' report.json
# The weights are the mean, so step and mean-pool baseline cost the same but for rounding in f16.
jq -e '[.quality.methods[] | select(.name == "mlp" or .name == "mean-pool") | .all.output_error.mean] | (.[0] - .[1] | fabs) < 1e-2' report.json
status=0
"$KVTOOL" replay-mlp "$TESTDATA/trace/s260k.seq0.bin" --trace "$TESTDATA/trace/kjv3m" $flags > /dev/null || status=$?
echo "another model's trace: $status"
