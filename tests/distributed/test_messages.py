"""The messages of kvstores, trainers and modules of several machines, and of the launcher."""

import socket

import mxnet as mx
from mxnet import gluon

import mxmp
from mxmp.distributed import KVStore
from mxmp.errors import DependencyError, LaunchError, TrainerError
from mxmp.launch import Process, plan_processes, run
from tests import messages
from tests.distributed.engines import Twins
from tests.gluon.trainer_tools import param, sgd


def module(policy, kvstore, **options):
    symbol = mx.sym.LinearRegressionOutput(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1), mx.sym.var("label"))
    made = mxmp.module.Module(symbol, label_names=["label"], policy=policy, loss_scale=None, **options)
    made.bind([("data", (2, 1))], [("label", (2, 1))])
    made.init_params()
    made.init_optimizer(kvstore)


def sparse():
    w = gluon.Parameter("w", shape=(4, 2), grad_stype="row_sparse")
    w.initialize()
    return w


def start(command, **environment):
    others = Process("server 0", "127.0.0.1", ["sleep", "60"], {})
    run([others, Process("worker 1", "127.0.0.1", [command], environment)])


def script(tmp_path):
    (tmp_path / "train.py").write_text("")
    start(str(tmp_path / "train.py"))


def port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        start("sleep", PORT=str(listener.getsockname()[1]))


TABLE = {
    "transport": (
        lambda: KVStore(Twins(), "bfloat16"), TrainerError, "transport='bfloat16'; expected 'float32' or 'float16'."),
    "device": (
        lambda: KVStore("device"), TrainerError,
        "engine='device'; expected 'dist_sync', 'horovod', a distributed KVStore or an Engine."),
    "no job": (lambda: KVStore("dist_sync"), TrainerError,
        "kvstore 'dist_sync' needs DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_NUM_SERVER, DMLC_NUM_WORKER in "
        "the environment; start the script with `mxmp launch -n 2 python SCRIPT`."),
    "no Horovod": (
        lambda: KVStore("horovod"), DependencyError,
        "kvstore 'horovod' needs Horovod, built for MXNet: HOROVOD_WITH_MXNET=1 HOROVOD_WITH_GLOO=1 pip "
        "install --no-build-isolation horovod==0.28.1 (tools/horovod.sh of mxmp has the rest)."),
    "a sparse gradient": (
        lambda: sgd(sparse(), kvstore=KVStore(Twins())), TrainerError,
        "parameter 'w' has a row_sparse gradient, which a distributed kvstore can sum only where it updates "
        "the weights; create the layer with sparse_grad=False."),
    "compression": (
        lambda: sgd(param([1.0]), kvstore=KVStore(Twins()), compression_params={"type": "2bit"}), TrainerError,
        "compression_params={'type': '2bit'}: MXNet compresses only where the kvstore updates the weights; "
        "leave it out, or take mxmp.distributed.KVStore(..., transport='float16')."),
    "compression of a module": (
        lambda: module("O2", "dist_sync", compression_params={"type": "2bit", "threshold": 0.5}), TrainerError,
        "compression_params: MXNet compresses only float32 gradients; use a policy with "
        "param_dtype='float32', or no compression."),
    "a text for a command": (lambda: plan_processes("python train.py", 1), LaunchError,
        "command is the text 'python train.py'; give a list, as ['python', 'train.py']."),
    "no workers": (lambda: plan_processes(["true"], 0), LaunchError,
        "a job of 0 workers and 1 servers cannot run; give at least 1 of each."),
    "a host by name": (
        lambda: plan_processes(["true"], 1, hosts=["node1"]), LaunchError,
        "host 'node1': MXNet's processes listen on and are found by an IPv4 address; give one."),
    "another machine": (
        lambda: plan_processes(["true"], 1, hosts=["192.0.2.1"]), LaunchError,
        "cannot listen on 192.0.2.1: Cannot assign requested address; give an address of this machine."),
    "ports": (
        lambda: plan_processes(["true"], 1, port=65534), LaunchError,
        "port 65534: the job needs 3 ports from there; give one from 1 to 65533."),
    "no program": (
        lambda: start("no-such-program"), LaunchError,
        "worker 1: cannot run 'no-such-program': there is no such command."),
    "a script": (script, LaunchError,
        "worker 1: cannot run '.../train.py': there is no such command; it is no executable, so write `python "
        ".../train.py`."),
    "a port in use": (port_in_use, LaunchError, "worker 1: port ... of 127.0.0.1: Address already in use..."),
}  # fmt: skip


@messages.each(TABLE)
def test_messages(call, error, text, tmp_path):
    messages.check(call, error, text, tmp_path)
