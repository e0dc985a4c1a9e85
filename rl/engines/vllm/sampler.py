"""The sampler of `engine=vllm`: publishes the learner's weights to servers, and verifies what they then sample."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rl.engines.base import SamplingParams
from rl.engines.vllm.learner import VllmLearner
from rl.engines.vllm.options import VllmOptions
from rl.engines.vllm.remote import RemoteSampler
from rl.engines.vllm.replica import Replica
from rl.engines.vllm.replicas import Replicas
from rl.engines.vllm.server import StartedServer
from rl.engines.vllm.verify import PROMPTS, Mismatch, first_requests, mismatch_of, rows_of
from rl.engines.vllm.weights import Reloaded, Version, delete
from rl.errors import Stopped, UserError
from rl.rollouts import Completion
from rl.storage.disk import disk_errors

log = logging.getLogger("tanka")

UNTIED = "untied"  # follows the prefix: the checkpoint that a started server serves on a CPU
RATIO = 0.05  # how far ratio/mean of a step may be from 1; beyond the noise of a few hundred tokens


class VllmSampler(RemoteSampler):
    """folder: where versions are written; deleted in the end if `temporary`. prefix: of their names, unique to this start.

    Any thread may sample. A version is written between two updates of the learner, whose lock is held until its first
    completions were verified.
    """

    def __init__(
        self,
        options: VllmOptions,
        learner: VllmLearner,
        replicas: Replicas,
        server: StartedServer | None,
        folder: Path,
        prefix: str,
        temporary: bool,
    ) -> None:
        self.learner, self.folder, self.prefix = learner, folder, prefix
        self.temporary = temporary
        self.max_lag, self.max_mismatch = options.max_lag, options.max_mismatch
        self.weights = replicas.weights
        self.lock = threading.RLock()
        self.number = -1  # the learner's version when last published
        self.verified = -1  # the one whose completions were verified, on all servers that lived then
        self.older: list[Version] = []
        self.first: tuple[list[list[int]], SamplingParams] | None = None
        self.seconds = 0.0
        self.said = False  # how far the first server's log-probabilities are from the learner's
        self.measured: list[Mismatch] = []
        super().__init__(replicas, None, server)

    def publish(self) -> None:
        """Hands the learner's weights to all servers if they have changed, and verifies them.

        The first version is verified when it is first sampled from: only then are there prompts. Raises Stopped when no
        server takes the weights, or when one samples from others.
        """
        with self.lock, self.learner.lock:
            if self.number == self.learner.version and self.version is not None:
                return
            start = time.monotonic()
            number = self.learner.version
            name = f"{self.prefix}{number:06d}"
            version = Version(name, self.folder / name)
            self._write(version)
            if self.version is not None:
                self.older.append(self.version)
            if isinstance(self.weights, Reloaded):
                self.weights.newest = version
            self.version, self.number = version, number
            self.background.run(self._load(version))
            self.background.run(self._retire())
            self.seconds += time.monotonic() - start
            if self.first is not None:
                self.verify()

    def _write(self, version: Version) -> None:
        """Raises Stopped when `weights_dir` cannot be written: the steps so far are saved in the run directory."""
        assert version.folder is not None
        try:
            with disk_errors("engine.weights_dir", self.folder):
                self.learner.write_weights(version.folder, self._dtype())
        except UserError as error:
            raise Stopped(str(error)) from error

    async def _load(self, version: Version) -> None:
        async def load(replica: Replica) -> None:
            assert replica.facts is not None
            replica.trusted = False
            await self.weights.ensure(self.replicas.client, replica.url, replica.facts, version)

        await self.replicas.on_all(load)

    async def _retire(self) -> None:
        """Deletes the versions that nobody samples from any more."""
        for version in [each for each in self.older if not each.users]:
            urls = [replica.url for replica in self.replicas.alive]
            await self.weights.retire(self.replicas.client, urls, version)
            self.older.remove(version)

    def ready(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Version:
        """The version that was published last; at the first call, published and verified here."""
        with self.lock:
            if self.version is None or self.number != self.verified:
                with self.learner.lock:
                    self.publish()  # again, if an update came in between: only newest weights can be verified
                    self.first = [list(prompt) for prompt in prompts[:PROMPTS]], params
                    self.verify()
            return super().ready(prompts, params)  # inside the lock: a version without users is deleted

    def tend(self) -> None:
        """Verifies servers that came back, unless the learner is computing or has moved on."""
        if not any(replica.alive and not replica.trusted for replica in self.replicas.replicas):
            return
        if not self.lock.acquire(blocking=False):
            return
        try:
            if self.number == self.learner.version and self.learner.lock.acquire(blocking=False):
                try:
                    self.verify()
                finally:
                    self.learner.lock.release()
        finally:
            self.lock.release()

    def verify(self) -> None:
        """Scores first completions of each server that is not yet trusted. Raises Stopped when one has other weights."""
        start = time.monotonic()
        assert self.first is not None and self.version is not None
        prompts, params = self.first
        requests = first_requests(prompts, params, self.learner.temperature)
        version = self.version

        async def sample(replica: Replica) -> list[list[Completion]] | None:
            if replica.trusted:
                return None
            asked = (self.replicas.sample(replica, request, version) for request in requests)
            return await asyncio.gather(*asked)

        sampled = self.background.run(self.replicas.on_all(sample))
        for replica in self.replicas.replicas:
            if completions := sampled.get(replica.url):
                self._trust(replica, rows_of(requests, completions))
        self.verified = self.number
        self.seconds += time.monotonic() - start

    def _trust(self, replica: Replica, rows: list) -> None:
        formats = (self._format(replica), str(self.learner.precision.compute).removeprefix("torch."))
        found = mismatch_of(rows, self.learner.logprobs(rows), formats)
        if not self.said:
            self.said = True
            log.info(
                "%s computes in %s, the learner in %s: |log rho| %.2g in the mean, %.2g at most",
                replica.url, *formats, found.mean, found.max,
            )  # fmt: skip
        if excess := found.excess(self.max_mismatch):
            raise Stopped(
                f"engine=vllm: {replica.url} does not sample from the weights that were published: {excess}; check its model"
                f" and versions (docs/vllm.md), or accept this with engine.max_mismatch={max(found.mean * 2, 1e-6):.1g}"
            )
        self.measured.append(found)
        replica.trusted = True

    def _format(self, replica: Replica) -> str:
        """The server's number format; unknown without VLLM_SERVER_DEV_MODE=1, and then most likely bfloat16."""
        assert replica.facts is not None
        return replica.facts.dtype or "bfloat16"

    def _dtype(self) -> str | None:
        """The format that full weights are written in: all servers', where they have one."""
        formats = {self._format(replica) for replica in self.replicas.replicas if replica.facts is not None}
        return formats.pop() if len(formats) == 1 else None

    def _check_ratio(self) -> None:
        """Warns of a step whose log-probabilities were wrong, although those of the verification were right.

        The mean of learner / sampler over sampled tokens is 1 for any learner, if the sampler tells the probabilities that
        it drew from. Not with a lag, and not with a truncated support.
        """
        ratio = self.learner.ratios.get(self.number, 1.0)
        self.learner.ratios.clear()
        if self.max_lag or self.first is None or self.first[1].support.truncated:
            return
        limit = max(RATIO, self.max_mismatch or 0.0)
        if not abs(ratio - 1) <= limit:  # so that NaN is warned of
            log.warning(
                "this step was trained on wrong log-probabilities: ratio/mean is %.4g, expected 1 within %g; a server returns others"
                " than at its verification; check the servers", ratio, limit,
            )  # fmt: skip

    def metrics(self) -> dict[str, float]:
        self._check_ratio()
        found, self.measured = self.measured, []
        seconds, self.seconds = self.seconds, 0.0
        return {
            **super().metrics(),
            "publish/seconds": seconds,
            **({"publish/mismatch": max(each.mean for each in found)} if found else {}),
            **({"publish/mismatch_max": max(each.max for each in found)} if found else {}),
        }

    def close(self) -> None:
        """Also takes this run's adapters off the servers and deletes what was written for them."""
        try:
            super().close()
        finally:
            for version in [*self.older, *([self.version] if self.version else [])]:
                delete(version.folder)
            for untied in self.folder.glob(f"{self.prefix}{UNTIED}*"):
                delete(untied)
            if self.temporary:
                delete(self.folder)
