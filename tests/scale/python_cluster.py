# SPDX-License-Identifier: Apache-2.0
"""Starts a cluster of two nodes on this machine: python_cluster.py ray|dask. Prints its address, and ends at the end
of its input."""
import sys


def ray_cluster():
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    return cluster.address, cluster.shutdown


def dask_cluster():
    from distributed import LocalCluster

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, scheduler_port=0)
    return cluster.scheduler_address, cluster.close


if __name__ == "__main__":
    address, stop = {"ray": ray_cluster, "dask": dask_cluster}[sys.argv[1]]()
    print(address, flush=True)
    sys.stdin.read()
    stop()
