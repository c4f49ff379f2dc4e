"""Imports one set of modules and says what that took. Holds nothing else, so that it takes all of it.

``python -m tests.benchmarks.imports ours|dependencies``
"""

import sys
import time

SETS = {
    "ours": ["mcp_tasks_client.client"],  # the package itself imports nothing before a name of it is used
    "dependencies": ["httpx", "pydantic", "tenacity", "mcp_types"],
}
FOREIGN = ("mcp", "fastmcp", "aiohttp")


def main() -> None:
    """Import, and print one line of JSON."""
    names = SETS[sys.argv[1]]
    cpu_s = time.process_time()
    for name in names:
        __import__(name)
    cpu_s = time.process_time() - cpu_s
    print(f'{{"cpu_s": {cpu_s}, "foreign": {sum(name in sys.modules for name in FOREIGN)}}}')


if __name__ == "__main__":
    main()
