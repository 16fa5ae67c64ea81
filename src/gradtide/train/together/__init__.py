"""A run on several workers, and all that they tell in one place.

run.py       fit's run as one worker of a job
telling.py   one worker tells all; the checkpoint that all go on with
own_parts.py batches of which a worker reads its part alone
split_run.py fit's run of a split model, on devices or as one worker of a job
worker.py    what each worker of `gradtide train --workers` runs
merge.py     the lines of all workers as the metrics of one run
pictures.py  where each worker's time went, as a picture
reporting.py whom a run tells how it goes, besides its observer: Ray Train
"""
