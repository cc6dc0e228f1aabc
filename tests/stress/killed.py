"""A save that is killed, as by ``kill -9``, at each of its renames in turn."""

import itertools
import os
import shutil
import signal
import warnings


def killed_at_each_rename(save, folder):
    """Yield the number of the rename at which a process that saves was killed, the folder as it is then.

    Each save begins with what is in the folder now; the last one is not killed, and is not yielded.
    """
    before = shutil.copytree(folder, f"{folder}-before")
    for number in itertools.count():
        shutil.rmtree(folder)
        shutil.copytree(before, folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12, of threads; MXNet stops its own
            child = os.fork()
        if not child:
            _save_in_child(save, number)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
        yield number


def _save_in_child(save, number):
    replace, left = os.replace, iter(range(number))

    def replace_or_die(*args, **kwargs):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(*args, **kwargs)

    signal.alarm(60)
    os.replace = replace_or_die
    try:
        save()
        os._exit(0)
    finally:
        os._exit(1)
