# Real torch loads a .pth that kvtool wrote, with equal tensors; skipped if torch is not installed.
"$PYTHON" -c 'import torch' 2> /dev/null || { echo "$PYTHON has no torch"; exit 77; }
source="$TESTDATA/golden/infinilm/pth/full_f5_fp32_trainer.pth"
"$KVTOOL" weights convert -q --to pth "$source" -o ours.pth 2> /dev/null
"$PYTHON" "$SHARED_SUITE/load_in_torch.py" "$source"
