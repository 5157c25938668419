"""The reference answers of solutions/08_data_loading.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import math
import os
import queue
import statistics
import threading
import time
import warnings
from helpers import Claims, DigitFiles, LoaderTimeline, PickledByValue, Prediction, SmallCNN, benchmark, check, compare, decode, explore, hint, human_bytes, loader_path, pick_device, rotate, script_as_notebook, show, show_table, sign_of_life
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch.utils.data import DataLoader, Dataset



def prefetched(batches, depth, device):
    ready, room, over = queue.SimpleQueue(), threading.Semaphore(depth), threading.Event()

    def send(tensor):
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)

    def draw():
        try:
            source = iter(batches)
            while room.acquire() and not over.is_set():  # room for one batch more
                ready.put((tuple(send(tensor) for tensor in next(source)), None))
        except Exception as error:  # StopIteration, too: it says that these were all
            ready.put((None, error))

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    try:
        while True:
            batch, error = ready.get()
            if error is not None:
                break
            room.release()  # the loop takes this one
            yield batch
        if not isinstance(error, StopIteration):
            raise error
    finally:  # when the generator is closed as well
        over.set()
        room.release()
        thread.join()
