# SPDX-License-Identifier: MIT
"""Apart from conftest.py, which imports torch: emulated.py does without."""
import threading


def in_threads(work, arguments):
    """Calls work with each of the arguments, in a thread each; raises the first error."""
    errors = []

    def guarded(argument):
        try:
            work(argument)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=guarded, args=(a,)) for a in arguments]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
