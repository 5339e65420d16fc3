# -q keeps errors, -qq keeps the exit status only
"$KVTOOL" inspect -qq absent.bin && exit 9 || echo "status $?"
