"""A run on several workers, and all that they tell in one place.

run.py       fit's run as one worker of a job
worker.py    what each worker of `gradtide train --workers` runs
log.py       a worker's events as lines of a file: written, followed while it runs, read
merge.py     the lines of all workers as the metrics of one run
pictures.py  where each worker's time went, as a picture
trace.py     the same over time, as a Chrome trace
"""
