"""Arrays of one real cache in orders that are easily confused."""
import sys

import numpy as np

k, v = (np.stack([np.load(f"{sys.argv[1]}/kjv3m-L{layer}-{which}.npy") for layer in (0, 3)]) for which in "KV")
np.savez("gap.npz", k_0=k[0], v_0=v[0], k_3=k[1], v_3=v[1])
np.save("paged.npy", np.stack([k[0], v[0]])[:, :96].reshape(2, 6, 16, *k.shape[2:]))
np.save("kv5.npy", np.stack([k, v]))
np.savez("kt.npz", k_0=k[0].transpose(1, 2, 0)[None], v_0=v[0].transpose(1, 0, 2)[None])
