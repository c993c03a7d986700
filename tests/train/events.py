"""Reads TensorBoard's events with TensorBoard, and prints them: FILE.py FOLDER

Each line has the form NAME STEP VALUE. Exits with 77 if TensorBoard is not installed.
"""

import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as error:
    print(error)
    sys.exit(77)

events = EventAccumulator(sys.argv[1])
events.Reload()
for name in sorted(events.Tags()["scalars"]):
    for scalar in events.Scalars(name):
        print(name, scalar.step, scalar.value)
