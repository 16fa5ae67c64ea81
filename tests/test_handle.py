import threading

import pytest

from gradtide.errors import CommunicationError
from gradtide.handle import Handle


def test_waiting_returns_the_result_once_somebody_finishes_it():
    handle = Handle("a push")
    assert not handle.done()
    thread = threading.Thread(target=handle.finish, args=(7,))
    thread.start()
    assert handle.wait(10) == 7
    assert handle.done()
    assert handle.result() == 7
    thread.join()


def test_what_went_wrong_is_raised_by_who_waits():
    handle = Handle("a push")
    handle.fail(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        handle.wait()
    with pytest.raises(ValueError, match="no"):
        handle.result()


def test_waiting_too_short_says_what_is_not_done():
    handle = Handle("a push of block 3")
    with pytest.raises(CommunicationError, match=r"a push of block 3 is not done after 0\.01 s"):
        handle.wait(0.01)
    with pytest.raises(CommunicationError, match="wait"):
        handle.result()


def test_who_asked_is_told_of_the_end_once_and_at_once_if_it_is_over():
    handle, told = Handle("a push"), []
    handle.when_done(told.append)
    handle.finish(7)
    handle.when_done(told.append)
    assert told == [None, None]
    failed = Handle("a push")
    failed.when_done(told.append)
    failed.fail(error := ValueError("no"))
    assert told[2:] == [error]
    assert failed.ended(0)
    assert failed.error() is error
