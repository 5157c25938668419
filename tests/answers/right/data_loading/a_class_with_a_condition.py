# a class with a condition

import threading


class Prefetcher:
    def __init__(self, batches, depth, device):
        self.shelf, self.state, self.depth = [], {"over": False, "error": None}, depth
        self.changed = threading.Condition()
        work = (batches, depth, device, self.shelf, self.state, self.changed)
        self.thread = threading.Thread(target=self.fill, args=work, daemon=True)
        self.thread.start()

    @staticmethod
    def fill(batches, depth, device, shelf, state, changed):
        try:
            iterator = iter(batches)
            while True:
                with changed:
                    changed.wait_for(lambda: len(shelf) < depth or state["over"])
                    if state["over"]:
                        return
                batch = next(iterator)
                if device.type == "cuda":
                    batch = [tensor.pin_memory() for tensor in batch]
                batch = tuple(tensor.to(device, non_blocking=True) for tensor in batch)
                with changed:
                    shelf.append(batch)
                    changed.notify_all()
        except BaseException as error:
            with changed:
                state["error"] = error
                changed.notify_all()

    def __iter__(self):
        return self

    def __next__(self):
        with self.changed:
            self.changed.wait_for(lambda: self.shelf or self.state["error"])
            if self.shelf:
                batch = self.shelf.pop(0)
                self.changed.notify_all()
                return batch
            raise self.state["error"]

    def close(self):
        with self.changed:
            self.state["over"] = True
            self.changed.notify_all()
        self.thread.join()


def prefetched(batches, depth, device):
    return Prefetcher(batches, depth, device)
