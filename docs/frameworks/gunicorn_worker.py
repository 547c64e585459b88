"""For gunicorn: ``--worker-class gunicorn_worker.Worker --graceful-timeout 400 --timeout 400``."""

from uvicorn_worker import UvicornWorker


class Worker(UvicornWorker):
    """Answers what still runs 30 s after SIGTERM; gunicorn's own options cannot say that."""

    CONFIG_KWARGS = UvicornWorker.CONFIG_KWARGS | {"timeout_graceful_shutdown": 30}
