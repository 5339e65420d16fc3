"$KVTOOL" inspect absent.bin
