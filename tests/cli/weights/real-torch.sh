# A .pth that we write loads in real torch with equal tensors; skipped where torch is not installed.
"$PYTHON" -c 'import torch' 2> /dev/null || { echo "skipped: $PYTHON has no torch"; exit 0; }
source="$TESTDATA/golden/infinilm/pth/full_f5_fp32_trainer.pth"
"$KVTOOL" weights convert -q --to pth "$source" -o ours.pth 2> /dev/null
"$PYTHON" - "$source" <<'PYTHON_END'
import sys, torch
ours = torch.load("ours.pth")
theirs = torch.load(sys.argv[1])["model_state_dict"]["compressor"]
assert len(ours) == sum(not name.startswith("attention") for name in theirs)
assert all(torch.equal(ours[name], theirs[name]) and ours[name].dtype == theirs[name].dtype for name in ours)
print("equal in torch", torch.__version__)
PYTHON_END
