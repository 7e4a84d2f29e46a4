"""A process of another node that gets chunks: what it is to do comes as JSON in the first argument, the
digests of the chunks it got go out as one line of JSON."""

from __future__ import annotations

import hashlib
import json
import sys

from managers import PLUGIN, content, keys, manager


def main() -> None:
    told = json.loads(sys.argv[1])
    with manager(told["settings"]) as own:
        got = own.batched_get(keys(told["count"]), location=PLUGIN)
        digests = [item and hashlib.sha256(content(item)).hexdigest() for item in got]
        for item in got:
            if item is not None:
                item.ref_count_down()
    print(json.dumps(digests), flush=True)


if __name__ == "__main__":
    main()
