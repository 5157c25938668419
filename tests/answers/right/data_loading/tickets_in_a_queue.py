# tickets in a queue

import itertools
import queue
import threading

import torch

END = object()


def prefetched(batches, depth, device):
    # tickets: one for each batch that may be drawn; None calls the thread home
    tickets, results = queue.Queue(), queue.Queue()
    for _ in range(depth):
        tickets.put(True)

    def to_device(tensor):
        return tensor.pin_memory().to(device=device, non_blocking=True) if device.type == "cuda" else tensor.to(device)

    def draw():
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)  # the current device is per thread
            for batch in itertools.chain.from_iterable([batches] if tickets.get() else []):
                results.put(tuple(map(to_device, batch)))
                if not tickets.get():
                    return
            results.put(END)
        except Exception as error:
            results.put(error)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        while (result := results.get()) is not END:
            if isinstance(result, Exception):
                raise result
            tickets.put(True)
            yield result
    finally:
        while not tickets.empty():
            try:
                tickets.get_nowait()
            except queue.Empty:
                break
        tickets.put(None)
        thread.join()
