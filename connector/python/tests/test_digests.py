"""Digests of weights are those of the files that are there now."""

import hashlib
import os
import pathlib
import tempfile
import unittest
import unittest.mock

from rackline.engines.digests import digests


def sha256(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


class Digests(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        cache = {"RACKLINE_CACHE": str(self.folder / "cache")}
        self.enterContext(unittest.mock.patch.dict(os.environ, cache))
        self.weights = self.folder / "weights"

    def kept(self):
        return len(list((self.folder / "cache" / "weights").iterdir()))

    def test_a_kept_digest_is_used_again(self):
        self.weights.write_bytes(b"one")
        expected = [sha256(self.weights)]
        self.assertEqual(digests([self.weights]), expected)
        self.assertEqual(digests([self.weights]), expected)
        self.assertEqual(self.kept(), 1)

    def test_other_weights_of_equal_path_size_and_time_have_their_own_digest(self):
        """As in images whose modification times are all the same."""
        for content in (b"one", b"two"):
            self.weights.write_bytes(content)
            os.utime(self.weights, (1, 1))
            self.assertEqual(digests([self.weights]), [sha256(self.weights)])


if __name__ == "__main__":
    unittest.main()
