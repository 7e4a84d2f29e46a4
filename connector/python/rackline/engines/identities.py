"""The identity of this engine in the pool, for `rackline status` and for engines that find nothing."""

from __future__ import annotations

import json
import logging
import threading
import time

import rackline
from rackline._native import identity_hash
from rackline.engines.attachment import Attachment
from rackline.engines.words import Words, difference, remedy

logger = logging.getLogger(__name__)

# Between two publishes of the same identity, which is evicted when it is not used, and cleared with the
# blocks of the tenant without a name.
REGISTER_EVERY_S = 60.0
REGISTERED = ("published", "already_there")
# Before the identities of others are read again; twice as long each time.
LOOK_EVERY_S, LOOK_EVERY_S_MAX = 60.0, 3600.0
# Blocks that differ in one of these are not meant to be shared.
MEANT_TO_DIFFER = ("tenant", "model", "name", "share")


class Registration:
    """Publishes what the blocks of an engine are, as a block of their length. For any thread."""

    def __init__(self, attachment: Attachment, words: Words, block_bytes: int) -> None:
        self._attachment, self._block_bytes = attachment, block_bytes
        self._text = json.dumps(words, sort_keys=True)
        self._publish: rackline.Publish | None = None
        self._next_s = 0.0
        self._lacks: str | None = None
        self._changed = threading.Lock()

    def renew(self) -> None:
        """Registers it, or says that it is in use, when it is time. Does not wait, and raises nothing:
        blocks are shared without it, too. Why the pool lacks it is logged, once a reason."""
        now_s = time.monotonic()
        with self._changed:
            self._take_outcome()
            if now_s < self._next_s or self._publish is not None:
                return
            self._next_s = now_s + REGISTER_EVERY_S
            try:
                self._begin()
            except rackline.Error as error:
                self._say(str(error))

    def _begin(self) -> None:
        content = self._text.encode()
        if len(content) > self._block_bytes:
            self._say(f"it has {len(content)} bytes, and a block has {self._block_bytes}")
            return
        padded = bytearray(content.ljust(self._block_bytes, b"\0"))
        memory = rackline.block_memory(memoryview(padded).cast("B", (1, len(padded))))
        session = self._attachment.pool.identity_session(self._block_bytes)
        self._publish = session.publish(identity_hash(self._text), 0, memory, [0])

    def _take_outcome(self) -> None:
        if self._publish is None:
            return
        try:
            result = self._publish.poll()
        except rackline.Error as error:
            self._publish = None
            self._say(str(error))
            return
        if result is None:
            return
        self._publish = None
        outcome = result.outcomes[0]
        if outcome in REGISTERED:
            self._lacks = None
        else:
            self._say(result.messages.get(outcome, outcome))

    def _say(self, why: str) -> None:
        if why != self._lacks:
            self._lacks = why
            logger.warning(
                "Rackline: the pool lacks the identity of these blocks, and `rackline status` cannot show it; "
                "blocks are shared all the same: %s",
                why,
            )


class Others:
    """Why an engine that has never found anything finds nothing: whether others of the same model are
    in the pool, and in which word they differ. For any thread."""

    def __init__(self, region: str, words: Words) -> None:
        self._region, self._words = region, words
        self._look_s, self._wait_s = 0.0, LOOK_EVERY_S
        self._thread: threading.Thread | None = None
        self._why: tuple[str, str] | None = None
        self._changed = threading.Lock()

    def why_absent(self) -> tuple[str, str] | None:
        """The reason and its sentence, as far as it is known: the pool is read in a thread."""
        now_s = time.monotonic()
        with self._changed:
            looks = self._thread is not None and self._thread.is_alive()
            if now_s < self._look_s or looks:
                return self._why
            self._look_s = now_s + self._wait_s
            self._wait_s = min(2 * self._wait_s, LOOK_EVERY_S_MAX)
            self._thread = threading.Thread(
                target=self._look, name="rackline-identities", daemon=True
            )
            self._thread.start()
        return self._why

    def _look(self) -> None:
        try:
            found = rackline.identities(self._region)
        except rackline.Error as error:
            logger.debug("Rackline: the identities in the pool are not known: %s", error)
            return
        self._why = why_different(self._words, [words for text, _ in found for words in words_in(text)])


def words_in(text: str) -> list[Words]:
    """The words of an identity; none when the text is no object of JSON. Any program of the rack may have
    written it."""
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [words] if isinstance(words, dict) else []


def why_different(own: Words, found: list[Words]) -> tuple[str, str] | None:
    """Of the identities that were meant to share with ``own`` and do not, the one that differs in the
    fewest words: the reason, and a sentence."""
    meant = [
        other
        for other in found
        if all(other.get(name) == own.get(name) for name in MEANT_TO_DIFFER)
        and difference(own, other) is not None
    ]
    if not meant:
        return None
    # A word that one of the two versions of Rackline does not know says nothing.
    nearest = min(meant, key=lambda other: sum(other.get(name, own[name]) != own[name] for name in own))
    word = difference(own, nearest)
    return f"identity_{word}", (
        f"the pool has blocks of the same model that this engine cannot use: their {word} is "
        f"{nearest[word]!r}, here it is {own[word]!r}; {remedy(word)}"
    )
