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
