# SPDX-License-Identifier: Apache-2.0
"""Runs a complete Slurm on one machine: a controller and several nodes, all in one folder, without touching the
system's.

It needs Debian's slurm-wlm, and uses munge if that is installed. The kernel chooses free ports.
"""
import ctypes
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

SBIN = ":/usr/sbin:/sbin"  # Debian's folder of the daemons is often not in a user's PATH

CONFIGURATION = """\
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
{auth}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/log/finished.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=10000,bf_interval=1,batch_sched_delay=0
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
MailProg=/bin/true
MinJobAge=600
MaxArraySize=20001
MaxJobCount=40000
KillWait=2
SlurmctldPidFile={folder}/run/slurmctld.own
SlurmdPidFile={folder}/run/%n.own
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


class CannotRun(Exception):
    """Raised if Slurm does not start here; the message gives the reason."""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def die_with_parent():
    """Cleans up if the test itself is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Slurm:
    def __init__(self, folder, nodes, cpus):
        self.folder, self.nodes, self.cpus = pathlib.Path(folder), nodes, cpus
        self.daemons = {}  # processes by node or kind
        self.env = dict(os.environ, PATH=os.environ["PATH"] + SBIN, SLURM_CONF=str(self.folder / "slurm.conf"))
        # Variables of an outer Slurm would reach our tasks.
        for name in [name for name in self.env if name.startswith(("SLURM_", "SBATCH_")) and name != "SLURM_CONF"]:
            del self.env[name]

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def run(self, *command, check=True):
        """Returns the output of a Slurm client."""
        done = subprocess.run([str(word) for word in command], env=self.env, text=True, capture_output=True, timeout=120)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
        return done.stdout

    def launch(self, name, *command):
        with open(self.folder / "log" / f"{name}.out", "ab") as out:
            self.daemons[name] = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                                  start_new_session=True, preexec_fn=die_with_parent)

    def launch_node(self, name):
        self.launch(name, "slurmd", "-D", "-N", name, "-f", self.env["SLURM_CONF"])

    def restart(self, node):
        """Restarts a node's daemon, as after a crash."""
        self.daemons[node].kill()
        self.daemons[node].wait()
        self.launch_node(node)

    def start(self):
        missing = [name for name in ("slurmctld", "slurmd", "sbatch") if not shutil.which(name, path=self.env["PATH"])]
        if missing:
            raise CannotRun(f"there is no {missing[0]} (apt-get install slurm-wlm munge)")
        host = socket.gethostname().split(".")[0]
        try:
            socket.gethostbyname(host)
        except OSError:
            raise CannotRun(f"the host's name {host} does not resolve") from None
        for name in ("run", "log", "state", "spool"):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        self.write_configuration(host)
        if self.has_munge():
            self.start_munge()
        self.launch("controller", "slurmctld", "-D", "-c", "-f", self.env["SLURM_CONF"])
        for i in range(1, self.nodes + 1):
            (self.folder / "spool" / f"n{i}").mkdir()
            self.launch_node(f"n{i}")
        self.wait(lambda: self.run("sinfo", "-h", "-N", "-o", "%t", check=False).split().count("idle") == self.nodes,
                  "the nodes do not come up")

    def has_munge(self):
        return shutil.which("munged", path=self.env["PATH"]) is not None

    def write_configuration(self, host):
        import pwd
        ports = free_ports(self.nodes + 1)
        auth = "AuthType=auth/none\nCredType=cred/none"
        if self.has_munge():
            auth = f"AuthType=auth/munge\nAuthInfo=socket={self.folder}/run/munge.socket\nCredType=cred/munge"
        nodes = "\n".join(f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[i]} CPUs={self.cpus} "
                          "State=UNKNOWN" for i in range(1, self.nodes + 1))
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(
            host=host, user=pwd.getpwuid(os.getuid()).pw_name, port=ports[0], auth=auth, folder=self.folder, nodes=nodes,
            names=f"n[1-{self.nodes}]"))

    def start_munge(self):
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        place = self.folder / "run" / "munge"
        self.launch("munge", "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={place}.socket",
                    f"--pid-file={place}.own", f"--seed-file={place}.seed", f"--log-file={self.folder}/log/munged.log")
        self.wait(pathlib.Path(f"{place}.socket").is_socket, "munged does not start")

    def wait(self, ready, otherwise, seconds=30):
        end = time.monotonic() + seconds
        while not ready():
            dead = [daemon for daemon in self.daemons.values() if daemon.poll() is not None]
            if dead or time.monotonic() > end:
                logs = sorted((self.folder / "log").iterdir())
                tails = [f"{log.name}: {line}" for log in logs for line in log.read_text(errors="replace").splitlines()[-2:]]
                raise CannotRun("\n  ".join([otherwise, *tails]))
            time.sleep(0.1)

    def stop(self):
        """Ends jobs and daemons, and waits until none is left."""
        # Without a controller, Slurm's clients retry for many seconds.
        if (self.folder / "state").is_dir() and self.daemons and all(daemon.poll() is None for daemon in self.daemons.values()):
            self.run("scancel", "--user", str(os.getuid()), check=False)
            end = time.monotonic() + 10
            while self.run("squeue", "-h", check=False).strip() and time.monotonic() < end:
                time.sleep(0.1)
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
        for daemon in reversed(self.daemons.values()):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        # Processes that they started, for example a slurmstepd that has not noticed.
        for process in self.processes():
            os.kill(process, signal.SIGKILL)
        self.daemons = {}

    def processes(self):
        """Returns all processes that run with our slurm.conf."""
        mark, found = f"SLURM_CONF={self.env['SLURM_CONF']}".encode(), []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    pass  # the process has ended, or belongs to another user
        return found
