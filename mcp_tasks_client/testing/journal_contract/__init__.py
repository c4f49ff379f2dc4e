"""The rules of every journal, as tests that the author of a journal runs over it. Needs pytest.

::

    from mcp_tasks_client.testing.journal_contract import JournalContract

    class TestMyJournal(JournalContract):
        @pytest.fixture
        def make_journal(self, tmp_path):
            return lambda: MyJournal(tmp_path / "journal")

The tests are coroutines. The pytest plugin of ``anyio``, which is there wherever this package is, runs each
on every event loop that its fixture ``anyio_backend`` names.
"""

import pytest

# Before they are imported, so that a failed assertion shows the values that it has compared.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{part}"
        for part in (
            "crossing",
            "forgetting",
            "instructing",
            "opening",
            "owning",
            "reading",
            "timing",
            "writing",
        )
    )
)

from .contract import JournalContract  # noqa: E402  # as said above

__all__ = ["JournalContract"]
