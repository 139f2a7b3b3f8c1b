"""Functions and classes of a notebook in other processes: they mean there what they mean on a stock kernel."""

from __future__ import annotations

from tests.unmodified.support import Pair, needs

_FUNCTION = """
    import torch

    def total(count):
        result = 0
        for index in range(count):
            for other in [1, 2]:
                result += index * other
        return result
"""


@needs("joblib", "cloudpickle")
def test_cloudpickle_in_another_process(pair: Pair) -> None:
    """A function and a model class whose forward has a loop are loaded where only torch is, and in joblib's workers.

    What the program prints comes to a thread, with its exit status, while the cell computes.
    """
    printed = pair.check(
        _FUNCTION,
        """
        from joblib import Parallel, delayed

        print(Parallel(n_jobs=2, backend="loky")(delayed(total)(count) for count in range(5)))
        """,
        """
        import cloudpickle

        class Model(torch.nn.Module):
            def forward(self, values):
                for _ in range(3):
                    values = values * 2
                return values

        with open("pickled", "wb") as file:
            cloudpickle.dump((total, Model()), file)
        """,
        """
        import subprocess, sys, time
        from concurrent.futures import ThreadPoolExecutor

        program = '''
        import pickle, sys, torch
        total, model = pickle.load(open("pickled", "rb"))
        print(total(4), model(torch.ones(2)).tolist())
        sys.exit(3)
        '''
        command = [sys.executable, "-c", program.strip()]
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(subprocess.run, command, capture_output=True, text=True)
            while not run.done():
                torch.ones(100, 100) @ torch.ones(100, 100)
                time.sleep(0.01)
        done = run.result()
        print(done.stdout + done.stderr, done.returncode)
        """,
    )
    assert printed == "18 [8.0, 8.0]\n 3\n"


def test_multiprocessing_by_fork(pair: Pair) -> None:
    """Workers run the notebook's functions, and torch in them."""
    printed = pair.check(
        _FUNCTION,
        """
        import multiprocessing

        def mean(count):
            values = torch.arange(float(count))
            for _ in range(2):
                values = values + 1
            return values.mean().item()

        print(torch.ones(3).sum())
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(total, range(5)), pool.map(mean, range(1, 4)))
        """,
        """
        def say(queue):
            queue.put(multiprocessing.current_process().name)

        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        worker = context.Process(target=say, args=(queue,), name="worker")
        worker.start()
        print(queue.get(), worker.join(), worker.exitcode)
        """,
    )
    assert printed == "worker None 0\n"


@needs("distributed")
def test_dask_local_cluster(pair: Pair) -> None:
    """Functions with loops run in a cluster's worker processes."""
    printed = pair.check(
        _FUNCTION,
        """
        from dask.distributed import Client, LocalCluster

        cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0")
        client = Client(cluster)
        print(client.gather(client.map(total, range(5))))
        print(client.submit(lambda count: [total(each) for each in range(count)], 3).result())
        """,
        """
        client.close()
        cluster.close()
        print("closed")
        """,
    )
    assert printed == "closed\n"
