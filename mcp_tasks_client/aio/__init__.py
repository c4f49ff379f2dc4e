"""The ground: time, tasks and cancellation, for asyncio and trio alike."""
