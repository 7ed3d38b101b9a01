"""The topic exchange: patterns of words, ``*`` for one and ``#`` for any number (EX-05).

Owns the matching of words.  A key is split at every dot and an empty word is a word, but the empty key has none; the
same holds for patterns.  Only a whole word ``*`` or ``#`` is special (``rabbit_exchange_type_topic``).

Patterns without a special word are found by the key itself; only the others make a trie.  The trie is walked once per
key, from the first word to the last, with all nodes that may match so far at hand: no pattern makes it go back, so the
cost is words times nodes reached, never more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.broker.exchanges.exchange import Exchange, Targets, add_target, remove_target

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from connector.amqp.wire import Table
    from connector.broker.exchanges.binding import BindingKey, Destination
    from connector.broker.topology import ExchangeRecord

ONE = "*"
ANY = "#"

#: What every node without a literal word behind it shares; never written to.
_NO_WORDS: dict[str, Node] = {}


class Node:
    """What may follow after the words so far, and who is bound with exactly these words."""

    __slots__ = ("any", "one", "targets", "words")

    def __init__(self) -> None:
        self.words: dict[str, Node] = _NO_WORDS
        self.one: Node | None = None
        self.any: Node | None = None
        self.targets: Targets | None = None

    def child(self, word: str) -> Node:
        """The node behind this word, made when missing."""
        if word == ONE:
            self.one = node = self.one or Node()
        elif word == ANY:
            self.any = node = self.any or Node()
        else:
            if self.words is _NO_WORDS:
                self.words = {}
            node = self.words.get(word) or self.words.setdefault(word, Node())
        return node

    def drop_child(self, word: str) -> None:
        """Forget the node behind this word."""
        if word == ONE:
            self.one = None
        elif word == ANY:
            self.any = None
        else:
            del self.words[word]
            self.words = self.words or _NO_WORDS

    @property
    def has_children(self) -> bool:
        """True while a pattern goes on behind this node."""
        return bool(self.words) or self.one is not None or self.any is not None


def split(text: str) -> list[str]:
    """Words of a key or pattern; the empty one has none."""
    return text.split(".") if text else []


def simplify(words: list[str]) -> list[str]:
    """An equal pattern in which every run of special words is stars and then at most one ``#``.

    So ``#.*.#`` and ``*.#`` are one path, and below a ``#`` there is never another one at once.
    """
    simple: list[str] = []
    has_any = False
    for word in words:
        if word == ANY:
            has_any = True
            continue
        if has_any and word != ONE:
            simple.append(ANY)
            has_any = False
        simple.append(word)
    if has_any:
        simple.append(ANY)
    return simple


class Topic(Exchange):
    """Bindings by pattern: binding, unbinding and routing cost by the number of words, not of bindings."""

    def __init__(self, record: ExchangeRecord) -> None:
        super().__init__(record)
        self._literal: dict[str, Targets] = {}
        self._root = Node()

    def route(self, routing_key: str, headers: Callable[[], Table]) -> Collection[Destination]:  # noqa: ARG002
        """See ``Exchange``: equal keys first, then patterns."""
        literal = self._literal.get(routing_key)
        matched = self._match(split(routing_key)) if self._root.has_children else []
        if not matched:
            return literal or ()
        if literal is not None:
            matched.insert(0, literal)
        if len(matched) == 1:
            return matched[0]
        return {destination: 1 for targets in matched for destination in targets}

    def _match(self, words: list[str]) -> list[Targets]:
        """Targets of every pattern in the trie that matches these words.

        ``loops`` are the nodes behind a ``#``: once reached they may eat any further word, so they stay to the end.
        A node has one parent and is reached from it once per word, so nothing is looked at twice.  Behind a ``#``
        there are only literal words (``simplify``).
        """
        matched: list[Targets] = []
        loops: list[Node] = []
        seen: set[Node] = set()
        nodes = [self._root]
        if self._root.any is not None:
            _enter_loop(self._root.any, loops, seen, matched)
        for word in words:
            following = []
            for node in nodes:
                if (found := node.words.get(word)) is not None:
                    following.append(found)
                if (found := node.one) is not None:
                    following.append(found)
            for node in loops:
                if (found := node.words.get(word)) is not None:
                    following.append(found)  # noqa: PERF401 - mostly there are no loops, and then this is cheaper
            nodes = following
            for node in nodes:
                if node.any is not None:
                    _enter_loop(node.any, loops, seen, matched)
            if not nodes and not loops:
                return matched
        matched.extend([node.targets for node in nodes if node.targets is not None])
        return matched

    def _add(self, key: BindingKey, destination: Destination) -> None:
        words = split(key.routing_key)
        if ONE not in words and ANY not in words:
            add_target(self._literal.setdefault(key.routing_key, {}), destination)
            return
        node = self._root
        for word in simplify(words):
            node = node.child(word)
        if node.targets is None:
            node.targets = {}
        add_target(node.targets, destination)

    def _remove(self, key: BindingKey, destination: Destination) -> None:
        words = split(key.routing_key)
        if ONE not in words and ANY not in words:
            targets = self._literal[key.routing_key]
            remove_target(targets, destination)
            if not targets:
                del self._literal[key.routing_key]
            return
        node = self._root
        path: list[tuple[Node, str]] = []
        for word in simplify(words):
            path.append((node, word))
            node = node.child(word)
        if node.targets is not None:
            remove_target(node.targets, destination)
            node.targets = node.targets or None
        for parent, word in reversed(path):
            if node.targets is not None or node.has_children:
                break
            parent.drop_child(word)
            node = parent


def _enter_loop(loop: Node, loops: list[Node], seen: set[Node], matched: list[Targets]) -> None:
    """Go on to the node behind a ``#``, which needs no word: what ends there has matched."""
    if loop not in seen:
        seen.add(loop)
        if loop.targets is not None:
            matched.append(loop.targets)
        if loop.words:
            loops.append(loop)
