"""A process of another node that gets pages: what it is to do comes as JSON in the first argument, the
digests of the pages it got go out as one line of JSON."""

from __future__ import annotations

import hashlib
import json
import sys

from host_pool import indices, mha, page
from test_storage import storage


def main() -> None:
    told = json.loads(sys.argv[1])
    pool = mha(told["layout"])
    own = storage(pool, told["settings"])
    pages = list(range(len(told["keys"])))
    found = own.batch_exists(told["keys"])
    got = own.batch_get_v1(told["keys"], indices(pool, pages))
    digests = [hashlib.sha256(page(pool, number)).hexdigest() for number in pages]
    own.close()
    print(json.dumps({"found": found, "got": got, "digests": digests}), flush=True)


if __name__ == "__main__":
    main()
