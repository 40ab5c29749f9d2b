from __future__ import annotations

import pickle

import pytest

import commitlog
from commitlog import errors

EXAMPLES = [
    errors.CommitLogError("a reason"),
    errors.ConfigError("segment_bytes", 7, "must be in [512, 2147483647]"),
    errors.InvalidTopicError("no/slash"),
    errors.InvalidRecordError(17, "value must be bytes-like or None, not str"),
    errors.RecordTooLargeError(3, 2_000_000, 1_048_576),
    errors.BatchTooLargeError(4_096, 1_024, "bytes on disk (segment_bytes)"),
    errors.OffsetOutOfRangeError("orders-0", 12, 3, 9),
    errors.UnknownTopicError("orders"),
    errors.UnknownPartitionError("orders", 5, 4),
    errors.TopicExistsError("orders"),
    errors.AssignmentError("mine", "orders-0 is given to nobody"),
    errors.MissingDependencyError("compression_type lz4", "lz4"),
    errors.ClosedError("orders-0"),
    errors.ReadOnlyError("orders-0"),
    errors.ForkedError("orders-0"),
    errors.PartitionFailedError("orders-0", "[Errno 5] Input/output error"),
    errors.OutOfOrderSequenceError("orders-0", 4_711, 12, 7),
    errors.ProducerFencedError("orders-0", 4_711, 0, 1),
    errors.UnfinishedPublicationError("query", 7, "no room"),
    errors.BufferFullError(33_554_432, 60_000),
    errors.DeliveryTimeoutError("orders", 5),
    errors.NotAssignedError("orders", 0),
    errors.NoOffsetError("orders", 0),
    errors.DeserializationError("orders", 0, 17, "ValueError('no JSON')"),
    errors.CommitFailedError("billing", "this member was removed from the group"),
    errors.RebalanceInProgressError("billing", 7),
    errors.FencedMemberError("billing", "worker-1"),
    errors.InconsistentGroupError(("range",), "sticky"),
    errors.GroupNotEmptyError("billing", 2),
    errors.UnknownGroupError("billing"),
    errors.TransactionStateError("billing-1", "commit_transaction() without begin_transaction()"),
    errors.TransactionFencedError("billing-1"),
    errors.TransactionAbortedError("billing-1", "another process has aborted it"),
    errors.TransactionTimeoutError("billing-1", 60_000),
    errors.UnfinishedTransactionError("billing-1", "[Errno 28] No space left on device"),
    errors.UnstableOffsetsError("billing", 60_000),
    errors.LeadershipLostError("orders-0", 2),
    errors.NotLeaderError("orders-0", 2),
    errors.FencedEpochError("orders-0", 3, 4),
    errors.UnknownEpochError("orders-0", 5, 4),
    errors.IsrRefusedError("orders-0", "node 3 is not alive"),
    errors.InvalidReplicasError("orders", "3 replicas on 2 nodes that are alive"),
    errors.NotEnoughReplicasError("orders-0", 1, 2),
    errors.NotEnoughReplicasAfterAppendError("orders-0", 1, 2),
    errors.ReplicationTimeoutError("orders-0", 30_000),
    errors.ConnectionFailedError("127.0.0.1:9092", "[Errno 111] Connection refused"),
    errors.AuthenticationError("127.0.0.1:9092", "the shared secret is another"),
    errors.AuthorizationError("Fetch", "a client", "a node"),
    errors.FrameTooLargeError(4_096, 1_024),
    errors.ProtocolError("127.0.0.1:9092", "no message has kind 99"),
    errors.NoControllerError("the session has expired"),
    errors.NotJoinedError(3, "no controller can be reached"),
    errors.WrongClusterError("fQ2cHPnTQ1qJ8S5mH6nKxA", "P4mFJ0aHTzSp1b3PuU7Ylw"),
    errors.StaleControllerError(60, 51),
    errors.TopicReplacedError("orders", "fQ2cHPnTQ1qJ8S5mH6nKxA", "P4mFJ0aHTzSp1b3PuU7Ylw"),
    errors.ClusterTooLargeError("orders", 5_000_000, 3_670_016),
    errors.StaleNodeError(3),
    errors.LogLockedError("/data/log", "process 4711 on host7", "close it there"),
    errors.NotALogError("/data/photos", "it has no commitlog.json"),
    errors.UnsupportedFormatError("/data/log", 9, 1),
    errors.CorruptionError("/data/log/orders-0/00000000000000000000.log", 4_242, "no batch starts here"),
    errors.DataLossError("orders-0", "offsets [0, 100) were removed"),
    errors.PathNotMountedError("/data/log", "worker7", "it does not exist"),
    errors.NotSharedError("/data/log", "worker7", "driver1"),
    errors.WrongLogError("/data/log", "worker7", "fQ2cHPnTQ1qJ8S5mH6nKxA", "P4mFJ0aHTzSp1b3PuU7Ylw"),
    errors.TornTailError("/data/log/orders-0/00000000000000000000.log", 4_242, 17),
    errors.DiskFullError("/data/log/orders-0/00000000000000000000.log", "No space left on device"),
    errors.TooManyOpenFilesError("/data/log", "400 are needed, and 100 are left"),
]


def named(error: Exception) -> str:
    return type(error).__name__


def test_the_examples_cover_every_error_class() -> None:
    defined = {
        one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, errors.CommitLogError)
    }
    assert {type(one) for one in EXAMPLES} == defined


@pytest.mark.parametrize("error", EXAMPLES, ids=named)
def test_every_error_survives_pickling(error: errors.CommitLogError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.args == error.args
    assert str(again) == str(error)


@pytest.mark.parametrize("error", EXAMPLES, ids=named)
def test_the_message_of_every_error_names_all_its_facts(error: errors.CommitLogError) -> None:
    for fact in error.args:
        assert str(fact) in str(error)


@pytest.mark.parametrize("error", EXAMPLES, ids=named)
def test_every_error_has_a_docstring_and_is_the_same_wherever_it_is_found(
    error: errors.CommitLogError,
) -> None:
    assert getattr(commitlog, named(error), type(error)) is type(error)
    assert type(error).__doc__


def test_errors_about_arguments_are_value_errors_and_those_about_names_lookup_errors() -> None:
    for kind in (errors.ConfigError, errors.InvalidTopicError, errors.InvalidRecordError):
        assert issubclass(kind, ValueError)
    for about in (errors.UnknownTopicError, errors.UnknownPartitionError, errors.OffsetOutOfRangeError):
        assert issubclass(about, LookupError)
    assert issubclass(errors.MissingDependencyError, ImportError)
    assert issubclass(errors.DiskFullError, OSError)


def test_a_corruption_error_tells_file_byte_and_reason_as_attributes() -> None:
    error = errors.CorruptionError("/x/0.log", 64, "bad checksum")
    assert (error.path, error.position, error.reason) == ("/x/0.log", 64, "bad checksum")
