"$KVTOOL" inspcet
