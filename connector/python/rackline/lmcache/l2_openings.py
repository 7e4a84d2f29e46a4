"""The sessions of an adapter: one for each form of objects, opened when it is first asked for.

That can take minutes, for the weights of a model may have to be read. So it is done in a thread of its
own, under no lock that those need who use what is open.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from concurrent.futures import Future, InvalidStateError

from rackline.engines.blocks import SharedBlocks
from rackline.engines.weights import digest_of_folder
from rackline.lmcache.l2_identity import ObjectForm, object_model
from rackline.lmcache.l2_settings import L2Settings

logger = logging.getLogger(__name__)


class Opening:
    """A form that is being opened, or was."""

    def __init__(self, wait_ms: int, put_off_ms: int) -> None:
        self.opened: Future[SharedBlocks | None] = Future()
        """What is open now; ``None`` when that cannot be, or nothing is opened any more."""
        self.waited: Future[None] = Future()
        """Done when it is open, and at the latest ``wait_ms`` after it was begun."""
        self.put_off: Future[None] = Future()
        """The same for ``put_off_ms``."""
        ends = [(wait_ms, self.waited), (put_off_ms, self.put_off)]
        self._timers = [threading.Timer(ms / 1000, _done, [end]) for ms, end in ends]
        for timer in self._timers:
            timer.daemon = True
            timer.start()

    @property
    def blocks(self) -> SharedBlocks | None:
        """What is open; ``None`` when nothing is, or not yet."""
        return self.opened.result() if self.opened.done() else None

    def end(self, blocks: SharedBlocks | None) -> None:
        """Tells what is open. Only the first time counts."""
        for timer in self._timers:
            timer.cancel()
        with contextlib.suppress(InvalidStateError):
            self.opened.set_result(blocks)
        _done(self.waited)
        _done(self.put_off)


def _done(future: Future[None]) -> None:
    with contextlib.suppress(InvalidStateError):
        future.set_result(None)


class Openings:
    """For any thread. Nothing is opened once this has ended, and everything that is open is closed."""

    def __init__(self, settings: L2Settings) -> None:
        self._settings = settings
        self._changed = threading.Lock()
        self._by_form: dict[ObjectForm, Opening] = {}
        self._weights: dict[str, Future[str]] = {}
        self._refused: dict[str, str] = {}
        # Held while a session is opened, and not while weights are read: the end waits for that only.
        self._entering = threading.Lock()
        self._shared: list[SharedBlocks] = []
        self._ended = False

    def of(self, form: ObjectForm) -> Opening:
        """The opening of a form, begun when it was not. Waits for nothing."""
        with self._changed:
            if form in self._by_form:
                return self._by_form[form]
            waits = self._settings.lookup_timeout_ms, self._settings.task_timeout_ms // 2
            opening = self._by_form[form] = Opening(*waits)
            ended = self._ended
        if ended:
            opening.end(None)
            return opening
        # A process that ends does not wait for it.
        thread = threading.Thread(
            target=self._open, args=(form, opening), name="rackline_open", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            # The system has no more threads. A thread that waits for this would wait forever.
            self._refuse(form, error)
            opening.end(None)
        return opening

    def shared(self) -> list[SharedBlocks]:
        """Everything that was opened."""
        with self._changed:
            return list(self._shared)

    def opening(self) -> list[str]:
        """The models that are being opened."""
        with self._changed:
            return sorted(
                {form.model_name for form, item in self._by_form.items() if not item.opened.done()}
            )

    def refused(self) -> dict[str, str]:
        """The models that cannot be shared, and why."""
        with self._changed:
            return dict(self._refused)

    def stop(self) -> None:
        """Nothing is opened, found, loaded or saved from now on. Waits for a session that is being
        opened, and for no weights."""
        with self._entering, self._changed:
            self._ended = True
            openings, shared = list(self._by_form.values()), list(self._shared)
        for blocks in shared:
            blocks.stop()
        for opening in openings:
            opening.end(None)

    def close(self) -> None:
        """Closes everything that was opened, after :meth:`stop`."""
        for blocks in self.shared():
            blocks.close()

    def _open(self, form: ObjectForm, opening: Opening) -> None:
        blocks = None
        try:
            weights = self._settings.model_id or self._weights_of(form.model_name)
            model = object_model(form, weights, self._settings.engines_on_gpu)
            with self._entering:
                if not self._ended:
                    blocks = SharedBlocks(self._settings, model, form.bytes)
                    with self._changed:
                        self._shared.append(blocks)
        except Exception as error:
            self._refuse(form, error)
        finally:
            opening.end(blocks)

    def _refuse(self, form: ObjectForm, error: Exception) -> None:
        why = str(error) or repr(error)
        logger.error("Rackline: %s is not shared: %s", form.model_name, why)
        with self._changed:
            self._refused[form.model_name] = why

    def _weights_of(self, model_name: str) -> str:
        """What stands for the weights of a model, read once for all of its forms."""
        with self._changed:
            first = model_name not in self._weights
            weights = self._weights.setdefault(model_name, Future())
        if first:
            try:
                weights.set_result(digest_of_folder(model_name))
            except BaseException as error:
                weights.set_exception(error)
        return weights.result()
