"""Golden runs: digests of small trainings with every method, to the last bit, stored in `digests.json`.

    python -m tests.golden                     write the digests again, after a change that is meant to change them
    python -m tests.golden --check             compare all cases with the stored digests
    python -m tests.golden --check fire redo   compare the cases whose names contain one of these words

`constructors.py` is the only file that makes methods; `trainings.py` trains in Lightning, `other_loops.py` in a plain
loop and other libraries, `small_loops.py` on many networks and optimizers; `cases.py` says what with. The state of
callbacks in checkpoints is not part of a digest; that a resumed training continues well, is. `messages.py` is a table
of what wrong calls and odd trainings say.
"""
