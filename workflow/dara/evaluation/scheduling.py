"""Many cases at once: the programs of the cases run side by side, their prompts answered by one session."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator

from dara.evaluation.multi_turn import Program, Prompt
from dara.evaluation.partial import Place
from dara.evaluation.records import Response
from dara.evaluation.samplers import Sampler, Session


def run_programs(
    waiting: Iterable[tuple[Place, Callable[[], Program]]], session: Session, sampler: Sampler, seed: int
) -> Iterator[list[tuple[Place, Response]]]:
    """Yield what is kept of cases as soon as their programs end, and an empty list when others have only gone on.

    As many programs run at once as the session can use.

    The seed of a request follows from `seed`, case, sample and step alone: it is the same whatever ran before.
    """
    queue, running = iter(waiting), _Running(session, sampler, seed)
    while True:
        for place, make in itertools.islice(queue, session.capacity - len(running.programs)):
            running.begin(place, make())
        if not running.programs:
            return
        ended = []
        for place, response in session.poll():
            kept = running.go_on(place, response)
            if kept is not None:
                ended.append((place, kept))
        yield ended


class _Running:
    """Programs that wait for a response, and how many each has had."""

    def __init__(self, session: Session, sampler: Sampler, seed: int) -> None:
        self.programs: dict[Place, Program] = {}
        self._steps: dict[Place, int] = {}
        self._session, self._sampler, self._seed = session, sampler, seed

    def begin(self, place: Place, program: Program) -> None:
        """Start a program and ask what it wants first."""
        self.programs[place], self._steps[place] = program, 0
        self._ask(place, next(program))

    def go_on(self, place: Place, response: Response) -> Response | None:
        """Hand a program its response; what it keeps of the case where it ends by that."""
        self._steps[place] += 1
        try:
            prompt = self.programs[place].send(response)
        except StopIteration as end:
            del self.programs[place], self._steps[place]
            return end.value
        self._ask(place, prompt)
        return None

    def _ask(self, place: Place, prompt: Prompt) -> None:
        text = prompt if isinstance(prompt, str) else self._sampler.render(prompt)
        self._session.submit(place, text, request_seed(self._seed, place, self._steps[place]))


def request_seed(seed: int, place: Place, step: int) -> int:
    """A seed (31 bits) of a request's own."""
    text = f"{seed}/{place[0]}/{place[1]}/{step}"
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:4], "big") >> 1
