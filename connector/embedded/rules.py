"""What the server refuses, and with which error number: pure checks of names, policies and requests.

Owns KubeMQ's limits and error numbers (measured; the words are ours).  Every check answers "" when all is well.
"""

from __future__ import annotations

import re

from kubemq.grpc import kubemq_pb2 as pb

MAX_EXPIRATION_S = 43_200
MAX_DELAY_S = 43_200
MAX_RECEIVE_COUNT = 1024
MAX_WAIT_S = 3600
MAX_RECEIVE_MESSAGES = 1024
UNLIMITED_ITEMS = 200_000

NO_CLIENT_ID = "Error 101: the ClientID is missing"
NO_CHANNEL = "Error 102: the channel is missing"
WILDCARD = "Error 107: a channel name here must not hold wildcards"
WHITE_SPACE = "Error 108: a channel name must not hold white space"
NO_TIMEOUT = "Error 109: the timeout must be above 0"
EMPTY_MESSAGE = "Error 110: a message needs a body or metadata"
NO_START = "Error 111: an Events Store subscription needs a start position"
BAD_START = {
    pb.Subscribe.StartAtSequence: "Error 112: the start sequence must be above 0",
    pb.Subscribe.StartAtTime: "Error 113: the start time must be above 0",
    pb.Subscribe.StartAtTimeDelta: "Error 114: the start time delta must be above 0",
}
EMPTY_REQUEST = "Error 115: a request needs a body or metadata"
NOT_A_STORE = "Error 118: a start position belongs to an Events Store subscription"
ENDS_WITH_DOT = "Error 119: a channel name must not end with a dot"
BAD_QUEUE_NAME = "Error 120: a queue name must not be empty, hold wildcards or white space, or end with a dot"
CANNOT_SUBSCRIBE = "Error 121: this queue cannot be read"
BAD_MAX_MESSAGES = f"Error 122: between 1 and {MAX_RECEIVE_MESSAGES} messages can be asked for"
BAD_EXPIRATION = f"Error 133: the expiration must be between 0 and {MAX_EXPIRATION_S} s"
BAD_RECEIVE_COUNT = f"Error 134: the receive limit must be between 0 and {MAX_RECEIVE_COUNT}"
BAD_DELAY = f"Error 135: the delay must be between 0 and {MAX_DELAY_S} s"
BAD_WAIT = f"Error 136: the wait must be between 0 and {MAX_WAIT_S} s"
BAD_REQUEST_TYPE = "Error 206: unknown request type"
BAD_SUBSCRIBE_TYPE = "Error 207: unknown subscription type"
REQUEST_TIMED_OUT = "Error 301: nobody answered the request in time"
CLIENT_ID_IN_USE = "this ClientID has an open subscription already"
BAD_CLIENT_ID = "a ClientID of an Events Store subscription is made of letters, digits, '-' and '_'"
BAD_STORED_NAME = "a channel name must not start with a dot, or hold '..' or '/'"
NAME_TOO_LONG = "a channel name is at most 246 bytes long"

# A real KubeMQ keeps a folder "_QUEUES_.<name>" per queue: 255 bytes at most.
_MAX_NAME_BYTES = 246
_UNFIT = re.compile(r"[*>\s\x00-\x1f\x7f]")
_CLIENT_ID = re.compile(r"[A-Za-z0-9_-]+")


def queue_name_problem(name: str) -> str:
    """Error 120 for a name no queue can have."""
    return BAD_QUEUE_NAME if not name or name[-1] == "." or _UNFIT.search(name) else ""


def stored_name_problem(name: str) -> str:
    """What is wrong with the name of a channel that is to be stored, its first check passed."""
    if name[0] == "." or ".." in name or "/" in name:
        return BAD_STORED_NAME
    return NAME_TOO_LONG if len(name) > _MAX_NAME_BYTES or len(name.encode()) > _MAX_NAME_BYTES else ""


def policy_problem(policy: pb.QueueMessagePolicy) -> str:
    """Errors 133, 134, 135 and, for the dead-letter queue's name, 120."""
    if not 0 <= policy.ExpirationSeconds <= MAX_EXPIRATION_S:
        return BAD_EXPIRATION
    if not 0 <= policy.MaxReceiveCount <= MAX_RECEIVE_COUNT:
        return BAD_RECEIVE_COUNT
    if not 0 <= policy.DelaySeconds <= MAX_DELAY_S:
        return BAD_DELAY
    if policy.MaxReceiveQueue:
        return queue_name_problem(policy.MaxReceiveQueue) or stored_name_problem(policy.MaxReceiveQueue)
    return ""


def reader_problem(client_id: str, channel: str) -> str:
    """What is wrong with the ClientID or the queue of whoever wants to read.

    KubeMQ stores messages of a queue with a colon in its name, and lets nobody read them.
    """
    if not client_id:
        return NO_CLIENT_ID
    problem = queue_name_problem(channel)
    if not problem and (":" in channel or stored_name_problem(channel)):
        problem = CANNOT_SUBSCRIBE
    return problem


def receive_problem(request: pb.ReceiveQueueMessagesRequest) -> str:
    """What is wrong with a ReceiveQueueMessages request."""
    problem = reader_problem(request.ClientID, request.Channel)
    if not problem and not 1 <= request.MaxNumberOfMessages <= MAX_RECEIVE_MESSAGES:
        problem = BAD_MAX_MESSAGES
    return problem or wait_problem(request.WaitTimeSeconds)


def wait_problem(wait_s: int) -> str:
    """Error 136."""
    return "" if 0 <= wait_s <= MAX_WAIT_S else BAD_WAIT


def event_channel_problem(client_id: str, channel: str, *, wildcards: bool = False) -> str:
    """What is wrong with the ClientID or channel of an event, request or subscription."""
    if not client_id:
        return NO_CLIENT_ID
    if not channel:
        return NO_CHANNEL
    if channel[-1] == ".":
        return ENDS_WITH_DOT
    if any(letter.isspace() for letter in channel):
        return WHITE_SPACE
    return WILDCARD if not wildcards and ("*" in channel or ">" in channel) else ""


def event_problem(event: pb.Event) -> str:
    """What is wrong with an event.

    Stored ones must have a name that can be stored: KubeMQ accepts the others and loses them, we refuse.
    """
    problem = event_channel_problem(event.ClientID, event.Channel)
    if not problem and not event.Metadata and not event.Body:
        problem = EMPTY_MESSAGE
    return problem or (stored_name_problem(event.Channel) if event.Store else "")


def subscription_problem(request: pb.Subscribe) -> str:
    """What is wrong with a subscription to events or to the Events Store."""
    stored = request.SubscribeTypeData == pb.Subscribe.EventsStore
    if not stored and request.SubscribeTypeData != pb.Subscribe.Events:
        return BAD_SUBSCRIBE_TYPE
    start = request.EventsStoreTypeData
    problem = event_channel_problem(request.ClientID, request.Channel, wildcards=not stored)
    if problem:
        return problem
    if not stored:
        return NOT_A_STORE if start != pb.Subscribe.EventsStoreTypeUndefined else ""
    if start == pb.Subscribe.EventsStoreTypeUndefined:
        return NO_START
    if start in BAD_START and request.EventsStoreTypeValue <= 0:
        return BAD_START[start]
    if not _CLIENT_ID.fullmatch(request.ClientID):
        return BAD_CLIENT_ID
    return stored_name_problem(request.Channel)
