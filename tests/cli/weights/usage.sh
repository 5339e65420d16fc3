try() { "$KVTOOL" weights "$@" || echo "status $?"; }
try
try inspcet x
try inspect
try inspect absent.bin
try inspect --stat x
printf 'neither one nor the other' > junk
try inspect junk
try verify junk
try diff junk
try verify junk --compat vllm
try verify junk --strict --compat csrc
# Weights are one file: a folder is refused, however many files it holds.
mkdir empty two && cp junk two/a && cp junk two/b
for folder in empty two; do try verify $folder; try inspect $folder; done
