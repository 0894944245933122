"""A real Slurm on this machine, for tests: munge, slurmctld and slurmd on loopback, with eight pretended GPUs.

It needs root and Debian's packages (`apt-get install slurm-wlm munge`). Everything, the workflow that submits to it too,
runs in a network namespace that has nothing but loopback, where the machine can make one: jobs then have no network.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ETC = Path("/etc/slurm")  # inner steps lose SLURM_CONF, so the configuration must be where Slurm looks for it
MUNGE_SOCKET = Path("/run/munge/munge.socket.2")
COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
GPUS = 8
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool
SlurmctldPidFile={base}/run/slurmctld.pid
SlurmdPidFile={base}/run/slurmd.pid
SlurmctldLogFile={base}/log/slurmctld.log
SlurmdLogFile={base}/log/slurmd.log
MailProg=/bin/true
# Neither cgroups nor systemd.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
# More processors, memory and GPUs than the machine has.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2,requeue_delay=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=5
MinJobAge=3600
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs=32 RealMemory=256000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=cpu Nodes=ALL Default=YES MaxTime=1-00:00:00 State=UP PriorityTier=10
PartitionName=gpu Nodes=ALL MaxTime=2-00:00:00 State=UP PriorityTier=10 PreemptMode=off
PartitionName=preemptible Nodes=ALL MaxTime=2-00:00:00 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
"""
LOOPBACK_UP = """\
import fcntl, socket, struct
control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
# A second address: the C library resolves no name on a machine that has 127.0.0.1 alone.
address = struct.pack("16sHH4s8x", b"lo:1", socket.AF_INET, 0, socket.inet_aton("127.0.0.2"))
fcntl.ioctl(control, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
fcntl.ioctl(control, 0x8916, address)  # SIOCSIFADDR
"""


@dataclass(frozen=True)
class SlurmCluster:
    """A running Slurm. `inside`: what goes before a command, so that it runs in the cluster's network namespace."""

    base: Path
    inside: tuple[str, ...]

    def run(self, *command: str) -> str:
        """What a command prints."""
        return subprocess.run([*self.inside, *command], check=True, capture_output=True, text=True).stdout

    def jobs(self) -> dict[str, dict[str, str]]:
        """Every job since the start by its id, with the fields of `scontrol show job`."""
        shown = self.run("scontrol", "show", "job", "--oneliner")
        rows = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in shown.splitlines()]
        return {row["JobId"]: row for row in rows if "JobId" in row}

    def unfinished(self) -> list[str]:
        """Ids of the jobs that wait or run."""
        return self.run("squeue", "--noheader", "--format=%A").split()


def why_not() -> str | None:
    """Why no Slurm can be started here, or None where it can."""
    if os.geteuid() != 0:
        return "a Slurm of its own needs root"
    missing = [command for command in COMMANDS if shutil.which(command) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: apt-get install slurm-wlm munge)"
    if (ETC / "slurm.conf").exists() and not (ETC / "slurm.conf").is_symlink():
        return f"{ETC}/slurm.conf is there: this machine belongs to a Slurm"
    with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
        client.connect(str(MUNGE_SOCKET))
        return "a munged runs here already"
    return None


@contextmanager
def slurm_cluster(base: Path) -> Iterator[SlurmCluster]:
    """Start a Slurm whose files are in `base`, and stop it at the end with every job it still has."""
    os.environ.pop("SLURM_CONF", None)  # that of the other tests, for which there is no Slurm
    for name in ("etc", "state", "spool", "log", "run"):
        (base / name).mkdir(parents=True)
    _write_configuration(base)
    with _network() as inside:
        cluster = SlurmCluster(base, inside)
        try:
            _start(cluster)
            yield cluster
        finally:
            _stop(cluster)


def _write_configuration(base: Path) -> None:
    host = socket.gethostname().split(".")[0]
    (base / "etc/slurm.conf").write_text(CONFIGURATION.format(host=host, base=base, gpus=GPUS))
    for i in range(GPUS):
        os.mknod(base / f"run/gpu{i}", stat.S_IFCHR | 0o666, os.makedev(1, 3))  # a GPU's device is only looked at
    (base / "etc/gres.conf").write_text(f"NodeName={host} Name=gpu File={base}/run/gpu[0-{GPUS - 1}]\n")
    ETC.mkdir(exist_ok=True)
    for name in ("slurm.conf", "gres.conf"):
        (ETC / name).unlink(missing_ok=True)
        (ETC / name).symlink_to(base / "etc" / name)
    key = base / "etc/munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)


@contextmanager
def _network() -> Iterator[tuple[str, ...]]:
    """The prefix of commands that are to run without a network; nothing where no namespace can be made."""
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        yield ()
        return
    with subprocess.Popen(["unshare", "--net", "sleep", "infinity"]) as holder:
        inside = ("nsenter", f"--net=/proc/{holder.pid}/ns/net")
        try:
            _wait(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != os.readlink("/proc/self/ns/net"), "a namespace")
            subprocess.run([*inside, sys.executable, "-c", LOOPBACK_UP], check=True)
            yield inside
        finally:
            holder.terminate()


def _start(cluster: SlurmCluster) -> None:
    base = cluster.base
    MUNGE_SOCKET.parent.mkdir(exist_ok=True)
    MUNGE_SOCKET.parent.chmod(0o755)
    munged = ["munged", "--force", f"--key-file={base}/etc/munge.key", f"--socket={MUNGE_SOCKET}"]
    files = [f"--pid-file={base}/run/munged.pid", f"--log-file={base}/log/munged.log", f"--seed-file={base}/run/seed"]
    subprocess.run([*munged, *files], check=True, capture_output=True)
    for daemon in (["slurmctld", "-i"], ["slurmd"]):
        with (base / "log" / f"{daemon[0]}.out").open("w") as out:  # daemons keep the descriptor, so no pipe
            subprocess.run([*cluster.inside, *daemon], check=True, stdout=out, stderr=out)
    _wait(lambda: cluster.run("sinfo", "--noheader", "-p", "cpu", "-o", "%t").strip() == "idle", "the node", base)


def _stop(cluster: SlurmCluster) -> None:
    if (cluster.base / "run/slurmctld.pid").is_file():
        subprocess.run([*cluster.inside, "scancel", "--full", "--user=root"], capture_output=True, timeout=60)
        _wait(lambda: not cluster.unfinished(), "the jobs' end")
    for name in ("slurmd", "slurmctld", "munged"):
        path = cluster.base / "run" / f"{name}.pid"
        if path.is_file():
            os.kill(int(path.read_text()), signal.SIGTERM)
            _wait(lambda path=path: not path.exists(), f"the end of {name}")
    for name in ("slurm.conf", "gres.conf"):
        (ETC / name).unlink(missing_ok=True)


def _wait(condition, what: str, base: Path | None = None, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}" + (f"; see {base}/log" if base else ""))
        time.sleep(0.1)
