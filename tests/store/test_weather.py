"""Exactly once over real sockets, through a proxy that drops answers, sends twice, delays and cuts."""

import threading

import pytest
import torch
from proxy import Weather, behind_proxies

import gradtide
from gradtide.timeouts import Timeouts

CLIENTS = 8
TRIPS = 150
WINDOW = 100  # pushes that a client has under way
WEATHER = Weather(drop_answers=0.3, duplicate=0.1, delay=0.02, cut=0.002)


def push_through(forks, folder, pushes):
    totals = []
    counts = behind_proxies(forks, folder, WEATHER, lambda address: totals.append(_push_all(address, pushes)))
    return totals[0], counts


def _push_all(address, pushes):
    """Each client pushes 1, 2, 3, … to two keys; returns what is there in the end."""
    failed = []
    patience = Timeouts(resend_s=0.02, step_s=120)

    def work(client):
        try:
            with gradtide.connect(address, timeouts=patience) as store:
                handles = []
                for number in range(client + 1, pushes + 1, CLIENTS):
                    if len(handles) == WINDOW:
                        handles.pop(0).wait()
                    key = f"k{number % 5}"
                    handles.append(store.push(key, torch.tensor([number, 1], dtype=torch.int64)))
                for handle in handles:
                    handle.wait()
        except BaseException as error:
            failed.append(error)

    def work_in_one_trip():
        """push_pull of one small key with nothing else under way goes another way through the client."""
        try:
            with gradtide.connect(address, timeouts=patience) as store:
                for number in range(1, TRIPS + 1):
                    seen = store.push_pull("trips", torch.tensor([1], dtype=torch.int64))
                    assert seen.tolist() == [number]
        except BaseException as error:
            failed.append(error)

    with gradtide.connect(address, timeouts=patience) as store:
        store.init({f"k{i}": torch.zeros(2, dtype=torch.int64) for i in range(5)}, update=gradtide.update("add"))
        store.init("trips", torch.zeros(1, dtype=torch.int64), update=gradtide.update("add"))
        threads = [threading.Thread(target=work, args=(client,)) for client in range(CLIENTS)]
        threads.append(threading.Thread(target=work_in_one_trip))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        return sum(store.pull([f"k{i}" for i in range(5)])).tolist()


def check(forks, folder, pushes):
    total, counts = push_through(forks, folder, pushes)
    assert total == [pushes * (pushes + 1) // 2, pushes]
    assert counts["dropped"] > 0.2 * pushes
    assert counts["duplicated"] > 0.1 * pushes
    assert counts["cut"] > 0
    assert counts["delayed"] > 0


def test_thousands_of_pushes_through_bad_weather_count_once_each(forks, tmp_path):
    check(forks, tmp_path, 5_000)


@pytest.mark.slow
def test_a_hundred_thousand_pushes_through_bad_weather_count_once_each(forks, tmp_path):
    check(forks, tmp_path, 100_000)
